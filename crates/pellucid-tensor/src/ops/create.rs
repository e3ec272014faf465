//! Operations that create tensors filled on the device.

use crate::array::{Array, checked_size, host_values};
use crate::device::Device;
use crate::engine;
use crate::ops;
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::kernel::{Kernel, Map, Params};
use pellucid_ir::{DType, Element, Error, Result, Scalar, Shape, formula};

/// Returns an array with every element equal to `value`.
pub(crate) fn filled(device: Device, dtype: DType, shape: Shape, value: Scalar) -> Result<Array> {
    let eager = engine::mode() == engine::ExecutionMode::Eager;
    // A scalar needs no kernel; every backward pass begins with a one.
    if eager && shape.checked_size() == Some(1) {
        match dtype {
            DType::F32 => return Array::from_slice(device, &[f32::from_scalar(value)], shape),
            DType::F64 => return Array::from_slice(device, &[f64::from_scalar(value)], shape),
            _ => {}
        }
    }
    // A boolean is the mask value ≠ 0.
    let formula = match dtype {
        DType::Bool => formula! { static fill(; value) = value.ne(0); },
        _ => formula! { static fill(; value) = value; },
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

/// Returns a 0-d tensor of `value`, which `op` writes into a tensor of `dtype`.
///
/// # Errors
/// [`Error::InvalidArgument`] for a value that an integer dtype cannot represent.
pub(crate) fn written_scalar(op: &'static str, value: Scalar, dtype: DType) -> Result<Tensor> {
    if dtype.is_int() && !dtype.represents(value) {
        let reason = format!(
            "{value} cannot be stored in the tensor's dtype {dtype}; round it, or convert the tensor with to_dtype()"
        );
        return Err(Error::invalid(op, reason));
    }
    full((), value, dtype)
}

/// Returns a tensor of `shape` filled with `value`, rounded once to `dtype` (to an integer dtype, towards zero).
///
/// # Errors
/// [`Error::InvalidArgument`] for a value outside the range of an integer dtype, or NaN; [`Error::OutOfMemory`].
#[operation]
pub fn full(shape: impl Into<Shape>, value: impl Into<Scalar>, dtype: DType) -> Result<Tensor> {
    let value = value.into();
    in_range(value, dtype)?;
    filled(Device::cpu(), dtype, shape.into(), value).map(Tensor::from)
}

/// Returns an error for NaN or a value outside the range of an integer dtype. A fraction is truncated towards zero
/// first.
fn in_range(value: Scalar, dtype: DType) -> Result<()> {
    if dtype.is_float() {
        return Ok(());
    }
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

/// Returns a tensor of zeros.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[operation]
pub fn zeros(shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    full(shape, 0, dtype)
}

/// Returns a tensor of ones.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[operation]
pub fn ones(shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    full(shape, 1, dtype)
}

/// Returns start, start + step, .. up to but excluding `end`: ⌈(end − start)/step⌉ values, computed as start + i·step.
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the step is 0 or a bound is not finite; for an integer
/// dtype, if an argument is not an integer, or the dtype cannot represent an element of the result.
#[operation]
pub fn arange(
    start: impl Into<Scalar>,
    end: impl Into<Scalar>,
    step: impl Into<Scalar>,
    dtype: DType,
) -> Result<Tensor> {
    Tensor::try_arange(start.into(), end.into(), step.into(), dtype)
}

/// Returns `count` evenly spaced values from `start` to `end`, both included. Element i is
/// start + i·(end − start)/(count − 1), computed from the nearer end, so that both ends are exact.
///
/// # Errors
/// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) if `dtype` is not a float.
#[operation]
pub fn linspace(start: f64, end: f64, count: usize, dtype: DType) -> Result<Tensor> {
    Tensor::try_linspace("linspace", start, end, count, dtype, |x| x)
}

/// Returns `count` values from base^start to base^end: the powers of `base` with the exponents of [`linspace`].
///
/// # Errors
/// Those of [`linspace`].
#[operation]
pub fn logspace(start: f64, end: f64, count: usize, base: f64, dtype: DType) -> Result<Tensor> {
    Tensor::try_linspace("logspace", start, end, count, dtype, |x| base.powf(x))
}

/// Returns `count` values from `start` to `end`, both included, with a constant ratio: start·(end/start)^(i/(count −
/// 1)).
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless both ends are finite, nonzero and of one sign;
/// those of [`linspace`].
#[operation]
pub fn geomspace(start: f64, end: f64, count: usize, dtype: DType) -> Result<Tensor> {
    if !(start.is_finite() && end.is_finite() && start != 0.0 && end != 0.0 && start.signum() == end.signum()) {
        let reason = format!("both ends must be finite, nonzero and of one sign; got {start} and {end}");
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

/// Returns an `n × m` matrix with ones on the diagonal and zeros elsewhere.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[operation]
pub fn eye(n: usize, m: usize, dtype: DType) -> Result<Tensor> {
    checked_size(&[n, m].into())?;
    let rows = ops::unsqueeze(&indices(n)?, 1)?;
    ops::to_dtype(&ops::eq(&indices(m)?, &rows)?, dtype)
}

/// Returns the integers 0, 1, .., count − 1 (`i64`).
pub(crate) fn indices(count: usize) -> Result<Tensor> {
    from_host(&host_values(count, 0i64..)?, [count])
}

/// Returns a tensor of `shape` with the given values.
pub(crate) fn from_host<T: Element>(values: &[T], shape: impl Into<Shape>) -> Result<Tensor> {
    Array::from_slice(Device::cpu(), values, shape.into()).map(Tensor::from)
}

/// Returns zeros with x's shape, dtype and device.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[tensor_method]
pub fn zeros_like(x: &Tensor) -> Result<Tensor> {
    full_like(x, 0)
}

/// Returns ones with x's shape, dtype and device.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[tensor_method]
pub fn ones_like(x: &Tensor) -> Result<Tensor> {
    full_like(x, 1)
}

/// Returns a tensor filled with `value`, with x's shape, dtype and device; converts as [`full`].
///
/// # Errors
/// Those of [`full`].
#[tensor_method]
pub fn full_like(x: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
    let value = value.into();
    in_range(value, x.dtype())?;
    filled(x.device(), x.dtype(), x.shape().clone(), value).map(Tensor::from)
}
