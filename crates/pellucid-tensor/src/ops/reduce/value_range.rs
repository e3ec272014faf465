//! Checks of tensor values. A check costs one or two reductions.
//!
//! Values are read only in eager mode on the CPU (see `check::is_readable`). Otherwise a check passes or returns a
//! mask, and each operation documents its result for invalid values.

use crate::ops::call::check::is_readable;
use crate::ops::elementwise::compare;
use crate::ops::formula::map;
use crate::ops::primitive::view;
use crate::ops::reduce::reductions;
use crate::tensor::Tensor;
use pellucid_ir::{Error, Result, formula};
use std::ops::RangeInclusive;

/// Returns an error if an element of `x` is outside `range`, whose start is finite. NaN elements pass. `subject` is the
/// subject of the message, for example "probabilities".
///
/// The check costs two reductions.
pub(in crate::ops) fn in_range(op: &'static str, subject: &str, x: &Tensor, range: RangeInclusive<f64>) -> Result<()> {
    within(op, subject, x, range, true)
}

/// Like [`in_range`], but rejects NaN as well.
pub(in crate::ops) fn in_range_without_nan(
    op: &'static str,
    subject: &str,
    x: &Tensor,
    range: RangeInclusive<f64>,
) -> Result<()> {
    within(op, subject, x, range, false)
}

/// Like [`in_range`], or like [`in_range_without_nan`] if `nan_passes` is false. If the values cannot be read, returns
/// a 0-d mask that is true if all values are in the range. The operation then applies [`nan_unless`].
pub(in crate::ops) fn in_range_or_mask(
    op: &'static str,
    subject: &str,
    x: &Tensor,
    range: RangeInclusive<f64>,
    nan_passes: bool,
) -> Result<Option<Tensor>> {
    if is_readable(x) || x.size() == 0 {
        return within(op, subject, x, range, nan_passes).map(|()| None);
    }
    let x = x.detach();
    let high = if x.dtype().is_float() { compare::le(&x, *range.end())? } else { compare::eq(&x, &x)? };
    let is_inside = compare::logical_and(&compare::ge(&x, *range.start())?, &high)?;
    reductions::all(&is_inside, ..).map(Some)
}

/// Returns an error unless the elements of a vector ascend; equal neighbours are permitted. If the values cannot be
/// read, returns a 0-d mask that is true if they ascend. The operation then applies [`nan_unless`]. With
/// `nan_passes`, NaN is permitted anywhere.
pub(in crate::ops) fn ascending_or_mask(
    op: &'static str,
    subject: &str,
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
    let is_ascending = reductions::all(&ascends, ..)?;
    if !is_readable(&points) {
        return Ok(Some(is_ascending));
    }
    if is_ascending.try_item::<bool>()? {
        return Ok(None);
    }
    let (values, ascends) = (points.try_to_vec::<f64>()?, ascends.try_to_vec::<bool>()?);
    let at = ascends.iter().position(|ascends| !ascends).unwrap_or(0);
    let reason = format!("{subject} must ascend, got {:?} before {:?} at position {at}", values[at], values[at + 1]);
    Err(Error::invalid(op, reason))
}

/// Returns the conjunction of two masks of these checks.
pub(in crate::ops) fn both(a: Option<Tensor>, b: Option<Tensor>) -> Result<Option<Tensor>> {
    match (a, b) {
        (Some(a), Some(b)) => compare::logical_and(&a, &b).map(Some),
        (a, b) => Ok(a.or(b)),
    }
}

/// Returns the smallest and the largest element of x, whose values can be read. They are NaN if an element is NaN.
pub(in crate::ops) fn extrema(x: &Tensor) -> Result<[f64; 2]> {
    let x = x.detach();
    if x.size() == 1 {
        // A single element needs no reduction.
        return Ok([x.try_item()?; 2]);
    }
    let (min, max) = reductions::aminmax(&x, ..)?;
    Ok([min.try_item()?, max.try_item()?])
}

fn within(op: &'static str, subject: &str, x: &Tensor, range: RangeInclusive<f64>, nan_passes: bool) -> Result<()> {
    if !is_readable(x) || x.size() == 0 {
        return Ok(());
    }
    let outside = |value: &f64| !(range.contains(value) || nan_passes && value.is_nan());
    match extrema(x)?.into_iter().find(outside) {
        None => Ok(()),
        Some(value) => {
            let (low, high) = (range.start(), range.end());
            let allowed = match *high {
                f64::MAX if *low == f64::MIN => "finite".to_string(),
                f64::INFINITY => format!("at least {low}"),
                f64::MAX => format!("finite and at least {low}"),
                high => format!("from {low} to {high}"),
            };
            Err(Error::invalid(op, format!("{subject} must be {allowed}, got {value:?}")))
        }
    }
}

/// Returns x where `valid` is true, otherwise NaN with a gradient of NaN. `valid` broadcasts to x.
///
/// Where argument values cannot be read, a result of NaN makes invalid values visible.
pub(in crate::ops) fn nan_unless(valid: &Tensor, x: &Tensor) -> Result<Tensor> {
    let formula = formula! {
        static nan_unless(valid: mask, x) = valid.select(x, f64::NAN);
        d x = valid.select(g, f64::NAN);
    };
    map(formula, &[valid, x], &[])
}
