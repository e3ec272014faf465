//! The multi-head attention layer.

use super::cache::KvCache;
use super::mask::{Masks, widened};
use super::rotary::Rotary;
use crate::call;
use crate::init;
use crate::layer::Layer;
use crate::layers::Linear;
use crate::module::Module;
use crate::parameter::{Parameter, Training};
use crate::visit::Visitor;
use pellucid_tensor::ops::Attention;
use pellucid_tensor::{DType, Error, Result, Tensor, autocast_dtype, ops, unwrap};

/// Options of [`MultiheadAttention`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MultiheadAttentionOptions {
    /// The share of weights that is dropped at random in training.
    pub dropout: f64,
    /// Whether projections have biases.
    pub bias: bool,
    /// The number of heads of keys and values, which divides that of queries: neighbouring ones share them (Ainslie et al.
    /// 2023). As many as queries have if none is given.
    pub kv_heads: Option<usize>,
    /// The width of keys; that of queries if none is given.
    pub kdim: Option<usize>,
    /// The width of values; that of queries if none is given.
    pub vdim: Option<usize>,
    /// Rotary positions of queries and keys.
    pub rotary: Option<Rotary>,
    /// Whether there is one more key, with its value, that is learnt and that every query sees, behind all others.
    pub bias_kv: bool,
    /// Whether there is one more key of zeros, with a value of zeros, that every query sees, behind all others.
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

/// Multi-head attention (Vaswani et al. 2017): queries, keys and values are projected and cut into H heads of width
/// D = E/H, [`scaled_dot_product_attention`](ops::scaled_dot_product_attention) runs in each, and what the heads found is
/// joined and projected.
///
/// Queries are `[.., L, E]`, keys `[.., S, kdim]`, values `[.., S, vdim]`; the result is `[.., L, E]`. Unlike PyTorch's
/// default, the batch comes first. As a [`Layer`] it is self-attention without masks.
///
/// Parameters have PyTorch's names and layouts: `in_proj_weight` `[E + 2·G·D, E]`, the projections of queries, keys and
/// values one below the other (G is the number of heads of keys and values), or, where widths differ, `q_proj_weight`,
/// `k_proj_weight` and `v_proj_weight`; `in_proj_bias`, `out_proj.weight`, `out_proj.bias`; with `bias_kv` also `bias_k` and
/// `bias_v`, `[1, 1, G·D]`.
///
/// ```
/// use pellucid_nn::{Layer, Masks, MultiheadAttention};
/// use pellucid_tensor::{DType, Tensor};
/// let attention = MultiheadAttention::new(16, 4);
/// let (x, memory) = (Tensor::randn([2, 5, 16], DType::F32), Tensor::randn([2, 7, 16], DType::F32));
/// assert_eq!(attention.forward(&x).shape().dims(), [2, 5, 16]);
/// assert_eq!(attention.attend(&x, &memory, &memory, Masks::default()).shape().dims(), [2, 5, 16]);
/// ```
#[derive(Clone, Debug)]
pub struct MultiheadAttention {
    /// The projections of queries, keys and values.
    pub in_proj: InProj,
    /// The biases of the three, one after the other.
    pub in_proj_bias: Option<Parameter>,
    /// What becomes of the joined heads.
    pub out_proj: Linear,
    /// A key and its value that all queries see besides.
    pub bias_kv: Option<[Parameter; 2]>,
    zero_attn: bool,
    heads: usize,
    kv_heads: usize,
    dropout: f64,
    rotary: Option<Rotary>,
    training: Training,
}

/// The projections of queries, keys and values in [`MultiheadAttention`].
#[derive(Clone, Debug)]
pub enum InProj {
    /// Of one width: one matrix, `[E + 2·G·D, E]`.
    Joint(Parameter),
    /// Of queries `[E, E]`, keys `[G·D, kdim]` and values `[G·D, vdim]`.
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
        visitor.field("training", &self.training);
    }
}

impl MultiheadAttention {
    /// Attention with this many heads, to which the width is divided.
    ///
    /// # Panics
    /// If the number of heads does not divide the width; with [`Error::OutOfMemory`].
    #[track_caller]
    pub fn new(width: usize, heads: usize) -> MultiheadAttention {
        unwrap(MultiheadAttention::with(width, heads, MultiheadAttentionOptions::default()))
    }

