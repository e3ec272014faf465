//! Inverse trigonometric functions (Moshier, Cephes 1989).

use super::polynomial;
use std::f32::consts::{FRAC_PI_2, FRAC_PI_4, PI};

/// π/2 − its nearest `f32`.
const FRAC_PI_2_LOW: f32 = -4.371_139e-8;

/// The angle in [0, π/2] whose tangent is num/den ≥ 0 (not both zero or infinite).
///
/// The quotient is brought to |t| ≤ tan π/8 through atan q = π/4 + atan((q−1)/(q+1)) and
/// atan q = π/2 − atan(1/q), with one division.
#[inline(always)]
fn angle(num: f32, den: f32) -> f32 {
    const TAN_PI_8: f32 = 0.414_213_57;
    let steep = num * TAN_PI_8 > den;
    let middle = num > den * TAN_PI_8;
    let top = if steep {
        -den
    } else if middle {
        num - den
    } else {
        num
    };
    let bottom = if steep {
        num
    } else if middle {
        num + den
    } else {
        den
    };
    let t = top / bottom;
    let z = t * t;
    let p = polynomial(z, [-3.333_294_915_39e-1, 1.997_771_064_78e-1, -1.387_768_560_32e-1, 8.053_744_495_38e-2]);
    let base = if steep {
        FRAC_PI_2
    } else if middle {
        FRAC_PI_4
    } else {
        0.0
    };
    let low = if steep {
        FRAC_PI_2_LOW
    } else if middle {
        FRAC_PI_2_LOW * 0.5
    } else {
        0.0
    };
    base + ((p * z).mul_add(t, low) + t)
}

/// arctan x.
#[inline(always)]
pub fn atan(x: f32) -> f32 {
    let a = x.abs();
    let y = angle(a, 1.0);
    let y = if a > f32::MAX { FRAC_PI_2 } else { y };
    (if x == 0.0 { 0.0 } else { y }).copysign(x)
}

/// The angle of the point (x, y), in [−π, π], computed in `f64`, where no quotient of two `f32`
/// overflows, and rounded once.
#[inline(always)]
pub fn atan2(y: f32, x: f32) -> f32 {
    libm::atan2(y as f64, x as f64) as f32
}

/// arcsin z for 0 ≤ z ≤ ½: z + z·w·P(w), w = z².
#[inline(always)]
fn asin_small(z: f32, w: f32) -> f32 {
    let p = polynomial(
        w,
        [1.666_675_242_2e-1, 7.495_300_268_6e-2, 4.547_002_599_8e-2, 2.418_131_104_9e-2, 4.216_319_904_8e-2],
    );
    (p * w).mul_add(z, z)
}

/// arcsin x: beyond ½ by arcsin x = π/2 − 2 arcsin √((1 − x)/2).
#[inline(always)]
pub fn asin(x: f32) -> f32 {
    let a = x.abs();
    let far = a > 0.5;
    let w = if far { 0.5 * (1.0 - a) } else { a * a };
    let z = if far { w.sqrt() } else { a };
    let y = asin_small(z, w);
    let y = if far { FRAC_PI_2 - (2.0 * y - FRAC_PI_2_LOW) } else { y };
    y.copysign(x)
}

/// arccos x: π/2 − arcsin x within ±½, 2 arcsin √((1 − |x|)/2) or its supplement beyond.
#[inline(always)]
pub fn acos(x: f32) -> f32 {
    let a = x.abs();
    let far = a > 0.5;
    let w = if far { 0.5 * (1.0 - a) } else { a * a };
    let z = if far { w.sqrt() } else { x };
    let y = asin_small(z, w);
    let near_one = 2.0 * y;
    let near_minus_one = PI - (near_one - 2.0 * FRAC_PI_2_LOW);
    let middle = FRAC_PI_2 - (y - FRAC_PI_2_LOW);
    if !far {
        middle
    } else if x < 0.0 {
        near_minus_one
    } else {
        near_one
    }
}
