//! Gather and its transpose, scatter-add: selecting elements by index tensors, and accumulating values at them.
//!
//! Gather and scatter-add are the gradients of each other, so derivatives of every order exist. Repeated indices
//! accumulate in a fixed order.

use crate::autograd::{apply_one, interface::*};
use crate::engine;
use crate::engine::outermost_operation;
use crate::ops::primitive::{copy, view};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::{self, Index, Kernel, ScatterOp};
use pellucid_ir::{DType, Error, Result, Shape};
use smallvec::SmallVec;

/// The elements that index tensors select from an array, and the position of the index axes in the result.
#[derive(Clone)]
pub(in crate::ops) struct Selection {
    /// The operation that the error for an invalid index names.
    pub(in crate::ops) op: &'static str,
    /// Whether negative indices count from the end. Otherwise they are out of bounds.
    pub(in crate::ops) from_end: bool,
    /// The selected elements.
    pub(in crate::ops) index: Index,
    /// For [`Index::Axes`]: the number of axes of the values before the axes of the index tensors. The kernels expect
    /// the axes of the index tensors first, so they use a permuted view of the values.
    pub(in crate::ops) place: usize,
}

impl Selection {
    /// Selects by an index tensor with the rank of the array, along an axis.
    pub(in crate::ops) fn along(op: &'static str, axis: usize) -> Selection {
        Selection { op, from_end: true, index: Index::Along(axis), place: 0 }
    }

    /// Selects slices of one axis. In the values, the axes of the index tensor replace the indexed axis.
    pub(in crate::ops) fn slices(op: &'static str, axis: usize) -> Selection {
        Selection { op, from_end: true, index: Index::Axes(smallvec![axis]), place: axis }
    }

    /// Returns the shape of the values.
    pub(in crate::ops) fn values_shape(&self, array: &Shape, index: &Shape) -> Shape {
        let first = self.index.shape(array, index);
        let rank = index.rank();
        (rank..rank + self.place).chain(0..rank).chain(rank + self.place..first.rank()).map(|a| first[a]).collect()
    }

    /// Returns the view of the values whose first axes are the axes of the index tensors.
    fn kernel_values(&self, values: &Array, index: &Shape) -> Array {
        let (place, end) = (self.place, self.place + index.rank());
        if place == 0 {
            return values.clone();
        }
        let order: SmallVec<[usize; 8]> = (place..end).chain(0..place).chain(end..values.shape().rank()).collect();
        values.view(values.layout().permute(&order))
    }

    /// Combines values with the selected elements of `array`, in place. The inputs are the values and the index
    /// tensors.
    pub(in crate::ops) fn scatter(&self, inputs: &[&Array], array: &Array, reduction: ScatterOp) -> Result<()> {
        let &Selection { op, from_end, ref index, .. } = self;
        let kernel = kernel::Scatter { op, from_end, index: index.clone(), reduction };
        let values = self.kernel_values(inputs[0], inputs[1].shape());
        let operands: SmallVec<[&Array; 4]> = std::iter::once(&values).chain(inputs[1..].iter().copied()).collect();
        engine::submit(&Kernel::Scatter(kernel), &operands, &[array])
    }

    /// Returns the selected elements of x.
    pub(in crate::ops) fn gather(&self, x: &Tensor, indices: &[Tensor]) -> Result<Tensor> {
        let operands: SmallVec<[&Tensor; 4]> = std::iter::once(x).chain(indices).collect();
        apply_one(GatherOp(self.clone()), &operands)
    }
}

/// Computes y = x[index]. The inputs are x and the index tensors.
struct GatherOp(Selection);

impl Operation for GatherOp {
    fn name(&self) -> &'static str {
        "gather"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        (1..inputs.len()).for_each(|i| saves.input(i));
        let &Selection { op, from_end, ref index, .. } = &self.0;
        let (x, index_shape) = (inputs[0], inputs[1].shape());
        let out = Array::new(x.device(), x.dtype(), self.0.values_shape(x.shape(), index_shape))?;
        let kernel = kernel::Gather { op, from_end, index: index.clone() };
        engine::submit(&Kernel::Gather(kernel), inputs, &[&self.0.kernel_values(&out, index_shape)])?;
        Ok(smallvec![out])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let scatter = ScatterAdd { selection: self.0.clone(), shape: saved.input_shape(0) };
        let indices = saved.inputs_from(1)?;
        let g = grads.get(0)?;
        let operands: SmallVec<[&Tensor; 4]> = std::iter::once(&g).chain(&indices).collect();
        let mut gradients = InputGradients::from_elem(None, saved.inputs());
        gradients[0] = Some(apply_one(scatter, &operands)?);
        Ok(gradients)
    }
}

/// Adds values to zeros of `shape` at an index. The inputs are the values and the index tensors.
struct ScatterAdd {
    selection: Selection,
    shape: Shape,
}

impl Operation for ScatterAdd {
    fn name(&self) -> &'static str {
        "scatter_add"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        (1..inputs.len()).for_each(|i| saves.input(i));
        let out = Array::filled(inputs[0].device(), inputs[0].dtype(), self.shape.clone(), 0.into())?;
        self.selection.scatter(inputs, &out, ScatterOp::Add)?;
        Ok(smallvec![out])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let mut gradients = InputGradients::from_elem(None, saved.inputs());
        gradients[0] = Some(self.selection.gather(&grads.get(0)?, &saved.inputs_from(1)?)?);
        Ok(gradients)
    }
}

