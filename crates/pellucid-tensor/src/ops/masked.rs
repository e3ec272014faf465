//! Selection by masks and flat positions, and one-hot vectors.

use super::gather::{as_index, gather_axes};
use crate::ops::{self, check};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result, Scalar};
use smallvec::smallvec;

/// Replaces the elements of x where the mask is true by `value`. x and the mask broadcast; the dtype is that of x.
///
/// # Errors
/// [`Error::DTypeMismatch`] if the mask does not have dtype bool; [`Error::ShapeMismatch`]; [`Error::InvalidArgument`]
/// for a value that an integer dtype cannot represent.
#[tensor_method]
pub fn masked_fill(x: &Tensor, mask: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
    let value = ops::written_scalar("masked_fill", value.into(), x.dtype())?;
    ops::where_(mask, &value, x)
}

/// Returns the elements where the mask is true, as a vector in row-major order. x and the mask broadcast.
///
/// The number of selected elements depends on values, so a captured step cannot contain this operation.
///
/// # Errors
/// [`Error::DTypeMismatch`] if the mask does not have dtype bool; [`Error::ShapeMismatch`]; [`Error::ReadInCapture`].
#[doc(alias("boolean_mask", "extract", "compress"))]
#[tensor_method]
#[track_caller]
pub fn masked_select(x: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let op = "masked_select";
    if mask.dtype() != DType::Bool {
        return Err(Error::dtypes(op, [mask.dtype()], "the mask must be a bool tensor; compare with ne(0)"));
    }
    let help = "tensor and mask must broadcast";
    let shape = x.shape().broadcast(mask.shape());
    let shape = shape.ok_or_else(|| Error::shapes(op, [x.shape(), mask.shape()], help))?;
    let positions = ops::nonzero_as(op, &ops::ravel(&ops::broadcast_to(mask, &shape)?)?)?;
    ops::index_select(&ops::ravel(&ops::broadcast_to(x, &shape)?)?, 0, &positions[0])
}

/// Returns the elements at positions in row-major order, in the shape of the index. Negative positions count from the
/// end.
///
/// # Errors
/// [`Error::IndexOutOfBounds`]; [`Error::DTypeMismatch`] for an index without an integer dtype.
#[tensor_method]
pub fn take(x: &Tensor, index: &Tensor) -> Result<Tensor> {
    let op = "take";
    gather_axes(op, &ops::ravel(x)?, smallvec![0], &[as_index(op, index)?])
}

/// Encodes class indices as one-hot vectors of length `classes`, of dtype `i64`, along a new last axis.
///
/// An index outside 0..classes gives zeros.
///
/// # Errors
/// [`Error::DTypeMismatch`] for class indices without an integer dtype; [`Error::OutOfMemory`].
#[tensor_method]
pub fn one_hot(x: &Tensor, classes: usize) -> Result<Tensor> {
    if !x.dtype().is_int() {
        return Err(Error::dtypes(
            "one_hot",
            [x.dtype()],
            "class indices need an integer dtype; use to_dtype(DType::I64)",
        ));
    }
    let shape = check::representable(x.shape().iter().copied().chain([classes]).collect())?;
    let numbers = ops::indices(classes).map_err(|error| error.with_shape(&shape))?;
    ops::to_dtype(&ops::eq(&ops::unsqueeze(x, -1)?, &numbers)?, DType::I64)
}
