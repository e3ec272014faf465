//! Transformers (Vaswani et al. 2017): layers of encoders and decoders, their stacks, and both together.
//!
//! Sequences are `[N, L, E]`. Parameters have the names of PyTorch's `nn.Transformer..` classes, so their files load
//! unchanged.

mod decoder;
mod encoder;

pub use decoder::{TransformerDecoder, TransformerDecoderLayer};
pub use encoder::{TransformerEncoder, TransformerEncoderLayer};

use crate::attention::{Masks, MultiheadAttention, MultiheadAttentionOptions, Rotary};
use crate::call;
use crate::init;
use crate::layer::Layer;
use crate::layers::{Dropout, LayerNorm, Linear};
use crate::module::Module;
use pellucid_derive::Module;
use pellucid_tensor::{Result, Tensor, ops, unwrap};

/// Options of all transformer layers. The defaults are the paper's.
///
/// ```
/// use pellucid_nn::{Layer, Masks, TransformerEncoder, TransformerOptions};
/// use pellucid_tensor::{DType, Tensor, ops};
/// // The body of GPT-2: norms come first, elements see what is before them.
/// let options = TransformerOptions { norm_first: true, activation: ops::gelu_tanh, ..Default::default() };
/// let body = TransformerEncoder::new(2, 16, 4, 64, options)?.with_norm();
/// let x = Tensor::randn([3, 5, 16], DType::F32);
/// assert_eq!(body.forward_masked(&x, Masks::causal()).shape().dims(), [3, 5, 16]);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TransformerOptions {
    /// The share that is dropped in training: of attention's weights, and of what each block adds.
    pub dropout: f64,
    /// The function between the two linear layers: [`ops::relu`], [`ops::gelu`], ...
    pub activation: fn(&Tensor) -> Result<Tensor>,
    /// Whether a norm comes before its block (Xiong et al. 2020), instead of behind the sum.
    pub norm_first: bool,
    /// What is added to variances.
    pub layer_norm_eps: f64,
    /// Whether linear layers and norms have biases.
    pub bias: bool,
    /// The number of heads of keys and values, if there are fewer than of queries.
    pub kv_heads: Option<usize>,
    /// Rotary positions in self-attention.
    pub rotary: Option<Rotary>,
}

impl Default for TransformerOptions {
    fn default() -> TransformerOptions {
        TransformerOptions {
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
        MultiheadAttention::with(width, heads, options)
    }

    #[track_caller]
    fn linear(&self, inputs: usize, outputs: usize) -> Linear {
        if self.bias { Linear::new(inputs, outputs) } else { Linear::new(inputs, outputs).without_bias() }
    }

    #[track_caller]
    fn norm(&self, width: usize) -> LayerNorm {
        let norm = LayerNorm::new(width).eps(self.layer_norm_eps);
        if self.bias { norm } else { norm.without_bias() }
    }
}

/// What the blocks of a layer have in common: x + dropout(block(x)), with a norm before the block or behind the sum.
#[derive(Clone, Debug)]
struct Residual {
    dropout: Dropout,
    norm_first: bool,
}

impl Residual {
    fn around(&self, x: &Tensor, norm: &LayerNorm, block: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        if self.norm_first {
            let found = block(&norm.try_forward(x)?)?;
            return ops::add(x, self.dropout.try_forward(&found)?);
        }
        let found = block(x)?;
        norm.try_forward(&ops::add(x, self.dropout.try_forward(&found)?)?)
    }
}

/// An encoder and a decoder (Vaswani et al. 2017), both with a norm at their end.
///
/// ```
/// use pellucid_nn::{Masks, Transformer, TransformerOptions};
/// use pellucid_tensor::{DType, Tensor};
/// let model = Transformer::new(16, 4, [1, 2], 32, TransformerOptions::default())?;
/// let (source, target) = (Tensor::randn([2, 7, 16], DType::F32), Tensor::randn([2, 5, 16], DType::F32));
/// let y = model.forward(&source, &target, Masks::default(), Masks::causal(), Masks::default());
/// assert_eq!(y.shape().dims(), [2, 5, 16]);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct Transformer {
    /// What reads the source.
    pub encoder: TransformerEncoder,
    /// What writes the target.
    pub decoder: TransformerDecoder,
}

impl Transformer {
    /// A transformer of this width, with this many heads, layers of encoder and decoder, and numbers between the two
    /// linear layers of a block. All matrices start uniform as in Glorot & Bengio 2010.
    ///
    /// # Errors
    /// Those of [`MultiheadAttention::with`].
    #[track_caller]
    pub fn new(
        width: usize,
        heads: usize,
        layers: [usize; 2],
        hidden: usize,
        options: TransformerOptions,
    ) -> Result<Transformer> {
        let encoder = TransformerEncoder::new(layers[0], width, heads, hidden, options)?.with_norm();
        let decoder = TransformerDecoder::new(layers[1], width, heads, hidden, options)?.with_norm();
        let model = Transformer { encoder, decoder };
        model.parameters().iter().filter(|p| p.rank() == 2).for_each(|matrix| init::xavier_uniform_(matrix, 1.0));
        Ok(model)
    }

    /// What the decoder makes of a target `[N, T, E]` and of what the encoder makes of a source `[N, S, E]`: `[N, T, E]`.
    /// `memory_masks` hide elements of the source from the decoder.
    ///
    /// # Panics
    /// With the errors of [`try_forward`](Transformer::try_forward).
    #[track_caller]
    pub fn forward(
        &self,
        source: &Tensor,
        target: &Tensor,
        source_masks: Masks<'_>,
        target_masks: Masks<'_>,
        memory_masks: Masks<'_>,
    ) -> Tensor {
        let _call = pellucid_tensor::called();
        unwrap(self.try_forward(source, target, source_masks, target_masks, memory_masks))
    }

    /// [`forward`](Transformer::forward) as a result.
    ///
    /// # Errors
    /// Those of [`MultiheadAttention::try_attend`].
    pub fn try_forward(
        &self,
        source: &Tensor,
        target: &Tensor,
        source_masks: Masks<'_>,
        target_masks: Masks<'_>,
        memory_masks: Masks<'_>,
    ) -> Result<Tensor> {
        call::call(self, &[source, target], || {
            let memory = self.encoder.try_forward_masked(source, source_masks)?;
            self.decoder.try_forward(target, &memory, target_masks, memory_masks)
        })
    }
}
