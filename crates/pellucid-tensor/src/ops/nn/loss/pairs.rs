//! Losses that compare pairs of values or distances.

use super::Reduction;
use crate::ops::call::axes::over;
use crate::ops::call::check;
use crate::ops::elementwise::{activation, arithmetic};
use crate::ops::formula::map;
use crate::ops::linalg;
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::{copy, precision};
use crate::ops::reduce::reductions;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result, formula};

/// Computes max(0, −t·(a − b) + margin), where t is 1 if a should be larger, and −1 if b should be larger.
///
/// a, b and t broadcast, but must have the same rank.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method(autocast = Single)]
pub fn margin_ranking_loss(
    a: &Tensor,
    b: &Tensor,
    target: &Tensor,
    margin: f64,
    reduction: Reduction,
) -> Result<Tensor> {
    let op = "margin_ranking_loss";
    check::floats(op, &[a, b])?;
    if a.rank() != b.rank() || a.rank() != target.rank() {
        let help = "all three tensors must have the same rank; broadcasting different ranks is most likely a mistake";
        return Err(Error::shapes(op, [a.shape(), b.shape(), target.shape()], help));
    }
    in_single!(op, [a, b] => margin_ranking_loss(a, b, target, margin, reduction));
    let (a, b) = (&precision::cast_operand(op, a)?, &precision::cast_operand(op, b)?);
    let behind = arithmetic::mul(&arithmetic::sub(b, a)?, &copy::to_dtype(target, a.dtype())?)?;
    reduction.apply(&activation::relu(&arithmetic::add(&behind, margin)?)?)
}

/// Computes 1 − cos(a, b) where t = 1, and max(0, cos(a, b) − margin) where t = −1. For any other t the loss is 0, and
/// for NaN it is NaN.
///
/// The vectors are `[N, D]` or `[D]`, the targets t `[N]` or `[]`. The sums of squares of the vectors must be
/// representable.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method(autocast = Single)]
pub fn cosine_embedding_loss(
    a: &Tensor,
    b: &Tensor,
    target: &Tensor,
    margin: f64,
    reduction: Reduction,
) -> Result<Tensor> {
    let op = "cosine_embedding_loss";
    check::floats(op, &[a, b])?;
    let fits = matches!(target.rank(), 0 | 1) && a.rank() == target.rank() + 1 && b.rank() == a.rank();
    if !fits {
        let help = "the two inputs and the target must be [N, D], [N, D] and [N], or [D], [D] and []";
        return Err(Error::shapes(op, [a.shape(), b.shape(), target.shape()], help));
    }
    in_single!(op, [a, b] => cosine_embedding_loss(a, b, target, margin, reduction));
    let (a, b) = (&precision::cast_operand(op, a)?, &precision::cast_operand(op, b)?);
    // PyTorch also adds 1e-12 to the sums of squares.
    let dot = |a: &Tensor, b: &Tensor| linalg::vecdot(a, b, -1);
    let length = |x: &Tensor| arithmetic::sqrt(&arithmetic::add(&dot(x, x)?, 1e-12)?);
    // The product of the squares may overflow although the product of the lengths does not.
    let cos = arithmetic::div(&dot(a, b)?, &arithmetic::mul(&length(a)?, &length(b)?)?)?;
    let formula = formula! {
        static cosine_embedding_loss(cos, t; margin) = {
            let loss = t.eq(1.0).select(1.0 - cos, t.eq(-1.0).select((cos - margin).relu(), 0.0));
            t.is_nan().select(t, loss)
        };
        d cos = {
            let others_gradient = (cos - margin).le(0.0).select(0.0, g);
            t.is_nan().select(f64::NAN, t.eq(1.0).select(-g, t.eq(-1.0).select(others_gradient, 0.0)))
        };
        d t = 0.0 * g;
    };
    reduction.apply(&map(formula, &[&cos, &copy::to_dtype(target, cos.dtype())?], &[margin.into()])?)
}

/// Options of [`triplet_margin_loss`].
#[derive(Clone, Copy, Debug)]
pub struct TripletMarginLossOptions {
    /// The margin by which the distance to the negative should exceed the distance to the positive.
    pub margin: f64,
    /// The order p of the norm.
    pub p: f64,
    /// ε, which is added to every difference.
    pub eps: f64,
    /// Whether the smaller of d(positive, negative) and d(x, negative) is the distance to the negative (Balntas et al.
    /// 2016).
    pub swap: bool,
    /// The reduction of the losses.
    pub reduction: Reduction,
}

impl Default for TripletMarginLossOptions {
    fn default() -> TripletMarginLossOptions {
        TripletMarginLossOptions { margin: 1.0, p: 2.0, eps: 1e-6, swap: false, reduction: Reduction::Mean }
    }
}

/// Computes max(0, d(x, positive) − d(x, negative) + margin) (Schroff et al. 2015).
///
/// d is the p-norm distance of vectors along the last axis. The differences are stored: if the operands broadcast, one
/// array of the broadcast shape for each distance.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] for a margin that is not
/// positive.
#[tensor_method(autocast = Single)]
pub fn triplet_margin_loss(
    x: &Tensor,
    positive: &Tensor,
    negative: &Tensor,
    options: TripletMarginLossOptions,
) -> Result<Tensor> {
    let op = "triplet_margin_loss";
    check::floats(op, &[x, positive, negative])?;
    in_single!(op, [x, positive, negative] => triplet_margin_loss(x, positive, negative, options));
    let TripletMarginLossOptions { margin, p, eps, swap, reduction } = options;
    let difference = formula! { static shifted_difference(a, b; eps) = a - b + eps; };
    let distance = |a: &Tensor, b: &Tensor| reductions::norm(&map(difference, &[a, b], &[eps.into()])?, p, over(-1));
    let [x, positive, negative] = [x, positive, negative].map(|t| precision::cast_operand(op, t));
    triplet_margin_with_distance_loss(&x?, &positive?, &negative?, distance, margin, swap, reduction)
}

/// Computes the [`triplet_margin_loss`] with the distance function `distance`.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::InvalidArgument`] for a margin that is not positive; the errors of the distance.
#[tensor_method]
pub fn triplet_margin_with_distance_loss(
    x: &Tensor,
    positive: &Tensor,
    negative: &Tensor,
    distance: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    margin: f64,
    swap: bool,
    reduction: Reduction,
) -> Result<Tensor> {
    if x.rank() != positive.rank() || x.rank() != negative.rank() {
        let shapes = [x.shape(), positive.shape(), negative.shape()];
        let help = "all three tensors must have the same rank";
        return Err(Error::shapes("triplet_margin_with_distance_loss", shapes, help));
    }
    if margin.is_nan() || margin <= 0.0 {
        let reason = format!("the margin must be positive, got {margin}");
        return Err(Error::invalid("triplet_margin_with_distance_loss", reason));
    }
    let to_positive = distance(x, positive)?;
    let to_negative = distance(x, negative)?;
    let to_negative =
        if swap { arithmetic::minimum(&to_negative, &distance(positive, negative)?)? } else { to_negative };
    margin_hinge(&to_positive, &to_negative, margin, reduction)
}

/// Reduces max(0, to_positive − to_negative + margin).
fn margin_hinge(to_positive: &Tensor, to_negative: &Tensor, margin: f64, reduction: Reduction) -> Result<Tensor> {
    in_single!("triplet_margin_loss", [to_positive, to_negative] => margin_hinge(to_positive, to_negative, margin, reduction));
    reduction.apply(&activation::relu(&arithmetic::add(&arithmetic::sub(to_positive, to_negative)?, margin)?)?)
}
