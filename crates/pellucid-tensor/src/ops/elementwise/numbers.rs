//! Functions of the floating-point representation (exponent, next value), and integer arithmetic (gcd, lcm).

use crate::ops::call::check;
use crate::ops::elementwise::{arithmetic, transcendental};
use crate::ops::formula::{map, map_in};
use crate::ops::primitive::copy;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::Expr;
use pellucid_ir::{DType, Error, Result, formula};

/// Computes the smallest e with |x| < 2ᵉ; 0 for x = 0, infinities and NaN.
fn binary_exponent(x: Expr) -> Expr {
    let size = x.abs();
    let e = size.log2().floor() + 1.0;
    let m = size.ldexp(-e);
    // Next to a power of two, rounding of the logarithm may change e by one.
    let e = m.ge(1.0).select(e + 1.0, m.lt(0.5).select(e - 1.0, e));
    (size.is_finite() & size.gt(0.0)).select(e, 0.0)
}

/// Splits x into m·2ᵉ with ½ ≤ |m| < 1, and returns m, and e as `i32`.
///
/// For 0, infinities and NaN, m is x and e is 0. The derivative of m is 2⁻ᵉ; e has no gradient.
///
/// # Errors
/// [`Error::OutOfMemory`].
#[tensor_method]
pub fn frexp(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let formula = formula! { static frexp(x) = binary_exponent(x); };
    let e = map(formula, &[&x.detach()], &[])?;
    let mantissa = transcendental::ldexp(x, &arithmetic::neg(&e)?)?;
    Ok((mantissa, copy::to_dtype(&e, DType::I32)?))
}

/// Returns the next representable number after a in the direction of b; b if they are equal, NaN if either is NaN.
///
/// a and b broadcast. The distance to a is piecewise constant, so the gradient of a is the incoming gradient, and the
/// gradient of b is zero. The method uses no bit operations: adding a little more than half a unit in the last place
/// rounds a to its neighbour (Rump, Zimmermann, Boldo & Melquiond 2009).
///
/// # Errors
/// [`Error::DTypeMismatch`] unless both are `f32` or both `f64`; [`Error::ShapeMismatch`].
#[tensor_method]
pub fn nextafter(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (u, spacing, max_finite) = match (a.dtype(), b.dtype()) {
        (DType::F64, DType::F64) => (f64::EPSILON / 2.0, f64::from_bits(1), f64::MAX),
        (DType::F32, DType::F32) => (f64::from(f32::EPSILON) / 2.0, f64::from(f32::from_bits(1)), f64::from(f32::MAX)),
        _ => {
            return Err(Error::dtypes(
                "nextafter",
                [a.dtype(), b.dtype()],
                "both inputs must be f32, or both f64; use to_dtype()",
            ));
        }
    };
    let formula = formula! {
        static nextafter(a, b; u, spacing, max_finite, low, high) = {
            let (size, towards) = (a.abs(), b.gt(a).select(1.0, -1.0));
            let more = u + u * u * 2.0;
            // u is half a unit in the last place of 1. For small numbers, the product u·size may underflow. Subnormals
            // have the constant spacing `spacing`; other small numbers are scaled by 1/u.
            let neighbour_of_large = a + towards * (more * size);
            let scaled = u * (a / u + towards * (more * (size / u)));
            let neighbour_of_small = size.le(low).select(a + towards * spacing, scaled);
            let is_ordinary = size.ge(high) & size.lt(f64::INFINITY);
            let below_infinity = a.lt(0.0).select(-max_finite, max_finite);
            let next = is_ordinary.select(
                neighbour_of_large,
                size.eq(f64::INFINITY).select(below_infinity, neighbour_of_small),
            );
            // If no comparison is true, an operand is NaN.
            (b.gt(a) | b.lt(a)).select(next, a.eq(b).select(b, a + b))
        };
        d a = g;
        d b = g * 0.0;
    };
    let low = 0.5 / u * spacing;
    map(formula, &[a, b], &[u.into(), spacing.into(), max_finite.into(), low.into(), (low / u).into()])
}

/// Runs Euclid's algorithm (Elements VII) with two divisions in each round. After `rounds` rounds, one argument must be
/// 0. `remainder` returns the remainder of two positive numbers.
fn gcd_by_euclid(a: Expr, b: Expr, rounds: usize, remainder: fn(Expr, Expr) -> Expr) -> Expr {
    let (mut a, mut b) = (a.abs(), b.abs());
    for _ in 0..rounds {
        a = b.eq(0.0).select(a, remainder(a, b));
        b = a.eq(0.0).select(b, remainder(b, a));
    }
    // One of a and b is 0. The other is negative only if it is the smallest integer, whose absolute value wraps.
    (a + b).abs()
}

/// Returns the remainder of integers from 1 to 2³¹ that are represented as `f64`. It is exact: the quotient a/b is an
/// integer, or farther from the next integer than its rounding error.
fn float_remainder(a: Expr, b: Expr) -> Expr {
    a - b * (a / b).floor()
}

/// Computes the greatest common divisor of integers, a nonnegative number.
///
/// gcd(0, b) is |b|, which wraps for the smallest integer. a and b broadcast.
///
/// # Errors
/// [`Error::ShapeMismatch`]; [`Error::DTypeMismatch`] for floats.
#[tensor_method]
pub fn gcd(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    check_integers("gcd", a, b)?;
    // n divisions suffice if the smaller argument is below the (n + 1)-th of the Fibonacci numbers 1, 1, 2, ... (Lamé
    // 1844): 15 for arguments below 987, 23 for any pair of `i16`, 46 below 2³¹, and 92 for any pair of `i64`.
    let dtype = a.dtype().promote(b.dtype());
    let is_short = matches!(dtype, DType::I8 | DType::I16);
    // Processors have no division of integer vectors. The smallest `i8` and `i16` wrap, unlike their values in `f64`.
    let formula = if !is_short && are_below("gcd", [a, b], 987)? {
        formula! { static gcd_below_987(a, b) = gcd_by_euclid(a, b, 8, float_remainder); }
    } else if !is_short && are_below("gcd", [a, b], 1 << 31)? {
        formula! { static gcd_below_2_31(a, b) = gcd_by_euclid(a, b, 24, float_remainder); }
    } else if is_short {
        return map(formula! { static gcd_of_short(a, b) = gcd_by_euclid(a, b, 12, Expr::rem); }, &[a, b], &[]);
    } else {
        return map(formula! { static gcd(a, b) = gcd_by_euclid(a, b, 46, Expr::rem); }, &[a, b], &[]);
    };
    copy::to_dtype(&map_in(formula, &[a, b], &[], Some(DType::F64))?, dtype)
}

/// Returns true if all elements can be read and have magnitudes below `limit`.
fn are_below(op: &'static str, tensors: [&Tensor; 2], limit: u64) -> Result<bool> {
    for x in tensors {
        let is_large = |value: i64| value.unsigned_abs() >= limit;
        if !check::is_readable(x) || x.array().find(op, is_large)?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Computes the least common multiple |a·b| / gcd(a, b) of integers, 0 if either is 0; wraps. a and b broadcast.
///
/// # Errors
/// The errors of [`gcd`].
#[tensor_method]
pub fn lcm(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    check_integers("lcm", a, b)?;
    arithmetic::abs(&arithmetic::mul(&arithmetic::floor_div(a, &gcd(a, b)?)?, b)?)
}

fn check_integers(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    match a.dtype().is_float() || b.dtype().is_float() {
        true => Err(Error::dtypes(op, [a.dtype(), b.dtype()], "the inputs must have an integer dtype")),
        false => Ok(()),
    }
}
