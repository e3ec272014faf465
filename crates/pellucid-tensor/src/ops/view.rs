//! Views: other layouts of the same storage. No kernel runs, unless strides require a copy.
//!
//! The gradient of a view is the inverse view.

use crate::array::Array;
use crate::autograd::{
    Arrays, InputGradients, NeedsInputGrad, Operation, OutputGradients, SaveForBackward, SavedTensors, apply, apply_one,
};
use crate::grad_mode::is_grad_enabled;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Layout, Result, Scalar, Shape};
use smallvec::{SmallVec, smallvec};

/// A list of axes.
type AxisList = SmallVec<[usize; 6]>;

struct Reshape {
    shape: Shape,
}

impl Operation for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        Ok(smallvec![inputs[0].reshape(&self.shape)?])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        Ok(smallvec![Some(reshape_to(&grads.get(0)?, &saved.input_shape(0))?)])
    }
    fn is_view(&self) -> bool {
        true
    }
}

/// A shape in which one length may be −1, to be inferred.
#[derive(Clone, Debug)]
pub struct TargetShape(pub(super) SmallVec<[isize; 6]>);

macro_rules! target_from {
    ($($t:ty: $length:expr),*) => {$(
        impl<const N: usize> From<[$t; N]> for TargetShape {
            fn from(dims: [$t; N]) -> TargetShape {
                TargetShape(dims.into_iter().map($length).collect())
            }
        }
        impl From<&[$t]> for TargetShape {
            fn from(dims: &[$t]) -> TargetShape {
                TargetShape(dims.iter().copied().map($length).collect())
            }
        }
    )*};
}
// A length beyond `isize` is too long in any case; it must not become −1, which is inferred.
target_from!(isize: |d| d, usize: |d| isize::try_from(d).unwrap_or(isize::MAX), i32: |d| d as isize);

impl From<&Shape> for TargetShape {
    fn from(shape: &Shape) -> TargetShape {
        TargetShape::from(shape.dims())
    }
}

impl From<isize> for TargetShape {
    fn from(len: isize) -> TargetShape {
        TargetShape::from([len])
    }
}

impl From<i32> for TargetShape {
    fn from(len: i32) -> TargetShape {
        TargetShape::from([len])
    }
}

impl From<()> for TargetShape {
    fn from((): ()) -> TargetShape {
        TargetShape(SmallVec::new())
    }
}

impl TargetShape {
    /// Returns the shape, with the length −1 inferred, for `size` elements of a tensor of shape `from`.
    pub(crate) fn resolve(&self, op: &'static str, from: &Shape, size: usize) -> Result<Shape> {
        let TargetShape(dims) = self;
        let open = dims.iter().filter(|&&d| d == -1).count();
        if open > 1 || dims.iter().any(|&d| d < -1) {
            let reason = format!("lengths must be ≥ 0, at most one of them -1, got {dims:?}");
            return Err(Error::invalid(op, reason));
        }
        let known = dims.iter().filter(|&&d| d >= 0).fold(1usize, |n, &d| n.saturating_mul(d as usize));
        if open == 1 && known == 0 {
            return Err(Error::invalid(
                op,
                format!("the length -1 cannot be inferred beside a length of 0, got {dims:?}"),
            ));
        }
        let rest = size.checked_div(known).unwrap_or(0);
        if open == 1 && rest.saturating_mul(known) != size {
            let help = format!("{size} elements cannot fill {dims:?}, because {known} does not divide {size}");
            return Err(Error::shapes(op, [from], help));
        }
        Ok(dims.iter().map(|&d| if d == -1 { rest } else { d as usize }).collect())
    }
}

/// Returns the same elements, in row-major order, in another shape of the same size. One length may be −1 and is
/// inferred.
///
/// The result is a view if the strides allow it, else a copy.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the sizes differ; [`Error::InvalidArgument`] for two lengths of −1, or one with a length
/// of 0.
#[tensor_method]
pub fn reshape(x: &Tensor, shape: impl Into<TargetShape>) -> Result<Tensor> {
    reshape_to(x, &shape.into().resolve("reshape", x.shape(), x.size())?)
}

