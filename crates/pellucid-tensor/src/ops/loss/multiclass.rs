//! Losses between scores of classes and class numbers.

use super::{Reduction, class_numbers, floats, in_range};
use crate::autocast;
use crate::ops;
use crate::ops::precision::in_single;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result};

/// Options of [`nll_loss`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NllLoss<'a> {
    /// How much each class counts, `[C]`. The mean is one over the weights of the samples.
    pub weight: Option<&'a Tensor>,
    /// Samples of this class contribute nothing.
    pub ignore_index: Option<i64>,
    /// What happens with the values of the samples.
    pub reduction: Reduction,
}

/// −w_t·x_t, the negative logarithm of the probability of class t, from the logarithms x of all: `[N, C]`, `[C]` or
/// `[N, C, d..]`, with class numbers of that shape without the class axis.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::IndexOutOfBounds`] for a class number outside 0..C that
/// is not ignored. Where work is deferred, the loss and its gradient are NaN instead.
#[tensor_method]
pub fn nll_loss(x: &Tensor, target: &Tensor, options: NllLoss<'_>) -> Result<Tensor> {
    let op = "nll_loss";
    floats(op, &[x])?;
    let weight = options.weight;
    in_single!(op, [x; weight] => nll_loss(x, target, NllLoss { weight, ..options }));
    let x = &autocast::read(op, x)?;
    let target = class_numbers(op, target)?;
    let axis = x.rank().min(2).saturating_sub(1);
    let fits = x.rank() > 0 && {
        let beside: Vec<usize> = (0..x.rank()).filter(|&k| k != axis).map(|k| x.shape()[k]).collect();
        target.shape()[..] == beside[..]
    };
    if !fits {
        let help = "takes [N, C, ..] or [C], and class numbers of its shape without the class axis";
        return Err(Error::shapes(op, [x.shape(), target.shape()], help));
    }
    let classes = x.shape()[axis];
    if let Some(weight) = options.weight.filter(|w| w.shape()[..] != [classes]) {
        return Err(Error::shapes(op, [x.shape(), weight.shape()], "there is one weight for every class"));
    }
    let counts = options.ignore_index.map(|ignored| ops::ne(&target, ignored)).transpose()?;
    let valid = counts.as_ref().map_or(Ok(target.clone()), |counts| ops::where_(counts, &target, 0))?;
    let checked = in_range(op, &valid, axis, classes)?;
    let (valid, axis) = (&checked.classes, axis as isize);
    let x = &checked.poison(x.clone(), options.reduction, &[], ops::unsqueeze(valid, axis)?.shape())?;
    let picked = ops::squeeze(&ops::take_along_axis(x, &ops::unsqueeze(valid, axis)?, axis)?, axis)?;
    let weights = match options.weight {
        Some(weight) => ops::index_select(weight, 0, valid)?,
        None => ops::ones(valid.shape(), x.dtype())?,
    };
    // What does not count is left out, not multiplied by 0: it may be −∞, and the mean over nothing has a slope of ∞.
    let counted = |t: Tensor| counts.as_ref().map_or(Ok(t.clone()), |counts| ops::where_(counts, &t, 0.0));
    let values = counted(ops::neg(&ops::mul(&picked, &weights)?)?)?;
    checked.poison_loss(options.reduction.weighted(&values, &counted(weights)?)?, options.reduction, &[])
}

/// Options of [`multi_margin_loss`].
#[derive(Clone, Copy, Debug)]
pub struct MultiMargin<'a> {
    /// The power of what is missing to the margin.
    pub p: f64,
    /// By how much the class's score should exceed the others.
    pub margin: f64,
    /// How much each class counts, `[C]`.
    pub weight: Option<&'a Tensor>,
    /// What happens with the values of the samples.
    pub reduction: Reduction,
}

impl Default for MultiMargin<'_> {
    fn default() -> Self {
        MultiMargin { p: 1.0, margin: 1.0, weight: None, reduction: Reduction::Mean }
    }
}

