//! The exponential and related functions.
//!
//! The argument is reduced as in Cody & Waite (1980): x = n·ln 2 + r with |r| ≤ ln 2 / 2. The result is 2ⁿ times a
//! polynomial in r.

use super::{nearest, polynomial, power_of_two};
use std::f64::consts::LOG2_E;

/// The upper part of ln 2 (fdlibm), with few enough bits that its product with n is exact.
pub(super) const LN_2_HIGH: f64 = 6.931_471_803_691_238_164_90e-1;
/// ln 2 − [`LN_2_HIGH`].
pub(super) const LN_2_LOW: f64 = 1.908_214_929_270_587_700_02e-10;

/// Returns v · 2ⁿ for −2044 ≤ n ≤ 2046, rounded once, even if the result is subnormal.
#[inline(always)]
pub(super) fn scale(v: f64, n: i64) -> f64 {
    let half_n = n >> 1;
    v * power_of_two(half_n) * power_of_two(n.wrapping_sub(half_n))
}

/// Returns (n, r) with x = n·ln 2 + r.
#[inline(always)]
fn reduce(x: f64) -> (i64, f64) {
    let (nf, n) = nearest(x * LOG2_E);
    (n, nf.mul_add(-LN_2_LOW, nf.mul_add(-LN_2_HIGH, x)))
}

/// Returns eʳ − 1 for |r| ≤ ln 2 / 2 as r + r²/2 + r³·P(r), with a minimax relative error of 2⁻⁶¹.
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

/// The largest |x| for [`exp_fast`]. Up to this limit, the result is neither subnormal nor infinite; adding n to the
/// exponent field of eʳ therefore multiplies by 2ⁿ.
pub const EXP_LIMIT: f64 = 707.0;

/// Returns eˣ for |x| ≤ [`EXP_LIMIT`].
#[inline(always)]
pub fn exp_fast(x: f64) -> f64 {
    let (n, r) = reduce(x);
    f64::from_bits((1.0 + expm1_reduced(r)).to_bits().wrapping_add((n as u64) << 52))
}

/// Returns eˣ for |x| ≤ [`EXP_LIMIT`], with a relative error of 2⁻³⁴. The `f32` functions round its results.
#[inline(always)]
pub fn exp_short(x: f64) -> f64 {
    let (n, r) = reduce(x);
    let p = polynomial(
        r,
        [
            9.999_999_999_616_818e-1,
            1.000_000_000_243_107_5,
            5.000_000_104_536_543e-1,
            1.666_666_512_607_451_5e-1,
            4.166_622_542_514_416e-2,
            8.333_561_100_181_472e-3,
            1.394_818_334_378_891e-3,
            1.977_516_689_568_964e-4,
        ],
    );
    f64::from_bits(p.to_bits().wrapping_add((n as u64) << 52))
}

/// Returns eˣ.
#[inline(always)]
pub fn exp(x: f64) -> f64 {
    // Outside these limits the result is 0 or ∞. The comparisons keep a NaN.
    let x = if x < -746.0 { -746.0 } else { x };
    let x = if x > 710.0 { 710.0 } else { x };
    let (n, r) = reduce(x);
    scale(1.0 + expm1_reduced(r), n)
}

/// Returns v·e^(a·b) for |a·b| ≤ 800 and 2⁻⁸ ≤ |v| ≤ 1.
///
/// The exponent a·b is not rounded, because the multiplication is fused with the reduction.
#[inline(always)]
pub(super) fn times_exp_of_product(v: f64, a: f64, b: f64) -> f64 {
    let (nf, n) = nearest(a * LOG2_E * b);
    let r = nf.mul_add(-LN_2_LOW, a.mul_add(b, nf * -LN_2_HIGH));
    scale(v * (1.0 + expm1_reduced(r)), n)
}

/// Returns a·2ᵇ, even if 2ᵇ overflows or underflows.
#[inline(always)]
pub fn ldexp(a: f64, b: f64) -> f64 {
    // Outside these limits the result is 0, ∞ or a. The comparisons keep a NaN.
    let b = if b < -2200.0 { -2200.0 } else { b };
    let b = if b > 2200.0 { 2200.0 } else { b };
    let (nf, n) = nearest(b);
    let p = 1.0 + expm1_reduced((b - nf) * std::f64::consts::LN_2);
    // n = 2h + rest, where h = 0 for |n| ≤ 1020. The products with 2ʰ are exact unless the result is 0 or ∞.
    let near = if n < -1020 { -1020 } else { n };
    let near = if near > 1020 { 1020 } else { near };
    let h = n.wrapping_sub(near) >> 1;
    let rest = n.wrapping_sub(h).wrapping_sub(h);
    a * power_of_two(h) * power_of_two(h) * (p * power_of_two(rest))
}

/// The largest |b| for [`ldexp_fast`]. Up to this limit, 2ᵇ is a normal number.
pub const LDEXP_LIMIT: f64 = 1020.0;

/// Returns a·2ᵇ for |b| ≤ [`LDEXP_LIMIT`], bit-identical to [`ldexp`].
#[inline(always)]
pub fn ldexp_fast(a: f64, b: f64) -> f64 {
    let (nf, n) = nearest(b);
    let p = 1.0 + expm1_reduced((b - nf) * std::f64::consts::LN_2);
    a * f64::from_bits(p.to_bits().wrapping_add((n as u64) << 52))
}

/// Returns eˣ − 1, accurate near 0.
///
/// Computes 2ⁿ(eʳ − 1) + (2ⁿ − 1) with both terms halved, so that 2ⁿ = 2¹⁰²⁴ does not overflow.
#[inline(always)]
pub fn expm1(x: f64) -> f64 {
    let c = if x < -38.0 { -38.0 } else { x };
    let c = if c > 710.0 { 710.0 } else { c };
    let (n, r) = reduce(c);
    let p = expm1_reduced(r);
    let half_power = power_of_two(n.wrapping_sub(1));
    let y = 2.0 * p.mul_add(half_power, half_power - 0.5);
    // For n = 0 the result is p itself, which preserves subnormals. Zero preserves its sign.
    let y = if n == 0 { p } else { y };
    if x == 0.0 { x } else { y }
}

/// Returns tanh x = E/(E + 2) with E = e^(2|x|) − 1. For |x| > 20 the result is ±1 to the last bit.
#[inline(always)]
pub fn tanh(x: f64) -> f64 {
    let a = x.abs();
    let a = if a > 20.0 { 20.0 } else { a };
    let e = expm1(2.0 * a);
    (e / (e + 2.0)).copysign(x)
}

/// Returns the logistic function of x from e = e^−|x|, which cannot overflow: e/(1 + e) for x < 0, and 1/(1 + e)
/// otherwise.
#[inline(always)]
fn sigmoid_from_exp(x: f64, e: f64) -> f64 {
    let numerator = if x < 0.0 { e } else { 1.0 };
    numerator / (1.0 + e)
}

/// Returns the logistic function 1 / (1 + e⁻ˣ).
#[inline(always)]
pub fn sigmoid(x: f64) -> f64 {
    sigmoid_from_exp(x, exp(-x.abs()))
}

/// Returns the logistic function for |x| ≤ [`EXP_LIMIT`], bit-identical to [`sigmoid`].
#[inline(always)]
pub fn sigmoid_fast(x: f64) -> f64 {
    sigmoid_from_exp(x, exp_fast(-x.abs()))
}