/// Returns the view of all elements: x itself, or, under `no_grad`, a tensor without its history.
pub(super) fn full_view(x: &Tensor) -> Tensor {
    if is_grad_enabled() || !x.requires_grad() {
        return x.clone();
    }
    let view = x.detach();
    view.mark_untracked_view(x);
    view
}

pub(crate) fn reshape_to(x: &Tensor, shape: &Shape) -> Result<Tensor> {
    if x.shape() == shape {
        return Ok(full_view(x));
    }
    if shape.checked_size() != Some(x.size()) {
        let help = format!("{} elements cannot fill {shape}; the sizes must be equal", x.size());
        return Err(Error::shapes("reshape", [x.shape(), shape], help));
    }
    apply_one(Reshape { shape: shape.clone() }, &[x])
}

/// Joins the axes `start..=end` into one, in row-major order.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] if `start` comes after `end`.
#[tensor_method]
pub fn flatten(x: &Tensor, start: isize, end: isize) -> Result<Tensor> {
    if x.rank() == 0 {
        return reshape_to(x, &[1].into());
    }
    let (start, end) = (x.shape().axis("flatten", start)?, x.shape().axis("flatten", end)?);
    if start > end {
        return Err(Error::invalid("flatten", format!("start axis {start} comes after end axis {end}")));
    }
    let dims = x.shape();
    let joined = dims[start..=end].iter().product();
    let shape = dims[..start].iter().copied().chain([joined]).chain(dims[end + 1..].iter().copied()).collect();
    reshape_to(x, &shape)
}

/// Removes `axis`, whose length must be 1.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::ShapeMismatch`] if its length is not 1.
#[tensor_method]
pub fn squeeze(x: &Tensor, axis: isize) -> Result<Tensor> {
    let axis = x.shape().axis("squeeze", axis)?;
    if x.shape()[axis] != 1 {
        let help = format!("axis {axis} has length {}, not 1; select() picks one index of it", x.shape()[axis]);
        return Err(Error::shapes("squeeze", [x.shape()], help));
    }
    let shape = x.shape().iter().enumerate().filter(|(k, _)| *k != axis).map(|(_, &d)| d).collect();
    reshape_to(x, &shape)
}

/// Inserts a new axis of length 1 before `axis` (−1: after the last).
///
/// # Errors
/// [`Error::AxisOutOfRange`] for an axis that the result does not have.
#[tensor_method]
pub fn unsqueeze(x: &Tensor, axis: isize) -> Result<Tensor> {
    let rank = x.rank() as isize + 1;
    if axis < -rank || axis >= rank {
        return Err(Error::AxisOutOfRange { op: "unsqueeze", axis, shape: x.shape().clone() });
    }
    let at = axis.rem_euclid(rank) as usize;
    let dims = x.shape();
    let shape = dims[..at].iter().copied().chain([1]).chain(dims[at..].iter().copied()).collect();
    reshape_to(x, &shape)
}

struct Permute {
    order: AxisList,
}

impl Operation for Permute {
    fn name(&self) -> &'static str {
        "permute"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        Ok(smallvec![inputs[0].view(inputs[0].layout().permute(&self.order))])
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let mut inverse: AxisList = SmallVec::from_elem(0, self.order.len());
        for (k, &axis) in self.order.iter().enumerate() {
            inverse[axis] = k;
        }
        Ok(smallvec![Some(apply_one(Permute { order: inverse }, &[&grads.get(0)?])?)])
    }
    fn is_view(&self) -> bool {
        true
    }
}

