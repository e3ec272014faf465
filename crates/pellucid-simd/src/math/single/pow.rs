//! Powers, and division that rounds down.

use crate::math::double;

/// Returns aᵇ = ±e^(b·ln |a|), computed in `f64`.
///
/// `f64` has 29 more bits than `f32`, which is more than the rounding of b·ln |a| ≤ 104 can lose.
#[inline(always)]
pub fn pow(a: f32, b: f32) -> f32 {
    let t = b as f64 * double::ln(a.abs() as f64);
    let y = double::exp(t) as f32;
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
