//! Sine, cosine and tangent.
//!
//! The sine and the cosine reduce x = n·π + r with |r| ≤ π/2 and evaluate one polynomial in r. For the cosine, n is
//! half of an odd integer. The tangent reduces x = n·π/2 + r with |r| ≤ π/4 and divides two polynomials, selected by n.
//! The reductions follow Cody & Waite (1980).

use super::{nearest, polynomial};
use std::f32::consts::{FRAC_1_PI, FRAC_2_PI, PI};

/// The largest |x| for which the reduction by π in three parts is accurate enough.
///
/// Larger arguments use `libm`, which reduces with as many bits of 2/π as they need (Payne & Hanek 1983).
pub const TRIG_LIMIT: f32 = 65_536.0;

/// Returns x − n·π for |n| < 2¹⁵ with an integer 2n.
///
/// The first subtraction is exact wherever bits cancel, because x and n·A are then multiples of 2⁻²³ that differ by
/// less than 2.
#[inline(always)]
fn subtract_multiple_of_pi(x: f32, n: f32) -> f32 {
    // π = A + B + C.
    const A: f32 = 3.141_592_502_593_994;
    const B: f32 = 1.509_957_883_172_319_3e-7;
    const C: f32 = 1.078_060_505_991_553e-14;
    n.mul_add(-C, n.mul_add(-B, n.mul_add(-A, x)))
}

/// Returns (−1)ⁿ sin r for |r| ≤ π/2. The result never exceeds 1 in magnitude.
///
/// The last digits of the minimax polynomial were chosen by search for the smallest error of this evaluation, 1.5 ULP.
#[inline(always)]
fn signed_sin(n: i32, r: f32) -> f32 {
    let z = r * r;
    let p = polynomial(z, [8.333_069e-3, -1.980_952_2e-4, 2.604_956_5e-6]);
    let q = z.mul_add(-1.666_666e-1, p * (z * z));
    let y = q.mul_add(r, r);
    f32::from_bits(y.to_bits() ^ (n as u32) << 31)
}

/// Returns x modulo 2, in [−1, 1]. The result is exact.
#[inline(always)]
fn modulo_two(x: f32) -> f32 {
    (0.5 * x).round_ties_even().mul_add(-2.0, x)
}

/// Returns π·r.
#[inline(always)]
fn times_pi(r: f32) -> f32 {
    const PI_LOW: f32 = -8.742_278e-8;
    r.mul_add(PI, r * PI_LOW)
}

/// Returns sin πx; 0 at integers.
#[inline(always)]
pub fn sin_pi(x: f32) -> f32 {
    let t = modulo_two(x);
    let (nf, n) = nearest(t);
    let y = signed_sin(n, times_pi(t - nf));
    if x == 0.0 { x } else { y }
}

/// Returns cos πx = sin π(x + ½).
#[inline(always)]
pub fn cos_pi(x: f32) -> f32 {
    let t = modulo_two(x);
    let (nf, n) = nearest(t + 0.5);
    signed_sin(n, times_pi(t - (nf - 0.5)))
}

/// Returns (n, r) with x = n·π/2 + r.
#[inline(always)]
fn reduce_by_half_pi(x: f32) -> (i32, f32) {
    // π/2 = A + B + C. Each subtraction is fused, so only the last bits of r are rounded.
    const A: f32 = 1.570_796_4;
    const B: f32 = -4.371_139e-8;
    const C: f32 = -1.715_124_5e-15;
    let (nf, n) = nearest(x * FRAC_2_PI);
    (n, nf.mul_add(-C, nf.mul_add(-B, nf.mul_add(-A, x))))
}

/// Returns sin r for |r| ≤ π/4 (Cephes).
#[inline(always)]
fn sin_reduced(r: f32) -> f32 {
    let z = r * r;
    let p = polynomial(z, [-1.666_665_461_1e-1, 8.332_160_873_6e-3, -1.951_529_589_1e-4]);
    (p * z).mul_add(r, r)
}

/// Returns cos r for |r| ≤ π/4 (Cephes).
#[inline(always)]
fn cos_reduced(r: f32) -> f32 {
    let z = r * r;
    let p = polynomial(z, [4.166_664_568_298_827e-2, -1.388_731_625_493_765e-3, 2.443_315_711_809_948e-5]);
    (p * z).mul_add(z, z.mul_add(-0.5, 1.0))
}

/// Returns sin x for |x| ≤ [`TRIG_LIMIT`], from the reduction x = n·π + r.
#[inline(always)]
pub fn sin_fast(x: f32) -> f32 {
    let (nf, n) = nearest(x * FRAC_1_PI);
    let y = signed_sin(n, subtract_multiple_of_pi(x, nf));
    // The reduction maps −0 to +0. To preserve the sign, zero is returned unchanged.
    if x == 0.0 { x } else { y }
}

/// Returns cos x for |x| ≤ [`TRIG_LIMIT`], from the reduction x = (n − ½)·π + r.
#[inline(always)]
pub fn cos_fast(x: f32) -> f32 {
    let (nf, n) = nearest(x.mul_add(FRAC_1_PI, 0.5));
    signed_sin(n, subtract_multiple_of_pi(x, nf - 0.5))
}

/// Returns tan x for |x| ≤ [`TRIG_LIMIT`].
#[inline(always)]
pub fn tan_fast(x: f32) -> f32 {
    let (n, r) = reduce_by_half_pi(x);
    let (s, c) = (sin_reduced(r), cos_reduced(r));
    let is_even = n & 1 == 0;
    let y = if is_even { s } else { -c } / if is_even { c } else { s };
    if x == 0.0 { x } else { y }
}

/// Returns sin x for any x.
#[inline]
pub fn sin(x: f32) -> f32 {
    if x.abs() > TRIG_LIMIT { libm::sinf(x) } else { sin_fast(x) }
}

/// Returns cos x for any x.
#[inline]
pub fn cos(x: f32) -> f32 {
    if x.abs() > TRIG_LIMIT { libm::cosf(x) } else { cos_fast(x) }
}

/// Returns tan x for any x.
#[inline]
pub fn tan(x: f32) -> f32 {
    if x.abs() > TRIG_LIMIT { libm::tanf(x) } else { tan_fast(x) }
}
