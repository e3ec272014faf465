//! Gather and scatter: selecting elements by index tensors, and accumulating at them.
//!
//! Gather and scatter-add are the gradients of each other, which gives derivatives of every order. Repeated indices
//! accumulate in a fixed order.

use crate::array::{Array, checked_size, host_vec};
use crate::autograd::{
    Arrays, InputGradients, NeedsInputGrad, Operation, OutputGradients, SaveForBackward, SavedTensors, apply_one,
};
use crate::engine;
use crate::ops::operation_scope::outermost_operation;
use crate::ops::{self, check};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::{self, Index, Kernel, ScatterReduction};
use pellucid_ir::{DType, Error, Result, Shape};
use smallvec::{SmallVec, smallvec};

/// Computes y = x[index]. The inputs are x and the index tensors.
struct GatherOp {
    /// The operation that the error of an index names.
    op: &'static str,
    from_end: bool,
    index: Index,
}

impl Operation for GatherOp {
    fn name(&self) -> &'static str {
        "gather"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        (1..inputs.len()).for_each(|i| saves.input(i));
        let x = inputs[0];
        let out = Array::new(x.device(), x.dtype(), self.index.shape(x.shape(), inputs[1].shape()))?;
        let kernel = kernel::Gather { op: self.op, from_end: self.from_end, index: self.index.clone() };
        engine::submit(&Kernel::Gather(kernel), inputs, &[&out])?;
        Ok(smallvec![out])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let &GatherOp { op, from_end, ref index } = self;
        let scatter = ScatterAdd { op, from_end, index: index.clone(), shape: saved.input_shape(0) };
        let indices = saved.inputs_from(1)?;
        let g = grads.get(0)?;
        let operands: SmallVec<[&Tensor; 4]> = std::iter::once(&g).chain(&indices).collect();
        let mut gradients = InputGradients::from_elem(None, saved.inputs());
        gradients[0] = Some(apply_one(scatter, &operands)?);
        Ok(gradients)
    }
}

/// Creates zeros of `shape` with values added at an index. The inputs are the values and the index tensors.
struct ScatterAdd {
    op: &'static str,
    from_end: bool,
    index: Index,
    shape: Shape,
}

impl Operation for ScatterAdd {
    fn name(&self) -> &'static str {
        "scatter_add"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        (1..inputs.len()).for_each(|i| saves.input(i));
        let out = Array::filled(inputs[0].device(), inputs[0].dtype(), self.shape.clone(), 0.into())?;
        let &ScatterAdd { op, from_end, ref index, .. } = self;
        let kernel = kernel::Scatter { op, from_end, index: index.clone(), reduction: ScatterReduction::Add };
        engine::submit(&Kernel::Scatter(kernel), inputs, &[&out])?;
        Ok(smallvec![out])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let indices = saved.inputs_from(1)?;
        let g = grads.get(0)?;
        let operands: SmallVec<[&Tensor; 4]> = std::iter::once(&g).chain(&indices).collect();
        let mut gradients = InputGradients::from_elem(None, saved.inputs());
        let &ScatterAdd { op, from_end, ref index, .. } = self;
        gradients[0] = Some(apply_one(GatherOp { op, from_end, index: index.clone() }, &operands)?);
        Ok(gradients)
    }
}

pub(super) fn as_index(op: &'static str, index: &Tensor) -> Result<Tensor> {
    if !index.dtype().is_int() {
        return Err(Error::dtypes(
            op,
            [index.dtype()],
            "index tensors need an integer dtype; use to_dtype(DType::I64)",
        ));
    }
    ops::to_dtype(index, DType::I64)
}

/// Indexes several axes of x, in ascending order, by index tensors. Their common shape comes first in the result.
/// Negative indices count from the end. The error of an index names `op`.
pub(crate) fn gather_axes(
    op: &'static str,
    x: &Tensor,
    axes: SmallVec<[usize; 4]>,
    indices: &[Tensor],
) -> Result<Tensor> {
    let operands: SmallVec<[&Tensor; 4]> = std::iter::once(x).chain(indices).collect();
    let op = outermost_operation(op);
    apply_one(GatherOp { op, from_end: true, index: Index::Axes(axes) }, &operands)
}

