//! Joining tensors along an axis.

use super::copy::write_array;
use crate::array::Array;
use crate::autograd::{
    Arrays, InputGradients, NeedsInputGrad, Operation, OutputGradients, SaveForBackward, SavedTensors, apply_one,
};
use crate::ops;
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::{DType, Error, Result};
use smallvec::{SmallVec, smallvec};

struct Concatenate {
    axis: usize,
    lengths: Vec<usize>,
}

impl Operation for Concatenate {
    fn name(&self) -> &'static str {
        "concatenate"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let first = inputs[0];
        let device = Array::common_device("concatenate", inputs)?;
        let length = self.lengths.iter().fold(0usize, |sum, &len| sum.saturating_add(len));
        let shape = first.shape().with_axis(self.axis, length);
        let out = Array::new(device, first.dtype(), shape)?;
        let mut start = 0;
        for (array, &len) in inputs.iter().zip(&self.lengths) {
            write_array(array, &out.view(out.layout().slice(self.axis, start, 1, len)))?;
            start += len;
        }
        Ok(smallvec![out])
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, needed: NeedsInputGrad) -> Result<InputGradients> {
        let g = grads.get(0)?;
        let mut start = 0;
        let mut gradients = InputGradients::new();
        for (i, &len) in self.lengths.iter().enumerate() {
            let part = needed.contains(i).then(|| ops::narrow(&g, self.axis as isize, start, len));
            gradients.push(part.transpose()?);
            start += len;
        }
        Ok(gradients)
    }
}

/// Returns references to the tensors of a list of tensors or handles.
fn as_refs<T: AsRef<Tensor>>(tensors: &[T]) -> SmallVec<[&Tensor; 8]> {
    tensors.iter().map(AsRef::as_ref).collect()
}

/// Concatenates tensors along an existing axis. Ranks and all other axes must be equal (no broadcasting); dtypes are
/// promoted. The list has tensors or references.
///
/// ```
/// use pellucid::{Tensor, ops};
/// let (x, y) = (Tensor::from([1, 2]), Tensor::from([3]));
/// assert_eq!(ops::concatenate(&[&x, &y], 0)?.to_vec::<i64>(), [1, 2, 3]);
/// let list: Vec<Tensor> = vec![x, y];
/// assert_eq!(ops::concatenate(&list, 0)?.to_vec::<i64>(), [1, 2, 3]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] for an empty list, [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`].
#[doc(alias("cat", "concat"))]
#[operation]
pub fn concatenate<T: AsRef<Tensor>>(tensors: &[T], axis: isize) -> Result<Tensor> {
    concatenate_all(&as_refs(tensors), axis)
}

fn concatenate_all(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
    let Some(first) = tensors.first() else {
        return Err(Error::invalid("concatenate", "needs at least one tensor; an empty result is zeros(shape, dtype)"));
    };
    let axis = first.shape().axis("concatenate", axis)?;
    let fits =
        |t: &Tensor| t.rank() == first.rank() && (0..t.rank()).all(|k| k == axis || t.shape()[k] == first.shape()[k]);
    if let Some((index, other)) = tensors.iter().enumerate().find(|(_, t)| !fits(t)) {
        let (shape, wanted) = (other.shape(), first.shape());
        let same_rank = other.rank() == first.rank();
        let differs = |&k: &usize| same_rank && k != axis && shape[k] != wanted[k];
        let help = match (0..first.rank()).find(differs) {
            Some(k) => format!(
                "all axes except {axis} must have equal lengths, but axis {k} has length {} in tensor 0 and {} in tensor \
                 {index}; narrow() or pad() one of them, or concatenate along axis {k}",
                wanted[k], shape[k]
            ),
            None => format!(
                "the ranks must be equal, but tensor 0 has rank {} and tensor {index} rank {}; unsqueeze() or reshape() \
                 one of them",
                first.rank(),
                other.rank()
            ),
        };
        return Err(Error::shapes("concatenate", tensors.iter().map(|t| t.shape()), help));
    }
    let dtype = tensors.iter().map(|t| t.dtype()).fold(first.dtype(), DType::promote);
    let cast: SmallVec<[Tensor; 4]> = tensors.iter().map(|t| ops::to_dtype(t, dtype)).collect::<Result<_>>()?;
    let lengths = tensors.iter().map(|t| t.shape()[axis]).collect();
    apply_one(Concatenate { axis, lengths }, &cast.iter().collect::<SmallVec<[&Tensor; 4]>>())
}

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
    let columns: Vec<Tensor> = tensors.iter().map(|t| ops::unsqueeze(t, axis)).collect::<Result<_>>()?;
    let axis = match tensors.first() {
        Some(t) if axis < 0 => axis + t.rank() as isize + 1,
        _ => axis,
    };
    concatenate(&columns, axis)
}

