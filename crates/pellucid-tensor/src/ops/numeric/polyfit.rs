//! Evaluation and least squares fits of polynomials, and piecewise linear interpolation.

use crate::autograd::{apply_one, interface::*};
use crate::ops::call::axes::over;
use crate::ops::call::check;
use crate::ops::elementwise::{arithmetic, compare, numbers, transcendental};
use crate::ops::formula::over_axes::as_float;
use crate::ops::formula::{broadcast, map};
use crate::ops::index::{search, sort};
use crate::ops::linalg;
use crate::ops::primitive::concatenate::concatenate;
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::{copy, create, fill, gather, view};
use crate::ops::reduce::{reductions, value_range};
use crate::ops::shape::{join, rearrange};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result, formula};

/// Evaluates the polynomial with these coefficients, the highest power first, at every element of x (Horner's rule).
///
/// This is NumPy's `polyval`: the coefficients are a vector `[n]` of a polynomial of degree n − 1; without coefficients
/// the value is 0. Both operands are differentiable. Dtypes are promoted. The gradient uses about 3 times the memory of
/// x for any number of coefficients, and each further derivative about 2 times more.
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
    // Booleans are evaluated as integers.
    let dtype = if dtype == DType::Bool { DType::I64 } else { dtype };
    let x = copy::to_dtype(x, dtype)?;
    if count == 0 {
        // Without coefficients the value is 0, on the device of the coefficients.
        return arithmetic::add(&fill::zeros_like(&x)?, &copy::to_dtype(&reductions::sum(coefficients, ..)?, dtype)?);
    }
    apply_one(PolynomialValue, &[&copy::to_dtype(coefficients, dtype)?, &x])
}

/// Evaluates Σᵢ cᵢ·x^(n−1−i) for coefficients `[n]`, n ≥ 1, and x of the same dtype. No array is stored per
/// coefficient, because the derivatives are values of polynomials and [power sums](PowerSums).
struct PolynomialValue;

impl Operation for PolynomialValue {
    fn name(&self) -> &'static str {
        "polyval"
    }

    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        (0..2).for_each(|i| saves.input(i));
        let [coefficients, x] = [0, 1].map(|i| Tensor::from(inputs[i].clone()));
        let mut parts = rearrange::unbind(&coefficients, 0)?.into_iter();
        let highest = parts.next().expect("the polynomial must have a coefficient");
        let step = formula! { static polyval(y, x, c) = y * x + c; };
        let y = parts.try_fold(broadcast::broadcast_to(&highest, x.shape())?, |y, c| map(step, &[&y, &x, &c], &[]))?;
        Ok(smallvec![y.array().clone()])
    }

    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let (coefficients, x, g) = (saved.input(0)?, saved.input(1)?, grads.get(0)?);
        let count = coefficients.size();
        let sums = needs.contains(0).then(|| apply_one(PowerSums { count }, &[&g, &x])).transpose()?;
        let slope = needs.contains(1).then(|| arithmetic::mul(&g, &slope(&coefficients, &x)?)).transpose()?;
        Ok(smallvec![sums, slope])
    }
}

/// Computes the derivative of the polynomial with these coefficients at x. There is at least one coefficient.
fn slope(coefficients: &Tensor, x: &Tensor) -> Result<Tensor> {
    let degree = coefficients.size() - 1;
    if degree == 0 {
        return fill::zeros_like(x);
    }
    let powers = view::flip(&arithmetic::add(&create::indices(degree)?, 1)?, 0)?;
    let scaled =
        arithmetic::mul(&view::narrow(coefficients, 0, 0, degree)?, &copy::to_dtype(&powers, coefficients.dtype())?)?;
    apply_one(PolynomialValue, &[&scaled, x])
}

/// Computes the sums Σ g·x^(n−1−i) over all elements, `[n]`: the gradient of the coefficients of a polynomial.
struct PowerSums {
    count: usize,
}

impl Operation for PowerSums {
    fn name(&self) -> &'static str {
        "polyval"
    }

    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        (0..2).for_each(|i| saves.input(i));
        let [mut product, x] = [0, 1].map(|i| Tensor::from(inputs[i].clone()));
        let mut sums = vec![reductions::sum(&product, ..)?];
        for _ in 1..self.count {
            product = arithmetic::mul(&product, &x)?;
            sums.push(reductions::sum(&product, ..)?);
        }
        sums.reverse();
        Ok(smallvec![join::stack(&sums, 0)?.array().clone()])
    }

    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let (g, x, weights) = (saved.input(0)?, saved.input(1)?, grads.get(0)?);
        let value = needs.contains(0).then(|| apply_one(PolynomialValue, &[&weights, &x])).transpose()?;
        let slope = needs.contains(1).then(|| arithmetic::mul(&g, &slope(&weights, &x)?)).transpose()?;
        Ok(smallvec![value, slope])
    }
}

