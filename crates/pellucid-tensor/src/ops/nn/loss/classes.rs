//! Losses for binary targets.

use super::{Reduction, apply_weight};
use crate::ops::call::check;
use crate::ops::elementwise::{activation, arithmetic};
use crate::ops::formula::map;
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::{copy, fill, precision};
use crate::ops::reduce::{reductions, value_range};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result, formula};
use smallvec::SmallVec;

/// Computes the binary cross-entropy −(t·ln x + (1 − t)·ln(1 − x)) of probabilities x, times a weight.
///
/// x, t and the weight broadcast. The logarithms are clamped to at least −100. The gradient is
/// (x − t) / max(x·(1 − x), 10⁻¹²), which is finite at 0 and 1.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] for x or t outside [0,
/// 1] in eager mode on the CPU. Lazy and captured steps, and a GPU, do not check the elements: the loss and the
/// gradient of an invalid element are NaN.
#[tensor_method(autocast = Single)]
pub fn binary_cross_entropy(
    x: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    reduction: Reduction,
) -> Result<Tensor> {
    check::floats("binary_cross_entropy", &[x, target])?;
    let operands: SmallVec<[&Tensor; 3]> = [x, target].into_iter().chain(weight).collect();
    check::common_shape("binary_cross_entropy", &operands, "the shapes must broadcast")?;
    value_range::in_range("binary_cross_entropy", "probabilities x", x, 0.0..=1.0).map_err(|error| match error {
        Error::InvalidArgument { op, reason } => {
            Error::invalid(op, format!("{reason}; apply sigmoid() first, or use BceWithLogitsLoss"))
        }
        other => other,
    })?;
    value_range::in_range("binary_cross_entropy", "targets", target, 0.0..=1.0)?;
    in_single!("binary_cross_entropy", [x, target; weight] => binary_cross_entropy(x, target, weight, reduction));
    let formula = formula! {
        static binary_cross_entropy(x, t) = {
            let loss = -(t * x.ln().max(-100.0) + (1.0 - t) * (-x).ln_1p().max(-100.0));
            (t.ge(0.0) & t.le(1.0)).select(loss, f64::NAN)
        };
        // The derivative of the logarithm is infinite at 0 and 1, so the denominator is clamped. Outside [0, 1], the
        // derivative is NaN, as the loss is.
        d x = (x.ge(0.0) & x.le(1.0) & t.ge(0.0) & t.le(1.0))
            .select(g * (x - t) / (x * (1.0 - x)).max(1e-12), f64::NAN);
        d t = (t.ge(0.0) & t.le(1.0)).select(g * ((-x).ln_1p().max(-100.0) - x.ln().max(-100.0)), f64::NAN);
    };
    reduction.apply(&apply_weight(map(formula, &[x, target], &[])?, weight)?)
}

/// Computes the [`binary_cross_entropy`] of the probabilities sigmoid(x), stable for any magnitude of x.
///
/// All operands broadcast. The loss is (1 − t)·x + (1 + (p − 1)·t)·ln(1 + e⁻ˣ), times a weight. p is the weight of
/// positive targets; its default is 1.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method(autocast = Single)]
pub fn binary_cross_entropy_with_logits(
    x: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    positive_weight: Option<&Tensor>,
    reduction: Reduction,
) -> Result<Tensor> {
    let op = "binary_cross_entropy_with_logits";
    check::floats(op, &[x, target])?;
    in_single!(op, [x, target; weight, positive_weight] =>
        binary_cross_entropy_with_logits(x, target, weight, positive_weight, reduction));
    let formula = formula! {
        static binary_cross_entropy_with_logits(x, t, p) = {
            let softplus = (-x.abs()).exp().ln_1p() - x.min(0.0);
            (1.0 - t) * x + (1.0 + (p - 1.0) * t) * softplus
        };
        d x = g * ((1.0 - t) - (1.0 + (p - 1.0) * t) * (-x).sigmoid());
    };
    let one = || fill::ones((), x.dtype());
    let positive = positive_weight.map_or_else(one, |p| Ok(p.clone()))?;
    reduction.apply(&apply_weight(map(formula, &[x, target, &positive], &[])?, weight)?)
}

/// Computes the mean over the classes, the last axis, of weighted [`binary_cross_entropy_with_logits`] losses.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method(autocast = Single)]
pub fn multilabel_soft_margin_loss(
    x: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    reduction: Reduction,
) -> Result<Tensor> {
    let op = "multilabel_soft_margin_loss";
    check::floats(op, &[x, target])?;
    in_single!(op, [x, target; weight] => multilabel_soft_margin_loss(x, target, weight, reduction));
    let values = binary_cross_entropy_with_logits(x, target, weight, None, Reduction::None)?;
    reduction.apply(&reductions::mean(&values, -1)?)
}

/// Computes ln(1 + e^(−t·x)) of scores x and targets t of 1 or −1.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method(autocast = Single)]
pub fn soft_margin_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    let op = "soft_margin_loss";
    check::floats(op, &[x, target])?;
    in_single!(op, [x, target] => soft_margin_loss(x, target, reduction));
    let (x, target) = (&precision::cast_operand(op, x)?, &precision::cast_operand(op, target)?);
    reduction.apply(&arithmetic::neg(&activation::logsigmoid(&arithmetic::mul(x, target)?)?)?)
}

/// Computes x where t = 1, and max(0, margin − x) where t = −1, for distances x. For any other t the loss is the sum of
/// both expressions, and for NaN it is NaN.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method(autocast = Single)]
pub fn hinge_embedding_loss(x: &Tensor, target: &Tensor, margin: f64, reduction: Reduction) -> Result<Tensor> {
    check::floats("hinge_embedding_loss", &[x])?;
    in_single!("hinge_embedding_loss", [x] => hinge_embedding_loss(x, target, margin, reduction));
    let formula = formula! {
        static hinge_embedding_loss(x, t; margin) =
            t.is_nan().select(t, t.ne(1.0).select((margin - x).relu(), 0.0) + t.ne(-1.0).select(x, 0.0));
        d x = {
            let others_gradient = t.ne(1.0).select((margin - x).le(0.0).select(0.0, -g), 0.0);
            t.is_nan().select(f64::NAN, others_gradient + t.ne(-1.0).select(g, 0.0))
        };
    };
    let target = copy::to_dtype(target, x.dtype())?;
    reduction.apply(&map(formula, &[x, &target], &[margin.into()])?)
}
