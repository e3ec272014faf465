//! Scaled dot-product attention.
//!
//! - [`Attend`]: the operation that runs the forward kernel [`Attention`](kernel::Attention), which never stores all
//!   scores;
//! - [`AttendGradient`]: the gradient of this operation, by a kernel;
//! - `attention_by_scores`: the definition with the full score matrix, for dropout and for the gradient of a mask;
//! - `attention_gradients`: the definition of the gradient, from which higher-order derivatives are computed.

use crate::autocast::{autocast_dtype, autocast_off};
use crate::autograd::{apply, interface::*};
use crate::engine;
use crate::grad_mode::is_grad_enabled;
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::{apply_rows_all, broadcast, map};
use crate::ops::nn::dropout;
use crate::ops::primitive::via_definition::via_definition;
use crate::ops::primitive::view::reshape_to;
use crate::ops::primitive::{copy, create, precision, view};
use crate::ops::products::matmul::matmul;
use crate::ops::reduce::reductions;
use crate::ops::shape::rearrange;
use crate::option_range::OptionRange;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::{self, AttentionPart, Kernel};
use pellucid_ir::{DType, Error, Result, Shape, formula};
use smallvec::SmallVec;

/// Options of [`scaled_dot_product_attention`].
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionOptions<'a> {
    /// The keys that each query attends to, broadcast to `[.., L, S]`: booleans (true attends), or values that are
    /// added to the scores.
    pub mask: Option<&'a Tensor>,
    /// Causal masking: query i attends to the keys 0..=i only.
    pub causal: bool,
    /// Factor of the scores; the default is 1/√E.
    pub scale: Option<f64>,
    /// Probability of dropping an attention weight. The remaining weights are divided by 1 − p.
    pub dropout: f64,
}

/// Computes softmax(Q·Kᵀ·scale + mask)·V (Vaswani et al. 2017). For a query that attends to no key, the result is zero.
///
/// Q is `[.., L, E]`, K `[.., S, E]`, V `[.., S, D]`; the result is `[.., L, D]`. The axes before the last two
/// broadcast. K and V may have fewer heads (third axis from the end) than Q if their number divides Q's. Neighbouring
/// heads of Q then share a head of K and V (grouped-query attention, Ainslie et al. 2023).
///
/// The scores are computed block by block, and are never all stored (FlashAttention, Dao et al. 2022). With dropout,
/// with a mask that requires a gradient, and in every derivative of order 2 or higher, all scores, `[.., L, S]`, are
/// stored. The second derivative uses about 8 times the memory of the scores. `f16` and `bf16` are computed in `f32`
/// and rounded once; under `autocast`, the factors of all products are rounded to its dtype where this is faster: to
/// `bf16` on the CPU, to `bf16` and `f16` on GPUs with matrix units. The scores must be representable: if a score
/// overflows to ∞, the result is NaN.
///
/// # Errors
/// [`Error::ShapeMismatch`]; [`Error::DTypeMismatch`] unless Q, K and V have the same float dtype, and the mask has
/// this dtype or is boolean; [`Error::InvalidArgument`] for a dropout outside [0, 1].
#[doc(alias("sdpa", "flash_attention"))]
#[tensor_method(autocast = Half)]
pub fn scaled_dot_product_attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    options: AttentionOptions<'_>,
) -> Result<Tensor> {
    let op = "scaled_dot_product_attention";
    let AttentionOptions { mask, causal, scale, dropout } = options;
    let operands: SmallVec<[&Tensor; 4]> = [q, k, v].into_iter().chain(mask).collect();
    if let Some(dtype) = precision::autocast_operand_dtype(op, &operands) {
        let [q, k, v] = [precision::cast(q, dtype)?, precision::cast(k, dtype)?, precision::cast(v, dtype)?];
        let mask = precision::cast_some(mask, dtype)?;
        return scaled_dot_product_attention(&q, &k, &v, AttentionOptions { mask: mask.as_ref(), ..options });
    }
    if q.dtype() != k.dtype() || q.dtype() != v.dtype() || !q.dtype().is_float() {
        let help = "Q, K and V must have the same float dtype; use to_dtype()";
        return Err(Error::dtypes(op, [q.dtype(), k.dtype(), v.dtype()], help));
    }
    if let Some(mask) = mask.filter(|m| m.dtype() != DType::Bool && m.dtype() != q.dtype()) {
        return Err(Error::dtypes(op, [q.dtype(), mask.dtype()], "a mask must be boolean or have the dtype of Q"));
    }
    OptionRange::PROBABILITY.check(op, "dropout", dropout, 0.1)?;
    let heads = Heads::new(op, q, k, v, mask)?;
    let scale = scale.unwrap_or(1.0 / (heads.width.max(1) as f64).sqrt());
    let (q, k, v, all) = heads.stacked(q, k, v, mask)?;
    let tracked_mask = is_grad_enabled() && mask.is_some_and(Tensor::requires_grad);
    let o = if dropout > 0.0 || tracked_mask {
        attention_by_scores(&q, &k, &v, all.as_ref(), causal, scale, dropout)?
    } else {
        let operands: Vec<&Tensor> = [&q, &k, &v].into_iter().chain(&all).collect();
        let half_factors = autocast_dtype().filter(|&half| half == q.dtype());
        apply(Attend { causal, scale, half_factors }, &operands)?.swap_remove(0)
    };
    reshape_to(&o, &heads.result)
}

