//! Gradient clipping by norm and by value.

use super::options::options;
use crate::parameter::Parameter;
use pellucid_tensor::{DType, Error, OptionRange, Result, Tensor, formula, no_grad, ops};

options! {
    /// Options of [`clip_grad_norm_with`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    ClipGradNormOptions {
        /// The order p of the norm, which may be ∞.
        order: f64 = 2.0 => NONZERO;
        /// Whether to return an error if the norm is infinite or NaN. This reads the norm, so it is impossible in a
        /// captured step.
        error_if_nonfinite: bool = false;
    }
}

/// Scales all gradients in place so that their total 2-norm is at most c = `max_norm` (Pascanu, Mikolov & Bengio 2013):
/// g ← g·min(1, c / (‖g‖ + 10⁻⁶)), where g consists of all gradients. Returns the original ‖g‖ as a 0-d tensor. No
/// value is read, so a captured step may contain it. Call it between backward and the optimizer's step.
///
/// # Errors
/// [`Error::InvalidArgument`] if no parameter has a gradient, or `max_norm` is not above 0.
#[doc(alias = "clip_grad_norm_")]
pub fn clip_grad_norm(parameters: &[Parameter], max_norm: f64) -> Result<Tensor> {
    clip_grad_norm_with(parameters, max_norm, ClipGradNormOptions::default())
}

/// Clips gradients as [`clip_grad_norm`] does, with options.
///
/// # Errors
/// The errors of [`clip_grad_norm`]; [`Error::InvalidArgument`] if `order` is 0 or NaN, or the norm is not finite and
/// `error_if_nonfinite` is set; then no gradient is changed.
#[track_caller]
pub fn clip_grad_norm_with(parameters: &[Parameter], max_norm: f64, options: ClipGradNormOptions) -> Result<Tensor> {
    let op = "clip_grad_norm";
    OptionRange::ABOVE_ZERO.check(op, "max_norm", max_norm, 1.0)?;
    let _guard = no_grad();
    let norm = norm_of_gradients(op, parameters, options)?;
    if options.error_if_nonfinite {
        let value: f64 = norm.try_item()?;
        if !value.is_finite() {
            let reason =
                format!("the norm of the gradients is {value}, which is not finite; skip the step, or find the cause");
            return Err(Error::invalid(op, reason));
        }
    }
    let scale = ops::map(formula!(|n; c| (c / (n + 1e-6)).min(1.0)), &[&norm], &[max_norm.into()])?;
    for gradient in gradients(parameters) {
        let scale = factor_for_gradient(&scale.try_to(gradient.device())?, &gradient)?;
        ops::update(formula!(|g, scale| g * scale), &[&gradient], &[&scale], &[])?;
    }
    Ok(norm)
}

/// Returns the norm of this order of the vector of all gradients: a 0-d tensor of their dtype, at least `f32`.
///
/// # Errors
/// [`Error::InvalidArgument`] if no parameter has a gradient, or `order` is 0 or NaN.
#[doc(alias = "get_total_norm")]
pub fn grad_norm(parameters: &[Parameter], order: f64) -> Result<Tensor> {
    norm_of_gradients("grad_norm", parameters, ClipGradNormOptions { order, ..Default::default() })
}

/// Computes [`grad_norm`]. Errors name the operation `op`.
fn norm_of_gradients(op: &'static str, parameters: &[Parameter], options: ClipGradNormOptions) -> Result<Tensor> {
    options.check_ranges(op)?;
    let order = options.order;
    let _guard = no_grad();
    let gradients: Vec<Tensor> = gradients(parameters).collect();
    let widest = gradients.iter().map(Tensor::dtype).fold(DType::F32, DType::promote);
    let norm_of = |g: &Tensor| {
        // The norm may overflow f16 although all elements are finite.
        let g = ops::to_dtype(g, g.dtype().promote(DType::F32))?;
        ops::to_dtype(&ops::norm(&g, order, ..)?, widest)
    };
    let norms: Vec<Tensor> = gradients.iter().filter(|g| g.size() > 0).map(norm_of).collect::<Result<_>>()?;
    match &norms[..] {
        [] if gradients.is_empty() => Err(Error::invalid(op, "no parameter has a gradient; call backward() first")),
        [] => ops::zeros((), widest),
        [one] => Ok(one.clone()),
        [first, others @ ..] => {
            // The parameters may be on several devices.
            let others: Vec<Tensor> = others.iter().map(|norm| norm.try_to(first.device())).collect::<Result<_>>()?;
            ops::norm(&ops::stack(&[first].into_iter().chain(&others).collect::<Vec<_>>(), 0)?, order, ..)
        }
    }
}

/// Returns the gradients that an optimizer uses; gradients of frozen parameters are excluded.
pub(super) fn gradients(parameters: &[Parameter]) -> impl Iterator<Item = Tensor> {
    parameters.iter().filter(|p| p.requires_grad()).filter_map(|p| p.grad())
}

/// Clamps every element of every gradient, in place, to [−`max_value`, `max_value`].
///
/// # Errors
/// [`Error::InvalidArgument`] if `max_value` is not above 0.
#[doc(alias = "clip_grad_value_")]
pub fn clip_grad_value(parameters: &[Parameter], max_value: f64) -> Result<()> {
    OptionRange::ABOVE_ZERO.check("clip_grad_value", "max_value", max_value, 1.0)?;
    let _guard = no_grad();
    for gradient in gradients(parameters) {
        ops::update(formula!(|g; c| g.clamp(-c, c)), &[&gradient], &[], &[max_value.into()])?;
    }
    Ok(())
}

/// Converts a factor so that the product with a gradient keeps the gradient's dtype.
pub(super) fn factor_for_gradient(scale: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    ops::to_dtype(scale, gradient.dtype().promote(DType::F32))
}
