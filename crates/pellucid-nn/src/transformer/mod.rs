//! Transformers (Vaswani et al. 2017): encoder and decoder layers, stacks of them, and the entire model.
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
use crate::layers::{LayerNorm, Linear};
use crate::module::Module;
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::{Result, Tensor, note_call_location, ops, unwrap};

/// Options of all transformer layers. The defaults are the paper's.
///
/// ```
/// use pellucid::nn::{Layer, AttentionMasks, TransformerEncoder, TransformerOptions};
/// use pellucid::{DType, Tensor, ops};
/// // The body of GPT-2: norms come first, attention is causal.
/// let activation = ops::gelu_tanh;
/// let options = TransformerOptions { hidden: 64, norm_first: true, activation, ..Default::default() };
/// let body = TransformerEncoder::with_options(16, 4, 2, options).norm(true);
/// let x = Tensor::randn([3, 5, 16], DType::F32);
/// assert_eq!(body.forward_masked(&x, AttentionMasks::causal()).shape().dims(), [3, 5, 16]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TransformerOptions {
    /// The number of features between the two linear layers.
    #[doc(alias = "dim_feedforward")]
    pub hidden: usize,
    /// The dropout probability in training, for attention weights and for the output of each sublayer.
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
    #[track_caller]
    fn attention(&self, width: usize, heads: usize, rotary: Option<Rotary>) -> Result<MultiheadAttention> {
        let &TransformerOptions { dropout, bias, kv_heads, .. } = self;
        let options = MultiheadAttentionOptions { dropout, bias, kv_heads, rotary, ..Default::default() };
        MultiheadAttention::try_with_options(width, heads, options)
    }

    #[track_caller]
    fn linear(&self, inputs: usize, outputs: usize) -> Result<Linear> {
        Linear::try_new(inputs, outputs)?.try_bias(self.bias)
    }

    #[track_caller]
    fn norm(&self, width: usize) -> Result<LayerNorm> {
        LayerNorm::try_new(width)?.try_eps(self.layer_norm_eps)?.try_bias(self.bias)
    }
}

/// The Transformer of Vaswani et al. 2017: an encoder and a decoder, each with a norm at the end.
///
/// ```
/// use pellucid::nn::{AttentionMasks, Transformer, TransformerOptions};
/// use pellucid::{DType, Tensor};
/// let model = Transformer::with_options(16, 4, [1, 2], TransformerOptions { hidden: 32, ..Default::default() });
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
    /// Creates a transformer with this width, this many heads, encoder and decoder layers, and the default options. All
    /// matrices are initialized uniformly after Glorot & Bengio 2010.
    ///
    /// # Errors
    /// The errors of [`MultiheadAttention::try_with_options`].
    #[panicking_form]
    pub fn try_new(width: usize, heads: usize, layers: [usize; 2]) -> Result<Transformer> {
        Transformer::try_with_options(width, heads, layers, TransformerOptions::default())
    }

    /// Creates a transformer as [`new`](Transformer::new) does, with options.
    ///
    /// # Errors
    /// The errors of [`MultiheadAttention::try_with_options`].
    #[panicking_form]
    pub fn try_with_options(
        width: usize,
        heads: usize,
        layers: [usize; 2],
        options: TransformerOptions,
    ) -> Result<Transformer> {
        let encoder = TransformerEncoder::try_with_options(width, heads, layers[0], options)?.try_norm(true)?;
        let decoder = TransformerDecoder::try_with_options(width, heads, layers[1], options)?.try_norm(true)?;
        let model = Transformer { encoder, decoder };
        for matrix in model.parameters().iter().filter(|p| p.rank() == 2) {
            init::try_xavier_uniform_(matrix, 1.0)?;
        }
        Ok(model)
    }

    /// Returns the decoder's output `[N, T, E]` for a target `[N, T, E]` and a source `[N, S, E]`, which the encoder
    /// maps to the memory. `memory_masks` hide elements of the memory from the decoder.
    ///
    /// # Errors
    /// The errors of [`MultiheadAttention::try_forward_qkv`].
    #[panicking_form(located)]
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
