//! The exponential and its near relatives, by Cody and Waite's reduction (1980): x = n·ln 2 + r with
//! |r| ≤ ln 2 / 2, then 2ⁿ times a polynomial in r.

use super::{nearest, polynomial, power_of_two};
use std::f64::consts::LOG2_E;

/// ln 2 in two parts (fdlibm); n times the first is exact.
pub(super) const LN_2_HIGH: f64 = 6.931_471_803_691_238_164_90e-1;
pub(super) const LN_2_LOW: f64 = 1.908_214_929_270_587_700_02e-10;

/// v · 2ⁿ for −2044 ≤ n ≤ 2046, rounded once, subnormal results included.
#[inline(always)]
fn scale(v: f64, n: i64) -> f64 {
    let half = n >> 1;
    v * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// x = n·ln 2 + r: (n, r).
#[inline(always)]
fn reduce(x: f64) -> (i64, f64) {
    let (nf, n) = nearest(x * LOG2_E);
    (n, nf.mul_add(-LN_2_LOW, nf.mul_add(-LN_2_HIGH, x)))
}

/// eʳ − 1 for |r| ≤ ln 2 / 2: r + r²/2 + r³·P(r), minimax to 2⁻⁶¹ of itself.
#[inline(always)]
fn expm1_reduced(r: f64) -> f64 {
    let p = polynomial(
        r,
        [
            0.5,
            1.666_666_666_666_667_647_5e-1,
            4.166_666_666_666_668_980_9e-2,
            8.333_333_333_321_695_663e-3,
            1.388_888_888_887_022_680_5e-3,
            1.984_126_988_598_549_732_9e-4,
            2.480_158_735_594_933_460_4e-5,
            2.755_724_433_644_910_155_9e-6,
            2.755_724_571_543_913_070_7e-7,
            2.510_899_602_332_546_426_3e-8,
            2.092_371_833_560_537_468_4e-9,
        ],
    );
    (p * r).mul_add(r, r)
}

/// Within this the result is no more than 2ⁿ times eʳ by its exponent: neither subnormal nor infinite.
pub const EXP_LIMIT: f64 = 707.0;

/// eˣ for |x| ≤ [`EXP_LIMIT`].
#[inline(always)]
pub fn exp_fast(x: f64) -> f64 {
    let (n, r) = reduce(x);
    f64::from_bits((1.0 + expm1_reduced(r)).to_bits().wrapping_add((n as u64) << 52))
}

/// eˣ.
#[inline(always)]
pub fn exp(x: f64) -> f64 {
    // Beyond these the result is 0 or ∞ anyway; the comparisons let NaN through.
    let x = if x < -746.0 { -746.0 } else { x };
    let x = if x > 710.0 { 710.0 } else { x };
    let (n, r) = reduce(x);
    scale(1.0 + expm1_reduced(r), n)
}

/// eˣ − 1, accurate near 0: 2ⁿ(eʳ − 1) + (2ⁿ − 1), halved so that 2¹⁰²⁴ does not overflow too early.
#[inline(always)]
pub fn expm1(x: f64) -> f64 {
    let c = if x < -38.0 { -38.0 } else { x };
    let c = if c > 710.0 { 710.0 } else { c };
    let (n, r) = reduce(c);
    let p = expm1_reduced(r);
    let half = power_of_two(n.wrapping_sub(1));
    let y = 2.0 * p.mul_add(half, half - 0.5);
    // n = 0 is exact as it stands, which keeps subnormals; so is zero, which keeps its sign.
    let y = if n == 0 { p } else { y };
    if x == 0.0 { x } else { y }
}

/// tanh x = E/(E + 2), E = e^(2|x|) − 1; beyond 20 it is 1 to the last bit.
#[inline(always)]
pub fn tanh(x: f64) -> f64 {
    let a = x.abs();
    let a = if a > 20.0 { 20.0 } else { a };
    let e = expm1(2.0 * a);
    (e / (e + 2.0)).copysign(x)
}

/// 1 / (1 + e⁻ˣ), from e^−|x|, which cannot overflow: e/(1 + e) for x < 0, 1/(1 + e) else.
#[inline(always)]
pub fn sigmoid(x: f64) -> f64 {
    let e = exp(-x.abs());
    let numerator = if x < 0.0 { e } else { 1.0 };
    numerator / (1.0 + e)
}
