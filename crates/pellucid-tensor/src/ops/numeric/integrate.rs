//! Integrals of sampled functions by the trapezoidal rule.

use crate::ops::elementwise::arithmetic;
use crate::ops::formula::map_sum;
use crate::ops::primitive::concatenate::concatenate;
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::{copy, fill, view};
use crate::ops::reduce::{reductions, scan};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result, Scalar, Shape, formula};

/// The spacing of samples.
#[derive(Clone, Copy, Debug)]
pub enum Spacing<'a> {
    /// A constant step.
    Step(f64),
    /// Sample points: a vector with the length of the axis, or a tensor that broadcasts to the samples.
    Points(&'a Tensor),
}

impl<'a> Spacing<'a> {
    pub(in crate::ops) fn points(self) -> Option<&'a Tensor> {
        match self {
            Spacing::Points(points) => Some(points),
            Spacing::Step(_) => None,
        }
    }

    /// Returns `points` as the spacing, or this spacing if `points` is `None`.
    pub(in crate::ops) fn with_points<'b>(self, points: Option<&'b Tensor>) -> Spacing<'b>
    where
        'a: 'b,
    {
        points.map_or(self, Spacing::Points)
    }
}

/// Computes the integral ∫ y dx along an axis by the trapezoidal rule, Σ (xᵢ₊₁ − xᵢ)·(yᵢ + yᵢ₊₁)/2.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::ShapeMismatch`] for points that do not fit the samples.
#[doc(alias = "trapz")]
#[tensor_method(autocast = Single)]
pub fn trapezoid(y: &Tensor, spacing: Spacing<'_>, axis: isize) -> Result<Tensor> {
    let points = spacing.points();
    in_single!("trapezoid", [y; points] => trapezoid(y, spacing.with_points(points), axis));
    let at = y.shape().axis("trapezoid", axis)?;
    let len = y.shape()[at];
    match spacing {
        // With equal steps, every sample but the first and the last belongs to two areas.
        Spacing::Step(step) if y.dtype().is_float() && len >= 2 => {
            let weights = |count: usize, weight: f64| {
                let shape: Shape = (0..y.rank()).map(|k| if k == at { count } else { 1 }).collect();
                fill::full_on_device_of(y, shape, weight, y.dtype())
            };
            let (end, inside) = (weights(1, 0.5 * step)?, weights(len - 2, step)?);
            let weights = concatenate(&[&end, &inside, &end], at as isize)?;
            let product = formula! { static trapezoid(y, w) = y * w; };
            let integral = map_sum(product, &[y, &weights], &[], std::iter::once(at).collect(), None)?;
            view::squeeze(&integral, at as isize)
        }
        _ => reductions::sum(&trapezoid_areas("trapezoid", y, spacing, axis)?, axis_from_end(y, axis)?),
    }
}

/// Returns two views of samples along an axis of length `len`: all except the last, and all except the first.
fn neighbours(x: &Tensor, axis: isize, len: usize) -> Result<(Tensor, Tensor)> {
    let count = len.saturating_sub(1);
    Ok((view::narrow(x, axis, 0, count)?, view::narrow(x, axis, len - count, count)?))
}

/// Computes the running integral along an axis, up to every sample except the first (see [`trapezoid`]).
///
/// # Errors
/// The errors of [`trapezoid`].
#[doc(alias = "cumtrapz")]
#[tensor_method(autocast = Single)]
pub fn cumulative_trapezoid(y: &Tensor, spacing: Spacing<'_>, axis: isize) -> Result<Tensor> {
    let points = spacing.points();
    in_single!("cumulative_trapezoid", [y; points] => cumulative_trapezoid(y, spacing.with_points(points), axis));
    scan::cumsum(&trapezoid_areas("cumulative_trapezoid", y, spacing, axis)?, axis_from_end(y, axis)?)
}

/// Returns integers and booleans as `i64`, so that their sums and differences do not wrap.
pub(in crate::ops) fn wide_integers(x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_float() { Ok(x.clone()) } else { copy::to_dtype(x, DType::I64) }
}

/// Returns the axis counted from the end, because points may have more leading axes than the samples.
fn axis_from_end(y: &Tensor, axis: isize) -> Result<isize> {
    Ok(y.shape().axis("trapezoid", axis)? as isize - y.rank() as isize)
}

/// Computes the areas between neighbouring samples.
fn trapezoid_areas(op: &'static str, y: &Tensor, spacing: Spacing<'_>, axis: isize) -> Result<Tensor> {
    let at = y.shape().axis(op, axis)?;
    let len = y.shape()[at];
    let (low, high) = neighbours(&wide_integers(y)?, axis, len)?;
    let sums = arithmetic::add(&low, &high)?;
    let points = match spacing {
        Spacing::Step(step) => return arithmetic::mul(&sums, Scalar::from(0.5 * step)),
        Spacing::Points(points) if points.rank() == 1 => {
            let broadcast_dims: Vec<isize> = (0..y.rank()).map(|k| if k == at { -1 } else { 1 }).collect();
            view::reshape(points, &broadcast_dims[..])?
        }
        Spacing::Points(points) => points.clone(),
    };
    let from_end = axis_from_end(y, axis)?;
    let along = points.shape().axis(op, from_end).ok().filter(|&k| points.shape()[k] == len);
    if along.is_none() || points.shape().broadcast(y.shape()).is_none() {
        let help = format!("points must be a vector of length {len}, or broadcast to the samples");
        return Err(Error::shapes(op, [y.shape(), points.shape()], help));
    }
    let (low, high) = neighbours(&wide_integers(&points)?, from_end, len)?;
    arithmetic::mul(&arithmetic::mul(&arithmetic::sub(&high, &low)?, &sums)?, 0.5)
}
