//! The error function, its complement and its inverse.

use super::exp::{exp_fast, times_exp_of_product, times_exp_of_product_fast};
use super::polynomial;
use crate::math::{F32Lanes, double};

/// Returns the error function erf x = 2/√π ∫₀ˣ e^(−t²) dt.
///
/// Near 0 the result is x + x·P(x²), elsewhere ±(1 − e^(Q(|x|))), with the minimax polynomials of N. Juffa (2017).
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let t = x.abs();
    let s = x * x;
    let near = polynomial(
        s,
        [1.283_791_66e-1, -3.761_253_36e-1, 1.128_199_25e-1, -2.676_813_49e-2, 4.991_194_23e-3, -5.967_617_03e-4],
    )
    .mul_add(x, x);
    // For |x| ≥ 4 the result is ±1. The clamp keeps the argument of Q within the range of its fit.
    let t = if t > 4.0 { 4.0 } else { t };
    let s = t * t;
    let high = (-1.728_534_7e-5f32).mul_add(t, 3.831_971_26e-4);
    let low = (-3.883_964_38e-3f32).mul_add(t, 2.425_462_19e-2);
    let q = polynomial(t, [-1.287_175_12e-1, -6.348_466_87e-1, -1.067_778_77e-1, high.mul_add(s, low)]);
    let tail = 1.0 - exp_fast(q.mul_add(t, -t));
    if t > 0.927_734_375 { tail.copysign(x) } else { near }
}

/// Returns e^(a²/2)·Φ(−a) for 0 ≤ a ≤ 14.3, a rational minimax function with a relative error of 2⁻²⁶.
///
/// It is the quotient of a polynomial p and (k·a + m)·p + s(a). In this form, most of the rounding error of p cancels.
#[inline(always)]
fn scaled_tail<S: F32Lanes>(a: S) -> S {
    let p = polynomial(a, [9.791_666_87e-1, 8.575_215_34e-1, 3.582_379_52e-1, 7.937_184_72e-2, 8.031_152_19e-3]);
    let s = polynomial(a, [1.956_469_54, 8.215_579_99e-1, 2.022_769_30e-1, 1.969_273_39e-2]);
    let line = S::splat(2.506_598_23).mul_add(a, S::splat(1.903_494_70e-3));
    p / line.mul_add(p, s)
}

/// Returns erfc x = 1 − erf x, which is accurate even for large x.
#[inline(always)]
pub fn erfc(x: f32) -> f32 {
    let a = x.abs();
    // Beyond 10.1 the result is 0 or 2.
    let a = if a > 10.1 { 10.1 } else { a };
    let tail = times_exp_of_product(2.0 * scaled_tail(a * std::f32::consts::SQRT_2), -a, a);
    let tail = if x.abs() > 10.06 { 0.0 } else { tail };
    if x < 0.0 { 2.0 - tail } else { tail }
}

/// Returns Φ(x) = ½·erfc(−x/√2), the standard normal distribution function, which is accurate even for large negative
/// x.
#[inline(always)]
pub fn ndtr(x: f32) -> f32 {
    let a = x.abs();
    // Beyond 14.2 the result is 0 or 1.
    let a = if a > 14.2 { 14.2 } else { a };
    let tail = times_exp_of_product(scaled_tail(a), -0.5 * a, a);
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// The largest |x| for [`ndtr_fast`]. Up to this limit, Φ(−|x|) is not subnormal.
pub const NDTR_LIMIT: f32 = 12.5;

/// Returns Φ(x) for |x| ≤ [`NDTR_LIMIT`], bit-identical to [`ndtr`].
#[inline(always)]
pub fn ndtr_fast<S: F32Lanes>(x: S) -> S {
    let a = x.abs();
    let tail = times_exp_of_product_fast(scaled_tail(a), S::splat(-0.5) * a, a);
    x.if_negative(tail, S::splat(1.0) - tail)
}

/// Returns erf⁻¹ x, computed in `f64` and rounded once; ±∞ at ±1, NaN outside [−1, 1].
///
/// erf⁻¹ x / x is a polynomial in w = −ln(1 − x²) for w ≤ 5, otherwise in √w (Giles 2010). The error is 10⁻¹⁰.
#[inline(always)]
pub fn erfinv(x: f32) -> f32 {
    let a = x.abs();
    let y = double::erfinv_short(x as f64) as f32;
    let y = if a == 1.0 { f32::INFINITY.copysign(x) } else { y };
    if a <= 1.0 { y } else { f32::NAN }
}

/// Returns e^(x²)·erfc x, computed in `f64` and rounded once.
#[inline(always)]
pub fn erfcx(x: f32) -> f32 {
    double::erfcx(x as f64) as f32
}

/// Returns Φ⁻¹ x, computed in `f64` and rounded once.
#[inline(always)]
pub fn ndtri(x: f32) -> f32 {
    double::ndtri(x as f64) as f32
}
