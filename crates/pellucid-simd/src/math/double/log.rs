//! Logarithms: x = 2ᵉ·m with √½ ≤ m < √2. ln m is computed by a polynomial in f/(2 + f), f = m − 1 (fdlibm, Sun
//! Microsystems 1993).

use super::exp::{LN_2_HIGH, LN_2_LOW};
use super::{from_integer, polynomial, power_of_two};

/// Returns the special values of a logarithm: −∞ at 0, NaN for x < 0, ∞ at ∞, NaN at NaN. Returns `y` for other x.
#[inline(always)]
fn with_special_values(x: f64, y: f64) -> f64 {
    let y = if x > f64::MAX { f64::INFINITY } else { y };
    let y = if x == 0.0 { f64::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f64::NAN }
}

/// Returns (e, m) with x = 2ᵉ·m and √½ ≤ m < √2, for positive finite x.
#[inline(always)]
fn split_exponent(x: f64) -> (i64, f64) {
    const SQRT_HALF: i64 = std::f64::consts::FRAC_1_SQRT_2.to_bits() as i64;
    let subnormal = x < f64::MIN_POSITIVE;
    let scaled = x * 18_014_398_509_481_984.0;
    let x = if subnormal { scaled } else { x };
    let offset = (x.to_bits() as i64).wrapping_sub(SQRT_HALF);
    let e = offset >> 52;
    let m = f64::from_bits(((offset & 0x000f_ffff_ffff_ffff) + SQRT_HALF) as u64);
    (e - if subnormal { 54 } else { 0 }, m)
}

/// Returns e·ln 2 + ln(1 + f) + c, adding the smallest terms first.
#[inline(always)]
fn ln_from_parts(e: i64, f: f64, c: f64) -> f64 {
    let s = f / (2.0 + f);
    let z = s * s;
    let half_square = 0.5 * f * f;
    let r = z * polynomial(
        z,
        [
            6.666_666_666_666_735_130e-1,
            3.999_999_999_940_941_908e-1,
            2.857_142_874_366_239_149e-1,
            2.222_219_843_214_978_396e-1,
            1.818_357_216_161_805_012e-1,
            1.531_383_769_920_937_332e-1,
            1.479_819_860_511_658_591e-1,
        ],
    );
    let e = from_integer(e);
    let low = s.mul_add(half_square + r, e.mul_add(LN_2_LOW, c));
    e.mul_add(LN_2_HIGH, f - (half_square - low))
}

/// Returns the natural logarithm ln x.
#[inline(always)]
pub fn ln(x: f64) -> f64 {
    let (e, m) = split_exponent(x);
    with_special_values(x, ln_from_parts(e, m - 1.0, 0.0))
}

/// Returns ln(1 + x). The rounding error of u = 1 + x is compensated by the correction error/u.
#[inline(always)]
pub fn ln_1p(x: f64) -> f64 {
    let u = 1.0 + x;
    let rounding_error = if u >= 2.0 { 1.0 - (u - x) } else { x - (u - 1.0) };
    let (e, m) = split_exponent(u);
    // If e = 0, f = x is exact.
    let f = if e == 0 { x } else { m - 1.0 };
    // The rounding error is scaled by 2⁻ᵉ, like u. For u > 2⁵⁴ it does not affect the result.
    let inverse_power = power_of_two(if e > 54 { -54 } else { -e });
    let c = if e == 0 { 0.0 } else { rounding_error * inverse_power / m };
    let y = with_special_values(u, ln_from_parts(e, f, c));
    // For tiny x the result is x, which preserves −0 and subnormals.
    if x.abs() < 1e-17 { x } else { y }
}

/// Returns ln x for positive normal x, with a relative error of 2⁻³⁷. The `f32` functions round its results.
#[inline(always)]
pub fn ln_short(x: f64) -> f64 {
    const SQRT_HALF: i64 = std::f64::consts::FRAC_1_SQRT_2.to_bits() as i64;
    let offset = (x.to_bits() as i64).wrapping_sub(SQRT_HALF);
    let e = offset >> 52;
    let f = f64::from_bits(((offset & 0x000f_ffff_ffff_ffff) + SQRT_HALF) as u64) - 1.0;
    let s = f / (2.0 + f);
    let p = polynomial(
        s * s,
        [
            2.000_000_000_008_423_5,
            6.666_666_524_045_865_6e-1,
            4.000_038_586_805_783_6e-1,
            2.853_498_598_422_705_7e-1,
            2.361_746_483_706_787e-1,
        ],
    );
    from_integer(e).mul_add(std::f64::consts::LN_2, s * p)
}

/// Returns artanh a for 0 ≤ a < 1, with a relative error of 2⁻⁴⁰. The `f32` functions round its results.
///
/// With 1 − a = 2ᵉ·m and ¾ ≤ m < 3/2, the result is artanh s − ½·e·ln 2 with s = (1 + a − m)/(1 + a + m). For e = 0, s
/// is a.
#[inline(always)]
pub fn atanh_short(a: f64) -> f64 {
    const THREE_QUARTERS: i64 = 0.75f64.to_bits() as i64;
    let offset = ((1.0 - a).to_bits() as i64).wrapping_sub(THREE_QUARTERS);
    let e = offset >> 52;
    let m = f64::from_bits(((offset & 0x000f_ffff_ffff_ffff) + THREE_QUARTERS) as u64);
    let u = 1.0 + a;
    let s = if e == 0 { a + a } else { u - m } / (u + m);
    let p = polynomial(
        s * s,
        [
            1.000_000_000_000_864_2,
            3.333_333_326_757_383_4e-1,
            2.000_000_820_945_377_6e-1,
            1.428_532_112_355_689_1e-1,
            1.112_049_031_393_830_4e-1,
            8.966_364_523_749_197e-2,
            8.648_330_703_183_819e-2,
            2.525_107_511_606_442_7e-2,
            1.478_687_641_351_465_2e-1,
        ],
    );
    from_integer(e).mul_add(-0.5 * std::f64::consts::LN_2, s * p)
}
