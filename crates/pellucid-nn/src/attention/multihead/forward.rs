//! The computation of multi-head attention, up to the output projection.

use super::MultiheadAttention;
use crate::attention::mask::{AttentionMasks, MULTIHEAD_ATTENTION, extend_mask};
use crate::attention::rotary::Rotary;
use crate::call;
use crate::init;
use crate::input_dtype::check_input_dtype;
use crate::parameter::Parameter;
use pellucid_tensor::OptionRange;
use pellucid_tensor::ops::AttentionOptions;
use pellucid_tensor::{Error, Result, Tensor, ops};

/// The projections of queries, keys and values in [`MultiheadAttention`](crate::MultiheadAttention).
#[derive(Clone, Debug)]
pub enum InProj {
    /// One matrix for equal widths, `[E + 2·G·D, E]`.
    Joint(Parameter),
    /// Matrices for queries `[E, E]`, keys `[G·D, kdim]` and values `[G·D, vdim]`.
    Separate([Parameter; 3]),
}

impl InProj {
    /// Initializes the projections of queries, keys and values with these widths, uniformly after Glorot & Bengio 2010.
    /// The keys of all heads together have `kv_width` elements, and so have the values.
    #[track_caller]
    pub(super) fn draw(kv_width: usize, [width, kdim, vdim]: [usize; 3]) -> Result<InProj> {
        let weight = |shape: [usize; 2]| call::name_layer(MULTIHEAD_ATTENTION, init::try_xavier_uniform(shape, 1.0));
        if kdim == width && vdim == width {
            return Ok(InProj::Joint(weight([kv_width.saturating_mul(2).saturating_add(width), width])?));
        }
        Ok(InProj::Separate([weight([width, width])?, weight([kv_width, kdim])?, weight([kv_width, vdim])?]))
    }

    /// Returns the total number of rows of the three projections.
    pub(super) fn rows(&self) -> usize {
        match self {
            InProj::Joint(weight) => weight.shape()[0],
            InProj::Separate(weights) => weights.iter().map(|weight| weight.shape()[0]).sum(),
        }
    }
}

/// Returns an error unless the number of heads divides the width, the number of key-value heads divides the number of
/// heads, and the dropout is valid.
pub(super) fn check_heads(
    width: usize,
    heads: usize,
    kv_heads: usize,
    rotary: Option<Rotary>,
    dropout: f64,
) -> Result<()> {
    let reject = |reason: String| Err(Error::invalid(MULTIHEAD_ATTENTION, reason));
    if heads == 0 || !width.is_multiple_of(heads) {
        return reject(format!(
            "the number of heads, {heads}, must divide the width {width}; use 1, {width} or another divisor"
        ));
    }
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        return reject(format!(
            "the number of key-value heads, {kv_heads}, must divide the number of query heads, {heads}; use 1, {heads} \
             or another divisor"
        ));
    }
    if let Some(rotary) = rotary {
        rotary.check()?;
        if !(width / heads).is_multiple_of(2) {
            return reject(format!(
                "the head width must be even for rotary positions, got {}; use another number of heads",
                width / heads
            ));
        }
    }
    OptionRange::PROBABILITY.check(MULTIHEAD_ATTENTION, "dropout", dropout, 0.1)
}

/// Queries, keys and values of all heads, including appended keys.
pub(super) struct PreparedHeads {
    qkv: [Tensor; 3],
    mask: Option<Tensor>,
    causal: bool,
}

impl MultiheadAttention {
    /// Returns the joined heads, `[.., L, E]`, for these queries, keys and values.
    pub(super) fn attend(&self, inputs: [&Tensor; 3], masks: AttentionMasks<'_>) -> Result<Tensor> {
        let heads = self.prepare_heads(inputs, masks).and_then(|prepared| self.attend_heads(&prepared));
        call::name_layer(MULTIHEAD_ATTENTION, heads)
    }

    /// Returns the joined heads, and the attention weights of all heads or their mean.
    pub(super) fn attend_with_weights(
        &self,
        inputs: [&Tensor; 3],
        masks: AttentionMasks<'_>,
        average: bool,
    ) -> Result<(Tensor, Tensor)> {
        call::name_layer(MULTIHEAD_ATTENTION, self.weighted_heads(inputs, masks, average))
    }

    fn weighted_heads(
        &self,
        inputs: [&Tensor; 3],
        masks: AttentionMasks<'_>,
        average: bool,
    ) -> Result<(Tensor, Tensor)> {
        let prepared = self.prepare_heads(inputs, masks)?;
        let [q, k, v] = &prepared.qkv;
        // Attention with the identity matrix as values returns the weights.
        let identity = ops::eye(k.shape()[k.rank() - 2], k.shape()[k.rank() - 2], k.dtype())?;
        let weights = ops::scaled_dot_product_attention(q, k, &identity, self.attention_options(&prepared))?;
        let v = match self.heads / self.kv_heads {
            1 => v.clone(),
            group => ops::repeat(v, group, Some(-3))?,
        };
        let heads = join_heads(&ops::matmul(&weights, &v)?)?;
        Ok((heads, if average { ops::mean(&weights, -3)? } else { weights }))
    }

    /// Computes the attention of all heads and joins their results.
    pub(super) fn attend_heads(&self, prepared: &PreparedHeads) -> Result<Tensor> {
        let [q, k, v] = &prepared.qkv;
        join_heads(&ops::scaled_dot_product_attention(q, k, v, self.attention_options(prepared))?)
    }

