//! The exponential and related functions.
//!
//! The argument is reduced as in Cody & Waite (1980): x = n·ln 2 + r with |r| ≤ ln 2 / 2. The result is 2ⁿ times a
//! polynomial in r.

use super::{nearest, polynomial, power_of_two};
use crate::math::F32Lanes;
use std::f32::consts::LOG2_E;

/// The upper part of ln 2, with few enough bits that its product with n is exact.
pub(super) const LN_2_HIGH: f32 = 0.693_359_375;
/// ln 2 − [`LN_2_HIGH`].
pub(super) const LN_2_LOW: f32 = -2.121_944_4e-4;

/// Returns v · 2ⁿ for −252 ≤ n ≤ 254, rounded once, even if the result is subnormal.
#[inline(always)]
fn scale(v: f32, n: i32) -> f32 {
    let half_n = n >> 1;
    v * power_of_two(half_n) * power_of_two(n.wrapping_sub(half_n))
}

/// Returns (n as a float, n, r) with x = n·ln 2 + r.
#[inline(always)]
fn reduce(x: f32) -> (f32, i32, f32) {
    let (nf, n) = nearest(x * LOG2_E);
    (nf, n, nf.mul_add(-LN_2_LOW, nf.mul_add(-LN_2_HIGH, x)))
}

/// Returns eʳ − 1 for |r| ≤ ln 2 / 2, with a relative error of 2⁻³².
#[inline(always)]
fn expm1_reduced(r: f32) -> f32 {
    let p = polynomial(
        r,
        [5.000_000_046e-1, 1.666_666_682e-1, 4.166_635_466e-2, 8.333_273_049e-3, 1.394_100_838e-3, 1.991_417_046e-4],
    );
    (p * r).mul_add(r, r)
}

/// Returns eʳ for |r| ≤ ln 2 / 2.
#[inline(always)]
fn exp_reduced<S: F32Lanes>(r: S) -> S {
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

/// Returns (b, r) with x = n·ln 2 + r, where the low bits of the float b contain n + `BIAS`.
///
/// Adding 1.5 · 2²³ to a float moves its nearest integer into the low bits.
#[inline(always)]
fn reduce_biased<S: F32Lanes, const BIAS: u32>(x: S) -> (S, S) {
    let magic = S::splat(12_582_912.0 + BIAS as f32);
    let biased = x.mul_add(S::splat(LOG2_E), magic);
    let n = biased - magic;
    (biased, n.mul_add(S::splat(-LN_2_LOW), n.mul_add(S::splat(-LN_2_HIGH), x)))
}

/// The largest |x| for [`exp_fast`]. Up to this limit, the result is neither subnormal nor infinite; adding n to the
/// exponent field of eʳ therefore multiplies by 2ⁿ.
pub const EXP_LIMIT: f32 = 86.0;

/// Returns eˣ for |x| ≤ [`EXP_LIMIT`] with an error of at most 1 ULP.
#[inline(always)]
pub fn exp_fast<S: F32Lanes>(x: S) -> S {
    let (n, r) = reduce_biased::<S, 0>(x);
    exp_reduced(r).add_bits(n.low_bits_as_exponent())
}

/// Returns v·2ⁿ, where the low bits of the float `biased` contain n + 254, for −254 ≤ n ≤ 254.
///
/// Because of the added 254 = 2 · 127, both halves of the sum contain the bias of an exponent. If the result is
/// subnormal, only the last product rounds.
#[inline(always)]
fn scale_biased(v: f32, biased: f32) -> f32 {
    let (n, half_n) = (biased.to_bits(), biased.to_bits() >> 1);
    v * f32::from_bits(half_n << 23) * f32::from_bits(n.wrapping_sub(half_n) << 23)
}

/// Returns eˣ with an error of at most 1 ULP.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Outside these limits the result is 0 or ∞. The comparisons keep a NaN.
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let (biased, r) = reduce_biased::<f32, 254>(x);
    scale_biased(exp_reduced(r), biased)
}

/// Returns v·e^(a·b) for |a·b| ≤ 104 and 2⁻⁶ ≤ |v| ≤ 1.
///
/// The exponent a·b is not rounded, because the multiplication is fused with the reduction.
#[inline(always)]
pub(super) fn times_exp_of_product(v: f32, a: f32, b: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0 + 254.0;
    let biased = (a * LOG2_E).mul_add(b, MAGIC);
    let n = biased - MAGIC;
    let r = n.mul_add(-LN_2_LOW, a.mul_add(b, n * -LN_2_HIGH));
    scale_biased(v * exp_reduced(r), biased)
}

