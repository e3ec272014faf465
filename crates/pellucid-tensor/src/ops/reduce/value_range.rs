//! Checks of the values of tensors, which cost two reductions.
//!
//! The values of a tensor are known only in eager mode. In lazy and captured steps these checks pass; each operation
//! documents its result for invalid values.

use crate::ops::call::check::is_readable;
use crate::ops::formula::map;
use crate::ops::reduce::reductions;
use crate::tensor::Tensor;
use pellucid_ir::{Error, Result, formula};
use std::ops::RangeInclusive;

/// Returns an error if an element of `x` is outside `range`, whose start is finite. Passes if an element is NaN.
/// `what` is the subject of the message: "probabilities".
///
/// The check costs two reductions.
pub(in crate::ops) fn in_range(op: &'static str, what: &str, x: &Tensor, range: RangeInclusive<f64>) -> Result<()> {
    within(op, what, x, range, true)
}

/// Like [`in_range`], but NaN is an error too.
pub(in crate::ops) fn in_range_without_nan(
    op: &'static str,
    what: &str,
    x: &Tensor,
    range: RangeInclusive<f64>,
) -> Result<()> {
    within(op, what, x, range, false)
}

fn within(op: &'static str, what: &str, x: &Tensor, range: RangeInclusive<f64>, nan_passes: bool) -> Result<()> {
    if !is_readable(x) || x.size() == 0 {
        return Ok(());
    }
    let (least, most) = reductions::aminmax(&x.detach(), ..)?;
    let outside = |value: &f64| !(range.contains(value) || nan_passes && value.is_nan());
    match [least.try_item::<f64>()?, most.try_item::<f64>()?].into_iter().find(outside) {
        None => Ok(()),
        Some(value) => {
            let (low, high) = (range.start(), range.end());
            let allowed = match *high {
                f64::MAX if *low == f64::MIN => "finite".to_string(),
                f64::INFINITY => format!("at least {low}"),
                f64::MAX => format!("finite and at least {low}"),
                high => format!("from {low} to {high}"),
            };
            Err(Error::invalid(op, format!("{what} must be {allowed}, got {value}")))
        }
    }
}

/// Returns x where `valid` is true, and NaN with a gradient of NaN elsewhere. `valid` broadcasts to x.
///
/// Lazy and captured steps cannot read the values of arguments; NaN makes invalid values visible there.
pub(in crate::ops) fn nan_unless(valid: &Tensor, x: &Tensor) -> Result<Tensor> {
    let formula = formula! {
        static nan_unless(valid: mask, x) = valid.select(x, f64::NAN);
        d x = valid.select(g, f64::NAN);
    };
    map(formula, &[valid, x], &[])
}
