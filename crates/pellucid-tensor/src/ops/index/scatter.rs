//! Scatter: writing or adding values at an index along an axis.

use crate::autograd::{apply_one, interface::*};
use crate::engine::outermost_operation;
use crate::ops::call::check;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::broadcast;
use crate::ops::primitive::gather::{Selection, as_index, check_index_shape};
use crate::ops::primitive::{create, fill, view};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::{Index, ScatterOp};
use pellucid_ir::{DType, Error, Result, Shape};
use smallvec::SmallVec;

/// Computes x with values written or added at an index. The inputs are x, the values and the index tensors.
#[derive(Clone)]
struct ScatterInto {
    selection: Selection,
    reduction: ScatterOp,
}

impl Operation for ScatterInto {
    fn name(&self) -> &'static str {
        if self.reduction == ScatterOp::Add { "scatter_add" } else { "scatter" }
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        (2..inputs.len()).for_each(|i| saves.input(i));
        let out = inputs[0].copy()?;
        self.selection.scatter(&inputs[1..], &out, self.reduction)?;
        Ok(smallvec![out])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let (g, indices) = (grads.get(0)?, saved.inputs_from(2)?);
        let mut gradients = InputGradients::from_elem(None, saved.inputs());
        if self.reduction == ScatterOp::Add {
            gradients[1] = needs.contains(1).then(|| self.selection.gather(&g, &indices)).transpose()?;
            gradients[0] = Some(g);
            return Ok(gradients);
        }
        if needs.contains(0) {
            let values = self.selection.values_shape(g.shape(), indices[0].shape());
            let zeros = broadcast::broadcast_to(&fill::zeros((), g.dtype())?, values)?;
            gradients[0] = Some(scatter_selected(self.selection.clone(), &g, &indices, &zeros, self.reduction)?);
        }
        if needs.contains(1) {
            let stored = is_last_written(&self.selection, g.shape(), &indices)?;
            gradients[1] = Some(arithmetic::where_(&stored, &self.selection.gather(&g, &indices)?, 0)?);
        }
        Ok(gradients)
    }
}

/// Returns a mask of the values that a scatter to an array of shape `array` stores. Its shape broadcasts to the shape
/// of the values.
///
/// If indices are equal, only the last value is stored. A scatter of the positions of the values finds it. The mask is
/// the same at all positions of an axis along which the index is broadcast, and has length 1 there.
fn is_last_written(selection: &Selection, array: &Shape, indices: &[Tensor]) -> Result<Tensor> {
    let axes = selection.index.axes();
    let (index, indices, target): (Index, SmallVec<[Tensor; 4]>, Shape) = match &selection.index {
        Index::Axes(_) => {
            (Index::Axes((0..axes.len()).collect()), indices.into(), axes.iter().map(|&a| array[a]).collect())
        }
        Index::Along(axis) => {
            let strides = indices[0].array().layout().strides();
            let repeated = (0..array.rank()).filter(|a| a != axis && strides[*a] == 0 && indices[0].shape()[*a] > 1);
            let index = repeated.into_iter().try_fold(indices[0].clone(), |x, a| view::narrow(&x, a as isize, 0, 1))?;
            let target = index.shape().with_axis(*axis, array[*axis]);
            (Index::Along(*axis), smallvec![index], target)
        }
    };
    let count = indices[0].size();
    let dtype = if count <= i32::MAX as usize { DType::I32 } else { DType::I64 };
    let write_order = view::reshape(&create::arange(0i64, count as i64, 1i64, dtype)?, indices[0].shape())?;
    let positions = Selection { index, place: 0, ..selection.clone() };
    let target = fill::zeros(target, dtype)?;
    let last = scatter_selected(positions.clone(), &target, &indices, &write_order, ScatterOp::Set)?;
    let stored = compare::eq(&positions.gather(&last, &indices)?, &write_order)?;
    if let Index::Along(_) = selection.index {
        return Ok(stored);
    }
    // The number of axes of the values that follow the axes of the index tensors.
    let following = array.rank() - axes.len() - selection.place;
    let shape = stored.shape().iter().copied().chain(std::iter::repeat_n(1, following)).collect();
    view::reshape_to(&stored, &shape)
}

