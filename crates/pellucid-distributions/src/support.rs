//! Bounds of supports: values outside, probabilities outside of [0, 1], and samples that round to a bound.

use crate::constraint::Constraint;
use pellucid_tensor::formula::Expr;
use pellucid_tensor::{DType, Result, Tensor, formula, ops};

/// Returns `value` if `inside` is true, otherwise `outside`; NaN for NaN. To keep derivatives finite, `value` must be
/// computed from an x that is replaced where `inside` is false.
pub(crate) fn within(x: Expr, inside: Expr, value: Expr, outside: f64) -> Expr {
    inside.select(value, x.is_nan().select(x, outside))
}

/// Returns the log density `value` if `inside` is true, otherwise −∞; NaN for NaN.
pub(crate) fn log_density(x: Expr, inside: Expr, value: Expr) -> Expr {
    within(x, inside, value, f64::NEG_INFINITY)
}

/// Returns a·b, and 0 for a = 0 and an infinite b.
pub(crate) fn zero_times(a: Expr, b: Expr) -> Expr {
    let skips = a.eq(0.0) & b.abs().eq(f64::INFINITY);
    skips.select(0.0, a * skips.select(0.0, b))
}

/// Returns a·ln b, and 0 for a = b = 0.
pub(crate) fn xlogy(a: Expr, b: Expr) -> Expr {
    let skips = a.eq(0.0) & b.eq(0.0);
    a * skips.select(1.0, b).ln()
}

/// Returns a·ln(1 + b), and 0 for a = 0 and b = −1.
pub(crate) fn xlog1py(a: Expr, b: Expr) -> Expr {
    let skips = a.eq(0.0) & b.eq(-1.0);
    a * skips.select(0.0, b).ln_1p()
}

/// Returns ln(p/q), and 0 if both probabilities are 0.
pub(crate) fn log_ratio(p: Expr, q: Expr) -> Expr {
    let skips = p.eq(0.0) & q.eq(0.0);
    (skips.select(1.0, p) / skips.select(1.0, q)).ln()
}

/// Returns a/b, and 0 for 0/0: a gradient of 0 stays 0 at a pole of the derivative.
pub(crate) fn quotient(a: Expr, b: Expr) -> Expr {
    let skips = a.eq(0.0) & b.eq(0.0);
    skips.select(0.0, a / skips.select(1.0, b))
}

/// Returns p, or NaN outside of [0, 1], where quantiles are undefined.
pub(crate) fn probability(p: Expr) -> Expr {
    (p.ge(0.0) & p.le(1.0)).select(p, f64::NAN)
}

/// Returns the log densities where `inside` is true, and −∞ elsewhere; NaN if x contains NaN. `axes` is the number of
/// event axes.
pub(crate) fn masked_log_density(x: &Tensor, axes: usize, inside: &Tensor, value: &Tensor) -> Result<Tensor> {
    if !x.dtype().is_float() {
        return ops::where_(inside, value, f64::NEG_INFINITY);
    }
    let mut is_nan = ops::isnan(&x.detach())?;
    if axes > 0 {
        let last: Vec<isize> = (1..=axes as isize).map(|k| -k).collect();
        is_nan = ops::any(&is_nan, &last[..])?;
    }
    ops::where_(inside, value, &ops::where_(&is_nan, &ops::full_like(&value.detach(), f64::NAN)?, f64::NEG_INFINITY)?)
}

/// Returns the smallest normal number and the largest finite number of a dtype, and the distance from 1 to the next
/// smaller number.
fn limits(dtype: DType) -> (f64, f64, f64) {
    let (tiny, epsilon) = (dtype.min_positive().unwrap_or(f64::MIN_POSITIVE), dtype.epsilon().unwrap_or(f64::EPSILON));
    (tiny, dtype.range().1.to_f64(), 0.5 * epsilon)
}

/// Clamps samples that round to a bound of the support to the nearest number inside, where the density is finite. The
/// gradient of a clamped sample is 0.
pub(crate) fn clamp_inside(x: &Tensor, support: &Constraint) -> Result<Tensor> {
    let (tiny, max, below_one) = limits(x.dtype());
    match support {
        Constraint::Positive | Constraint::NonNegative => ops::clamp(x, tiny, max),
        Constraint::UnitInterval | Constraint::OpenUnitInterval | Constraint::Simplex => {
            ops::clamp(x, tiny, 1.0 - below_one)
        }
        Constraint::Interval(low, high) | Constraint::OpenInterval(low, high) => {
            let (low, high) = (low.detach(), high.detach());
            let inner = formula! {
                static clamp_to_open_interval(x, low, high; tiny, step) = {
                    x.clamp(low + (low.abs() * step).max(tiny), high - (high.abs() * step).max(tiny))
                };
            };
            ops::to_dtype(&ops::map(inner, &[x, &low, &high], &[tiny.into(), below_one.into()])?, x.dtype())
        }
        _ => Ok(x.clone()),
    }
}

/// Returns masks of the values below and above a scalar support. A bound that does not belong to the support counts as
/// outside.
pub(crate) fn beyond(x: &Tensor, support: &Constraint) -> Result<(Tensor, Tensor)> {
    let x = &x.detach();
    let never = || ops::zeros_like(&ops::isnan(x)?);
    Ok(match support {
        Constraint::Positive => (ops::le(x, 0)?, never()?),
        Constraint::NonNegative => (ops::lt(x, 0)?, never()?),
        Constraint::OpenUnitInterval => (ops::le(x, 0)?, ops::ge(x, 1)?),
        Constraint::UnitInterval => (ops::lt(x, 0)?, ops::gt(x, 1)?),
        Constraint::Interval(low, high) => (ops::lt(x, low.detach())?, ops::gt(x, high.detach())?),
        Constraint::OpenInterval(low, high) => (ops::le(x, low.detach())?, ops::ge(x, high.detach())?),
        Constraint::AtLeast(low) => (ops::lt(x, low.detach())?, never()?),
        _ => (never()?, never()?),
    })
}
