//! Losses of class scores against class indices.

use super::{Reduction, class_indices, class_shape_help, in_range};
use crate::ops::call::{axes, check};
use crate::ops::elementwise::{activation, arithmetic, compare};
use crate::ops::formula::map_sum;
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::{copy, create, fill, gather, precision, view};
use crate::ops::reduce::reductions;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result, formula};

/// Options of [`nll_loss`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NllLossOptions<'a> {
    /// The weights of the classes, `[C]`. They also weight the samples in the mean.
    pub weight: Option<&'a Tensor>,
    /// A class whose samples contribute 0 and are excluded from the mean.
    pub ignore_index: Option<i64>,
    /// The reduction of the losses of the samples.
    pub reduction: Reduction,
}

/// Computes the negative log-likelihood −w_t·x_t of class t, from the log-probabilities x of all classes.
///
/// x is `[N, C]`, `[C]` or `[N, C, d..]`; class indices have its shape without the class axis.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::IndexOutOfBounds`] for a class index outside 0..C that
/// is not ignored. In lazy and captured steps, and on a GPU, the loss and its gradient are NaN instead.
#[tensor_method(autocast = Single)]
pub fn nll_loss(x: &Tensor, target: &Tensor, options: NllLossOptions<'_>) -> Result<Tensor> {
    let op = "nll_loss";
    check::floats(op, &[x])?;
    let weight = options.weight;
    in_single!(op, [x; weight] => nll_loss(x, target, NllLossOptions { weight, ..options }));
    let x = &precision::cast_operand(op, x)?;
    let target = class_indices(op, target)?;
    let axis = x.rank().min(2).saturating_sub(1);
    let fits = x.rank() > 0 && {
        let dims_without_class_axis: Vec<usize> = (0..x.rank()).filter(|&k| k != axis).map(|k| x.shape()[k]).collect();
        target.shape()[..] == dims_without_class_axis[..]
    };
    if !fits {
        let help =
            "the input must be [N, C, ..] or [C], and the class indices must have its shape without the class axis"
                .to_string();
        let help = if x.rank() == 0 { help } else { class_shape_help(x.shape(), &target, axis, help) };
        return Err(Error::shapes(op, [x.shape(), target.shape()], help));
    }
    let classes = x.shape()[axis];
    if let Some(weight) = options.weight.filter(|w| w.shape()[..] != [classes]) {
        return Err(Error::shapes(
            op,
            [x.shape(), weight.shape()],
            "`weight` must be [C], with one element for each class",
        ));
    }
    let counts = options.ignore_index.map(|ignored| compare::ne(&target, ignored)).transpose()?;
    let valid = counts.as_ref().map_or(Ok(target.clone()), |counts| arithmetic::where_(counts, &target, 0))?;
    let checked = in_range(op, &valid, axis, classes)?;
    let (valid, axis) = (&checked.classes, axis as isize);
    let x = &checked.nan_where_invalid(x.clone(), options.reduction, &[], view::unsqueeze(valid, axis)?.shape())?;
    let target_scores = view::squeeze(&gather::take_along_axis(x, &view::unsqueeze(valid, axis)?, axis)?, axis)?;
    let weights = match options.weight {
        Some(weight) => gather::index_select(weight, 0, valid)?,
        None => fill::ones(valid.shape(), x.dtype())?,
    };
    // Ignored values are replaced, not multiplied by 0: they may be −∞, and the gradient of an empty mean is infinite.
    let counted = |t: Tensor| counts.as_ref().map_or(Ok(t.clone()), |counts| arithmetic::where_(counts, &t, 0.0));
    let values = counted(arithmetic::neg(&arithmetic::mul(&target_scores, &weights)?)?)?;
    checked.nan_loss_where_invalid(options.reduction.weighted(&values, &counted(weights)?)?, options.reduction, &[])
}

/// Options of [`multi_margin_loss`].
#[derive(Clone, Copy, Debug)]
pub struct MultiMarginLossOptions<'a> {
    /// The power p to which the missing margin is raised.
    pub p: f64,
    /// The margin by which the score of the target class should exceed the other scores.
    pub margin: f64,
    /// The weights of the classes, `[C]`.
    pub weight: Option<&'a Tensor>,
    /// The reduction of the losses of the samples.
    pub reduction: Reduction,
}

impl Default for MultiMarginLossOptions<'_> {
    fn default() -> Self {
        MultiMarginLossOptions { p: 1.0, margin: 1.0, weight: None, reduction: Reduction::Mean }
    }
}