    /// [`new`](MultiheadAttention::new) with options. Weights start uniform as in Glorot & Bengio 2010, those of the
    /// result as a [`Linear`]'s, biases at 0, a key and a value besides normal as in Glorot & Bengio 2010.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the heads do not divide the width, heads of keys do not divide them, a rotary width is
    /// odd, or dropout is not in [0, 1).
    #[track_caller]
    pub fn with(width: usize, heads: usize, options: MultiheadAttentionOptions) -> Result<MultiheadAttention> {
        let MultiheadAttentionOptions { dropout, bias, kv_heads, kdim, vdim, rotary, bias_kv, zero_attn } = options;
        let kv_heads = kv_heads.unwrap_or(heads);
        let refuse = |reason: String| Err(Error::invalid("multihead_attention", reason));
        if heads == 0 || !width.is_multiple_of(heads) {
            return refuse(format!("{heads} heads do not divide a width of {width}"));
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return refuse(format!("{kv_heads} heads of keys and values do not divide {heads} heads of queries"));
        }
        if rotary.is_some() && !(width / heads).is_multiple_of(2) {
            return refuse(format!("rotary positions turn pairs, and a head has {} elements", width / heads));
        }
        if !(0.0..1.0).contains(&dropout) {
            return refuse(format!("dropout must be in [0, 1), got {dropout}"));
        }
        let (kdim, vdim, shared) = (kdim.unwrap_or(width), vdim.unwrap_or(width), width / heads * kv_heads);
        let in_proj = if kdim == width && vdim == width {
            InProj::Joint(init::xavier_uniform([width + 2 * shared, width], 1.0))
        } else {
            InProj::Separate(
                [[width, width], [shared, kdim], [shared, vdim]].map(|shape| init::xavier_uniform(shape, 1.0)),
            )
        };
        let mut out_proj = Linear::new(width, width).without_bias();
        out_proj.bias = bias.then(|| init::zeros([width]));
        let in_proj_bias = bias.then(|| init::zeros([width + 2 * shared]));
        Ok(MultiheadAttention {
            in_proj,
            in_proj_bias,
            out_proj,
            bias_kv: bias_kv.then(|| [0, 1].map(|_| init::xavier_normal([1, 1, shared], 1.0))),
            zero_attn,
            heads,
            kv_heads,
            dropout,
            rotary,
            training: Training::new(),
        })
    }

    /// The number of heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// What queries find at keys.
    ///
    /// # Panics
    /// With the errors of [`try_attend`](MultiheadAttention::try_attend).
    #[track_caller]
    pub fn attend(&self, query: &Tensor, key: &Tensor, value: &Tensor, masks: Masks<'_>) -> Tensor {
        unwrap(self.try_attend(query, key, value, masks))
    }

    /// [`attend`](MultiheadAttention::attend) as a result.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] and [`Error::DTypeMismatch`] for what does not fit.
    pub fn try_attend(&self, query: &Tensor, key: &Tensor, value: &Tensor, masks: Masks<'_>) -> Result<Tensor> {
        call::call(self, &[query, key, value], || {
            let ([q, k, v], mask, causal) = self.looked_at(query, key, value, masks)?;
            self.joined(&ops::scaled_dot_product_attention(&q, &k, &v, self.options(mask.as_ref(), causal))?)
        })
    }

    /// What queries find at keys, and the weights by which they looked at them: softmax(Q·Kᵀ/√D + mask), `[.., H, L, S]`, or
    /// their mean over the heads, `[.., L, S]`. All weights are in memory then.
    ///
    /// # Errors
    /// Those of [`try_attend`](MultiheadAttention::try_attend).
    pub fn attend_weighted(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: Masks<'_>,
        average: bool,
    ) -> Result<(Tensor, Tensor)> {
        call::call_beside(self, &[query, key, value], || {
            let ([q, k, v], mask, causal) = self.looked_at(query, key, value, masks)?;
            // What a query finds among the rows of the identity are the weights themselves.
            let identity = ops::eye(k.shape()[k.rank() - 2], k.shape()[k.rank() - 2], k.dtype())?;
            let options = self.options(mask.as_ref(), causal);
            let own = ops::scaled_dot_product_attention(&q, &k, &identity, options)?;
            let v = match self.heads / self.kv_heads {
                1 => v,
                group => ops::repeat(&v, group, Some(-3))?,
            };
            let found = self.joined(&ops::matmul(&own, &v)?)?;
            Ok((found, if average { ops::mean(&own, -3)? } else { own }))
        })
    }

    /// Causal self-attention of the next elements, `[N, n, E]`, to themselves and to all that the cache has; they are then
    /// in the cache as well. Step by step or all at once, it is causal attention over the whole sequence.
    ///
    /// # Panics
    /// With the errors of [`try_forward_cached`](MultiheadAttention::try_forward_cached).
    #[track_caller]
    pub fn forward_cached(&self, x: &Tensor, cache: &KvCache) -> Tensor {
        unwrap(self.try_forward_cached(x, cache))
    }

    /// [`forward_cached`](MultiheadAttention::forward_cached) as a result.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for a cache of another layer or batch; [`Error::IndexOutOfBounds`] if it is full (from the
    /// launch in a captured step); [`Error::InvalidArgument`] outside of `no_grad`: gradients do not flow through a cache.
    pub fn try_forward_cached(&self, x: &Tensor, cache: &KvCache) -> Result<Tensor> {
        call::call(self, &[x], || {
            if x.rank() != 3 {
                return Err(Error::shapes("multihead_attention", [x.shape()], "what is decoded is [N, n, E]"));
            }
            let positions = cache.next(x.shape()[1])?;
            let [q, k, v] = self.placed(self.projected(x, x, x)?, Some(&positions))?;
            let [k, v, seen] = cache.append(&k, &v, &positions)?;
            let (q, [k, v], mask, _) = self.besides(q, [k, v], Some(seen), false)?;
            self.joined(&ops::scaled_dot_product_attention(&q, &k, &v, self.options(mask.as_ref(), false))?)
        })
    }

