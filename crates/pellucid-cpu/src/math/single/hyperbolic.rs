//! Hyperbolic functions and their inverses.

use super::exp::expm1;
use crate::math::double;

/// tanh x = E/(E + 2), E = e^(2|x|) − 1; beyond 10 it is 1 to the last bit.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let a = if a > 10.0 { 10.0 } else { a };
    let e = expm1(2.0 * a);
    (e / (e + 2.0)).copysign(x)
}

/// sinh x = (E + E/(E + 1))/2, E = e^|x| − 1, in `f64`, where no result of `f32` overflows.
#[inline(always)]
pub(crate) fn sinh(x: f32) -> f32 {
    let a = x.abs();
    let e = double::expm1(if a > 100.0 { 100.0 } else { a as f64 });
    ((0.5 * (e + e / (e + 1.0))) as f32).copysign(x)
}

/// cosh x = (e^|x| + e^−|x|)/2, in `f64`.
#[inline(always)]
pub(crate) fn cosh(x: f32) -> f32 {
    let a = x.abs();
    let e = double::exp(if a > 100.0 { 100.0 } else { a as f64 });
    (0.5 * (e + 1.0 / e)) as f32
}

/// arsinh x = ln(1 + |x| + x²/(1 + √(x² + 1))), in `f64`.
#[inline(always)]
pub(crate) fn asinh(x: f32) -> f32 {
    let a = x.abs() as f64;
    let square = a * a;
    let y = double::ln_1p(a + square / (1.0 + (square + 1.0).sqrt())) as f32;
    (if x.abs() < f32::INFINITY { y } else { x }).copysign(x)
}

/// arcosh x = ln(1 + t + √(2t + t²)), t = x − 1, in `f64`.
#[inline(always)]
pub(crate) fn acosh(x: f32) -> f32 {
    let t = x as f64 - 1.0;
    let y = double::ln_1p(t + (2.0 * t + t * t).sqrt()) as f32;
    if x >= 1.0 { y } else { f32::NAN }
}

/// artanh x = ½ ln(1 + 2|x|/(1 − |x|)), in `f64`.
#[inline(always)]
pub(crate) fn atanh(x: f32) -> f32 {
    let a = x.abs() as f64;
    ((0.5 * double::ln_1p(2.0 * a / (1.0 - a))) as f32).copysign(x)
}
