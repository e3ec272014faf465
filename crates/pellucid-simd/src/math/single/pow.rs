//! Powers, and division that rounds down.

use crate::math::double;

/// Returns aᵇ = ±e^(b·ln |a|), computed in `f64`.
///
/// The logarithm is computed with 13 more bits than an `f32` has. The multiplication by b loses fewer bits, because
/// |b·ln |a|| is at most 104 for a finite nonzero result.
#[inline(always)]
pub fn pow(a: f32, b: f32) -> f32 {
    let magnitude = a.abs();
    let t = b as f64 * double::ln_short(magnitude as f64);
    // Beyond 200 the result is 0 or ∞.
    let t = if t > 200.0 { 200.0 } else { t };
    let t = if t < -200.0 { -200.0 } else { t };
    let y = double::exp_short(t) as f32;
    // A power of 0 or ∞ is 0 or ∞, except in the cases below.
    let is_extreme = magnitude == 0.0 || magnitude == f32::INFINITY;
    let extreme = if (magnitude > 1.0) == (b > 0.0) { f32::INFINITY } else { 0.0 };
    let y = if is_extreme { extreme } else { y };
    let y = if a.is_nan() || b.is_nan() { f32::NAN } else { y };
    // Every float above 2²⁴ is an even integer.
    let is_integer = b.trunc() == b;
    let half_b = b * 0.5;
    let is_odd = is_integer && half_b.trunc() != half_b;
    let y = if a.is_sign_negative() && is_odd { -y } else { y };
    let y = if a < 0.0 && a > f32::NEG_INFINITY && !is_integer { f32::NAN } else { y };
    // IEEE 754: (±1)^±∞ = 1, 1^NaN = 1 and a⁰ = 1.
    let is_one = a == 1.0 || b == 0.0 || (a == -1.0 && b.abs() == f32::INFINITY);
    if is_one { 1.0 } else { y }
}

/// Returns true if a / b is too large for the fast divisions, or b is 0 or infinite, or an operand is NaN.
#[inline(always)]
pub fn is_rare_quotient(a: f32, b: f32) -> bool {
    !(a.abs() < b.abs() * QUOTIENT_LIMIT && b.abs() < f32::INFINITY)
}

/// 2²³. For smaller quotients, the rounding error is less than 1.
const QUOTIENT_LIMIT: f32 = 8_388_608.0;

/// Returns the remainder of truncated division, unless the quotient [is rare](is_rare_quotient).
///
/// The magnitude of the rounded and truncated quotient may be too large by 1. The remainder then has the wrong sign,
/// and is corrected. The fused multiply-add is exact.
#[inline(always)]
fn truncated_remainder(a: f32, b: f32) -> f32 {
    let m = (-(a / b).trunc()).mul_add(b, a);
    let is_wrong = m != 0.0 && (m < 0.0) != (a < 0.0);
    if is_wrong { m + b.abs().copysign(a) } else { m }
}

/// Returns ⌊a / b⌋ of the exact quotient, unless it [is rare](is_rare_quotient).
#[inline(always)]
pub fn floor_div_fast(a: f32, b: f32) -> f32 {
    double::floor_of_quotient(a as f64, b as f64, truncated_remainder(a, b) as f64) as f32
}

/// Returns a − b·⌊a / b⌋, which has the sign of b, unless the quotient [is rare](is_rare_quotient).
#[inline(always)]
pub fn rem_fast(a: f32, b: f32) -> f32 {
    let m = truncated_remainder(a, b);
    let m = if m == 0.0 { m.copysign(b) } else { m };
    if (m < 0.0) != (b < 0.0) && m != 0.0 { m + b } else { m }
}

/// Returns ⌊a / b⌋ of the exact quotient.
#[inline(always)]
pub fn floor_div(a: f32, b: f32) -> f32 {
    double::floor_quotient(a as f64, b as f64, libm::fmodf(a, b) as f64) as f32
}

/// Returns a − b·⌊a / b⌋, which has the sign of b.
#[inline(always)]
pub fn rem(a: f32, b: f32) -> f32 {
    double::floored(libm::fmodf(a, b) as f64, b as f64) as f32
}
