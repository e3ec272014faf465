//! The multi-head attention layer.

use super::cache::KvCache;
use super::mask::{AttentionMasks, extend_mask};
use super::rotary::Rotary;
use crate::call;
use crate::init;
use crate::input_dtype::check_input_dtype;
use crate::layer::Layer;
use crate::layers::Linear;
use crate::module::{Module, display_as_tree};
use crate::parameter::{Parameter, TrainingMode};
use crate::visit::Visitor;
use pellucid_derive::panicking_form;
use pellucid_tensor::ops::AttentionOptions;
use pellucid_tensor::{DType, Error, Result, Tensor, autocast_dtype, ops, unwrap};

/// Options of [`MultiheadAttention`].
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
/// D = E/H. Each head runs [`scaled_dot_product_attention`](ops::scaled_dot_product_attention). The results are joined
/// and projected.
///
/// Queries are `[.., L, E]`, keys `[.., S, kdim]`, values `[.., S, vdim]`; the result is `[.., L, E]`. Unlike PyTorch's
/// default, the batch comes first. As a [`Layer`] it computes self-attention without masks.
///
/// Parameters have PyTorch's names and layouts. G is the number of key-value heads. `in_proj_weight` `[E + 2·G·D, E]`
/// stacks the projections of queries, keys and values; if widths differ, they are `q_proj_weight`, `k_proj_weight` and
/// `v_proj_weight`. The others are `in_proj_bias`, `out_proj.weight`, `out_proj.bias` and, with `bias_kv`, `bias_k` and
/// `bias_v`, `[1, 1, G·D]`.
///
/// ```
/// use pellucid::nn::{Layer, AttentionMasks, MultiheadAttention};
/// use pellucid::{DType, Tensor};
/// let attention = MultiheadAttention::new(16, 4);
/// let (x, memory) = (Tensor::randn([2, 5, 16], DType::F32), Tensor::randn([2, 7, 16], DType::F32));
/// assert_eq!(attention.forward(&x).shape().dims(), [2, 5, 16]);
/// assert_eq!(attention.attend(&x, &memory, &memory, AttentionMasks::default()).shape().dims(), [2, 5, 16]);
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

/// The projections of queries, keys and values in [`MultiheadAttention`].
#[derive(Clone, Debug)]
pub enum InProj {
    /// One matrix for equal widths, `[E + 2·G·D, E]`.
    Joint(Parameter),
    /// Matrices for queries `[E, E]`, keys `[G·D, kdim]` and values `[G·D, vdim]`.
    Separate([Parameter; 3]),
}

