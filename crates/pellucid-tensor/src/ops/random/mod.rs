//! Random tensors, drawn on the device by a counter-based generator.

mod generator;
mod like;

pub(crate) use generator::StateRecord;
pub use generator::{Generator, GeneratorScope, ThreadStream, ThreadStreamGuard, manual_seed};
pub use like::{rand_like, randint_like, randn_like};

use crate::array::Array;
use crate::device::Device;
use crate::engine;
use crate::ops::call::{axes, check};
use crate::ops::elementwise::{arithmetic, compare, transcendental};
use crate::ops::formula::map;
use crate::ops::index::{search, sort};
use crate::ops::primitive::gather::select_rows;
use crate::ops::primitive::precision::widened_dtype;
use crate::ops::primitive::{copy, create, fill, view};
use crate::ops::reduce::{reductions, scan, value_range};
use crate::panic;
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::kernel::{self, Distribution, Kernel};
use pellucid_ir::{DType, Error, Result, Shape, formula};

fn draw(
    op: &'static str,
    shape: Shape,
    dtype: DType,
    distribution: Distribution,
    (generator, device): (&Generator, Device),
) -> Result<Array> {
    if !dtype.is_float() {
        return Err(Error::dtypes(op, [dtype], "`dtype` must be a float dtype; randint() draws integers"));
    }
    draw_numbers(shape, dtype, distribution, (generator, device))
}

/// Draws numbers of a dtype that fits the distribution.
fn draw_numbers(
    shape: Shape,
    dtype: DType,
    distribution: Distribution,
    (generator, device): (&Generator, Device),
) -> Result<Array> {
    let out = Array::new(device, dtype, shape)?;
    let state = generator.state_on(device)?;
    engine::submit(&Kernel::Random(kernel::Random { distribution }), &[], &[state.array(), &out])?;
    Ok(out)
}

/// Draws uniform values on [0, 1) on a device, from the thread's generator.
pub(crate) fn uniform_on(device: Device, shape: Shape, dtype: DType) -> Result<Tensor> {
    draw("rand", shape, dtype, Distribution::Uniform, (&Generator::default(), device)).map(Tensor::from)
}

/// Draws uniform values on [0, 1) from the thread's generator (see [`manual_seed`](crate::manual_seed)).
///
/// # Errors
/// [`Error::DTypeMismatch`] if `dtype` is not a float.
#[doc(alias("random", "uniform"))]
#[operation]
pub fn rand(shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    rand_with(shape, dtype, &Generator::default())
}

/// Draws uniform values on [0, 1) from the given generator.
///
/// # Errors
/// [`Error::DTypeMismatch`] if `dtype` is not a float.
#[operation]
pub fn rand_with(shape: impl Into<Shape>, dtype: DType, generator: &Generator) -> Result<Tensor> {
    draw("rand", shape.into(), dtype, Distribution::Uniform, (generator, Device::cpu())).map(Tensor::from)
}

/// Draws standard normal values from the thread's generator (see [`manual_seed`](crate::manual_seed)).
///
/// # Errors
/// [`Error::DTypeMismatch`] if `dtype` is not a float.
#[doc(alias = "standard_normal")]
#[operation]
pub fn randn(shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    randn_with(shape, dtype, &Generator::default())
}

/// Draws standard normal values from the given generator.
///
/// # Errors
/// [`Error::DTypeMismatch`] if `dtype` is not a float.
#[operation]
pub fn randn_with(shape: impl Into<Shape>, dtype: DType, generator: &Generator) -> Result<Tensor> {
    draw("randn", shape.into(), dtype, Distribution::Normal, (generator, Device::cpu())).map(Tensor::from)
}

/// Draws uniform integers (`i64`) on `low..high` from the thread's generator.
///
/// # Errors
/// [`Error::InvalidArgument`] for a range that is empty or has more than 2⁵³ values.
#[doc(alias = "integers")]
#[operation]
pub fn randint(low: i64, high: i64, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    uniform_integers("randint", low, high, |dtype| rand(shape, dtype))
}