/// Returns the rows of x at the indices, of which none may be negative. Errors name `op`.
pub(super) fn select_rows(op: &'static str, x: &Tensor, index: &Tensor) -> Result<Tensor> {
    let rows = GatherOp { op: outermost_operation(op), from_end: false, index: Index::Axes(smallvec![0]) };
    apply_one(rows, &[x, &as_index(op, index)?])
}

/// Adds the slices of x along an axis to zeros, at their indices in an axis of `len`. This is the transpose of
/// [`index_select`] by a vector of indices.
pub(crate) fn scatter_add_axis(x: &Tensor, axis: usize, index: &Tensor, len: usize) -> Result<Tensor> {
    let front = ops::movedim(x, [axis as isize], [0])?;
    let rest = front.shape()[1..].iter().copied();
    // The scatter kernel indexes the first axis, so the axis is moved to the front and back.
    let shape = std::iter::once(len).chain(rest).collect();
    let op = outermost_operation("scatter_add");
    let scatter = ScatterAdd { op, from_end: true, index: Index::Axes(smallvec![0]), shape };
    ops::movedim(&apply_one(scatter, &[&front, index])?, [0], [axis as isize])
}

/// Returns the slices of x at indices of an axis (PyTorch's `index_select`, for index tensors of any rank).
///
/// The axes of the index tensor replace the axis. Negative indices count from the end.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::IndexOutOfBounds`], [`Error::DTypeMismatch`] for an index tensor without an
/// integer dtype.
#[doc(alias = "take")]
#[tensor_method]
pub fn index_select(x: &Tensor, axis: isize, index: &Tensor) -> Result<Tensor> {
    let at = x.shape().axis("index_select", axis)?;
    let index = as_index("index_select", index)?;
    let rank = index.rank();
    let picked = gather_axes("index_select", x, smallvec![at], &[index])?;
    // The gather puts the axes of the index first; they are moved to the position of the axis.
    let order: Vec<isize> =
        (rank..rank + at).chain(0..rank).chain(rank + at..picked.rank()).map(|a| a as isize).collect();
    if at == 0 { Ok(picked) } else { ops::permute(&picked, &order) }
}

/// Picks one element along an axis for every index: yᵢⱼₖ = x at (i, indexᵢⱼₖ, k) for `axis` 1.
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
        return ops::take(x, &index);
    }
    check_index_shape(op, x.shape(), index.shape(), axis)?;
    gather_along(outermost_operation(op), x, &index, axis)
}

/// Computes [`take_along_axis`] of operands that fit, on behalf of another operation, which errors name.
pub(super) fn gather_along(op: &'static str, x: &Tensor, index: &Tensor, axis: usize) -> Result<Tensor> {
    apply_one(GatherOp { op, from_end: true, index: Index::Along(axis) }, &[x, index])
}

pub(super) fn check_index_shape(op: &'static str, shape: &Shape, index: &Shape, axis: usize) -> Result<()> {
    let fits = shape.rank() == index.rank() && (0..shape.rank()).all(|k| k == axis || index[k] <= shape[k]);
    let help = format!("the index must have the tensor's rank, and no longer axes except axis {axis}");
    if fits { Ok(()) } else { Err(Error::shapes(op, [shape, index], help)) }
}

/// Adds each value of x to zeros of `shape` at its index along `axis`: the transpose of [`take_along_axis`].
///
/// # Errors
/// Those of [`take_along_axis`].
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
    let op = outermost_operation(op);
    apply_one(ScatterAdd { op, from_end: true, index: Index::Along(axis), shape }, &[x, &index])
}

/// Computes x with values written or added at an index along an axis. The inputs are x, the values and the index.
#[derive(Clone, Copy)]
struct ScatterInto {
    op: &'static str,
    from_end: bool,
    axis: usize,
    reduction: ScatterReduction,
}

