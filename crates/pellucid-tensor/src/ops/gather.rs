//! Picking elements by index tensors, and its transpose, accumulating at them.
//!
//! Gather and scatter-add are each other's gradient, so every order is there. Repeated indices
//! accumulate, in a fixed order.

use super::create::filled;
use crate::array::{Array, checked_size, host_vec};
use crate::autograd::{Arrays, Gradients, InputGradients, Needed, Operation, Saved, Saves, apply_one};
use crate::engine;
use crate::ops;
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::kernel::{self, Combine, Index, Kernel};
use pellucid_ir::{DType, Error, Result, Shape};
use smallvec::{SmallVec, smallvec};

/// y = x[index]; inputs are x and the index tensors.
struct Gather {
    index: Index,
}

impl Operation for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut Saves) -> Result<Arrays> {
        (1..inputs.len()).for_each(|i| saves.input(i));
        let x = inputs[0];
        let out = Array::new(x.device(), x.dtype(), self.index.shape(x.shape(), inputs[1].shape()))?;
        engine::submit(&Kernel::Gather(kernel::Gather { index: self.index.clone() }), inputs, &[&out])?;
        Ok(smallvec![out])
    }
    fn backward(&self, saved: &Saved, grads: &Gradients, _: Needed) -> Result<InputGradients> {
        let scatter = ScatterAdd { index: self.index.clone(), shape: saved.input_shape(0) };
        let indices: SmallVec<[Tensor; 2]> = (1..saved.inputs()).map(|i| saved.input(i)).collect::<Result<_>>()?;
        let g = grads.get(0)?;
        let operands: SmallVec<[&Tensor; 4]> = std::iter::once(&g).chain(&indices).collect();
        let mut gradients = InputGradients::from_elem(None, saved.inputs());
        gradients[0] = Some(apply_one(scatter, &operands)?);
        Ok(gradients)
    }
}

/// Zeros of `shape`, with the values added at the index; inputs are the values and the index tensors.
struct ScatterAdd {
    index: Index,
    shape: Shape,
}

impl Operation for ScatterAdd {
    fn name(&self) -> &'static str {
        "scatter_add"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut Saves) -> Result<Arrays> {
        (1..inputs.len()).for_each(|i| saves.input(i));
        let out = filled(inputs[0].device(), inputs[0].dtype(), self.shape.clone(), 0.into())?;
        let kernel = kernel::Scatter { index: self.index.clone(), combine: Combine::Add };
        engine::submit(&Kernel::Scatter(kernel), inputs, &[&out])?;
        Ok(smallvec![out])
    }
    fn backward(&self, saved: &Saved, grads: &Gradients, _: Needed) -> Result<InputGradients> {
        let indices: SmallVec<[Tensor; 2]> = (1..saved.inputs()).map(|i| saved.input(i)).collect::<Result<_>>()?;
        let g = grads.get(0)?;
        let operands: SmallVec<[&Tensor; 4]> = std::iter::once(&g).chain(&indices).collect();
        let mut gradients = InputGradients::from_elem(None, saved.inputs());
        gradients[0] = Some(apply_one(Gather { index: self.index.clone() }, &operands)?);
        Ok(gradients)
    }
}

pub(super) fn as_index(op: &'static str, index: &Tensor) -> Result<Tensor> {
    if !index.dtype().is_int() {
        return Err(Error::dtypes(op, [index.dtype()], "index tensors have an integer dtype"));
    }
    ops::to_dtype(index, DType::I64)
}

/// x at index tensors for several axes (ascending); their common shape comes first in the result.
pub(crate) fn gather_axes(x: &Tensor, axes: SmallVec<[usize; 4]>, indices: &[Tensor]) -> Result<Tensor> {
    let operands: SmallVec<[&Tensor; 4]> = std::iter::once(x).chain(indices).collect();
    apply_one(Gather { index: Index::Axes(axes) }, &operands)
}

/// Zeros, with every slice of x along an axis added at its index in an axis of `len`: the transpose of
/// [`index_select`] by a vector of indices.
pub(crate) fn scatter_add_axis(x: &Tensor, axis: usize, index: &Tensor, len: usize) -> Result<Tensor> {
    let front = ops::movedim(x, &[axis as isize], &[0])?;
    let rest = front.shape()[1..].iter().copied();
    // An index into the first axis: the indices' axis comes first in x, and the rest follows.
    let shape = std::iter::once(len).chain(rest).collect();
    let scatter = ScatterAdd { index: Index::Axes(smallvec![0]), shape };
    ops::movedim(&apply_one(scatter, &[&front, index])?, &[0], &[axis as isize])
}

