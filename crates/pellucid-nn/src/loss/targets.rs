//! Shapes, dtypes and values of targets.

use pellucid_tensor::{DType, Error, Result, Shape, Tensor, formula, ops};

/// Returns shape and dtype of class indices: the logits' shape without the class axis, `[B]` for logits `[B, C]`, `[]`
/// for `[C]`, `[B, d..]` for `[B, C, d..]`.
///
/// # Errors
/// [`Error::ShapeMismatch`] for logits without a class axis.
pub(crate) fn class_indices(logits: &Shape, _dtype: DType) -> Result<(Shape, DType)> {
    if logits.rank() == 0 {
        return Err(Error::shapes("cross_entropy", [logits], "the logits must have a class axis: [B, C]"));
    }
    let others = logits.iter().enumerate().filter(|(axis, _)| *axis != class_axis(logits));
    Ok((others.map(|(_, len)| *len).collect(), DType::I64))
}

/// Returns shape and dtype of one class list for each row of the logits, padded to the number of classes.
pub(super) fn class_lists(logits: &Shape, _dtype: DType) -> Result<(Shape, DType)> {
    Ok((logits.clone(), DType::I64))
}

/// Returns shape and dtype of one value for each logit.
pub(crate) fn values(logits: &Shape, dtype: DType) -> Result<(Shape, DType)> {
    Ok((logits.clone(), dtype))
}

/// The values that the targets of a loss may have.
pub(super) enum Targets {
    /// Integers are class indices, or this one.
    Classes { ignored: Option<i64> },
    /// Integers are class indices, one for each row of a matrix or for a vector of scores.
    RowClasses,
    /// Probabilities of one of two classes.
    Shares,
    /// 1 or −1.
    Signs,
}

impl Targets {
    /// Returns true if targets of this shape belong to the logits.
    fn fits(&self, logits: &Shape, targets: &Shape) -> bool {
        match self {
            Targets::Classes { .. } => class_indices(logits, DType::F32).is_ok_and(|(shape, _)| shape == *targets),
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
        // The loss itself rejects targets of another shape. This error precedes an error about values.
        if !self.fits(logits, y.shape()) || !y.is_readable() {
            return Ok(());
        }
        let ignored = if let Targets::Classes { ignored } = *self { ignored } else { None };
        match self {
            Targets::Classes { .. } | Targets::RowClasses if y.dtype().is_int() => {
                let (axis, len) = (class_axis(logits), logits[class_axis(logits)]);
                match y.try_find(|class: i64| !(0..len as i64).contains(&class) && Some(class) != ignored)? {
                    Some(index) => Err(Error::IndexOutOfBounds { op, index, axis, len }),
                    None => Ok(()),
                }
            }
            Targets::Classes { .. } | Targets::RowClasses => Ok(()),
            Targets::Shares => {
                let outside = find_number(y, |value| !(0.0..=1.0).contains(&value) && !value.is_nan())?;
                refused(op, outside, "targets must be from 0 to 1", "class indices are the targets of CrossEntropyLoss")
            }
            Targets::Signs => {
                let outside = find_number(y, |value| value.abs() != 1.0 && !value.is_nan())?;
                refused(op, outside, "targets must be 1 or -1", "convert targets of 0 and 1 with `&y * 2.0 - 1.0`")
            }
        }
    }

    /// Returns the targets, with NaN for each value that [`check_if_readable`](Self::check_if_readable) rejects if the
    /// host cannot read the values: the loss and its gradient are then NaN. Integers are converted to `of_integers`; if
    /// it is `None`, the loss rejects them.
    pub(super) fn nan_unless_valid(&self, y: &Tensor, of_integers: Option<DType>) -> Result<Tensor> {
        let formula = match self {
            Targets::Shares => formula! { static checked_share(y) = (y.ge(0.0) & y.le(1.0)).select(y, f64::NAN); },
            Targets::Signs => formula! { static checked_sign(y) = y.abs().eq(1.0).select(y, f64::NAN); },
            Targets::Classes { .. } | Targets::RowClasses => return Ok(y.clone()),
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

fn refused(op: &'static str, value: Option<f64>, allowed: &str, remedy: &str) -> Result<()> {
    match value {
        Some(value) => Err(Error::invalid(op, format!("{allowed}, got {value}; {remedy}"))),
        None => Ok(()),
    }
}