    /// An empty cache for this layer: `batch` sequences of at most `capacity` elements. It is of the layer's dtype, or of that
    /// of [`autocast`](pellucid_tensor::autocast) if that is on.
    ///
    /// # Panics
    /// With [`Error::OutOfMemory`].
    #[track_caller]
    pub fn cache(&self, batch: usize, capacity: usize) -> KvCache {
        let dtype = match (autocast_dtype(), self.out_proj.weight.dtype()) {
            (Some(half), own) if own != DType::F64 => half,
            (_, own) => own,
        };
        KvCache::new(batch, self.kv_heads, capacity, self.head_width(), dtype)
    }

    fn head_width(&self) -> usize {
        self.out_proj.weight.shape()[1] / self.heads
    }

    fn options<'a>(&self, mask: Option<&'a Tensor>, causal: bool) -> Attention<'a> {
        let dropout = if self.training.get() { self.dropout } else { 0.0 };
        Attention { mask, causal, scale: None, dropout }
    }

    /// Queries `[.., H, L, D]`, keys and values `[.., G, S, D]`.
    fn projected(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<[Tensor; 3]> {
        let (width, shared) = (self.heads * self.head_width(), self.kv_heads * self.head_width());
        let lengths = [width, shared, shared];
        let three = |parts: Vec<Tensor>| <[Tensor; 3]>::try_from(parts).expect("cut into three");
        let parts = match &self.in_proj {
            // One product instead of three.
            InProj::Joint(weight) if std::ptr::eq(query, key) && std::ptr::eq(key, value) => {
                three(ops::split(&ops::linear(query, weight, self.in_proj_bias.as_deref())?, &lengths, -1)?)
            }
            in_proj => {
                let weights = match in_proj {
                    InProj::Joint(weight) => three(ops::split(weight, &lengths, 0)?),
                    InProj::Separate(weights) => weights.each_ref().map(|w| w.tensor().clone()),
                };
                let biases = match self.in_proj_bias.as_deref() {
                    Some(bias) => three(ops::split(bias, &lengths, 0)?).map(Some),
                    None => [None, None, None],
                };
                let project = |i: usize, x: &Tensor| ops::linear(x, &weights[i], biases[i].as_ref());
                [project(0, query)?, project(1, key)?, project(2, value)?]
            }
        };
        let [q, k, v] = parts;
        Ok([self.cut(&q, self.heads)?, self.cut(&k, self.kv_heads)?, self.cut(&v, self.kv_heads)?])
    }

    /// `[.., L, H·D]` as `[.., H, L, D]`.
    fn cut(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        if x.rank() < 2 {
            return Err(Error::shapes("multihead_attention", [x.shape()], "a sequence is [.., L, E]"));
        }
        ops::transpose(&ops::unflatten(x, -1, [heads, self.head_width()])?, -3, -2)
    }

    /// Queries and keys at their positions: those given, or 0, 1, ..
    fn placed(&self, [q, k, v]: [Tensor; 3], positions: Option<&Tensor>) -> Result<[Tensor; 3]> {
        let Some(rotary) = self.rotary else { return Ok([q, k, v]) };
        let turn = |x: &Tensor| match positions {
            Some(positions) => rotary.rotate(x, positions),
            None => rotary.rotate(x, &Tensor::arange(0, x.shape()[x.rank() - 2] as i64, 1)),
        };
        Ok([turn(&q)?, turn(&k)?, v])
    }

    /// Queries, keys and values of all heads, with all keys that there are, and who sees whom: a mask, and whether it is
    /// causal besides.
    fn looked_at(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: Masks<'_>,
    ) -> Result<([Tensor; 3], Option<Tensor>, bool)> {
        let [q, k, v] = self.placed(self.projected(query, key, value)?, None)?;
        let mask = masks.joint(q.dtype())?;
        let (q, [k, v], mask, causal) = self.besides(q, [k, v], mask, masks.causal)?;
        Ok(([q, k, v], mask, causal))
    }

    /// Keys and values `[.., G, S, D]` with those that all queries see besides, behind them.
    fn besides(
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
            ops::concatenate(&all.iter().collect::<Vec<_>>(), -2)
        };
        let mask = widened(mask, causal, [queries, keys], more, q.dtype())?;
        let both = [with(&k, 0)?, with(&v, 1)?];
        Ok((q, both, mask, false))
    }

    /// What all heads `[.., H, L, D]` found, as `[.., L, E]`.
    fn joined(&self, found: &Tensor) -> Result<Tensor> {
        self.out_proj.try_forward(&ops::flatten(&ops::transpose(found, -3, -2)?, -2, -1)?)
    }
}

impl Layer for MultiheadAttention {
    /// Self-attention: every element of x `[.., L, E]` sees every other.
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let ([q, k, v], mask, _) = self.looked_at(x, x, x, Masks::default())?;
        self.joined(&ops::scaled_dot_product_attention(&q, &k, &v, self.options(mask.as_ref(), false))?)
    }
}