/// The slices of x at these indices of an axis (PyTorch's `index_select`, for index tensors of any
/// rank): the axis is replaced by the index tensor's axes. Negative indices count from the end.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::IndexOutOfBounds`], [`Error::DTypeMismatch`] for an index
/// tensor that is not of an integer dtype.
#[tensor_method]
pub fn index_select(x: &Tensor, axis: isize, index: &Tensor) -> Result<Tensor> {
    let at = x.shape().axis("index_select", axis)?;
    let index = as_index("index_select", index)?;
    let rank = index.rank();
    let picked = gather_axes(x, smallvec![at], &[index])?;
    // The index's axes came first; they belong where the axis was.
    let order: Vec<isize> =
        (rank..rank + at).chain(0..rank).chain(rank + at..picked.rank()).map(|a| a as isize).collect();
    if at == 0 { Ok(picked) } else { ops::permute(&picked, &order) }
}

/// yᵢⱼₖ = x at (i, indexᵢⱼₖ, k) for `axis` 1: one index an element (NumPy's `take_along_axis`,
/// PyTorch's `gather`). The index has x's rank; its other axes may be shorter. An index without elements may have any shape.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::IndexOutOfBounds`],
/// [`Error::DTypeMismatch`].
#[tensor_method]
pub fn take_along_axis(x: &Tensor, index: &Tensor, axis: isize) -> Result<Tensor> {
    let op = "take_along_axis";
    let axis = x.shape().axis(op, axis)?;
    let index = as_index(op, index)?;
    if index.size() == 0 && index.rank() != x.rank() {
        return ops::take(x, &index);
    }
    along(op, x.shape(), index.shape(), axis)?;
    apply_one(Gather { index: Index::Along(axis) }, &[x, &index])
}

pub(super) fn along(op: &'static str, shape: &Shape, index: &Shape, axis: usize) -> Result<()> {
    let fits = shape.rank() == index.rank() && (0..shape.rank()).all(|k| k == axis || index[k] <= shape[k]);
    let help = format!("the index has the tensor's rank, and apart from axis {axis} no longer axes");
    if fits { Ok(()) } else { Err(Error::shapes(op, [shape, index], help)) }
}

/// Zeros of `shape`, with each value of x added at its index along `axis`: the transpose of
/// [`take_along_axis`].
///
/// # Errors
/// Those of [`take_along_axis`].
#[tensor_method]
pub fn scatter_add_along(x: &Tensor, index: &Tensor, axis: isize, shape: impl Into<Shape>) -> Result<Tensor> {
    let op = "scatter_add_along";
    let shape = shape.into();
    let axis = shape.axis(op, axis)?;
    let index = as_index(op, index)?;
    along(op, &shape, index.shape(), axis)?;
    if x.shape() != index.shape() {
        return Err(Error::shapes(op, [x.shape(), index.shape()], "values and index have one shape"));
    }
    apply_one(ScatterAdd { index: Index::Along(axis), shape }, &[x, &index])
}

/// x with values put, or added, at an index along an axis; inputs are x, the values and the index.
#[derive(Clone, Copy)]
struct ScatterInto {
    axis: usize,
    combine: Combine,
}

