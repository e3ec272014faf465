//! The multi-head attention layer.

mod forward;

pub use forward::InProj;

use super::cache::{KvCache, append_after};
use super::mask::{AttentionMasks, MULTIHEAD_ATTENTION};
use super::rotary::Rotary;
use crate::call;
use crate::init;
use crate::layer::Layer;
use crate::layers::{Linear, switched, values_like};
use crate::module::{Module, display_as_tree};
use crate::parameter::{Parameter, TrainingMode};
use crate::visit::{Visit, Visitor};
use forward::check_heads;
use pellucid_derive::panicking_form;
use pellucid_tensor::{DType, Error, Result, Tensor, autocast_dtype, unwrap};

/// The options of [`MultiheadAttention`], for [`with_options`](MultiheadAttention::with_options).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MultiheadAttentionOptions {
    /// The probability of dropping an attention weight in training.
    pub dropout: f64,
    /// Whether projections have biases.
    pub bias: bool,
    /// The number of key-value heads, a divisor of the number of query heads; neighbouring query heads share one
    /// (grouped-query attention, Ainslie et al. 2023). `None` means as many as query heads.
    pub kv_heads: Option<usize>,
    /// The width of keys; `None` means the width of queries.
    pub kdim: Option<usize>,
    /// The width of values; `None` means the width of queries.
    pub vdim: Option<usize>,
    /// The rotary position embedding of queries and keys.
    pub rotary: Option<Rotary>,
    /// Whether to append a trained key with its value, visible to every query.
    pub bias_kv: bool,
    /// Whether to append a key of zeros with a value of zeros, visible to every query.
    pub zero_attn: bool,
}

impl Default for MultiheadAttentionOptions {
    fn default() -> MultiheadAttentionOptions {
        MultiheadAttentionOptions {
            dropout: 0.0,
            bias: true,
            kv_heads: None,
            kdim: None,
            vdim: None,
            rotary: None,
            bias_kv: false,
            zero_attn: false,
        }
    }
}

/// Multi-head attention (Vaswani et al. 2017): queries, keys and values are projected and split into H heads of width
/// D = E/H. Each head runs [`scaled_dot_product_attention`](pellucid_tensor::ops::scaled_dot_product_attention). The
/// results are joined and projected.
///
/// Queries are `[.., L, E]`, keys `[.., S, kdim]`, values `[.., S, vdim]`; the result is `[.., L, E]`. Unlike PyTorch's
/// default, the batch comes first. As a [`Layer`] it computes self-attention without masks.
///
/// Parameters have PyTorch's names and layouts. G is the number of key-value heads. `in_proj_weight` `[E + 2·G·D, E]`
/// stacks the projections of queries, keys and values; if widths differ, the projections are separate matrices,
/// `q_proj_weight`, `k_proj_weight` and `v_proj_weight`. The other parameters are `in_proj_bias`, `out_proj.weight`,
/// `out_proj.bias` and, with `bias_kv`, `bias_k` and `bias_v`, `[1, 1, G·D]`.
///
/// ```
/// use pellucid::nn::{Layer, AttentionMasks, MultiheadAttention};
/// use pellucid::{DType, Tensor};
/// let attention = MultiheadAttention::new(16, 4);
/// let (x, memory) = (Tensor::randn([2, 5, 16], DType::F32), Tensor::randn([2, 7, 16], DType::F32));
/// assert_eq!(attention.forward(&x).shape().dims(), [2, 5, 16]);
/// assert_eq!(attention.forward_qkv(&x, &memory, &memory, AttentionMasks::default()).shape().dims(), [2, 5, 16]);
/// ```
#[derive(Clone, Debug)]
pub struct MultiheadAttention {
    /// The projections of queries, keys and values.
    pub in_proj: InProj,
    /// The biases of the query, key and value projections, concatenated.
    pub in_proj_bias: Option<Parameter>,
    /// The output projection of the joined heads.
    pub out_proj: Linear,
    /// The appended key and value, visible to every query.
    pub bias_kv: Option<[Parameter; 2]>,
    zero_attn: bool,
    heads: usize,
    kv_heads: usize,
    dropout: f64,
    rotary: Option<Rotary>,
    training: TrainingMode,
}

impl Module for MultiheadAttention {}

impl Visit for MultiheadAttention {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module(self, None);
        match &self.in_proj {
            InProj::Joint(weight) => visitor.field("in_proj_weight", weight),
            InProj::Separate(weights) => {
                let names = ["q_proj_weight", "k_proj_weight", "v_proj_weight"];
                names.iter().zip(weights).for_each(|(name, weight)| visitor.field(name, weight));
            }
        }
        visitor.field("in_proj_bias", &self.in_proj_bias);
        visitor.field("out_proj", &self.out_proj);
        if let Some([key, value]) = &self.bias_kv {
            visitor.field("bias_k", key);
            visitor.field("bias_v", value);
        }
        visitor.setting("heads", &self.heads);
        visitor.field("dropout", &self.dropout);
        visitor.field("training", &self.training);
    }
}

