//! The exponential and its near relatives, by Cody and Waite's reduction (1980): x = n·ln 2 + r with
//! |r| ≤ ln 2 / 2, then 2ⁿ times a polynomial in r.

use super::{nearest, polynomial, power_of_two};
use crate::math::Single;
use std::f32::consts::LOG2_E;

/// ln 2 in two parts; the first has few enough bits that n times it is exact.
pub(super) const LN_2_HIGH: f32 = 0.693_359_375;
pub(super) const LN_2_LOW: f32 = -2.121_944_4e-4;

/// v · 2ⁿ for −252 ≤ n ≤ 254, rounded once, subnormal results included.
#[inline(always)]
fn scale(v: f32, n: i32) -> f32 {
    let half = n >> 1;
    v * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// x = n·ln 2 + r: (n, r).
#[inline(always)]
fn reduce(x: f32) -> (f32, i32, f32) {
    let (nf, n) = nearest(x * LOG2_E);
    (nf, n, nf.mul_add(-LN_2_LOW, nf.mul_add(-LN_2_HIGH, x)))
}

/// eʳ − 1 for |r| ≤ ln 2 / 2, to 2⁻³² of itself.
#[inline(always)]
fn expm1_reduced(r: f32) -> f32 {
    let p = polynomial(
        r,
        [5.000_000_046e-1, 1.666_666_682e-1, 4.166_635_466e-2, 8.333_273_049e-3, 1.394_100_838e-3, 1.991_417_046e-4],
    );
    (p * r).mul_add(r, r)
}

/// eʳ for |r| ≤ ln 2 / 2.
#[inline(always)]
fn exp_reduced<S: Single>(r: S) -> S {
    polynomial(
        r,
        [
            1.0,
            1.0,
            4.999_999_341_250_153_7e-1,
            1.666_652_010_781_951e-1,
            4.166_839_421_089_995e-2,
            8.368_780_411_188_471e-3,
            1.381_446_705_907_340_5e-3,
        ],
    )
}

/// x = n·ln 2 + r: (n + `BIAS` in the low bits, r). Adding 1.5 · 2²³ leaves an integer there.
#[inline(always)]
fn reduce_biased<S: Single, const BIAS: u32>(x: S) -> (S, S) {
    let magic = S::of(12_582_912.0 + BIAS as f32);
    let biased = x.mul_add(S::of(LOG2_E), magic);
    let n = biased - magic;
    (biased, n.mul_add(S::of(-LN_2_LOW), n.mul_add(S::of(-LN_2_HIGH), x)))
}

/// Within this the result is no more than 2ⁿ times eʳ by its exponent: neither subnormal nor infinite.
pub const EXP_LIMIT: f32 = 86.0;

/// eˣ for |x| ≤ [`EXP_LIMIT`], to 1 ULP.
#[inline(always)]
pub fn exp_fast<S: Single>(x: S) -> S {
    let (n, r) = reduce_biased::<S, 0>(x);
    exp_reduced(r).add_bits(n.low_bits_as_exponent())
}

/// eˣ, to 1 ULP.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Beyond these the result is 0 or ∞ anyway; the comparisons let NaN through.
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    // Both halves of n come out with the exponent's bias added.
    let (n, r) = reduce_biased::<f32, 254>(x);
    let (n, half) = (n.to_bits(), n.to_bits() >> 1);
    // Two steps, of which only the last one rounds, where the result is subnormal.
    exp_reduced(r) * f32::from_bits(half << 23) * f32::from_bits(n.wrapping_sub(half) << 23)
}

/// 2ˣ.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    let x = if x < -151.0 { -151.0 } else { x };
    let x = if x > 129.0 { 129.0 } else { x };
    let (nf, n) = nearest(x);
    let r = x - nf;
    let p = polynomial(
        r,
        [
            6.931_471_807_05e-1,
            2.402_265_106_7e-1,
            5.550_410_365_39e-2,
            9.618_038_059_89e-3,
            1.333_393_536_64e-3,
            1.546_678_145_2e-4,
            1.519_613_118_12e-5,
        ],
    );
    scale(p.mul_add(r, 1.0), n)
}

/// eˣ − 1, accurate near 0: 2ⁿ(eʳ − 1) + (2ⁿ − 1), halved so that 2¹²⁸ does not overflow too early.
#[inline(always)]
pub fn expm1(x: f32) -> f32 {
    let c = if x < -18.0 { -18.0 } else { x };
    let c = if c > 89.0 { 89.0 } else { c };
    let (_, n, r) = reduce(c);
    let p = expm1_reduced(r);
    let half = power_of_two(n.wrapping_sub(1));
    let y = 2.0 * p.mul_add(half, half - 0.5);
    // n = 0 is exact as it stands, which keeps subnormals; so is zero, which keeps its sign.
    let y = if n == 0 { p } else { y };
    if x == 0.0 { x } else { y }
}

/// 1 / (1 + e⁻ˣ), from e^−|x|, which cannot overflow: e/(1 + e) for x < 0, 1/(1 + e) else.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    let numerator = if x < 0.0 { e } else { 1.0 };
    numerator / (1.0 + e)
}
