//! Views: other layouts of the same storage. A kernel runs only if strides require a copy.
//!
//! The gradient of a reshape or a permutation is the inverse view. The gradient of a slice is a copy that is zero
//! outside the slice.

use crate::autograd::{apply_one, interface::*};
use crate::grad_mode::is_grad_enabled;
use crate::ops::call::axes::Axes;
use crate::ops::call::int_list::IntList;
use crate::ops::primitive::copy;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Integer, Layout, Result, Scalar, Shape};
use smallvec::SmallVec;

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

/// Returns the same elements, in row-major order, in another shape of the same size. One length may be −1 and is then
/// inferred.
///
/// The result is a view if the strides allow it, otherwise a copy.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the sizes differ; [`Error::InvalidArgument`] for two lengths of −1, or for −1 together
/// with a length of 0.
#[doc(alias("view", "view_as", "reshape_as"))]
#[tensor_method]
pub fn reshape(x: &Tensor, shape: impl Into<IntList>) -> Result<Tensor> {
    reshape_to(x, &shape.into().infer_shape("reshape", x.shape(), x.size())?)
}

/// Returns a view of all elements: x, or, under `no_grad`, a tensor without its history.
pub(in crate::ops) fn full_view(x: &Tensor) -> Tensor {
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
        let help =
            format!("{} elements cannot fill {shape}; the sizes must be equal; use -1 to infer one length", x.size());
        return Err(Error::shapes("reshape", [x.shape(), shape], help));
    }
    apply_one(Reshape { shape: shape.clone() }, &[x])
}

/// Merges the axes `start..=end` into one, in row-major order.
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
        return Err(Error::invalid("flatten", format!("start axis {start} comes after end axis {end}; exchange them")));
    }
    let dims = x.shape();
    let joined = dims[start..=end].iter().product();
    let shape = dims[..start].iter().copied().chain([joined]).chain(dims[end + 1..].iter().copied()).collect();
    reshape_to(x, &shape)
}

/// Removes axes of length 1: one axis, several axes, or with `..` all axes of length 1.
///
/// ```
/// use pellucid::{DType, Tensor};
/// let x = Tensor::zeros([1, 3, 1, 1], DType::F32);
/// assert_eq!(x.squeeze(0).shape().dims(), [3, 1, 1]);
/// assert_eq!(x.squeeze([0, -1]).shape().dims(), [3, 1]);
/// assert_eq!(x.squeeze(..).shape().dims(), [3]);
/// ```
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::ShapeMismatch`] if a named axis has a length other than 1;
/// [`Error::InvalidArgument`] if an axis is named twice.
#[tensor_method]
pub fn squeeze(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    let shape = x.shape();
    let named = axes.into().indices("squeeze", shape.rank(), shape)?;
    if let Some(&axis) = named.iter().flatten().find(|&&axis| shape[axis] != 1) {
        let help = format!("axis {axis} has length {}, not 1; select() picks one index of it", shape[axis]);
        return Err(Error::shapes("squeeze", [shape], help));
    }
    let goes = |axis: usize| named.as_ref().map_or(shape[axis] == 1, |named| named.contains(&axis));
    reshape_to(x, &(0..shape.rank()).filter(|&axis| !goes(axis)).map(|axis| shape[axis]).collect())
}

/// Inserts axes of length 1. The indices are positions in the result (−1 is the last axis).
///
/// ```
/// use pellucid::{DType, Tensor};
/// let x = Tensor::zeros([2, 3], DType::F32);
/// assert_eq!(x.unsqueeze(0).shape().dims(), [1, 2, 3]);
/// assert_eq!(x.unsqueeze([0, -1]).shape().dims(), [1, 2, 3, 1]);
/// ```
///
/// # Errors
/// [`Error::AxisOutOfRange`] for an axis that the result does not have; [`Error::InvalidArgument`] if an axis is named
/// twice, and for `..`.
#[doc(alias = "newaxis")]
#[tensor_method]
pub fn unsqueeze(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    let axes = axes.into();
    let rank = x.rank() + axes.count().unwrap_or(0);
    let Some(new_axes) = axes.indices("unsqueeze", rank, x.shape())? else {
        return Err(Error::invalid("unsqueeze", "unsqueeze needs explicit axes; `..` is not allowed"));
    };
    let mut x_lengths = x.shape().iter();
    let length = |axis: usize| match new_axes.contains(&axis) {
        true => 1,
        false => *x_lengths.next().expect("the result must have one axis of x for each axis that is not new"),
    };
    reshape_to(x, &(0..rank).map(length).collect())
}

impl Tensor {
    /// Inserts axes of length 1: NumPy's name for [`unsqueeze`](Tensor::unsqueeze).
    ///
    /// # Panics
    /// If [`ops::unsqueeze`](unsqueeze) returns an error.
    #[track_caller]
    pub fn expand_dims(&self, axes: impl Into<Axes>) -> Tensor {
        self.unsqueeze(axes)
    }
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
#[doc(alias = "permute_dims")]
#[tensor_method]
pub fn permute(x: &Tensor, order: impl Into<IntList>) -> Result<Tensor> {
    let order = order.into();
    let axes: AxisList = order.axes("permute", x.shape())?;
    if axes.len() != x.rank() {
        let reason = format!("{:?} must contain each axis of shape {} exactly once", &order[..], x.shape());
        return Err(Error::invalid("permute", reason));
    }
    apply_one(Permute { order: axes }, &[x])
}

/// Swaps two axes.
///
/// # Errors
/// [`Error::AxisOutOfRange`].
#[doc(alias("swapdims", "mT", "matrix_transpose"))]
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

/// Resolves two distinct axes of a shape.
pub(crate) fn checked_axes(op: &'static str, shape: &Shape, axis0: isize, axis1: isize) -> Result<(usize, usize)> {
    let (a, b) = (shape.axis(op, axis0)?, shape.axis(op, axis1)?);
    if a == b {
        return Err(Error::invalid(op, format!("axes {axis0} and {axis1} are the same; name two different axes")));
    }
    Ok((a, b))
}

/// Reverses the order of the axes: the transpose of a matrix.
///
/// # Errors
/// The operation is defined for every shape, so it returns no error.
#[doc(alias = "T")]
#[tensor_method]
pub fn t(x: &Tensor) -> Result<Tensor> {
    apply_one(Permute { order: (0..x.rank()).rev().collect() }, &[x])
}

/// Slices of axes, applied one after another: `(axis, start, step, len)`.
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
        let embed = EmbedSlices { slices: self.slices.clone(), shape: saved.input_shape(0), fill: 0.into() };
        Ok(smallvec![Some(apply_one(embed, &[&grads.get(0)?])?)])
    }
    fn is_view(&self) -> bool {
        true
    }
}