/// Fits a polynomial of degree `degree` to points (xᵢ, yᵢ) by least squares. Returns its coefficients, the highest
/// power first.
///
/// This is NumPy's `polyfit`: x is `[N]`, and y `[N]` or `[N, K]` for K polynomials; the result is `[degree + 1]` or
/// `[degree + 1, K]`. x is scaled by a power of two, so that its powers do not overflow. The powers are scaled to unit
/// length. Singular values up to max(N, degree + 1)·ε times the largest one count as zero (see
/// [`lstsq`](crate::ops::lstsq)). Both operands are differentiable.
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
    check::representable([x.size(), count].into())?;
    // Powers of magnitudes up to 1 do not overflow. The scale 2⁻ᵉ is exact.
    let (_, e) = numbers::frexp(&reductions::max(&arithmetic::abs(&x.detach())?, ..)?)?;
    let powers = linalg::powers(&transcendental::ldexp(x, &arithmetic::neg(&e)?)?, count)?;
    // The powers are rows, which the factorization of the transposed matrix reads in order.
    let powers = join::stack(&powers.iter().rev().collect::<Vec<_>>(), 0)?;
    let lengths = reductions::norm(&powers, 2.0, over(1).keepdims())?;
    // If a power is 0 at all points, its coefficient is 0.
    let lengths = arithmetic::where_(&compare::gt(&lengths, 0.0)?, &lengths, 1.0)?;
    let dtype = x.dtype().promote(y.dtype());
    let powers = copy::to_dtype(&view::transpose(&arithmetic::div(&powers, &lengths)?, 0, 1)?, dtype)?;
    let columns = if y.rank() == 1 { view::unsqueeze(y, 1)? } else { y.clone() };
    let rcond = linalg::default_rcond(&powers);
    let [scaled, ..] = linalg::least_squares(&powers, &copy::to_dtype(&columns, dtype)?, rcond)?;
    let exponents = arithmetic::mul(&e, &arithmetic::sub(&create::indices(count)?, degree as i64)?)?;
    let fitted = transcendental::ldexp(&arithmetic::div(&scaled, &lengths)?, &view::unsqueeze(&exponents, 1)?)?;
    if y.rank() == 1 { view::squeeze(&fitted, 1) } else { Ok(fitted) }
}

/// Options of [`interp`].
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct InterpOptions {
    /// The result for elements below the first point. `None` selects the value of the first point.
    pub left: Option<f64>,
    /// The result for elements above the last point. `None` selects the value of the last point.
    pub right: Option<f64>,
    /// The period of a periodic function; `None` for a function that is not periodic.
    pub period: Option<f64>,
}

/// Evaluates the piecewise linear function through the points (pᵢ, vᵢ) at every element of x. Before the first and
/// after the last point it is constant.
///
/// This is NumPy's `interp`: points and values are vectors of the same length, and the points ascend. If points are
/// equal, the function has the last of their values there. NaN stays NaN. All operands are differentiable; the
/// derivative with respect to x is the slope. The result of integers is `f32`. The order of the points is checked in
/// eager mode on the CPU. Otherwise, all results are NaN if the points descend. With a period, x and the
/// points are taken modulo the period, and the points need not be ordered; the function connects the last point of a
/// period with the first point of the next.
///
/// [`searchsorted`](crate::ops::searchsorted) finds the segments. In addition to operands and result, the operation
/// stores the ends of every element's segment: two arrays of x's shape in `i64`, and four in its dtype.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::ops::InterpOptions;
/// let (p, v) = (Tensor::from([0.0, 1.0, 3.0]), Tensor::from([5.0, 7.0, 3.0]));
/// let x = Tensor::from([-1.0, 0.5, 2.0, 9.0]);
/// assert_eq!(x.interp(&p, &v, InterpOptions::default()).to_vec::<f64>(), [5.0, 6.0, 5.0, 3.0]);
/// let left = InterpOptions { left: Some(0.0), ..Default::default() };
/// assert_eq!(x.interp(&p, &v, left).to_vec::<f64>(), [0.0, 6.0, 5.0, 3.0]);
/// let periodic = InterpOptions { period: Some(4.0), ..Default::default() };
/// assert_eq!(x.interp(&p, &v, periodic).to_vec::<f64>(), [3.0, 6.0, 5.0, 7.0]);
/// ```
///
/// # Errors
/// [`Error::ShapeMismatch`] unless points and values are vectors of the same length, at least 1;
/// [`Error::InvalidArgument`] for a period that is 0 or not finite, or is given with `left` or `right`, and, in eager
/// mode on the CPU, for points that descend without a period.
#[tensor_method]
pub fn interp(x: &Tensor, points: &Tensor, values: &Tensor, options: InterpOptions) -> Result<Tensor> {
    let op = "interp";
    let InterpOptions { left, right, period } = options;
    if points.rank() != 1 || points.size() == 0 || points.shape() != values.shape() {
        let help = "points and values must be vectors of the same length, at least 1";
        return Err(Error::shapes(op, [x.shape(), points.shape(), values.shape()], help));
    }
    if let Some(period) = period {
        check::finite(op, "period", period)?;
        if period == 0.0 || left.is_some() || right.is_some() {
            let reason = match period {
                0.0 => "the period must not be 0",
                _ => "a periodic function has no ends: set either the period, or left and right",
            };
            return Err(Error::invalid(op, reason));
        }
    }
    in_single!(op, [x, points, values] => interp(x, points, values, options));
    let ascends = match period {
        None => value_range::ascending_or_mask(op, "points", points, true)?,
        Some(_) => None,
    };
    let dtype = [points, values].iter().fold(x.dtype(), |dtype, t| dtype.promote(t.dtype()));
    let operand = |t: &Tensor| as_float(&copy::to_dtype(t, dtype)?);
    let (mut x, mut points, mut values) = (operand(x)?, operand(points)?, operand(values)?);
    if let Some(period) = period {
        (x, points, values) = periodic_extension(&x, &points, &values, period.abs())?;
    }
    let y = piecewise_linear(&x, &points, &values)?;
    let end = |index: isize| view::select(&points, 0, index);
    let y = match left {
        Some(left) => arithmetic::where_(&compare::lt(&x, &end(0)?)?, left, &y)?,
        None => y,
    };
    let y = match right {
        Some(right) => arithmetic::where_(&compare::gt(&x, &end(-1)?)?, right, &y)?,
        None => y,
    };
    match &ascends {
        Some(ascends) => value_range::nan_unless(ascends, &y),
        None => Ok(y),
    }
}

