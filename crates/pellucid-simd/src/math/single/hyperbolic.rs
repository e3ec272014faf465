//! Hyperbolic functions and their inverses.

use super::exp::{LN_2_HIGH, LN_2_LOW};
use super::polynomial;
use crate::math::{F32Lanes, double};
use std::f32::consts::LOG2_E;

/// Returns tanh x = E/(E + 1) with E = (e^(2|x|) − 1)/2, with an error of at most 2.5 ULP.
///
/// For |x| > 10 the result is ±1 to the last bit. As in [`exp`](super::exp), |x| = n·(ln 2)/2 + r. With
/// h = (e^(2r) − 1)/2 and s = 2ⁿ, E = s·h + (s − 1)/2. For n = 0, E is h itself, so nothing cancels near 0.
#[inline(always)]
pub fn tanh<S: F32Lanes>(x: S) -> S {
    let a = x.abs().min_const(10.0);
    // The low bits of the sum contain n + 127, the biased exponent of 2ⁿ.
    let magic = S::splat(12_582_912.0 + 127.0);
    let biased = a.mul_add(S::splat(2.0 * LOG2_E), magic);
    let n = biased - magic;
    let r = n.mul_add(S::splat(-0.5 * LN_2_LOW), n.mul_add(S::splat(-0.5 * LN_2_HIGH), a));
    let p = polynomial(
        r,
        [
            9.999_998_682_500_307e-1,
            6.666_608_043_127_804e-1,
            3.333_471_536_871_996e-1,
            1.339_004_865_790_155e-1,
            4.420_629_458_903_49e-2,
        ],
    );
    let h = (p * r).mul_add(r, r);
    let s = biased.low_bits_as_exponent();
    let e = h.mul_add(s, S::splat(0.5) * s - S::splat(0.5));
    (e / (e + S::splat(1.0))).copysign(x)
}

/// Returns sinh x = ±(E + E/(E + 1))/2 with E = e^|x| − 1, computed in `f64`, in which e^|x| does not overflow if the
/// result is finite.
#[inline(always)]
pub fn sinh(x: f32) -> f32 {
    let a = x.abs();
    let e = double::expm1(if a > 100.0 { 100.0 } else { a as f64 });
    ((0.5 * (e + e / (e + 1.0))) as f32).copysign(x)
}

/// Returns cosh x = (e^|x| + e^−|x|)/2, computed in `f64`.
#[inline(always)]
pub fn cosh(x: f32) -> f32 {
    let a = x.abs();
    let e = double::exp(if a > 100.0 { 100.0 } else { a as f64 });
    (0.5 * (e + 1.0 / e)) as f32
}

/// Returns arsinh x = ±ln(1 + |x| + x²/(1 + √(x² + 1))), computed in `f64`.
#[inline(always)]
pub fn asinh(x: f32) -> f32 {
    let a = x.abs() as f64;
    let square = a * a;
    let y = double::ln_1p(a + square / (1.0 + (square + 1.0).sqrt())) as f32;
    (if x.abs() < f32::INFINITY { y } else { x }).copysign(x)
}

/// Returns arcosh x = ln(1 + t + √(2t + t²)) with t = x − 1, computed in `f64`; NaN for x < 1.
#[inline(always)]
pub fn acosh(x: f32) -> f32 {
    let t = x as f64 - 1.0;
    let y = double::ln_1p(t + (2.0 * t + t * t).sqrt()) as f32;
    if x >= 1.0 { y } else { f32::NAN }
}

/// Returns artanh x, computed in `f64`; ±∞ at ±1, NaN outside [−1, 1].
#[inline(always)]
pub fn atanh(x: f32) -> f32 {
    let a = x.abs();
    let y = double::atanh_short(a as f64) as f32;
    let y = if a == 1.0 { f32::INFINITY } else { y };
    (if a <= 1.0 { y } else { f32::NAN }).copysign(x)
}
