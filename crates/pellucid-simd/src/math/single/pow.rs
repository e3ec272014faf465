//! Powers, and division rounded down.

use crate::math::double;

/// aᵇ = ±e^(b·ln |a|), in `f64`, whose 29 spare bits are more than b·ln |a| ≤ 104 can lose.
#[inline(always)]
pub fn pow(a: f32, b: f32) -> f32 {
    let t = b as f64 * double::ln(a.abs() as f64);
    let y = double::exp(t) as f32;
    // Beyond 2²⁴ every float is an even integer.
    let whole = b.trunc() == b;
    let half = b * 0.5;
    let odd = whole && half.trunc() != half;
    let y = if a.is_sign_negative() && odd { -y } else { y };
    let y = if a < 0.0 && a > f32::NEG_INFINITY && !whole { f32::NAN } else { y };
    // |a| = 1 to an infinite power, 1 to NaN, and anything to 0, are 1.
    let one = a == 1.0 || b == 0.0 || (a == -1.0 && b.abs() == f32::INFINITY);
    if one { 1.0 } else { y }
}

/// ⌊a / b⌋ of the exact quotient.
#[inline(always)]
pub fn floor_div(a: f32, b: f32) -> f32 {
    double::floor_quotient(a as f64, b as f64, libm::fmodf(a, b) as f64) as f32
}

/// a − b·⌊a / b⌋, with the sign of b.
#[inline(always)]
pub fn rem(a: f32, b: f32) -> f32 {
    double::floored(libm::fmodf(a, b) as f64, b as f64) as f32
}
