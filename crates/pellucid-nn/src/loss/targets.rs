//! Shapes, dtypes and values of targets.

use super::batch_weight::BatchWeight;
use pellucid_tensor::ops::Reduction;
use pellucid_tensor::{DType, Error, Result, Shape, Tensor, formula, ops};

/// The shapes and dtypes of the targets of a loss.
#[derive(Clone, Copy)]
pub(crate) enum TargetForm {
    /// Class indices, `i64`: the logits' shape without the class axis, `[B]` for logits `[B, C]`, `[]` for `[C]`,
    /// `[B, d..]` for `[B, C, d..]`.
    ClassIndices,
    /// Class indices, or a probability for each logit.
    Classes,
    /// One list of class indices for each row of the logits, padded to the number of classes.
    ClassLists,
    /// A value for each logit, of the dtype of the logits.
    Values,
    /// A label for each logit, of the dtype of the logits or an integer dtype.
    Labels,
}

impl TargetForm {
    /// Returns shape and dtype of the targets for logits of this shape and dtype; `None` if several dtypes are
    /// possible.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for logits without a class axis if the loss needs one.
    pub(crate) fn expected(self, logits: &Shape, dtype: DType) -> Result<Option<(Shape, DType)>> {
        Ok(match self {
            TargetForm::ClassIndices | TargetForm::Classes => Some((class_index_shape(logits)?, DType::I64)),
            TargetForm::ClassLists => Some((logits.clone(), DType::I64)),
            TargetForm::Values => Some((logits.clone(), dtype)),
            TargetForm::Labels => None,
        })
    }

