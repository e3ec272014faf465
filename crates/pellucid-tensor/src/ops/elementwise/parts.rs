//! Decompositions of numbers: rounding to decimals, quotient and remainder, integral and fractional part.

use super::operand::TensorOrScalar;
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::map;
use crate::ops::formula::over_axes::as_float;
use crate::ops::primitive::copy::copy;
use crate::ops::primitive::fill;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Result, Scalar, formula};

/// Rounds to `decimals` decimals, ties to even: NumPy's `around`, PyTorch's `round` with `decimals`. A negative
/// `decimals` rounds to tens, hundreds, .. The gradient is zero.
///
/// The result is an integer divided or multiplied by a power of 10. Infinities, and numbers that are too large to have
/// digits beyond the rounded ones, do not change. Integers are rounded exactly.
///
/// ```
/// use pellucid::Tensor;
/// let x = Tensor::from([3.14159, -2.5, 1e300]);
/// assert_eq!(x.around(2).to_vec::<f64>(), [3.14, -2.5, 1e300]);
/// assert_eq!(Tensor::from([14, 15, 25, -26]).around(-1).to_vec::<i64>(), [10, 20, 20, -30]);
/// ```
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[doc(alias("round", "decimals"))]
#[tensor_method]
pub fn around(x: &Tensor, decimals: i32) -> Result<Tensor> {
    if !x.dtype().is_float() {
        return around_integers(x, decimals);
    }
    // The magnitude from which all numbers are integers, and the exponent of the largest power of 10.
    let (integers_from, max_decimals) =
        if x.dtype() == DType::F64 { (2f64.powi(52), 308) } else { (2f64.powi(23), 38) };
    let scale = Scalar::Float(10f64.powi(decimals.saturating_abs().min(max_decimals)));
    match decimals {
        decimals if decimals > max_decimals => copy(x),
        0.. => {
            let decimals = formula! {
                static around(x; scale, integers_from) = {
                    let scaled = x * scale;
                    scaled.abs().lt(integers_from).select(scaled.round_ties_even() / scale, x)
                };
                d x = g * 0.0;
            };
            map(decimals, &[x], &[scale, integers_from.into()])
        }
        decimals if decimals < -max_decimals => {
            let zeros = formula! {
                static around(x) = x.is_finite().select(x * 0.0, x);
                d x = g * 0.0;
            };
            map(zeros, &[x], &[])
        }
        _ => {
            let tens = formula! {
                static around(x; scale) = x.is_finite().select((x / scale).round_ties_even() * scale, x);
                d x = g * 0.0;
            };
            map(tens, &[x], &[scale])
        }
    }
}

/// Rounds integers to a multiple of a power of 10; 0 if the power exceeds the range of the dtype.
fn around_integers(x: &Tensor, decimals: i32) -> Result<Tensor> {
    if decimals >= 0 {
        return copy(x);
    }
    match 10i64.checked_pow(decimals.unsigned_abs()) {
        Some(scale) if x.dtype() != DType::Bool && x.dtype().represents(Scalar::Int(scale)) => {
            let tens = formula! {
                static around(x; scale) = {
                    let (quotient, rest) = (x.floor_div(scale), x.rem(scale));
                    let is_odd = quotient.rem(2).ne(0);
                    // rest > scale − rest is equivalent to rest > scale/2, and does not compute 2·rest, which may
                    // overflow.
                    let half = scale - rest;
                    let rounds_up = rest.gt(half) | (rest.eq(half) & is_odd);
                    rounds_up.select(quotient + 1, quotient) * scale
                };
            };
            map(tens, &[x], &[Scalar::Int(scale)])
        }
        _ => fill::zeros_like(x),
    }
}

/// Returns the quotient ⌊a / b⌋ and the remainder a − b·⌊a / b⌋, like Python's `divmod` (see
/// [`floor_div`](crate::ops::floor_div) and [`rem`](crate::ops::rem)). b is a tensor or a scalar.
///
/// # Errors
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch).
#[tensor_method]
pub fn divmod<'a>(a: &Tensor, b: impl Into<TensorOrScalar<'a>>) -> Result<(Tensor, Tensor)> {
    match b {
        TensorOrScalar::Scalar(b) => Ok((arithmetic::floor_div(a, b)?, arithmetic::rem(a, b)?)),
        b => Ok((arithmetic::floor_div(a, b.expect_tensor())?, arithmetic::rem(a, b.expect_tensor())?)),
    }
}

/// Returns the fractional and the integral part, both with the sign of x. The fractional part of ±∞ is ±0. Both parts
/// of NaN are NaN. The derivative of the fractional part is 1, and the derivative of the integral part is 0. For
/// integers, both results are `f32`.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[tensor_method]
pub fn modf(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let x = as_float(x)?;
    let fraction = formula! {
        static modf(x) = x.abs().eq(f64::INFINITY).select(0.0, x - x.trunc()).copysign(x);
        d x = g;
    };
    Ok((map(fraction, &[&x], &[])?, arithmetic::trunc(&x)?))
}
