//! Copies of a tensor with some elements replaced or increased.
//!
//! [`select_scatter`], [`slice_scatter`] and [`diagonal_scatter`] overwrite a view of a copy of x. If an index of
//! [`index_put`] consists only of index tensors and full ranges, a scatter combines the selected elements with the
//! values. Any other index is applied to the row-major positions of the elements, and the values are written or added
//! at the selected positions.

use crate::autograd::{on_one_device, placed_like};
use crate::ops::call::check;
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::broadcast;
use crate::ops::index::in_place;
use crate::ops::index::index_item::{IndexItem, IntoIndex, slice};
use crate::ops::index::resolved_index::ResolvedIndex;
use crate::ops::index::scatter::{scatter, scatter_add, scatter_selected};
use crate::ops::primitive::gather::as_index;
use crate::ops::primitive::{copy, create, fill, gather, view};
use crate::ops::reduce::scan;
use crate::ops::shape::diagonal::diagonal;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::ScatterOp;
use pellucid_ir::{Error, Result, Shape};

/// Writes the values into a copy of x at row-major positions, or adds them if `accumulate` is set. Positions and values
/// have the same shape.
fn put_at(x: &Tensor, positions: &Tensor, values: &Tensor, accumulate: bool) -> Result<Tensor> {
    let put = if accumulate { scatter_add } else { scatter };
    let y = put(&view::ravel(x)?, 0, &view::ravel(positions)?, &view::ravel(values)?)?;
    view::reshape_to(&y, x.shape())
}

/// Returns the row-major position of every element of x, in x's shape.
fn element_positions(x: &Tensor) -> Result<Tensor> {
    view::reshape_to(&create::indices(x.size())?, x.shape())
}

/// Returns a copy of x in which the source replaces a view.
fn replace_part(
    op: &'static str,
    x: &Tensor,
    view: &dyn Fn(&Tensor) -> Result<Tensor>,
    source: &Tensor,
) -> Result<Tensor> {
    if let Some(moved) = on_one_device(op, &[x, source])? {
        return replace_part(op, &moved[0], view, &moved[1]);
    }
    // A write in place does not pin its target. So if the source is pinned, the copy is first pinned to its device.
    let y = copy::copy(&if source.is_free() { x.clone() } else { placed_like(op, source, x)? })?;
    let target = view(&y)?;
    if target.shape() != source.shape() {
        let help = format!("the source must have the shape of the replaced part, {}", target.shape());
        return Err(Error::shapes(op, [x.shape(), source.shape()], help));
    }
    check::values_dtype(op, x, source)?;
    in_place::put_view(op, &target, target.array(), source)?;
    Ok(y)
}

/// Writes each value of the source into a copy of x at its row-major position, or adds it if `accumulate` is set. This
/// is the counterpart of [`take`](crate::ops::take). Negative positions count from the end. If positions are equal, the
/// last value is stored or, with `accumulate`, all values are added.
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

/// Writes values, which broadcast, into a copy of x at an index, or adds them if `accumulate` is set.
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
    let check_values = |part: &Shape| {
        let help = || format!("the values must broadcast to the indexed shape, {part}");
        match values.shape().broadcasts_to(part) {
            true => Ok(()),
            false => Err(Error::shapes("index_put", [x.shape(), values.shape()], help())),
        }
    };
    let resolved = ResolvedIndex::new("index", x, index.into_index(), false)?;
    if let Some((selection, indices, part)) = resolved.selection("index_put", x)? {
        check_values(&part)?;
        let reduction = if accumulate { ScatterOp::Add } else { ScatterOp::Set };
        return scatter_selected(selection, x, &indices, &broadcast::broadcast_to(values, part)?, reduction);
    }
    let positions = element_positions(x)?.at_resolved(&resolved, check_values)?;
    put_at(x, &positions, &broadcast::broadcast_to(values, positions.shape())?, accumulate)
}

/// Replaces the elements of x where the mask is true by elements of the source, in row-major order; x and mask
/// broadcast.
///
/// # Errors
/// [`Error::DTypeMismatch`] if the mask does not have dtype bool, or the source does not have x's dtype;
/// [`Error::ShapeMismatch`] if x and the mask do not broadcast; [`Error::IndexOutOfBounds`] if the source has fewer
/// elements than the mask has true elements.
#[tensor_method]
#[track_caller]
pub fn masked_scatter(x: &Tensor, mask: &Tensor, source: &Tensor) -> Result<Tensor> {
    let op = "masked_scatter";
    check::mask_dtype(op, mask)?;
    check::values_dtype(op, x, source)?;
    let shape = check::common_shape(op, &[x, mask], "x and the mask must broadcast")?;
    let mask = broadcast::broadcast_to(mask, &shape)?;
    // Where the mask is false, the index is unused. A source without elements has no valid index, so one element is
    // inserted at its start.
    let (source, first) = match source.size() {
        0 => (&fill::full_on_device_of(x, [1], 0, x.dtype())?, 1),
        _ => (source, 0),
    };
    let count = arithmetic::add(&scan::cumsum(&mask, ..)?, first - 1)?;
    let source_indices = arithmetic::where_(&mask, &view::reshape_to(&count, &shape)?, 0)?;
    arithmetic::where_(&mask, &gather::take(source, &source_indices)?, x)
}

/// Replaces the slice of x at one index of an axis by the source.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::IndexOutOfBounds`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
#[tensor_method]
pub fn select_scatter(x: &Tensor, source: &Tensor, axis: isize, index: isize) -> Result<Tensor> {
    replace_part("select_scatter", x, &|y| view::select(y, axis, index), source)
}

/// Replaces the range `start..stop` of an axis of x, with stride `step`, by the source.
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
    replace_part("slice_scatter", x, &|y| y.try_i(index.clone()), source)
}

/// Replaces a diagonal of x by the source. It is `offset` elements above the main diagonal (see
/// [`diagonal`](crate::ops::diagonal)).
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::InvalidArgument`] for equal
/// axes.
#[tensor_method]
pub fn diagonal_scatter(x: &Tensor, source: &Tensor, offset: isize, axis0: isize, axis1: isize) -> Result<Tensor> {
    replace_part("diagonal_scatter", x, &|y| diagonal(y, offset, axis0, axis1), source)
}
