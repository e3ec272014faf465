//! Connectionist temporal classification: the probability of a labelling, over all its alignments.

use super::{Reduction, class_numbers, floats, in_range};
use crate::array::host_vec;
use crate::engine;
use crate::ops::formula::map;
use crate::ops::precision::in_single;
use crate::ops::{self, check};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::Formula;
use pellucid_ir::{DType, Error, Result, formula};
use std::sync::OnceLock;

/// Options of [`ctc_loss`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Ctc {
    /// The class that stands for nothing.
    pub blank: usize,
    /// Labellings without an alignment cost 0, with a gradient of 0, instead of ∞, with a gradient of NaN.
    pub zero_infinity: bool,
    /// What happens with the values: the mean is over the samples, each divided by its number of labels.
    pub reduction: Reduction,
}

/// −ln of the probability of each labelling (Graves et al. 2006): the sum, over all ways to write it as one class a
/// step with repetitions and blanks, of the products of their probabilities.
///
/// Logarithms of probabilities are `[T, N, C]` (or `[T, C]`, one sample), labels `[N, S]`, or all of them one after the
/// other; lengths are `i64 [N]`. Labels behind a sample's length, and steps behind it, do not count. The sum runs step
/// by step over the prefixes, by logarithms.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for a blank that is no class, and,
/// where values can be read, for a number of steps outside 0..=T or of labels outside 0..=S;
/// [`Error::IndexOutOfBounds`] for a label outside 0..C within its sample's length (where work is deferred, the loss
/// and its gradient are NaN instead); [`Error::ReadInCapture`] for labels one after the other, which are cut by their
/// lengths.
#[tensor_method]
#[track_caller]
pub fn ctc_loss(
    log_probs: &Tensor,
    targets: &Tensor,
    input_lengths: &Tensor,
    target_lengths: &Tensor,
    options: Ctc,
) -> Result<Tensor> {
    let op = "ctc_loss";
    floats(op, &[log_probs])?;
    in_single!(op, [log_probs] => ctc_loss(log_probs, targets, input_lengths, target_lengths, options));
    let single = log_probs.rank() == 2;
    let probs = if single { ops::unsqueeze(log_probs, 1)? } else { log_probs.clone() };
    let &[steps, samples, classes] = &probs.shape()[..] else {
        return Err(Error::shapes(op, [log_probs.shape()], "logarithms of probabilities are [T, N, C] or [T, C]"));
    };
    if options.blank >= classes {
        return Err(Error::invalid(op, format!("blank = {} is no class of 0..{classes}", options.blank)));
    }
    if input_lengths.size() != samples || target_lengths.size() != samples || steps == 0 {
        let shapes = [log_probs.shape(), input_lengths.shape(), target_lengths.shape()];
        return Err(Error::shapes(op, shapes, "there are two lengths for every sample, and at least one step"));
    }
    let lengths = |t: &Tensor| ops::reshape(&class_numbers(op, t)?, [samples, 1]);
    let (steps_of, labels_of) = (lengths(input_lengths)?, lengths(target_lengths)?);
    check::in_range(op, "numbers of steps", &steps_of, 0.0..=steps as f64)?;
    let labels = padded(op, &class_numbers(op, targets)?, &labels_of, samples)?;
    let most = labels.shape()[1];
    check::in_range(op, "numbers of labels", &labels_of, 0.0..=most as f64)?;
    // Labels behind a sample's length may be any numbers.
    let counts = ops::lt(&ops::indices(most)?, &labels_of)?;
    let checked = in_range(op, &ops::where_(&counts, &labels, options.blank as i64)?, 2, classes)?;
    let labels = &checked.classes;
    let probs = checked.poison(probs, options.reduction, &[1], &[1, samples, 1].into())?;

    // The labels with blanks between them and around: [N, 2S + 1].
    let width = 2 * labels.shape()[1] + 1;
    let blank = ops::full([samples, labels.shape()[1], 1], options.blank as i64, DType::I64)?;
    let with_blanks =
        ops::reshape(&ops::concatenate(&[&blank, &ops::unsqueeze(labels, 2)?], 2)?, [samples, width - 1])?;
    let path = ops::concatenate(&[&with_blanks, &ops::full([samples, 1], options.blank as i64, DType::I64)?], 1)?;
    let scores =
        ops::take_along_axis(&probs, &ops::broadcast_to(&ops::unsqueeze(&path, 0)?, [steps, samples, width])?, 2)?;
    // A place is reached from itself, from the one before, and, unless that would skip a blank between equal labels,
    // from the one before that.
    let skips = ops::logical_and(
        &ops::ne(&path, options.blank as i64)?,
        &ops::ne(&path, &shifted(&path, 2, options.blank as i64)?)?,
    )?;
    let places = ops::indices(width)?;
    // Added, not chosen: what is no number goes back to every step.
    let start = ops::to_dtype(&ops::where_(&ops::lt(&places, 2)?, 0.0, f64::NEG_INFINITY)?, probs.dtype())?;
    let mut prefixes = ops::add(&ops::select(&scores, 0, 0)?, &start)?;
    // Without a step there is one labelling, the empty one.
    let empty = ops::to_dtype(&ops::where_(&ops::lt(&places, 1)?, 0.0, f64::NEG_INFINITY)?, probs.dtype())?;
    prefixes = ops::where_(&ops::gt(&steps_of, 0)?, &prefixes, &empty)?;
    // Without a sample there is nothing to add up, however many steps there are.
    let steps = if samples == 0 { 0 } else { steps };
    for step in 1..steps {
        let one = shifted(&prefixes, 1, f64::NEG_INFINITY)?;
        let two = ops::where_(&skips, &shifted(&prefixes, 2, f64::NEG_INFINITY)?, f64::NEG_INFINITY)?;
        let next = ops::add(&map(log_sum(), &[&prefixes, &one, &two], &[])?, &ops::select(&scores, 0, step as isize)?)?;
        prefixes = ops::where_(&ops::gt(&steps_of, step as i64)?, &next, &prefixes)?;
    }
    // The whole labelling ends with its last label, or with a blank behind it.
    let end = ops::mul(&labels_of, 2)?;
    let blank_end = ops::take_along_axis(&prefixes, &end, 1)?;
    let label_end = ops::take_along_axis(&prefixes, &ops::maximum(&ops::sub(&end, 1)?, 0)?, 1)?;
    let label_end = ops::where_(&ops::gt(&labels_of, 0)?, &label_end, f64::NEG_INFINITY)?;
    let nothing = ops::full((), f64::NEG_INFINITY, probs.dtype())?;
    let mut total = ops::neg(&map(log_sum(), &[&blank_end, &label_end, &nothing], &[])?)?;
    if !engine::is_eager() {
        // Lengths that only a launch knows: outside of 0..=T the loss and its gradients are NaN, as for labels.
        let is_length = ops::logical_and(&ops::ge(&steps_of, 0)?, &ops::le(&steps_of, log_probs.shape()[0] as i64)?)?;
        total = check::nan_unless(&is_length, &total)?;
    }
    let losses = match options.zero_infinity {
        true => ops::where_(&ops::isinf(&total)?, 0.0, &total)?,
        false => map(unreachable(), &[&total], &[])?,
    };
    let losses = ops::squeeze(&losses, 1)?;
    let losses = match options.reduction {
        Reduction::Mean => {
            ops::div(&losses, &ops::to_dtype(&ops::maximum(&ops::ravel(&labels_of)?, 1)?, probs.dtype())?)?
        }
        _ => losses,
    };
    let single = single && options.reduction == Reduction::None;
    let loss = options.reduction.of(&if single { ops::squeeze(&losses, 0)? } else { losses })?;
    checked.poison_loss(loss, options.reduction, &[1])
}

