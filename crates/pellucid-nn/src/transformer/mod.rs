//! Transformers (Vaswani et al. 2017): encoder and decoder layers, stacks of layers, and the entire model.
//!
//! Sequences are `[N, L, E]`. Parameters have the names of PyTorch's `nn.Transformer..` classes, so their files load
//! unchanged.

mod decoder;
mod encoder;
mod stack;
mod sublayers;

pub use decoder::{TransformerDecoder, TransformerDecoderLayer};
pub use encoder::{TransformerEncoder, TransformerEncoderLayer};

use crate::attention::{AttentionMasks, MultiheadAttention, MultiheadAttentionOptions, Rotary};
use crate::call;
use crate::init;
use crate::layers::{Dropout, LayerNorm, Linear};
use crate::module::Module;
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::{Error, Result, Tensor, TensorId, ops, unwrap};
use std::collections::HashSet;

/// The options of all transformer layers, for [`with_options`](TransformerEncoder::with_options). The defaults are
/// PyTorch's.
///
/// ```
/// use pellucid::nn::{Layer, AttentionMasks, TransformerEncoder, TransformerOptions};
/// use pellucid::{DType, Tensor, ops};
/// // The body of GPT-2: norms come first, attention is causal.
/// let options = TransformerOptions { hidden: 64, norm_first: true, activation: ops::gelu_tanh, ..Default::default() };
/// let body = TransformerEncoder::new(16, 4, 2).with_options(options).norm(true);
/// let x = Tensor::randn([3, 5, 16], DType::F32);
/// assert_eq!(body.forward_masked(&x, AttentionMasks::causal()).shape().dims(), [3, 5, 16]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TransformerOptions {
    /// The number of features between the two linear layers.
    #[doc(alias = "dim_feedforward")]
    pub hidden: usize,
    /// The dropout probability in training, for attention weights, after the activation and for the output of each
    /// sublayer.
    pub dropout: f64,
    /// The function between the two linear layers: [`ops::relu`], [`ops::gelu`], ...
    pub activation: fn(&Tensor) -> Result<Tensor>,
    /// Whether the norm comes before its sublayer (Xiong et al. 2020) instead of after the residual sum.
    pub norm_first: bool,
    /// The eps of norms, added to variances.
    pub layer_norm_eps: f64,
    /// Whether linear layers and norms have biases.
    pub bias: bool,
    /// The number of key-value heads; `None` means as many as query heads.
    pub kv_heads: Option<usize>,
    /// The rotary position embedding of self-attention.
    pub rotary: Option<Rotary>,
}

impl Default for TransformerOptions {
    fn default() -> TransformerOptions {
        TransformerOptions {
            hidden: 2048,
            dropout: 0.1,
            activation: ops::relu,
            norm_first: false,
            layer_norm_eps: 1e-5,
            bias: true,
            kv_heads: None,
            rotary: None,
        }
    }
}

impl TransformerOptions {
    /// Sets the options of an attention layer.
    #[track_caller]
    fn attention(&self, attention: MultiheadAttention, rotary: Option<Rotary>) -> Result<MultiheadAttention> {
        let &TransformerOptions { dropout, bias, kv_heads, .. } = self;
        let options = MultiheadAttentionOptions { dropout, bias, kv_heads, rotary, ..attention.options() };
        attention.try_with_options(options)
    }

    /// Sets the options of the two linear layers of a sublayer. If the number of hidden features changes, they are
    /// initialized again.
    #[track_caller]
    fn linear(&self, [first, second]: [Linear; 2]) -> Result<[Linear; 2]> {
        let (width, hidden) = (first.weight.shape()[1], self.hidden);
        let [first, second] = match first.weight.shape()[0] == hidden {
            true => [first, second],
            false => init::in_dtype(first.weight.dtype(), || {
                Ok::<_, Error>([Linear::try_new(width, hidden)?, Linear::try_new(hidden, width)?])
            })?,
        };
        Ok([first.try_bias(self.bias)?, second.try_bias(self.bias)?])
    }

    /// Sets the options of a norm.
    #[track_caller]
    fn norm(&self, norm: LayerNorm) -> Result<LayerNorm> {
        norm.try_eps(self.layer_norm_eps)?.try_bias(self.bias)
    }

    /// Sets the probability of a dropout.
    fn dropout(&self, mut dropout: Dropout) -> Dropout {
        dropout.p = self.dropout;
        dropout
    }
}

