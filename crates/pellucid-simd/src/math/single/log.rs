//! Logarithms: x = 2ᵉ·m with √½ ≤ m < √2. ln m is computed by a polynomial in m − 1 (Moshier, Cephes 1989).

use super::exp::{LN_2_HIGH, LN_2_LOW};
use super::{polynomial, power_of_two};

/// Returns the special values of a logarithm: −∞ at 0, NaN for x < 0, ∞ at ∞, NaN at NaN. Returns `y` for other x.
#[inline(always)]
fn with_special_values(x: f32, y: f32) -> f32 {
    let y = if x > f32::MAX { f32::INFINITY } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f32::NAN }
}

/// Returns (e, m) with x = 2ᵉ·m and √½ ≤ m < √2, for positive finite x.
#[inline(always)]
fn split_exponent(x: f32) -> (i32, f32) {
    const SQRT_HALF: i32 = std::f32::consts::FRAC_1_SQRT_2.to_bits() as i32;
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = x * 8_388_608.0;
    let x = if subnormal { scaled } else { x };
    let offset = (x.to_bits() as i32).wrapping_sub(SQRT_HALF);
    let e = offset >> 23;
    let m = f32::from_bits(((offset & 0x007f_ffff) + SQRT_HALF) as u32);
    (e - if subnormal { 23 } else { 0 }, m)
}

/// Returns ln(1 + f) − f for √½ ≤ 1 + f < √2, computed as f³·P(f) − f²/2.
#[inline(always)]
fn ln_remainder(f: f32) -> f32 {
    let z = f * f;
    let p = polynomial(
        f,
        [
            3.333_333_117_4e-1,
            -2.499_999_399_3e-1,
            2.000_071_476_5e-1,
            -1.666_805_766_5e-1,
            1.424_932_278_7e-1,
            -1.242_014_084_6e-1,
            1.167_699_874e-1,
            -1.151_461_031e-1,
            7.037_683_629_2e-2,
        ],
    );
    z.mul_add(-0.5, p * f * z)
}

/// Returns e·ln 2 + ln(1 + f), adding the smallest terms first.
#[inline(always)]
fn ln_from_parts(e: i32, f: f32) -> f32 {
    let e = e as f32;
    e.mul_add(LN_2_HIGH, f + e.mul_add(LN_2_LOW, ln_remainder(f)))
}

/// Returns the natural logarithm ln x.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let (e, m) = split_exponent(x);
    with_special_values(x, ln_from_parts(e, m - 1.0))
}

/// Returns ln(1 + x). The rounding error of 1 + x is scaled and added to the reduced argument.
#[inline(always)]
pub fn ln_1p(x: f32) -> f32 {
    let u = 1.0 + x;
    let rounding_error = if u >= 2.0 { 1.0 - (u - x) } else { x - (u - 1.0) };
    let (e, m) = split_exponent(u);
    // The rounding error is scaled by 2⁻ᵉ, like u. For u > 2²⁵ it does not affect the result.
    let inverse_power = power_of_two(if e > 25 { -25 } else { -e });
    let f = rounding_error.mul_add(inverse_power, m - 1.0);
    let y = with_special_values(u, ln_from_parts(e, f));
    // For tiny x the result is x, which preserves −0 and subnormals.
    if x.abs() < 1e-8 { x } else { y }
}

/// Returns e + e_low + ln(1 + f)·(k + k_low), where k + k_low = 1/ln b for the base b.
///
/// The product and the sum are computed in double-float arithmetic.
#[inline(always)]
fn log_from_parts(e: f32, e_low: f32, f: f32, k: f32, k_low: f32) -> f32 {
    let t = ln_remainder(f);
    let high = f * k;
    let low = t.mul_add(k, f.mul_add(k_low, f.mul_add(k, -high)));
    // |e| is 0 or at least |high|, so the rounding error of the sum is computed exactly.
    let sum = e + high;
    sum + ((high - (sum - e)) + (low + e_low))
}

/// Returns the logarithm to base 2.
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    const K: f32 = std::f32::consts::LOG2_E;
    const K_LOW: f32 = (std::f64::consts::LOG2_E - K as f64) as f32;
    let (e, m) = split_exponent(x);
    with_special_values(x, log_from_parts(e as f32, 0.0, m - 1.0, K, K_LOW))
}

/// Returns the logarithm to base 10.
#[inline(always)]
pub fn log10(x: f32) -> f32 {
    const K: f32 = std::f32::consts::LOG10_E;
    const K_LOW: f32 = (std::f64::consts::LOG10_E - K as f64) as f32;
    // log₁₀ 2 in two parts; the first has few enough bits that its product with e is exact.
    const LOG10_2_HIGH: f32 = 0.301_025_390_625;
    const LOG10_2_LOW: f32 = (std::f64::consts::LOG10_2 - LOG10_2_HIGH as f64) as f32;
    let (e, m) = split_exponent(x);
    let e = e as f32;
    with_special_values(x, log_from_parts(e * LOG10_2_HIGH, e * LOG10_2_LOW, m - 1.0, K, K_LOW))
}