/// The broadcast batch and head axes of Q, K and V.
struct Heads {
    /// The axes before the last two.
    batch: Shape,
    /// The axes before the last two of keys and values, which have fewer heads in grouped-query attention.
    shared: Shape,
    width: usize,
    result: Shape,
}

impl Heads {
    fn new(op: &'static str, q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Heads> {
        let mismatch = |help: &str| Error::shapes(op, [q.shape(), k.shape(), v.shape()], help);
        if let Some((name, t)) = [("Q", q), ("K", k), ("V", v)].into_iter().find(|(_, t)| t.rank() < 2) {
            let help = format!("Q must be [.., L, E], K [.., S, E] and V [.., S, D], but {name} has rank {}", t.rank());
            return Err(mismatch(&help));
        }
        let (ends, before) = (
            |t: &Tensor| [t.shape()[t.rank() - 2], t.shape()[t.rank() - 1]],
            |t: &Tensor| Shape::from(&t.shape()[..t.rank() - 2]),
        );
        let ([l, e], [s, e2], [s2, d]) = (ends(q), ends(k), ends(v));
        let difference = match (e == e2, s == s2) {
            (true, true) => None,
            (false, true) => Some(format!("E is {e} in Q and {e2} in K")),
            (true, false) => Some(format!("S is {s} in K and {s2} in V")),
            (false, false) => Some(format!("E is {e} in Q and {e2} in K, and S is {s} in K and {s2} in V")),
        };
        if let Some(difference) = difference {
            return Err(mismatch(&format!("Q must be [.., L, E], K [.., S, E] and V [.., S, D], but {difference}")));
        }
        let help = "the axes before the last two must broadcast, except that K and V may have fewer heads, whose \
                    number divides the number of heads of Q; reshape() or expand() the operands";
        let shared = before(k).broadcast(&before(v)).ok_or_else(|| mismatch(help))?;
        let queries = before(q);
        // Grouped-query attention: K and V have fewer heads than Q, and all other axes broadcast.
        let (h, g) = (queries.last().copied().unwrap_or(1), shared.last().copied().unwrap_or(1));
        let outer = |s: &Shape| Shape::from(&s[..s.rank().saturating_sub(1)]);
        let (batch, shared) = if 0 < g && g < h && h.is_multiple_of(g) {
            let all = outer(&queries).broadcast(&outer(&shared)).ok_or_else(|| mismatch(help))?;
            let with = |heads: usize| all.iter().copied().chain([heads]).collect::<Shape>();
            (with(h), with(g))
        } else {
            let batch = queries.broadcast(&shared).ok_or_else(|| mismatch(help))?;
            (batch.clone(), batch)
        };
        let result: Shape = batch.iter().copied().chain([l, d]).collect();
        let scores: Shape = batch.iter().copied().chain([l, s]).collect();
        if let Some(mask) = mask.filter(|m| !m.shape().broadcasts_to(&scores)) {
            let help = "a mask must broadcast to the scores, [.., L, S]; unsqueeze() or expand() it";
            return Err(Error::shapes(op, [&scores, mask.shape()], help));
        }
        Ok(Heads { batch, shared, width: e, result })
    }