/// Σ_{i ≠ t} w_t·max(0, margin − x_t + xᵢ)ᵖ / C of scores `[N, C]` or `[C]` (or one number) and class numbers t
/// (Crammer & Singer 2001).
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::IndexOutOfBounds`] for a class number outside 0..C
/// (where work is deferred, the loss and its gradient are NaN instead); [`Error::InvalidArgument`] for a power that is
/// not positive.
#[tensor_method]
pub fn multi_margin_loss(x: &Tensor, target: &Tensor, options: MultiMargin<'_>) -> Result<Tensor> {
    let op = "multi_margin_loss";
    if options.p.is_nan() || options.p <= 0.0 {
        return Err(Error::invalid(op, format!("the power p is positive, got {}", options.p)));
    }
    floats(op, &[x])?;
    let weight = options.weight;
    in_single!(op, [x; weight] => multi_margin_loss(x, target, MultiMargin { weight, ..options }));
    let x = &autocast::read(op, x)?;
    let target = class_numbers(op, target)?;
    let (rows, classes) = matrix(op, x)?;
    if target.size() != rows.shape()[0] || target.rank() > 1 {
        return Err(Error::shapes(op, [x.shape(), target.shape()], "there is one class number for every sample"));
    }
    if let Some(weight) = options.weight.filter(|w| w.shape()[..] != [classes]) {
        return Err(Error::shapes(op, [x.shape(), weight.shape()], "there is one weight for every class"));
    }
    let checked = in_range(op, &target, 1, classes)?;
    let target = ops::reshape(&checked.classes, [target.size(), 1])?;
    let rows = checked.poison(rows, options.reduction, &[], target.shape())?;
    let missing = ops::sub(options.margin, &ops::take_along_axis(&rows, &target, 1)?)?;
    let short = ops::relu(&ops::add(&missing, &rows)?)?;
    let short = if options.p == 1.0 { short } else { ops::pow(&short, options.p)? };
    let short = match options.weight {
        Some(weight) => ops::mul(&short, &ops::index_select(weight, 0, &target)?)?,
        None => short,
    };
    let others = ops::ne(ops::indices(classes)?, &target)?;
    let loss = samples(x, &ops::where_(&others, &short, 0.0)?, classes, options.reduction)?;
    checked.poison_loss(loss, options.reduction, &[])
}

/// Σ_j Σ_i max(0, 1 − (x_j − xᵢ)) / C over the classes j that a sample has and the classes i that it has not, of scores
/// `[N, C]` or `[C]` (or one number). Targets have their shape: class numbers up to the first −1.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::IndexOutOfBounds`] for a class number of C or more.
/// Where work is deferred, the loss and its gradient are NaN instead.
#[tensor_method]
pub fn multilabel_margin_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    let op = "multilabel_margin_loss";
    floats(op, &[x])?;
    in_single!(op, [x] => multilabel_margin_loss(x, target, reduction));
    let x = &autocast::read(op, x)?;
    let target = class_numbers(op, target)?;
    let (rows, classes) = matrix(op, x)?;
    if target.shape() != x.shape() {
        return Err(Error::shapes(op, [x.shape(), target.shape()], "targets have the shape of the scores"));
    }
    let target = ops::reshape(&target, rows.shape())?;
    // Class numbers count up to the first that is negative.
    let ended = ops::cumsum(&ops::lt(&target, 0)?, 1)?;
    let valid = ops::eq(&ended, 0)?;
    let target = ops::where_(&valid, &target, 0)?;
    let checked = in_range(op, &target, 1, classes)?;
    let target = &checked.classes;
    let rows = checked.poison(rows, reduction, &[1], &[target.shape()[0], 1].into())?;
    let numbers = ops::to_dtype(&valid, target.dtype())?;
    let has = ops::gt(&ops::scatter_add_along(&numbers, target, 1, rows.shape())?, 0)?;
    let ahead = ops::sub(1.0, &ops::take_along_axis(&rows, target, 1)?)?;
    let short = ops::relu(&ops::add(&ops::unsqueeze(&ahead, 2)?, &ops::unsqueeze(&rows, 1)?)?)?;
    let pairs = ops::logical_and(&ops::unsqueeze(&valid, 2)?, &ops::logical_not(&ops::unsqueeze(&has, 1)?)?)?;
    let loss = samples(x, &ops::sum(&ops::where_(&pairs, &short, 0.0)?, 1)?, classes, reduction)?;
    checked.poison_loss(loss, reduction, &[1])
}

/// Scores as a matrix, and the number of classes.
fn matrix(op: &'static str, x: &Tensor) -> Result<(Tensor, usize)> {
    let classes = x.shape().last().copied().unwrap_or(1);
    if x.rank() > 2 || classes == 0 {
        return Err(Error::shapes(op, [x.shape()], "scores are [N, C], [C] or one number, with at least one class"));
    }
    let samples = if x.rank() < 2 { 1 } else { x.shape()[0] };
    Ok((ops::reshape(x, [samples, classes])?, classes))
}

/// Every sample's mean over the classes, reduced.
fn samples(x: &Tensor, values: &Tensor, classes: usize, reduction: Reduction) -> Result<Tensor> {
    let losses = ops::div(&ops::sum(values, 1)?, classes as f64)?;
    reduction.of(&if x.rank() < 2 { ops::squeeze(&losses, 0)? } else { losses })
}