/// Implements one method for each option of a transformer module. The method of an option that may be invalid or that
/// changes weights calls `try_with_options`, which initializes again the weights whose shapes change; the other methods
/// call `each_options`.
macro_rules! transformer_options {
    ($module:ident) => {
        impl $module {
            /// Sets the number of features between the two linear layers, by default 2048. If it changes, both layers
            /// are initialized again.
            ///
            /// # Errors
            /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
            #[doc(alias = "dim_feedforward")]
            #[panicking_form]
            pub fn try_hidden(self, hidden: usize) -> Result<$module> {
                let options = TransformerOptions { hidden, ..self.options() };
                self.try_with_options(options)
            }

            /// Sets the dropout probability in training, for attention weights, after the activation and for the output
            /// of each sublayer; by default 0.1.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for a probability outside [0, 1].
            #[panicking_form]
            pub fn try_dropout(self, dropout: f64) -> Result<$module> {
                let options = TransformerOptions { dropout, ..self.options() };
                self.try_with_options(options)
            }

            /// Sets the function between the two linear layers, by default [`ops::relu`](pellucid_tensor::ops::relu).
            #[must_use]
            pub fn activation(mut self, activation: fn(&Tensor) -> Result<Tensor>) -> $module {
                self.each_options(&mut |options| options.activation = activation);
                self
            }

            /// Sets whether the norm comes before its sublayer (Xiong et al. 2020) instead of after the residual sum;
            /// default false.
            #[must_use]
            pub fn norm_first(mut self, norm_first: bool) -> $module {
                self.each_options(&mut |options| options.norm_first = norm_first);
                self
            }

            /// Sets the eps of norms, which is added to variances, by default 1e-5.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if it is negative or not finite.
            #[panicking_form]
            pub fn try_layer_norm_eps(self, layer_norm_eps: f64) -> Result<$module> {
                let options = TransformerOptions { layer_norm_eps, ..self.options() };
                self.try_with_options(options)
            }

            /// Sets whether linear layers and norms have biases.
            ///
            /// # Errors
            /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
            #[panicking_form]
            pub fn try_bias(self, bias: bool) -> Result<$module> {
                let options = TransformerOptions { bias, ..self.options() };
                self.try_with_options(options)
            }

            /// Sets the number of key-value heads, by default the number of query heads. See
            /// [`MultiheadAttention::kv_heads`](crate::MultiheadAttention::kv_heads).
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if it does not divide the number of
            /// query heads; [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
            #[panicking_form]
            pub fn try_kv_heads(self, kv_heads: usize) -> Result<$module> {
                let options = TransformerOptions { kv_heads: Some(kv_heads), ..self.options() };
                self.try_with_options(options)
            }

            /// Sets the rotary position embedding of self-attention, or `None`, the default.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if the head width is odd, or the
            /// base is out of range.
            #[panicking_form]
            pub fn try_rotary(self, rotary: impl Into<Option<Rotary>>) -> Result<$module> {
                let options = TransformerOptions { rotary: rotary.into(), ..self.options() };
                self.try_with_options(options)
            }
        }
    };
}
use transformer_options;

transformer_options!(Transformer);

/// The Transformer of Vaswani et al. 2017: an encoder and a decoder, each with a norm at the end.
///
/// ```
/// use pellucid::nn::{AttentionMasks, Transformer};
/// use pellucid::{DType, Tensor};
/// let model = Transformer::new(16, 4, [1, 2]).hidden(32);
/// let (source, target) = (Tensor::randn([2, 7, 16], DType::F32), Tensor::randn([2, 5, 16], DType::F32));
/// let (none, causal) = (AttentionMasks::default(), AttentionMasks::causal());
/// let y = model.forward(&source, &target, none, causal, none);
/// assert_eq!(y.shape().dims(), [2, 5, 16]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct Transformer {
    /// The encoder of the source.
    pub encoder: TransformerEncoder,
    /// The decoder of the target.
    pub decoder: TransformerDecoder,
}

impl Transformer {
    /// Creates a transformer of this width, with this many heads and with `layers` = [encoder layers, decoder layers].
    /// Options have their defaults. All matrices are initialized uniformly after Glorot & Bengio 2010.
    ///
    /// # Errors
    /// The errors of [`MultiheadAttention::try_new`].
    #[panicking_form]
    pub fn try_new(width: usize, heads: usize, layers: [usize; 2]) -> Result<Transformer> {
        let encoder = TransformerEncoder::try_new(width, heads, layers[0])?.try_norm(true)?;
        let decoder = TransformerDecoder::try_new(width, heads, layers[1])?.try_norm(true)?;
        Transformer { encoder, decoder }.initialized(&HashSet::new())
    }

    /// Returns the options of the layers.
    pub fn options(&self) -> TransformerOptions {
        self.encoder.options()
    }

    /// Sets all options. Weights whose shapes change are initialized again only once, even if several options change
    /// them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for an option out of its range;
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_with_options(self, options: TransformerOptions) -> Result<Transformer> {
        let drawn = self.parameters().iter().map(|parameter| parameter.id()).collect();
        let (encoder, decoder) = (self.encoder.try_with_options(options)?, self.decoder.try_with_options(options)?);
        Transformer { encoder, decoder }.initialized(&drawn)
    }

    fn each_options(&mut self, change: &mut dyn FnMut(&mut TransformerOptions)) {
        self.encoder.each_options(change);
        self.decoder.each_options(change);
    }

    /// Initializes all matrices except those in `drawn`, which keep their values.
    #[track_caller]
    fn initialized(self, drawn: &HashSet<TensorId>) -> Result<Transformer> {
        for matrix in self.parameters().iter().filter(|p| p.rank() == 2 && !drawn.contains(&p.id())) {
            init::try_xavier_uniform_(matrix, 1.0)?;
        }
        Ok(self)
    }

    /// Returns the decoder's output `[N, T, E]` for a target `[N, T, E]` and a source `[N, S, E]`, which the encoder
    /// maps to the memory. `memory_masks` hide elements of the memory from the decoder.
    ///
    /// # Errors
    /// The errors of [`MultiheadAttention::try_forward_qkv`].
    #[panicking_form]
    pub fn try_forward(
        &self,
        source: &Tensor,
        target: &Tensor,
        source_masks: AttentionMasks<'_>,
        target_masks: AttentionMasks<'_>,
        memory_masks: AttentionMasks<'_>,
    ) -> Result<Tensor> {
        call::call(self, &[source, target], || {
            let memory = self.encoder.try_forward_masked(source, source_masks)?;
            self.decoder.try_forward(target, &memory, target_masks, memory_masks)
        })
    }
}
