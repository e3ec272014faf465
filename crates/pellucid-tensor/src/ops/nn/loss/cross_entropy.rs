//! Cross-entropy of logits and classes, in one row kernel.

use super::{Reduction, class_shape_help, in_range};
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::{apply_rows_in, broadcast};
use crate::ops::primitive::precision::{in_single, round_to_operands, widened_dtype};
use crate::ops::primitive::{copy, fill, gather, view};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::{Formula, row_index, row_len};
use pellucid_ir::kernel::AxisSet;
use pellucid_ir::{DType, Error, Result, Scalar, formula};

/// Options of [`cross_entropy`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropyOptions<'a> {
    /// The fraction of the target that is distributed evenly over all classes, in [0, 1] (Szegedy et al. 2016).
    pub label_smoothing: f64,
    /// A class whose samples contribute 0 and are excluded from the mean.
    pub ignore_index: Option<i64>,
    /// The reduction of the losses of the samples.
    pub reduction: Reduction,
    /// The weights of the classes, `[C]`, with the logits' dtype. If the targets are class indices, the mean is
    /// weighted too.
    pub weight: Option<&'a Tensor>,
}

/// Computes the cross-entropy −Σ_c p_c·log softmax(logits)_c over axis 1 (or the last axis if there is only one).
///
/// Logits are `[N, C]`, `[C]` or `[N, C, d..]`. Targets are either class indices, of an integer dtype and the logits'
/// shape without the class axis, or probabilities of the logits' shape. With label smoothing s, p = (1 − s)·target +
/// s/C. The gradient is softmax(logits) − p, scaled by the reduction. With class weights w, a sample's loss is
/// −Σ_c w_c·p_c·log softmax(logits)_c.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for a smoothing outside [0, 1], or an
/// `ignore_index` with probabilities; [`Error::IndexOutOfBounds`] for a class index outside 0..C that is not ignored.
/// In lazy and captured steps, and on a GPU, an invalid index makes the loss NaN, and the gradients of all samples NaN.
/// Without a reduction, only the sample with the index is affected.
#[tensor_method(autocast = Single)]
pub fn cross_entropy(logits: &Tensor, targets: &Tensor, options: CrossEntropyOptions<'_>) -> Result<Tensor> {
    let op = OP;
    check_arguments(logits, targets, &options)?;
    if let (Some(_), true) = (options.weight, options.label_smoothing > 0.0) {
        // The logits are read twice, so their gradients must be added before they are rounded.
        let weight = options.weight;
        in_single!(op, [logits; weight] => cross_entropy(logits, targets, CrossEntropyOptions { weight, ..options }));
    }
    let axis = logits.rank().min(2) - 1;
    let weight = options.weight.map(|weight| per_class(weight, logits, axis)).transpose()?;
    let options = CrossEntropyOptions { weight: weight.as_ref(), ..options };
    match targets.dtype().is_float() {
        true => loss_of_probabilities(logits, targets, axis, &options),
        false => loss_of_classes(logits, targets, axis, &options),
    }
}

const OP: &str = "cross_entropy";

/// Returns an error for logits that are not floats or have no axis, and for a smoothing outside [0, 1].
fn check_arguments(logits: &Tensor, targets: &Tensor, options: &CrossEntropyOptions<'_>) -> Result<()> {
    if !logits.dtype().is_float() {
        let help = match targets.dtype().is_float() {
            true => {
                "the logits (first argument) must be floats, but only the targets are: exchange the arguments, \
                 cross_entropy(logits, targets)"
            }
            false => "logits must be floats; use to_dtype()",
        };
        return Err(Error::dtypes(OP, [logits.dtype(), targets.dtype()], help));
    }
    if logits.rank() == 0 {
        return Err(Error::shapes(OP, [logits.shape(), targets.shape()], "logits must be [N, C], [C] or [N, C, d..]"));
    }
    if !(0.0..=1.0).contains(&options.label_smoothing) {
        return Err(Error::invalid(OP, format!("label_smoothing must be in [0, 1], got {}", options.label_smoothing)));
    }
    Ok(())
}

/// Applies a formula whose rows extend over the classes on `axis`. Returns one value for each sample.
fn over_classes(
    formula: &Formula,
    operands: &[&Tensor],
    params: &[Scalar],
    axis: usize,
    compute_dtype: Option<DType>,
) -> Result<Tensor> {
    view::squeeze(&apply_rows_in(formula, operands, params, AxisSet::from_iter([axis]), compute_dtype)?, axis as isize)
}

