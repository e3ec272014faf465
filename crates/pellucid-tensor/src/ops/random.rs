//! Random tensors, drawn on the device from a counter.

use crate::array::Array;
use crate::device::Device;
use crate::engine;
use crate::ops::precision::single;
use crate::ops::{self, check};
use crate::random::Generator;
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::formula::Formula;
use pellucid_ir::kernel::{self, Distribution, Kernel};
use pellucid_ir::{DType, Error, Result, Shape, formula};
use std::sync::OnceLock;

fn draw(
    op: &'static str,
    shape: Shape,
    dtype: DType,
    distribution: Distribution,
    generator: &Generator,
) -> Result<Tensor> {
    if !dtype.is_float() {
        return Err(Error::dtypes(op, [dtype], "draws floats; randint() draws integers"));
    }
    let out = Array::new(Device::cpu(), dtype, shape)?;
    let state = generator.state();
    engine::submit(&Kernel::Random(kernel::Random { distribution }), &[], &[state.array(), &out])?;
    Ok(Tensor::from(out))
}

/// Uniform on [0, 1), from the thread's generator (see [`manual_seed`](crate::manual_seed)).
///
/// # Errors
/// [`Error::DTypeMismatch`] if `dtype` is not a float.
#[operation]
pub fn rand(shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    rand_with(shape, dtype, &Generator::default())
}

/// Uniform on [0, 1), from this generator.
///
/// # Errors
/// [`Error::DTypeMismatch`] if `dtype` is not a float.
#[operation]
pub fn rand_with(shape: impl Into<Shape>, dtype: DType, generator: &Generator) -> Result<Tensor> {
    draw("rand", shape.into(), dtype, Distribution::Uniform, generator)
}

/// Standard normal, from the thread's generator (see [`manual_seed`](crate::manual_seed)).
///
/// # Errors
/// [`Error::DTypeMismatch`] if `dtype` is not a float.
#[operation]
pub fn randn(shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    randn_with(shape, dtype, &Generator::default())
}

/// Standard normal, from this generator.
///
/// # Errors
/// [`Error::DTypeMismatch`] if `dtype` is not a float.
#[operation]
pub fn randn_with(shape: impl Into<Shape>, dtype: DType, generator: &Generator) -> Result<Tensor> {
    draw("randn", shape.into(), dtype, Distribution::Normal, generator)
}

/// Integers (`i64`) uniform on `low..high`, from the thread's generator.
///
/// # Errors
/// [`Error::InvalidArgument`] for an empty range, or one of more than 2⁵³ values.
#[operation]
pub fn randint(low: i64, high: i64, shape: impl Into<Shape>) -> Result<Tensor> {
    static SCALE: OnceLock<Formula> = OnceLock::new();
    let count = i128::from(high) - i128::from(low);
    if !(1..=1 << 53).contains(&count) {
        return Err(Error::invalid("randint", format!("{low}..{high} must hold between 1 and 2^53 integers")));
    }
    let scale = SCALE.get_or_init(|| formula! { randint(u; count) = (u * count).floor(); }.eternal());
    let u = rand(shape, DType::F64)?;
    let offset = super::formula::map(scale, &[&u], &[(count as f64).into()])?;
    ops::add(&ops::to_dtype(&offset, DType::I64)?, low)
}

/// Normal of these means and standard deviations, which broadcast and have gradients: mean + std·z.
///
/// # Errors
/// [`Error::ShapeMismatch`]; [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] for a deviation below 0, or NaN,
/// where values can be read; elsewhere such an element, and its gradients, are NaN.
#[tensor_method]
pub fn normal(mean: &Tensor, std: &Tensor) -> Result<Tensor> {
    let help = "mean and deviation must broadcast";
    let shape = mean.shape().broadcast(std.shape());
    let shape = shape.ok_or_else(|| Error::shapes("normal", [mean.shape(), std.shape()], help))?;
    check::in_range_without_nan("normal", "standard deviations", std, 0.0..=f64::INFINITY)?;
    let std = match check::is_readable(std) {
        true => std.clone(),
        false => check::nan_unless(&ops::ge(std, 0)?, std)?,
    };
    ops::add(mean, &ops::mul(&std, &randn(&shape, mean.dtype().promote(std.dtype()))?)?)
}

