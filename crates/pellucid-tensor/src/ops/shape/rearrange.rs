//! Rearrangements: moving, repeating and splitting elements.
//!
//! Most operations are composed of other operations, such as views and concatenations, which define their gradients:
//! gradients of repeated elements are summed.

use crate::array::host_values;
use crate::autograd::{apply_one, interface::*, note_call_location};
use crate::ops::call::check;
use crate::ops::call::int_list::IntList;
use crate::ops::formula::broadcast;
use crate::ops::primitive::copy::{copy, write_array};
use crate::ops::primitive::view::{movedim, ravel, reshape_to, slice_axes};
use crate::ops::primitive::{concatenate, create, gather, view};
use crate::panic;
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::{Error, Result, Shape, from_integers};
use smallvec::smallvec;

/// A cyclic shift of the elements towards the end of an axis, by less than its length and at least 1.
struct Roll {
    axis: usize,
    shift: usize,
}

impl Operation for Roll {
    fn name(&self) -> &'static str {
        "roll"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let x = inputs[0];
        let kept = x.shape()[self.axis] - self.shift;
        let out = Array::new(x.device(), x.dtype(), x.shape().clone())?;
        for (from, to, len) in [(0, self.shift, kept), (kept, 0, self.shift)] {
            let part = |array: &Array, start: usize| array.view(array.layout().slice(self.axis, start, 1, len));
            write_array(&part(x, from), &part(&out, to))?;
        }
        Ok(smallvec![out])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let shift = saved.input_shape(0)[self.axis] - self.shift;
        Ok(smallvec![Some(apply_one(Roll { axis: self.axis, shift }, &[&grads.get(0)?])?)])
    }
}

/// Shifts elements cyclically by `shifts[k]` along axis `axes[k]`. Positive shifts move towards the end.
///
/// One shift without axes shifts the flattened tensor: `x.roll(1, ())`.
///
/// # Errors
/// [`Error::InvalidArgument`] for no shift, or unless there is one shift per axis; [`Error::AxisOutOfRange`].
#[tensor_method]
pub fn roll(x: &Tensor, shifts: impl Into<IntList>, axes: impl Into<IntList>) -> Result<Tensor> {
    let (shifts, axes) = (shifts.into(), axes.into());
    if axes.is_empty() && shifts.len() == 1 {
        return reshape_to(&roll(&ravel(x)?, shifts, 0.into())?, x.shape());
    }
    if shifts.is_empty() || shifts.len() != axes.len() {
        let reason =
            format!("`shifts` must have one value for each axis, got {:?} for the axes {:?}", &shifts[..], &axes[..]);
        return Err(Error::invalid("roll", reason));
    }
    let axes: Vec<usize> = axes.iter().map(|&a| x.shape().axis("roll", a)).collect::<Result<_>>()?;
    let mut y = x.clone();
    for (axis, &shift) in axes.into_iter().zip(&shifts[..]) {
        let len = x.shape()[axis];
        let shift = if len == 0 { 0 } else { shift.rem_euclid(len as isize) as usize };
        if shift != 0 {
            y = apply_one(Roll { axis, shift }, &[&y])?;
        }
    }
    copy_if_aliased(x, y)
}

/// Rotates x by `times` quarter turns in the plane of two axes, from the first towards the second.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] if the axes are equal.
#[tensor_method]
pub fn rot90(x: &Tensor, times: isize, axes: [isize; 2]) -> Result<Tensor> {
    let [a, b] = axes;
    let (first, second) = (x.shape().axis("rot90", a)?, x.shape().axis("rot90", b)?);
    if first == second {
        return Err(Error::invalid("rot90", format!("axes {a} and {b} are the same; name two different axes")));
    }
    let rotated = match times.rem_euclid(4) {
        0 => x.clone(),
        1 => view::flip(&view::transpose(x, a, b)?, a)?,
        2 => view::flip(x, axes)?,
        _ => view::transpose(&view::flip(x, a)?, a, b)?,
    };
    copy_if_aliased(x, rotated)
}

/// Splits one axis into several axes with these lengths. One length may be −1.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::ShapeMismatch`] if the product of the lengths is not the length of the axis;
/// [`Error::InvalidArgument`] for two lengths of −1.
#[tensor_method]
pub fn unflatten(x: &Tensor, axis: isize, lengths: impl Into<IntList>) -> Result<Tensor> {
    let axis = x.shape().axis("unflatten", axis)?;
    let lengths = lengths.into().infer_shape("unflatten", x.shape(), x.shape()[axis])?;
    if lengths.checked_size() != Some(x.shape()[axis]) {
        let help = format!("axis {axis} of length {} cannot be split into {lengths}", x.shape()[axis]);
        return Err(Error::shapes("unflatten", [x.shape()], help));
    }
    let dims = x.shape();
    let shape: Shape = dims[..axis].iter().chain(lengths.dims()).chain(&dims[axis + 1..]).copied().collect();
    reshape_to(x, &shape)
}

