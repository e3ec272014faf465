//! Transformer encoders. With a causal mask, an encoder is the body of a language model.

use super::stack::{layer_stack, zip_caches};
use super::sublayers::Sublayer;
use super::{TransformerOptions, transformer_options};
use crate::attention::{AttentionMasks, KvCache, MultiheadAttention, Rotary, append_after};
use crate::call;
use crate::layer::Layer;
use crate::layers::{Dropout, LayerNorm, Linear, make_layers, switched, values_like};
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::{Result, Tensor, unwrap};

/// An encoder layer: self-attention, and two linear layers with an activation between them. Each sublayer has a
/// residual connection and a norm.
///
/// With `norm_first`, x ← x + attention(norm1(x)), x ← x + linear2(activation(linear1(norm2(x)))); else
/// x ← norm1(x + attention(x)), x ← norm2(x + linear2(activation(linear1(x)))). As a [`Layer`] it has no masks.
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct TransformerEncoderLayer {
    /// The first sublayer, self-attention.
    pub self_attn: MultiheadAttention,
    /// The first linear layer of the second sublayer, weight `[hidden, E]`.
    pub linear1: Linear,
    /// The second linear layer of the second sublayer, weight `[E, hidden]`.
    pub linear2: Linear,
    /// The norm of the first sublayer.
    pub norm1: LayerNorm,
    /// The norm of the second sublayer.
    pub norm2: LayerNorm,
    /// The dropout after the activation.
    pub dropout: Dropout,
    /// The dropout of each sublayer's output.
    pub dropout1: Dropout,
    #[module(skip)]
    options: TransformerOptions,
}

