//! Losses between predicted and target values.

use super::Reduction;
use crate::ops::call::check;
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::map;
use crate::ops::primitive::precision::{in_single, round_to_operands, widened_dtype};
use crate::ops::primitive::{precision, view};
use crate::ops::reduce::value_range;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::{Expr, Formula};
use pellucid_ir::{DType, Error, Result, Scalar, formula};
use std::f64::consts::PI;

/// Applies a formula to x and its target, which broadcast, and reduces the result.
fn elementwise_loss(
    formula: &Formula,
    x: &Tensor,
    target: &Tensor,
    params: &[Scalar],
    reduction: Reduction,
) -> Result<Tensor> {
    check::floats(formula.name(), &[x, target])?;
    let operands = [x, target];
    let losses = reduction.apply_formula(formula, &operands, params, widened_dtype(&operands))?;
    round_to_operands(formula.name(), &operands, losses)
}

/// Computes the absolute error |x − t|.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method(autocast = Single)]
pub fn l1_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    elementwise_loss(formula! { static l1_loss(x, t) = (x - t).abs(); }, x, target, &[], reduction)
}

/// Computes the squared error (x − t)².
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method(autocast = Single)]
pub fn mse_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    elementwise_loss(formula! { static mse_loss(x, t) = (x - t).square(); }, x, target, &[], reduction)
}

/// Computes the Huber loss: ½(x − t)² where |x − t| < δ, else δ·(|x − t| − ½δ) (Huber 1964).
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] unless δ is positive.
#[tensor_method(autocast = Single)]
pub fn huber_loss(x: &Tensor, target: &Tensor, delta: f64, reduction: Reduction) -> Result<Tensor> {
    if delta.is_nan() || delta <= 0.0 {
        return Err(Error::invalid("huber_loss", format!("delta must be positive, got {delta}")));
    }
    let formula = formula! {
        static huber_loss(x, t; delta, bound) = {
            // The part of |d| up to δ, which multiplies |d| minus half of it in both cases of the definition.
            let part = (x - t).abs().min(bound);
            part * ((x - t).abs() - 0.5 * part)
        };
        d x = g * clamped(x - t, delta);
        d t = -(g * clamped(x - t, delta));
    };
    // With an infinite δ, the loss of an infinite difference would be ∞ − ∞.
    let largest = if x.dtype().promote(target.dtype()) == DType::F64 { f64::MAX } else { f64::from(f32::MAX) };
    elementwise_loss(formula, x, target, &[delta.into(), delta.min(largest).into()], reduction)
}

/// Clamps d to [−δ, δ]; the derivative is 0 at both ends.
fn clamped(d: Expr, delta: Expr) -> Expr {
    d.le(-delta).select(-delta, d.ge(delta).select(delta, d))
}

/// Computes the [`huber_loss`] with δ = β, divided by β, so that the slope beyond β is 1 (Girshick 2015). With β = 0 it
/// is [`l1_loss`].
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] for a negative β.
#[tensor_method(autocast = Single)]
pub fn smooth_l1_loss(x: &Tensor, target: &Tensor, beta: f64, reduction: Reduction) -> Result<Tensor> {
    // In `f32`, a very small β would be rounded to 0, and 0/β would be NaN.
    let is_single = x.dtype().promote(target.dtype()) != DType::F64;
    if beta == 0.0 || (is_single && beta > 0.0 && beta as f32 == 0.0) {
        return l1_loss(x, target, reduction);
    }
    if beta.is_nan() || beta < 0.0 {
        return Err(Error::invalid("smooth_l1_loss", format!("beta must be at least 0, got {beta}")));
    }
    let formula = formula! {
        static smooth_l1_loss(x, t; beta) = {
            let part = (x - t).abs().min(beta);
            // The square d² may overflow or underflow although d²/β does not.
            ((x - t).abs() - 0.5 * part) * (part / beta)
        };
        d x = g * (clamped(x - t, beta) / beta);
        d t = -(g * (clamped(x - t, beta) / beta));
    };
    elementwise_loss(formula, x, target, &[beta.into()], reduction)
}

/// Computes the Kullback–Leibler divergence t·(ln t − x) of a target distribution t from log-probabilities x; 0 for t =
/// 0.
///
/// With `log_target`, t are log-probabilities too, and the divergence is eᵗ·(t − x); 0 for t = −∞.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method(autocast = Single)]
pub fn kl_div(x: &Tensor, target: &Tensor, log_target: bool, reduction: Reduction) -> Result<Tensor> {
    let op = "kl_div";
    check::floats(op, &[x, target])?;
    in_single!(op, [x, target] => kl_div(x, target, log_target, reduction));
    let (x, target) = (&precision::cast_operand(op, x)?, &precision::cast_operand(op, target)?);
    let formula = match log_target {
        true => formula! {
            static kl_div(x, t) = {
                let is_limit = t.eq(f64::NEG_INFINITY);
                is_limit.select(0.0, t.exp() * (is_limit.select(0.0, t) - is_limit.select(0.0, x)))
            };
        },
        false => formula! {
            static kl_div(x, t) = t.eq(0.0).select(0.0 - t * finite_log_prob(x, t), t * (t.ln() - x));
            d x = -(g * t);
            // The derivative of t·ln t at 0 is 0.
            d t = g * (t.eq(0.0).select(0.0, t.eq(0.0).select(1.0, t).ln() + 1.0) - finite_log_prob(x, t));
        },
    };
    reduction.apply_formula(formula, &[x, target], &[], None)
}