/// 1 with probability p, else 0, for every probability of a tensor; without gradient.
///
/// # Errors
/// [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] for a probability outside [0, 1], or NaN, where values can
/// be read; elsewhere such an element is NaN.
#[tensor_method]
pub fn bernoulli(p: &Tensor) -> Result<Tensor> {
    check::in_range_without_nan("bernoulli", "probabilities", p, 0.0..=1.0)?;
    // Half precision has too few values between 0 and 1.
    let dtype = single(&[p]).unwrap_or(p.dtype());
    let u = draw("bernoulli", p.shape().clone(), dtype, Distribution::Uniform, &Generator::default())?;
    let drawn = ops::to_dtype(&ops::lt(&u, p.detach())?, p.dtype())?;
    if check::is_readable(p) {
        return Ok(drawn);
    }
    let is_probability = ops::logical_and(&ops::ge(p.detach(), 0)?, &ops::le(p.detach(), 1)?)?;
    check::nan_unless(&is_probability, &drawn)
}

/// The integers 0..n (`i64`) in random order, every one as likely as another.
///
/// # Errors
/// [`Error::OutOfMemory`].
#[operation]
pub fn randperm(n: usize) -> Result<Tensor> {
    // 53 random bits a key: two of ten million are equal once in two hundred shuffles, and then keep their order.
    ops::argsort(&rand([n], DType::F64)?, 0, false)
}

/// `samples` classes (`i64`) drawn with probabilities in proportion to the weights of the last axis, `[.., C]` or `[C]`: `[.., samples]`. Without
/// replacement no class comes twice: the classes with the largest ln w + G, G drawn from Gumbel's distribution (Efraimidis &
/// Spirakis 2006), a class of weight 0 last.
///
/// # Errors
/// [`Error::ShapeMismatch`] for no axis or no class; [`Error::InvalidArgument`] for more samples than classes without replacement,
/// and, where values can be read, for a weight that is negative, infinite or NaN, or weights that add up to 0 or to infinity;
/// [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn multinomial(weights: &Tensor, samples: usize, replacement: bool) -> Result<Tensor> {
    let op = "multinomial";
    let Some(&classes) = weights.shape().last().filter(|&&classes| classes > 0) else {
        return Err(Error::shapes(op, [weights.shape()], "weights are [.., C], of at least one class"));
    };
    if !weights.dtype().is_float() {
        return Err(Error::dtypes(op, [weights.dtype()], "weights are floats; use to_dtype()"));
    }
    check::in_range_without_nan(op, "weights", weights, 0.0..=f64::MAX)?;
    let is_readable = check::is_readable(weights);
    // Half precision has too few values for running sums, and for uniform numbers.
    let weights = ops::to_dtype(&weights.detach(), single(&[weights]).unwrap_or(weights.dtype()))?;
    let totals = ops::sum(&weights, ops::over(-1).keepdims())?;
    if is_readable && weights.size() > 0 {
        let (least, most) = ops::aminmax(&totals, ..)?;
        if least.try_item::<f64>()? <= 0.0 || most.try_item::<f64>()?.is_infinite() {
            return Err(Error::invalid(op, "the weights of each row must add up to a finite number above 0"));
        }
    }
    let drawn = draw_classes(op, &weights, samples, classes, replacement)?;
    if is_readable {
        return Ok(drawn);
    }
    let has_weights = ops::logical_and(&ops::gt(&totals, 0)?, &ops::isfinite(&totals)?)?;
    let are_weights = ops::all(&ops::ge(&weights, 0)?, ops::over(-1).keepdims())?;
    ops::where_(&ops::logical_and(&has_weights, &are_weights)?, &drawn, classes as i64)
}

/// [`multinomial`] of weights that are valid.
fn draw_classes(
    op: &'static str,
    weights: &Tensor,
    samples: usize,
    classes: usize,
    replacement: bool,
) -> Result<Tensor> {
    if replacement {
        // The class in whose share of the running sum a uniform number falls.
        let sums = ops::cumsum(weights, -1)?;
        let total = ops::narrow(&sums, -1, classes - 1, 1)?;
        let u = draw(
            op,
            sums.shape().with_axis(sums.rank() - 1, samples),
            weights.dtype(),
            Distribution::Uniform,
            &Generator::default(),
        )?;
        return ops::minimum(&ops::searchsorted(&sums, &ops::mul(&u, &total)?, true)?, classes as i64 - 1);
    }
    if samples > classes {
        return Err(Error::invalid(op, format!("draws {samples} of {classes} classes without replacement")));
    }
    let u = draw(op, weights.shape().clone(), weights.dtype(), Distribution::Uniform, &Generator::default())?;
    // −ln u / w grows as −(ln w + G) does.
    let keys = ops::div(&ops::neg(&ops::log1p(&ops::neg(&u)?)?)?, weights)?;
    Ok(ops::topk(&keys, samples, -1, false)?.1)
}