impl TransformerEncoderLayer {
    /// Creates a layer of this width with this many heads, and the default options.
    ///
    /// # Errors
    /// The errors of [`MultiheadAttention::try_new`].
    #[panicking_form]
    pub fn try_new(width: usize, heads: usize) -> Result<TransformerEncoderLayer> {
        let options = TransformerOptions::default();
        Ok(TransformerEncoderLayer {
            self_attn: MultiheadAttention::try_new(width, heads)?.try_dropout(options.dropout)?,
            linear1: Linear::try_new(width, options.hidden)?,
            linear2: Linear::try_new(options.hidden, width)?,
            norm1: LayerNorm::try_new(width)?,
            norm2: LayerNorm::try_new(width)?,
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
    pub fn try_with_options(self, options: TransformerOptions) -> Result<TransformerEncoderLayer> {
        let self_attn = options.attention(self.self_attn, options.rotary)?;
        let [linear1, linear2] = options.linear([self.linear1, self.linear2])?;
        Ok(TransformerEncoderLayer {
            self_attn,
            linear1,
            linear2,
            norm1: options.norm(self.norm1)?,
            norm2: options.norm(self.norm2)?,
            dropout: options.dropout(self.dropout),
            dropout1: options.dropout(self.dropout1),
            options,
        })
    }

    fn each_options(&mut self, change: &mut dyn FnMut(&mut TransformerOptions)) {
        change(&mut self.options);
    }

    /// Returns the output `[.., L, E]` for x `[.., L, E]` with masks.
    ///
    /// # Errors
    /// The errors of [`MultiheadAttention::try_forward_qkv`].
    #[panicking_form]
    pub fn try_forward_masked(&self, x: &Tensor, masks: AttentionMasks<'_>) -> Result<Tensor> {
        call::call_unary(self, x, |x| self.run_sublayers(x, |x| self.self_attn.try_forward_qkv(x, x, x, masks)))
    }

    /// Returns the output for the next n positions `[N, n, E]` of a causal sequence; see
    /// [`MultiheadAttention::forward_cached`].
    ///
    /// # Errors
    /// The errors of [`MultiheadAttention::try_forward_cached`].
    #[panicking_form]
    pub fn try_forward_cached(&self, x: &Tensor, cache: &KvCache) -> Result<Tensor> {
        append_after([cache], || self.decode(x, cache))
    }

    /// Computes [`forward_cached`](Self::forward_cached) for a caller that runs it inside [`append_after`].
    fn decode(&self, x: &Tensor, cache: &KvCache) -> Result<Tensor> {
        call::call_unary(self, x, |x| self.run_sublayers(x, |x| self.self_attn.decode(x, cache)))
    }

    /// Returns the options.
    pub fn options(&self) -> TransformerOptions {
        self.options
    }

    fn sublayer<'a>(&'a self, norm: &'a LayerNorm) -> Sublayer<'a> {
        Sublayer { options: &self.options, norm, dropout: &self.dropout1 }
    }

    /// Runs both sublayers; `attend` is the self-attention, with or without a cache.
    fn run_sublayers(&self, x: &Tensor, attend: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let x = self.sublayer(&self.norm1).run(x, attend)?;
        self.sublayer(&self.norm2).feed_forward(&x, [&self.linear1, &self.linear2], &self.dropout)
    }
}

impl Layer for TransformerEncoderLayer {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.run_sublayers(x, |x| self.self_attn.try_forward(x))
    }
}

transformer_options!(TransformerEncoderLayer);
transformer_options!(TransformerEncoder);

layer_stack!(TransformerEncoder of TransformerEncoderLayer, "transformer_encoder", "sequences");

impl TransformerEncoder {
    /// Returns the output `[.., L, E]` for x `[.., L, E]` with the same masks in every layer.
    ///
    /// # Errors
    /// The errors of [`MultiheadAttention::try_forward_qkv`].
    #[panicking_form]
    pub fn try_forward_masked(&self, x: &Tensor, masks: AttentionMasks<'_>) -> Result<Tensor> {
        call::call_unary(self, x, |x| {
            let x = self.layers.iter().try_fold(x.clone(), |x, layer| layer.try_forward_masked(&x, masks))?;
            self.norm.try_forward(&x)
        })
    }

    /// Returns the output for the next n positions `[N, n, E]` of a causal sequence, with one cache for each layer; see
    /// [`MultiheadAttention::forward_cached`]. A greedy language model whose head shares the embedding, as in GPT-2:
    ///
    /// ```
    /// use pellucid::nn::{Embedding, Layer, LearnedPositions, Linear, TransformerEncoder};
    /// use pellucid::{Tensor, no_grad, ops};
    /// let body = TransformerEncoder::new(16, 4, 2).hidden(64).dropout(0.0).norm_first(true).norm(true);
    /// let (words, positions) = (Embedding::new(50, 16), LearnedPositions::new(32, 16));
    /// let head = Linear { weight: words.weight.clone(), bias: None };
    ///
    /// let _off = no_grad();
    /// let (caches, mut next) = (body.caches(1, 32), Tensor::from([[3i64, 14, 15]]));
    /// let mut found = next.clone();
    /// while found.shape()[1] < 8 {
    ///     // First the entire prompt, then one token at a time; the caches hold the position.
    ///     let rows = Tensor::arange(0, next.shape()[1] as i64, 1) + caches[0].length();
    ///     let x = words.forward(&next) + positions.forward_rows(&rows);
    ///     let last = body.forward_cached(&x, &caches).select(1, -1);
    ///     next = head.forward(&last).argmax(-1).unsqueeze(1);
    ///     found = ops::concatenate(&[&found, &next], 1)?;
    /// }
    /// assert_eq!(found.shape().dims(), [1, 8]);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if the number of caches is wrong; the errors
    /// of [`MultiheadAttention::try_forward_cached`].
    #[panicking_form]
    pub fn try_forward_cached(&self, x: &Tensor, caches: &[KvCache]) -> Result<Tensor> {
        append_after(caches, || {
            call::call_unary(self, x, |x| {
                let layers = zip_caches("transformer_encoder", &self.layers, caches)?;
                let x = layers.into_iter().try_fold(x.clone(), |x, (layer, cache)| layer.decode(&x, cache))?;
                self.norm.try_forward(&x)
            })
        })
    }
}

impl Layer for TransformerEncoder {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.layers.iter().try_fold(x.clone(), |x, layer| layer.try_forward(&x))?;
        self.norm.try_forward(&x)
    }
}
