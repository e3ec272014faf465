//! New tensors that are filled on the device.

use crate::array::{Array, checked_size, host_values};
use crate::device::Device;
use crate::engine;
use crate::ops;
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::formula::Formula;
use pellucid_ir::kernel::{Kernel, Map, Params};
use pellucid_ir::{DType, Element, Error, Result, Scalar, Shape};
use std::sync::OnceLock;

/// An array with every element equal to `value`.
pub(crate) fn filled(device: Device, dtype: DType, shape: Shape, value: Scalar) -> Result<Array> {
    static FILL: OnceLock<Formula> = OnceLock::new();
    static FILL_MASK: OnceLock<Formula> = OnceLock::new();
    let eager = engine::mode() == engine::ExecutionMode::Eager;
    // A single number needs no kernel: every pass begins with a one.
    if eager && shape.checked_size() == Some(1) {
        match dtype {
            DType::F32 => return Array::from_slice(device, &[f32::from_scalar(value)], shape),
            DType::F64 => return Array::from_slice(device, &[f64::from_scalar(value)], shape),
            _ => {}
        }
    }
    // A truth value is not a number: it is the mask value ≠ 0.
    let formula = match dtype {
        DType::Bool => FILL_MASK.get_or_init(|| Formula::new("fill", &[], 1, |_, p| vec![p[0].ne(0)]).eternal()),
        _ => FILL.get_or_init(|| Formula::new("fill", &[], 1, |_, p| vec![p[0]]).eternal()),
    };
    let number = if dtype == DType::Bool { DType::F32 } else { dtype };
    let (program, params) = (formula.uniform_program(number)?, Params::from([value]));
    if eager {
        let storage = engine::map_dense(device, program, &params, checked_size(&shape)?, &[], None);
        let storage = storage.map_err(|error| error.with_shape(&shape))?;
        return Ok(Array::dense(storage, 0, dtype, shape, device));
    }
    let out = Array::new(device, dtype, shape)?;
    engine::submit(&Kernel::Map(Map { program: program.clone(), params }), &[], &[&out])?;
    Ok(out)
}

/// A 0-d tensor of a number that `op` writes into a tensor of `dtype`.
///
/// # Errors
/// [`Error::InvalidArgument`] for a number that an integer dtype cannot represent.
pub(crate) fn written_scalar(op: &'static str, value: Scalar, dtype: DType) -> Result<Tensor> {
    if dtype.is_int() && !dtype.represents(value) {
        let reason = format!(
            "{value} is not a value of the tensor's dtype {dtype}; round it, or convert the tensor with to_dtype()"
        );
        return Err(Error::invalid(op, reason));
    }
    full((), value, dtype)
}

/// A tensor of `shape` with every element equal to `value`, rounded once to `dtype`: to an integer dtype towards zero.
///
/// # Errors
/// [`Error::InvalidArgument`] for a value outside the range of an integer dtype, or NaN; [`Error::OutOfMemory`].
#[operation]
pub fn full(shape: impl Into<Shape>, value: impl Into<Scalar>, dtype: DType) -> Result<Tensor> {
    let value = value.into();
    in_range(value, dtype)?;
    filled(Device::cpu(), dtype, shape.into(), value).map(Tensor::from)
}

/// Refuses NaN and numbers outside the range of an integer dtype. A fraction is truncated towards zero first.
fn in_range(value: Scalar, dtype: DType) -> Result<()> {
    let whole = match value {
        Scalar::Float(x) => Scalar::Float(x.trunc()),
        other => other,
    };
    if dtype.represents(whole) {
        return Ok(());
    }
    let reason = format!("{value} is outside the range of {dtype}; use a wider dtype");
    Err(Error::invalid("full", reason))
}

/// A tensor of zeros.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[operation]
pub fn zeros(shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    full(shape, 0, dtype)
}

/// A tensor of ones.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[operation]
pub fn ones(shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    full(shape, 1, dtype)
}

/// start, start + step, .. below (for a negative step above) `end`: ⌈(end − start)/step⌉ numbers, each computed as start + i·step.
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the step is 0 or a bound is not finite; for an integer dtype if
/// one of the three is not an integer, or a number of the result is not a value of the dtype.
#[operation]
pub fn arange(
    start: impl Into<Scalar>,
    end: impl Into<Scalar>,
    step: impl Into<Scalar>,
    dtype: DType,
) -> Result<Tensor> {
    Tensor::try_arange(start.into(), end.into(), step.into(), dtype)
}

/// `count` numbers from `start` to `end`, both included, evenly spaced: element i is
/// start + i·(end − start)/(count − 1), computed from the nearer end, so that both ends are exact.
///
/// # Errors
/// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) if `dtype` is not a float.
#[operation]
pub fn linspace(start: f64, end: f64, count: usize, dtype: DType) -> Result<Tensor> {
    Tensor::try_linspace("linspace", start, end, count, dtype, |x| x)
}

/// The powers of `base` with the exponents that [`linspace`] gives.
///
/// # Errors
/// Those of [`linspace`].
#[operation]
pub fn logspace(start: f64, end: f64, count: usize, base: f64, dtype: DType) -> Result<Tensor> {
    Tensor::try_linspace("logspace", start, end, count, dtype, |x| base.powf(x))
}

/// `count` numbers from `start` to `end`, both included, each by the same factor from the one before: start·(end/start)^(i/(count − 1)).
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless both ends are finite and of one sign, not 0; those of [`linspace`].
#[operation]
pub fn geomspace(start: f64, end: f64, count: usize, dtype: DType) -> Result<Tensor> {
    if !(start.is_finite() && end.is_finite() && start != 0.0 && end != 0.0 && start.signum() == end.signum()) {
        let reason = format!("both ends are finite and of one sign, not 0; got {start} and {end}");
        return Err(Error::invalid("geomspace", reason));
    }
    let (low, high) = (start.abs().ln(), end.abs().ln());
    let power = |x: f64| match x {
        x if x == low => start,
        x if x == high => end,
        x => x.exp().copysign(start),
    };
    Tensor::try_linspace("geomspace", low, high, count, dtype, power)
}

/// Ones on the diagonal of an `n × m` matrix of zeros.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[operation]
pub fn eye(n: usize, m: usize, dtype: DType) -> Result<Tensor> {
    checked_size(&[n, m].into())?;
    let rows = ops::unsqueeze(&indices(n)?, 1)?;
    ops::to_dtype(&ops::eq(&indices(m)?, &rows)?, dtype)
}

/// The integers 0, 1, .., count − 1 (`i64`).
pub(crate) fn indices(count: usize) -> Result<Tensor> {
    from_host(&host_values(count, 0i64..)?, [count])
}

/// A tensor of these values.
pub(crate) fn from_host<T: Element>(values: &[T], shape: impl Into<Shape>) -> Result<Tensor> {
    Array::from_slice(Device::cpu(), values, shape.into()).map(Tensor::from)
}

/// Zeros of x's shape, dtype and device.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[tensor_method]
pub fn zeros_like(x: &Tensor) -> Result<Tensor> {
    full_like(x, 0)
}

/// Ones of x's shape, dtype and device.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[tensor_method]
pub fn ones_like(x: &Tensor) -> Result<Tensor> {
    full_like(x, 1)
}

/// One value in x's shape, dtype and device, as by [`full`].
///
/// # Errors
/// Those of [`full`].
#[tensor_method]
pub fn full_like(x: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
    let value = value.into();
    in_range(value, x.dtype())?;
    filled(x.device(), x.dtype(), x.shape().clone(), value).map(Tensor::from)
}
