//! Connectionist temporal classification: the probability of a label sequence, summed over all alignments.

use super::{Reduction, class_indices, in_range, to_i64};
use crate::array::host_vec;
use crate::engine;
use crate::ops::call::check;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::{broadcast, map};
use crate::ops::primitive::concatenate::concatenate;
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::{copy, create, fill, gather, view};
use crate::ops::reduce::value_range;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::{Expr, Formula};
use pellucid_ir::{DType, Error, Result, formula};

/// Options of [`ctc_loss`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CtcLossOptions {
    /// The blank class.
    pub blank: usize,
    /// Whether labels without an alignment have loss 0 and gradient 0. Otherwise they have loss ∞ and gradient NaN.
    pub zero_infinity: bool,
    /// The reduction of the losses. The mean divides each sample's loss by its number of labels, and averages over the
    /// samples.
    pub reduction: Reduction,
}

/// Computes −ln of the probability of each label sequence, summed over all its alignments (Graves et al. 2006).
///
/// An alignment assigns a class to every step: the labels in order, with repetitions and blanks. Its probability is the
/// product of the class probabilities.
///
/// Log-probabilities are `[T, N, C]` (or `[T, C]` for one sample). Labels are `[N, S]`, or all label sequences
/// concatenated; lengths are integers `[N]`. Labels and steps beyond a sample's lengths are ignored. The forward
/// algorithm runs step by step over the prefixes, on logarithms. It stores the scores of all steps, `[T, N, 2S + 1]`;
/// the gradient also needs several arrays `[N, 2S + 1]` for each of the T steps.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for a blank outside 0..C, and, in
/// eager mode on the CPU, for an input length outside 0..=T or a label length outside 0..=S;
/// [`Error::IndexOutOfBounds`] there for a label outside 0..C within its sample's length. In lazy and captured steps,
/// and on a GPU, the loss of such a sample and its gradient are NaN instead. [`Error::ReadInCapture`] for concatenated
/// labels, which are split by the values of the lengths.
#[tensor_method(autocast = Single)]
#[track_caller]
pub fn ctc_loss(
    log_probs: &Tensor,
    targets: &Tensor,
    input_lengths: &Tensor,
    target_lengths: &Tensor,
    options: CtcLossOptions,
) -> Result<Tensor> {
    let op = "ctc_loss";
    check::floats(op, &[log_probs])?;
    in_single!(op, [log_probs] => ctc_loss(log_probs, targets, input_lengths, target_lengths, options));
    let single = log_probs.rank() == 2;
    let probs = if single { view::unsqueeze(log_probs, 1)? } else { log_probs.clone() };
    let &[steps, samples, classes] = &probs.shape()[..] else {
        return Err(Error::shapes(op, [log_probs.shape()], "log-probabilities must be [T, N, C] or [T, C]"));
    };
    if options.blank >= classes {
        return Err(Error::invalid(op, format!("blank = {} is outside the classes 0..{classes}", options.blank)));
    }
    if input_lengths.size() != samples || target_lengths.size() != samples || steps == 0 {
        let shapes = [log_probs.shape(), input_lengths.shape(), target_lengths.shape()];
        return Err(Error::shapes(
            op,
            shapes,
            "the arguments must be an input length and a label length for each of the N samples, and \
             log-probabilities [T, N, C] of at least one step; permute() log-probabilities with the batch first",
        ));
    }
    let help = "lengths must be integers; convert them with to_dtype(DType::I64)";
    let lengths = |t: &Tensor| view::reshape(&to_i64(op, help, t)?, [samples, 1]);
    let (input_lengths, label_lengths) = (lengths(input_lengths)?, lengths(target_lengths)?);
    let targets = class_indices(op, targets)?;
    if targets.rank() != 1 && !(targets.rank() == 2 && targets.shape()[0] == samples) {
        return Err(Error::shapes(op, [targets.shape()], "labels must be [N, S], or a concatenated vector"));
    }
    let (input_lengths, is_input_length) = checked_lengths(op, "input lengths", input_lengths, steps)?;
    let labels = padded_labels(op, &targets, &label_lengths, samples)?;
    let max_labels = labels.shape()[1];
    let (label_lengths, is_label_length) = checked_lengths(op, "label lengths", label_lengths, max_labels)?;
    // Labels beyond a sample's length may have any value.
    let counts = compare::lt(&create::indices(max_labels)?, &label_lengths)?;
    let checked = in_range(op, &arithmetic::where_(&counts, &labels, options.blank as i64)?, 2, classes)?;
    let labels = &checked.classes;
    let probs = checked.nan_where_invalid(probs, options.reduction, &[1], &[1, samples, 1].into())?;

    let path = with_blanks(labels, options.blank)?;
    let mut total = arithmetic::neg(&log_probability(&probs, &path, options.blank, &input_lengths, &label_lengths)?)?;
    if let Some(is_length) = value_range::both(is_input_length, is_label_length)? {
        total = value_range::nan_unless(&is_length, &total)?;
    }
    let losses = match options.zero_infinity {
        true => arithmetic::where_(&compare::isinf(&total)?, 0.0, &total)?,
        false => map(unreachable(), &[&total], &[])?,
    };
    let losses = view::squeeze(&losses, 1)?;
    let losses = match options.reduction {
        Reduction::Mean => arithmetic::div(
            &losses,
            &copy::to_dtype(&arithmetic::maximum(&view::ravel(&label_lengths)?, 1)?, probs.dtype())?,
        )?,
        _ => losses,
    };
    let single = single && options.reduction == Reduction::None;
    let loss = options.reduction.apply(&if single { view::squeeze(&losses, 0)? } else { losses })?;
    checked.nan_loss_where_invalid(loss, options.reduction, &[1])
}