/// Computes uniform integers (`i64`) on `low..high` from uniform values on [0, 1), which `uniform` draws in the given
/// dtype.
fn uniform_integers(
    op: &'static str,
    low: i64,
    high: i64,
    uniform: impl FnOnce(DType) -> Result<Tensor>,
) -> Result<Tensor> {
    let count = i128::from(high) - i128::from(low);
    if !(1..=1 << 53).contains(&count) {
        let reason = format!("{low}..{high} must contain between 1 and 2^53 integers; low must be below high");
        return Err(Error::invalid(op, reason));
    }
    let scale = formula! { static randint(u; count) = (u * count).floor(); };
    let u = uniform(DType::F64)?;
    let offset = map(scale, &[&u], &[(count as f64).into()])?;
    arithmetic::add(&copy::to_dtype(&offset, DType::I64)?, low)
}

/// Draws normal values mean + std·z. The means and standard deviations broadcast, and the result is differentiable with
/// respect to both.
///
/// # Errors
/// [`Error::ShapeMismatch`]; [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] for a deviation that is
/// negative or NaN, in eager mode on the CPU. In lazy and captured steps, and on a GPU, the element drawn with an
/// invalid deviation, and its gradients, are NaN.
#[tensor_method]
pub fn normal(mean: &Tensor, std: &Tensor) -> Result<Tensor> {
    let shape = check::common_shape("normal", &[mean, std], "mean and standard deviation must broadcast")?;
    let dtype = mean.dtype().promote(std.dtype());
    if !dtype.is_float() {
        return Err(Error::dtypes(
            "normal",
            [mean.dtype(), std.dtype()],
            "mean and standard deviation must be floats; randint() draws integers",
        ));
    }
    value_range::in_range_without_nan("normal", "standard deviations", std, 0.0..=f64::INFINITY)?;
    let deviations = if std.dtype().is_float() { std.clone() } else { copy::to_dtype(std, dtype)? };
    let std = match check::is_readable(std) {
        true => deviations,
        false => value_range::nan_unless(&compare::ge(std, 0)?, &deviations)?,
    };
    let device = if mean.is_free() { std.device() } else { mean.device() };
    let standard = draw("normal", shape, dtype, Distribution::Normal, (&Generator::default(), device))?;
    arithmetic::add(mean, &arithmetic::mul(&std, Tensor::from(standard))?)
}

/// Draws 1 with probability p, else 0, for every element of p. The result has no gradient.
///
/// # Errors
/// [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] for a probability outside [0, 1] or NaN, in eager
/// mode on the CPU. In lazy and captured steps, and on a GPU, the element drawn with an invalid probability is NaN.
#[tensor_method]
pub fn bernoulli(p: &Tensor) -> Result<Tensor> {
    check::floats("bernoulli", &[p])?;
    value_range::in_range_without_nan("bernoulli", "probabilities", p, 0.0..=1.0)?;
    // Half precision has too few values between 0 and 1.
    let dtype = widened_dtype(&[p]).unwrap_or(p.dtype());
    let u = uniform_on(p.device(), p.shape().clone(), dtype)?;
    let drawn = copy::to_dtype(&compare::lt(&u, p.detach())?, p.dtype())?;
    if check::is_readable(p) {
        return Ok(drawn);
    }
    let is_probability = compare::logical_and(&compare::ge(p.detach(), 0)?, &compare::le(p.detach(), 1)?)?;
    value_range::nan_unless(&is_probability, &drawn)
}

/// Returns a random permutation of 0..n (`i64`). All permutations are equally likely, except for rounding.
///
/// The operation stores 8 bytes of random bits for each number. The CPU computes it.
///
/// # Errors
/// [`Error::OutOfMemory`].
#[doc(alias("permutation", "shuffle"))]
#[operation]
pub fn randperm(n: usize) -> Result<Tensor> {
    let target = (&Generator::default(), Device::cpu());
    draw_numbers([n].into(), DType::I64, Distribution::Permutation, target).map(Tensor::from)
}