/// Computes the loss for targets that are probabilities, with weights that broadcast with the logits.
fn loss_of_probabilities(
    logits: &Tensor,
    targets: &Tensor,
    axis: usize,
    options: &CrossEntropyOptions<'_>,
) -> Result<Tensor> {
    if targets.shape() != logits.shape() {
        let help = format!(
            "targets of dtype {} are probabilities and must have the logits' shape; class indices are integers: \
             convert them with to_dtype(DType::I64)",
            targets.dtype()
        );
        return Err(Error::shapes(OP, [logits.shape(), targets.shape()], help));
    }
    if options.ignore_index.is_some() {
        let reason = "ignore_index requires class indices as targets, which are integers; floats are probabilities";
        return Err(Error::invalid(OP, reason));
    }
    let (compute_dtype, params) = (widened_dtype(&[logits, targets]), [options.label_smoothing.into()]);
    let losses = match options.weight {
        Some(weight) => {
            over_classes(weighted_probability_formula(), &[logits, targets, weight], &params, axis, compute_dtype)?
        }
        None => over_classes(probability_formula(), &[logits, targets], &params, axis, compute_dtype)?,
    };
    round_to_operands(OP, &[logits, targets], options.reduction.apply(&losses)?)
}

/// Returns the classes as `i64`. An axis of length 1 replaces the class axis.
fn class_column(logits: &Tensor, targets: &Tensor, axis: usize) -> Result<Tensor> {
    let expected = AxisSet::from_iter([axis]).remove(logits.shape());
    if *targets.shape() != expected {
        let help = format!(
            "class indices must have the logits' shape without axis {axis}, {expected}; probabilities must have the \
             logits' shape and be floats"
        );
        let help = class_shape_help(logits.shape(), targets, axis, help);
        return Err(Error::shapes(OP, [logits.shape(), targets.shape()], help));
    }
    if targets.dtype() == DType::Bool {
        let help = "targets must be class indices (integers) or probabilities (floats); use to_dtype()";
        return Err(Error::dtypes(OP, [targets.dtype()], help));
    }
    view::unsqueeze(&copy::to_dtype(targets, DType::I64)?, axis as isize)
}

/// Computes the loss for targets that are class indices, with weights that broadcast with the logits.
fn loss_of_classes(
    logits: &Tensor,
    targets: &Tensor,
    axis: usize,
    options: &CrossEntropyOptions<'_>,
) -> Result<Tensor> {
    let classes = class_column(logits, targets, axis)?;
    let is_counted = options.ignore_index.map(|ignored| compare::ne(&classes, ignored)).transpose()?;
    // An ignored class index may be outside 0..C; it is replaced by class 0.
    let valid =
        is_counted.as_ref().map_or(Ok(classes.clone()), |is_counted| arithmetic::where_(is_counted, &classes, 0))?;
    let checked = in_range(OP, &valid, axis, logits.shape()[axis])?;
    let (compute_dtype, smoothing) = (widened_dtype(&[logits]), options.label_smoothing);
    let sample_weight = |weight: &Tensor| {
        let weight = broadcast::broadcast_to(weight, logits.shape())?;
        view::squeeze(&gather::take_along_axis(&weight, &checked.classes, axis as isize)?, axis as isize)
    };
    let losses = match options.weight {
        None if smoothing == 0.0 => over_classes(class_formula(), &[logits, &valid], &[], axis, compute_dtype)?,
        None => over_classes(smoothed_class_formula(), &[logits, &valid], &[smoothing.into()], axis, compute_dtype)?,
        Some(weight) => {
            let losses = over_classes(class_formula(), &[logits, &valid], &[], axis, compute_dtype)?;
            let weighted_losses = arithmetic::mul(&losses, &sample_weight(weight)?)?;
            match smoothing {
                0.0 => weighted_losses,
                s => {
                    let operands = [logits, &fill::zeros(logits.shape(), logits.dtype())?, weight];
                    let smoothing_loss =
                        over_classes(weighted_probability_formula(), &operands, &[s.into()], axis, compute_dtype)?;
                    arithmetic::add(&arithmetic::mul(&weighted_losses, 1.0 - s)?, &smoothing_loss)?
                }
            }
        }
    };
    let is_counted = is_counted.map(|is_counted| view::squeeze(&is_counted, axis as isize)).transpose()?;
    let losses =
        is_counted.as_ref().map_or(Ok(losses.clone()), |is_counted| arithmetic::where_(is_counted, &losses, 0.0))?;
    // The weight of each sample in the mean.
    let target_weights = match (options.weight, &is_counted) {
        (None, None) => None,
        (None, Some(is_counted)) => Some(is_counted.clone()),
        (Some(weight), None) => Some(sample_weight(weight)?),
        (Some(weight), Some(is_counted)) => Some(arithmetic::where_(is_counted, &sample_weight(weight)?, 0.0)?),
    };
    let loss = match target_weights {
        None => options.reduction.apply(&losses)?,
        Some(target_weights) => {
            options.reduction.weighted(&losses, &copy::to_dtype(&target_weights, losses.dtype())?)?
        }
    };
    round_to_operands(OP, &[logits], checked.nan_loss_where_invalid(loss, options.reduction, &[])?)
}

