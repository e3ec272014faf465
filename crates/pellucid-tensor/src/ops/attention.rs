//! Scaled dot-product attention, block by block.
//!
//! Scores are never there as a whole: a block of queries meets all keys, its scores stay in the cache, and backward
//! computes them again from what a row leaves behind, ln Σ exp of its scores (Dao et al., FlashAttention, 2022).

use super::formula::{map, map_all, rows_all};
use super::reshape_to;
use crate::array::Array;
use crate::autocast;
use crate::autograd::{Arrays, Gradients, InputGradients, Needed, Operation, Saved, Saves, apply};
use crate::device::Device;
use crate::ops;
use crate::tensor::Tensor;
use pellucid_derive::face;
use pellucid_ir::{DType, Error, Result, Shape, formula};
use smallvec::smallvec;
use std::ops::Range;

/// Options of [`scaled_dot_product_attention`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Attention<'a> {
    /// Which keys a query sees, `[.., L, S]`, broadcast: truth values (true is seen), or numbers that are added to the
    /// scores.
    pub mask: Option<&'a Tensor>,
    /// Query i sees the keys 0..=i alone.
    pub causal: bool,
    /// What scores are multiplied with; 1/√E if none is given.
    pub scale: Option<f64>,
    /// The share of weights that is dropped at random, the others growing in return.
    pub dropout: f64,
}

/// softmax(Q·Kᵀ·scale + mask)·V (Vaswani et al. 2017). A query that sees no key gets zeros.
///
/// Q is `[.., L, E]`, K `[.., S, E]`, V `[.., S, D]`; the result is `[.., L, D]`. The axes before the last two are equal,
/// but that K and V may have fewer heads (the third axis from the end) than Q, which they divide: neighbouring heads of Q
/// share them (grouped queries, Ainslie et al. 2023), and that axes of length 1 stretch. No more than a block of scores is
/// in memory at any time, but for dropout and for the gradient of a mask.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] unless Q, K and V have one float dtype and a mask has it too, or is of
/// truth values; [`Error::InvalidArgument`] for a dropout outside [0, 1).
#[face]
pub fn scaled_dot_product_attention(q: &Tensor, k: &Tensor, v: &Tensor, options: Attention<'_>) -> Result<Tensor> {
    let op = "scaled_dot_product_attention";
    let Attention { mask, causal, scale, dropout } = options;
    if let Some(dtype) = autocast::wanted(op, &[q, k, v]) {
        let [q, k, v] = [autocast::cast(q, dtype)?, autocast::cast(k, dtype)?, autocast::cast(v, dtype)?];
        let mask = autocast::cast_some(mask, dtype)?;
        return scaled_dot_product_attention(&q, &k, &v, Attention { mask: mask.as_ref(), ..options });
    }
    if q.dtype() != k.dtype() || q.dtype() != v.dtype() || !q.dtype().is_float() {
        return Err(Error::dtypes(op, [q.dtype(), k.dtype(), v.dtype()], "all have one float dtype; use to_dtype()"));
    }
    if let Some(mask) = mask.filter(|m| m.dtype() != DType::Bool && m.dtype() != q.dtype()) {
        return Err(Error::dtypes(op, [q.dtype(), mask.dtype()], "a mask has truth values, or the queries' dtype"));
    }
    if !(0.0..1.0).contains(&dropout) {
        return Err(Error::invalid(op, format!("dropout must be in [0, 1), got {dropout}")));
    }
    let heads = Heads::new(op, q, k, v, mask)?;
    let scale = scale.unwrap_or(1.0 / (heads.width as f64).sqrt());
    let (q3, k3, v3, mask3) = heads.flattened(q, k, v, mask)?;
    let tracked_mask = mask.is_some_and(Tensor::requires_grad);
    let o = if dropout > 0.0 || tracked_mask {
        whole(&q3, &k3, &v3, mask3.as_ref(), causal, scale, dropout)?
    } else {
        let operation = Attend { causal, scale };
        let operands: Vec<&Tensor> = [&q3, &k3, &v3].into_iter().chain(&mask3).collect();
        apply(operation, &operands)?.swap_remove(0)
    };
    reshape_to(&o, &heads.result)
}