/// Draws `samples` classes (`i64`), `[.., samples]`, with probabilities proportional to the weights `[.., C]`.
///
/// Without replacement, the samples are the classes with the largest ln w + G, where G has the Gumbel distribution
/// (Efraimidis & Spirakis 2006). No class repeats.
///
/// # Errors
/// [`Error::ShapeMismatch`] for a 0-d tensor or zero classes; [`Error::DTypeMismatch`] for integers;
/// [`Error::InvalidArgument`] for more samples than classes without replacement, for a weight that is negative,
/// infinite or NaN, for weights whose sum is 0 or infinite, and for fewer positive weights than samples without
/// replacement. In lazy and captured steps, and on devices that defer their kernels, the call that runs the kernel
/// returns an [`Error::IndexOutOfBounds`] for invalid weights.
#[doc(alias = "choice")]
#[tensor_method]
pub fn multinomial(weights: &Tensor, samples: usize, replacement: bool) -> Result<Tensor> {
    let op = "multinomial";
    let Some(&classes) = weights.shape().last().filter(|&&classes| classes > 0) else {
        return Err(Error::shapes(op, [weights.shape()], "weights must be [.., C] with at least one class"));
    };
    if !weights.dtype().is_float() {
        return Err(Error::dtypes(op, [weights.dtype()], "weights must be floats; use to_dtype()"));
    }
    if !replacement && samples > classes {
        return Err(Error::invalid(
            op,
            format!(
                "{samples} samples cannot be drawn from {classes} classes without replacement; set replacement = \
                 true, or draw at most {classes}"
            ),
        ));
    }
    value_range::in_range_without_nan(op, "weights", weights, 0.0..=f64::MAX)?;
    let is_readable = check::is_readable(weights);
    // Half precision has too few values for cumulative sums and for uniform values; `f32` has too few for many classes.
    let dtype = match replacement && classes > MAX_SINGLE_CLASSES {
        true => DType::F64,
        false => widened_dtype(&[weights]).unwrap_or(weights.dtype()),
    };
    let weights = copy::to_dtype(&weights.detach(), dtype)?;
    let totals = reductions::sum(&weights, axes::over(-1).keepdims())?;
    let mut smallest_total = 0.0;
    if is_readable && weights.size() > 0 {
        let [min_total, max_total] = value_range::extrema(&totals)?;
        if min_total <= 0.0 || max_total.is_infinite() {
            return Err(Error::invalid(op, "the weights of each row must have a finite sum above 0"));
        }
        smallest_total = min_total;
    }
    let positive = match replacement {
        true => None,
        false => Some(reductions::count_nonzero(&weights, axes::over(-1).keepdims())?),
    };
    if let Some(positive) = positive.as_ref().filter(|_| is_readable && weights.size() > 0) {
        let min_total = reductions::min(positive, ..)?.try_item::<i64>()?;
        if min_total < samples as i64 {
            let reason = format!(
                "{samples} samples cannot be drawn without replacement from {min_total} positive weights; \
                 draw with replacement, or draw fewer samples"
            );
            return Err(Error::invalid(op, reason));
        }
    }
    let drawn = match smallest_total < min_exact_total(dtype) {
        true => draw_classes(&without_underflow(&weights, &totals)?, samples, classes, replacement)?,
        false => draw_classes(&weights, samples, classes, replacement)?,
    };
    if is_readable {
        return Ok(drawn);
    }
    let has_weights = compare::logical_and(&compare::gt(&totals, 0)?, &compare::isfinite(&totals)?)?;
    let are_weights = reductions::all(&compare::ge(&weights, 0)?, axes::over(-1).keepdims())?;
    let mut is_valid = compare::logical_and(&has_weights, &are_weights)?;
    if let Some(positive) = positive {
        is_valid = compare::logical_and(&is_valid, &compare::ge(&positive, samples as i64)?)?;
    }
    // The kernel that selects the classes rejects an invalid class index.
    select_rows(op, &create::indices(classes)?, &arithmetic::where_(&is_valid, &drawn, classes as i64)?)
}

