//! Losses between numbers and numbers.

use super::{Reduction, floats};
use crate::autocast;
use crate::ops;
use crate::ops::formula::{map, map_in};
use crate::ops::precision::{in_single, rounded, single};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::Formula;
use pellucid_ir::{Error, Result, Scalar, formula};
use std::f64::consts::PI;
use std::sync::OnceLock;

/// A loss that is a formula of x and its target, which broadcast.
fn of_pairs(formula: &Formula, x: &Tensor, target: &Tensor, params: &[Scalar], reduction: Reduction) -> Result<Tensor> {
    floats(formula.name(), &[x, target])?;
    let operands = [x, target];
    let losses = reduction.of(&map_in(formula, &operands, params, single(&operands))?)?;
    rounded(formula.name(), &operands, losses)
}

/// |x − t|
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn l1_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    static L1: OnceLock<Formula> = OnceLock::new();
    let formula = L1.get_or_init(|| formula! { l1_loss(x, t) = (x - t).abs(); }.eternal());
    of_pairs(formula, x, target, &[], reduction)
}

/// (x − t)²
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn mse_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    static MSE: OnceLock<Formula> = OnceLock::new();
    let formula = MSE.get_or_init(|| formula! { mse_loss(x, t) = (x - t).square(); }.eternal());
    of_pairs(formula, x, target, &[], reduction)
}

/// ½(x − t)² where |x − t| < δ, else δ·(|x − t| − ½δ) (Huber 1964).
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] for a width that is not
/// positive.
#[tensor_method]
pub fn huber_loss(x: &Tensor, target: &Tensor, delta: f64, reduction: Reduction) -> Result<Tensor> {
    static HUBER: OnceLock<Formula> = OnceLock::new();
    if delta.is_nan() || delta <= 0.0 {
        return Err(Error::invalid("huber_loss", format!("delta is positive, got {delta}")));
    }
    let formula = HUBER.get_or_init(|| {
        formula! {
            huber_loss(x, t; delta) = {
                let d = (x - t).abs();
                d.lt(delta).select(0.5 * d * d, delta * (d - 0.5 * delta))
            };
        }
        .eternal()
    });
    of_pairs(formula, x, target, &[delta.into()], reduction)
}

/// The [`huber_loss`] of width β divided by β: slope 1 beyond it (Girshick 2015). For β = 0 the [`l1_loss`].
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] for a negative width.
#[tensor_method]
pub fn smooth_l1_loss(x: &Tensor, target: &Tensor, beta: f64, reduction: Reduction) -> Result<Tensor> {
    if beta == 0.0 {
        return l1_loss(x, target, reduction);
    }
    if beta.is_nan() || beta < 0.0 {
        return Err(Error::invalid("smooth_l1_loss", format!("beta is not negative, got {beta}")));
    }
    floats("smooth_l1_loss", &[x, target])?;
    in_single!("smooth_l1_loss", [x, target] => smooth_l1_loss(x, target, beta, reduction));
    ops::div(&huber_loss(x, target, beta, reduction)?, beta)
}

/// Kullback & Leibler's divergence of a target distribution from one whose logarithms are x: t·(ln t − x), 0 for t = 0,
/// or with
/// `log_target`, where t is a logarithm too, eᵗ·(t − x).
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn kl_div(x: &Tensor, target: &Tensor, log_target: bool, reduction: Reduction) -> Result<Tensor> {
    let op = "kl_div";
    floats(op, &[x, target])?;
    in_single!(op, [x, target] => kl_div(x, target, log_target, reduction));
    let (x, target) = (&autocast::read(op, x)?, &autocast::read(op, target)?);
    let values = match log_target {
        true => ops::mul(&ops::exp(target)?, &ops::sub(target, x)?)?,
        false => ops::sub(&ops::xlogy(target, target)?, &ops::mul(target, x)?)?,
    };
    reduction.of(&values)
}

/// Options of [`poisson_nll_loss`].
#[derive(Clone, Copy, Debug)]
pub struct PoissonNll {
    /// x is the logarithm of the rate, not the rate.
    pub log_input: bool,
    /// With Stirling's approximation of ln t!.
    pub full: bool,
    /// What is added to a rate before its logarithm is taken.
    pub eps: f64,
    /// What happens with the values.
    pub reduction: Reduction,
}

impl Default for PoissonNll {
    fn default() -> PoissonNll {
        PoissonNll { log_input: true, full: false, eps: 1e-8, reduction: Reduction::Mean }
    }
}

/// −ln of the probability of a count t at the rate λ, without ln t! unless it is asked for: eˣ − t·x for x = ln λ, else
/// x − t·ln(x + ε).
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn poisson_nll_loss(x: &Tensor, target: &Tensor, options: PoissonNll) -> Result<Tensor> {
    let op = "poisson_nll_loss";
    floats(op, &[x, target])?;
    in_single!(op, [x, target] => poisson_nll_loss(x, target, options));
    let (x, target) = (&autocast::read(op, x)?, &autocast::read(op, target)?);
    let values = match options.log_input {
        true => ops::sub(&ops::exp(x)?, &ops::mul(target, x)?)?,
        false => ops::sub(x, &ops::mul(target, &ops::log(&ops::add(x, options.eps)?)?)?)?,
    };
    if !options.full {
        return options.reduction.of(&values);
    }
    static STIRLING: OnceLock<Formula> = OnceLock::new();
    let stirling = STIRLING.get_or_init(|| {
        formula! {
            stirling(t) = {
                let safe = t.gt(1.0).select(t, 1.0);
                t.gt(1.0).select(safe * safe.ln() - safe + 0.5 * (2.0 * PI * safe).ln(), 0.0)
            };
        }
        .eternal()
    });
    options.reduction.of(&ops::add(&values, &map(stirling, &[target], &[])?)?)
}

/// −ln of the density of a normal distribution of mean x and variance v at t, ½(ln v + (x − t)²/v), with ½ln 2π if it
/// is `full` (Nix & Weigend 1994). Variances below ε count as ε, and have the gradient that ε would have, so that they
/// can grow again.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn gaussian_nll_loss(
    x: &Tensor,
    target: &Tensor,
    variance: &Tensor,
    full: bool,
    eps: f64,
    reduction: Reduction,
) -> Result<Tensor> {
    static NLL: OnceLock<Formula> = OnceLock::new();
    let op = "gaussian_nll_loss";
    floats(op, &[x, target, variance])?;
    in_single!(op, [x, target, variance] => gaussian_nll_loss(x, target, variance, full, eps, reduction));
    let variance = match variance.rank() + 1 == x.rank() && variance.shape()[..] == x.shape()[..variance.rank()] {
        // One variance a row.
        true => ops::unsqueeze(variance, -1)?,
        false => variance.clone(),
    };
    let formula = NLL.get_or_init(|| {
        formula! {
            gaussian_nll_loss(x, t, v; eps, constant) = {
                let v = v.lt(eps).select(eps, v);
                0.5 * (v.ln() + (x - t).square() / v) + constant
            };
            d v = {
                let least = v.lt(eps).select(eps, v);
                g * 0.5 * (least - (x - t).square()) / (least * least)
            };
        }
        .eternal()
    });
    let constant = if full { 0.5 * (2.0 * PI).ln() } else { 0.0 };
    reduction.of(&map(formula, &[x, target, &variance], &[eps.into(), constant.into()])?)
}