/// How many matrices there are, and which share keys.
struct Heads {
    /// The axes before the last two.
    lead: Shape,
    /// Those of keys and values: with fewer heads.
    shared: Shape,
    width: usize,
    result: Shape,
}

impl Heads {
    fn new(op: &'static str, q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Heads> {
        let mismatch = |mend: &str| Error::shapes(op, [q.shape(), k.shape(), v.shape()], mend);
        if q.rank() < 2 || k.rank() < 2 || v.rank() < 2 {
            return Err(mismatch("Q is [.., L, E], K [.., S, E], V [.., S, D]"));
        }
        let (ends, before) = (
            |t: &Tensor| [t.shape()[t.rank() - 2], t.shape()[t.rank() - 1]],
            |t: &Tensor| Shape::from(&t.shape()[..t.rank() - 2]),
        );
        let ([l, e], [s, e2], [s2, d]) = (ends(q), ends(k), ends(v));
        if e != e2 || s != s2 {
            return Err(mismatch("Q is [.., L, E], K [.., S, E], V [.., S, D]"));
        }
        let mend = "the axes before the last two are equal, or the heads of K and V divide those of Q";
        let shared = before(k).broadcast(&before(v)).ok_or_else(|| mismatch(mend))?;
        let queries = before(q);
        let (lead, shared) = match queries.broadcast(&shared) {
            Some(lead) => (lead.clone(), lead),
            None => {
                // Fewer heads of keys: all other axes broadcast.
                let (h, g) = (queries.last().copied().unwrap_or(1), shared.last().copied().unwrap_or(1));
                let outer = |s: &Shape| Shape::from(&s[..s.rank().saturating_sub(1)]);
                let all = outer(&queries).broadcast(&outer(&shared)).filter(|_| g > 0 && h.is_multiple_of(g));
                let all = all.ok_or_else(|| mismatch(mend))?;
                let with = |heads: usize| all.iter().copied().chain([heads]).collect::<Shape>();
                (with(h), with(g))
            }
        };
        let result: Shape = lead.iter().copied().chain([l, d]).collect();
        let scores: Shape = lead.iter().copied().chain([l, s]).collect();
        if let Some(mask) = mask.filter(|m| m.shape().broadcast(&scores).as_ref() != Some(&scores)) {
            return Err(Error::shapes(op, [&scores, mask.shape()], "a mask broadcasts to the scores, [.., L, S]"));
        }
        Ok(Heads { lead, shared, width: e, result })
    }

    /// All matrices of each operand along one axis; a mask that is the same for all has one.
    fn flattened(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor, Tensor, Option<Tensor>)> {
        let flat = |t: &Tensor, lead: &Shape| -> Result<Tensor> {
            let ends = &t.shape()[t.rank() - 2..];
            let full: Shape = lead.iter().chain(ends).copied().collect();
            reshape_to(&ops::broadcast_to(t, full)?, &[lead.size(), ends[0], ends[1]].into())
        };
        let (q, k, v) = (flat(q, &self.lead)?, flat(k, &self.shared)?, flat(v, &self.shared)?);
        let scores = [q.shape()[1], k.shape()[1]];
        let mask = mask
            .map(|mask| {
                let one = mask.shape().iter().rev().skip(2).all(|&len| len == 1);
                let lead = if one { Shape::from([]) } else { self.lead.clone() };
                let ends: Shape = lead.iter().chain(&scores).copied().collect();
                let mask = if one && mask.rank() > 2 {
                    reshape_to(mask, &mask.shape()[mask.rank() - 2..].into())?
                } else {
                    mask.clone()
                };
                flat(&ops::broadcast_to(&mask, ends)?, &lead)
            })
            .transpose()?;
        Ok((q, k, v, mask))
    }
}