/// The largest number of classes that are drawn in `f32`. A uniform `f32` has 2²⁴ possible values, so the probability
/// of one of 4,096 equally likely classes has a relative error of at most 2⁻¹².
const MAX_SINGLE_CLASSES: usize = 1 << 12;

/// Returns the smallest total whose product with a uniform value is neither subnormal nor rounded to the total.
fn min_exact_total(dtype: DType) -> f64 {
    let [smallest, epsilon] = [dtype.min_positive(), dtype.epsilon()].map(Option::unwrap_or_default);
    smallest / epsilon
}

/// Scales rows of weights whose total is less than [`min_exact_total`]. The scale is a power of two, so no weight is
/// rounded.
fn without_underflow(weights: &Tensor, totals: &Tensor) -> Result<Tensor> {
    let dtype = weights.dtype();
    let scale = dtype.min_positive().unwrap_or_default().recip();
    let scale = fill::full_on_device_of(weights, (), scale, dtype)?;
    let scale = arithmetic::where_(&compare::lt(totals, min_exact_total(dtype))?, &scale, 1.0)?;
    arithmetic::mul(weights, &scale)
}

/// Draws the classes of [`multinomial`] from valid weights.
fn draw_classes(weights: &Tensor, samples: usize, classes: usize, replacement: bool) -> Result<Tensor> {
    if replacement {
        // Inverse transform sampling: selects the class whose interval of the cumulative sum contains a uniform value.
        let sums = scan::cumsum(weights, -1)?;
        let total = view::narrow(&sums, -1, classes - 1, 1)?;
        let shape = sums.shape().with_axis(sums.rank() - 1, samples);
        let u = uniform_on(weights.device(), shape, weights.dtype())?;
        return arithmetic::minimum(
            &search::searchsorted(&sums, &arithmetic::mul(&u, &total)?, true)?,
            classes as i64 - 1,
        );
    }
    let u = uniform_on(weights.device(), weights.shape().clone(), weights.dtype())?;
    // Ascending −ln u / w has the order of descending ln w + G.
    let keys = arithmetic::div(&arithmetic::neg(&transcendental::log1p(&arithmetic::neg(&u)?)?)?, weights)?;
    // A key that overflows must remain less than ∞, the key of a class without weight.
    let finite = arithmetic::minimum(&keys, weights.dtype().range().1)?;
    let keys = arithmetic::where_(&compare::gt(weights, 0)?, &finite, f64::INFINITY)?;
    Ok(sort::topk(&keys, samples, -1, false)?.1)
}

impl Tensor {
    /// Draws from the uniform distribution on [0, 1), with the thread's generator.
    ///
    /// # Panics
    /// Panics if [`rand`] returns an error.
    #[doc(alias = "random")]
    #[track_caller]
    pub fn rand(shape: impl Into<Shape>, dtype: DType) -> Tensor {
        panic::unwrap(rand(shape, dtype))
    }

    /// Draws from the standard normal distribution, with the thread's generator.
    ///
    /// # Panics
    /// Panics if [`randn`] returns an error.
    #[doc(alias = "standard_normal")]
    #[track_caller]
    pub fn randn(shape: impl Into<Shape>, dtype: DType) -> Tensor {
        panic::unwrap(randn(shape, dtype))
    }

    /// Draws integers (`i64`) uniformly from `low..high`, with the thread's generator.
    ///
    /// # Panics
    /// Panics if [`randint`] returns an error.
    #[doc(alias = "integers")]
    #[track_caller]
    pub fn randint(low: i64, high: i64, shape: impl Into<Shape>) -> Tensor {
        panic::unwrap(randint(low, high, shape))
    }
}