/// The labels as a matrix.
#[track_caller]
fn padded(op: &'static str, targets: &Tensor, lengths: &Tensor, samples: usize) -> Result<Tensor> {
    if targets.rank() == 2 && targets.shape()[0] == samples {
        return Ok(targets.clone());
    }
    if targets.rank() != 1 {
        return Err(Error::shapes(op, [targets.shape()], "labels are [N, S], or one after the other"));
    }
    engine::readable(op, "labels one after the other are cut by their lengths; pass a padded matrix [N, S] of them")?;
    let counts = lengths.array().to_vec::<i64>(op)?;
    let total = counts.iter().try_fold(0i64, |sum, &n| if n < 0 { None } else { sum.checked_add(n) });
    if total.is_none_or(|total| total > targets.size() as i64) {
        let reason =
            format!("numbers of labels are at least 0 and add up to at most {}, got {counts:?}", targets.size());
        return Err(Error::invalid(op, reason));
    }
    let most = counts.iter().copied().max().unwrap_or(0);
    let mut first = 0;
    let mut index = host_vec((most as usize).saturating_mul(samples))?;
    for count in counts {
        // Places behind a sample's labels hold any label: they do not count.
        index.extend((0..most).map(|i| if i < count { first + i } else { 0 }));
        first += count;
    }
    ops::take(targets, &ops::from_host(&index, [samples, most as usize])?)
}

/// The elements of a matrix's rows moved to the right.
fn shifted(x: &Tensor, by: usize, fill: impl Into<pellucid_ir::Scalar>) -> Result<Tensor> {
    let width = x.shape()[1];
    let by = by.min(width);
    let first = ops::full([x.shape()[0], by], fill, x.dtype())?;
    ops::concatenate(&[&first, &ops::narrow(x, 1, 0, width - by)?], 1)
}

/// A loss, whose gradient is NaN where it is ∞: no step makes it smaller.
fn unreachable() -> &'static Formula {
    static UNREACHABLE: OnceLock<Formula> = OnceLock::new();
    UNREACHABLE
        .get_or_init(|| formula! { unreachable(x) = x; d x = x.eq(f64::INFINITY).select(f64::NAN, g); }.eternal())
}

/// ln(eᵃ + eᵇ + eᶜ); −∞ of three −∞, with a gradient of 0, unless what arrives is NaN.
fn log_sum() -> &'static Formula {
    static LOG_SUM: OnceLock<Formula> = OnceLock::new();
    LOG_SUM.get_or_init(|| {
        formula! {
            log_sum(a, b, c) = {
                let m = a.max(b).max(c);
                let safe = m.eq(f64::NEG_INFINITY).select(0.0, m);
                ((a - safe).exp() + (b - safe).exp() + (c - safe).exp()).ln() + safe
            };
            d a = g * y.eq(f64::NEG_INFINITY).select(0.0, (a - y.eq(f64::NEG_INFINITY).select(0.0, y)).exp());
            d b = g * y.eq(f64::NEG_INFINITY).select(0.0, (b - y.eq(f64::NEG_INFINITY).select(0.0, y)).exp());
            d c = g * y.eq(f64::NEG_INFINITY).select(0.0, (c - y.eq(f64::NEG_INFINITY).select(0.0, y)).exp());
        }
        .eternal()
    })
}