impl Operation for ScatterInto {
    fn name(&self) -> &'static str {
        if self.combine == Combine::Add { "scatter_add" } else { "scatter" }
    }
    fn forward(&self, inputs: &[&Array], saves: &mut Saves) -> Result<Arrays> {
        saves.input(2);
        let out = inputs[0].copy()?;
        let kernel = kernel::Scatter { index: Index::Along(self.axis), combine: self.combine };
        engine::submit(&Kernel::Scatter(kernel), &inputs[1..], &[&out])?;
        Ok(smallvec![out])
    }
    fn backward(&self, saved: &Saved, grads: &Gradients, needed: Needed) -> Result<InputGradients> {
        let (g, index) = (grads.get(0)?, saved.input(2)?);
        let axis = self.axis as isize;
        let mut gradients: InputGradients = smallvec![None, None, None];
        if self.combine == Combine::Add {
            gradients[1] = needed.contains(1).then(|| take_along_axis(&g, &index, axis)).transpose()?;
            gradients[0] = Some(g);
            return Ok(gradients);
        }
        if needed.contains(0) {
            let zeros = ops::zeros(index.shape().clone(), g.dtype())?;
            gradients[0] = Some(apply_one(*self, &[&g, &zeros, &index])?);
        }
        if needed.contains(1) {
            // Of values for one place only the last is there: it finds its own number again.
            let numbers = ops::indices(index.size())?;
            let numbers = ops::reshape(&numbers, index.shape())?;
            let places = ops::zeros(g.shape().clone(), DType::I64)?;
            let put = apply_one(*self, &[&places, &numbers, &index])?;
            let stayed = ops::eq(&take_along_axis(&put, &index, axis)?, &numbers)?;
            gradients[1] = Some(ops::where_(&stayed, &take_along_axis(&g, &index, axis)?, 0)?);
        }
        Ok(gradients)
    }
}

fn scatter_into(x: &Tensor, index: &Tensor, values: &Tensor, axis: isize, combine: Combine) -> Result<Tensor> {
    let op = if combine == Combine::Add { "scatter_add" } else { "scatter" };
    let axis = x.shape().axis(op, axis)?;
    let index = as_index(op, index)?;
    along(op, x.shape(), index.shape(), axis)?;
    apply_one(ScatterInto { axis, combine }, &[x, &fitted(op, x, &index, values)?, &index])
}

/// The values that an index uses: one for each of its elements.
pub(super) fn fitted(op: &'static str, x: &Tensor, index: &Tensor, values: &Tensor) -> Result<Tensor> {
    let fits = values.rank() == index.rank() && (0..index.rank()).all(|k| index.shape()[k] <= values.shape()[k]);
    if !fits {
        let help = "there is a value for every index: no axis of the values is shorter";
        return Err(Error::shapes(op, [values.shape(), index.shape()], help));
    }
    if values.dtype() != x.dtype() {
        return Err(Error::dtypes(op, [x.dtype(), values.dtype()], "values have the tensor's dtype; use to_dtype()"));
    }
    let mut values = values.clone();
    for k in 0..index.rank() {
        if values.shape()[k] > index.shape()[k] {
            values = ops::narrow(&values, k as isize, 0, index.shape()[k])?;
        }
    }
    Ok(values)
}

/// x with each value put at its index along `axis`; of several for one place, the last in row-major order stays (NumPy's
/// `put_along_axis`, PyTorch's `scatter`). The index has x's rank; values beyond its axes are not used.
///
/// # Errors
/// Those of [`take_along_axis`]; [`Error::ShapeMismatch`] if there are fewer values than indices.
#[tensor_method]
pub fn scatter(x: &Tensor, index: &Tensor, values: &Tensor, axis: isize) -> Result<Tensor> {
    scatter_into(x, index, values, axis, Combine::Set)
}

/// x with each value added at its index along `axis`; values for one place accumulate.
///
/// # Errors
/// Those of [`scatter`].
#[tensor_method]
pub fn scatter_add(x: &Tensor, index: &Tensor, values: &Tensor, axis: isize) -> Result<Tensor> {
    scatter_into(x, index, values, axis, Combine::Add)
}

/// The positions of the elements that are not zero, row-major: one `i64` vector an axis. Their
/// number depends on values, so a captured step refuses it.
///
/// # Errors
/// [`Error::ReadInCapture`].
#[operation]
#[track_caller]
pub fn nonzero(x: &Tensor) -> Result<Vec<Tensor>> {
    positions("nonzero", x)
}

/// [`nonzero`], for the operation that needs it.
#[track_caller]
pub(crate) fn positions(op: &'static str, x: &Tensor) -> Result<Vec<Tensor>> {
    let help = "how many elements are chosen is a value too; where_(mask, x, 0), masked_fill(), masked_sum() and its kin \
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
    positions.iter().map(|p| Array::from_slice(x.device(), p, [p.len()].into()).map(Tensor::from)).collect()
}

/// The places that row-major positions have in this shape: one tensor of dtype `i64` an axis, of the positions' shape. A
/// position beyond the end begins again at 0, one before it counts from the end.
///
/// # Errors
/// [`Error::DTypeMismatch`] for positions that are not of an integer dtype; [`Error::OutOfMemory`] for a shape whose size
/// cannot be represented.
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
