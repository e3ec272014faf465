//! Transformer decoders: layers with attention to the memory of an encoder.

use super::stack::{layer_stack, zip_caches};
use super::sublayers::Sublayer;
use super::{TransformerOptions, transformer_options};
use crate::attention::{AttentionMasks, KvCache, MultiheadAttention, Rotary, append_after};
use crate::call;
use crate::layer::Layer;
use crate::layers::{Dropout, LayerNorm, Linear, make_layers, switched, values_like};
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::{Result, Tensor, unwrap};

/// A decoder layer: self-attention, attention to a memory, and two linear layers with an activation between them. Each
/// sublayer has a residual connection and a norm, as in [`TransformerEncoderLayer`](crate::TransformerEncoderLayer).
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct TransformerDecoderLayer {
    /// The first sublayer, self-attention.
    pub self_attn: MultiheadAttention,
    /// The second sublayer, attention to the memory.
    pub multihead_attn: MultiheadAttention,
    /// The first linear layer of the third sublayer, weight `[hidden, E]`.
    pub linear1: Linear,
    /// The second linear layer of the third sublayer, weight `[E, hidden]`.
    pub linear2: Linear,
    /// The norm of the first sublayer.
    pub norm1: LayerNorm,
    /// The norm of the second sublayer.
    pub norm2: LayerNorm,
    /// The norm of the third sublayer.
    pub norm3: LayerNorm,
    /// The dropout after the activation.
    pub dropout: Dropout,
    /// The dropout of each sublayer's output.
    pub dropout1: Dropout,
    #[module(skip)]
    options: TransformerOptions,
}

impl TransformerDecoderLayer {
    /// Creates a layer of this width with this many heads, and the default options. Rotary positions apply to
    /// self-attention only.
    ///
    /// # Errors
    /// The errors of [`MultiheadAttention::try_new`].
    #[panicking_form]
    pub fn try_new(width: usize, heads: usize) -> Result<TransformerDecoderLayer> {
        let options = TransformerOptions::default();
        Ok(TransformerDecoderLayer {
            self_attn: MultiheadAttention::try_new(width, heads)?.try_dropout(options.dropout)?,
            multihead_attn: MultiheadAttention::try_new(width, heads)?.try_dropout(options.dropout)?,
            linear1: Linear::try_new(width, options.hidden)?,
            linear2: Linear::try_new(options.hidden, width)?,
            norm1: LayerNorm::try_new(width)?,
            norm2: LayerNorm::try_new(width)?,
            norm3: LayerNorm::try_new(width)?,
            dropout: Dropout::try_new(options.dropout)?,
            dropout1: Dropout::try_new(options.dropout)?,
            options,
        })
    }

    /// Sets all options. Weights whose shapes change are initialized again only once, even if several options change
    /// them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for an option out of its range;
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_with_options(self, options: TransformerOptions) -> Result<TransformerDecoderLayer> {
        let self_attn = options.attention(self.self_attn, options.rotary)?;
        let multihead_attn = options.attention(self.multihead_attn, None)?;
        let [linear1, linear2] = options.linear([self.linear1, self.linear2])?;
        Ok(TransformerDecoderLayer {
            self_attn,
            multihead_attn,
            linear1,
            linear2,
            norm1: options.norm(self.norm1)?,
            norm2: options.norm(self.norm2)?,
            norm3: options.norm(self.norm3)?,
            dropout: options.dropout(self.dropout),
            dropout1: options.dropout(self.dropout1),
            options,
        })
    }

    fn each_options(&mut self, change: &mut dyn FnMut(&mut TransformerOptions)) {
        change(&mut self.options);
    }

    /// Returns the output `[.., L, E]` for a target `[.., L, E]` and a memory `[.., S, E]`.
    ///
    /// # Errors
    /// The errors of [`MultiheadAttention::try_forward_qkv`].
    #[panicking_form]
    pub fn try_forward(
        &self,
        target: &Tensor,
        memory: &Tensor,
        masks: AttentionMasks<'_>,
        memory_masks: AttentionMasks<'_>,
    ) -> Result<Tensor> {
        call::call(self, &[target, memory], || {
            self.run_sublayers(target, memory, memory_masks, |x| self.self_attn.try_forward_qkv(x, x, x, masks))
        })
    }

