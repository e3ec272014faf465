//! Operations that create tensors filled with one value.

use crate::array::Array;
use crate::device::Device;
use crate::panic;
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::{DType, Error, Result, Scalar, Shape, bf16, f16};

/// Returns a 0-d tensor of `value`, which `op` writes into a tensor of `dtype`.
///
/// # Errors
/// [`Error::InvalidArgument`] for a value that an integer dtype cannot represent.
pub(crate) fn written_scalar(op: &'static str, value: Scalar, dtype: DType) -> Result<Tensor> {
    check_written(op, value, dtype)?;
    full((), value, dtype)
}

/// Returns an error for an element of the list `values` that the integer `dtype` of a written tensor cannot represent.
/// In a captured step, the elements are not checked.
pub(crate) fn check_written_list(op: &'static str, values: &Tensor, dtype: DType) -> Result<()> {
    if dtype == values.dtype() || !dtype.is_int() || !values.is_readable() {
        return Ok(());
    }
    let unrepresentable = match values.dtype().is_float() {
        true => values.try_find(|value: f64| !dtype.represents(value.into()))?.map(Scalar::from),
        false => values.try_find(|value: i64| !dtype.represents(value.into()))?.map(Scalar::from),
    };
    unrepresentable.map_or(Ok(()), |value| check_written(op, value, dtype))
}

/// Returns an error for a value that the integer `dtype` of a written tensor cannot represent.
pub(crate) fn check_written(op: &'static str, value: Scalar, dtype: DType) -> Result<()> {
    if dtype.represents(value) {
        return Ok(());
    }
    let fraction = matches!(value, Scalar::Float(x) if dtype.represents(Scalar::Float(x.trunc())));
    let remedy = if fraction { "round it, or convert the tensor" } else { "convert the tensor to a wider dtype" };
    Err(Error::invalid(op, format!("{value} cannot be stored in the tensor's dtype {dtype}; {remedy} with to_dtype()")))
}

/// Returns a tensor of `shape` filled with `value`, rounded once if `dtype` is a float.
///
/// # Errors
/// [`Error::InvalidArgument`] for a value that the dtype cannot represent: a value outside its range, and for integers
/// a fraction or NaN; [`Error::OutOfMemory`].
#[operation]
pub fn full(shape: impl Into<Shape>, value: impl Into<Scalar>, dtype: DType) -> Result<Tensor> {
    let value = value.into();
    representable(value, dtype)?;
    Array::filled(Device::cpu(), dtype, shape.into(), value).map(Tensor::from)
}

/// Returns an error for a value that an integer dtype cannot represent, and for a finite value that overflows a float
/// dtype.
#[inline]
fn representable(value: Scalar, dtype: DType) -> Result<()> {
    // The largest number of `f16`, the float dtype with the smallest range, is 65504.
    if dtype.is_float() && value.to_f64().abs() <= 65504.0 { Ok(()) } else { representable_in(value, dtype) }
}

fn representable_in(value: Scalar, dtype: DType) -> Result<()> {
    let is_finite_in = |dtype: DType| match dtype {
        DType::F32 => (value.to_f64() as f32).is_finite(),
        DType::F16 => f16::from_f64(value.to_f64()).is_finite(),
        DType::BF16 => bf16::from_f64(value.to_f64()).is_finite(),
        _ => true,
    };
    if dtype.represents(value) && (!value.to_f64().is_finite() || is_finite_in(dtype)) {
        return Ok(());
    }
    let reason = match value {
        Scalar::Float(x) if !x.is_finite() => format!("{value} is outside the range of {dtype}; use a float dtype"),
        Scalar::Float(x) if dtype.is_float() => format!("{x:e} is outside the range of {dtype}; use a wider dtype"),
        Scalar::Float(x) if dtype.represents(Scalar::Float(x.trunc())) => {
            format!("{value} cannot be stored in a tensor of dtype {dtype}; round it, or use a float dtype")
        }
        _ => format!("{value} is outside the range of {dtype}; use a wider dtype"),
    };
    Err(Error::invalid("full", reason))
}

/// Returns a tensor of zeros.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[doc(alias = "empty")]
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

/// Returns zeros with x's shape, dtype and device.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[doc(alias = "empty_like")]
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

/// Returns a tensor filled with `value`, with x's shape, dtype and device. It converts the value as [`full`] does.
///
/// # Errors
/// The errors of [`full`].
#[tensor_method]
pub fn full_like(x: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
    full_on_device_of(x, x.shape().clone(), value, x.dtype())
}

/// Returns a tensor filled with `value` on x's device. The result is free if x is free.
///
/// # Errors
/// The errors of [`full`].
pub(crate) fn full_on_device_of(
    x: &Tensor,
    shape: impl Into<Shape>,
    value: impl Into<Scalar>,
    dtype: DType,
) -> Result<Tensor> {
    let value = value.into();
    representable(value, dtype)?;
    let array = Array::filled(x.device(), dtype, shape.into(), value)?;
    array.set_pinned(!x.is_free());
    Ok(Tensor::from(array))
}

impl Tensor {
    /// Creates a 0-d tensor.
    ///
    /// # Panics
    /// Panics if [`full`] returns an error.
    #[doc(alias = "tensor")]
    #[track_caller]
    pub fn scalar(value: impl Into<Scalar>, dtype: DType) -> Tensor {
        panic::unwrap(full((), value, dtype))
    }

    /// Creates a tensor of `shape` with every element equal to `value`.
    ///
    /// # Panics
    /// Panics if [`full`] returns an error.
    #[track_caller]
    pub fn full(shape: impl Into<Shape>, value: impl Into<Scalar>, dtype: DType) -> Tensor {
        panic::unwrap(full(shape, value, dtype))
    }

    /// Creates a tensor of zeros.
    ///
    /// # Panics
    /// Panics if [`zeros`] returns an error.
    #[doc(alias = "empty")]
    #[track_caller]
    pub fn zeros(shape: impl Into<Shape>, dtype: DType) -> Tensor {
        panic::unwrap(zeros(shape, dtype))
    }

    /// Creates a tensor of ones.
    ///
    /// # Panics
    /// Panics if [`ones`] returns an error.
    #[track_caller]
    pub fn ones(shape: impl Into<Shape>, dtype: DType) -> Tensor {
        panic::unwrap(ones(shape, dtype))
    }
}
