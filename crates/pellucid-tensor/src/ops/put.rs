//! A new tensor with other values at some of its elements: the transposes of taking a part.
//!
//! All are one: the part is taken of the elements' numbers in row-major order, and the values are put, or added, at these.

use super::gather::{as_index, scatter, scatter_add};
use crate::ops;
use crate::tensor::{IntoIndex, Ix, Tensor, slice};
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result};

/// x with the values at the elements of these numbers, which have one shape.
fn put_at(x: &Tensor, places: &Tensor, values: &Tensor, accumulate: bool) -> Result<Tensor> {
    let put = if accumulate { scatter_add } else { scatter };
    let y = put(&ops::ravel(x)?, &ops::ravel(places)?, &ops::ravel(values)?, 0)?;
    ops::reshape_to(&y, x.shape())
}

/// The number of every element of x, in x's shape.
fn numbers(x: &Tensor) -> Result<Tensor> {
    ops::reshape_to(&ops::indices(x.size())?, x.shape())
}

/// x with the source where a part of it lies.
fn replaced(op: &'static str, x: &Tensor, part: Tensor, source: &Tensor) -> Result<Tensor> {
    if part.shape() != source.shape() {
        let help = format!("the source has the shape of what it replaces, {}", part.shape());
        return Err(Error::shapes(op, [x.shape(), source.shape()], help));
    }
    put_at(x, &part, source, false)
}

/// x with each value of the source put, or (`accumulate`) added, at its position in row-major order: the transpose of
/// [`take`](ops::take). Negative positions count from the end; of several for one place the last stays.
///
/// # Errors
/// [`Error::ShapeMismatch`] if there are not as many positions as values; [`Error::IndexOutOfBounds`];
/// [`Error::DTypeMismatch`].
#[tensor_method]
pub fn put(x: &Tensor, index: &Tensor, source: &Tensor, accumulate: bool) -> Result<Tensor> {
    if index.size() != source.size() {
        return Err(Error::shapes("put", [index.shape(), source.shape()], "there is a position for every value"));
    }
    put_at(x, &as_index("put", index)?, source, accumulate)
}

/// x with values, which broadcast, put or (`accumulate`) added at an index: the functional form of
/// [`Tensor::set`](crate::Tensor::set), with gradients to both.
///
/// # Errors
/// Those of [`Tensor::try_i`](crate::Tensor::try_i); [`Error::ShapeMismatch`] for values that do not broadcast to what is
/// indexed; [`Error::DTypeMismatch`].
#[tensor_method]
#[track_caller]
pub fn index_put(x: &Tensor, index: impl IntoIndex, values: &Tensor, accumulate: bool) -> Result<Tensor> {
    let places = numbers(x)?.try_i(index)?;
    if values.shape().broadcast(places.shape()).as_ref() != Some(places.shape()) {
        let help = format!("values broadcast to the shape of what is indexed, {}", places.shape());
        return Err(Error::shapes("index_put", [x.shape(), values.shape()], help));
    }
    put_at(x, &places, &ops::broadcast_to(values, places.shape())?, accumulate)
}

/// x with the first elements of the source, in row-major order, where the mask is true; x and mask broadcast.
///
/// # Errors
/// [`Error::DTypeMismatch`] if the mask is not of dtype bool, or the source not of x's; [`Error::ShapeMismatch`] if tensor and mask
/// do not broadcast; [`Error::IndexOutOfBounds`] if the mask is true more often than the source has elements.
#[tensor_method]
#[track_caller]
pub fn masked_scatter(x: &Tensor, mask: &Tensor, source: &Tensor) -> Result<Tensor> {
    let op = "masked_scatter";
    if mask.dtype() != DType::Bool {
        return Err(Error::dtypes(op, [mask.dtype()], "the mask is a bool tensor; compare with ne(0)"));
    }
    if source.dtype() != x.dtype() {
        return Err(Error::dtypes(
            op,
            [x.dtype(), source.dtype()],
            "the source has the tensor's dtype; use to_dtype()",
        ));
    }
    let help = "tensor and mask must broadcast";
    let shape = x.shape().broadcast(mask.shape());
    let shape = shape.ok_or_else(|| Error::shapes(op, [x.shape(), mask.shape()], help))?;
    let mask = ops::broadcast_to(mask, &shape)?;
    if source.size() == 0 {
        // No element that a number could mean: the mask must be false everywhere, which `take` refuses if it is not.
        let positions = ops::positions(op, &ops::ravel(&mask)?)?;
        ops::take(source, &positions[0])?;
        return ops::broadcast_to(x, &shape);
    }
    // The number of true elements before each; where the mask is false any element does.
    let count = ops::sub(&ops::cumsum(&mask, ..)?, 1)?;
    let places = ops::where_(&mask, &ops::reshape_to(&count, &shape)?, 0)?;
    ops::where_(&mask, &ops::take(source, &places)?, x)
}

/// x with the source as its slice at one index of an axis.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::IndexOutOfBounds`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
#[tensor_method]
pub fn select_scatter(x: &Tensor, source: &Tensor, axis: isize, index: isize) -> Result<Tensor> {
    replaced("select_scatter", x, ops::select(&numbers(x)?, axis, index)?, source)
}

/// x with the source as its part `start..stop` of an axis, every `step`-th index.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for a step of 0.
#[tensor_method]
pub fn slice_scatter(
    x: &Tensor,
    source: &Tensor,
    axis: isize,
    start: Option<isize>,
    stop: Option<isize>,
    step: isize,
) -> Result<Tensor> {
    let mut index = vec![Ix::from(..); x.shape().axis("slice_scatter", axis)?];
    index.push(slice(start, stop, step).into());
    replaced("slice_scatter", x, numbers(x)?.try_i(index)?, source)
}

/// x with the source on a diagonal of two axes, `offset` places above the main one (see [`diagonal`](ops::diagonal)).
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::InvalidArgument`] for one axis twice.
#[tensor_method]
pub fn diagonal_scatter(x: &Tensor, source: &Tensor, offset: isize, axis0: isize, axis1: isize) -> Result<Tensor> {
    replaced("diagonal_scatter", x, ops::diagonal(&numbers(x)?, offset, axis0, axis1)?, source)
}
