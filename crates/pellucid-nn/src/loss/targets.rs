//! The values that targets may have.

use pellucid_tensor::{DType, Error, Result, Shape, Tensor};

/// The values that the targets of a loss may have.
pub(super) enum Targets {
    /// Integers are class numbers, or this one.
    Classes { ignored: Option<i64> },
    /// Probabilities of one of two classes.
    Shares,
    /// 1 or −1.
    Signs,
}

impl Targets {
    /// Returns an error for a value that the targets may not have, if the host can read them. On other devices and in
    /// captured steps the values are not read, because the host would wait for them.
    pub(super) fn check_if_readable(&self, op: &'static str, logits: &Shape, y: &Tensor) -> Result<()> {
        if !y.is_readable() {
            return Ok(());
        }
        match *self {
            Targets::Classes { ignored } if y.dtype().is_int() && logits.rank() > 0 => {
                let axis = logits.rank().min(2) - 1;
                let len = logits[axis];
                match y.try_find(|class: i64| !(0..len as i64).contains(&class) && Some(class) != ignored)? {
                    Some(index) => Err(Error::IndexOutOfBounds { op, index, axis, len }),
                    None => Ok(()),
                }
            }
            Targets::Classes { .. } => Ok(()),
            Targets::Shares => {
                let outside = find_number(y, |value| !(0.0..=1.0).contains(&value) && !value.is_nan())?;
                refused(op, outside, "targets must be from 0 to 1", "class numbers are the targets of CrossEntropyLoss")
            }
            Targets::Signs => {
                let outside = find_number(y, |value| value.abs() != 1.0 && !value.is_nan())?;
                refused(op, outside, "targets must be 1 or -1", "convert targets of 0 and 1 with `&y * 2.0 - 1.0`")
            }
        }
    }
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