    /// Reshapes the operands to rank 4: `[N, H, L, E]`, `[N, G, S, E]`, `[N, G, S, D]`, and the mask to `[N, H, L, S]`.
    fn stacked(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor, Tensor, Option<Tensor>)> {
        let stack = |t: &Tensor, batch: &Shape| -> Result<Tensor> {
            let ends = &t.shape()[t.rank() - 2..];
            let full: Shape = batch.iter().chain(ends).copied().collect();
            reshape_to(&broadcast::broadcast_to(t, full)?, &merge_batch_axes(batch, ends))
        };
        let (q, k, v) = (stack(q, &self.batch)?, stack(k, &self.shared)?, stack(v, &self.shared)?);
        let scores = [q.shape()[2], k.shape()[2]];
        let broadcast = |mask: &Tensor| -> Result<Tensor> {
            let few = mask.rank().saturating_sub(3);
            if mask.shape()[..few].iter().all(|&len| len == 1) {
                // The mask is the same for all sequences, so it is broadcast without a copy.
                let mask = reshape_to(mask, &Shape::from(&mask.shape()[few..]))?;
                return broadcast::broadcast_to(&mask, merge_batch_axes(&self.batch, &scores));
            }
            let full: Shape = self.batch.iter().chain(&scores).copied().collect();
            reshape_to(&broadcast::broadcast_to(mask, full)?, &merge_batch_axes(&self.batch, &scores))
        };
        Ok((q, k, v, mask.map(broadcast).transpose()?))
    }
}

/// Returns `[N, H, ends[0], ends[1]]`, where H is the last axis of `batch` and N the product of the other axes.
fn merge_batch_axes(batch: &Shape, ends: &[usize]) -> Shape {
    let (heads, outer) = batch.split_last().map_or((1, 1), |(&heads, outer)| (heads, outer.iter().product()));
    [outer, heads, ends[0], ends[1]].into()
}

/// Computes attention by its definition, with the full score matrix. The operands are `[N, H, L, E]`, `[N, G, S, E]`,
/// `[N, G, S, D]` and a mask `[N, H, L, S]`.
fn attention_by_scores(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    causal: bool,
    scale: f64,
    dropout: f64,
) -> Result<Tensor> {
    if matches!(q.dtype(), DType::F16 | DType::BF16) {
        let _autocast_off = autocast_off();
        let wide = |t: &Tensor| if t.dtype() == DType::Bool { Ok(t.clone()) } else { copy::to_dtype(t, DType::F32) };
        let mask = mask.map(wide).transpose()?;
        let y = attention_by_scores(&wide(q)?, &wide(k)?, &wide(v)?, mask.as_ref(), causal, scale, dropout)?;
        return copy::to_dtype(&y, q.dtype());
    }
    let mut weights = weights(q, &for_each_query_head(k, q)?, mask, causal, scale)?;
    if dropout > 0.0 {
        weights = dropout::dropout(&weights, dropout)?;
    }
    matmul(&weights, &for_each_query_head(v, q)?)
}

/// Repeats each head of keys or values `[N, G, S, _]` for the heads of Q `[N, H, L, E]` that share it: `[N, H, S, _]`.
fn for_each_query_head(shared: &Tensor, q: &Tensor) -> Result<Tensor> {
    let group = q.shape()[1] / shared.shape()[1].max(1);
    if group > 1 { rearrange::repeat(shared, group, Some(1)) } else { Ok(shared.clone()) }
}

/// Sums `[N, H, S, _]` over the heads of Q that share a key head: `[N, G, S, _]`.
fn sum_sharing_heads(t: &Tensor, shared: usize) -> Result<Tensor> {
    let &[n, h, s, e] = t.shape().dims() else {
        unreachable!("operands of the attention kernels always have four axes")
    };
    if h == shared {
        return Ok(t.clone());
    }
    reductions::sum(&reshape_to(t, &[n, shared, h / shared.max(1), s, e].into())?, 2)
}

