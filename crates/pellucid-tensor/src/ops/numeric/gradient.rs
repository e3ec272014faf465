//! Derivatives of sampled functions by finite differences.

use crate::ops::call::check;
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::map;
use crate::ops::numeric::integrate::{Spacing, wide_integers};
use crate::ops::primitive::concatenate::concatenate;
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::{fill, view};
use crate::ops::reduce::scan;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result, formula};

/// Computes the derivative dy/dx of samples along an axis (NumPy's `gradient` along one axis).
///
/// With steps hᵢ = xᵢ₊₁ − xᵢ and slopes sᵢ = (yᵢ₊₁ − yᵢ)/hᵢ, it is (hᵢ₋₁·sᵢ + hᵢ·sᵢ₋₁)/(hᵢ₋₁ + hᵢ) at interior samples,
/// which is exact for parabolas. At both ends it is the one-sided slope (`edge_order` 1), or the slope of the parabola
/// through three samples (`edge_order` 2). Points are a vector with the length of the axis.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] for an unsupported edge order, or fewer than `edge_order` + 1
/// samples; [`Error::ShapeMismatch`] for points of a wrong shape; [`Error::DTypeMismatch`] for samples that are not
/// floats.
#[tensor_method]
pub fn gradient(y: &Tensor, spacing: Spacing<'_>, axis: isize, edge_order: usize) -> Result<Tensor> {
    let op = "gradient";
    let at = y.shape().axis(op, axis)?;
    let len = y.shape()[at];
    check::floats(op, &[y])?;
    if !(1..=2).contains(&edge_order) || len <= edge_order {
        let reason = format!(
            "the edge order must be 1 or 2 and below the number of samples, got order {edge_order} and {len} samples"
        );
        return Err(Error::invalid(op, reason));
    }
    let points = spacing.points();
    in_single!(op, [y; points] => gradient(y, spacing.with_points(points), axis, edge_order));
    let steps = match spacing {
        Spacing::Step(step) if edge_order == 1 => return central_differences(y, step, at),
        Spacing::Step(step) => fill::full([len - 1], step, y.dtype())?,
        Spacing::Points(points) if points.shape()[..] == [len] => scan::diff(&wide_integers(points)?, 1, 0)?,
        Spacing::Points(points) => {
            let help = format!("points must be a vector with the length of axis {at}");
            return Err(Error::shapes(op, [y.shape(), points.shape()], help));
        }
    };
    // The axis is moved to the end, where a vector of steps broadcasts.
    let last = |t: &Tensor, start, count| view::narrow(t, -1, start, count);
    let slopes = arithmetic::div(&scan::diff(&view::movedim(y, [axis], [-1])?, 1, -1)?, &steps)?;
    let both = |t: &Tensor| -> Result<(Tensor, Tensor)> { Ok((last(t, 0, len - 2)?, last(t, 1, len - 2)?)) };
    let ((left, right), (before, after)) = (both(&steps)?, both(&slopes)?);
    let inside = arithmetic::add(arithmetic::mul(&left, &after)?, arithmetic::mul(&right, &before)?)?;
    let inside = arithmetic::div(&inside, &arithmetic::add(&left, &right)?)?;
    // The derivative at an end is the slope of the last segment. For order 2, it is corrected by the difference between
    // this slope and the slope of the neighbouring segment.
    let end = |point: usize, next: usize| -> Result<Tensor> {
        let slope = last(&slopes, point, 1)?;
        if edge_order == 1 {
            return Ok(slope);
        }
        let (step, next_step) = (last(&steps, point, 1)?, last(&steps, next, 1)?);
        let second_difference =
            arithmetic::div(&arithmetic::sub(&slope, &last(&slopes, next, 1)?)?, &arithmetic::add(&step, &next_step)?)?;
        arithmetic::add(&slope, &arithmetic::mul(&second_difference, &step)?)
    };
    let (first, final_) = (end(0, 1)?, end(len - 2, len.saturating_sub(3))?);
    view::movedim(&concatenate(&[&first, &inside, &final_], -1)?, [-1], [axis])
}

/// Computes the derivative of samples with equal steps h: (yᵢ₊₁ − yᵢ₋₁)/(2h) inside, and the one-sided slopes at both
/// ends.
fn central_differences(y: &Tensor, step: f64, axis: usize) -> Result<Tensor> {
    let len = y.shape()[axis];
    let samples = |start, count| view::narrow(y, axis as isize, start, count);
    let slope = |low: &Tensor, high: &Tensor, run: f64| {
        let slope = formula! { static slope(low, high; run) = (high - low) / run; };
        map(slope, &[low, high], &[run.into()])
    };
    let first = slope(&samples(0, 1)?, &samples(1, 1)?, step)?;
    let inside = slope(&samples(0, len - 2)?, &samples(2, len - 2)?, 2.0 * step)?;
    let last = slope(&samples(len - 2, 1)?, &samples(len - 1, 1)?, step)?;
    concatenate(&[&first, &inside, &last], axis as isize)
}