impl Operation for ScatterInto {
    fn name(&self) -> &'static str {
        if self.reduction == ScatterReduction::Add { "scatter_add" } else { "scatter" }
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(2);
        let out = inputs[0].copy()?;
        let &ScatterInto { op, from_end, axis, reduction } = self;
        let kernel = kernel::Scatter { op, from_end, index: Index::Along(axis), reduction };
        engine::submit(&Kernel::Scatter(kernel), &inputs[1..], &[&out])?;
        Ok(smallvec![out])
    }
    fn backward(
        &self,
        saved: &SavedTensors,
        grads: &OutputGradients,
        needed: NeedsInputGrad,
    ) -> Result<InputGradients> {
        let (g, index) = (grads.get(0)?, saved.input(2)?);
        let of_index = |x: &Tensor| gather_along(self.op, x, &index, self.axis);
        let mut gradients: InputGradients = smallvec![None, None, None];
        if self.reduction == ScatterReduction::Add {
            gradients[1] = needed.contains(1).then(|| of_index(&g)).transpose()?;
            gradients[0] = Some(g);
            return Ok(gradients);
        }
        if needed.contains(0) {
            let zeros = ops::zeros(index.shape().clone(), g.dtype())?;
            gradients[0] = Some(apply_one(*self, &[&g, &zeros, &index])?);
        }
        if needed.contains(1) {
            // If indices are equal, only the last value is stored. Scattering their numbers finds it.
            let numbers = ops::indices(index.size())?;
            let numbers = ops::reshape(&numbers, index.shape())?;
            let places = ops::zeros(g.shape().clone(), DType::I64)?;
            let put = apply_one(*self, &[&places, &numbers, &index])?;
            let stayed = ops::eq(&of_index(&put)?, &numbers)?;
            gradients[1] = Some(ops::where_(&stayed, &of_index(&g)?, 0)?);
        }
        Ok(gradients)
    }
}

fn scatter_into(
    x: &Tensor,
    index: &Tensor,
    values: &Tensor,
    axis: isize,
    reduction: ScatterReduction,
) -> Result<Tensor> {
    let op = if reduction == ScatterReduction::Add { "scatter_add" } else { "scatter" };
    let axis = x.shape().axis(op, axis)?;
    let index = as_index(op, index)?;
    check_index_shape(op, x.shape(), index.shape(), axis)?;
    let values = narrow_values(op, x, &index, values)?;
    let op = outermost_operation(op);
    apply_one(ScatterInto { op, from_end: true, axis, reduction }, &[x, &values, &index])
}

/// Computes [`scatter`] of operands that fit, at indices of which none may be negative. Errors name `op`.
pub(super) fn scatter_from_start(
    op: &'static str,
    x: &Tensor,
    index: &Tensor,
    values: &Tensor,
    axis: usize,
) -> Result<Tensor> {
    let scatter = ScatterInto { op, from_end: false, axis, reduction: ScatterReduction::Set };
    apply_one(scatter, &[x, values, &as_index(op, index)?])
}

/// Returns the values, narrowed to the shape of the index.
pub(super) fn narrow_values(op: &'static str, x: &Tensor, index: &Tensor, values: &Tensor) -> Result<Tensor> {
    let fits = values.rank() == index.rank() && (0..index.rank()).all(|k| index.shape()[k] <= values.shape()[k]);
    if !fits {
        let help = "no axis of the values may be shorter than that of the index";
        return Err(Error::shapes(op, [values.shape(), index.shape()], help));
    }
    check::values_dtype(op, x, values)?;
    let mut values = values.clone();
    for k in 0..index.rank() {
        if values.shape()[k] > index.shape()[k] {
            values = ops::narrow(&values, k as isize, 0, index.shape()[k])?;
        }
    }
    Ok(values)
}