display_as_tree! {
    [] MultiheadAttention;
}

impl MultiheadAttention {
    /// Creates an attention layer of this width, with this many heads and with biases. Input projections are
    /// initialized after Glorot & Bengio 2010 (uniform), the output projection like a [`Linear`], biases with 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the number of heads does not divide the width; [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(width: usize, heads: usize) -> Result<MultiheadAttention> {
        check_heads(width, heads, heads, None, 0.0)?;
        let in_proj = InProj::draw(width, [width; 3])?;
        let mut out_proj = call::name_layer(MULTIHEAD_ATTENTION, Linear::try_new(width, width))?;
        out_proj.bias = Some(init::try_zeros([width])?);
        Ok(MultiheadAttention {
            in_proj_bias: Some(init::try_zeros([in_proj.rows()])?),
            in_proj,
            out_proj,
            bias_kv: None,
            zero_attn: false,
            heads,
            kv_heads: heads,
            dropout: 0.0,
            rotary: None,
            training: TrainingMode::new(),
        })
    }

    /// Sets the probability of dropping an attention weight in training; default 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a probability outside [0, 1].
    #[panicking_form]
    pub fn try_dropout(self, dropout: f64) -> Result<MultiheadAttention> {
        self.changed(|options| options.dropout = dropout)
    }

    /// Sets whether projections have biases. Added biases are initialized with 0.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_bias(self, bias: bool) -> Result<MultiheadAttention> {
        self.changed(|options| options.bias = bias)
    }

    /// Sets the number of key-value heads, by default the number of query heads; neighbouring query heads share one
    /// (grouped-query attention, Ainslie et al. 2023). If the number changes, the input projections are initialized
    /// again.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `kv_heads` does not divide the number of query heads; [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_kv_heads(self, kv_heads: usize) -> Result<MultiheadAttention> {
        self.changed(|options| options.kv_heads = Some(kv_heads))
    }

    /// Sets the width of keys, by default the width of queries. If it changes, the input projections are initialized
    /// again.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_kdim(self, kdim: usize) -> Result<MultiheadAttention> {
        self.changed(|options| options.kdim = Some(kdim))
    }

    /// Sets the width of values, by default the width of queries. If it changes, the input projections are initialized
    /// again.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_vdim(self, vdim: usize) -> Result<MultiheadAttention> {
        self.changed(|options| options.vdim = Some(vdim))
    }

    /// Sets the rotary position embedding of queries and keys, or `None`, the default.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the head width is odd, or the base is out of range.
    #[panicking_form]
    pub fn try_rotary(self, rotary: impl Into<Option<Rotary>>) -> Result<MultiheadAttention> {
        let rotary = rotary.into();
        self.changed(|options| options.rotary = rotary)
    }

    /// Sets whether to append a trained key and value, visible to every query; default false. Both are initialized
    /// randomly.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[doc(alias = "add_bias_kv")]
    #[panicking_form]
    pub fn try_bias_kv(self, bias_kv: bool) -> Result<MultiheadAttention> {
        self.changed(|options| options.bias_kv = bias_kv)
    }

    /// Sets whether to append a key and a value of zeros, visible to every query; default false.
    #[doc(alias = "add_zero_attn")]
    #[must_use]
    pub fn zero_attn(self, zero_attn: bool) -> MultiheadAttention {
        MultiheadAttention { zero_attn, ..self }
    }

    #[track_caller]
    fn changed(self, change: impl FnOnce(&mut MultiheadAttentionOptions)) -> Result<MultiheadAttention> {
        let mut options = self.options();
        change(&mut options);
        self.try_with_options(options)
    }

    /// Sets all options. Weights whose shapes change are initialized again only once, even if several options change
    /// them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an option out of its range; [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_with_options(self, options: MultiheadAttentionOptions) -> Result<MultiheadAttention> {
        let MultiheadAttentionOptions { dropout, bias, kv_heads, kdim, vdim, rotary, bias_kv, zero_attn } = options;
        let (width, kv_heads) = (self.out_proj.weight.shape()[1], kv_heads.unwrap_or(self.heads));
        check_heads(width, self.heads, kv_heads, rotary, dropout)?;
        let (kv_width, dtype) = (width / self.heads * kv_heads, self.out_proj.weight.dtype());
        let [kdim, vdim] = [kdim, vdim].map(|input_width| input_width.unwrap_or(width));
        let current = self.options();
        let in_proj = match (current.kv_heads, current.kdim, current.vdim) == (Some(kv_heads), Some(kdim), Some(vdim)) {
            true => self.in_proj,
            false => init::in_dtype(dtype, || InProj::draw(kv_width, [width, kdim, vdim]))?,
        };
        let zeros = |current: Option<Parameter>, length: usize| {
            let fitting = current.filter(|bias| bias.size() == length);
            switched(bias, fitting, || {
                values_like(MULTIHEAD_ATTENTION, Some(&self.out_proj.weight), || init::try_zeros([length]))
            })
        };
        let in_proj_bias = zeros(self.in_proj_bias, in_proj.rows())?;
        let bias = zeros(self.out_proj.bias, width)?;
        let out_proj = Linear { weight: self.out_proj.weight, bias };
        let appended = || init::in_dtype(dtype, || init::try_xavier_normal([1, 1, kv_width], 1.0));
        let fitting = self.bias_kv.filter(|[key, _]| key.size() == kv_width);
        let bias_kv = switched(bias_kv, fitting, || Ok([appended()?, appended()?]))?;
        Ok(MultiheadAttention {
            in_proj,
            in_proj_bias,
            out_proj,
            bias_kv,
            zero_attn,
            heads: self.heads,
            kv_heads,
            dropout,
            rotary,
            training: self.training,
        })
    }

    /// Returns the number of heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Returns the options; `kv_heads`, `kdim` and `vdim` are always `Some`.
    pub fn options(&self) -> MultiheadAttentionOptions {
        let [kdim, vdim] = match &self.in_proj {
            InProj::Joint(weight) => [weight.shape()[1]; 2],
            InProj::Separate([_, key, value]) => [key.shape()[1], value.shape()[1]],
        };
        MultiheadAttentionOptions {
            dropout: self.dropout,
            bias: self.in_proj_bias.is_some(),
            kv_heads: Some(self.kv_heads),
            kdim: Some(kdim),
            vdim: Some(vdim),
            rotary: self.rotary,
            bias_kv: self.bias_kv.is_some(),
            zero_attn: self.zero_attn,
        }
    }

    /// Computes multi-head attention of queries, keys and values.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] and [`Error::DTypeMismatch`] for inputs that do not match.
    #[panicking_form]
    pub fn try_forward_qkv(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: AttentionMasks<'_>,
    ) -> Result<Tensor> {
        call::call(self, &[query, key, value], || self.out_proj.try_forward(&self.attend([query, key, value], masks)?))
    }

    /// Computes attention and its weights softmax(Q·Kᵀ/√D + mask), `[.., H, L, S]`, or their mean over the heads,
    /// `[.., L, S]`. Unlike [`try_forward_qkv`](MultiheadAttention::try_forward_qkv), it stores all weights in memory.
    ///
    /// # Errors
    /// The errors of [`try_forward_qkv`](MultiheadAttention::try_forward_qkv).
    #[doc(alias = "need_weights")]
    #[panicking_form]
    pub fn try_forward_with_weights(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: AttentionMasks<'_>,
        average: bool,
    ) -> Result<(Tensor, Tensor)> {
        call::call_with_extra(self, &[query, key, value], || {
            let (heads, weights) = self.attend_with_weights([query, key, value], masks, average)?;
            Ok((self.out_proj.try_forward(&heads)?, weights))
        })
    }

    /// Computes causal self-attention of the next n positions, `[N, n, E]`, to themselves and to all cached positions,
    /// and appends them to the cache. The results equal causal attention over the entire sequence, regardless of how
    /// the sequence is split into calls.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for a cache of another layer or batch; [`Error::InvalidArgument`] if it is full
    /// ([`Error::IndexOutOfBounds`] from a launch of a captured step), and outside `no_grad`, since gradients do not
    /// flow through a cache. On error, the cached positions are unchanged.
    #[panicking_form]
    pub fn try_forward_cached(&self, x: &Tensor, cache: &KvCache) -> Result<Tensor> {
        append_after([cache], || self.decode(x, cache))
    }

    /// Computes [`forward_cached`](Self::forward_cached) for a caller that runs it inside [`append_after`].
    pub(crate) fn decode(&self, x: &Tensor, cache: &KvCache) -> Result<Tensor> {
        call::call_unary(self, x, |x| {
            if x.rank() != 3 {
                return Err(Error::shapes(MULTIHEAD_ATTENTION, [x.shape()], "x must have shape [N, n, E]"));
            }
            let positions = cache.next(x.shape()[1])?;
            let [q, k, v] = self.apply_rotary(self.project_heads([x; 3])?, Some(&positions))?;
            let [k, v, key_mask] = cache.write(&k, &v, &positions)?;
            let prepared = self.append_shared_keys([q, k, v], Some(key_mask), false)?;
            self.out_proj.try_forward(&self.attend_heads(&prepared)?)
        })
    }

    /// Creates an empty cache for this layer: `batch` sequences of at most `capacity` positions. Its dtype is the dtype
    /// of [`autocast`](pellucid_tensor::autocast) if it is on, otherwise the layer's.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_cache(&self, batch: usize, capacity: usize) -> Result<KvCache> {
        let dtype = match (autocast_dtype(), self.out_proj.weight.dtype()) {
            (Some(half), dtype) if dtype != DType::F64 => half,
            (_, dtype) => dtype,
        };
        KvCache::try_new(batch, self.kv_heads, capacity, self.head_width(), dtype)
    }
}

impl Layer for MultiheadAttention {
    /// Computes self-attention of x `[.., L, E]` without masks.
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.out_proj.try_forward(&self.attend([x; 3], AttentionMasks::default())?)
    }
}