    /// Returns the output for the next n positions `[N, n, E]` of a causal target; see
    /// [`MultiheadAttention::forward_cached`].
    ///
    /// # Errors
    /// The errors of [`MultiheadAttention::try_forward_cached`].
    #[panicking_form]
    pub fn try_forward_cached(
        &self,
        target: &Tensor,
        memory: &Tensor,
        cache: &KvCache,
        memory_masks: AttentionMasks<'_>,
    ) -> Result<Tensor> {
        append_after([cache], || self.decode(target, memory, cache, memory_masks))
    }

    /// Computes [`forward_cached`](Self::forward_cached) for a caller that runs it inside [`append_after`].
    fn decode(
        &self,
        target: &Tensor,
        memory: &Tensor,
        cache: &KvCache,
        memory_masks: AttentionMasks<'_>,
    ) -> Result<Tensor> {
        call::call(self, &[target, memory], || {
            self.run_sublayers(target, memory, memory_masks, |x| self.self_attn.decode(x, cache))
        })
    }

    /// Returns the options.
    pub fn options(&self) -> TransformerOptions {
        self.options
    }

    fn sublayer<'a>(&'a self, norm: &'a LayerNorm) -> Sublayer<'a> {
        Sublayer { options: &self.options, norm, dropout: &self.dropout1 }
    }

    /// Runs all three sublayers; `attend` is the self-attention, with or without a cache.
    fn run_sublayers(
        &self,
        target: &Tensor,
        memory: &Tensor,
        memory_masks: AttentionMasks<'_>,
        attend: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let x = self.sublayer(&self.norm1).run(target, attend)?;
        let attend_memory = |x: &Tensor| self.multihead_attn.try_forward_qkv(x, memory, memory, memory_masks);
        let x = self.sublayer(&self.norm2).run(&x, attend_memory)?;
        self.sublayer(&self.norm3).feed_forward(&x, [&self.linear1, &self.linear2], &self.dropout)
    }
}

transformer_options!(TransformerDecoderLayer);
transformer_options!(TransformerDecoder);

layer_stack!(TransformerDecoder of TransformerDecoderLayer, "transformer_decoder", "targets");

impl TransformerDecoder {
    /// Returns the output `[.., L, E]` for a target `[.., L, E]` and a memory `[.., S, E]`.
    ///
    /// # Errors
    /// The errors of [`MultiheadAttention::try_forward_qkv`].
    #[panicking_form]
    pub fn try_forward(
        &self,
        target: &Tensor,
        memory: &Tensor,
        masks: AttentionMasks<'_>,
        memory_masks: AttentionMasks<'_>,
    ) -> Result<Tensor> {
        let each = |x: Tensor, layer: &TransformerDecoderLayer| layer.try_forward(&x, memory, masks, memory_masks);
        call::call(self, &[target, memory], || {
            self.norm.try_forward(&self.layers.iter().try_fold(target.clone(), each)?)
        })
    }

    /// Returns the output for the next n positions `[N, n, E]` of a causal target, with one cache for each layer; see
    /// [`MultiheadAttention::forward_cached`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if the number of caches is wrong; the errors
    /// of [`MultiheadAttention::try_forward_cached`].
    #[panicking_form]
    pub fn try_forward_cached(
        &self,
        target: &Tensor,
        memory: &Tensor,
        caches: &[KvCache],
        memory_masks: AttentionMasks<'_>,
    ) -> Result<Tensor> {
        let each = |x: Tensor, (layer, cache): (&TransformerDecoderLayer, &KvCache)| {
            layer.decode(&x, memory, cache, memory_masks)
        };
        append_after(caches, || {
            call::call(self, &[target, memory], || {
                let mut layers = zip_caches("transformer_decoder", &self.layers, caches)?.into_iter();
                self.norm.try_forward(&layers.try_fold(target.clone(), each)?)
            })
        })
    }
}
