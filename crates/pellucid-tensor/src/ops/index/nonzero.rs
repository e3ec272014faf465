//! Indices of nonzero elements, and flat positions as indices.

use crate::array::{Array, checked_size, host_values, host_vec};
use crate::engine;
use crate::ops::elementwise::arithmetic;
use crate::ops::primitive::gather::as_index;
use crate::ops::primitive::view;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Result, Shape};

/// Returns the indices of the nonzero elements in row-major order, as one `i64` vector per axis.
///
/// The number of indices depends on values, so a captured step cannot contain this operation.
///
/// # Errors
/// [`Error::ReadInCapture`](crate::Error::ReadInCapture).
#[doc(alias = "argwhere")]
#[tensor_method]
#[track_caller]
pub fn nonzero(x: &Tensor) -> Result<Vec<Tensor>> {
    nonzero_as("nonzero", x)
}

/// Returns the indices of the nonzero elements of the flattened x (row-major), as an `i64` vector.
///
/// ```
/// use pellucid::Tensor;
/// let x = Tensor::from([[0.0, 2.0], [-1.0, 0.0]]);
/// assert_eq!(x.flatnonzero().to_vec::<i64>(), [1, 2]);
/// ```
///
/// # Errors
/// [`Error::ReadInCapture`](crate::Error::ReadInCapture), since the number of indices depends on values.
#[tensor_method]
#[track_caller]
pub fn flatnonzero(x: &Tensor) -> Result<Tensor> {
    Ok(nonzero_as("flatnonzero", &view::ravel(x)?)?.remove(0))
}

/// Computes [`nonzero`] for the operation `op`, which errors name.
#[track_caller]
pub(crate) fn nonzero_as(op: &'static str, x: &Tensor) -> Result<Vec<Tensor>> {
    let help = "the number of selected elements depends on values; use where_(mask, x, 0), masked_fill() or \
                masked_sum(), which keep the shape";
    engine::check_readable(op, help)?;
    let mask = x.array().to_vec::<bool>(op)?;
    let positions = true_positions(&mask, x.shape())?;
    let placed = |p: &Vec<i64>| {
        let array = Array::from_slice(x.device(), p, [p.len()].into())?;
        array.set_pinned(!x.is_free());
        Ok(Tensor::from(array))
    };
    positions.iter().map(placed).collect()
}

/// Returns the coordinates of the true elements of a mask, one list per axis.
fn true_positions(mask: &[bool], shape: &Shape) -> Result<Vec<Vec<i64>>> {
    let Some((&width, outer)) = shape.split_last().filter(|_| !mask.is_empty()) else {
        return Ok(vec![Vec::new(); shape.rank()]);
    };
    let count = mask.iter().filter(|hit| **hit).count();
    let mut positions: Vec<Vec<i64>> = outer.iter().map(|_| host_vec(count)).collect::<Result<_>>()?;
    // Every coordinate along the last axis is stored. If its element is false, the next coordinate overwrites it: a
    // branch on the elements could not be predicted.
    let (mut last, mut stored) = (host_values(count + 1, (0..=count).map(|_| 0))?, 0);
    let mut row = vec![0; outer.len()];
    for elements in mask.chunks_exact(width) {
        let before = stored;
        for (column, &hit) in elements.iter().enumerate() {
            last[stored] = column as i64;
            stored += hit as usize;
        }
        for (positions, &coordinate) in positions.iter_mut().zip(&row) {
            positions.extend(std::iter::repeat_n(coordinate, stored - before));
        }
        for (coordinate, &len) in row.iter_mut().zip(outer).rev() {
            *coordinate += 1;
            if *coordinate < len as i64 {
                break;
            }
            *coordinate = 0;
        }
    }
    last.truncate(count);
    positions.push(last);
    Ok(positions)
}

/// Converts row-major positions to indices in `shape`: one `i64` tensor per axis, with the shape of the positions.
///
/// Positions are reduced modulo the size of the shape, so a negative position counts from the end.
///
/// # Errors
/// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) for positions without an integer dtype;
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory) for a shape whose size overflows.
#[tensor_method]
pub fn unravel_index(positions: &Tensor, shape: impl Into<Shape>) -> Result<Vec<Tensor>> {
    let (mut quotients, shape) = (as_index("unravel_index", positions)?, shape.into());
    checked_size(&shape)?;
    let mut indices = Vec::with_capacity(shape.rank());
    for &len in shape.iter().rev() {
        indices.push(arithmetic::rem(&quotients, len as i64)?);
        quotients = arithmetic::floor_div(&quotients, len as i64)?;
    }
    indices.reverse();
    Ok(indices)
}