/// Weights of rows of scores: exp(x·scale − m) with the row's maximum m, 1 over their sum, and ln Σ exp; zeros, and an
/// infinite logarithm, for a row of −∞.
fn exponentials(x: &Tensor, scale: f64) -> Result<[Tensor; 3]> {
    let f = formula!(|x; scale| {
        let x = x * scale;
        let m = x.row_max();
        let m = m.eq(f64::NEG_INFINITY).select(0.0, m);
        let e = (x - m).exp();
        let sum = e.row_sum();
        let none = sum.eq(0.0);
        (e, none.select(0.0, sum.recip()), none.select(f64::INFINITY, m + sum.ln()))
    });
    let [e, share, log] = <[Tensor; 3]>::try_from(rows_all(f, &[x], &[scale.into()], (-1).into())?).expect("three");
    Ok([e, share, log])
}

/// Some matrices, and some of their rows.
fn part(t: &Tensor, matrices: &Range<usize>, rows: &Range<usize>) -> Result<Tensor> {
    let t = if t.shape()[0] == 1 { t.clone() } else { ops::narrow(t, 0, matrices.start, matrices.len())? };
    ops::narrow(&t, 1, rows.start, rows.len())
}

/// Scores without those that are not seen, and what they are still to be multiplied with: `rows` are the queries' numbers,
/// keys begin at 0.
fn scores(
    q: &Tensor,
    k: &Tensor,
    mask: Option<&Tensor>,
    causal: bool,
    scale: f64,
    rows: &Range<usize>,
) -> Result<(Tensor, f64)> {
    let mut x = ops::matmul(q, &ops::transpose(k, -1, -2)?)?;
    let mut left = scale;
    if let Some(mask) = mask {
        left = 1.0;
        x = match mask.dtype() {
            DType::Bool => {
                let f = formula!(|x, seen: mask; scale| seen.select(x * scale, f64::NEG_INFINITY));
                map(f, &[&x, mask], &[scale.into()])?
            }
            _ => map(formula!(|x, added; scale| x * scale + added), &[&x, mask], &[scale.into()])?,
        };
    }
    if causal {
        let f = formula!(|x, query: index, key: index| key.le(query).select(x, f64::NEG_INFINITY));
        let query = Tensor::arange(rows.start as i64, rows.end as i64, 1);
        let key = Tensor::arange(0, k.shape()[1] as i64, 1);
        x = map(f, &[&x, &ops::unsqueeze(&query, 1)?, &key], &[])?;
    }
    Ok((x, left))
}

/// The definition: all scores at once.
fn whole(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    causal: bool,
    scale: f64,
    dropout: f64,
) -> Result<Tensor> {
    let group = q.shape()[0] / k.shape()[0].max(1);
    let each = |t: &Tensor| if group > 1 { ops::repeat(t, group, Some(0)) } else { Ok(t.clone()) };
    let (k, v) = (each(k)?, each(v)?);
    let (x, left) = scores(q, &k, mask, causal, scale, &(0..q.shape()[1]))?;
    let [e, share, _] = exponentials(&x, left)?;
    let mut weights = ops::mul(&e, &share)?;
    if dropout > 0.0 {
        weights = ops::dropout(&weights, dropout)?;
    }
    ops::matmul(&weights, &v)
}

/// Scores of a block: half a megabyte of `f32`.
const BLOCK: usize = 1 << 17;

/// Attention of `[B, L, E]`, `[B / G, S, E]`, `[B / G, S, D]`, and a mask `[B or 1, L, S]` without a gradient; its outputs
/// are the result and ln Σ exp of each row, `[B, L, 1]`.
#[derive(Clone, Copy)]
struct Attend {
    causal: bool,
    scale: f64,
}