impl Module for MultiheadAttention {
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
    /// Creates an attention with this width, split into this many heads.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the number of heads does not divide the width; [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(width: usize, heads: usize) -> Result<MultiheadAttention> {
        MultiheadAttention::try_with(width, heads, MultiheadAttentionOptions::default())
    }

    /// Creates an attention with options. Input projections and the appended key and value are initialised after Glorot
    /// & Bengio 2010 (uniform and normal), the output projection as a [`Linear`], biases at 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the heads do not divide the width, the key-value heads do not divide the heads,
    /// the head width is odd with rotary positions, or dropout is not in [0, 1).
    #[panicking_form]
    pub fn try_with(width: usize, heads: usize, options: MultiheadAttentionOptions) -> Result<MultiheadAttention> {
        let MultiheadAttentionOptions { dropout, bias, kv_heads, kdim, vdim, rotary, bias_kv, zero_attn } = options;
        let kv_heads = kv_heads.unwrap_or(heads);
        let refuse = |reason: String| Err(Error::invalid("multihead_attention", reason));
        if heads == 0 || !width.is_multiple_of(heads) {
            return refuse(format!(
                "the number of heads, {heads}, must divide the width {width}; use 1, {width} or another divisor"
            ));
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return refuse(format!(
                "the number of key-value heads, {kv_heads}, must divide the number of query heads, {heads}"
            ));
        }
        if rotary.is_some() && !(width / heads).is_multiple_of(2) {
            return refuse(format!("rotary positions need an even head width, got {}", width / heads));
        }
        if !(0.0..1.0).contains(&dropout) {
            return refuse(format!("dropout must be in [0, 1), got {dropout}"));
        }
        let (kdim, vdim, shared) = (kdim.unwrap_or(width), vdim.unwrap_or(width), width / heads * kv_heads);
        let in_proj = if kdim == width && vdim == width {
            InProj::Joint(init::try_xavier_uniform([width + 2 * shared, width], 1.0)?)
        } else {
            let [query, key, value] = [[width, width], [shared, kdim], [shared, vdim]];
            let weight = |shape: [usize; 2]| init::try_xavier_uniform(shape, 1.0);
            InProj::Separate([weight(query)?, weight(key)?, weight(value)?])
        };
        let mut out_proj = Linear::try_new(width, width)?.without_bias();
        let zeros = |length: usize| bias.then(|| init::try_zeros([length])).transpose();
        out_proj.bias = zeros(width)?;
        let in_proj_bias = zeros(width + 2 * shared)?;
        let appended = || init::try_xavier_normal([1, 1, shared], 1.0);
        Ok(MultiheadAttention {
            in_proj,
            in_proj_bias,
            out_proj,
            bias_kv: if bias_kv { Some([appended()?, appended()?]) } else { None },
            zero_attn,
            heads,
            kv_heads,
            dropout,
            rotary,
            training: TrainingMode::new(),
        })
    }

    /// Returns the number of heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Computes multi-head attention of queries, keys and values.
    ///
    /// # Panics
    /// With the errors of [`try_attend`](MultiheadAttention::try_attend).
    #[track_caller]
    pub fn attend(&self, query: &Tensor, key: &Tensor, value: &Tensor, masks: AttentionMasks<'_>) -> Tensor {
        unwrap(self.try_attend(query, key, value, masks))
    }

    /// Returns the result of [`attend`](MultiheadAttention::attend), or its error.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] and [`Error::DTypeMismatch`] for inputs that do not match.
    pub fn try_attend(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: AttentionMasks<'_>,
    ) -> Result<Tensor> {
        call::call(self, &[query, key, value], || {
            let ([q, k, v], mask, causal) = self.prepare_heads(query, key, value, masks)?;
            self.merge_heads(&ops::scaled_dot_product_attention(&q, &k, &v, self.options(mask.as_ref(), causal))?)
        })
    }

    /// Computes attention and its weights softmax(Q·Kᵀ/√D + mask), `[.., H, L, S]`, or their mean over the heads,
    /// `[.., L, S]`. Unlike in [`try_attend`](MultiheadAttention::try_attend), all weights are stored in memory.
    ///
    /// # Errors
    /// Those of [`try_attend`](MultiheadAttention::try_attend).
    #[doc(alias = "need_weights")]
    #[panicking_form]
    pub fn try_attend_weighted(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: AttentionMasks<'_>,
        average: bool,
    ) -> Result<(Tensor, Tensor)> {
        call::call_with_extra(self, &[query, key, value], || {
            let ([q, k, v], mask, causal) = self.prepare_heads(query, key, value, masks)?;
            // Attention with the identity matrix as values returns the weights.
            let identity = ops::eye(k.shape()[k.rank() - 2], k.shape()[k.rank() - 2], k.dtype())?;
            let options = self.options(mask.as_ref(), causal);
            let own = ops::scaled_dot_product_attention(&q, &k, &identity, options)?;
            let v = match self.heads / self.kv_heads {
                1 => v,
                group => ops::repeat(&v, group, Some(-3))?,
            };
            let found = self.merge_heads(&ops::matmul(&own, &v)?)?;
            Ok((found, if average { ops::mean(&own, -3)? } else { own }))
        })
    }

    /// Computes causal self-attention of the next elements, `[N, n, E]`, to themselves and to all cached elements, and
    /// adds them to the cache. In any split into calls, the result is causal attention over the whole sequence.
    ///
    /// # Panics
    /// With the errors of [`try_forward_cached`](MultiheadAttention::try_forward_cached).
    #[track_caller]
    pub fn forward_cached(&self, x: &Tensor, cache: &KvCache) -> Tensor {
        unwrap(self.try_forward_cached(x, cache))
    }

    /// Returns the result of [`forward_cached`](MultiheadAttention::forward_cached), or its error.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for a cache of another layer or batch; [`Error::IndexOutOfBounds`] if it is full (at
    /// launch in a captured step); [`Error::InvalidArgument`] outside of `no_grad`, since gradients do not flow through
    /// a cache.
    pub fn try_forward_cached(&self, x: &Tensor, cache: &KvCache) -> Result<Tensor> {
        call::call(self, &[x], || {
            if x.rank() != 3 {
                return Err(Error::shapes("multihead_attention", [x.shape()], "x must have shape [N, n, E]"));
            }
            let positions = cache.next(x.shape()[1])?;
            let [q, k, v] = self.apply_rotary(self.project_heads(x, x, x)?, Some(&positions))?;
            let [k, v, seen] = cache.append(&k, &v, &positions)?;
            let (q, [k, v], mask, _) = self.append_shared_keys(q, [k, v], Some(seen), false)?;
            self.merge_heads(&ops::scaled_dot_product_attention(&q, &k, &v, self.options(mask.as_ref(), false))?)
        })
    }

    /// Creates an empty cache for this layer: `batch` sequences of at most `capacity` elements. Its dtype is the
    /// layer's, or that of [`autocast`](pellucid_tensor::autocast) if it is on.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_cache(&self, batch: usize, capacity: usize) -> Result<KvCache> {
        let dtype = match (autocast_dtype(), self.out_proj.weight.dtype()) {
            (Some(half), own) if own != DType::F64 => half,
            (_, own) => own,
        };
        KvCache::try_new(batch, self.kv_heads, capacity, self.head_width(), dtype)
    }

    fn head_width(&self) -> usize {
        self.out_proj.weight.shape()[1] / self.heads
    }

    fn options<'a>(&self, mask: Option<&'a Tensor>, causal: bool) -> AttentionOptions<'a> {
        let dropout = if self.training.get() { self.dropout } else { 0.0 };
        AttentionOptions { mask, causal, scale: None, dropout }
    }

    /// Projects to queries `[.., H, L, D]`, keys and values `[.., G, S, D]`.
    fn project_heads(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<[Tensor; 3]> {
        let widths = match &self.in_proj {
            InProj::Joint(weight) => [weight.shape()[1]; 3],
            InProj::Separate(weights) => weights.each_ref().map(|weight| weight.shape()[1]),
        };
        for ((name, x), made_for) in [("query", query), ("key", key), ("value", value)].into_iter().zip(widths) {
            check_input_dtype("multihead_attention", x, &self.out_proj.weight)?;
            check_width(name, x, made_for)?;
        }
        let (width, shared) = (self.heads * self.head_width(), self.kv_heads * self.head_width());
        let lengths = [width, shared, shared];
        let three = |parts: Vec<Tensor>| <[Tensor; 3]>::try_from(parts).expect("split() must return three parts");
        let parts = match &self.in_proj {
            // The three projections are one matrix product.
            InProj::Joint(weight) if std::ptr::eq(query, key) && std::ptr::eq(key, value) => {
                three(ops::split(&ops::linear(query, weight, self.in_proj_bias.as_deref())?, lengths, -1)?)
            }
            in_proj => {
                let weights = match in_proj {
                    InProj::Joint(weight) => three(ops::split(weight, lengths, 0)?),
                    InProj::Separate(weights) => weights.each_ref().map(|w| w.tensor().clone()),
                };
                let biases = match self.in_proj_bias.as_deref() {
                    Some(bias) => three(ops::split(bias, lengths, 0)?).map(Some),
                    None => [None, None, None],
                };
                let project = |i: usize, x: &Tensor| ops::linear(x, &weights[i], biases[i].as_ref());
                [project(0, query)?, project(1, key)?, project(2, value)?]
            }
        };
        let [q, k, v] = parts;
        Ok([
            self.split_heads(&q, self.heads)?,
            self.split_heads(&k, self.kv_heads)?,
            self.split_heads(&v, self.kv_heads)?,
        ])
    }

    /// Splits the heads: `[.., L, H·D]` becomes `[.., H, L, D]`.
    fn split_heads(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        if x.rank() < 2 {
            return Err(Error::shapes("multihead_attention", [x.shape()], "the input must have shape [.., L, E]"));
        }
        ops::transpose(&ops::unflatten(x, -1, [heads, self.head_width()])?, -3, -2)
    }

    /// Applies the rotary embedding to queries and keys, for the given positions or for 0, 1, ..
    fn apply_rotary(&self, [q, k, v]: [Tensor; 3], positions: Option<&Tensor>) -> Result<[Tensor; 3]> {
        let Some(rotary) = self.rotary else { return Ok([q, k, v]) };
        let turn = |x: &Tensor| match positions {
            Some(positions) => rotary.try_rotate(x, positions),
            None => rotary.try_rotate(x, &Tensor::arange(0, x.shape()[x.rank() - 2] as i64, 1)),
        };
        Ok([turn(&q)?, turn(&k)?, v])
    }

    /// Returns queries, keys and values of all heads, including appended keys, with the mask, and whether the attention
    /// is causal in addition.
    fn prepare_heads(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: AttentionMasks<'_>,
    ) -> Result<([Tensor; 3], Option<Tensor>, bool)> {
        let [q, k, v] = self.apply_rotary(self.project_heads(query, key, value)?, None)?;
        masks.check(query, key, self.heads)?;
        let mask = masks.joint(q.dtype())?;
        let (q, [k, v], mask, causal) = self.append_shared_keys(q, [k, v], mask, masks.causal)?;
        Ok(([q, k, v], mask, causal))
    }

    /// Appends the keys that are visible to all queries to keys and values `[.., G, S, D]`, and extends the mask.
    fn append_shared_keys(
        &self,
        q: Tensor,
        [k, v]: [Tensor; 2],
        mask: Option<Tensor>,
        causal: bool,
    ) -> Result<(Tensor, [Tensor; 2], Option<Tensor>, bool)> {
        let more = usize::from(self.bias_kv.is_some()) + usize::from(self.zero_attn);
        if more == 0 {
            return Ok((q, [k, v], mask, causal));
        }
        let (queries, keys) = (q.shape()[q.rank() - 2], k.shape()[k.rank() - 2]);
        let with = |x: &Tensor, i: usize| {
            let mut one = x.shape().dims().to_vec();
            one[x.rank() - 2] = 1;
            let mut all = vec![x.clone()];
            if let Some(learnt) = &self.bias_kv {
                let heads = ops::reshape(&learnt[i], [self.kv_heads, 1, self.head_width()])?;
                all.push(ops::broadcast_to(&heads, one.clone())?);
            }
            if self.zero_attn {
                all.push(ops::zeros(one, x.dtype())?);
            }
            ops::concatenate(&all, -2)
        };
        let mask = extend_mask(mask, causal, [queries, keys], more, q.dtype())?;
        let both = [with(&k, 0)?, with(&v, 1)?];
        Ok((q, both, mask, false))
    }

    /// Joins the heads' results `[.., H, L, D]` to `[.., L, E]` and projects them.
    fn merge_heads(&self, found: &Tensor) -> Result<Tensor> {
        self.out_proj.try_forward(&ops::flatten(&ops::transpose(found, -3, -2)?, -2, -1)?)
    }
}

/// Returns an error if the last axis of an input does not have the length that the layer was made for.
fn check_width(name: &str, x: &Tensor, made_for: usize) -> Result<()> {
    match x.shape().last() {
        Some(&given) if given != made_for => {
            let help = format!(
                "the last axis of the {name} has length {given}, but the layer was made for {made_for}; make the layer for \
                 {given}, or give the {name} a last axis of length {made_for}"
            );
            Err(Error::shapes("multihead_attention", [x.shape()], help))
        }
        _ => Ok(()),
    }
}

impl Layer for MultiheadAttention {
    /// Computes self-attention of x `[.., L, E]` without masks.
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let ([q, k, v], mask, _) = self.prepare_heads(x, x, x, AttentionMasks::default())?;
        self.merge_heads(&ops::scaled_dot_product_attention(&q, &k, &v, self.options(mask.as_ref(), false))?)
    }
}
