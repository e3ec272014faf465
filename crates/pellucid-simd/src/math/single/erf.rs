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
    let tail = 1.0 - exp(q.mul_add(t, -t));
    if t > 0.927_734_375 { tail.copysign(x) } else { near }
}

/// Returns factor·erfc a for 0 ≤ a ≤ 10.1, where s is a² with the rounding error `error` = s − a².
///
/// (1 + 2a)·e^(a²)·erfc a − 1 is a polynomial in q = (a − 2)/(a + 2), in the form of Shepherd &
/// Laframboise (1981) with the minimax polynomial of N. Juffa (2020). The rounding errors of q, of the quotient by
/// 1 + 2a and of a² are compensated. a itself may be rounded, because only s has a large effect on the result.
#[inline(always)]
fn erfc_far(a: f32, s: f32, error: f32, factor: f32) -> f32 {
    // One division computes both reciprocals.
    let (u, w) = (a + 2.0, 2.0f32.mul_add(a, 1.0));
    let inverse = 1.0 / (u * w);
    let r = inverse * w;
    let q = (-4.0f32).mul_add(r, 1.0);
    let rest = q.mul_add(-a, (q + 1.0).mul_add(-2.0, a));
    let q = r.mul_add(rest, q);
    let p = polynomial(
        q,
        [
            2.769_784_0e-1,
            -9.276_398_3e-2,
            -1.660_313_6e-1,
            1.640_553_9e-1,
            -5.420_466_1e-2,
            -8.059_919_8e-3,
            8.632_274_3e-3,
            1.313_553_4e-3,
            -1.230_752_1e-3,
            -4.011_392_6e-4,
        ],
    );
    let r = inverse * u;
    let scaled = p.mul_add(r, r);
    let rest = scaled.mul_add(-a, 0.5).mul_add(2.0, p - scaled);
    let scaled = rest.mul_add(r, scaled);
    // The product is rounded once if it is subnormal.
    factor * scaled.mul_add(error, scaled) * exp(-s)
}

/// Returns erfc x = 1 − erf x, accurate for large x.
#[inline(always)]
pub fn erfc(x: f32) -> f32 {
    let a = x.abs();
    // Beyond 10.1 the result is 0 or 2.
    let a = if a > 10.1 { 10.1 } else { a };
    let s = a * a;
    let tail = erfc_far(a, s, (-a).mul_add(a, s), 1.0);
    let tail = if x.abs() > 10.06 { 0.0 } else { tail };
    if x < 0.0 { 2.0 - tail } else { tail }
}

/// Returns Φ(x) = ½·erfc(−x/√2), the standard normal distribution function, accurate for large −x.
///
/// The exponent −x²/2 is computed from x: an error of x/√2 would be multiplied by x².
#[inline(always)]
pub fn ndtr(x: f32) -> f32 {
    let a = x.abs();
    // Beyond 14.2 the result is 0 or 1.
    let a = if a > 14.2 { 14.2 } else { a };
    let h = 0.5 * a;
    let s = h * a;
    let tail = erfc_far(a * std::f32::consts::FRAC_1_SQRT_2, s, (-h).mul_add(a, s), 0.5);
    if x < 0.0 { tail } else { 1.0 - tail }
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
