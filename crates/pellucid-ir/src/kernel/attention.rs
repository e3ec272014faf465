//! The family [`Attention`]: what it computes, and the shapes of what comes out.

use super::{Meta, Metas};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use smallvec::smallvec;

/// What an [`Attention`] computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AttentionPart {
    /// What queries find at keys.
    Result,
    /// The gradients of queries, keys and values.
    Gradient,
}

/// O = softmax(scale·Q·Kᵀ + M)·V for every head (Vaswani et al. 2017), or the way back through it.
///
/// It is a family of its own because scores are many and short-lived: those of a block of queries stay in the cache, what a
/// `causal` query does not see is not computed, and backward computes the scores again from what a row leaves behind, λ = ln Σ exp
/// (Dao et al., FlashAttention, 2022).
///
/// Queries are `[N, H, L, E]`, keys `[N, G, S, E]`, values `[N, G, S, D]`; G divides H, and H/G neighbouring heads share keys and
/// values (Ainslie et al. 2023). Arrays are `f32` or `f64`; outputs are dense along their last axis. A mask M is `[N, H, L, S]`: numbers of the
/// same dtype, or truth values of whether a key is seen. A query that sees no key gets zeros, and λ = ∞.
///
/// **Result** takes Q, K, V, and the mask if there is one; it gives O `[N, H, L, D]` and λ `[N, H, L]`.
///
/// **Gradient** takes Q, K, V, the gradient Ω of O, O, λ, and the mask; it gives the gradients of Q, K and V. With
/// P = exp(scale·Q·Kᵀ + M − λ) and X = scale·P·(Ω·Vᵀ − Σ Ω·O) they are X·K, Xᵀ·Q and Pᵀ·Ω.
///
/// The order of accumulation depends on the shapes alone.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Attention {
    /// Query i sees the keys 0..=i alone.
    pub causal: bool,
    /// There is a mask.
    pub masked: bool,
    /// What products of queries and keys are multiplied with.
    pub scale: f64,
    /// What is computed.
    pub part: AttentionPart,
}

/// N, H, G, L, S, E and D.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionSizes {
    /// The number of sequences.
    pub batch: usize,
    /// The number of heads.
    pub heads: usize,
    /// The number of heads of keys and values.
    pub groups: usize,
    /// The number of queries.
    pub queries: usize,
    /// The number of keys.
    pub keys: usize,
    /// The width of queries and keys.
    pub width: usize,
    /// The width of values.
    pub depth: usize,
}

impl Attention {
    /// The number of inputs.
    pub fn inputs(&self) -> usize {
        let own = match self.part {
            AttentionPart::Result => 3,
            AttentionPart::Gradient => 6,
        };
        own + usize::from(self.masked)
    }

    /// The number of outputs.
    pub fn outputs(&self) -> usize {
        match self.part {
            AttentionPart::Result => 2,
            AttentionPart::Gradient => 3,
        }
    }

    /// All lengths, if queries, keys and values say what they are.
    pub fn sizes(&self, inputs: &[Meta]) -> Option<AttentionSizes> {
        let [q, k, v, ..] = inputs else { return None };
        let (&[batch, heads, queries, width], &[_, groups, keys, _], &[.., depth]) =
            (q.shape.dims(), k.shape.dims(), v.shape.dims())
        else {
            return None;
        };
        let fits = if groups == 0 { heads == 0 } else { heads.is_multiple_of(groups) };
        fits.then_some(AttentionSizes { batch, heads, groups, queries, keys, width, depth })
    }

    /// The pairs of a query and a key that it may see.
    pub fn pairs(&self, sizes: &AttentionSizes) -> u64 {
        let AttentionSizes { batch, heads, queries, keys, .. } = *sizes;
        let (l, s) = (queries as u64, keys as u64);
        let one = match self.causal {
            // 1 + 2 + .. up to the number of keys, which all further queries see.
            true => l.min(s) * (l.min(s) + 1) / 2 + l.saturating_sub(s) * s,
            false => l * s,
        };
        (batch * heads) as u64 * one
    }

    /// Shape and dtype of every output.
    pub(super) fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        let misfit = || Error::shapes("attention", inputs.iter().map(|m| &m.shape), "inputs are those of `Attention`");
        let sizes = self.sizes(inputs).filter(|_| inputs.len() == self.inputs()).ok_or_else(misfit)?;
        let AttentionSizes { batch, heads, groups, queries, keys, width, depth } = sizes;
        let mut wanted: Vec<Shape> = vec![
            [batch, heads, queries, width].into(),
            [batch, groups, keys, width].into(),
            [batch, groups, keys, depth].into(),
        ];
        let (found, log): (Shape, Shape) = ([batch, heads, queries, depth].into(), [batch, heads, queries].into());
        if self.part == AttentionPart::Gradient {
            wanted.extend([found.clone(), found.clone(), log.clone()]);
        }
        if self.masked {
            wanted.push([batch, heads, queries, keys].into());
        }
        if wanted.iter().zip(inputs).any(|(shape, input)| *shape != input.shape) {
            return Err(misfit());
        }
        let dtype = inputs[0].dtype;
        let (own, mask) = inputs.split_at(inputs.len() - usize::from(self.masked));
        let typed = matches!(dtype, DType::F32 | DType::F64)
            && own.iter().all(|m| m.dtype == dtype)
            && mask.iter().all(|m| m.dtype == dtype || m.dtype == DType::Bool);
        if !typed {
            let help = "takes f32 or f64, and a mask of the same dtype or of truth values; use to_dtype()";
            return Err(Error::dtypes("attention", inputs.iter().map(|m| m.dtype), help));
        }
        let of = |shape: Shape| Meta { shape, dtype };
        Ok(match self.part {
            AttentionPart::Result => smallvec![of(found), of(log)],
            AttentionPart::Gradient => inputs[..3].iter().cloned().collect(),
        })
    }
}