    fn attention_options<'m>(&self, prepared: &'m PreparedHeads) -> AttentionOptions<'m> {
        let PreparedHeads { mask, causal, .. } = prepared;
        let dropout = if self.training.get() { self.dropout } else { 0.0 };
        AttentionOptions { mask: mask.as_ref(), causal: *causal, scale: None, dropout }
    }

    fn width(&self) -> usize {
        self.out_proj.weight.shape()[1]
    }

    pub(super) fn head_width(&self) -> usize {
        self.width() / self.heads
    }

    /// Returns the widths of projected queries, keys and values.
    fn projected_widths(&self) -> [usize; 3] {
        let kv_width = self.kv_heads * self.head_width();
        [self.width(), kv_width, kv_width]
    }

    /// Projects the inputs to queries `[.., H, L, D]`, and to keys and values `[.., G, S, D]`.
    pub(super) fn project_heads(&self, [query, key, value]: [&Tensor; 3]) -> Result<[Tensor; 3]> {
        let weights = match &self.in_proj {
            InProj::Joint(weight) => [weight; 3],
            InProj::Separate(weights) => weights.each_ref(),
        };
        for ((name, x), weight) in [("query", query), ("key", key), ("value", value)].into_iter().zip(weights) {
            check_input_dtype(MULTIHEAD_ATTENTION, x, weight)?;
            check_width(name, x, weight.shape()[1])?;
        }
        let lengths = self.projected_widths();
        let into_qkv = |parts: Vec<Tensor>| <[Tensor; 3]>::try_from(parts).expect("split() must return three parts");
        let parts = match &self.in_proj {
            // One matrix product computes the three projections.
            InProj::Joint(weight) if std::ptr::eq(query, key) && std::ptr::eq(key, value) => {
                into_qkv(ops::split(&ops::linear(query, weight, self.in_proj_bias.as_deref())?, lengths, -1)?)
            }
            in_proj => {
                let weights = match in_proj {
                    InProj::Joint(weight) => into_qkv(ops::split(weight, lengths, 0)?),
                    InProj::Separate(weights) => weights.each_ref().map(|weight| weight.tensor().clone()),
                };
                let biases = match &self.in_proj_bias {
                    Some(bias) => into_qkv(ops::split(bias, lengths, 0)?).map(Some),
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
            return Err(Error::shapes(MULTIHEAD_ATTENTION, [x.shape()], "the input must have shape [.., L, E]"));
        }
        ops::transpose(&ops::unflatten(x, -1, [heads, self.head_width()])?, -3, -2)
    }

    /// Applies the rotary embedding to queries and keys, for the given positions or for 0, 1, ..
    pub(super) fn apply_rotary(&self, [q, k, v]: [Tensor; 3], positions: Option<&Tensor>) -> Result<[Tensor; 3]> {
        let Some(rotary) = self.rotary else { return Ok([q, k, v]) };
        let rotate = |x: &Tensor| match positions {
            Some(positions) => rotary.try_rotate(x, positions),
            None => rotary.try_rotate(x, &Tensor::arange(0, x.shape()[x.rank() - 2] as i64, 1)),
        };
        Ok([rotate(&q)?, rotate(&k)?, v])
    }

    /// Projects queries, keys and values, applies the rotary embedding and the masks, and appends keys.
    fn prepare_heads(&self, inputs: [&Tensor; 3], masks: AttentionMasks<'_>) -> Result<PreparedHeads> {
        let qkv = self.apply_rotary(self.project_heads(inputs)?, None)?;
        let [query, key, _] = inputs;
        masks.check(query, key, self.heads)?;
        let mask = masks.joint(qkv[0].dtype())?;
        self.append_shared_keys(qkv, mask, masks.causal)
    }

    /// Appends the keys that are visible to all queries to keys and values `[.., G, S, D]`, and extends the mask.
    pub(super) fn append_shared_keys(
        &self,
        [q, k, v]: [Tensor; 3],
        mask: Option<Tensor>,
        causal: bool,
    ) -> Result<PreparedHeads> {
        let more = usize::from(self.bias_kv.is_some()) + usize::from(self.zero_attn);
        if more == 0 {
            return Ok(PreparedHeads { qkv: [q, k, v], mask, causal });
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
        let (k, v) = (with(&k, 0)?, with(&v, 1)?);
        Ok(PreparedHeads { qkv: [q, k, v], mask, causal: false })
    }
}

/// Joins the heads' results: `[.., H, L, D]` becomes `[.., L, E]`.
fn join_heads(heads: &Tensor) -> Result<Tensor> {
    ops::flatten(&ops::transpose(heads, -3, -2)?, -2, -1)
}

/// Returns an error if the last axis of an input does not have the length that the weights expect.
fn check_width(name: &str, x: &Tensor, expected: usize) -> Result<()> {
    match x.shape().last() {
        Some(&given) if given != expected => {
            let help = format!(
                "the last axis of the {name} has length {given}, but the layer expects {expected}; create the layer for \
                 {given}, or give the {name} a last axis of length {expected}"
            );
            Err(Error::shapes(MULTIHEAD_ATTENTION, [x.shape()], help))
        }
        _ => Ok(()),
    }
}
