//! Sorting along an axis: sort, argsort, top-k.

use crate::autograd::{apply, interface::*};
use crate::engine;
use crate::ops::primitive::gather::scatter_add_along;
use crate::ops::primitive::{gather, view};
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::kernel::{self, Kernel};
use pellucid_ir::{DType, Error, Result};

/// Computes the first `k` elements of an axis in sorted order, and their positions.
struct SortPrefix {
    name: &'static str,
    kernel: kernel::Sort,
}

impl Operation for SortPrefix {
    fn name(&self) -> &'static str {
        self.name
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        let x = inputs[0];
        let shape = x.shape().with_axis(self.kernel.axis, self.kernel.k);
        let values = Array::new(x.device(), x.dtype(), shape.clone())?;
        let positions = Array::new(x.device(), DType::I64, shape)?;
        engine::submit(&Kernel::Sort(self.kernel), inputs, &[&values, &positions])?;
        saves.output(1);
        Ok(smallvec![values, positions])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let positions = saved.output(1)?;
        let axis = self.kernel.axis as isize;
        Ok(smallvec![Some(scatter_add_along(&grads.get(0)?, &positions, axis, saved.input_shape(0))?)])
    }
}

fn sort_prefix(
    name: &'static str,
    x: &Tensor,
    axis: isize,
    k: Option<usize>,
    descending: bool,
) -> Result<(Tensor, Tensor)> {
    let axis = x.shape().axis(name, axis)?;
    let len = x.shape()[axis];
    let k = k.unwrap_or(len);
    if k > len {
        let reason = format!("k = {k} exceeds {len}, the length of axis {axis}; use k.min({len})");
        return Err(Error::invalid(name, reason));
    }
    let mut outputs = apply(SortPrefix { name, kernel: kernel::Sort { axis, descending, k } }, &[x])?;
    let positions = outputs.pop().expect("the kernel must return positions");
    Ok((outputs.pop().expect("the kernel must return values"), positions))
}

/// Sorts the elements along an axis in ascending (or descending) order. Returns them with their `i64` indices.
///
/// The sort is stable; NaN is the largest value. The gradient of a sorted element goes to its original index.
///
/// # Errors
/// [`Error::AxisOutOfRange`].
#[tensor_method]
pub fn sort(x: &Tensor, axis: isize, descending: bool) -> Result<(Tensor, Tensor)> {
    sort_prefix("sort", x, axis, None, descending)
}

/// Sorts the elements along the first axis in ascending order; NaN is the largest value.
///
/// # Errors
/// [`Error::AxisOutOfRange`] for a 0-d tensor.
#[tensor_method]
pub fn msort(x: &Tensor) -> Result<Tensor> {
    Ok(sort_prefix("msort", x, 0, None, false)?.0)
}

/// Returns the indices that sort x along an axis. The sort is stable; NaN is the largest value.
///
/// # Errors
/// [`Error::AxisOutOfRange`].
#[tensor_method]
pub fn argsort(x: &Tensor, axis: isize, descending: bool) -> Result<Tensor> {
    Ok(sort_prefix("argsort", x, axis, None, descending)?.1)
}

/// Returns the indices of a partition along an axis. The index at position `kth` selects the element that the sorted
/// axis has there. No element selected before it is larger, and no element selected after it is smaller. NaN is the
/// largest value.
///
/// The indices equal the result of [`argsort`]. A negative `kth` counts from the end.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] if `kth` is outside the axis.
#[tensor_method]
pub fn argpartition(x: &Tensor, kth: isize, axis: isize) -> Result<Tensor> {
    let len = x.shape()[x.shape().axis("argpartition", axis)?] as isize;
    if !(-len..len).contains(&kth) {
        return Err(Error::invalid(
            "argpartition",
            format!("kth = {kth} is outside the axis of length {len}; it must be from -{len} to {}", len as i64 - 1),
        ));
    }
    argsort(x, axis, false)
}

/// Returns the indices that sort along an axis by several keys; the last key is the primary one. The sort is stable.
///
/// The keys and the result have the same shape.
///
/// ```
/// use pellucid::{Tensor, ops};
/// let (first, last) = (Tensor::from([2, 1, 2]), Tensor::from([7, 7, 3]));
/// assert_eq!(ops::lexsort(&[&first, &last], -1)?.to_vec::<i64>(), [2, 1, 0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] for an empty list; [`Error::ShapeMismatch`]; [`Error::AxisOutOfRange`].
#[operation]
pub fn lexsort<T: AsRef<Tensor>>(keys: &[T], axis: isize) -> Result<Tensor> {
    let keys: Vec<&Tensor> = keys.iter().map(AsRef::as_ref).collect();
    let Some((first, others)) = keys.split_first() else {
        return Err(Error::invalid(
            "lexsort",
            "the list of keys is empty; pass at least one (the last key is the primary one)",
        ));
    };
    if others.iter().any(|key| key.shape() != first.shape()) {
        return Err(Error::shapes("lexsort", keys.iter().map(|key| key.shape()), "all keys must have the same shape"));
    }
    // The keys are sorted stably, one after another; the primary key is last.
    others.iter().try_fold(argsort(first, axis, false)?, |order, key| {
        let next = argsort(&gather::take_along_axis(key, &order, axis)?, axis, false)?;
        gather::take_along_axis(&order, &next, axis)
    })
}

/// Returns the `k` largest (or smallest) elements along an axis in order, and their `i64` indices. NaN is the largest
/// value.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] if `k` exceeds the length of the axis.
#[tensor_method]
pub fn topk(x: &Tensor, k: usize, axis: isize, largest: bool) -> Result<(Tensor, Tensor)> {
    sort_prefix("topk", x, axis, Some(k), largest)
}

/// Returns the `k`-th smallest element along an axis, counted from 1, and its `i64` index, without the axis.
///
/// NaN is the largest value.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] if `k` is 0 or exceeds the length of the axis.
#[doc(alias = "partition")]
#[tensor_method]
pub fn kthvalue(x: &Tensor, k: usize, axis: isize) -> Result<(Tensor, Tensor)> {
    if k == 0 {
        return Err(Error::invalid("kthvalue", "k must be at least 1, got 0"));
    }
    let (values, positions) = sort_prefix("kthvalue", x, axis, Some(k), false)?;
    Ok((view::select(&values, axis, k as isize - 1)?, view::select(&positions, axis, k as isize - 1)?))
}