/// Returns v·e^(a·b), bit-identical to [`times_exp_of_product`], if |a·b| ≤ [`EXP_LIMIT`], 2⁻⁶ ≤ |v| ≤ 1 and the result
/// is not subnormal.
#[inline(always)]
pub(super) fn times_exp_of_product_fast<S: F32Lanes>(v: S, a: S, b: S) -> S {
    let magic = S::splat(12_582_912.0);
    let biased = (a * S::splat(LOG2_E)).mul_add(b, magic);
    let n = biased - magic;
    let r = n.mul_add(S::splat(-LN_2_LOW), a.mul_add(b, n * S::splat(-LN_2_HIGH)));
    (v * exp_reduced(r)).add_bits(biased.low_bits_as_exponent())
}

/// Returns 2ˣ.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    let x = if x < -151.0 { -151.0 } else { x };
    let x = if x > 129.0 { 129.0 } else { x };
    let (nf, n) = nearest(x);
    scale(exp2_reduced(x - nf), n)
}

/// Returns 2ʳ for |r| ≤ ½. The result for r = 0 is exactly 1.
#[inline(always)]
fn exp2_reduced(r: f32) -> f32 {
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
    p.mul_add(r, 1.0)
}

/// Returns a·2ᵇ, even if 2ᵇ overflows or underflows.
#[inline(always)]
pub fn ldexp(a: f32, b: f32) -> f32 {
    // Outside these limits the result is 0, ∞ or a. The comparisons keep a NaN.
    let b = if b < -300.0 { -300.0 } else { b };
    let b = if b > 300.0 { 300.0 } else { b };
    let (nf, n) = nearest(b);
    let p = exp2_reduced(b - nf);
    // n = 2h + rest, where h = 0 for |n| ≤ 124. The products with 2ʰ are exact unless the result is 0 or ∞.
    let near = if n < -124 { -124 } else { n };
    let near = if near > 124 { 124 } else { near };
    let h = n.wrapping_sub(near) >> 1;
    let rest = n.wrapping_sub(h).wrapping_sub(h);
    a * power_of_two(h) * power_of_two(h) * (p * power_of_two(rest))
}

/// The largest |b| for [`ldexp_fast`]. Up to this limit, 2ᵇ is a normal number.
pub const LDEXP_LIMIT: f32 = 124.0;

/// Returns a·2ᵇ for |b| ≤ [`LDEXP_LIMIT`], bit-identical to [`ldexp`].
#[inline(always)]
pub fn ldexp_fast(a: f32, b: f32) -> f32 {
    let (nf, n) = nearest(b);
    a * f32::from_bits(exp2_reduced(b - nf).to_bits().wrapping_add((n as u32) << 23))
}

/// Returns eˣ − 1, accurate near 0.
///
/// Computes 2ⁿ(eʳ − 1) + (2ⁿ − 1) with both terms halved, so that 2ⁿ = 2¹²⁸ does not overflow.
#[inline(always)]
pub fn expm1(x: f32) -> f32 {
    let c = if x < -18.0 { -18.0 } else { x };
    let c = if c > 89.0 { 89.0 } else { c };
    let (_, n, r) = reduce(c);
    let p = expm1_reduced(r);
    let half_power = power_of_two(n.wrapping_sub(1));
    let y = 2.0 * p.mul_add(half_power, half_power - 0.5);
    // For n = 0 the result is p itself, which preserves subnormals. Zero preserves its sign.
    let y = if n == 0 { p } else { y };
    if x == 0.0 { x } else { y }
}

/// Returns the logistic function of x from e = e^−|x|, which cannot overflow: e/(1 + e) for x < 0, and 1/(1 + e)
/// otherwise.
#[inline(always)]
fn sigmoid_from_exp<S: F32Lanes>(x: S, e: S) -> S {
    let numerator = x.if_negative(e, S::splat(1.0));
    numerator / (S::splat(1.0) + e)
}

/// Returns the logistic function 1 / (1 + e⁻ˣ).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    sigmoid_from_exp(x, exp(-x.abs()))
}

/// Returns the logistic function for |x| ≤ [`EXP_LIMIT`], bit-identical to [`sigmoid`].
#[inline(always)]
pub fn sigmoid_fast<S: F32Lanes>(x: S) -> S {
    sigmoid_from_exp(x, exp_fast(x.copysign(S::splat(-1.0))))
}