/// Repeats every element along an axis (NumPy's `repeat`, PyTorch's `repeat_interleave`). [`tile`] repeats the tensor.
///
/// `times` is one count for all indices of the axis, or one count per index. Without an axis, x is flattened in
/// row-major order.
///
/// ```
/// use pellucid::Tensor;
/// let x = Tensor::from([[1, 2], [3, 4]]);
/// assert_eq!(x.repeat(2, 1).to_vec::<i64>(), [1, 1, 2, 2, 3, 3, 4, 4]);
/// assert_eq!(x.repeat([1, 2], 0).to_vec::<i64>(), [1, 2, 3, 4, 3, 4]);
/// assert_eq!(x.repeat(2, None).to_vec::<i64>(), [1, 1, 2, 2, 3, 3, 4, 4]);
/// ```
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] unless there is one count, or one per index, and for negative
/// counts; [`Error::OutOfMemory`].
#[doc(alias = "repeat_interleave")]
#[tensor_method]
pub fn repeat(x: &Tensor, times: impl Into<IntList>, axis: impl Into<Option<isize>>) -> Result<Tensor> {
    let times = times.into();
    let Some(axis) = axis.into() else {
        return repeat(&ravel(x)?, times, Some(0));
    };
    let axis = x.shape().axis("repeat", axis)?;
    let len = x.shape()[axis];
    match times.counts("repeat")?[..] {
        [times] => {
            let column = view::unsqueeze(x, axis + 1)?;
            let repeated = broadcast::broadcast_to(&column, column.shape().with_axis(axis + 1, times))?;
            let shape = x.shape().with_axis(axis, len.checked_mul(times).ok_or_else(Error::size_overflow)?);
            copy_if_aliased(x, reshape_to(&repeated, &shape)?)
        }
        ref times if times.len() == len => {
            let total = times.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)).ok_or_else(Error::size_overflow)?;
            let each = times.iter().enumerate();
            let index = host_values(total, each.flat_map(|(i, &n)| std::iter::repeat_n(i as i64, n)))?;
            gather::index_select(x, axis as isize, &create::from_host(&index[..], [index.len()])?)
        }
        ref times => {
            let reason = format!(
                "`times` must have one value, or one for each of the {len} indices of axis {axis}, got {} values",
                times.len()
            );
            Err(Error::invalid("repeat", reason))
        }
    }
}

/// Repeats the entire tensor along every axis (PyTorch's `repeat`). The shorter of `times` and the shape is padded with
/// leading 1s.
///
/// # Errors
/// [`Error::InvalidArgument`] for negative counts; [`Error::OutOfMemory`].
#[doc(alias = "repeat")]
#[tensor_method]
pub fn tile(x: &Tensor, times: impl Into<IntList>) -> Result<Tensor> {
    let times = times.into().counts("tile")?;
    let rank = x.rank().max(times.len());
    let length = |k: usize| (k + x.rank()).checked_sub(rank).map_or(1, |axis| x.shape()[axis]);
    let count = |k: usize| (k + times.len()).checked_sub(rank).map_or(1, |axis| times[axis]);
    // A repetition axis is inserted before each axis, and the two are merged.
    let unjoined: Shape = (0..rank).flat_map(|k| [1, length(k)]).collect();
    let repeated: Shape = (0..rank).flat_map(|k| [count(k), length(k)]).collect();
    if let Some(k) = (0..rank).find(|&k| count(k).checked_mul(length(k)).is_none_or(|len| len > isize::MAX as usize)) {
        let (len, count) = (length(k), count(k));
        let reason = format!("axis {k} of length {len} is too long when repeated {count} times");
        return Err(Error::invalid("tile", reason));
    }
    let joined: Shape = (0..rank).map(|k| count(k) * length(k)).collect();
    if joined.checked_size().is_none() {
        return Err(Error::invalid("tile", format!("the result of shape {joined} has too many elements")));
    }
    copy_if_aliased(x, reshape_to(&broadcast::broadcast_to(&reshape_to(x, &unjoined)?, repeated)?, &joined)?)
}

/// The order of the first two axes of [`meshgrid`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MeshgridIndexing {
    /// The axis of the first tensor comes first: matrix coordinates (i, j).
    Ij,
    /// The axis of the second tensor comes first: Cartesian coordinates (x, y).
    Xy,
}