    /// Returns an error unless values and labels have the shape of the logits: broadcasting would usually hide a
    /// mistake. The operations check the shapes of classes.
    pub(super) fn check(self, op: &'static str, logits: &Tensor, y: &Tensor) -> Result<()> {
        match self {
            TargetForm::Values | TargetForm::Labels if logits.shape() != y.shape() => {
                let help = "the logits and the targets must have the same shape; use reshape() or expand()";
                Err(Error::shapes(op, [logits.shape(), y.shape()], help))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the shape of class indices for logits of this shape.
fn class_index_shape(logits: &Shape) -> Result<Shape> {
    if logits.rank() == 0 {
        return Err(Error::shapes("cross_entropy", [logits], "the logits must have a class axis: [B, C]"));
    }
    let others = logits.iter().enumerate().filter(|(axis, _)| *axis != class_axis(logits));
    Ok(others.map(|(_, len)| *len).collect())
}

/// The values that the targets of a loss may have.
pub(super) enum Targets<'a> {
    /// All values.
    Any,
    /// All values. The loss is a mean over samples for every reduction.
    OfMean,
    /// Integers are class indices, or `ignored`. Each class has a weight.
    Classes { ignored: Option<i64>, weight: Option<&'a Tensor> },
    /// Integers are class indices: one for each row of a matrix of scores, or one for a vector of scores.
    RowClasses,
    /// Probabilities of the positive class, from 0 to 1.
    Shares,
    /// 1 or −1.
    Signs,
}

impl Targets<'_> {
    /// Returns true if targets of this shape belong to the logits.
    fn fits(&self, logits: &Shape, targets: &Shape) -> bool {
        match self {
            Targets::Any | Targets::OfMean => true,
            Targets::Classes { .. } => class_index_shape(logits).is_ok_and(|shape| shape == *targets),
            Targets::RowClasses => {
                targets.rank() <= 1
                    && logits.split_last().is_some_and(|(_, rows)| targets.size() == rows.iter().product::<usize>())
            }
            Targets::Shares | Targets::Signs => logits.broadcast(targets).is_some(),
        }
    }

    /// Returns an error for a value that the targets may not have, if the host can read them. On other devices and in
    /// captured steps the values are not read, because the host would wait for them.
    pub(super) fn check_if_readable(&self, op: &'static str, logits: &Shape, y: &Tensor) -> Result<()> {
        // Values of targets of a wrong shape are not checked: the loss rejects these targets with an error about the
        // shape.
        if matches!(self, Targets::Any | Targets::OfMean) || !self.fits(logits, y.shape()) || !y.is_readable() {
            return Ok(());
        }
        let ignored = if let Targets::Classes { ignored, .. } = *self { ignored } else { None };
        match self {
            Targets::Classes { .. } | Targets::RowClasses if y.dtype().is_int() => {
                let (axis, len) = (class_axis(logits), logits[class_axis(logits)]);
                match y.try_find(|class: i64| !(0..len as i64).contains(&class) && Some(class) != ignored)? {
                    Some(index) => Err(Error::IndexOutOfBounds { op, index, axis, len }),
                    None => Ok(()),
                }
            }
            Targets::Any | Targets::OfMean | Targets::Classes { .. } | Targets::RowClasses => Ok(()),
            Targets::Shares => {
                let outside = find_number(y, |value| !(0.0..=1.0).contains(&value) && !value.is_nan())?;
                rejected(op, outside, "targets must be from 0 to 1", "use CrossEntropyLoss for class indices")
            }
            Targets::Signs => {
                let outside = find_number(y, |value| value.abs() != 1.0 && !value.is_nan())?;
                rejected(op, outside, "targets must be 1 or -1", "convert targets of 0 and 1 with `&y * 2.0 - 1.0`")
            }
        }
    }

    /// Returns the weight of the loss of a batch with these targets in the mean over several batches.
    pub(super) fn batch_weight(&self, reduction: Reduction, y: &Tensor) -> Result<BatchWeight> {
        match *self {
            Targets::Classes { ignored, weight } => BatchWeight::of_classes(reduction, y, weight, ignored),
            Targets::OfMean => Ok(BatchWeight::Samples),
            _ => Ok(BatchWeight::of_reduction(reduction)),
        }
    }

    /// Returns the targets, with NaN for each value that [`check_if_readable`](Self::check_if_readable) rejects if the
    /// host cannot read the values: the loss and its gradient are then NaN. Integers are converted to `of_integers`; if
    /// it is `None`, the loss rejects them.
    pub(super) fn nan_unless_valid(&self, y: &Tensor, of_integers: Option<DType>) -> Result<Tensor> {
        let formula = match self {
            Targets::Shares => formula! { static checked_share(y) = (y.ge(0.0) & y.le(1.0)).select(y, f64::NAN); },
            Targets::Signs => formula! { static checked_sign(y) = y.abs().eq(1.0).select(y, f64::NAN); },
            Targets::Any | Targets::OfMean | Targets::Classes { .. } | Targets::RowClasses => return Ok(y.clone()),
        };
        match (y.dtype().is_float(), of_integers) {
            _ if y.is_readable() => Ok(y.clone()),
            (true, _) => ops::map(formula, &[y], &[]),
            (false, Some(dtype)) if dtype.is_float() => ops::map(formula, &[&ops::to_dtype(y, dtype)?], &[]),
            (false, _) => Ok(y.clone()),
        }
    }
}

/// Returns the axis of the classes: 1, or 0 for the logits of one sample.
fn class_axis(logits: &Shape) -> usize {
    logits.rank().min(2) - 1
}

/// Returns the first element for which `is_wanted` is true.
fn find_number(y: &Tensor, is_wanted: impl Fn(f64) -> bool) -> Result<Option<f64>> {
    Ok(match y.dtype() {
        DType::F32 => y.try_find(|value: f32| is_wanted(value.into()))?.map(f64::from),
        _ => y.try_find(|value: f64| is_wanted(value))?,
    })
}

fn rejected(op: &'static str, value: Option<f64>, allowed: &str, remedy: &str) -> Result<()> {
    match value {
        Some(value) => Err(Error::invalid(op, format!("{allowed}, got {value}; {remedy}"))),
        None => Ok(()),
    }
}
