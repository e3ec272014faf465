//! Sorting along an axis: sort, argsort, top-k.

use super::gather::scatter_add_along;
use crate::array::Array;
use crate::autograd::{
    Arrays, InputGradients, NeedsInputGrad, Operation, OutputGradients, SaveForBackward, SavedTensors, apply,
};
use crate::engine;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::{self, Kernel};
use pellucid_ir::{DType, Error, Result};
use smallvec::smallvec;

/// The first `k` elements of an axis in sorted order, and their positions.
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
        return Err(Error::invalid(
            name,
            format!("k = {k} exceeds {len}, the length of axis {axis}; use k.min({len})"),
        ));
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

/// Returns the `k` largest (or smallest) elements along an axis in order, and their `i64` indices. NaN is the largest
/// value.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] if `k` exceeds the axis.
#[tensor_method]
pub fn topk(x: &Tensor, k: usize, axis: isize, largest: bool) -> Result<(Tensor, Tensor)> {
    sort_prefix("topk", x, axis, Some(k), largest)
}

/// Returns the `k`-th smallest element along an axis, counted from 1, and its `i64` index, without the axis.
///
/// NaN is the largest value.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] if `k` is 0 or exceeds the axis.
#[doc(alias = "partition")]
#[tensor_method]
pub fn kthvalue(x: &Tensor, k: usize, axis: isize) -> Result<(Tensor, Tensor)> {
    if k == 0 {
        return Err(Error::invalid("kthvalue", "k counts from 1, got 0"));
    }
    let (values, positions) = sort_prefix("kthvalue", x, axis, Some(k), false)?;
    Ok((crate::ops::select(&values, axis, k as isize - 1)?, crate::ops::select(&positions, axis, k as isize - 1)?))
}
