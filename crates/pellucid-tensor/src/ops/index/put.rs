//! Tensors with some elements replaced: the transposes of indexing operations.
//!
//! All use one method: the indexing operation is applied to the row-major positions of the elements, and the values are
//! written or added at the selected positions.

use crate::ops::call::check;
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::broadcast;
use crate::ops::index::index_item::{IndexItem, IntoIndex, slice};
use crate::ops::index::scatter::{scatter, scatter_add};
use crate::ops::primitive::gather::as_index;
use crate::ops::primitive::{create, fill, gather, view};
use crate::ops::reduce::scan;
use crate::ops::shape::diagonal::diagonal;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result};

/// Writes or adds the values to a copy of x at row-major positions; positions and values have the same shape.
fn put_at(x: &Tensor, places: &Tensor, values: &Tensor, accumulate: bool) -> Result<Tensor> {
    let put = if accumulate { scatter_add } else { scatter };
    let y = put(&view::ravel(x)?, &view::ravel(places)?, &view::ravel(values)?, 0)?;
    view::reshape_to(&y, x.shape())
}

/// Returns the row-major position of every element of x, in x's shape.
fn element_positions(x: &Tensor) -> Result<Tensor> {
    view::reshape_to(&create::indices(x.size())?, x.shape())
}

/// Replaces the elements of x at the positions `part` by the source.
fn replace_part(op: &'static str, x: &Tensor, part: Tensor, source: &Tensor) -> Result<Tensor> {
    if part.shape() != source.shape() {
        let help = format!("the source must have the shape of the replaced part, {}", part.shape());
        return Err(Error::shapes(op, [x.shape(), source.shape()], help));
    }
    check::values_dtype(op, x, source)?;
    put_at(x, &part, source, false)
}

/// Writes or (`accumulate`) adds each value of the source to a copy of x at its row-major position.
///
/// This is the transpose of [`take`](crate::ops::take). Negative positions count from the end; of equal positions the
/// last value is stored.
///
/// # Errors
/// [`Error::ShapeMismatch`] unless there are as many positions as values; [`Error::IndexOutOfBounds`];
/// [`Error::DTypeMismatch`].
#[tensor_method]
pub fn put(x: &Tensor, index: &Tensor, source: &Tensor, accumulate: bool) -> Result<Tensor> {
    if index.size() != source.size() {
        return Err(Error::shapes(
            "put",
            [index.shape(), source.shape()],
            "`index` must have as many elements as `source`",
        ));
    }
    check::values_dtype("put", x, source)?;
    put_at(x, &as_index("put", index)?, source, accumulate)
}

/// Writes or (`accumulate`) adds values, which broadcast, to a copy of x at an index.
///
/// This is the functional form of [`Tensor::set`](crate::Tensor::set), with gradients to x and the values.
///
/// # Errors
/// The errors of [`Tensor::try_i`](crate::Tensor::try_i); [`Error::ShapeMismatch`] for values that do not broadcast to
/// the indexed shape; [`Error::DTypeMismatch`].
#[tensor_method]
#[track_caller]
pub fn index_put(x: &Tensor, index: impl IntoIndex, values: &Tensor, accumulate: bool) -> Result<Tensor> {
    check::values_dtype("index_put", x, values)?;
    let places = element_positions(x)?.indexed(index.into_index(), |part| {
        let fits = values.shape().broadcasts_to(part);
        let help = || format!("the values must broadcast to the indexed shape, {part}");
        if fits { Ok(()) } else { Err(Error::shapes("index_put", [x.shape(), values.shape()], help())) }
    })?;
    put_at(x, &places, &broadcast::broadcast_to(values, places.shape())?, accumulate)
}

/// Replaces the elements of x where the mask is true by elements of the source, in row-major order; x and mask
/// broadcast.
///
/// # Errors
/// [`Error::DTypeMismatch`] if the mask does not have dtype bool, or the source not x's; [`Error::ShapeMismatch`] if
/// tensor and mask do not broadcast; [`Error::IndexOutOfBounds`] if the source has fewer elements than the mask has
/// true ones.
#[tensor_method]
#[track_caller]
pub fn masked_scatter(x: &Tensor, mask: &Tensor, source: &Tensor) -> Result<Tensor> {
    let op = "masked_scatter";
    check::mask_dtype(op, mask)?;
    check::values_dtype(op, x, source)?;
    let shape = check::common_shape(op, &[x, mask], "tensor and mask must broadcast")?;
    let mask = broadcast::broadcast_to(mask, &shape)?;
    // Where the mask is false, the index is unused. A source without elements has no index for it: one element stands
    // before the first.
    let (source, first) = match source.size() {
        0 => (&fill::full_on_device_of(x, [1], 0, x.dtype())?, 1),
        _ => (source, 0),
    };
    let count = arithmetic::add(&scan::cumsum(&mask, ..)?, first - 1)?;
    let places = arithmetic::where_(&mask, &view::reshape_to(&count, &shape)?, 0)?;
    arithmetic::where_(&mask, &gather::take(source, &places)?, x)
}

/// Replaces the slice of x at one index of an axis by the source.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::IndexOutOfBounds`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
#[tensor_method]
pub fn select_scatter(x: &Tensor, source: &Tensor, axis: isize, index: isize) -> Result<Tensor> {
    replace_part("select_scatter", x, view::select(&element_positions(x)?, axis, index)?, source)
}

/// Replaces the part `start..stop` of an axis of x, in steps of `step`, by the source.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for a step
/// of 0.
#[tensor_method]
pub fn slice_scatter(
    x: &Tensor,
    source: &Tensor,
    axis: isize,
    start: Option<isize>,
    stop: Option<isize>,
    step: isize,
) -> Result<Tensor> {
    let mut index = vec![IndexItem::from(..); x.shape().axis("slice_scatter", axis)?];
    index.push(slice(start, stop, step).into());
    replace_part("slice_scatter", x, element_positions(x)?.try_i(index)?, source)
}

/// Replaces a diagonal of x by the source, `offset` elements above the main one (see
/// [`diagonal`](crate::ops::diagonal)).
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::InvalidArgument`] for equal
/// axes.
#[tensor_method]
pub fn diagonal_scatter(x: &Tensor, source: &Tensor, offset: isize, axis0: isize, axis1: isize) -> Result<Tensor> {
    replace_part("diagonal_scatter", x, diagonal(&element_positions(x)?, offset, axis0, axis1)?, source)
}
