//! Joining tensors along an axis.

use crate::autograd::{apply_one, interface::*};
use crate::ops::primitive::concatenate::{as_refs, concatenate};
use crate::ops::primitive::copy::write_array;
use crate::ops::primitive::{copy, view};
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::{DType, Error, Result, Shape};
use smallvec::{SmallVec, smallvec};

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

/// Returns x with at least one axis: a 0-d tensor becomes a vector. No element is copied.
///
/// # Errors
/// The operation is defined for every shape, so it returns no error.
#[tensor_method]
pub fn atleast_1d(x: &Tensor) -> Result<Tensor> {
    with_min_rank(x, 1)
}

/// Returns x with at least two axes: a vector becomes a row, `[1, n]`. No element is copied.
///
/// # Errors
/// The operation is defined for every shape, so it returns no error.
#[tensor_method]
pub fn atleast_2d(x: &Tensor) -> Result<Tensor> {
    with_min_rank(x, 2)
}

/// Returns x with at least three axes: a vector becomes `[1, n, 1]`, and a matrix `[n, m, 1]`. No element is copied.
///
/// # Errors
/// The operation is defined for every shape, so it returns no error.
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

/// Stacks tensors in depth, along the third axis. A third axis of length 1 is added to a matrix.
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

/// The block diagonal matrix of matrices with the same dtype. The gradient of a matrix is its block.
struct BlockDiagonal {
    /// The shape of the result.
    shape: [usize; 2],
    /// For each matrix and axis, the start and the length of its block.
    blocks: Vec<[(usize, usize); 2]>,
}

impl BlockDiagonal {
    /// Computes the blocks of matrices with these shapes.
    fn new<'a>(shapes: impl Iterator<Item = &'a Shape>) -> Result<BlockDiagonal> {
        let mut matrix = BlockDiagonal { shape: [0; 2], blocks: Vec::new() };
        for block in shapes {
            matrix.blocks.push([0, 1].map(|axis| (matrix.shape[axis], block[axis])));
            for axis in [0, 1] {
                let end = matrix.shape[axis].checked_add(block[axis]);
                matrix.shape[axis] = end.ok_or_else(Error::size_overflow)?;
            }
        }
        Ok(matrix)
    }
}

impl Operation for BlockDiagonal {
    fn name(&self) -> &'static str {
        "block_diag"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let device = Array::common_device("block_diag", inputs)?;
        let out = Array::filled(device, inputs[0].dtype(), self.shape.into(), 0.into())?;
        for (matrix, [(row, rows), (column, columns)]) in inputs.iter().zip(&self.blocks) {
            let block = out.layout().slice(0, *row, 1, *rows).slice(1, *column, 1, *columns);
            write_array(matrix, &out.view(block))?;
        }
        Ok(smallvec![out])
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let g = grads.get(0)?;
        let block = |[(row, rows), (column, columns)]: [(usize, usize); 2]| {
            view::narrow(&view::narrow(&g, 0, row, rows)?, 1, column, columns)
        };
        let blocks = self.blocks.iter().enumerate();
        blocks.map(|(i, &at)| needs.contains(i).then(|| block(at)).transpose()).collect()
    }
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
    let dtype = blocks.iter().map(Tensor::dtype).reduce(DType::promote);
    let Some(dtype) = dtype else {
        return Err(Error::invalid(
            "block_diag",
            "the list of matrices is empty; create an empty result with zeros([0, 0], dtype)",
        ));
    };
    let blocks = blocks.iter().map(|m| copy::to_dtype(m, dtype)).collect::<Result<SmallVec<[Tensor; 4]>>>()?;
    let matrix = BlockDiagonal::new(blocks.iter().map(|block| block.shape()))?;
    apply_one(matrix, &blocks.iter().collect::<SmallVec<[&Tensor; 4]>>())
}