/// Permutes the axes: axis k of the result is axis `order[k]` of x.
///
/// # Errors
/// [`Error::InvalidArgument`] if `order` does not contain every axis once.
#[tensor_method]
pub fn permute(x: &Tensor, order: &[isize]) -> Result<Tensor> {
    let axes: AxisList = order.iter().map(|&a| x.shape().axis("permute", a)).collect::<Result<_>>()?;
    if axes.len() != x.rank() || (0..x.rank()).any(|a| !axes.contains(&a)) {
        let reason = format!("{order:?} does not contain every axis of shape {} once", x.shape());
        return Err(Error::invalid("permute", reason));
    }
    apply_one(Permute { order: axes }, &[x])
}

/// Swaps two axes.
///
/// # Errors
/// [`Error::AxisOutOfRange`].
#[tensor_method]
pub fn transpose(x: &Tensor, axis0: isize, axis1: isize) -> Result<Tensor> {
    let (a, b) = (x.shape().axis("transpose", axis0)?, x.shape().axis("transpose", axis1)?);
    let mut order: AxisList = (0..x.rank()).collect();
    order.swap(a, b);
    apply_one(Permute { order }, &[x])
}

/// Swaps two axes; NumPy's name for [`transpose`].
///
/// # Errors
/// [`Error::AxisOutOfRange`].
#[tensor_method]
pub fn swapaxes(x: &Tensor, axis0: isize, axis1: isize) -> Result<Tensor> {
    transpose(x, axis0, axis1)
}

/// Resolves two axes of a shape, which must differ.
pub(crate) fn checked_axes(op: &'static str, shape: &Shape, axis0: isize, axis1: isize) -> Result<(usize, usize)> {
    let (a, b) = (shape.axis(op, axis0)?, shape.axis(op, axis1)?);
    if a == b {
        return Err(Error::invalid(op, format!("axes {axis0} and {axis1} are the same")));
    }
    Ok((a, b))
}

/// Reverses the order of the axes: the transpose of a matrix.
///
/// # Errors
/// The operation is defined for every shape, so it returns no error.
#[tensor_method]
pub fn t(x: &Tensor) -> Result<Tensor> {
    apply_one(Permute { order: (0..x.rank()).rev().collect() }, &[x])
}

/// Slices of axes, applied one after the other: `(axis, start, step, len)`.
pub(crate) type AxisSlices = SmallVec<[(usize, usize, isize, usize); 4]>;

fn sliced_layout(layout: &Layout, slices: &AxisSlices) -> Layout {
    slices.iter().fold(layout.clone(), |l, &(axis, start, step, len)| l.slice(axis, start, step, len))
}

struct SliceAxes {
    slices: AxisSlices,
}

impl Operation for SliceAxes {
    fn name(&self) -> &'static str {
        "slice"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        Ok(smallvec![inputs[0].view(sliced_layout(inputs[0].layout(), &self.slices))])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let embed = EmbedSlices { slices: self.slices.clone(), shape: saved.input_shape(0), rest: 0.into() };
        Ok(smallvec![Some(apply_one(embed, &[&grads.get(0)?])?)])
    }
    fn is_view(&self) -> bool {
        true
    }
}

/// A tensor of `shape` with x in the slices and `rest` elsewhere. With a `rest` of 0 this is the transpose of
/// [`SliceAxes`].
struct EmbedSlices {
    slices: AxisSlices,
    shape: Shape,
    rest: Scalar,
}

impl Operation for EmbedSlices {
    fn name(&self) -> &'static str {
        "embed"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let x = inputs[0];
        let whole = Array::filled(x.device(), x.dtype(), self.shape.clone(), self.rest)?;
        super::copy::write_array(x, &whole.view(sliced_layout(whole.layout(), &self.slices)))?;
        Ok(smallvec![whole])
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        Ok(smallvec![Some(apply_one(SliceAxes { slices: self.slices.clone() }, &[&grads.get(0)?])?)])
    }
}