/// Returns coordinate tensors of a grid: tensor k contains the coordinate of vector k at every grid point.
///
/// # Errors
/// [`Error::ShapeMismatch`] for a tensor of rank 2 or more.
#[operation]
pub fn meshgrid(vectors: &[&Tensor], indexing: MeshgridIndexing) -> Result<Vec<Tensor>> {
    if vectors.iter().any(|v| v.rank() > 1) {
        let help = "all inputs must be vectors; reshape() or ravel() the others";
        return Err(Error::shapes("meshgrid", vectors.iter().map(|v| v.shape()), help));
    }
    let rank = vectors.len();
    let grid_axis = |k: usize| if indexing == MeshgridIndexing::Xy && rank > 1 && k < 2 { 1 - k } else { k };
    let mut shape = Shape::from(vec![1; rank]);
    for (k, v) in vectors.iter().enumerate() {
        shape = shape.with_axis(grid_axis(k), v.size());
    }
    let spread = |(k, v): (usize, &&Tensor)| {
        let vector_shape = Shape::from(vec![1; rank]).with_axis(grid_axis(k), v.size());
        broadcast::broadcast_to(&reshape_to(v, &vector_shape)?, shape.clone())
    };
    vectors.iter().enumerate().map(spread).collect()
}

/// All windows of an axis as a view.
struct WindowView {
    axis: usize,
    size: usize,
    step: usize,
}

impl Operation for WindowView {
    fn name(&self) -> &'static str {
        "windows"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        Ok(smallvec![inputs[0].view(inputs[0].layout().windows(self.axis, self.size, self.step))])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let (shape, &WindowView { axis, size, step }) = (saved.input_shape(0), self);
        let by_window = movedim(&grads.get(0)?, [-1], [axis as isize + 1])?;
        let (count, len) = (by_window.shape()[axis], shape[axis]);
        let elements = reshape_to(&by_window, &shape.with_axis(axis, count * size))?;
        let index = (0..count).flat_map(|w| (0..size).map(move |i| (w * step + i) as i64));
        let index = create::from_host(&host_values(count * size, index)?, [count * size])?;
        Ok(smallvec![Some(gather::scatter_add_axis(&elements, axis, &index, len)?)])
    }
    fn is_view(&self) -> bool {
        true
    }
}

/// Returns all windows of `size` indices along an axis, with stride `step`, as a view (PyTorch's `unfold`).
///
/// The axis then enumerates the windows, and a new last axis the elements of each window. Windows that overlap share
/// elements, so they cannot be written in place.
///
/// ```
/// use pellucid::Tensor;
/// let x = Tensor::from([1.0f32, 2.0, 3.0, 4.0]);
/// assert_eq!(x.windows(0, 2, 1).to_vec::<f32>(), [1.0, 2.0, 2.0, 3.0, 3.0, 4.0]);
/// ```
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] for a step of 0, or a window longer than the axis.
#[doc(alias("unfold", "sliding_window_view"))]
#[tensor_method]
pub fn windows(x: &Tensor, axis: isize, size: usize, step: usize) -> Result<Tensor> {
    let axis = x.shape().axis("windows", axis)?;
    let len = x.shape()[axis];
    if step == 0 || size > len {
        let reason = format!("the step must be above 0, and the size at most {len}, got step {step} and size {size}");
        return Err(Error::invalid("windows", reason));
    }
    let count = (len - size) / step + 1;
    let lengths = x.shape().with_axis(axis, count);
    lengths.iter().try_fold(size, |total, &len| total.checked_mul(len)).ok_or_else(Error::size_overflow)?;
    apply_one(WindowView { axis, size, step }, &[x])
}

/// Splits x along an axis into at most `count` views of ⌈length/count⌉ indices; the last one may be shorter.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] for a count of 0; [`Error::OutOfMemory`] if memory cannot hold
/// the parts.
#[tensor_method]
pub fn chunk(x: &Tensor, count: usize, axis: isize) -> Result<Vec<Tensor>> {
    let at = x.shape().axis("chunk", axis)?;
    if count == 0 {
        return Err(Error::invalid(
            "chunk",
            "the number of parts must be at least 1, got 0; 1 returns the entire tensor",
        ));
    }
    match x.shape()[at].div_ceil(count) {
        0 => {
            check::affordable_parts(count)?;
            concatenate::split(x, vec![0usize; count], axis)
        }
        size => concatenate::split(x, size, axis),
    }
}