/// Returns lengths in 0..=`max`, or an error. If the values cannot be read, clamps the lengths, and also returns the
/// mask of those that were in the range. The loss of the other samples and its gradient are then NaN.
fn checked_lengths(op: &'static str, subject: &str, lengths: Tensor, max: usize) -> Result<(Tensor, Option<Tensor>)> {
    value_range::in_range(op, subject, &lengths, 0.0..=max as f64)?;
    if check::is_readable(&lengths) {
        return Ok((lengths, None));
    }
    let is_inside = compare::logical_and(&compare::ge(&lengths, 0)?, &compare::le(&lengths, max as i64)?)?;
    Ok((arithmetic::clamp(&lengths, 0, max as i64)?, Some(is_inside)))
}

/// Returns labels `[N, S]` with a blank before, between and after them: `[N, 2S + 1]`.
fn with_blanks(labels: &Tensor, blank: usize) -> Result<Tensor> {
    let (samples, count) = (labels.shape()[0], labels.shape()[1]);
    let blanks = |shape: &[usize]| fill::full(shape, blank as i64, DType::I64);
    let pairs = concatenate(&[&blanks(&[samples, count, 1])?, &view::unsqueeze(labels, 2)?], 2)?;
    concatenate(&[&view::reshape(&pairs, [samples, 2 * count])?, &blanks(&[samples, 1])?], 1)
}

/// Returns the logarithm of the probability of each path of labels with blanks, `[N, 2S + 1]`, summed over all its
/// alignments: `[N, 1]`. Log-probabilities are `[T, N, C]`; the input and label lengths are `[N, 1]`.
///
/// This is the forward algorithm: after t steps, `prefixes` holds the scores of all prefixes of the path.
fn log_probability(
    probs: &Tensor,
    path: &Tensor,
    blank: usize,
    input_lengths: &Tensor,
    label_lengths: &Tensor,
) -> Result<Tensor> {
    let (steps, samples, width) = (probs.shape()[0], path.shape()[0], path.shape()[1]);
    let step_labels = broadcast::broadcast_to(&view::unsqueeze(path, 0)?, [steps, samples, width])?;
    let scores = gather::take_along_axis(probs, &step_labels, 2)?;
    // A state can be reached from itself and from the previous state. It can also be reached from the state before the
    // previous one, unless this would skip a blank between equal labels.
    let skips = compare::logical_and(
        &compare::ne(path, blank as i64)?,
        &compare::ne(path, &shift_right(path, 2, blank as i64)?)?,
    )?;
    let positions = create::indices(width)?;
    let first = |count: i64| {
        copy::to_dtype(&arithmetic::where_(&compare::lt(&positions, count)?, 0.0, f64::NEG_INFINITY)?, probs.dtype())
    };
    // The initial log-probabilities, 0 or −∞, are added instead of selecting scores, so that a NaN score has a gradient
    // of NaN in every step.
    let mut prefixes = arithmetic::add(&view::select(&scores, 0, 0)?, &first(2)?)?;
    // With zero steps, only the empty label sequence is possible.
    prefixes = arithmetic::where_(&compare::gt(input_lengths, 0)?, &prefixes, &first(1)?)?;
    let step_numbers = view::reshape(&create::indices(steps)?, [steps, 1, 1])?;
    let is_active = compare::gt(input_lengths, &step_numbers)?;
    let before_first = fill::full([samples, 2], f64::NEG_INFINITY, probs.dtype())?;
    let advanced = formula! {
        static advanced(reached, score, prefix, is_active: mask) = is_active.select(reached + score, prefix);
    };
    // Without samples, no step needs to run.
    for step in 1..if samples == 0 { 0 } else { steps } {
        let shifted = concatenate(&[&before_first, &prefixes], 1)?;
        let one = view::narrow(&shifted, 1, 1, width)?;
        let two = view::narrow(&shifted, 1, 0, width)?;
        let reached = map(log_sum_of_states(), &[&prefixes, &one, &two, &skips], &[])?;
        let of_step = |x: &Tensor| view::select(x, 0, step as isize);
        prefixes = map(advanced, &[&reached, &of_step(&scores)?, &prefixes, &of_step(&is_active)?], &[])?;
    }
    // A complete path ends with its last label, or with a blank after it.
    let end = arithmetic::mul(label_lengths, 2)?;
    let blank_end = gather::take_along_axis(&prefixes, &end, 1)?;
    let label_end = gather::take_along_axis(&prefixes, &arithmetic::maximum(&arithmetic::sub(&end, 1)?, 0)?, 1)?;
    let label_end = arithmetic::where_(&compare::gt(label_lengths, 0)?, &label_end, f64::NEG_INFINITY)?;
    let nothing = fill::full((), f64::NEG_INFINITY, probs.dtype())?;
    map(log_sum(), &[&blank_end, &label_end, &nothing], &[])
}