/// Writes each value into a copy of x at its index along `axis` (NumPy's `put_along_axis`, PyTorch's `scatter`).
///
/// If indices are equal, the last value in row-major order is stored. The index has x's rank; values beyond its axes
/// are not used.
///
/// # Errors
/// Those of [`take_along_axis`]; [`Error::ShapeMismatch`] if there are fewer values than indices.
#[doc(alias = "put_along_axis")]
#[tensor_method]
pub fn scatter(x: &Tensor, index: &Tensor, values: &Tensor, axis: isize) -> Result<Tensor> {
    scatter_into(x, index, values, axis, ScatterReduction::Set)
}

/// Adds each value to a copy of x at its index along `axis`; values with equal indices accumulate.
///
/// # Errors
/// Those of [`scatter`].
#[tensor_method]
pub fn scatter_add(x: &Tensor, index: &Tensor, values: &Tensor, axis: isize) -> Result<Tensor> {
    scatter_into(x, index, values, axis, ScatterReduction::Add)
}

/// Returns the indices of the nonzero elements in row-major order, as one `i64` vector per axis.
///
/// The number of indices depends on values, so a captured step cannot contain this operation.
///
/// # Errors
/// [`Error::ReadInCapture`].
#[doc(alias = "argwhere")]
#[tensor_method]
#[track_caller]
pub fn nonzero(x: &Tensor) -> Result<Vec<Tensor>> {
    nonzero_as("nonzero", x)
}

/// Returns the indices of the nonzero elements in x flattened in row-major order, an `i64` vector.
///
/// ```
/// use pellucid::Tensor;
/// let x = Tensor::from([[0.0, 2.0], [-1.0, 0.0]]);
/// assert_eq!(x.flatnonzero().to_vec::<i64>(), [1, 2]);
/// ```
///
/// # Errors
/// [`Error::ReadInCapture`], since the number of indices depends on values.
#[tensor_method]
#[track_caller]
pub fn flatnonzero(x: &Tensor) -> Result<Tensor> {
    Ok(nonzero_as("flatnonzero", &ops::ravel(x)?)?.remove(0))
}

/// Computes [`nonzero`] on behalf of another operation, which errors name.
#[track_caller]
pub(crate) fn nonzero_as(op: &'static str, x: &Tensor) -> Result<Vec<Tensor>> {
    let help = "the number of selected elements depends on values; where_(mask, x, 0), masked_fill(), masked_sum() \
                keep every shape";
    engine::check_readable(op, help)?;
    let mask = x.array().to_vec::<bool>(op)?;
    let count = mask.iter().filter(|hit| **hit).count();
    let mut positions: Vec<Vec<i64>> = (0..x.rank()).map(|_| host_vec(count)).collect::<Result<_>>()?;
    for (flat, _) in mask.iter().enumerate().filter(|(_, hit)| **hit) {
        let mut rest = flat;
        for axis in (0..x.rank()).rev() {
            positions[axis].push((rest % x.shape()[axis]) as i64);
            rest /= x.shape()[axis];
        }
    }
    let placed = |p: &Vec<i64>| {
        let array = Array::from_slice(x.device(), p, [p.len()].into())?;
        array.set_pinned(!x.is_free());
        Ok(Tensor::from(array))
    };
    positions.iter().map(placed).collect()
}

/// Converts row-major positions to indices in `shape`: one `i64` tensor per axis, with the shape of the positions.
///
/// A position beyond the end wraps around to 0; a negative one counts from the end.
///
/// # Errors
/// [`Error::DTypeMismatch`] for positions without an integer dtype; [`Error::OutOfMemory`] for a shape whose size
/// overflows.
#[tensor_method]
pub fn unravel_index(positions: &Tensor, shape: impl Into<Shape>) -> Result<Vec<Tensor>> {
    let (mut rest, shape) = (as_index("unravel_index", positions)?, shape.into());
    checked_size(&shape)?;
    let mut places = Vec::with_capacity(shape.rank());
    for &len in shape.iter().rev() {
        places.push(ops::rem(&rest, len as i64)?);
        rest = ops::floor_div(&rest, len as i64)?;
    }
    places.reverse();
    Ok(places)
}
