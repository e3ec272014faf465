//! Losses of comparisons: which of two is larger, or nearer.

use super::{Reduction, floats};
use crate::autocast;
use crate::ops;
use crate::ops::over;
use crate::ops::precision::in_single;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result};

/// max(0, −t·(a − b) + margin): t = 1 where a should be larger, −1 where b. All broadcast.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn margin_ranking_loss(
    a: &Tensor,
    b: &Tensor,
    target: &Tensor,
    margin: f64,
    reduction: Reduction,
) -> Result<Tensor> {
    let op = "margin_ranking_loss";
    floats(op, &[a, b])?;
    if a.rank() != b.rank() || a.rank() != target.rank() {
        let help = "all three have one rank: broadcasting another would be a mistake more often than not";
        return Err(Error::shapes(op, [a.shape(), b.shape(), target.shape()], help));
    }
    in_single!(op, [a, b] => margin_ranking_loss(a, b, target, margin, reduction));
    let (a, b) = (&autocast::read(op, a)?, &autocast::read(op, b)?);
    let behind = ops::mul(&ops::sub(b, a)?, &ops::to_dtype(target, a.dtype())?)?;
    reduction.of(&ops::relu(&ops::add(&behind, margin)?)?)
}

/// 1 − cos(a, b) where t = 1, max(0, cos(a, b) − margin) where t = −1, of vectors `[N, D]` or `[D]`, and truths `[N]`
/// or `[]`.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn cosine_embedding_loss(
    a: &Tensor,
    b: &Tensor,
    target: &Tensor,
    margin: f64,
    reduction: Reduction,
) -> Result<Tensor> {
    let op = "cosine_embedding_loss";
    floats(op, &[a, b])?;
    let fits = matches!(target.rank(), 0 | 1) && a.rank() == target.rank() + 1 && b.rank() == a.rank();
    if !fits {
        let help = "takes [N, D], [N, D] and [N], or [D], [D] and []";
        return Err(Error::shapes(op, [a.shape(), b.shape(), target.shape()], help));
    }
    in_single!(op, [a, b] => cosine_embedding_loss(a, b, target, margin, reduction));
    let (a, b) = (&autocast::read(op, a)?, &autocast::read(op, b)?);
    // The small number is the field's: it is added to the squares.
    let dot = |a: &Tensor, b: &Tensor| ops::sum(&ops::mul(a, b)?, -1);
    let squares = |x: &Tensor| ops::add(&dot(x, x)?, 1e-12);
    let cos = ops::div(&dot(a, b)?, &ops::sqrt(&ops::mul(&squares(a)?, &squares(b)?)?)?)?;
    let near = ops::where_(&ops::eq(target, 1)?, &ops::sub(1.0, &cos)?, 0.0)?;
    let far = ops::where_(&ops::eq(target, -1)?, &ops::relu(&ops::sub(&cos, margin)?)?, 0.0)?;
    reduction.of(&ops::add(&near, &far)?)
}

/// Options of [`triplet_margin_loss`].
#[derive(Clone, Copy, Debug)]
pub struct Triplet {
    /// By how much the negative should be farther away.
    pub margin: f64,
    /// The order of the norm.
    pub p: f64,
    /// What is added to every difference.
    pub eps: f64,
    /// Takes the negative's distance from the positive, if that is smaller (Balntas et al. 2016).
    pub swap: bool,
    /// What happens with the values.
    pub reduction: Reduction,
}

impl Default for Triplet {
    fn default() -> Triplet {
        Triplet { margin: 1.0, p: 2.0, eps: 1e-6, swap: false, reduction: Reduction::Mean }
    }
}

/// max(0, d(a, positive) − d(a, negative) + margin), d the distance of vectors, the last axis, in the p-norm (Schroff
/// et al. 2015).
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] for a margin that is not
/// positive.
#[tensor_method]
pub fn triplet_margin_loss(x: &Tensor, positive: &Tensor, negative: &Tensor, options: Triplet) -> Result<Tensor> {
    let op = "triplet_margin_loss";
    floats(op, &[x, positive, negative])?;
    in_single!(op, [x, positive, negative] => triplet_margin_loss(x, positive, negative, options));
    let Triplet { margin, p, eps, swap, reduction } = options;
    let distance = |a: &Tensor, b: &Tensor| ops::norm(&ops::add(&ops::sub(a, b)?, eps)?, p, over(-1));
    let [x, positive, negative] = [x, positive, negative].map(|t| autocast::read(op, t));
    triplet_margin_with_distance_loss(&x?, &positive?, &negative?, distance, margin, swap, reduction)
}

/// [`triplet_margin_loss`] with any distance.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::InvalidArgument`] for a margin that is not positive, and those of the distance.
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
        return Err(Error::shapes("triplet_margin_with_distance_loss", shapes, "all three have one rank"));
    }
    if margin.is_nan() || margin <= 0.0 {
        return Err(Error::invalid(
            "triplet_margin_with_distance_loss",
            format!("the margin is positive, got {margin}"),
        ));
    }
    let near = distance(x, positive)?;
    let far = distance(x, negative)?;
    let far = if swap { ops::minimum(&far, &distance(positive, negative)?)? } else { far };
    nearer(&near, &far, margin, reduction)
}

/// max(0, near − far + margin), reduced.
fn nearer(near: &Tensor, far: &Tensor, margin: f64, reduction: Reduction) -> Result<Tensor> {
    in_single!("triplet_margin_loss", [near, far] => nearer(near, far, margin, reduction));
    reduction.of(&ops::relu(&ops::add(&ops::sub(near, far)?, margin)?)?)
}