/// Takes x and the points modulo a period, and sorts the points. Repeats the last point one period earlier, and the
/// first point one period later.
fn periodic_extension(x: &Tensor, points: &Tensor, values: &Tensor, period: f64) -> Result<(Tensor, Tensor, Tensor)> {
    let (x, points) = (arithmetic::rem(x, period)?, arithmetic::rem(points, period)?);
    let order = sort::argsort(&points, 0, false)?;
    let (points, values) = (gather::index_select(&points, 0, &order)?, gather::index_select(values, 0, &order)?);
    let last = |t: &Tensor| view::narrow(t, 0, t.size() - 1, 1);
    let first = |t: &Tensor| view::narrow(t, 0, 0, 1);
    let (before, after) = (arithmetic::sub(&last(&points)?, period)?, arithmetic::add(&first(&points)?, period)?);
    let points = concatenate(&[&before, &points, &after], 0)?;
    let values = concatenate(&[&last(&values)?, &values, &first(&values)?], 0)?;
    Ok((x, points, values))
}

/// Computes [`interp`] for operands with the same float dtype, without options.
fn piecewise_linear(x: &Tensor, points: &Tensor, values: &Tensor) -> Result<Tensor> {
    let last = points.size() as i64 - 1;
    let right = arithmetic::clamp(&search::searchsorted(points, x, true)?, last.min(1), last)?;
    let left = arithmetic::maximum(&arithmetic::sub(&right, 1)?, 0)?;
    let segment = formula! {
        static interp(x, p0, p1, v0, v1) = {
            // Halved points and halved values always have finite differences.
            let scale = (p1 - p0).is_finite().select(1.0, 0.5);
            let width = scale * p1 - scale * p0;
            let share = (scale * x - scale * p0) / width.gt(0.0).select(width, 1.0);
            // Only a segment beyond a repeated end point has width 0.
            let beyond = x.lt(p1).select(0.0, x.ge(p1).select(1.0, x));
            let t = width.gt(0.0).select(share.clamp(0.0, 1.0), beyond);
            let scale = (v1 - v0).is_finite().select(1.0, 0.5);
            let (low, high) = (scale * v0, scale * v1);
            let rise = high - low;
            // The value is computed from the nearer end, so that the function is exact at all points.
            let value = t.lt(0.5).select(low + t * rise, high - (1.0 - t) * rise) / scale;
            // Between a finite and an infinite value the function is infinite; t is NaN if x is.
            let between = t.gt(0.0).select(v0 + v1, t);
            rise.is_finite().select(value, t.le(0.0).select(v0, t.ge(1.0).select(v1, between)))
        };
    };
    let select = |t: &Tensor, index: &Tensor| gather::index_select(t, 0, index);
    let [p0, p1, v0, v1] =
        [select(points, &left)?, select(points, &right)?, select(values, &left)?, select(values, &right)?];
    map(segment, &[x, &p0, &p1, &v0, &v1], &[])
}