/// Reshapes class weights to broadcast with the logits.
fn per_class(weight: &Tensor, logits: &Tensor, axis: usize) -> Result<Tensor> {
    if weight.shape()[..] != [logits.shape()[axis]] {
        return Err(Error::shapes(
            OP,
            [logits.shape(), weight.shape()],
            "`weight` must be [C], with one element for each class",
        ));
    }
    if weight.dtype() != logits.dtype() {
        return Err(Error::dtypes(OP, [logits.dtype(), weight.dtype()], "weights must have the dtype of the logits"));
    }
    let shape: Vec<usize> = (0..logits.rank()).map(|k| if k == axis { weight.size() } else { 1 }).collect();
    view::reshape(weight, &shape[..])
}

/// Returns the formula for class indices without smoothing: ln Σ exp x − x_t.
///
/// All formulas in this file add ln Σ exp(x − m), for the maximum m, to differences m − x. Adding it to m would lose
/// the digits of a small loss of large logits.
fn class_formula() -> &'static Formula {
    formula! {
        static cross_entropy(x, t: per_row index) = {
            let m = x.row_max();
            let hit = row_index().eq(t);
            let is_in_range = t.ge(0) & t.lt(row_len().to_index());
            let target_logit = hit.select(x, 0.0).row_sum();
            let loss = (x - m).exp().row_sum().ln() + (m - target_logit);
            is_in_range.select(loss, f64::NAN)
        };
        d x = {
            let e = (x - x.row_max()).exp();
            g * (e * e.row_sum().recip() - row_index().eq(t).to_number())
        };
    }
}

/// Returns the formula for class indices with smoothing: (1 − s)·(ln Σ exp x − x_t) + s·(ln Σ exp x − mean x).
fn smoothed_class_formula() -> &'static Formula {
    formula! {
        static cross_entropy(x, t: per_row index; s) = {
            let m = x.row_max();
            let hit = row_index().eq(t);
            let is_in_range = t.ge(0) & t.lt(row_len().to_index());
            let target_logit = hit.select(x, 0.0).row_sum();
            let smoothing_loss = (1.0 - s) * (m - target_logit) + s * (m - x).row_mean();
            let loss = (x - m).exp().row_sum().ln() + smoothing_loss;
            is_in_range.select(loss, f64::NAN)
        };
        d x = {
            let e = (x - x.row_max()).exp();
            let p = (1.0 - s) * row_index().eq(t).to_number() + s / row_len();
            g * (e * e.row_sum().recip() - p)
        };
    }
}

/// Returns the formula for probabilities q: Σ_c p_c·(ln Σ exp x − x_c), p = (1 − s)·q + s/C.
fn probability_formula() -> &'static Formula {
    formula! {
        static cross_entropy(x, q; s) = {
            let m = x.row_max();
            let lse = (x - m).exp().row_sum().ln();
            let p = (1.0 - s) * q + s / row_len();
            (p * (lse + (m - x))).row_sum()
        };
    }
}

/// Returns the formula for probabilities q with class weights.
fn weighted_probability_formula() -> &'static Formula {
    formula! {
        static cross_entropy(x, q, w; s) = {
            let m = x.row_max();
            let lse = (x - m).exp().row_sum().ln();
            let p = (1.0 - s) * q + s / row_len();
            (w * p * (lse + (m - x))).row_sum()
        };
    }
}
