//! Inverse trigonometric functions (Moshier, Cephes 1989).

use super::polynomial;
use crate::math::double;
use std::f32::consts::{FRAC_PI_2, FRAC_PI_4, PI};

/// π/2 minus the nearest `f32`.
const FRAC_PI_2_LOW: f32 = -4.371_139e-8;

/// Returns the angle in [0, π/2] whose tangent is num/den, for num, den ≥ 0 that are neither both zero nor both
/// infinite.
///
/// The quotient is reduced to |t| ≤ tan π/8 by atan q = π/4 + atan((q−1)/(q+1)) and atan q = π/2 − atan(1/q), with one
/// division.
#[inline(always)]
fn atan_of_quotient(num: f32, den: f32) -> f32 {
    const TAN_PI_8: f32 = 0.414_213_57;
    let is_steep = num * TAN_PI_8 > den;
    let is_middle = num > den * TAN_PI_8;
    let top = if is_steep {
        -den
    } else if is_middle {
        num - den
    } else {
        num
    };
    let bottom = if is_steep {
        num
    } else if is_middle {
        num + den
    } else {
        den
    };
    let t = top / bottom;
    let z = t * t;
    let p = polynomial(z, [-3.333_294_915_39e-1, 1.997_771_064_78e-1, -1.387_768_560_32e-1, 8.053_744_495_38e-2]);
    let base = if is_steep {
        FRAC_PI_2
    } else if is_middle {
        FRAC_PI_4
    } else {
        0.0
    };
    let low = if is_steep {
        FRAC_PI_2_LOW
    } else if is_middle {
        FRAC_PI_2_LOW * 0.5
    } else {
        0.0
    };
    base + ((p * z).mul_add(t, low) + t)
}

/// Returns arctan x.
#[inline(always)]
pub fn atan(x: f32) -> f32 {
    let a = x.abs();
    let y = atan_of_quotient(a, 1.0);
    let y = if a > f32::MAX { FRAC_PI_2 } else { y };
    (if x == 0.0 { 0.0 } else { y }).copysign(x)
}

/// Returns the angle of the point (x, y), in [−π, π].
///
/// It is computed in `f64`, where no quotient of two `f32` overflows, and rounded once.
#[inline(always)]
pub fn atan2(y: f32, x: f32) -> f32 {
    double::atan2_short(y as f64, x as f64) as f32
}

/// Returns arcsin z for 0 ≤ z ≤ ½ as z + z·w·P(w), w = z².
#[inline(always)]
fn asin_small(z: f32, w: f32) -> f32 {
    let p = polynomial(
        w,
        [1.666_675_242_2e-1, 7.495_300_268_6e-2, 4.547_002_599_8e-2, 2.418_131_104_9e-2, 4.216_319_904_8e-2],
    );
    (p * w).mul_add(z, z)
}

/// Returns arcsin x. For |x| > ½ it uses arcsin x = π/2 − 2 arcsin √((1 − x)/2).
#[inline(always)]
pub fn asin(x: f32) -> f32 {
    let a = x.abs();
    let is_far = a > 0.5;
    let w = if is_far { 0.5 * (1.0 - a) } else { a * a };
    let z = if is_far { w.sqrt() } else { a };
    let y = asin_small(z, w);
    let y = if is_far { FRAC_PI_2 - (2.0 * y - FRAC_PI_2_LOW) } else { y };
    y.copysign(x)
}

/// Returns arccos x: π/2 − arcsin x for |x| ≤ ½, otherwise 2 arcsin √((1 − |x|)/2), or π minus this for x < 0.
#[inline(always)]
pub fn acos(x: f32) -> f32 {
    let a = x.abs();
    let is_far = a > 0.5;
    let w = if is_far { 0.5 * (1.0 - a) } else { a * a };
    let z = if is_far { w.sqrt() } else { x };
    let y = asin_small(z, w);
    let near_one = 2.0 * y;
    let near_minus_one = PI - (near_one - 2.0 * FRAC_PI_2_LOW);
    let middle = FRAC_PI_2 - (y - FRAC_PI_2_LOW);
    if !is_far {
        middle
    } else if x < 0.0 {
        near_minus_one
    } else {
        near_one
    }
}
