//! Polynomials given by coefficients, and piecewise linear functions: evaluation and least squares fits.

use super::formula::map;
use super::over_axes::as_float;
use super::precision::in_single;
use crate::ops::{self, check};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result, formula};

/// Evaluates the polynomial with these coefficients, the highest power first, at every element of x (Horner's rule).
///
/// This is NumPy's `polyval`: the coefficients are a vector `[n]` of a polynomial of degree n − 1; without
/// coefficients it is 0. Both operands have gradients. Dtypes are promoted.
///
/// ```
/// use pellucid::Tensor;
/// let p = Tensor::from([3.0, 0.0, 1.0]);
/// assert_eq!(p.polyval(&Tensor::from([0.0, 2.0])).to_vec::<f64>(), [1.0, 13.0]);
/// ```
///
/// # Errors
/// [`Error::ShapeMismatch`] unless the coefficients are a vector; [`Error::OutOfMemory`].
#[tensor_method]
pub fn polyval(coefficients: &Tensor, x: &Tensor) -> Result<Tensor> {
    let op = "polyval";
    if coefficients.rank() != 1 {
        let help = "the coefficients must be a vector, the highest power first";
        return Err(Error::shapes(op, [coefficients.shape(), x.shape()], help));
    }
    let count = coefficients.size();
    if count > 2 {
        in_single!(op, [coefficients, x] => polyval(coefficients, x));
    }
    check::affordable_parts(count)?;
    let dtype = coefficients.dtype().promote(x.dtype());
    // Booleans are multiplied and added as integers.
    let dtype = if dtype == DType::Bool { DType::I64 } else { dtype };
    let x = ops::to_dtype(x, dtype)?;
    if count == 0 {
        return ops::zeros_like(&x);
    }
    let mut parts = ops::unbind(&ops::to_dtype(coefficients, dtype)?, 0)?.into_iter();
    let highest = parts.next().expect("the polynomial must have a coefficient");
    let step = formula! { static polyval(y, x, c) = y * x + c; };
    parts.try_fold(ops::broadcast_to(&highest, x.shape())?, |y, c| map(step, &[&y, &x, &c], &[]))
}

/// Fits a polynomial of a degree to points (xᵢ, yᵢ) by least squares. Returns its coefficients, the highest power first.
///
/// This is NumPy's `polyfit`: x is `[N]`, and y `[N]` or `[N, K]` for K polynomials; the result is `[degree + 1]` or
/// `[degree + 1, K]`. The powers of x are scaled to unit length, and singular values up to max(N, degree + 1)·ε of the
/// largest count as zero (see [`lstsq`](ops::lstsq)). Both operands have gradients.
///
/// ```
/// use pellucid::Tensor;
/// let (x, y) = (Tensor::from([0.0, 1.0, 2.0, 3.0]), Tensor::from([1.0, 3.0, 5.0, 7.0]));
/// let line = x.polyfit(&y, 1);
/// assert!(line.allclose(&Tensor::from([2.0, 1.0]), 1e-9, 1e-9, false).item::<bool>());
/// ```
///
/// # Errors
/// [`Error::ShapeMismatch`] unless x is a vector with at least one element and y has its length;
/// [`Error::DTypeMismatch`] for integers; [`Error::OutOfMemory`].
#[tensor_method(autocast = Single)]
pub fn polyfit(x: &Tensor, y: &Tensor, degree: usize) -> Result<Tensor> {
    let op = "polyfit";
    check::floats(op, &[x, y])?;
    if x.rank() != 1 || x.size() == 0 || !(1..=2).contains(&y.rank()) || y.shape()[0] != x.size() {
        let help = "x must be a vector [N] with N of at least 1, and y [N] or [N, K]";
        return Err(Error::shapes(op, [x.shape(), y.shape()], help));
    }
    in_single!(op, [x, y] => polyfit(x, y, degree));
    let count = degree.checked_add(1).ok_or_else(Error::size_overflow)?;
    let powers = ops::flip(&ops::vander(x, Some(count))?, -1)?;
    let lengths = ops::norm(&powers, 2.0, 0)?;
    // A power that is 0 at all points has the coefficient 0.
    let lengths = ops::where_(&ops::gt(&lengths, 0.0)?, &lengths, 1.0)?;
    let scaled = ops::lstsq(&ops::div(&powers, &lengths)?, y, None)?.solution;
    ops::div(&scaled, &if y.rank() == 1 { lengths } else { ops::unsqueeze(&lengths, 1)? })
}

/// Evaluates the piecewise linear function through the points (pᵢ, vᵢ) at every element of x; before the first and after
/// the last point it is constant.
///
/// This is NumPy's `interp`: points and values are vectors of one length, and the points ascend. At a point that occurs
/// repeatedly, the function has the last value. NaN stays NaN. All operands have gradients; that of x is the slope.
/// Integers give `f32`.
///
/// ```
/// use pellucid::Tensor;
/// let (p, v) = (Tensor::from([0.0, 1.0, 3.0]), Tensor::from([5.0, 7.0, 3.0]));
/// assert_eq!(Tensor::from([-1.0, 0.5, 2.0, 9.0]).interp(&p, &v).to_vec::<f64>(), [5.0, 6.0, 5.0, 3.0]);
/// ```
///
/// # Errors
/// [`Error::ShapeMismatch`] unless points and values are vectors of one length of at least 1.
#[tensor_method]
pub fn interp(x: &Tensor, points: &Tensor, values: &Tensor) -> Result<Tensor> {
    let op = "interp";
    if points.rank() != 1 || points.size() == 0 || points.shape() != values.shape() {
        let help = "points and values must be vectors of one length of at least 1";
        return Err(Error::shapes(op, [x.shape(), points.shape(), values.shape()], help));
    }
    in_single!(op, [x, points, values] => interp(x, points, values));
    let dtype = [points, values].iter().fold(x.dtype(), |dtype, t| dtype.promote(t.dtype()));
    let operand = |t: &Tensor| as_float(&ops::to_dtype(t, dtype)?);
    let (x, points, values) = (operand(x)?, operand(points)?, operand(values)?);
    let last = points.size() as i64 - 1;
    let right = ops::clamp(&ops::searchsorted(&points, &x, true)?, last.min(1), last)?;
    let left = ops::maximum(&ops::sub(&right, 1)?, 0)?;
    let segment = formula! {
        static interp(x, p0, p1, v0, v1) = {
            let width = p1 - p0;
            let t = ((x - p0) / width.gt(0.0).select(width, 1.0)).clamp(0.0, 1.0);
            // From the nearer end, so that the function is exact at all points.
            t.lt(0.5).select(v0 + t * (v1 - v0), v1 - (1.0 - t) * (v1 - v0))
        };
    };
    let at = |t: &Tensor, index: &Tensor| ops::index_select(t, 0, index);
    let ends = [at(&points, &left)?, at(&points, &right)?, at(&values, &left)?, at(&values, &right)?];
    let [p0, p1, v0, v1] = &ends;
    map(segment, &[&x, p0, p1, v0, v1], &[])
}
