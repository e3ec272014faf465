//! The Gumbel softmax: differentiable samples of classes.

use crate::ops::call::axes;
use crate::ops::elementwise::{arithmetic, compare, transcendental};
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::{copy, create, view};
use crate::ops::random::uniform_on;
use crate::ops::reduce::reductions;
use crate::ops::reduce::softmax::softmax;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result};

/// Computes softmax((x + G)/τ) along an axis, where G has the Gumbel distribution (Jang et al. 2017).
///
/// It is a differentiable relaxation of a sample of the classes with probabilities softmax(x). With `hard` the result
/// is the one-hot sample, and its gradient is the gradient of the relaxation.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] unless τ is positive; [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn gumbel_softmax(x: &Tensor, tau: f64, hard: bool, axis: isize) -> Result<Tensor> {
    let op = "gumbel_softmax";
    if tau.is_nan() || tau <= 0.0 {
        return Err(Error::invalid(op, format!("tau must be positive, got {tau}")));
    }
    let axis_index = x.shape().axis(op, axis)?;
    in_single!(op, [x] => gumbel_softmax(x, tau, hard, axis));
    // A sample of the Gumbel distribution is −ln(−ln u). u must not be 0, where the logarithm is −∞; the smallest other
    // u is ½ε.
    let low = 0.25 * x.dtype().epsilon().unwrap_or_default();
    let u = arithmetic::clamp(&uniform_on(x.device(), x.shape().clone(), x.dtype())?, low, 1.0)?;
    let noise = arithmetic::neg(&transcendental::log(&arithmetic::neg(&transcendental::log(&u)?)?)?)?;
    let soft = softmax(&arithmetic::div(&arithmetic::add(x, &noise)?, tau)?, axis)?;
    if !hard {
        return Ok(soft);
    }
    let best = reductions::argmax(&soft, axes::over(axis).keepdims())?;
    let broadcast_dims: Vec<isize> = (0..x.rank()).map(|k| if k == axis_index { -1 } else { 1 }).collect();
    let class_indices = view::reshape(&create::indices(x.shape()[axis_index])?, &broadcast_dims[..])?;
    let sample = copy::to_dtype(&compare::eq(&best, &class_indices)?, x.dtype())?;
    arithmetic::add(&arithmetic::sub(&sample, soft.detach())?, &soft)
}
