//! Checks of the values of tensors, which cost two reductions.
//!
//! The values of a tensor are known only in eager mode. In lazy and captured steps these checks pass; each operation
//! documents its result for invalid values.

use crate::ops::call::check::is_readable;
use crate::ops::elementwise::compare;
use crate::ops::formula::map;
use crate::ops::primitive::view;
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

/// Like [`in_range`], but rejects NaN as well.
pub(in crate::ops) fn in_range_without_nan(
    op: &'static str,
    what: &str,
    x: &Tensor,
    range: RangeInclusive<f64>,
) -> Result<()> {
    within(op, what, x, range, false)
}

/// Like [`in_range`], or with `nan_passes` false like [`in_range_without_nan`]. If the values are not known, returns a
/// 0-d mask, which is true if all are in the range; the operation returns NaN by [`nan_unless`] otherwise.
pub(in crate::ops) fn in_range_or_mask(
    op: &'static str,
    what: &str,
    x: &Tensor,
    range: RangeInclusive<f64>,
    nan_passes: bool,
) -> Result<Option<Tensor>> {
    if is_readable(x) || x.size() == 0 {
        return within(op, what, x, range, nan_passes).map(|()| None);
    }
    let x = x.detach();
    let high = if x.dtype().is_float() { compare::le(&x, *range.end())? } else { compare::eq(&x, &x)? };
    let is_inside = compare::logical_and(&compare::ge(&x, *range.start())?, &high)?;
    reductions::all(&is_inside, ..).map(Some)
}

/// Returns an error unless the elements of a vector ascend, where equal neighbours are permitted. If the values are not
/// known, returns a 0-d mask, which is true if they ascend; the operation returns NaN by [`nan_unless`] otherwise. With
/// `nan_passes`, a NaN fits any neighbours.
pub(in crate::ops) fn ascending_or_mask(
    op: &'static str,
    what: &str,
    points: &Tensor,
    nan_passes: bool,
) -> Result<Option<Tensor>> {
    let points = points.detach();
    let len = points.size().saturating_sub(1);
    let (low, high) = (view::narrow(&points, 0, 0, len)?, view::narrow(&points, 0, points.size() - len, len)?);
    let ascends = match nan_passes {
        true => compare::logical_not(&compare::lt(&high, &low)?)?,
        false => compare::ge(&high, &low)?,
    };
    let all = reductions::all(&ascends, ..)?;
    if !is_readable(&points) {
        return Ok(Some(all));
    }
    if all.try_item::<bool>()? {
        return Ok(None);
    }
    let (values, ascends) = (points.try_to_vec::<f64>()?, ascends.try_to_vec::<bool>()?);
    let at = ascends.iter().position(|ascends| !ascends).unwrap_or(0);
    let reason = format!("{what} must ascend, got {:?} before {:?} at position {at}", values[at], values[at + 1]);
    Err(Error::invalid(op, reason))
}

/// Returns the conjunction of masks of the checks above.
pub(in crate::ops) fn both(a: Option<Tensor>, b: Option<Tensor>) -> Result<Option<Tensor>> {
    match (a, b) {
        (Some(a), Some(b)) => compare::logical_and(&a, &b).map(Some),
        (a, b) => Ok(a.or(b)),
    }
}

fn within(op: &'static str, what: &str, x: &Tensor, range: RangeInclusive<f64>, nan_passes: bool) -> Result<()> {
    if !is_readable(x) || x.size() == 0 {
        return Ok(());
    }
    let (min, max) = reductions::aminmax(&x.detach(), ..)?;
    let outside = |value: &f64| !(range.contains(value) || nan_passes && value.is_nan());
    match [min.try_item::<f64>()?, max.try_item::<f64>()?].into_iter().find(outside) {
        None => Ok(()),
        Some(value) => {
            let (low, high) = (range.start(), range.end());
            let allowed = match *high {
                f64::MAX if *low == f64::MIN => "finite".to_string(),
                f64::INFINITY => format!("at least {low}"),
                f64::MAX => format!("finite and at least {low}"),
                high => format!("from {low} to {high}"),
            };
            Err(Error::invalid(op, format!("{what} must be {allowed}, got {value:?}")))
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
