//! Softmax and its logarithm. Both are row formulas, and so are their gradients.

use super::over_axes::{as_float, over_axes, row_formula};
use super::precision::in_single;
use crate::ops;
use crate::ops::random::uniform_on;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result};

row_formula! {
    errors = "[`Error::AxisOutOfRange`].";

    /// Computes the softmax yᵢ = exp xᵢ / Σⱼ exp xⱼ over `axes`, stable for any magnitude of x.
    ///
    /// The gradient is yᵢ·(gᵢ − Σⱼ gⱼ·yⱼ).
    softmax(x; axes) = {
        let e = (x - x.row_max()).exp();
        e * e.row_sum().recip()
    }, autocast = Single,
        d x = y * (g - (g * y).row_sum());
    /// Computes the logarithm of the softmax, yᵢ = xᵢ − ln Σⱼ exp xⱼ over `axes`, stable for any magnitude of x.
    ///
    /// The gradient is gᵢ − exp(yᵢ)·Σⱼ gⱼ.
    log_softmax(x; axes) = {
        let shifted = x - x.row_max();
        shifted - shifted.exp().row_sum().ln()
    }, autocast = Single,
        d x = g - y.exp() * g.row_sum();
}

over_axes! {
    errors = "[`Error::AxisOutOfRange`].";

    /// Computes the softmax of −x over `axes`.
    softmin(x; axes) = softmax(&ops::neg(&as_float(x)?)?, axes);
}

/// Computes softmax((x + G)/τ) along an axis, where G has the Gumbel distribution (Jang et al. 2017).
///
/// It is a differentiable relaxation of a sample of the classes with probabilities softmax(x). With `hard` the result
/// is the one-hot sample, with the gradient of the relaxation.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] unless τ is positive; [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn gumbel_softmax(x: &Tensor, tau: f64, hard: bool, axis: isize) -> Result<Tensor> {
    let op = "gumbel_softmax";
    if tau.is_nan() || tau <= 0.0 {
        return Err(Error::invalid(op, format!("tau must be positive, got {tau}")));
    }
    let at = x.shape().axis(op, axis)?;
    in_single!(op, [x] => gumbel_softmax(x, tau, hard, axis));
    // A sample of the Gumbel distribution is −ln(−ln u). u must not be 0, where the logarithm is −∞.
    let u = ops::clamp(&uniform_on(x.device(), x.shape().clone(), x.dtype())?, 1e-7, 1.0)?;
    let noise = ops::neg(&ops::log(&ops::neg(&ops::log(&u)?)?)?)?;
    let soft = softmax(&ops::div(&ops::add(x, &noise)?, tau)?, axis)?;
    if !hard {
        return Ok(soft);
    }
    let best = ops::argmax(&soft, ops::over(axis).keepdims())?;
    let beside: Vec<isize> = (0..x.rank()).map(|k| if k == at { -1 } else { 1 }).collect();
    let numbers = ops::reshape(&ops::indices(x.shape()[at])?, &beside[..])?;
    let sample = ops::to_dtype(&ops::eq(&best, &numbers)?, x.dtype())?;
    ops::add(&ops::sub(&sample, soft.detach())?, &soft)
}