/// The sections of [`tensor_split`]. Can be created from a count, or from a list of indices.
#[derive(Clone, Debug)]
pub enum Sections {
    /// The number of sections. If it does not divide the length, the first sections are longer by one.
    Count(usize),
    /// The indices before which the axis is split. They may be negative or beyond the end.
    At(Vec<isize>),
}

// A negative count becomes 0, which `tensor_split` rejects.
from_integers!(
    Sections,
    number: |count: isize| Sections::Count(count.max(0) as usize),
    list: |list| Sections::At(Iterator::collect(list))
);

/// Splits x along an axis into `count` sections, or before given indices, as views (NumPy's `array_split`).
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] for 0 parts; [`Error::OutOfMemory`] if memory cannot hold the
/// parts.
#[doc(alias("array_split", "hsplit", "vsplit", "dsplit"))]
#[tensor_method]
pub fn tensor_split(x: &Tensor, sections: impl Into<Sections>, axis: isize) -> Result<Vec<Tensor>> {
    let axis = x.shape().axis("tensor_split", axis)?;
    let len = x.shape()[axis];
    let bounds: Vec<(usize, usize)> = match sections.into() {
        Sections::Count(0) => {
            return Err(Error::invalid(
                "tensor_split",
                "the number of parts must be at least 1, got 0; 1 returns the entire tensor",
            ));
        }
        Sections::Count(count) => {
            let (size, longer) = (len / count, len % count);
            let start = |k: usize| k * size + k.min(longer);
            check::affordable_parts(count)?;
            host_values(count, (0..count).map(|k| (start(k), start(k + 1))))?
        }
        Sections::At(indices) => {
            let bound = |i: &isize| if *i < 0 { len.saturating_sub(i.unsigned_abs()) } else { len.min(*i as usize) };
            let split_points: Vec<usize> = indices.iter().map(bound).collect();
            let starts = std::iter::once(0).chain(split_points.iter().copied());
            starts.zip(split_points.iter().copied().chain([len])).map(|(a, b)| (a, b.max(a))).collect()
        }
    };
    bounds.into_iter().map(|(start, end)| slice_axes(x, smallvec![(axis, start, 1, end - start)])).collect()
}

/// Returns views of the slices at every index of an axis. The slices do not have this axis.
///
/// # Errors
/// [`Error::AxisOutOfRange`].
#[doc(alias = "unstack")]
#[tensor_method]
pub fn unbind(x: &Tensor, axis: isize) -> Result<Vec<Tensor>> {
    let at = x.shape().axis("unbind", axis)?;
    if x.shape()[at] == 0 {
        return Ok(Vec::new());
    }
    concatenate::split(x, 1, axis)?.iter().map(|part| view::squeeze(part, at)).collect()
}

impl Tensor {
    /// Returns an iterator over views of the slices along the first axis: [`unbind`] of axis 0.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// let x = Tensor::from([[1.0, 2.0], [3.0, 4.0]]);
    /// let sums: Vec<f64> = x.iter().map(|row| row.sum(..).item()).collect();
    /// assert_eq!(sums, [3.0, 7.0]);
    /// for row in &x {
    ///     assert_eq!(row.shape().dims(), [2]);
    /// }
    /// ```
    ///
    /// # Panics
    /// For a 0-d tensor.
    #[track_caller]
    pub fn iter(&self) -> std::vec::IntoIter<Tensor> {
        let _call = note_call_location();
        let reason = "a 0-d tensor has no axis to iterate over; item() returns its element";
        let slices = if self.rank() == 0 { Err(Error::invalid("iter", reason)) } else { unbind(self, 0) };
        panic::unwrap(slices).into_iter()
    }
}

impl IntoIterator for &Tensor {
    type Item = Tensor;
    type IntoIter = std::vec::IntoIter<Tensor>;

    /// Iterates over the first axis as [`Tensor::iter`] does.
    #[track_caller]
    fn into_iter(self) -> std::vec::IntoIter<Tensor> {
        self.iter()
    }
}

impl IntoIterator for Tensor {
    type Item = Tensor;
    type IntoIter = std::vec::IntoIter<Tensor>;

    /// Iterates over the first axis as [`Tensor::iter`] does.
    #[track_caller]
    fn into_iter(self) -> std::vec::IntoIter<Tensor> {
        self.iter()
    }
}

/// Returns y, or a copy of y if it shares the memory of x, so that the calling operation always copies.
pub(in crate::ops) fn copy_if_aliased(x: &Tensor, y: Tensor) -> Result<Tensor> {
    if y.array().shares_storage(x.array()) { copy(&y) } else { Ok(y) }
}
