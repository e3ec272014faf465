//! Sine, cosine and tangent: x = n·π/2 + r with |r| ≤ π/4 (Cody & Waite 1980), then a polynomial of r
//! chosen by n mod 4.

use super::{nearest, polynomial};
use std::f32::consts::FRAC_2_PI;

/// Up to here π/2 in three parts reduces exactly enough; larger arguments go to `libm`, which reduces
/// with as many bits of 2/π as they need (Payne & Hanek 1983).
pub(crate) const TRIG_LIMIT: f32 = 65_536.0;

/// x = n·π/2 + r: (n, r).
#[inline(always)]
fn reduce(x: f32) -> (i32, f32) {
    // π/2 = A + B + C; each step is fused, so only the last bits of r are rounded.
    const A: f32 = 1.570_796_4;
    const B: f32 = -4.371_139e-8;
    const C: f32 = -1.715_124_5e-15;
    let (nf, n) = nearest(x * FRAC_2_PI);
    (n, nf.mul_add(-C, nf.mul_add(-B, nf.mul_add(-A, x))))
}

/// sin r for |r| ≤ π/4 (Cephes).
#[inline(always)]
fn sin_reduced(r: f32) -> f32 {
    let z = r * r;
    let p = polynomial(z, [-1.666_665_461_1e-1, 8.332_160_873_6e-3, -1.951_529_589_1e-4]);
    (p * z).mul_add(r, r)
}

/// cos r for |r| ≤ π/4 (Cephes).
#[inline(always)]
fn cos_reduced(r: f32) -> f32 {
    let z = r * r;
    let p = polynomial(z, [4.166_664_568_298_827e-2, -1.388_731_625_493_765e-3, 2.443_315_711_809_948e-5]);
    (p * z).mul_add(z, z.mul_add(-0.5, 1.0))
}

/// sin(r + n·π/2).
#[inline(always)]
fn turn(n: i32, r: f32) -> f32 {
    let (s, c) = (sin_reduced(r), cos_reduced(r));
    let y = if n & 1 == 0 { s } else { c };
    f32::from_bits(y.to_bits() ^ ((n as u32 & 2) << 30))
}

/// sin x for |x| ≤ [`TRIG_LIMIT`].
#[inline(always)]
pub(crate) fn sin_fast(x: f32) -> f32 {
    let (n, r) = reduce(x);
    // −0 − 0·A is +0.
    if x == 0.0 { x } else { turn(n, r) }
}

/// cos x for |x| ≤ [`TRIG_LIMIT`].
#[inline(always)]
pub(crate) fn cos_fast(x: f32) -> f32 {
    let (n, r) = reduce(x);
    turn(n.wrapping_add(1), r)
}

/// tan x for |x| ≤ [`TRIG_LIMIT`].
#[inline(always)]
pub(crate) fn tan_fast(x: f32) -> f32 {
    let (n, r) = reduce(x);
    let (s, c) = (sin_reduced(r), cos_reduced(r));
    let even = n & 1 == 0;
    let y = if even { s } else { -c } / if even { c } else { s };
    if x == 0.0 { x } else { y }
}

/// Sine of any x.
#[inline]
pub(crate) fn sin(x: f32) -> f32 {
    if x.abs() > TRIG_LIMIT { libm::sinf(x) } else { sin_fast(x) }
}

/// Cosine of any x.
#[inline]
pub(crate) fn cos(x: f32) -> f32 {
    if x.abs() > TRIG_LIMIT { libm::cosf(x) } else { cos_fast(x) }
}

/// Tangent of any x.
#[inline]
pub(crate) fn tan(x: f32) -> f32 {
    if x.abs() > TRIG_LIMIT { libm::tanf(x) } else { tan_fast(x) }
}
