//! Gradient clipping.

use crate::parameter::Parameter;
use pellucid_tensor::{Error, Result, Tensor, formula, no_grad, ops};

/// Scales all gradients, in place, so that their common 2-norm is at most `max_norm` (Pascanu, Mikolov
/// & Bengio 2013): g ← g·min(1, c / (‖g‖ + 10⁻⁶)). Returns ‖g‖ before, a 0-d tensor; nothing is read,
/// so that it may stand in a captured step. Call it between backward and the optimizer's step.
///
/// # Errors
/// [`Error::InvalidArgument`] if no parameter has a gradient, or `max_norm` is not above 0.
pub fn clip_grad_norm(parameters: &[Parameter], max_norm: f64) -> Result<Tensor> {
    let op = "clip_grad_norm";
    if max_norm.is_nan() || max_norm <= 0.0 {
        return Err(Error::invalid(op, format!("max_norm must be above 0, got {max_norm}")));
    }
    let _guard = no_grad();
    let gradients: Vec<Tensor> = parameters.iter().filter_map(|p| p.grad()).collect();
    let mut squares: Option<Tensor> = None;
    for gradient in &gradients {
        let own = ops::sum(&ops::square(gradient)?, ..)?;
        squares = Some(match squares {
            None => own,
            Some(sum) => ops::add(&sum, &own)?,
        });
    }
    let squares = squares.ok_or_else(|| Error::invalid(op, "no parameter has a gradient; call backward() first"))?;
    let norm = ops::sqrt(&squares)?;
    let scale = ops::map(formula!(|n; c| (c / (n + 1e-6)).min(1.0)), &[&norm], &[max_norm.into()])?.remove(0);
    for gradient in &gradients {
        ops::update(formula!(|g, scale| g * scale), &[gradient], &[&scale], &[])?;
    }
    Ok(norm)
}
