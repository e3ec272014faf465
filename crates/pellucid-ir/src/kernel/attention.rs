//! The kernel family [`Attention`] and its shape rule.

use super::operand::{are_factor_dtypes, check_outputs, metas};
use super::{Family, FamilyInfo, KernelOperand, Meta, Metas};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::{Layout, Shape};
use smallvec::smallvec;
use std::hash::{Hash, Hasher};

/// The part of scaled dot-product attention that an [`Attention`] kernel computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AttentionPart {
    /// The output O and the logarithms λ of the softmax sums.
    Result,
    /// The gradients of queries, keys and values.
    Gradient,
}

/// Scaled dot-product attention, O = softmax(scale·Q·Kᵀ + M)·V for every head (Vaswani et al. 2017), or its gradient.
///
/// It is a family of its own because the score matrix is large and is needed only temporarily. The scores of a block of
/// queries stay in the cache. With `causal`, scores are computed only up to the last key to which a query of the block
/// attends. The backward pass recomputes the scores from λ = ln Σ exp of each row (Dao et al., FlashAttention, 2022).
///
/// Queries are `[N, H, L, E]`, keys `[N, G, S, E]`, values `[N, G, S, D]`. G divides H, and H/G neighbouring heads
/// share keys and values (Ainslie et al. 2023). All arrays are `f32` or all are `f64`; outputs are contiguous along
/// their last axis. A mask M is `[N, H, L, S]`: values of the same dtype that are added to the scores, or booleans that
/// are true for visible keys. For a query without visible keys the output is 0 and λ = ∞.
///
/// **Result**: the inputs are Q, K, V, and the mask if `masked`; the outputs are O `[N, H, L, D]` and λ `[N, H, L]`.
///
/// **Gradient**: the inputs are Q, K, V, the gradient Ω of O, O, λ, and the mask; the outputs are the gradients of Q, K
/// and V. With P = exp(scale·Q·Kᵀ + M − λ) and X = scale·P·(Ω·Vᵀ − Σ Ω·O) they are X·K, Xᵀ·Q and Pᵀ·Ω.
///
/// The order of accumulation depends on the shapes alone.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Attention {
    /// Whether query i attends only to the keys 0..=i.
    pub causal: bool,
    /// Whether the last input is a mask.
    pub masked: bool,
    /// The factor of the products of queries and keys.
    pub scale: f64,
    /// The half-precision dtype to which the factors of the products are rounded, including P and X; only for `f32`. Q,
    /// K, V and Ω then contain values of this dtype, and a weight below 2⁻⁶³ may be replaced by 0. If rounding does not
    /// make a backend faster, the backend may multiply unrounded factors.
    pub half_factors: Option<DType>,
    /// The part that is computed.
    pub part: AttentionPart,
}

/// The sizes N, H, G, L, S, E and D of an [`Attention`] kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionSizes {
    /// The number of sequences.
    pub batch: usize,
    /// The number of heads.
    pub heads: usize,
    /// The number of heads of keys and values.
    pub kv_heads: usize,
    /// The number of queries.
    pub queries: usize,
    /// The number of keys.
    pub keys: usize,
    /// The width of queries and keys.
    pub qk_width: usize,
    /// The width of values.
    pub v_width: usize,
}

impl Hash for Attention {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Scales are compared bitwise. The addition of 0 replaces −0 by 0.
        (self.causal, self.masked, (self.scale + 0.0).to_bits(), self.half_factors, self.part).hash(state);
    }
}

impl Attention {
    /// The index of the input Q.
    pub const Q: usize = 0;
    /// The index of the input K.
    pub const K: usize = 1;
    /// The index of the input V.
    pub const V: usize = 2;
    /// The index of the input Ω, the gradient of O.
    pub const GRADIENT: usize = 3;
    /// The index of the input O, which only the gradient reads.
    pub const RESULT: usize = 4;
    /// The index of the input λ.
    pub const LOG_SUMS: usize = 5;

    /// Returns the number of inputs.
    pub fn inputs(&self) -> usize {
        let arrays = match self.part {
            AttentionPart::Result => Attention::V + 1,
            AttentionPart::Gradient => Attention::LOG_SUMS + 1,
        };
        arrays + usize::from(self.masked)
    }