impl Attend {
    /// Calls `work` with the queries and the keys of each block, a function of the shapes alone.
    fn blocks(
        &self,
        q: &Shape,
        k: &Shape,
        mut work: impl FnMut(Range<usize>, Range<usize>, Range<usize>, usize) -> Result<()>,
    ) -> Result<()> {
        let (matrices, l, s) = (q[0], q[1], k[1]);
        let rows = (BLOCK / s.max(1)).max(16).min(l).max(1);
        let together = if rows == l && k[0] == matrices { (BLOCK / (l * s).max(1)).max(1) } else { 1 };
        for first in (0..matrices).step_by(together) {
            let some = first..matrices.min(first + together);
            let own =
                if k[0] == matrices { some.clone() } else { first / (matrices / k[0])..first / (matrices / k[0]) + 1 };
            for start in (0..l).step_by(rows) {
                let end = l.min(start + rows);
                // No query of the block sees a key after its last one.
                let keys = if self.causal { s.min(end) } else { s };
                work(some.clone(), own.clone(), start..end, keys)?;
            }
        }
        Ok(())
    }
}

impl Operation for Attend {
    fn name(&self) -> &'static str {
        "scaled_dot_product_attention"
    }

    fn forward(&self, inputs: &[&Array], saves: &mut Saves) -> Result<Arrays> {
        Device::common(self.name(), inputs.iter().map(|a| a.device()))?;
        (0..inputs.len()).for_each(|i| saves.input(i));
        (0..2).for_each(|j| saves.output(j));
        let t: Vec<Tensor> = inputs.iter().map(|&a| Tensor::from(a.clone())).collect();
        let [q, k, v] = [&t[0], &t[1], &t[2]];
        let (b, l, d) = (q.shape()[0], q.shape()[1], v.shape()[2]);
        let outputs = [
            Array::new(q.device(), q.dtype(), [b, l, d].into())?,
            Array::new(q.device(), q.dtype(), [b, l, 1].into())?,
        ];
        let [o, logs] = outputs.clone().map(Tensor::from);
        if o.size() + logs.size() > 0 && k.shape()[1] == 0 {
            ops::copy_(&o, &Tensor::from(0.0).to_dtype(q.dtype()))?;
            ops::copy_(&logs, &Tensor::from(f64::INFINITY).to_dtype(q.dtype()))?;
            return Ok(outputs.into_iter().collect());
        }
        self.blocks(q.shape(), k.shape(), |some, own, rows, keys| {
            let mask = t.get(3).map(|m| part(m, &some, &rows).and_then(|m| ops::narrow(&m, 2, 0, keys))).transpose()?;
            let (k, v) = (part(k, &own, &(0..keys))?, part(v, &own, &(0..keys))?);
            let (x, left) = scores(&part(q, &some, &rows)?, &k, mask.as_ref(), self.causal, self.scale, &rows)?;
            let [e, share, log] = exponentials(&x, left)?;
            ops::copy_(&part(&o, &some, &rows)?, &ops::mul(&ops::matmul(&e, &v)?, &share)?)?;
            ops::copy_(&part(&logs, &some, &rows)?, &log)
        })?;
        Ok(outputs.into_iter().collect())
    }

    fn backward(&self, saved: &Saved, grads: &Gradients, _: Needed) -> Result<InputGradients> {
        let inputs: Vec<Tensor> = (0..saved.inputs()).map(|i| saved.input(i)).collect::<Result<_>>()?;
        let g = grads.get(0)?;
        let [o, logs] = [saved.output(0)?.detach(), saved.output(1)?.detach()];
        let operands: Vec<&Tensor> = inputs[..3].iter().chain([&o, &logs, &g]).chain(&inputs[3..]).collect();
        let gradients = apply(AttendGradient(*self), &operands)?;
        Ok(gradients.into_iter().map(Some).chain(inputs[3..].iter().map(|_| None)).collect())
    }
}

/// The gradients of queries, keys and values from those, the result, the logarithms, the incoming gradient, and a mask.
struct AttendGradient(Attend);

