//! The operations of random programs: a name, and a function that returns the new tensors of the pool, or `None` if no
//! tensor of the pool is applicable. An operation that returns an error counts as not applicable: errors depend on
//! shapes and dtypes alone.

use super::ProgramRun;
use pellucid_tensor::ops::{
    self, AttentionOptions, ConvOptions, CrossEntropyOptions, EmbeddingOptions, PadMode, PoolOptions, over,
};
use pellucid_tensor::{DType, GradOptions, Result, Shape, Tensor, formula, grad, no_grad, slice};

type RandomOperation = fn(&mut ProgramRun<'_>) -> Option<Vec<Tensor>>;
type Unary = fn(&Tensor) -> Result<Tensor>;
type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;

pub const OPERATIONS: &[(&str, RandomOperation)] = &[
    // Elementwise operations.
    ("a function", |r| r.unary(&UNARY)),
    ("a function", |r| r.unary(&UNARY)),
    ("an operation", |r| r.binary(&BINARY)),
    ("an operation", |r| r.binary(&BINARY)),
    ("an operation with a number", |r| {
        let (x, k) = (r.number()?, r.rng.number());
        let scaled = match r.rng.below(5) {
            0 => ops::add(&x, k),
            1 => ops::mul(&x, k),
            2 => ops::sub(k, &x),
            3 => ops::maximum(&x, k),
            _ => ops::div(&x, k.abs() + 0.5),
        };
        one(scaled)
    }),
    ("a comparison", |r| r.binary(&[|a, b| ops::gt(a, b), |a, b| ops::le(a, b), |a, b| ops::eq(a, b)])),
    ("where", |r| {
        let (c, (a, b)) = (r.pick(|t| t.dtype() == DType::Bool)?, r.pair()?);
        one(ops::where_(&c, &a, &b))
    }),
    ("logic", |r| {
        let (a, b) = (r.pick(|t| t.dtype() == DType::Bool)?, r.pick(|t| t.dtype() == DType::Bool)?);
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
    // Reductions and rows.
    ("a reduction", |r| {
        let (x, which, keep) = (r.number()?, r.rng.below(6), r.rng.below(2) == 0);
        let axes = match r.rng.below(3) {
            0 => over(..),
            _ => over(r.axis(&x)?),
        };
        let axes = if keep { axes.keepdims() } else { axes };
        one(match which {
            0 => ops::sum(&x, axes),
            1 => ops::mean(&x, axes),
            2 => ops::max(&x, axes),
            3 => ops::argmax(&x, axes),
            4 => ops::any(&x, axes),
            _ => ops::logsumexp(&x, axes),
        })
    }),
    ("a function of rows", |r| {
        let x = r.float()?;
        let (axis, last) = (r.axis(&x)?, *x.shape().last()?);
        one(match r.rng.below(5) {
            0 => ops::softmax(&x, axis),
            1 => ops::log_softmax(&x, axis),
            2 => ops::var(&x, over(axis).keepdims()),
            3 => ops::layer_norm(&x, last, None, None, 1e-5),
            _ => ops::rms_norm(&x, last, None, 1e-5),
        })
    }),
    ("a scan", |r| {
        let x = r.float()?;
        let axis = r.axis(&x)?;
        if r.rng.below(2) == 0 { one(ops::cumsum(&x, axis)) } else { two(ops::cummax(&x, axis)) }
    }),
    ("sorting", |r| {
        let x = r.number()?;
        let axis = r.axis(&x)?;
        let down = r.rng.below(2) == 0;
        two(ops::sort(&x, axis, down))
    }),
    // Products.
    ("a matrix product", |r| {
        let x = r.pick(|t| t.rank() == 2 && t.dtype().is_float())?;
        let dtype = x.dtype();
        let y = r.pick(|t| t.rank() == 2 && t.dtype() == dtype)?;
        match (x.shape()[1] == y.shape()[0], x.shape()[1] == y.shape()[1]) {
            (true, _) => one(ops::matmul(&x, &y)),
            (_, true) => one(ops::matmul(&x, &y.t())),
            _ => one(ops::matmul(&x.t(), &x)),
        }
    }),
    ("an attention", |r| {
        let x = r.pick(|t| t.rank() == 2 && t.dtype().is_float() && t.size() > 0)?;
        let (dtype, shape) = (x.dtype(), x.shape().clone());
        let y = r.pick(|t| t.dtype() == dtype && *t.shape() == shape)?;
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
        let x = r.pick(|t| t.rank() == 2 && t.dtype().is_float())?;
        let (dtype, shape) = (x.dtype(), x.shape().clone());
        let y = r.pick(|t| t.dtype() == dtype && *t.shape() == shape)?;
        let equation = r.rng.choose(&["ij,ij->i", "ij,ij->j", "ij,ik->jk", "ij,ij->"]);
        one(ops::einsum(equation, &[&x, &y]))
    }),
    // Views.
    ("a view", |r| {
        let x = r.pick(|t| t.rank() > 0)?;
        let axis = r.axis(&x)?;
        let len = x.shape()[axis as usize];
        one(match r.rng.below(7) {
            0 => ops::flip(&x, axis),
            1 => ops::narrow(&x, axis, len / 3, len - len / 3),
            2 => ops::select(&x, axis, -1),
            3 => ops::unsqueeze(&x, axis),
            4 => ops::swapaxes(&x, 0, -1),
            5 => x.try_i(slice(None, None, 2)),
            _ => ops::diagonal(&x, 0, 0, 1),
        })
    }),
    ("a view", |r| {
        let x = r.pick(|t| t.rank() == 2)?;
        let (m, n) = (x.shape()[0], x.shape()[1]);
        one(match r.rng.below(3) {
            0 => ops::swapaxes(&x, 0, 1),
            1 => ops::reshape(&x, [n, m]),
            _ => ops::reshape(&x, [m * n]),
        })
    }),
    ("a broadcast view", |r| {
        let (small, large) = (r.pick(|_| true)?, r.pick(|_| true)?);
        one(ops::broadcast_to(&small, large.shape().clone()))
    }),
    ("joining", |r| {
        let x = r.pick(|t| t.rank() > 0)?;
        let (dtype, shape) = (x.dtype(), x.shape().clone());
        let y = r.pick(|t| t.dtype() == dtype && *t.shape() == shape)?;
        let axis = r.axis(&x)?;
        if r.rng.below(2) == 0 { one(ops::concatenate(&[&x, &y], axis)) } else { one(ops::stack(&[&x, &y, &x], axis)) }
    }),
    ("padding", |r| {
        let x = r.pick(|t| t.rank() == 2 && t.size() > 0)?;
        one(ops::pad(&x, [(1, 0), (0, 2)], PadMode::Constant(1.into())))
    }),
    // Operations that read an index.
    ("gathering", |r| {
        let (n, index) = (r.program_state.index.size(), r.index()?);
        let x = r.pick(|t| t.rank() > 0 && t.shape()[0] == n)?;
        one(match r.rng.below(3) {
            0 => ops::embedding(&x, &index, EmbeddingOptions::default()),
            1 => ops::index_select(&x, 0, &index),
            _ => x.try_i(&index),
        })
    }),
    ("gathering along an axis", |r| {
        let x = r.number()?;
        let axis = r.axis(&x)?;
        let order = ops::argsort(&x, axis, true).ok()?;
        one(ops::take_along_axis(&x, &order, axis))
    }),
    ("scattering", |r| {
        let (n, index) = (r.program_state.index.size(), r.index()?);
        let x = r.pick(|t| t.rank() > 0 && t.shape()[0] == n && t.dtype().is_float())?;
        one(ops::scatter_add_along(&x, &index, 0, [n + 1]))
    }),
    // New tensors.
    ("a new tensor", |r| {
        let x = r.pick(|t| t.rank() > 0)?;
        let last = *x.shape().last()?;
        let (k, dtype) = (r.rng.number(), r.rng.choose(&[DType::F32, DType::F64, DType::I64]));
        one(match r.rng.below(5) {
            0 => ops::full(x.shape().clone(), k, dtype),
            1 => Ok(Tensor::arange(0i64, last as i64, 1)),
            2 => ops::eye(last, last, dtype),
            3 => Ok(Tensor::new((0..last).map(|i| k * i as f64).collect::<Vec<_>>(), [last])),
            _ => Ok(Tensor::from(k as f32)),
        })
    }),
    ("drawing", |r| {
        let shape = r.pick(|_| true)?.shape().clone();
        let (dtype, own) = (r.rng.choose(&[DType::F32, DType::F64]), r.rng.below(3));
        let g = &r.program_state.generator;
        one(match own {
            0 => ops::rand_with(shape, dtype, g),
            1 => ops::randn_with(shape, dtype, g),
            _ => ops::randint(-3, 9, shape),
        })
    }),
    ("dropout", |r| r.unary(&[|x| ops::dropout(x, 0.3), |x| ops::bernoulli(&ops::sigmoid(x)?)])),
    ("unused random numbers", |r| {
        drop(ops::rand_with([5], DType::F32, &r.program_state.generator).ok()?);
        drop(Tensor::randn([2, 3], DType::F32));
        Some(vec![])
    }),
    // Writes in place.
    ("state replaced", |r| {
        let (state, x) = (r.state(), r.number()?);
        ops::copy_(&state, &x).ok().map(|()| vec![])
    }),
    ("state updated", |r| {
        let (state, x) = (r.state(), r.float()?);
        ops::update(formula!(|s, x| 0.5 * s + x.tanh()), &[&state], &[&x], &[]).ok().map(|()| vec![state])
    }),
    ("both states updated", |r| {
        let ([a, b], x, k) = (r.program_state.states.clone(), r.float()?, r.rng.number());
        let both = formula!(|a, b, x; k| (a * 0.75 + b, (b - k * a + x).sin()));
        ops::update(both, &[&a, &b], &[&x], &[k.into()]).ok().map(|()| vec![])
    }),
    ("part of the state written", |r| {
        let (state, x) = (r.state(), r.number()?);
        let done = match r.rng.below(4) {
            0 => state.try_set(0, &x),
            1 => state.try_set((.., -1), &x),
            2 => state.try_set(slice(None, None, 2), r.rng.number()),
            _ => state.try_set((.., r.index()?), &x),
        };
        done.ok().map(|()| vec![])
    }),
    ("state moved within itself", |r| {
        let state = r.state();
        let done = match r.rng.below(5) {
            0 => state.try_set(1.., state.try_i(..-1).ok()?),
            1 => state.try_set(..-1, state.try_i(1..).ok()?),
            2 => ops::copy_(&state, &ops::flip(&state, 0).ok()?),
            3 => ops::copy_(&state, &state.try_i((.., ..1)).ok()?),
            _ => {
                let other = &r.program_state.states[1];
                ops::copy_(&state, &ops::add(other, &ops::flip(other, 1).ok()?).ok()?)
            }
        };
        done.ok().map(|()| vec![])
    }),
    ("a value written", |r| {
        // The target may be a view of the state, a result or a constant, but not an input.
        let (x, y) = (r.number()?, r.number()?);
        if r.has_input_storage(&x) {
            return None;
        }
        let done = match r.rng.below(4) {
            0 => ops::copy_(&x, &y),
            1 => x.try_set(0, &y),
            2 => x.try_set(slice(None, None, -2), r.rng.number()),
            _ => ops::update(formula!(|x, y| x * 0.5 - y), &[&x], &[&y], &[]),
        };
        done.ok().map(|()| vec![])
    }),
    ("an index incremented", |r| {
        let index = &r.program_state.index;
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
        let w = &r.program_state.weight;
        let (n, dtype) = (w.shape()[0], w.dtype());
        let x = r.pick(|t| t.rank() == 2 && t.shape()[1] == n && t.dtype() == dtype && t.shape()[0] > 0)?;
        w.zero_grad();
        let classes = ops::rem(Tensor::arange(0i64, x.shape()[0] as i64, 1), 3).ok()?;
        let logits = ops::matmul(&ops::tanh(&x).ok()?, w).ok()?;
        let loss = ops::cross_entropy(&logits, &classes, CrossEntropyOptions::default()).ok()?;
        loss.backward();
        let gradient = w.grad()?;
        let _off = no_grad();
        ops::update(formula!(|w, g| w - 0.25 * g), &[w], &[&gradient], &[]).ok()?;
        w.zero_grad();
        Some(vec![loss, gradient])
    }),
    ("an accumulated gradient", |r| {
        let total = &r.program_state.total;
        let n = total.size();
        let x = r.pick(|t| t.dtype().is_float() && t.shape().last() == Some(&n))?;
        ops::mul(&x, total).ok()?.tanh().backward();
        Some(vec![])
    }),
];

const UNARY: [Unary; 12] = [
    |x| ops::neg(x),
    |x| ops::abs(x),
    |x| ops::tanh(x),
    |x| ops::sin(x),
    |x| ops::sigmoid(x),
    |x| ops::relu(x),
    |x| ops::square(x),
    |x| ops::exp(&ops::tanh(x)?),
    |x| ops::gelu(x),
    |x| ops::sqrt(&ops::abs(x)?),
    |x| ops::mul(x, x),
    |x| ops::clamp(x, -0.5, 1.5),
];

const BINARY: [Binary; 7] = [
    |a, b| ops::add(a, b),
    |a, b| ops::sub(a, b),
    |a, b| ops::mul(a, b),
    |a, b| ops::maximum(a, b),
    |a, b| ops::minimum(a, b),
    |a, b| ops::div(a, &ops::add(&ops::abs(b)?, 0.5)?),
    // An intermediate result, whose memory the final result may reuse.
    |a, b| ops::add(ops::mul(a, b)?, ops::sub(a, b)?),
];

impl ProgramRun<'_> {
    fn float(&mut self) -> Option<Tensor> {
        self.pick(|t| t.dtype().is_float())
    }

    fn number(&mut self) -> Option<Tensor> {
        self.pick(|t| t.dtype() != DType::Bool)
    }

    /// Returns two tensors whose shapes broadcast.
    fn pair(&mut self) -> Option<(Tensor, Tensor)> {
        let a = self.number()?;
        let (shape, max_elements) = (a.shape().clone(), self.max_elements);
        let fits = |t: &Tensor| shape.broadcast(t.shape()).is_some_and(|s: Shape| s.size() <= max_elements);
        let b = self.pick(|t| t.dtype() != DType::Bool && fits(t))?;
        Some(if self.rng.below(2) == 0 { (a, b) } else { (b, a) })
    }

    fn axis(&mut self, x: &Tensor) -> Option<isize> {
        (x.rank() > 0).then(|| self.rng.below(x.rank()) as isize)
    }

    /// Returns an index tensor for axes of length n, derived from the input or from the state.
    fn index(&mut self) -> Option<Tensor> {
        let index = if self.rng.below(2) == 0 { &self.program_state.index } else { &self.pool[3] };
        ops::rem(index, index.size().max(1) as i64).ok()
    }

    fn state(&mut self) -> Tensor {
        self.program_state.states[self.rng.below(2)].clone()
    }

    fn unary(&mut self, functions: &[Unary]) -> Option<Vec<Tensor>> {
        let (x, f) = (self.number()?, self.rng.choose(functions));
        one(f(&x))
    }

    fn binary(&mut self, operations: &[Binary]) -> Option<Vec<Tensor>> {
        let ((a, b), f) = (self.pair()?, self.rng.choose(operations));
        one(f(&a, &b))
    }
}

fn one(result: Result<Tensor>) -> Option<Vec<Tensor>> {
    result.ok().map(|t| vec![t])
}

fn two(result: Result<(Tensor, Tensor)>) -> Option<Vec<Tensor>> {
    result.ok().map(|(a, b)| vec![a, b])
}