pub(in crate::ops) fn as_index(op: &'static str, index: &Tensor) -> Result<Tensor> {
    if !index.dtype().is_int() {
        let help = "index tensors must have an integer dtype; use to_dtype(DType::I64)";
        return Err(Error::dtypes(op, [index.dtype()], help));
    }
    copy::to_dtype(index, DType::I64)
}

/// Indexes several axes of x, in ascending order, by index tensors of a common shape. The axes of the index tensors
/// follow the first `place` axes of the result. Negative indices count from the end. Errors name `op`.
pub(crate) fn gather_axes(
    op: &'static str,
    x: &Tensor,
    axes: SmallVec<[usize; 4]>,
    indices: &[Tensor],
    place: usize,
) -> Result<Tensor> {
    let op = outermost_operation(op);
    Selection { op, from_end: true, index: Index::Axes(axes), place }.gather(x, indices)
}

/// Returns the rows of x at the indices. No index may be negative. Errors name `op`.
pub(in crate::ops) fn select_rows(op: &'static str, x: &Tensor, index: &Tensor) -> Result<Tensor> {
    let rows = Selection { from_end: false, ..Selection::slices(outermost_operation(op), 0) };
    rows.gather(x, &[as_index(op, index)?])
}

/// Adds the slices of x along an axis to zeros, at their indices of an axis of length `len`. This is the transpose of
/// [`index_select`] with a vector of indices.
pub(crate) fn scatter_add_axis(x: &Tensor, axis: usize, index: &Tensor, len: usize) -> Result<Tensor> {
    let selection = Selection::slices(outermost_operation("scatter_add"), axis);
    apply_one(ScatterAdd { selection, shape: x.shape().with_axis(axis, len) }, &[x, index])
}

/// Returns the slices of x at indices of an axis (PyTorch's `index_select`, for index tensors of any rank).
///
/// In the result, the axes of the index tensor replace the indexed axis. Negative indices count from the end.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::IndexOutOfBounds`], [`Error::DTypeMismatch`] for an index tensor without an
/// integer dtype.
#[doc(alias = "take")]
#[tensor_method]
pub fn index_select(x: &Tensor, axis: isize, index: &Tensor) -> Result<Tensor> {
    let axis = x.shape().axis("index_select", axis)?;
    let index = as_index("index_select", index)?;
    Selection::slices(outermost_operation("index_select"), axis).gather(x, &[index])
}

/// Selects one element along an axis for every index: yᵢⱼₖ = x at (i, indexᵢⱼₖ, k) for `axis` 1.
///
/// This is NumPy's `take_along_axis` and PyTorch's `gather`. The index has x's rank; its other axes may be shorter than
/// x's. An index without elements may have any shape.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::IndexOutOfBounds`],
/// [`Error::DTypeMismatch`].
#[doc(alias("gather", "take_along_dim"))]
#[tensor_method]
pub fn take_along_axis(x: &Tensor, index: &Tensor, axis: isize) -> Result<Tensor> {
    let op = "take_along_axis";
    let axis = x.shape().axis(op, axis)?;
    let index = as_index(op, index)?;
    if index.size() == 0 && index.rank() != x.rank() {
        return take(x, &index);
    }
    check_index_shape(op, x.shape(), index.shape(), axis)?;
    gather_along(outermost_operation(op), x, &index, axis)
}

/// Computes [`take_along_axis`] of checked operands for the operation `op`, which errors name.
pub(in crate::ops) fn gather_along(op: &'static str, x: &Tensor, index: &Tensor, axis: usize) -> Result<Tensor> {
    Selection::along(op, axis).gather(x, std::slice::from_ref(index))
}

pub(in crate::ops) fn check_index_shape(op: &'static str, shape: &Shape, index: &Shape, axis: usize) -> Result<()> {
    let fits = shape.rank() == index.rank() && (0..shape.rank()).all(|k| k == axis || index[k] <= shape[k]);
    let help = format!("the index must have the rank of x, and must not be longer than x along any axis except {axis}");
    if fits { Ok(()) } else { Err(Error::shapes(op, [shape, index], help)) }
}

/// Adds each value of x to zeros of `shape` at its index along `axis`: the transpose of [`take_along_axis`].
///
/// # Errors
/// The errors of [`take_along_axis`].
#[tensor_method]
pub fn scatter_add_along(x: &Tensor, index: &Tensor, axis: isize, shape: impl Into<Shape>) -> Result<Tensor> {
    let op = "scatter_add_along";
    let shape = shape.into();
    let axis = shape.axis(op, axis)?;
    let index = as_index(op, index)?;
    check_index_shape(op, &shape, index.shape(), axis)?;
    if x.shape() != index.shape() {
        return Err(Error::shapes(op, [x.shape(), index.shape()], "values and index must have the same shape"));
    }
    apply_one(ScatterAdd { selection: Selection::along(outermost_operation(op), axis), shape }, &[x, &index])
}

/// Returns the elements at row-major positions, in the shape of the index. Negative positions count from the end.
///
/// # Errors
/// [`Error::IndexOutOfBounds`]; [`Error::DTypeMismatch`] for an index without an integer dtype.
#[tensor_method]
pub fn take(x: &Tensor, index: &Tensor) -> Result<Tensor> {
    let op = "take";
    gather_axes(op, &view::ravel(x)?, smallvec![0], &[as_index(op, index)?], 0)
}