/// Returns the labels, a matrix or a concatenated vector, as a padded matrix.
#[track_caller]
fn padded_labels(op: &'static str, targets: &Tensor, lengths: &Tensor, samples: usize) -> Result<Tensor> {
    if targets.rank() == 2 {
        return Ok(targets.clone());
    }
    engine::check_readable(
        op,
        "concatenated labels are split by the values of their lengths; pass a padded matrix [N, S]",
    )?;
    let counts = lengths.array().to_vec::<i64>(op)?;
    let total = counts.iter().try_fold(0i64, |sum, &n| if n < 0 { None } else { sum.checked_add(n) });
    if total.is_none_or(|total| total > targets.size() as i64) {
        let reason = format!("label lengths must be nonnegative and sum to at most {}, got {counts:?}", targets.size());
        return Err(Error::invalid(op, reason));
    }
    let max_labels = counts.iter().copied().max().unwrap_or(0);
    let mut first = 0;
    let mut index = host_vec((max_labels as usize).saturating_mul(samples))?;
    for count in counts {
        // Padding may be any label, because it is ignored.
        index.extend((0..max_labels).map(|i| if i < count { first + i } else { 0 }));
        first += count;
    }
    gather::take(targets, &create::from_host(&index, [samples, max_labels as usize])?)
}

/// Shifts the rows of a matrix to the right, and fills the first columns.
fn shift_right(x: &Tensor, by: usize, fill: impl Into<pellucid_ir::Scalar>) -> Result<Tensor> {
    let width = x.shape()[1];
    let by = by.min(width);
    let first = fill::full([x.shape()[0], by], fill, x.dtype())?;
    concatenate(&[&first, &view::narrow(x, 1, 0, width - by)?], 1)
}

/// Returns the identity formula with a gradient of NaN where a loss is ∞, because no gradient step can make such a loss
/// finite.
fn unreachable() -> &'static Formula {
    formula! { static unreachable(x) = x; d x = x.eq(f64::INFINITY).select(f64::NAN, g); }
}

/// Returns the formula ln(eᵃ + eᵇ + eᶜ). For three −∞ it is −∞ with a gradient of 0, unless the incoming gradient is
/// NaN.
fn log_sum() -> &'static Formula {
    formula! {
        static log_sum(a, b, c) = log_sum_exp(a, b, c);
        d a = g * exp_of_difference(a, y);
        d b = g * exp_of_difference(b, y);
        d c = g * exp_of_difference(c, y);
    }
}

/// Returns the formula [`log_sum`], where c is −∞ unless the mask is true.
fn log_sum_of_states() -> &'static Formula {
    formula! {
        static log_sum_of_states(a, b, c, skips: mask) = log_sum_exp(a, b, skips.select(c, f64::NEG_INFINITY));
        d a = g * exp_of_difference(a, y);
        d b = g * exp_of_difference(b, y);
        d c = skips.select(g * exp_of_difference(c, y), 0.0);
    }
}

/// Returns ln(eᵃ + eᵇ + eᶜ), or −∞ for three −∞.
fn log_sum_exp(a: Expr, b: Expr, c: Expr) -> Expr {
    let m = a.max(b).max(c);
    let safe = m.eq(f64::NEG_INFINITY).select(0.0, m);
    ((a - safe).exp() + (b - safe).exp() + (c - safe).exp()).ln() + safe
}

/// Returns e^(x − y), or 0 if y is −∞.
fn exp_of_difference(x: Expr, y: Expr) -> Expr {
    y.eq(f64::NEG_INFINITY).select(0.0, (x - y.eq(f64::NEG_INFINITY).select(0.0, y)).exp())
}
