//! The operations of random programs. Each has a name, and a function that returns the new tensors of the pool, or
//! `None` if no tensor of the pool is applicable. An operation that returns an error counts as not applicable: errors
//! depend only on shapes and dtypes.

use super::program::ProgramRun;
use pellucid_tensor::ops::{
    self, AttentionOptions, Axes, BatchNormOptions, ConvOptions, CrossEntropyOptions, EmbeddingOptions, PaddingMode,
    PoolOptions, QuantileInterpolation, Reduction, TripletMarginLossOptions, over,
};
use pellucid_tensor::{DType, GradOptions, Result, Tensor, formula, grad, no_grad, slice};

type RandomOperation = fn(&mut ProgramRun<'_>) -> Option<Vec<Tensor>>;
type Unary = fn(&Tensor) -> Result<Tensor>;
type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;
type OverAxes = fn(&Tensor, Axes) -> Result<Tensor>;

/// The orders of norms: those with special cases, and two that compute powers.
const ORDERS: [f64; 7] = [2.0, 1.0, 3.0, 0.5, f64::INFINITY, 0.0, 4.0];

pub(super) const OPERATIONS: &[(&str, RandomOperation)] = &[
    ("a function", |r| r.unary(&UNARY)),
    ("a function", |r| r.unary(&UNARY)),
    ("an operation", |r| r.binary(&BINARY)),
    ("an operation", |r| r.binary(&BINARY)),
    ("an operation", |r| r.binary(&BINARY)),
    ("an operation with a number", |r| {
        let (x, k) = (r.number()?, r.rng.number());
        one(match r.rng.below(5) {
            0 => ops::add(&x, k),
            1 => ops::mul(&x, k),
            2 => ops::sub(k, &x),
            3 => ops::maximum(&x, k),
            _ => ops::div(&x, k.abs() + 0.5),
        })
    }),
    ("a comparison", |r| r.binary(&[|a, b| ops::gt(a, b), |a, b| ops::le(a, b), |a, b| ops::eq(a, b)])),
    ("where", |r| {
        let (c, (a, b)) = (r.condition()?, r.pair()?);
        one(ops::where_(&c, &a, &b))
    }),
    ("logic", |r| {
        let (a, b) = (r.condition()?, r.condition()?);
        one(ops::logical_or(&ops::logical_not(&a).ok()?, &b))
    }),
    ("a conversion", |r| {
        let x = r.pick(|_| true)?;
        let to = r.rng.choose(&[DType::F32, DType::F64, DType::BF16, DType::F16, DType::I64, DType::I32, DType::Bool]);
        one(ops::to_dtype(&x, to))
    }),
    ("a formula of two results", |r| {
        let ((a, b), k) = (r.pair()?, r.rng.number());
        let both = formula!(|a, b; k| ((a * k + b).tanh(), a.max(b) - k));
        ops::map_all(both, &[&a, &b], &[k.into()]).ok()
    }),
    // Reductions.
    ("a reduction", |r| r.over_axes(&REDUCTIONS)),
    ("a reduction", |r| r.over_axes(&REDUCTIONS)),
    ("a reduction of integers", |r| r.over_axes(&INTEGER_REDUCTIONS)),
    ("a reduction of an expression", |r| {
        // An operand of the reduction is read again together with its result.
        let (x, f) = (r.float()?, r.rng.choose(&UNARY));
        let axes = r.axes(&x)?.keepdims();
        let y = f(&x).ok()?;
        let total = r.rng.choose(&REDUCTIONS)(&y, axes).ok()?;
        one(match r.rng.below(3) {
            0 => ops::mul(&y, &total),
            1 => ops::div(&y, &ops::add(&ops::abs(&total).ok()?, 0.5).ok()?),
            _ => ops::mul(&ops::div(&y, &total).ok()?, &y),
        })
    }),
    ("several reductions of one value", |r| {
        let (x, f) = (r.float()?, r.rng.choose(&UNARY));
        let (y, axes) = (f(&x).ok()?, r.axes(&x)?);
        let (first, second) = (r.rng.choose(&REDUCTIONS), r.rng.choose(&REDUCTIONS));
        Some(vec![first(&y, axes.clone()).ok()?, second(&y, axes).ok()?])
    }),
    ("a norm", |r| {
        let (x, p) = (r.float()?, r.rng.choose(&ORDERS));
        let axes = r.axes(&x)?;
        one(ops::norm(&x, p, axes))
    }),
    ("a normalization", |r| {
        let (x, p) = (r.float()?, r.rng.choose(&ORDERS));
        let axis = r.axis(&x)?;
        one(match r.rng.below(3) {
            0 => ops::renorm(&x, p, axis, 0.7),
            1 => ops::masked_normalize(&x, r.mask(), p, axis, 1e-6),
            _ => ops::normalize(&x, p, axis, 1e-6),
        })
    }),
    ("a distance", |r| {
        let ((a, b), p) = (r.floats()?, r.rng.choose(&ORDERS));
        one(match r.rng.below(4) {
            0 => ops::pairwise_distance(&a, &b, p, 1e-6, r.rng.below(2) == 0),
            1 => ops::cdist(&a, &b, p),
            2 => ops::cosine_similarity(&a, &b, r.axis(&a)?, 1e-6),
            _ => ops::pdist(&a, p),
        })
    }),
    ("a loss", |r| {
        let (a, b) = r.floats()?;
        let (c, reduction) = (r.float()?, r.rng.choose(&[Reduction::Mean, Reduction::Sum, Reduction::None]));
        one(match r.rng.below(6) {
            0 => {
                let (p, swap) = (r.rng.choose(&ORDERS), r.rng.below(2) == 0);
                let options = TripletMarginLossOptions { margin: 1.0, p, eps: 1e-6, swap, reduction };
                ops::triplet_margin_loss(&a, &b, &c, options)
            }
            1 => ops::mse_loss(&a, &b, reduction),
            2 => ops::huber_loss(&a, &b, 0.8, reduction),
            3 => ops::l1_loss(&a, &b, reduction),
            4 => ops::binary_cross_entropy_with_logits(&a, &b, None, None, reduction),
            _ => ops::kl_div(&a, &b, true, reduction),
        })
    }),
    ("a masked reduction", |r| {
        let (x, mask) = (r.float()?, r.mask().clone());
        let axes = r.axes(&x)?;
        one(match r.rng.below(5) {
            0 => ops::masked_sum(&x, &mask, axes),
            1 => ops::masked_mean(&x, &mask, axes),
            2 => ops::masked_softmax(&x, &mask, axes),
            3 => ops::masked_var(&x, &mask, axes),
            _ => ops::masked_max(&x, &mask, axes),
        })
    }),
    // Rows.
    ("a softmax", |r| r.over_axes(&SOFTMAXES)),
    ("a softmax", |r| r.over_axes(&SOFTMAXES)),
    ("a norm of layers", |r| {
        let x = r.float()?;
        let last = *x.shape().last()?;
        let weight = r.pick(|t| t.dtype().is_float() && t.shape()[..] == [last]);
        one(match r.rng.below(3) {
            0 => ops::layer_norm(&x, last, weight.as_ref(), None, 1e-5),
            1 => ops::rms_norm(&x, last, weight.as_ref(), 1e-5),
            _ => {
                let options = BatchNormOptions { training: true, momentum: 0.1, eps: 1e-3 };
                ops::batch_norm(&x, None, None, None, options)
            }
        })
    }),
    ("a formula of rows", |r| {
        let x = r.float()?;
        let axis = r.axis(&x)?;
        ops::map_rows_all(formula!(|x| (x.exp() * x / (x * x + 1.0).row_sum(), x - x.row_max())), &[&x], &[], axis).ok()
    }),
    // Other kernels.
    ("a scan", |r| {
        let x = r.float()?;
        let axis = r.axis(&x)?;
        match r.rng.below(4) {
            0 => one(ops::cumsum(&x, axis)),
            1 => one(ops::cumprod(&x, axis)),
            2 => one(ops::logcumsumexp(&x, axis)),
            _ => two(ops::cummax(&x, axis)),
        }
    }),
    ("sorting", |r| {
        let x = r.number()?;
        let (axis, down) = (r.axis(&x)?, r.rng.below(2) == 0);
        two(ops::sort(&x, axis, down))
    }),
    ("a quantile", |r| {
        let x = r.float()?;
        let axes = r.axes(&x)?;
        one(ops::quantile(&x, 0.3, axes, QuantileInterpolation::Linear))
    }),
    ("a matrix product", |r| {
        let x = r.pick(|t| t.rank() == 2 && t.dtype().is_float())?;
        let dtype = x.dtype();
        let y = r.pick(|t| t.rank() == 2 && t.dtype() == dtype)?;
        let product = match (x.shape()[1] == y.shape()[0], x.shape()[1] == y.shape()[1]) {
            (true, _) => ops::matmul(&x, &y),
            (_, true) => ops::matmul(&x, &ops::swapaxes(&y, 0, 1).ok()?),
            _ => ops::matmul(&ops::swapaxes(&x, 0, 1).ok()?, &x),
        };
        let product = product.ok()?;
        // The epilogue of the product may read its factors.
        one(match r.rng.below(4) {
            0 if product.shape() == x.shape() => ops::add(&ops::mul(&product, &x).ok()?, &y),
            1 => ops::tanh(&product),
            2 => ops::add(&product, &r.number()?),
            _ => Ok(product),
        })
    }),
    ("an attention", |r| {
        let (x, y) = r.equal_pair(|t| t.rank() == 2 && t.dtype().is_float() && t.size() > 0)?;
        let options = AttentionOptions { causal: r.rng.below(2) == 0, ..Default::default() };
        one(ops::scaled_dot_product_attention(&x, &y, &x, options))
    }),
    ("windows", |r| {
        let x = r.pick(|t| t.rank() == 2 && t.dtype().is_float() && t.size() > 0)?;
        let image = ops::unsqueeze(&x, 0).ok()?;
        match r.rng.below(2) {
            0 => two(ops::max_pool1d(&image, PoolOptions { stride: Some(1.into()), ..PoolOptions::new(2) })),
            _ => one(ops::conv1d(&image, &ops::narrow(&image, 2, 0, 1).ok()?, None, ConvOptions::default())),
        }
    }),
    ("a sum of products", |r| {
        let (x, y) = r.equal_pair(|t| t.rank() == 2 && t.dtype().is_float())?;
        let equation = r.rng.choose(&["ij,ij->i", "ij,ij->j", "ij,ik->jk", "ij,ij->"]);
        one(ops::einsum(equation, &[&x, &y]))
    }),
    // Operations that read an index.
    ("gathering", |r| {
        let (n, index) = (r.state.index.size(), r.index()?);
        let x = r.pick(|t| t.rank() > 0 && t.shape()[0] == n)?;
        one(match r.rng.below(3) {
            0 => ops::embedding(&x, &index, EmbeddingOptions::default()),
            1 => ops::index_select(&x, 0, &index),
            _ => x.try_i(&index),
        })
    }),
    ("scattering", |r| {
        let (n, index) = (r.state.index.size(), r.index()?);
        let x = r.pick(|t| t.rank() > 0 && t.shape()[0] == n && t.dtype().is_float())?;
        one(ops::scatter_add_along(&x, &index, 0, [n + 1]))
    }),
    ("gathering along an axis", |r| {
        let x = r.number()?;
        let axis = r.axis(&x)?;
        let order = ops::argsort(&x, axis, true).ok()?;
        one(ops::take_along_axis(&x, &order, axis))
    }),
    ("joining", |r| {
        let (x, y) = r.equal_pair(|t| t.rank() > 0)?;
        let (f, axis) = (r.rng.choose(&UNARY), r.axis(&x)?);
        one(match r.rng.below(4) {
            0 => ops::concatenate(&[&x, &y], axis),
            1 => ops::concatenate(&[&x, &f(&x).ok()?], axis),
            2 => ops::stack(&[&x, &y, &x], axis),
            _ => ops::stack(&[&f(&x).ok()?, &x], axis),
        })
    }),
    ("padding", |r| {
        let x = r.pick(|t| t.rank() == 2)?;
        one(ops::pad(&x, [(1, 0), (0, 2)], PaddingMode::Constant(1.into())))
    }),
    // Views.
    ("a view", |r| r.view()),
    ("a view", |r| r.view()),
    ("a broadcast view", |r| {
        let (small, large) = (r.pick(|_| true)?, r.pick(|_| true)?);
        one(ops::broadcast_to(&small, large.shape().clone()))
    }),
    // New tensors.
    ("a new tensor", |r| {
        let x = r.pick(|t| t.rank() > 0)?;
        let last = *x.shape().last()?;
        let (k, dtype) = (r.rng.number(), r.rng.choose(&[DType::F32, DType::F64, DType::I64]));
        let new = match r.rng.below(5) {
            0 => ops::full(x.shape().clone(), k, dtype).ok()?,
            1 => Tensor::arange(0i64, last as i64, 1),
            2 => ops::eye(last, last, dtype).ok()?,
            3 => Tensor::new((0..last).map(|i| k * i as f64).collect::<Vec<_>>(), [last]),
            _ => Tensor::from(k as f32),
        };
        // A captured step returns only tensors of its device.
        one(new.try_to(r.mask().device()))
    }),
    ("drawing", |r| {
        let (leaf, which) = (r.leaf(), r.rng.below(3));
        let like = ops::to_dtype(&leaf, r.rng.choose(&[DType::F32, DType::F64])).ok()?;
        let _own = (which < 2).then(|| r.state.generator.scope());
        one(match which {
            0 => ops::rand_like(&like),
            1 => ops::randn_like(&like),
            _ => ops::randint_like(&like, -3, 9),
        })
    }),
    ("dropout", |r| r.unary(&[|x| ops::dropout(x, 0.4), |x| ops::alpha_dropout(x, 0.3)])),
    ("random numbers", |r| {
        // Eager mode checks deviations and probabilities, so they must not depend on values.
        r.unary(&[
            |x| ops::normal(x, &ops::full_like(x, 0.5)?),
            |x| ops::bernoulli(&ops::full_like(x, 0.4)?),
            |x| ops::randn_like(x),
        ])
    }),
    ("unused random numbers", |r| {
        let like = ops::to_dtype(&r.leaf(), DType::F32).ok()?;
        drop(ops::randn_like(&like).ok()?);
        let _own = r.state.generator.scope();
        ops::rand_like(&like).ok().map(|_| vec![])
    }),
    // Writes in place.
    ("a state replaced", |r| {
        let (state, x) = (r.state(), r.number()?.detach());
        ops::copy_(&state, &x).ok().map(|()| vec![])
    }),
    ("a state updated", |r| {
        let (state, x) = (r.state(), r.float()?.detach());
        ops::update(formula!(|s, x| 0.5 * s + x.tanh()), &[&state], &[&x], &[]).ok().map(|()| vec![state])
    }),
    ("both states updated", |r| {
        let ([a, b], x, k) = (r.state.arrays.clone(), r.float()?.detach(), r.rng.number());
        let both = formula!(|a, b, x; k| (a * 0.75 + b, (b - k * a + x).sin()));
        ops::update(both, &[&a, &b], &[&x], &[k.into()]).ok().map(|()| vec![])
    }),
    ("a state updated by a reduction", |r| {
        // The reduced value depends on the state, and may have its size.
        let (state, x) = (r.state(), r.float()?.detach());
        let y = ops::add(&x, &state).ok()?;
        let axes = r.axes(&y)?;
        let list: &[OverAxes] = if r.rng.below(2) == 0 { &REDUCTIONS } else { &SOFTMAXES };
        let value = r.rng.choose(list)(&y, axes).ok()?;
        ops::copy_(&state, &value).ok().map(|()| vec![])
    }),
    ("part of a state written", |r| {
        let (state, x) = (r.state(), r.number()?.detach());
        let done = match r.rng.below(4) {
            0 => state.try_set(0, &x),
            1 => state.try_set((.., -1), &x),
            2 => state.try_set(slice(None, None, 2), r.rng.number()),
            _ if state.shape().get(1) == Some(&r.state.index.size()) => state.try_set((.., r.index()?), &x),
            _ => return None,
        };
        done.ok().map(|()| vec![])
    }),
    ("a state moved within itself", |r| {
        let state = r.state();
        let done = match r.rng.below(5) {
            0 => state.try_set(1.., state.try_i(..-1).ok()?),
            1 => state.try_set(..-1, state.try_i(1..).ok()?),
            2 => ops::copy_(&state, &ops::flip(&state, 0).ok()?),
            3 => ops::copy_(&state, &state.try_i((.., ..1)).ok()?),
            _ => {
                let other = &r.state.arrays[1];
                ops::copy_(&state, &ops::add(other, &ops::flip(other, -1).ok()?).ok()?)
            }
        };
        done.ok().map(|()| vec![])
    }),
    ("a value written", |r| {
        // The target may be a view of a state, a result or a constant, but not an input. The write of a recorded result
        // is recorded too; any other target must not become part of a graph.
        let (x, y) = (r.number()?, r.number()?);
        if r.has_input_storage(&x) {
            return None;
        }
        let y = if x.is_leaf() { y.detach() } else { y };
        let done = match r.rng.below(4) {
            0 => ops::copy_(&x, &y),
            1 => x.try_set(0, &y),
            2 => x.try_set(slice(None, None, -2), r.rng.number()),
            _ => ops::update(formula!(|x, y| x * 0.5 - y), &[&x], &[&y], &[]),
        };
        done.ok().map(|()| vec![])
    }),
    ("an index incremented", |r| {
        let index = &r.state.index;
        let n = (index.size() as i64).max(1);
        ops::copy_(index, &ops::rem(&ops::add(index, 1).ok()?, n).ok()?).ok().map(|()| vec![])
    }),
    // Gradients.
    ("a gradient", |r| {
        let x = r.float()?.detach().requires_grad_(true);
        let y = match r.rng.below(4) {
            0 => ops::mul(&ops::tanh(&x).ok()?, &x).ok()?,
            1 => ops::softmax(&x, -1).ok()?.square(),
            2 => ops::cumsum(&ops::exp(&ops::tanh(&x).ok()?).ok()?, -1).ok()?,
            _ => ops::add(&ops::gelu(&x).ok()?, &ops::sum(&x, ..).ok()?).ok()?,
        };
        grad(&[&y.square()], &[&x], GradOptions::default()).ok()
    }),
    ("a second derivative", |r| {
        let x = r.pick(|t| t.dtype().is_float() && t.size() <= 64)?.detach().requires_grad_(true);
        let y = if r.rng.below(2) == 0 { x.tanh().square() } else { ops::mul(&x, &ops::sigmoid(&x).ok()?).ok()? };
        let create = GradOptions { create_graph: true, ..Default::default() };
        let first = grad(&[&y], &[&x], create).ok()?;
        let second = grad(&[&first[0].square()], &[&x], GradOptions::default()).ok()?;
        Some(vec![first[0].detach(), second[0].clone()])
    }),
    ("a step of training", |r| {
        let w = &r.state.weight;
        let (n, dtype) = (w.shape()[0], w.dtype());
        let x = r.pick(|t| t.rank() == 2 && t.shape()[1] == n && t.dtype() == dtype && t.shape()[0] > 0)?.detach();
        w.zero_grad();
        let classes = ops::rem(Tensor::arange(0i64, x.shape()[0] as i64, 1), 3).ok()?;
        let logits = ops::matmul(&ops::tanh(&x).ok()?, w).ok()?;
        let loss = ops::cross_entropy(&logits, &classes, CrossEntropyOptions::default()).ok()?;
        loss.backward();
        let gradient = w.grad()?;
        let _off = no_grad();
        ops::update(formula!(|w, g| w - 0.25 * g), &[w], &[&gradient], &[]).ok()?;
        w.zero_grad();
        Some(vec![loss.detach(), gradient])
    }),
    ("an accumulated gradient", |r| {
        let total = &r.state.total;
        let n = total.size();
        let x = r.pick(|t| t.dtype().is_float() && t.shape().last() == Some(&n))?.detach();
        ops::mul(&x, total).ok()?.tanh().backward();
        Some(vec![])
    }),
    ("a value without a gradient", |r| {
        let _off = no_grad();
        let (x, f) = (r.number()?, r.rng.choose(&UNARY));
        one(f(&x))
    }),
];

const UNARY: [Unary; 16] = [
    |x| ops::neg(x),
    |x| ops::abs(x),
    |x| ops::tanh(x),
    |x| ops::sin(x),
    |x| ops::sigmoid(x),
    |x| ops::relu(x),
    |x| ops::square(x),
    |x| ops::exp(x),
    |x| ops::exp(&ops::tanh(x)?),
    |x| ops::gelu(x),
    |x| ops::sqrt(&ops::abs(x)?),
    |x| ops::mul(x, x),
    |x| ops::clamp(x, -0.5, 1.5),
    |x| ops::pow(&ops::abs(x)?, 1.5),
    |x| ops::log(&ops::add(&ops::abs(x)?, 0.5)?),
    |x| ops::add(x, 0.0),
];

const BINARY: [Binary; 9] = [
    |a, b| ops::add(a, b),
    |a, b| ops::sub(a, b),
    |a, b| ops::mul(a, b),
    |a, b| ops::maximum(a, b),
    |a, b| ops::minimum(a, b),
    |a, b| ops::div(a, b),
    |a, b| ops::div(a, &ops::add(&ops::abs(b)?, 0.5)?),
    // Intermediate results, whose memory the final result may reuse.
    |a, b| ops::add(ops::mul(a, b)?, ops::sub(a, b)?),
    |a, b| ops::exp(&ops::mul(&ops::tanh(a)?, &ops::sin(b)?)?),
];

const REDUCTIONS: [OverAxes; 12] = [
    |x, axes| ops::sum(x, axes),
    |x, axes| ops::mean(x, axes),
    |x, axes| ops::prod(x, axes),
    |x, axes| ops::max(x, axes),
    |x, axes| ops::min(x, axes),
    |x, axes| ops::var(x, axes),
    |x, axes| ops::std(x, axes),
    |x, axes| ops::logsumexp(x, axes),
    |x, axes| ops::nansum(x, axes),
    |x, axes| ops::nanmean(x, axes),
    |x, axes| ops::norm(x, 2.0, axes),
    |x, axes| ops::norm(x, 3.0, axes),
];

const INTEGER_REDUCTIONS: [OverAxes; 5] = [
    |x, axes| ops::argmax(x, axes),
    |x, axes| ops::argmin(x, axes),
    |x, axes| ops::any(x, axes),
    |x, axes| ops::all(x, axes),
    |x, axes| ops::count_nonzero(x, axes),
];

const SOFTMAXES: [OverAxes; 3] =
    [|x, axes| ops::softmax(x, axes), |x, axes| ops::log_softmax(x, axes), |x, axes| ops::softmin(x, axes)];

impl ProgramRun<'_> {
    fn float(&mut self) -> Option<Tensor> {
        self.pick(|t| t.dtype().is_float())
    }

    fn number(&mut self) -> Option<Tensor> {
        self.pick(|t| t.dtype() != DType::Bool)
    }

    fn condition(&mut self) -> Option<Tensor> {
        let own = self.mask().clone();
        if self.rng.below(2) == 0 { Some(own) } else { self.pick(|t| t.dtype() == DType::Bool) }
    }

    /// Returns two tensors whose shapes broadcast.
    fn pair(&mut self) -> Option<(Tensor, Tensor)> {
        let a = self.number()?;
        let (shape, max_elements) = (a.shape().clone(), self.max_elements);
        let fits = |t: &Tensor| shape.broadcast(t.shape()).is_some_and(|s| s.size() <= max_elements);
        let b = self.pick(|t| t.dtype() != DType::Bool && fits(t))?;
        Some(if self.rng.below(2) == 0 { (a, b) } else { (b, a) })
    }

    /// Returns two tensors of floats.
    fn floats(&mut self) -> Option<(Tensor, Tensor)> {
        Some((self.float()?, self.float()?))
    }

    /// Returns two tensors of the same shape and dtype for which `wanted` returns true.
    fn equal_pair(&mut self, wanted: impl Fn(&Tensor) -> bool) -> Option<(Tensor, Tensor)> {
        let x = self.pick(wanted)?;
        let (dtype, shape) = (x.dtype(), x.shape().clone());
        let y = self.pick(|t| t.dtype() == dtype && *t.shape() == shape)?;
        Some((x, y))
    }

    fn state(&mut self) -> Tensor {
        self.state.arrays[self.rng.below(2)].clone()
    }

    /// Returns an index tensor for axes of matching length, derived from the input or from the state.
    fn index(&mut self) -> Option<Tensor> {
        let index = if self.rng.below(2) == 0 { &self.state.index } else { self.index_input() };
        ops::rem(index, index.size().max(1) as i64).ok()
    }

    fn view(&mut self) -> Option<Vec<Tensor>> {
        let x = self.pick(|t| t.rank() > 0)?;
        let axis = self.axis(&x)?;
        let len = x.shape()[axis as usize];
        one(match self.rng.below(10) {
            0 => ops::flip(&x, axis),
            1 => ops::narrow(&x, axis, len / 3, len - len / 3),
            2 => ops::select(&x, axis, -1),
            3 => ops::unsqueeze(&x, axis),
            4 => ops::swapaxes(&x, 0, -1),
            5 => x.try_i(slice(None, None, 2)),
            6 => ops::diagonal(&x, 0, 0, 1),
            7 => ops::reshape(&x, x.shape().iter().rev().copied().collect::<Vec<_>>()),
            8 if x.size() < 200 => ops::windows(&x, axis, len.min(2), 1),
            _ => ops::reshape(&x, [x.size()]),
        })
    }

    fn axis(&mut self, x: &Tensor) -> Option<isize> {
        (x.rank() > 0).then(|| self.rng.below(x.rank()) as isize)
    }

    /// Returns one axis, the last two, or all, with or without `keepdims`.
    fn axes(&mut self, x: &Tensor) -> Option<Axes> {
        let axes = match self.rng.below(4) {
            0 => over(..),
            1 if x.rank() > 1 => over([-1, -2]),
            _ => over(self.axis(x)?),
        };
        Some(if self.rng.below(2) == 0 { axes.keepdims() } else { axes })
    }

    fn unary(&mut self, functions: &[Unary]) -> Option<Vec<Tensor>> {
        let (x, f) = (self.number()?, self.rng.choose(functions));
        one(f(&x))
    }

    fn binary(&mut self, operations: &[Binary]) -> Option<Vec<Tensor>> {
        let ((a, b), f) = (self.pair()?, self.rng.choose(operations));
        one(f(&a, &b))
    }

    fn over_axes(&mut self, operations: &[OverAxes]) -> Option<Vec<Tensor>> {
        let (x, f) = (self.number()?, self.rng.choose(operations));
        let axes = self.axes(&x)?;
        one(f(&x, axes))
    }
}

fn one(result: Result<Tensor>) -> Option<Vec<Tensor>> {
    result.ok().map(|t| vec![t])
}

fn two(result: Result<(Tensor, Tensor)>) -> Option<Vec<Tensor>> {
    result.ok().map(|(a, b)| vec![a, b])
}
