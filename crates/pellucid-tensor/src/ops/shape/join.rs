//! Joining tensors along an axis.

use crate::ops::primitive::concatenate::{as_refs, concatenate};
use crate::ops::primitive::{fill, view};
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::{Error, Result};
use smallvec::SmallVec;

/// Stacks tensors of equal shapes along a new axis.
///
/// # Errors
/// [`Error::InvalidArgument`] for an empty list, [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`].
#[operation]
pub fn stack<T: AsRef<Tensor>>(tensors: &[T], axis: isize) -> Result<Tensor> {
    stack_all(&as_refs(tensors), axis)
}

fn stack_all(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
    if tensors.windows(2).any(|w| w[0].shape() != w[1].shape()) {
        let help = "all shapes must be equal; concatenate() joins along an existing axis";
        return Err(Error::shapes("stack", tensors.iter().map(|t| t.shape()), help));
    }
    let columns: Vec<Tensor> = tensors.iter().map(|t| view::unsqueeze(t, axis)).collect::<Result<_>>()?;
    let axis = match tensors.first() {
        Some(t) if axis < 0 => axis + t.rank() as isize + 1,
        _ => axis,
    };
    concatenate(&columns, axis)
}

/// Reshapes a tensor to at least `rank` axes.
fn with_min_rank(t: &Tensor, rank: usize) -> Result<Tensor> {
    match (t.rank(), rank) {
        // A vector becomes a row of a matrix, and a matrix a slice of a stack along the last axis.
        (0 | 1, 3) => view::reshape(t, [1, t.size(), 1]),
        (2, 3) => view::unsqueeze(t, 2),
        (0 | 1, 2) => view::reshape(t, [1, t.size()]),
        (0, 1) => view::reshape(t, [1]),
        _ => Ok(view::full_view(t)),
    }
}

fn join_raised(tensors: &[&Tensor], rank: usize, axis: isize) -> Result<Tensor> {
    let inputs = tensors.iter().map(|t| with_min_rank(t, rank)).collect::<Result<SmallVec<[Tensor; 4]>>>()?;
    concatenate(&inputs, axis)
}

/// Returns x with at least one axis: a 0-d tensor becomes a vector. No copy.
///
/// # Errors
/// None.
#[tensor_method]
pub fn atleast_1d(x: &Tensor) -> Result<Tensor> {
    with_min_rank(x, 1)
}

/// Returns x with at least two axes: a vector becomes a row, `[1, n]`. No copy.
///
/// # Errors
/// None.
#[tensor_method]
pub fn atleast_2d(x: &Tensor) -> Result<Tensor> {
    with_min_rank(x, 2)
}

/// Returns x with at least three axes: a vector becomes `[1, n, 1]`, and a matrix `[n, m, 1]`. No copy.
///
/// # Errors
/// None.
#[tensor_method]
pub fn atleast_3d(x: &Tensor) -> Result<Tensor> {
    with_min_rank(x, 3)
}

/// Concatenates tensors horizontally: along the second axis, or along the first for vectors and 0-d tensors.
///
/// # Errors
/// The errors of [`concatenate`].
#[operation]
pub fn hstack<T: AsRef<Tensor>>(tensors: &[T]) -> Result<Tensor> {
    let tensors = as_refs(tensors);
    let axis = tensors.first().map_or(0, |t| (t.rank() > 1) as isize);
    join_raised(&tensors, 1, axis)
}

/// Stacks tensors vertically, along the first axis. Vectors become rows.
///
/// # Errors
/// The errors of [`concatenate`].
#[doc(alias = "row_stack")]
#[operation]
pub fn vstack<T: AsRef<Tensor>>(tensors: &[T]) -> Result<Tensor> {
    let tensors = as_refs(tensors);
    join_raised(&tensors, 2, 0)
}

/// Stacks tensors in depth, along the third axis. A matrix gets a third axis of length 1.
///
/// # Errors
/// The errors of [`concatenate`].
#[operation]
pub fn dstack<T: AsRef<Tensor>>(tensors: &[T]) -> Result<Tensor> {
    let tensors = as_refs(tensors);
    join_raised(&tensors, 3, 2)
}

/// Stacks vectors as the columns of a matrix. Tensors with more axes are concatenated along the second axis.
///
/// # Errors
/// The errors of [`concatenate`].
#[operation]
pub fn column_stack<T: AsRef<Tensor>>(tensors: &[T]) -> Result<Tensor> {
    let columns = as_refs(tensors).into_iter().map(|t| match t.rank() {
        0 | 1 => view::reshape(t, [t.size(), 1]),
        _ => Ok(t.clone()),
    });
    concatenate(&columns.collect::<Result<SmallVec<[Tensor; 4]>>>()?, 1)
}

/// Returns the block diagonal matrix of the matrices, with zeros in all other elements. A vector is a row, and a 0-d
/// tensor is a 1 × 1 matrix. Dtypes are promoted.
///
/// # Errors
/// [`Error::InvalidArgument`] for an empty list; [`Error::ShapeMismatch`] for three or more axes;
/// [`Error::OutOfMemory`].
#[operation]
pub fn block_diag<T: AsRef<Tensor>>(matrices: &[T]) -> Result<Tensor> {
    let matrices = as_refs(matrices);
    if matrices.iter().any(|m| m.rank() > 2) {
        return Err(Error::shapes(
            "block_diag",
            matrices.iter().map(|m| m.shape()),
            "the inputs must have at most two axes; reshape() the others",
        ));
    }
    let blocks = matrices.iter().map(|m| with_min_rank(m, 2)).collect::<Result<SmallVec<[Tensor; 4]>>>()?;
    let width = blocks.iter().try_fold(0usize, |sum, block| sum.checked_add(block.shape()[1]));
    let width = width.ok_or_else(Error::size_overflow)?;
    let mut start = 0;
    let rows = blocks.iter().map(|block| {
        let [height, block_width] = [block.shape()[0], block.shape()[1]];
        let zeros = |columns: usize| fill::full_on_device_of(block, [height, columns], false, block.dtype());
        let row = concatenate(&[&zeros(start)?, block, &zeros(width - start - block_width)?], 1);
        start += block_width;
        row
    });
    concatenate(&rows.collect::<Result<SmallVec<[Tensor; 4]>>>()?, 0)
}
