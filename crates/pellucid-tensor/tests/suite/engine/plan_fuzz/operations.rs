//! The operations of random programs: a name, and a function that returns the new tensors of the pool, or `None` if no
//! tensor of the pool is applicable.

use super::PlanProgram;
use pellucid_tensor::ops::{
    self, Axes, BatchNormOptions, PadMode, QuantileInterpolation, Reduction, TripletMarginLossOptions, over,
};
use pellucid_tensor::{DType, Result, Tensor, formula, no_grad, slice};

type PlanOperation = fn(&mut PlanProgram<'_>) -> Option<Vec<Tensor>>;
type Unary = fn(&Tensor) -> Result<Tensor>;
type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;
type OverAxes = fn(&Tensor, Axes) -> Result<Tensor>;

/// The orders of norms: those with a case of their own, and two that compute powers.
const ORDERS: [f64; 7] = [2.0, 1.0, 3.0, 0.5, f64::INFINITY, 0.0, 4.0];

pub(super) const OPERATIONS: &[(&str, PlanOperation)] = &[
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
        // An operand of the reduction is read again beside its result.
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
            1 => ops::masked_normalize(&x, &r.mask.clone(), p, axis, 1e-6),
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
        let (x, mask) = (r.float()?, r.mask.clone());
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
        one(match r.rng.below(3) {
            0 => ops::cumsum(&x, axis),
            1 => ops::cumprod(&x, axis),
            _ => ops::logcumsumexp(&x, axis),
        })
    }),
    ("sorting", |r| {
        let x = r.number()?;
        let (axis, down) = (r.axis(&x)?, r.rng.below(2) == 0);
        let (values, order) = ops::sort(&x, axis, down).ok()?;
        Some(vec![values, order])
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
    ("gathering along an axis", |r| {
        let x = r.number()?;
        let axis = r.axis(&x)?;
        let order = ops::argsort(&x, axis, true).ok()?;
        one(ops::take_along_axis(&x, &order, axis))
    }),
    ("joining", |r| {
        let (x, f) = (r.pick(|t| t.rank() > 0)?, r.rng.choose(&UNARY));
        let axis = r.axis(&x)?;
        let y = f(&x).ok()?;
        if r.rng.below(2) == 0 { one(ops::concatenate(&[&x, &y], axis)) } else { one(ops::stack(&[&y, &x], axis)) }
    }),
    ("padding", |r| {
        let x = r.pick(|t| t.rank() == 2)?;
        one(ops::pad(&x, [(1, 0), (0, 2)], PadMode::Constant(1.into())))
    }),
    // Views.
    ("a view", |r| {
        let x = r.pick(|t| t.rank() > 0)?;
        let axis = r.axis(&x)?;
        let len = x.shape()[axis as usize];
        one(match r.rng.below(6) {
            0 => ops::flip(&x, axis),
            1 => ops::narrow(&x, axis, len / 3, len - len / 3),
            2 => ops::unsqueeze(&x, axis),
            3 => ops::swapaxes(&x, 0, -1),
            4 => x.try_i(slice(None, None, 2)),
            _ => ops::reshape(&x, [x.size()]),
        })
    }),
    ("a broadcast view", |r| {
        let (small, large) = (r.pick(|_| true)?, r.pick(|_| true)?);
        one(ops::broadcast_to(&small, large.shape().clone()))
    }),
    // Random numbers.
    ("dropout", |r| one(ops::dropout(&r.float()?, 0.4))),
    ("random numbers", |r| {
        let x = r.float()?;
        match r.rng.below(2) {
            // Eager mode checks the deviation, so it must not depend on values.
            0 => one(ops::normal(&x, &ops::full_like(&x, 0.5).ok()?)),
            _ => one(ops::alpha_dropout(&x, 0.3)),
        }
    }),
    // Writes in place.
    ("a state replaced", |r| {
        let (state, x) = (r.state(), r.number()?.detach());
        ops::copy_(&state, &x).ok().map(|()| vec![])
    }),
    ("a state updated", |r| {
        let (state, x) = (r.state(), r.float()?.detach());
        ops::update(formula!(|s, x| 0.5 * s + x.tanh()), &[&state], &[&x], &[]).ok().map(|()| vec![])
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
        let done = match r.rng.below(5) {
            0 => state.try_set(0, &x),
            1 => state.try_set((.., -1), &x),
            2 => state.try_set(slice(None, None, 2), r.rng.number()),
            3 => state.try_set(1.., state.try_i(..-1).ok()?),
            _ => ops::copy_(&state, &ops::flip(&state, 0).ok()?),
        };
        done.ok().map(|()| vec![])
    }),
    ("a result written", |r| {
        // Results are recorded operations, so the write is recorded too. The write of a leaf is an error.
        let (x, y) = (r.pick(|t| !t.is_leaf() && t.dtype().is_float())?, r.number()?);
        let done = match r.rng.below(3) {
            0 => ops::copy_(&x, &y),
            1 => x.try_set(0, &y),
            _ => x.try_set(slice(None, None, 2), r.rng.number()),
        };
        done.ok().map(|()| vec![])
    }),
    ("a value without a gradient", |r| {
        let _off = no_grad();
        let (x, f) = (r.number()?, r.rng.choose(&UNARY));
        one(f(&x))
    }),
];

const UNARY: [Unary; 15] = [
    |x| ops::neg(x),
    |x| ops::abs(x),
    |x| ops::tanh(x),
    |x| ops::sin(x),
    |x| ops::sigmoid(x),
    |x| ops::relu(x),
    |x| ops::square(x),
    |x| ops::exp(x),
    |x| ops::gelu(x),
    |x| ops::sqrt(&ops::abs(x)?),
    |x| ops::mul(x, x),
    |x| ops::clamp(x, -0.5, 1.5),
    |x| ops::pow(&ops::abs(x)?, 1.5),
    |x| ops::log(&ops::add(&ops::abs(x)?, 0.5)?),
    |x| ops::add(x, 0.0),
];

const BINARY: [Binary; 8] = [
    |a, b| ops::add(a, b),
    |a, b| ops::sub(a, b),
    |a, b| ops::mul(a, b),
    |a, b| ops::maximum(a, b),
    |a, b| ops::minimum(a, b),
    |a, b| ops::div(a, b),
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

impl PlanProgram<'_> {
    fn float(&mut self) -> Option<Tensor> {
        self.pick(|t| t.dtype().is_float())
    }

    fn number(&mut self) -> Option<Tensor> {
        self.pick(|t| t.dtype() != DType::Bool)
    }

    fn condition(&mut self) -> Option<Tensor> {
        let own = self.mask.clone();
        if self.rng.below(2) == 0 { Some(own) } else { self.pick(|t| t.dtype() == DType::Bool) }
    }

    /// Returns two tensors whose shapes broadcast.
    fn pair(&mut self) -> Option<(Tensor, Tensor)> {
        let a = self.number()?;
        let shape = a.shape().clone();
        let b = self.pick(|t| t.dtype() != DType::Bool && shape.broadcast(t.shape()).is_some())?;
        Some(if self.rng.below(2) == 0 { (a, b) } else { (b, a) })
    }

    /// Returns two tensors of floats.
    fn floats(&mut self) -> Option<(Tensor, Tensor)> {
        Some((self.float()?, self.float()?))
    }

    fn state(&mut self) -> Tensor {
        self.states[self.rng.below(self.states.len())].clone()
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
