//! Stacks of transformer layers.

use crate::attention::KvCache;
use pellucid_tensor::{Error, Result};

/// Defines a stack of layers with an optional norm at the end.
macro_rules! layer_stack {
    ($stack:ident of $layer:ident, $op:literal, $sequences:literal) => {
        #[doc = concat!("A stack of [`", stringify!($layer), "`]s with an optional norm at the end.")]
        #[derive(Clone, Debug, Module)]
        #[module(display)]
        pub struct $stack {
            /// The layers.
            pub layers: Vec<$layer>,
            /// The norm at the end.
            pub norm: Option<LayerNorm>,
            #[module(skip)]
            options: TransformerOptions,
            width: usize,
        }

        impl $stack {
            #[doc = concat!("Creates layers as [`", stringify!($layer), "::new`] does, without a norm at the end.")]
            ///
            /// # Errors
            /// The errors of [`MultiheadAttention::try_new`].
            #[panicking_form]
            pub fn try_new(width: usize, heads: usize, layers: usize) -> Result<$stack> {
                let layers = make_layers($op, layers, |_| $layer::try_new(width, heads))?;
                Ok($stack { layers, norm: None, options: TransformerOptions::default(), width })
            }

            /// Sets all options. Weights whose shapes change are initialized again only once, even if several options
            /// change them.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for an option out of its range;
            /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
            #[panicking_form]
            pub fn try_with_options(self, options: TransformerOptions) -> Result<$stack> {
                let with_options = |layer: $layer| layer.try_with_options(options);
                let layers = self.layers.into_iter().map(with_options).collect::<Result<_>>()?;
                let norm = self.norm.map(|norm| options.norm(norm)).transpose()?;
                Ok($stack { layers, norm, options, width: self.width })
            }

            pub(super) fn each_options(&mut self, change: &mut dyn FnMut(&mut TransformerOptions)) {
                change(&mut self.options);
                self.layers.iter_mut().for_each(|layer| layer.each_options(change));
            }

            /// Sets whether there is a norm at the end, which layers with `norm_first` need.
            ///
            /// # Errors
            /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
            #[panicking_form]
            #[must_use]
            pub fn try_norm(self, norm: bool) -> Result<$stack> {
                let other = self.layers.first().map(|layer| layer.linear1.weight.tensor());
                let make = || self.options.norm(LayerNorm::try_new(self.width)?);
                let norm = switched(norm, self.norm, || values_like($op, other, make))?;
                Ok($stack { norm, ..self })
            }

            /// Returns the options of the layers.
            pub fn options(&self) -> TransformerOptions {
                self.options
            }

            #[doc = concat!("Creates empty caches for all layers: `batch` ", $sequences, " of at most `capacity` elements.")]
            ///
            /// # Errors
            /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
            #[panicking_form]
            pub fn try_caches(&self, batch: usize, capacity: usize) -> Result<Vec<KvCache>> {
                self.layers.iter().map(|layer| layer.self_attn.try_cache(batch, capacity)).collect()
            }
        }
    };
}
pub(super) use layer_stack;

/// Pairs each layer with its cache.
pub(super) fn zip_caches<'a, L>(
    op: &'static str,
    layers: &'a [L],
    caches: &'a [KvCache],
) -> Result<Vec<(&'a L, &'a KvCache)>> {
    if layers.len() != caches.len() {
        let reason =
            format!("expected one cache per layer ({}), got {}; create them with caches()", layers.len(), caches.len());
        return Err(Error::invalid(op, reason));
    }
    Ok(layers.iter().zip(caches).collect())
}