pub(crate) fn slice_axes(x: &Tensor, slices: AxisSlices) -> Result<Tensor> {
    if slices.is_empty() { Ok(full_view(x)) } else { apply_one(SliceAxes { slices }, &[x]) }
}

/// Returns a tensor of this shape with x in a part of it, and `rest` elsewhere.
pub(crate) fn embed_slices(x: &Tensor, shape: Shape, slices: AxisSlices, rest: Scalar) -> Result<Tensor> {
    apply_one(EmbedSlices { slices, shape, rest }, &[x])
}

/// Returns the indices `start..start + len` of an axis, as a view.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::IndexOutOfBounds`] if the range leaves the axis.
#[tensor_method]
pub fn narrow(x: &Tensor, axis: isize, start: usize, len: usize) -> Result<Tensor> {
    let axis = x.shape().axis("narrow", axis)?;
    let end = start.checked_add(len).filter(|&e| e <= x.shape()[axis]);
    if end.is_none() {
        let index = i64::try_from(start.saturating_add(len)).unwrap_or(i64::MAX);
        return Err(Error::IndexOutOfBounds { op: "narrow", index, axis, len: x.shape()[axis] });
    }
    slice_axes(x, smallvec![(axis, start, 1, len)])
}

/// Returns the slice at one index of an axis, without the axis; −1 is the last index.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::IndexOutOfBounds`].
#[tensor_method]
pub fn select(x: &Tensor, axis: isize, index: isize) -> Result<Tensor> {
    let axis = x.shape().axis("select", axis)?;
    let len = x.shape()[axis] as isize;
    if index < -len || index >= len {
        return Err(Error::IndexOutOfBounds { op: "select", index: index as i64, axis, len: len as usize });
    }
    let at = index.rem_euclid(len) as usize;
    squeeze(&slice_axes(x, smallvec![(axis, at, 1, 1)])?, axis as isize)
}

/// Reverses the order of the elements along axes, as a view.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] if an axis is given twice.
#[tensor_method]
pub fn flip(x: &Tensor, axes: impl Into<super::Axes>) -> Result<Tensor> {
    let axes = axes.into().resolve("flip", x.shape())?.set;
    let reversed = |a: usize| (a, x.shape()[a].saturating_sub(1), -1, x.shape()[a]);
    slice_axes(x, axes.iter().map(reversed).collect())
}

/// All parts as outputs of one node, whose gradient is their concatenation. One [`SliceAxes`] per part would allocate a
/// gradient of the whole shape for each.
struct Split {
    axis: usize,
    lengths: Vec<usize>,
}

impl Operation for Split {
    fn name(&self) -> &'static str {
        "split"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let mut start = 0;
        let part = |&len: &usize| {
            let layout = inputs[0].layout().slice(self.axis, start, 1, len);
            start += len;
            inputs[0].view(layout)
        };
        Ok(self.lengths.iter().map(part).collect())
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let parts: Vec<Tensor> = (0..grads.len()).map(|i| grads.get(i)).collect::<Result<_>>()?;
        let parts: Vec<&Tensor> = parts.iter().collect();
        Ok(smallvec![Some(super::concatenate(&parts, self.axis as isize)?)])
    }
    fn is_view(&self) -> bool {
        true
    }
}

/// Splits x along an axis into views of these lengths.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] if the lengths do not add up to that of the axis.
#[tensor_method]
pub fn split(x: &Tensor, lengths: &[usize], axis: isize) -> Result<Vec<Tensor>> {
    let at = x.shape().axis("split", axis)?;
    if lengths.iter().try_fold(0usize, |sum, &l| sum.checked_add(l)) != Some(x.shape()[at]) {
        let reason = format!("lengths {lengths:?} do not add up to {}, the length of axis {at}", x.shape()[at]);
        return Err(Error::invalid("split", reason));
    }
    if lengths.is_empty() {
        return Ok(Vec::new());
    }
    Ok(apply(Split { axis: at, lengths: lengths.to_vec() }, &[x])?.into_vec())
}