/// A tensor of `shape` with x in the slices and `fill` in all other elements. With a `fill` of 0 this is the transpose
/// of [`SliceAxes`].
struct EmbedSlices {
    slices: AxisSlices,
    shape: Shape,
    fill: Scalar,
}

impl Operation for EmbedSlices {
    fn name(&self) -> &'static str {
        "embed"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let x = inputs[0];
        let filled = Array::filled(x.device(), x.dtype(), self.shape.clone(), self.fill)?;
        copy::write_array(x, &filled.view(sliced_layout(filled.layout(), &self.slices)))?;
        Ok(smallvec![filled])
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        Ok(smallvec![Some(apply_one(SliceAxes { slices: self.slices.clone() }, &[&grads.get(0)?])?)])
    }
}

pub(crate) fn slice_axes(x: &Tensor, slices: AxisSlices) -> Result<Tensor> {
    if slices.is_empty() { Ok(full_view(x)) } else { apply_one(SliceAxes { slices }, &[x]) }
}

/// Returns a tensor of `shape` with x in the slices, and `fill` in all other elements.
pub(crate) fn embed_slices(x: &Tensor, shape: Shape, slices: AxisSlices, fill: Scalar) -> Result<Tensor> {
    apply_one(EmbedSlices { slices, shape, fill }, &[x])
}

/// Returns the indices `start..start + len` of an axis, as a view. A negative start counts from the end.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::IndexOutOfBounds`] if the range leaves the axis; [`Error::InvalidArgument`] for
/// a negative length.
#[tensor_method]
pub fn narrow(x: &Tensor, axis: isize, start: impl Integer, len: impl Integer) -> Result<Tensor> {
    narrow_at(x, axis, start.to_isize(), len.to_isize())
}

fn narrow_at(x: &Tensor, axis: isize, start: isize, len: isize) -> Result<Tensor> {
    let axis = x.shape().axis("narrow", axis)?;
    let axis_len = x.shape()[axis];
    let first = if start < 0 { start.saturating_add_unsigned(axis_len) } else { start };
    match (usize::try_from(first), usize::try_from(len)) {
        (Ok(first), Ok(len)) if first.checked_add(len).is_some_and(|end| end <= axis_len) => {
            slice_axes(x, smallvec![(axis, first, 1, len)])
        }
        (Err(_), _) => Err(Error::IndexOutOfBounds { op: "narrow", index: start as i64, axis, len: axis_len }),
        (_, Err(_)) => Err(Error::invalid("narrow", format!("the length must be at least 0, got {len}"))),
        _ => {
            Err(Error::IndexOutOfBounds { op: "narrow", index: first.saturating_add(len) as i64, axis, len: axis_len })
        }
    }
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
    let index = index.rem_euclid(len) as usize;
    squeeze(&slice_axes(x, smallvec![(axis, index, 1, 1)])?, axis)
}

/// Reverses the order of the elements along axes, as a view.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] if an axis is given twice.
#[doc(alias("fliplr", "flipud"))]
#[tensor_method]
pub fn flip(x: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    let axes = axes.into().resolve("flip", x.shape())?.set;
    let reversed = |a: usize| (a, x.shape()[a].saturating_sub(1), -1, x.shape()[a]);
    slice_axes(x, axes.iter().map(reversed).collect())
}

/// Moves the axes `from` to the positions `to`. The other axes keep their order.
///
/// # Errors
/// [`Error::InvalidArgument`] if the lists differ in length or contain an axis twice; [`Error::AxisOutOfRange`].
#[doc(alias = "moveaxis")]
#[tensor_method]
pub fn movedim(x: &Tensor, from: impl Into<IntList>, to: impl Into<IntList>) -> Result<Tensor> {
    let (from, to) = (from.into(), to.into());
    if from.len() != to.len() {
        let reason =
            format!("the lists must have one new position for each axis, got {:?} to {:?}", &from[..], &to[..]);
        return Err(Error::invalid("movedim", reason));
    }
    let (from, to) = (from.axes("movedim", x.shape())?, to.axes("movedim", x.shape())?);
    let mut others = (0..x.rank()).filter(|a| !from.contains(a));
    let source = |k: usize| match to.iter().position(|&t| t == k) {
        Some(i) => from[i] as isize,
        None => others.next().expect("`others` must have one axis for each position that is not in `to`") as isize,
    };
    permute(x, (0..x.rank()).map(source).collect::<Vec<_>>())
}

/// Flattens x to one axis in row-major order. The result is a view if the strides allow it, otherwise a copy.
///
/// # Errors
/// [`Error::OutOfMemory`].
#[tensor_method]
pub fn ravel(x: &Tensor) -> Result<Tensor> {
    reshape_to(x, &[x.size()].into())
}