/// Computes the attention weights P = softmax(Q·Kᵀ·scale + mask), `[N, H, L, S]`. Q and K have the same number of
/// heads.
fn weights(q: &Tensor, k: &Tensor, mask: Option<&Tensor>, causal: bool, scale: f64) -> Result<Tensor> {
    let mut x = matmul(q, &view::transpose(k, -1, -2)?)?;
    x = match mask {
        None => arithmetic::mul(&x, scale)?,
        Some(mask) if mask.dtype() == DType::Bool => {
            let f = formula!(|x, seen: mask; scale| seen.select(x * scale, f64::NEG_INFINITY));
            map(f, &[&x, mask], &[scale.into()])?
        }
        Some(mask) => map(formula!(|x, added; scale| x * scale + added), &[&x, mask], &[scale.into()])?,
    };
    if causal {
        let f = formula!(|x, query: index, key: index| key.le(query).select(x, f64::NEG_INFINITY));
        let query = create::indices(q.shape()[2])?;
        let key = create::indices(k.shape()[2])?;
        x = map(f, &[&x, &view::unsqueeze(&query, 1)?, &key], &[])?;
    }
    softmax_or_zeros(&x)
}

/// Computes the gradients of Q, K and V by their definition, for the gradient G of the result O = P·V. With
/// D = P∘(G·Vᵀ − rowsum(G∘O)), where rowsum(G∘O) = rowsum(P∘(G·Vᵀ)),
///
/// ```text
/// dQ = scale·D·K    dK = scale·Dᵀ·Q    dV = Pᵀ·G
/// ```
fn attention_gradients([q, k, v, g]: [&Tensor; 4], mask: Option<&Tensor>, attend: Attend) -> Result<Vec<Tensor>> {
    let Attend { causal, scale, .. } = attend;
    if matches!(q.dtype(), DType::F16 | DType::BF16) {
        let _autocast_off = autocast_off();
        let wide = |t: &Tensor| if t.dtype() == DType::Bool { Ok(t.clone()) } else { copy::to_dtype(t, DType::F32) };
        let (wide_mask, operands) = (mask.map(wide).transpose()?, [wide(q)?, wide(k)?, wide(v)?, wide(g)?]);
        let gradients = attention_gradients(operands.each_ref(), wide_mask.as_ref(), attend)?;
        return gradients.iter().map(|t| copy::to_dtype(t, q.dtype())).collect();
    }
    let shared = k.shape()[1];
    let (k, v) = (for_each_query_head(k, q)?, for_each_query_head(v, q)?);
    let p = weights(q, &k, mask, causal, scale)?;
    let dp = matmul(g, &view::transpose(&v, -1, -2)?)?;
    let d = apply_rows_all(
        formula!(|p, dp; scale| scale * p * (dp - (dp * p).row_sum())),
        &[&p, &dp],
        &[scale.into()],
        (-1).into(),
    )?;
    let dq = matmul(&d[0], &k)?;
    let dk = matmul(&view::transpose(&d[0], -1, -2)?, q)?;
    let dv = matmul(&view::transpose(&p, -1, -2)?, g)?;
    Ok(vec![dq, sum_sharing_heads(&dk, shared)?, sum_sharing_heads(&dv, shared)?])
}

/// Computes softmax(x) along the last axis; for a row of −∞ the result is zeros.
fn softmax_or_zeros(x: &Tensor) -> Result<Tensor> {
    let formula = formula! {
        static softmax_or_zeros(x) = {
            let m = x.row_max();
            let m = m.eq(f64::NEG_INFINITY).select(0.0, m);
            let e = (x - m).exp();
            let sum = e.row_sum();
            e * sum.eq(0.0).select(0.0, sum.recip())
        };
        d x = y * (g - (g * y).row_sum());
    };
    Ok(apply_rows_all(formula, &[x], &[], (-1).into())?.swap_remove(0))
}

/// Attention of `[N, H, L, E]`, `[N, G, S, E]`, `[N, G, S, D]` and a mask `[N, H, L, S]` that requires no gradient. The
/// outputs are the result and the log-sum-exp of each row of scores, `[N, H, L]`.
#[derive(Clone, Copy)]
struct Attend {
    causal: bool,
    scale: f64,
    /// The dtype to which the kernels may round the factors of their products.
    half_factors: Option<DType>,
}

