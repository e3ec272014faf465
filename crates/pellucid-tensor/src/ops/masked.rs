//! Elements chosen by masks and by flat positions, and classes as vectors.

use crate::ops;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result, Scalar};

/// x, and the number where the mask is true; both broadcast. The dtype is that of x.
///
/// # Errors
/// [`Error::DTypeMismatch`] if the mask is not of dtype bool; [`Error::ShapeMismatch`]; [`Error::InvalidArgument`] for a
/// number that is not a value of an integer dtype.
#[tensor_method]
pub fn masked_fill(x: &Tensor, mask: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
    let value = ops::written_scalar("masked_fill", value.into(), x.dtype())?;
    ops::where_(mask, &value, x)
}

/// The elements where the mask is true, in row-major order, as a vector; both broadcast. Their number depends on values, so
/// a captured step refuses it.
///
/// # Errors
/// [`Error::DTypeMismatch`] if the mask is not of dtype bool; [`Error::ShapeMismatch`]; [`Error::ReadInCapture`].
#[tensor_method]
#[track_caller]
pub fn masked_select(x: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let op = "masked_select";
    if mask.dtype() != DType::Bool {
        return Err(Error::dtypes(op, [mask.dtype()], "the mask is a bool tensor; compare with ne(0)"));
    }
    let help = "tensor and mask must broadcast";
    let shape = x.shape().broadcast(mask.shape());
    let shape = shape.ok_or_else(|| Error::shapes(op, [x.shape(), mask.shape()], help))?;
    let positions = ops::positions(op, &ops::ravel(&ops::broadcast_to(mask, &shape)?)?)?;
    ops::index_select(&ops::ravel(&ops::broadcast_to(x, &shape)?)?, 0, &positions[0])
}

/// The elements at these positions in row-major order; the result has the shape of the index. Negative positions count
/// from the end.
///
/// # Errors
/// [`Error::IndexOutOfBounds`]; [`Error::DTypeMismatch`] for an index that is not of an integer dtype.
#[tensor_method]
pub fn take(x: &Tensor, index: &Tensor) -> Result<Tensor> {
    ops::index_select(&ops::ravel(x)?, 0, index)
}

/// Every class number as a vector of `classes` numbers, 1 at its place and 0 elsewhere, of dtype `i64`: a new last axis. A
/// number that is no class gives zeros.
///
/// # Errors
/// [`Error::DTypeMismatch`] for class numbers that are not of an integer dtype; [`Error::OutOfMemory`].
#[tensor_method]
pub fn one_hot(x: &Tensor, classes: usize) -> Result<Tensor> {
    if !x.dtype().is_int() {
        return Err(Error::dtypes("one_hot", [x.dtype()], "class numbers have an integer dtype"));
    }
    let numbers = ops::indices(classes)?;
    ops::to_dtype(&ops::eq(&ops::unsqueeze(x, -1)?, &numbers)?, DType::I64)
}