/// Reshapes a tensor to at least `rank` axes.
fn raised(t: &Tensor, rank: usize) -> Result<Tensor> {
    match (t.rank(), rank) {
        // A vector becomes a row of a matrix, and a matrix a slice of a stack along the last axis.
        (0 | 1, 3) => ops::reshape(t, [1, t.size(), 1]),
        (2, 3) => ops::unsqueeze(t, 2),
        (0 | 1, 2) => ops::reshape(t, [1, t.size()]),
        (0, 1) => ops::reshape(t, [1]),
        _ => Ok(ops::view::full_view(t)),
    }
}

fn join_raised(tensors: &[&Tensor], rank: usize, axis: isize) -> Result<Tensor> {
    let raised = tensors.iter().map(|t| raised(t, rank)).collect::<Result<SmallVec<[Tensor; 4]>>>()?;
    concatenate(&raised, axis)
}

/// Returns x with at least one axis: a 0-d tensor becomes a vector. No copy.
///
/// # Errors
/// None.
#[tensor_method]
pub fn atleast_1d(x: &Tensor) -> Result<Tensor> {
    raised(x, 1)
}

/// Returns x with at least two axes: a vector becomes a row, `[1, n]`. No copy.
///
/// # Errors
/// None.
#[tensor_method]
pub fn atleast_2d(x: &Tensor) -> Result<Tensor> {
    raised(x, 2)
}

/// Returns x with at least three axes: a vector becomes `[1, n, 1]`, and a matrix `[n, m, 1]`. No copy.
///
/// # Errors
/// None.
#[tensor_method]
pub fn atleast_3d(x: &Tensor) -> Result<Tensor> {
    raised(x, 3)
}

/// Concatenates tensors horizontally: along the second axis, or along the first for vectors and 0-d tensors.
///
/// # Errors
/// Those of [`concatenate`].
#[operation]
pub fn hstack<T: AsRef<Tensor>>(tensors: &[T]) -> Result<Tensor> {
    let tensors = as_refs(tensors);
    let axis = tensors.first().map_or(0, |t| (t.rank() > 1) as isize);
    join_raised(&tensors, 1, axis)
}

/// Stacks tensors vertically, along the first axis. Vectors become rows.
///
/// # Errors
/// Those of [`concatenate`].
#[doc(alias = "row_stack")]
#[operation]
pub fn vstack<T: AsRef<Tensor>>(tensors: &[T]) -> Result<Tensor> {
    let tensors = as_refs(tensors);
    join_raised(&tensors, 2, 0)
}

/// Stacks tensors in depth, along the third axis. A matrix gets a third axis of length 1.
///
/// # Errors
/// Those of [`concatenate`].
#[operation]
pub fn dstack<T: AsRef<Tensor>>(tensors: &[T]) -> Result<Tensor> {
    let tensors = as_refs(tensors);
    join_raised(&tensors, 3, 2)
}

/// Stacks vectors as the columns of a matrix. Tensors with more axes are concatenated along the second axis.
///
/// # Errors
/// Those of [`concatenate`].
#[operation]
pub fn column_stack<T: AsRef<Tensor>>(tensors: &[T]) -> Result<Tensor> {
    let columns = as_refs(tensors).into_iter().map(|t| match t.rank() {
        0 | 1 => ops::reshape(t, [t.size(), 1]),
        _ => Ok(t.clone()),
    });
    concatenate(&columns.collect::<Result<SmallVec<[Tensor; 4]>>>()?, 1)
}

/// Returns the block diagonal matrix of matrices, with zeros elsewhere. A vector is a row, and a 0-d tensor one element.
/// Dtypes are promoted.
///
/// # Errors
/// [`Error::InvalidArgument`] for an empty list; [`Error::ShapeMismatch`] for three or more axes;
/// [`Error::OutOfMemory`].
#[operation]
pub fn block_diag<T: AsRef<Tensor>>(matrices: &[T]) -> Result<Tensor> {
    let matrices = as_refs(matrices);
    if matrices.iter().any(|m| m.rank() > 2) {
        return Err(Error::shapes("block_diag", matrices.iter().map(|m| m.shape()), "takes matrices, vectors and 0-d"));
    }
    let blocks = matrices.iter().map(|m| raised(m, 2)).collect::<Result<SmallVec<[Tensor; 4]>>>()?;
    let width = blocks.iter().try_fold(0usize, |sum, block| sum.checked_add(block.shape()[1]));
    let width = width.ok_or_else(Error::size_overflow)?;
    let mut start = 0;
    let rows = blocks.iter().map(|block| {
        let [height, own] = [block.shape()[0], block.shape()[1]];
        let zeros = |columns: usize| ops::full_on_device_of(block, [height, columns], false, block.dtype());
        let row = concatenate(&[&zeros(start)?, block, &zeros(width - start - own)?], 1);
        start += own;
        row
    });
    concatenate(&rows.collect::<Result<SmallVec<[Tensor; 4]>>>()?, 0)
}