impl Attend {
    /// Submits the kernel. `f16` and `bf16` inputs are widened. An output with an array in `like` is converted back to
    /// the dtype of this array and has its memory order.
    fn submit(&self, part: AttentionPart, inputs: &[&Array], like: &[&Array]) -> Result<Arrays> {
        let dtype = inputs[0].dtype();
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let widened = |a: &&Array| match a.dtype() {
            own if own == wide || own == DType::Bool => Ok((*a).clone()),
            _ => a.cast(wide),
        };
        let inputs: Vec<Array> = inputs.iter().map(widened).collect::<Result<_>>()?;
        let inputs: Vec<&Array> = inputs.iter().collect();
        let masked = inputs.len() > 3 && part == AttentionPart::Result || inputs.len() > 6;
        let Attend { causal, scale, half_factors } = *self;
        let kernel = Kernel::Attention(kernel::Attention { causal, masked, scale, half_factors, part });
        let metas = kernel.infer(&inputs.iter().map(|a| a.meta()).collect::<Vec<_>>())?;
        let new = |(k, meta): (usize, kernel::Meta)| match like.get(k) {
            Some(like) => array_in_order_of(like, meta),
            None => Array::new(inputs[0].device(), meta.dtype, meta.shape),
        };
        let outputs: Arrays = metas.into_iter().enumerate().map(new).collect::<Result<_>>()?;
        engine::submit(&kernel, &inputs, &outputs.iter().collect::<Vec<_>>())?;
        let narrowed = |(k, a): (usize, Array)| if k < like.len() && dtype != wide { a.cast(dtype) } else { Ok(a) };
        outputs.into_iter().enumerate().map(narrowed).collect()
    }
}

/// Returns a new array `[N, H, L, E]` with the memory order of `like`, in which H may vary faster than L.
fn array_in_order_of(like: &Array, meta: kernel::Meta) -> Result<Array> {
    let strides = like.layout().strides();
    let is_transposed = strides[1].unsigned_abs() < strides[2].unsigned_abs();
    let &[n, h, l, e] = meta.shape.dims() else {
        unreachable!("operands of the attention kernels always have four axes")
    };
    let shape: Shape = if is_transposed { [n, l, h, e].into() } else { meta.shape };
    let array = Array::new(like.device(), meta.dtype, shape)?;
    Ok(if is_transposed { array.view(array.layout().permute(&[0, 2, 1, 3])) } else { array })
}

impl Operation for Attend {
    fn name(&self) -> &'static str {
        "scaled_dot_product_attention"
    }

    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        Array::common_device(self.name(), inputs)?;
        (0..inputs.len()).for_each(|i| saves.input(i));
        (0..2).for_each(|j| saves.output(j));
        self.submit(AttentionPart::Result, inputs, &inputs[..1])
    }

    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let inputs = saved.inputs_from(0)?;
        let g = grads.get(0)?;
        let [o, logs] = [saved.output(0)?.detach(), saved.output(1)?.detach()];
        let operands: Vec<&Tensor> = inputs[..3].iter().chain([&g, &o, &logs]).chain(&inputs[3..]).collect();
        let gradients = apply(AttendGradient(*self), &operands)?;
        Ok(gradients.into_iter().map(Some).chain(inputs[3..].iter().map(|_| None)).collect())
    }
}

/// Computes the gradients of Q, K and V. The inputs are Q, K, V, the incoming gradient, the result, the log-sum-exps,
/// and a mask.
struct AttendGradient(Attend);

impl Operation for AttendGradient {
    fn name(&self) -> &'static str {
        "attention_gradient"
    }

    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        (0..4).chain(6..inputs.len()).for_each(|i| saves.input(i));
        self.0.submit(AttentionPart::Gradient, inputs, &inputs[..3])
    }

    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let mask: Option<Tensor> = (saved.inputs() > 6).then(|| saved.input(6)).transpose()?;
        let inputs: Vec<Tensor> = (0..4).map(|i| saved.input(i)).collect::<Result<_>>()?;
        let incoming = [grads.get(0)?, grads.get(1)?, grads.get(2)?];
        let gradients_by_definition =
            |x: &[Tensor]| attention_gradients([&x[0], &x[1], &x[2], &x[3]], mask.as_ref(), self.0);
        let operands: Vec<&Tensor> = inputs.iter().collect();
        let computed = via_definition(&operands, &[&incoming[0], &incoming[1], &incoming[2]], gradients_by_definition)?;
        let mut gradients: InputGradients = smallvec![None; saved.inputs()];
        gradients.iter_mut().zip(computed).for_each(|(to, gradient)| *to = Some(gradient));
        Ok(gradients)
    }
}
