//! Losses between numbers and the truth of statements.

use super::{Reduction, floats, times};
use crate::autocast;
use crate::ops::formula::map;
use crate::ops::precision::in_single;
use crate::ops::{self, check};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::Formula;
use pellucid_ir::{Result, formula};
use std::sync::OnceLock;

/// −(t·ln x + (1 − t)·ln(1 − x)) of probabilities x, times a weight; the logarithms are no less than −100. All
/// broadcast.
///
/// The gradient is (x − t) / max(x·(1 − x), 10⁻¹²), a number at 0 and 1 too.
///
/// # Errors
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) for
/// integers; [`Error::InvalidArgument`](crate::Error::InvalidArgument) for x outside [0, 1], where values can be read
/// (elsewhere the loss is NaN).
#[tensor_method]
pub fn binary_cross_entropy(
    x: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    reduction: Reduction,
) -> Result<Tensor> {
    static BCE: OnceLock<Formula> = OnceLock::new();
    floats("binary_cross_entropy", &[x, target])?;
    check::in_range("binary_cross_entropy", "probabilities x", x, 0.0..=1.0)?;
    in_single!("binary_cross_entropy", [x, target; weight] => binary_cross_entropy(x, target, weight, reduction));
    let formula = BCE.get_or_init(|| {
        formula! {
            binary_cross_entropy(x, t) = -(t * x.ln().max(-100.0) + (1.0 - t) * (1.0 - x).ln().max(-100.0));
            // At 0 and 1, where the logarithm's slope is not finite, a steep one takes its place.
            d x = g * (x - t) / (x * (1.0 - x)).max(1e-12);
            d t = g * ((1.0 - x).ln().max(-100.0) - x.ln().max(-100.0));
        }
        .eternal()
    });
    reduction.of(&times(map(formula, &[x, target], &[])?, weight)?)
}

/// [`binary_cross_entropy`] of the probabilities sigmoid(x), for any size of x: (1 − t)·x + (1 + (p − 1)·t)·ln(1 +
/// e⁻ˣ), where p weighs what is true (1 if absent), times a weight. All broadcast.
///
/// # Errors
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) for
/// integers.
#[tensor_method]
pub fn binary_cross_entropy_with_logits(
    x: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    positive_weight: Option<&Tensor>,
    reduction: Reduction,
) -> Result<Tensor> {
    static BCE: OnceLock<Formula> = OnceLock::new();
    let op = "binary_cross_entropy_with_logits";
    floats(op, &[x, target])?;
    in_single!(op, [x, target; weight, positive_weight] =>
        binary_cross_entropy_with_logits(x, target, weight, positive_weight, reduction));
    let formula = BCE.get_or_init(|| {
        formula! {
            binary_cross_entropy_with_logits(x, t, p) = {
                let softplus = (-x.abs()).exp().ln_1p() - x.min(0.0);
                (1.0 - t) * x + (1.0 + (p - 1.0) * t) * softplus
            };
            d x = g * ((1.0 - t) - (1.0 + (p - 1.0) * t) * (-x).sigmoid());
        }
        .eternal()
    });
    let one = || ops::ones((), x.dtype());
    let positive = positive_weight.map_or_else(one, |p| Ok(p.clone()))?;
    reduction.of(&times(map(formula, &[x, target, &positive], &[])?, weight)?)
}

/// The mean over the classes, the last axis, of [`binary_cross_entropy_with_logits`], each times its weight.
///
/// # Errors
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) for
/// integers.
#[tensor_method]
pub fn multilabel_soft_margin_loss(
    x: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    reduction: Reduction,
) -> Result<Tensor> {
    let op = "multilabel_soft_margin_loss";
    floats(op, &[x, target])?;
    in_single!(op, [x, target; weight] => multilabel_soft_margin_loss(x, target, weight, reduction));
    let values = binary_cross_entropy_with_logits(x, target, weight, None, Reduction::None)?;
    reduction.of(&ops::mean(&values, -1)?)
}

/// ln(1 + e^(−t·x)) of a score x and a truth t of 1 or −1.
///
/// # Errors
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) for
/// integers.
#[tensor_method]
pub fn soft_margin_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    let op = "soft_margin_loss";
    floats(op, &[x, target])?;
    in_single!(op, [x, target] => soft_margin_loss(x, target, reduction));
    let (x, target) = (&autocast::read(op, x)?, &autocast::read(op, target)?);
    reduction.of(&ops::neg(&ops::logsigmoid(&ops::mul(x, target)?)?)?)
}

/// A distance x where t = 1, and max(0, margin − x) where t = −1 (another t costs both).
///
/// # Errors
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) for
/// integers.
#[tensor_method]
pub fn hinge_embedding_loss(x: &Tensor, target: &Tensor, margin: f64, reduction: Reduction) -> Result<Tensor> {
    static HINGE: OnceLock<Formula> = OnceLock::new();
    floats("hinge_embedding_loss", &[x])?;
    in_single!("hinge_embedding_loss", [x] => hinge_embedding_loss(x, target, margin, reduction));
    let formula = HINGE.get_or_init(|| {
        formula! {
            hinge_embedding_loss(x, t; margin) = t.ne(1.0).select((margin - x).relu(), 0.0) + t.ne(-1.0).select(x, 0.0);
        }
        .eternal()
    });
    let target = ops::to_dtype(target, x.dtype())?;
    reduction.of(&map(formula, &[x, &target], &[margin.into()])?)
}