impl Operation for AttendGradient {
    fn name(&self) -> &'static str {
        "attention_gradient"
    }

    /// With P = exp(x − log): ∂V = Pᵀ·g, ∂P = g·Vᵀ, ∂x = P·(∂P − Σ g·o), ∂Q = ∂x·K, ∂K = ∂xᵀ·Q.
    fn forward(&self, inputs: &[&Array], saves: &mut Saves) -> Result<Arrays> {
        [0, 1, 2, 5].into_iter().chain(6..inputs.len()).for_each(|i| saves.input(i));
        let t: Vec<Tensor> = inputs.iter().map(|&a| Tensor::from(a.clone())).collect();
        let [q, k, v, o, logs, g] = [0, 1, 2, 3, 4, 5].map(|i| &t[i]);
        let outputs: Arrays = [q, k, v]
            .into_iter()
            .map(|t| Array::new(t.device(), t.dtype(), t.shape().clone()))
            .collect::<Result<_>>()?;
        let [dq, dk, dv] = [0, 1, 2].map(|i| Tensor::from(outputs[i].clone()));
        let zero = Tensor::from(0.0).to_dtype(q.dtype());
        if k.shape()[1] == 0 || q.size() == 0 {
            [&dq, &dk, &dv].into_iter().try_for_each(|t| ops::copy_(t, &zero))?;
            return Ok(outputs);
        }
        let products = formula!(|g, o| g * o);
        let back = formula!(|x, log, p, d; left, scale| {
            let e = (x * left - log).exp();
            (e, e * (p - d) * scale)
        });
        // Keys and values that no block has written to yet.
        let mut fresh = 0;
        let Attend { causal, scale } = self.0;
        self.0.blocks(q.shape(), k.shape(), |some, own, rows, keys| {
            let mask = t.get(6).map(|m| part(m, &some, &rows).and_then(|m| ops::narrow(&m, 2, 0, keys))).transpose()?;
            let own_keys = |t: &Tensor| part(t, &own, &(0..keys));
            let (q, k, v) = (part(q, &some, &rows)?, own_keys(k)?, own_keys(v)?);
            let [o, log, g] = [part(o, &some, &rows)?, part(logs, &some, &rows)?, part(g, &some, &rows)?];
            let (x, left) = scores(&q, &k, mask.as_ref(), causal, scale, &rows)?;
            let d = super::formula::map_sum(products, &[&g, &o], &[], [2].into_iter().collect(), None)?;
            let p = ops::matmul(&g, &ops::transpose(&v, -1, -2)?)?;
            let [e, s] =
                <[Tensor; 2]>::try_from(map_all(back, &[&x, &log, &p, &d], &[left.into(), scale.into()])?.into_vec())
                    .expect("two");
            ops::copy_(&part(&dq, &some, &rows)?, &ops::matmul(&s, &k)?)?;
            if own.start >= fresh {
                fresh = own.end;
                for t in [&dk, &dv] {
                    ops::copy_(&part(t, &own, &(0..t.shape()[1]))?, &zero)?;
                }
            }
            for (sum, new) in [
                (&dk, ops::matmul(&ops::transpose(&s, -1, -2)?, &q)?),
                (&dv, ops::matmul(&ops::transpose(&e, -1, -2)?, &g)?),
            ] {
                let sum = own_keys(sum)?;
                ops::copy_(&sum, &ops::add(&sum, &new)?)?;
            }
            Ok(())
        })?;
        Ok(outputs)
    }

    fn backward(&self, saved: &Saved, grads: &Gradients, _: Needed) -> Result<InputGradients> {
        let mask: Option<Tensor> = (saved.inputs() > 6).then(|| saved.input(6)).transpose()?;
        let inputs = [saved.input(0)?, saved.input(1)?, saved.input(2)?, saved.input(5)?];
        let incoming = [grads.get(0)?, grads.get(1)?, grads.get(2)?];
        let Attend { causal, scale } = self.0;
        let first = |x: &[Tensor]| {
            ops::via_definition(&[&x[0], &x[1], &x[2]], &[&x[3]], |x| {
                Ok(vec![whole(&x[0], &x[1], &x[2], mask.as_ref(), causal, scale, 0.0)?])
            })
        };
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| &inputs[i]);
        let found = ops::via_definition(&[a, b, c, d], &[&incoming[0], &incoming[1], &incoming[2]], first)?;
        let mut gradients: InputGradients = smallvec![None; saved.inputs()];
        for (at, gradient) in [0, 1, 2, 5].into_iter().zip(found) {
            gradients[at] = Some(gradient);
        }
        Ok(gradients)
    }
}