/// Computes the multiclass margin loss Σ_{i ≠ t} w_t·max(0, margin − x_t + xᵢ)ᵖ / C (Crammer & Singer 2001).
///
/// Scores x are `[N, C]` or `[C]` (or 0-d); t are class indices.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::IndexOutOfBounds`] for a class index outside 0..C (in
/// lazy and captured steps, and on a GPU, the loss and its gradient are NaN instead); [`Error::InvalidArgument`] for a
/// power that is not positive.
#[tensor_method(autocast = Single)]
pub fn multi_margin_loss(x: &Tensor, target: &Tensor, options: MultiMarginLossOptions<'_>) -> Result<Tensor> {
    let op = "multi_margin_loss";
    if options.p.is_nan() || options.p <= 0.0 {
        return Err(Error::invalid(op, format!("the power p must be positive, got {}", options.p)));
    }
    check::floats(op, &[x])?;
    let weight = options.weight;
    in_single!(op, [x; weight] => multi_margin_loss(x, target, MultiMarginLossOptions { weight, ..options }));
    let x = &precision::cast_operand(op, x)?;
    let target = class_indices(op, target)?;
    let (rows, classes) = scores_as_matrix(op, x)?;
    if target.size() != rows.shape()[0] || target.rank() > 1 {
        return Err(Error::shapes(
            op,
            [x.shape(), target.shape()],
            "the target must have one class index for each sample",
        ));
    }
    if let Some(weight) = options.weight.filter(|w| w.shape()[..] != [classes]) {
        return Err(Error::shapes(
            op,
            [x.shape(), weight.shape()],
            "`weight` must be [C], with one element for each class",
        ));
    }
    let checked = in_range(op, &target, 1, classes)?;
    let target = view::reshape(&checked.classes, [target.size(), 1])?;
    let rows = checked.nan_where_invalid(rows, options.reduction, &[], target.shape())?;
    let missing = arithmetic::sub(options.margin, &gather::take_along_axis(&rows, &target, 1)?)?;
    let short = activation::relu(&arithmetic::add(&missing, &rows)?)?;
    let short = if options.p == 1.0 { short } else { arithmetic::pow(&short, options.p)? };
    let short = match options.weight {
        Some(weight) => arithmetic::mul(&short, &gather::index_select(weight, 0, &target)?)?,
        None => short,
    };
    let others = compare::ne(create::indices(classes)?, &target)?;
    let loss = reduce_samples(x, &arithmetic::where_(&others, &short, 0.0)?, classes, options.reduction)?;
    checked.nan_loss_where_invalid(loss, options.reduction, &[])
}

/// Computes the multilabel margin loss Σ_j Σ_i max(0, 1 − (x_j − xᵢ)) / C over target classes j and other classes i.
///
/// Scores x are `[N, C]` or `[C]` (or 0-d). Targets have the shape of x and contain class indices up to the first
/// negative element (−1 in PyTorch).
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::IndexOutOfBounds`] for a class index of C or more (in
/// lazy and captured steps, and on a GPU, the loss and its gradient are NaN instead).
#[tensor_method(autocast = Single)]
pub fn multilabel_margin_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    let op = "multilabel_margin_loss";
    check::floats(op, &[x])?;
    in_single!(op, [x] => multilabel_margin_loss(x, target, reduction));
    let x = &precision::cast_operand(op, x)?;
    let target = class_indices(op, target)?;
    let (rows, classes) = scores_as_matrix(op, x)?;
    if target.shape() != x.shape() {
        return Err(Error::shapes(op, [x.shape(), target.shape()], "targets must have the shape of the scores"));
    }
    let target = view::reshape(&target, rows.shape())?;
    // The class indices of a sample end before its first negative element.
    let positions = create::indices(classes)?;
    let ended = arithmetic::where_(&compare::lt(&target, 0)?, &positions, classes as i64)?;
    let count = reductions::min(&ended, axes::over(1).keepdims())?;
    // If values can be read, only the pairs with the columns that contain class indices are computed. The other pairs
    // are zeros at the end of every sum.
    let width = match check::is_readable(&count) && count.size() > 0 {
        true => reductions::max(&count, ..)?.try_item::<i64>()?.max(1) as usize,
        false => classes,
    };
    let valid = compare::lt(&view::narrow(&positions, 0, 0, width)?, &count)?;
    let target = arithmetic::where_(&valid, view::narrow(&target, 1, 0, width)?, 0)?;
    let checked = in_range(op, &target, 1, classes)?;
    let target = &checked.classes;
    let rows = checked.nan_where_invalid(rows, reduction, &[1], &[target.shape()[0], 1].into())?;
    let numbers = copy::to_dtype(&valid, target.dtype())?;
    let has = compare::gt(&gather::scatter_add_along(&numbers, target, 1, rows.shape())?, 0)?;
    let ahead = arithmetic::sub(1.0, &gather::take_along_axis(&rows, target, 1)?)?;
    // The pairs of class indices and classes, [N, width, C], are summed in the kernel that computes them.
    let hinge = formula! {
        static multilabel_margin(ahead, score, valid: mask, has: mask) = {
            (valid & !has).select((ahead + score).relu(), 0.0)
        };
    };
    let (column, row) = (|t: &Tensor| view::unsqueeze(t, 2), |t: &Tensor| view::unsqueeze(t, 1));
    let pairs = [&column(&ahead)?, &row(&rows)?, &column(&valid)?, &row(&has)?];
    let sums = map_sum(hinge, &pairs, &[], std::iter::once(1).collect(), None)?;
    let loss = reduce_samples(x, &view::squeeze(&sums, 1)?, classes, reduction)?;
    checked.nan_loss_where_invalid(loss, reduction, &[1])
}

/// Returns scores as a matrix, and the number of classes.
fn scores_as_matrix(op: &'static str, x: &Tensor) -> Result<(Tensor, usize)> {
    let classes = x.shape().last().copied().unwrap_or(1);
    if x.rank() > 2 || classes == 0 {
        return Err(Error::shapes(op, [x.shape()], "scores must be [N, C], [C] or 0-d, with at least one class"));
    }
    let samples = if x.rank() < 2 { 1 } else { x.shape()[0] };
    Ok((view::reshape(x, [samples, classes])?, classes))
}

/// Divides the sum of each sample's values by the number of classes, and reduces the quotients.
fn reduce_samples(x: &Tensor, values: &Tensor, classes: usize, reduction: Reduction) -> Result<Tensor> {
    let losses = arithmetic::div(&reductions::sum(values, 1)?, classes as f64)?;
    reduction.apply(&if x.rank() < 2 { view::squeeze(&losses, 0)? } else { losses })
}
