//! How index tensors select elements of an array, and the operand that they index.

use super::KernelOperand;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use smallvec::SmallVec;

/// How index tensors select elements of an array.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Index {
    /// One index tensor for each of these axes (ascending), all of the same shape I. The result has the shape `I ++
    /// (shape of the array without these axes)`.
    Axes(SmallVec<[usize; 4]>),
    /// One index tensor of the rank of the array (`take_along_axis`): its values replace the coordinate of this axis,
    /// and the other coordinates are unchanged. Along the other axes, the index tensor may be shorter than the array.
    Along(usize),
}

/// The operand that the index tensors of a kernel index. The index tensors are inputs 1 and later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexedOperand {
    /// The first input: the kernel reads the selected elements only.
    Input,
    /// The first output: the kernel changes the selected elements only.
    Output,
}

impl Index {
    /// Returns the shape of `x[index]` for x of shape `array` and index tensors of shape `index`.
    pub fn shape(&self, array: &Shape, index: &Shape) -> Shape {
        match self {
            Index::Axes(_) => index.iter().copied().chain(self.slice_axes(array.rank()).map(|a| array[a])).collect(),
            Index::Along(_) => index.clone(),
        }
    }

    /// Returns the axes of an indexed array of rank `rank` that follow the axes of the index tensors in the result:
    /// each tuple of indices selects a slice that contains all elements along these axes.
    pub fn slice_axes(&self, rank: usize) -> impl Iterator<Item = usize> {
        (0..rank).filter(move |axis| matches!(self, Index::Axes(axes) if !axes.contains(axis)))
    }

    /// Returns the number of index tensors.
    pub(super) fn tensors(&self) -> usize {
        match self {
            Index::Axes(axes) => axes.len(),
            Index::Along(_) => 1,
        }
    }

    /// Returns the indexed axes.
    pub fn axes(&self) -> &[usize] {
        match self {
            Index::Axes(axes) => axes,
            Index::Along(axis) => std::slice::from_ref(axis),
        }
    }

    /// Returns an error unless shapes and dtypes of the indexed array, of the selected values and of the index tensors
    /// fit together.
    pub(super) fn check<O: KernelOperand>(&self, op: &'static str, array: &O, values: &O, indices: &[O]) -> Result<()> {
        let (shape, axes) = (array.shape(), self.axes());
        let index_shape = indices.first().map_or(shape, |index| index.shape());
        let along = matches!(self, Index::Along(_));
        let fits = axes.len() == indices.len()
            && axes.windows(2).all(|w| w[0] < w[1])
            && axes.iter().all(|&a| a < shape.rank())
            && indices.iter().all(|i| i.shape() == index_shape)
            && (!along || index_shape.rank() == shape.rank())
            && (!along || (0..shape.rank()).all(|a| a == axes[0] || index_shape[a] <= shape[a]))
            && *values.shape() == self.shape(shape, index_shape);
        if !fits {
            let rule = "there must be one index tensor for each indexed axis, all of the same shape, and the values must have \
                        the shape of the result";
            return Err(Error::shapes(op, [shape, values.shape(), index_shape], rule));
        }
        if values.dtype() != array.dtype() || indices.iter().any(|i| i.dtype() != DType::I64) {
            let dtypes = [array.dtype(), values.dtype()].into_iter().chain(indices.iter().map(|i| i.dtype()));
            let rule = "indices must be i64, and the array and the values must have the same dtype";
            return Err(Error::dtypes(op, dtypes, rule));
        }
        Ok(())
    }
}