/// Returns the log-probability x, or 0 if x is −∞ and the target t is 0.
fn finite_log_prob(x: Expr, t: Expr) -> Expr {
    (t.eq(0.0) & x.eq(f64::NEG_INFINITY)).select(0.0, x)
}

/// Options of [`poisson_nll_loss`].
#[derive(Clone, Copy, Debug)]
pub struct PoissonNllLossOptions {
    /// Whether x is the logarithm of the rate instead of the rate.
    pub log_input: bool,
    /// Whether to add Stirling's approximation of ln t!.
    pub full: bool,
    /// ε, which is added to the rate before its logarithm.
    pub eps: f64,
    /// The reduction of the losses.
    pub reduction: Reduction,
}

impl Default for PoissonNllLossOptions {
    fn default() -> PoissonNllLossOptions {
        PoissonNllLossOptions { log_input: true, full: false, eps: 1e-8, reduction: Reduction::Mean }
    }
}

/// Returns the rate. If the count t is 0 and the rate is 0 or ∞, returns 1, so that t·ln(rate) is 0.
fn positive_rate(rate: Expr, t: Expr) -> Expr {
    (t.eq(0.0) & (rate.eq(0.0) | rate.eq(f64::INFINITY))).select(1.0, rate)
}

/// Computes the negative log-likelihood of a count t under a Poisson distribution, by default without ln t!.
///
/// The loss is eˣ − t·x if x is the logarithm of the rate, otherwise x − t·ln(x + ε). For t = 0, the term with t is 0,
/// even at infinite logarithms.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method(autocast = Single)]
pub fn poisson_nll_loss(x: &Tensor, target: &Tensor, options: PoissonNllLossOptions) -> Result<Tensor> {
    let op = "poisson_nll_loss";
    check::floats(op, &[x, target])?;
    in_single!(op, [x, target] => poisson_nll_loss(x, target, options));
    let (x, target) = (&precision::cast_operand(op, x)?, &precision::cast_operand(op, target)?);
    let values = match options.log_input {
        true => {
            // Where eˣ overflows, t·x may also overflow although t·x is smaller than eˣ. The loss is then ∞, not ∞ − ∞.
            let formula = formula! {
                static poisson_nll_loss(x, t) = {
                    let rate = x.exp();
                    rate.eq(f64::INFINITY).select(rate, rate - t * finite_log_prob(x, t))
                };
                d x = g * (x.exp() - t);
                d t = -(g * finite_log_prob(x, t));
            };
            map(formula, &[x, target], &[])?
        }
        false => {
            let formula = formula! {
                static poisson_nll_loss(x, t; eps) = x - t * positive_rate(x + eps, t).ln();
                d x = g * (1.0 - t / positive_rate(x + eps, t));
                d t = -(g * (x + eps).ln());
            };
            map(formula, &[x, target], &[options.eps.into()])?
        }
    };
    if !options.full {
        return options.reduction.apply(&values);
    }
    let stirling = formula! {
        static stirling(t) = {
            let safe = t.gt(1.0).select(t, 1.0);
            t.gt(1.0).select(safe * safe.ln() - safe + 0.5 * (2.0 * PI * safe).ln(), 0.0)
        };
    };
    options.reduction.apply(&arithmetic::add(&values, &map(stirling, &[target], &[])?)?)
}

/// Computes the negative log-likelihood ½(ln v + (x − t)²/v) of t under a normal distribution of mean x and variance v.
///
/// With `full` it includes ½ln 2π (Nix & Weigend 1994). ε replaces smaller variances, whose gradient is the gradient at
/// ε, so that they can grow again.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] for an ε that is
/// negative or NaN, and for a negative variance. In lazy and captured steps, and on a GPU, the loss of a negative
/// variance is NaN instead.
#[tensor_method(autocast = Single)]
pub fn gaussian_nll_loss(
    x: &Tensor,
    target: &Tensor,
    variance: &Tensor,
    full: bool,
    eps: f64,
    reduction: Reduction,
) -> Result<Tensor> {
    let op = "gaussian_nll_loss";
    check::floats(op, &[x, target, variance])?;
    in_single!(op, [x, target, variance] => gaussian_nll_loss(x, target, variance, full, eps, reduction));
    let variance = match variance.rank() + 1 == x.rank() && variance.shape()[..] == x.shape()[..variance.rank()] {
        // The variance may have one value per row.
        true => view::unsqueeze(variance, -1)?,
        false => variance.clone(),
    };
    if eps.is_nan() || eps < 0.0 {
        return Err(Error::invalid(op, format!("eps must be at least 0, got {eps}")));
    }
    check::common_shape(op, &[x, target, &variance], "the shapes must broadcast")?;
    value_range::in_range(op, "variances", &variance, 0.0..=f64::INFINITY)?;
    // Derivatives of every order with respect to a variance below eps are the derivatives at eps, as in PyTorch.
    let at_least = formula! {
        static gaussian_nll_variance(v; eps) = v.lt(0.0).select(f64::NAN, v.lt(eps).select(eps, v));
        d v = v.lt(0.0).select(f64::NAN, g);
    };
    let formula = formula! {
        static gaussian_nll_loss(x, t, v; constant) = {
            // The square may overflow although the quotient does not.
            let d = x - t;
            0.5 * (v.ln() + d * (d / v)) + constant
        };
        d v = g * 0.5 * (1.0 - (x - t) * ((x - t) / v)) / v;
    };
    let constant = if full { 0.5 * (2.0 * PI).ln() } else { 0.0 };
    let variance = map(at_least, &[&variance], &[eps.into()])?;
    reduction.apply_formula(formula, &[x, target, &variance], &[constant.into()], None)
}
