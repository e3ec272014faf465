//! Sine, cosine and tangent.
//!
//! The argument is reduced to x = n·π/2 + r with |r| ≤ π/4 (Cody & Waite 1980), where r is the sum of two floats. n mod
//! 4 selects the polynomial in r (fdlibm, Sun Microsystems 1993).

use super::{nearest, polynomial};
use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, PI};

/// The largest |x| for which the reduction by π/2 in three parts is accurate enough.
///
/// Larger arguments use `libm`, which reduces with as many bits of 2/π as they need (Payne & Hanek 1983).
pub const TRIG_LIMIT: f64 = 1e8;

/// Returns (n, r, r_low) with x = n·π/2 + r + r_low.
#[inline(always)]
fn reduce_by_half_pi(x: f64) -> (i64, f64, f64) {
    // π/2 = FRAC_PI_2 + B + C.
    const B: f64 = 6.123_233_995_736_766_035_9e-17;
    const C: f64 = -1.497_384_904_859_169_777e-33;
    let (nf, n) = nearest(x * FRAC_2_PI);
    // This subtraction is exact: the result is a multiple of 2⁻⁵³ below 1.
    let first = nf.mul_add(-FRAC_PI_2, x);
    let r = nf.mul_add(-B, first);
    let low = nf.mul_add(-C, nf.mul_add(-B, first - r));
    (n, r, low)
}

/// Returns sin(r + low) for |r| ≤ π/4.
#[inline(always)]
pub(in crate::math) fn sin_reduced(r: f64, low: f64) -> f64 {
    let z = r * r;
    let p = polynomial(
        z,
        [
            8.333_333_333_322_489_461_24e-3,
            -1.984_126_982_985_794_931_34e-4,
            2.755_731_370_707_006_767_89e-6,
            -2.505_076_025_340_686_341_95e-8,
            1.589_690_995_211_550_102_21e-10,
        ],
    );
    let cube = z * r;
    let t = z.mul_add(0.5f64.mul_add(-low, cube * p), low);
    r + cube.mul_add(-1.666_666_666_666_663_243_48e-1, t)
}

/// Returns cos(r + low) for |r| ≤ π/4.
#[inline(always)]
pub(in crate::math) fn cos_reduced(r: f64, low: f64) -> f64 {
    let z = r * r;
    let p = polynomial(
        z,
        [
            4.166_666_666_666_660_190_37e-2,
            -1.388_888_888_887_410_957_49e-3,
            2.480_158_728_947_672_941_78e-5,
            -2.755_731_435_139_066_330_35e-7,
            2.087_572_321_298_174_827_90e-9,
            -1.135_964_755_778_819_482_65e-11,
        ],
    );
    let half_z = 0.5 * z;
    let w = 1.0 - half_z;
    w + (((1.0 - w) - half_z) + (z * z).mul_add(p, -(r * low)))
}

/// Returns sin(r + low + n·π/2).
#[inline(always)]
fn sin_of_quadrant(n: i64, r: f64, low: f64) -> f64 {
    let (s, c) = (sin_reduced(r, low), cos_reduced(r, low));
    let y = if n & 1 == 0 { s } else { c };
    f64::from_bits(y.to_bits() ^ ((n as u64 & 2) << 62))
}

/// Returns sin x for |x| ≤ [`TRIG_LIMIT`].
#[inline(always)]
pub fn sin_fast(x: f64) -> f64 {
    let (n, r, low) = reduce_by_half_pi(x);
    // The reduction maps −0 to +0. To preserve the sign, zero is returned unchanged.
    if x == 0.0 { x } else { sin_of_quadrant(n, r, low) }
}

/// Returns cos x for |x| ≤ [`TRIG_LIMIT`].
#[inline(always)]
pub fn cos_fast(x: f64) -> f64 {
    let (n, r, low) = reduce_by_half_pi(x);
    sin_of_quadrant(n.wrapping_add(1), r, low)
}

/// Returns sin x and cos x for |x| ≤ [`TRIG_LIMIT`].
#[inline(always)]
pub(in crate::math) fn sin_and_cos_fast(x: f64) -> (f64, f64) {
    let (n, r, low) = reduce_by_half_pi(x);
    let (s, c) = (sin_reduced(r, low), cos_reduced(r, low));
    let (sine, cosine) = if n & 1 == 0 { (s, c) } else { (c, s) };
    let sign = |n: i64| (n as u64 & 2) << 62;
    (f64::from_bits(sine.to_bits() ^ sign(n)), f64::from_bits(cosine.to_bits() ^ sign(n.wrapping_add(1))))
}

/// Returns (n, r, r_low) with πx = n·π/2 + r + r_low up to a multiple of 2π. The reduction modulo 2 is exact.
#[inline(always)]
fn reduce_half_turns(x: f64) -> (i64, f64, f64) {
    const PI_LOW: f64 = 1.224_646_799_147_353_177_2e-16;
    let t = (0.5 * x).round_ties_even().mul_add(-2.0, x);
    let (nf, n) = nearest(2.0 * t);
    let fraction = nf.mul_add(-0.5, t);
    let r = fraction * PI;
    (n, r, fraction.mul_add(PI, -r) + fraction * PI_LOW)
}

/// Returns sin πx; 0 at integers.
#[inline(always)]
pub fn sin_pi(x: f64) -> f64 {
    let (n, r, low) = reduce_half_turns(x);
    if x == 0.0 { x } else { sin_of_quadrant(n, r, low) }
}

/// Returns cos πx.
#[inline(always)]
pub fn cos_pi(x: f64) -> f64 {
    let (n, r, low) = reduce_half_turns(x);
    sin_of_quadrant(n.wrapping_add(1), r, low)
}

/// Returns tan x for |x| ≤ [`TRIG_LIMIT`], with one call to `libm` per lane (the polynomial of fdlibm).
#[inline(always)]
pub fn tan_fast(x: f64) -> f64 {
    libm::tan(x)
}

/// Returns sin x for any x.
#[inline]
pub fn sin(x: f64) -> f64 {
    if x.abs() > TRIG_LIMIT { libm::sin(x) } else { sin_fast(x) }
}

/// Returns cos x for any x.
#[inline]
pub fn cos(x: f64) -> f64 {
    if x.abs() > TRIG_LIMIT { libm::cos(x) } else { cos_fast(x) }
}

/// Returns tan x for any x.
#[inline]
pub fn tan(x: f64) -> f64 {
    libm::tan(x)
}