/// Returns the view of a vector that has `rank` axes, all of length 1 except `axis`.
pub(in crate::ops) fn along_axis(vector: &Tensor, rank: usize, axis: usize) -> Result<Tensor> {
    let shape: Shape = (0..rank).map(|a| if a == axis { vector.size() } else { 1 }).collect();
    view::reshape_to(vector, &shape)
}

/// Returns x with `values` combined, by `reduction`, into the elements that the index tensors select. The caller has
/// checked the shapes and dtypes.
pub(in crate::ops) fn scatter_selected(
    selection: Selection,
    x: &Tensor,
    indices: &[Tensor],
    values: &Tensor,
    reduction: ScatterOp,
) -> Result<Tensor> {
    let operands: SmallVec<[&Tensor; 4]> = [x, values].into_iter().chain(indices).collect();
    apply_one(ScatterInto { selection, reduction }, &operands)
}

fn scatter_into(x: &Tensor, index: &Tensor, values: &Tensor, axis: isize, reduction: ScatterOp) -> Result<Tensor> {
    let op = if reduction == ScatterOp::Add { "scatter_add" } else { "scatter" };
    let axis = x.shape().axis(op, axis)?;
    let index = as_index(op, index)?;
    check_index_shape(op, x.shape(), index.shape(), axis)?;
    let values = narrow_values(op, x, &index, values)?;
    scatter_selected(Selection::along(outermost_operation(op), axis), x, &[index], &values, reduction)
}

/// Computes [`scatter`] of checked operands. No index may be negative. Errors name `op`.
pub(in crate::ops) fn scatter_from_start(
    op: &'static str,
    x: &Tensor,
    index: &Tensor,
    values: &Tensor,
    axis: usize,
) -> Result<Tensor> {
    let selection = Selection { from_end: false, ..Selection::along(op, axis) };
    scatter_selected(selection, x, &[as_index(op, index)?], values, ScatterOp::Set)
}

/// Returns the values, narrowed to the shape of the index.
pub(in crate::ops) fn narrow_values(op: &'static str, x: &Tensor, index: &Tensor, values: &Tensor) -> Result<Tensor> {
    let fits = values.rank() == index.rank() && (0..index.rank()).all(|k| index.shape()[k] <= values.shape()[k]);
    if !fits {
        let help = "no axis of the values may be shorter than the same axis of the index";
        return Err(Error::shapes(op, [values.shape(), index.shape()], help));
    }
    check::values_dtype(op, x, values)?;
    let mut values = values.clone();
    for k in 0..index.rank() {
        if values.shape()[k] > index.shape()[k] {
            values = view::narrow(&values, k as isize, 0, index.shape()[k])?;
        }
    }
    Ok(values)
}

/// Writes each value into a copy of x at its index along `axis` (NumPy's `put_along_axis`, PyTorch's `scatter`).
///
/// If indices are equal, the last value in row-major order is stored. The index has x's rank; values beyond its shape
/// are ignored.
///
/// # Errors
/// The errors of [`take_along_axis`](crate::ops::take_along_axis); [`Error::ShapeMismatch`] if an axis of the values is
/// shorter than the same axis of the index.
#[doc(alias = "put_along_axis")]
#[tensor_method]
pub fn scatter(x: &Tensor, axis: isize, index: &Tensor, values: &Tensor) -> Result<Tensor> {
    scatter_into(x, index, values, axis, ScatterOp::Set)
}

/// Adds each value to a copy of x at its index along `axis`; values with equal indices accumulate.
///
/// # Errors
/// The errors of [`scatter`].
#[tensor_method]
pub fn scatter_add(x: &Tensor, axis: isize, index: &Tensor, values: &Tensor) -> Result<Tensor> {
    scatter_into(x, index, values, axis, ScatterOp::Add)
}