    /// Returns the mask, which is the last input; `None` if there is no mask.
    pub fn mask<'o, O>(&self, inputs: &'o [O]) -> Option<&'o O> {
        inputs.last().filter(|_| self.masked)
    }

    /// Returns the number of outputs.
    pub fn outputs(&self) -> usize {
        match self.part {
            AttentionPart::Result => 2,
            AttentionPart::Gradient => 3,
        }
    }

    /// Returns all sizes, read from the shapes of Q, K and V; `None` if a rank is wrong or G does not divide H.
    pub fn sizes(&self, inputs: &[Meta]) -> Option<AttentionSizes> {
        let [q, k, v, ..] = inputs else { return None };
        let (&[batch, heads, queries, qk_width], &[_, kv_heads, keys, _], &[.., v_width]) =
            (q.shape.dims(), k.shape.dims(), v.shape.dims())
        else {
            return None;
        };
        let fits = if kv_heads == 0 { heads == 0 } else { heads.is_multiple_of(kv_heads) };
        fits.then_some(AttentionSizes { batch, heads, kv_heads, queries, keys, qk_width, v_width })
    }

    /// Returns the number of pairs of a query and a key to which the query attends, over all sequences and heads. With
    /// `causal`, query i attends only to the keys 0..=i; the mask is not considered.
    pub fn pairs(&self, sizes: &AttentionSizes) -> u64 {
        let AttentionSizes { batch, heads, queries, keys, .. } = *sizes;
        let (l, s) = (queries as u64, keys as u64);
        let one = match self.causal {
            // Query i attends to min(i + 1, S) keys.
            true => l.min(s) * (l.min(s) + 1) / 2 + l.saturating_sub(s) * s,
            false => l * s,
        };
        (batch * heads) as u64 * one
    }

    /// Returns shape and dtype of every output.
    fn outputs_for(&self, inputs: &[Meta]) -> Result<Metas> {
        let shape_error = || {
            Error::shapes(
                "attention",
                inputs.iter().map(|m| &m.shape),
                "the inputs must be Q [N, H, L, E], K [N, G, S, E] and V [N, G, S, D], where G divides H, and then the inputs \
                 that `kernel::Attention` documents",
            )
        };
        let sizes = self.sizes(inputs).filter(|_| inputs.len() == self.inputs()).ok_or_else(shape_error)?;
        let AttentionSizes { batch, heads, kv_heads, queries, keys, qk_width, v_width } = sizes;
        let mut expected_shapes: Vec<Shape> = vec![
            [batch, heads, queries, qk_width].into(),
            [batch, kv_heads, keys, qk_width].into(),
            [batch, kv_heads, keys, v_width].into(),
        ];
        let (output, log_sums): (Shape, Shape) =
            ([batch, heads, queries, v_width].into(), [batch, heads, queries].into());
        if self.part == AttentionPart::Gradient {
            expected_shapes.extend([output.clone(), output.clone(), log_sums.clone()]);
        }
        if self.masked {
            expected_shapes.push([batch, heads, queries, keys].into());
        }
        if expected_shapes.iter().zip(inputs).any(|(shape, input)| *shape != input.shape) {
            return Err(shape_error());
        }
        let dtype = inputs[0].dtype;
        let (arrays, mask) = inputs.split_at(inputs.len() - usize::from(self.masked));
        let typed = are_factor_dtypes(dtype, self.half_factors)
            && arrays.iter().all(|m| m.dtype == dtype)
            && mask.iter().all(|m| m.dtype == dtype || m.dtype == DType::Bool);
        if !typed {
            let help =
                "operands must all be f32 or all f64, and the mask must have the same dtype or bool; use to_dtype()";
            return Err(Error::dtypes("attention", inputs.iter().map(|m| m.dtype), help));
        }
        let meta = |shape: Shape| Meta { shape, dtype };
        Ok(match self.part {
            AttentionPart::Result => smallvec![meta(output), meta(log_sums)],
            AttentionPart::Gradient => inputs[..3].iter().cloned().collect(),
        })
    }
}

impl Family for Attention {
    const FAMILY: &'static str = "attention";

    fn info(&self) -> FamilyInfo {
        FamilyInfo { is_compute_bound: true, ..FamilyInfo::new(self.inputs(), self.outputs()) }
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        self.outputs_for(inputs)
    }

    fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()> {
        // Backends store vectors along the last axis of an output.
        let is_dense =
            |layout: &Layout| layout.shape().last().is_none_or(|&len| len <= 1) || layout.strides().last() == Some(&1);
        let rule = "the outputs must have the shapes and dtypes inferred from the inputs and be contiguous along the last axis";
        check_outputs("attention", outputs, &self.outputs_for(&metas(inputs))?, is_dense, rule)
    }

    fn flops(&self, inputs: &[Meta], _: &[Meta]) -> u64 {
        self.sizes(inputs).map_or(0, |s| {
            // The forward pass computes two products, the scores and the output. The backward pass recomputes the
            // scores, and computes the gradients of weights, queries, keys and values.
            let (queries, values) = match self.part {
                AttentionPart::Result => (1, 1),
                AttentionPart::Gradient => (3, 2),
            };
            2 * self.pairs(&s) * (queries * s.qk_width + values * s.v_width) as u64
        })
    }
}
