//! The error function, its complement and its inverse.

use super::exp::exp;
use super::polynomial;
use crate::math::double;

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
    let far = 1.0 - exp(q.mul_add(t, -t));
    if t > 0.927_734_375 { far.copysign(x) } else { near }
}

/// Returns erfc x = 1 − erf x, computed in `f64` and rounded once.
#[inline(always)]
pub fn erfc(x: f32) -> f32 {
    double::erfc(x as f64) as f32
}

/// Returns erf⁻¹ x, computed in `f64` and rounded once.
#[inline(always)]
pub fn erfinv(x: f32) -> f32 {
    double::erfinv(x as f64) as f32
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
