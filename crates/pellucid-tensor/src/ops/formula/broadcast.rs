//! Broadcasting and its transpose, the sum to a shape.

use crate::autograd::{apply_one, interface::*};
use crate::ops::call::axes::check_reduction_rank;
use crate::ops::call::int_list::IntList;
use crate::ops::formula::kernel_reduction::identity_formula;
use crate::ops::formula::{broadcast, map_sum};
use crate::ops::primitive::view::{full_view, reshape_to};
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::kernel::AxisSet;
use pellucid_ir::{Error, Result, Shape};

struct Expand {
    shape: Shape,
}

impl Operation for Expand {
    fn name(&self) -> &'static str {
        "broadcast_to"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        Ok(smallvec![inputs[0].broadcast_to("broadcast_to", &self.shape)?])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        Ok(smallvec![Some(sum_to(&grads.get(0)?, &saved.input_shape(0))?)])
    }
    fn is_view(&self) -> bool {
        true
    }
}

/// Broadcasts x to `shape` by NumPy's rule: axes are aligned at the last, and a length of 1 repeats. No element is
/// copied.
///
/// # Errors
/// [`Error::ShapeMismatch`] if a length of x is neither 1 nor equal to the new length.
#[doc(alias("expand_as", "broadcast"))]
#[tensor_method]
pub fn broadcast_to(x: &Tensor, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    if *x.shape() == shape {
        return Ok(full_view(x));
    }
    apply_one(Expand { shape }, &[x])
}

/// Broadcasts tensors to their common shape. No element is copied.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the shapes do not broadcast.
#[operation]
pub fn broadcast_tensors<T: AsRef<Tensor>>(tensors: &[T]) -> Result<Vec<Tensor>> {
    let tensors: Vec<&Tensor> = tensors.iter().map(AsRef::as_ref).collect();
    let shape = broadcast("broadcast_tensors", &tensors)?;
    tensors.iter().map(|t| broadcast_to(t, shape.clone())).collect()
}

/// Broadcasts x to `shape`, where −1 keeps a length (PyTorch's `expand`). No element is copied.
///
/// # Errors
/// [`Error::ShapeMismatch`] if a length of x is neither 1 nor equal to the new length; [`Error::InvalidArgument`] for a
/// negative length, except −1 for an axis of x.
#[tensor_method]
pub fn expand(x: &Tensor, shape: impl Into<IntList>) -> Result<Tensor> {
    let dims = shape.into();
    let new_axes = dims.len().saturating_sub(x.rank());
    let resolve = |(k, &d): (usize, &isize)| match d {
        -1 if k >= new_axes => Ok(x.shape()[k - new_axes]),
        d if d >= 0 => Ok(d as usize),
        _ => Err(Error::invalid("expand", format!("length {d} of new axis {k} must be ≥ 0"))),
    };
    broadcast_to(x, dims.iter().enumerate().map(resolve).collect::<Result<Shape>>()?)
}

/// Sums x to `shape`, which broadcasts to x's shape: the transpose of broadcasting.
pub(crate) fn sum_to(x: &Tensor, shape: &Shape) -> Result<Tensor> {
    if x.shape() == shape {
        return Ok(x.clone());
    }
    if shape.size() == x.size() {
        return reshape_to(x, shape);
    }
    check_reduction_rank("sum", x.shape())?;
    let axes = broadcast_axes(shape, x.shape());
    reshape_to(&map_sum(identity_formula(), &[x], &[], axes, None)?, shape)
}

/// Returns the axes of `full` along which `shape` is repeated.
pub(crate) fn broadcast_axes(shape: &Shape, full: &Shape) -> AxisSet {
    let new_axes = full.rank() - shape.rank();
    (0..full.rank()).filter(|&a| a < new_axes || (shape[a - new_axes] == 1 && full[a] != 1)).collect()
}
