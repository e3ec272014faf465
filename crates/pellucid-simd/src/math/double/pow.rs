//! Powers, and division that rounds down.

use super::exp::scale;
use super::nearest;
use std::f64::consts::LN_2;

/// Returns x without the lower 32 bits of its significand, so that products of two such numbers are exact.
#[inline(always)]
fn upper(x: f64) -> f64 {
    f64::from_bits(x.to_bits() & 0xffff_ffff_0000_0000)
}

/// Returns log₂ a as the sum of two floats, for positive finite a. The lower 32 bits of the first float are zero
/// (fdlibm, Sun Microsystems 1993).
///
/// a = 2ⁿ·m with √¾ ≤ m < √3, and log₂ m = log₂ c + 2/ln 2·artanh s, where s = (m − c)/(m + c) and c = 1 or 3/2.
#[inline(always)]
fn log2_in_parts(a: f64) -> (f64, f64) {
    // 2/(3·ln 2), rounded and as the sum of two floats; log₂ 1.5 as the sum of two floats.
    const CP: f64 = 9.617_966_939_259_755_543_29e-1;
    const CP_HIGH: f64 = 9.617_967_009_544_372_558_59e-1;
    const CP_LOW: f64 = -7.028_461_650_952_758_265_16e-9;
    const LOG_HIGH: f64 = 5.849_624_872_207_641_601_56e-1;
    const LOG_LOW: f64 = 1.350_039_202_129_748_971_28e-8;
    let subnormal = a < f64::MIN_POSITIVE;
    let scaled = a * 9_007_199_254_740_992.0;
    let bits = if subnormal { scaled } else { a }.to_bits() as i64;
    let fraction = bits & 0x000f_ffff_ffff_ffff;
    // The thresholds are the fraction bits of √1.5 and √3.
    let is_low = fraction < 0x0003_988f_0000_0000;
    let is_high = fraction > 0x000b_b679_ffff_ffff;
    let is_middle = !is_low && !is_high;
    let exponent = (bits >> 52) - if subnormal { 1076 } else { 1023 };
    let n = super::from_integer(exponent + if is_high { 1 } else { 0 });
    let m_bits = fraction + if is_high { 0x3fe0_0000_0000_0000 } else { 0x3ff0_0000_0000_0000 };
    let m = f64::from_bits(m_bits as u64);
    let c = if is_middle { 1.5 } else { 1.0 };
    let u = m - c;
    let v = 1.0 / (m + c);
    let s = u * v;
    let s_high = upper(s);
    let t_high = upper(m + c);
    let t_low = m - (t_high - c);
    let s_low = v * ((u - s_high * t_high) - s_high * t_low);
    // 3·(artanh s)/s = 3 + s² + r.
    let z = s * s;
    let r = z
        * z
        * (5.999_999_999_999_946_487_25e-1
            + z * (4.285_714_285_785_501_842_52e-1
                + z * (3.333_333_298_183_774_329_18e-1
                    + z * (2.727_281_238_085_340_064_89e-1
                        + z * (2.306_607_457_755_617_540_67e-1 + z * 2.069_750_178_003_384_177_84e-1)))));
    let r = r + s_low * (s_high + s);
    let z = s_high * s_high;
    let t_high = upper(3.0 + z + r);
    let t_low = r - ((t_high - 3.0) - z);
    let u = s_high * t_high;
    let v = s_low * t_high + t_low * s;
    let p_high = upper(u + v);
    let p_low = v - (p_high - u);
    let log_high = if is_middle { LOG_HIGH } else { 0.0 };
    let z_high = CP_HIGH * p_high;
    let z_low = CP_LOW * p_high + p_low * CP + if is_middle { LOG_LOW } else { 0.0 };
    let high = upper(((z_high + z_low) + log_high) + n);
    (high, z_low - (((high - n) - log_high) - z_high))
}

/// Returns aᵇ = 2^(b·log₂ a) for positive finite a and finite b (fdlibm, Sun Microsystems 1993).
#[inline(always)]
fn positive_power(a: f64, b: f64) -> f64 {
    const LN_2_HIGH: f64 = 6.931_471_824_645_996_093_75e-1;
    const LN_2_LOW: f64 = -1.904_654_299_957_768_045_25e-9;
    let (log_high, log_low) = log2_in_parts(a);
    let b_high = upper(b);
    let p_low = (b - b_high) * log_high + b * log_low;
    let p_high = b_high * log_high;
    let p = p_low + p_high;
    // Outside these limits the result is 0 or ∞.
    let clamped = if p < -1100.0 { -1100.0 } else { p };
    let clamped = if clamped > 1100.0 { 1100.0 } else { clamped };
    let (nf, n) = nearest(clamped);
    let p_high = p_high - nf;
    let t = upper(p_low + p_high);
    let u = t * LN_2_HIGH;
    let v = (p_low - (t - p_high)) * LN_2 + t * LN_2_LOW;
    let z = u + v;
    let w = v - (z - u);
    let t = z * z;
    let q = z - t
        * (1.666_666_666_666_660_190_37e-1
            + t * (-2.777_777_777_701_559_338_42e-3
                + t * (6.613_756_321_437_934_361_17e-5
                    + t * (-1.653_390_220_546_525_153_90e-6 + t * 4.138_136_797_057_238_460_39e-8))));
    let r = (z * q) / (q - 2.0) - (w + z * w);
    let y = scale(1.0 - (r - z), n);
    let y = if p > 1100.0 { f64::INFINITY } else { y };
    if p < -1100.0 { 0.0 } else { y }
}

/// Returns aᵇ, with every special case of IEEE 754-2019 §9.2.
#[inline(always)]
pub fn pow(a: f64, b: f64) -> f64 {
    let magnitude = a.abs();
    let y = positive_power(magnitude, b);
    // If a is zero, or a or b is infinite, the power is zero or infinite, except in the cases below.
    let is_extreme = magnitude == 0.0 || magnitude == f64::INFINITY || b.abs() == f64::INFINITY;
    let grows = magnitude > 1.0 && b > 0.0 || magnitude < 1.0 && b < 0.0;
    let extreme = if grows { f64::INFINITY } else { 0.0 };
    let y = if is_extreme { extreme } else { y };
    // Every float above 2⁵³ is an even integer.
    let is_integer = b.trunc() == b;
    let half_b = b * 0.5;
    let is_odd = is_integer && half_b.trunc() != half_b;
    let y = if a.is_sign_negative() && is_odd { -y } else { y };
    let y = if a < 0.0 && magnitude < f64::INFINITY && !is_integer { f64::NAN } else { y };
    let y = if a.is_nan() || b.is_nan() { f64::NAN } else { y };
    // (±1)^±∞ = 1, 1^NaN = 1 and a⁰ = 1.
    let is_one = a == 1.0 || b == 0.0 || (a == -1.0 && b.abs() == f64::INFINITY);
    if is_one { 1.0 } else { y }
}

/// Returns a − b·⌊a / b⌋, given the exact remainder `m` of the truncated division of a by b.
///
/// Adds b to m if their signs differ, as CPython's `float_rem` does.
#[inline(always)]
pub fn floored(m: f64, b: f64) -> f64 {
    if m == 0.0 {
        m.copysign(b)
    } else if (m < 0.0) != (b < 0.0) {
        m + b
    } else {
        m
    }
}

/// Returns ⌊a / b⌋, given the exact remainder `m` of the truncated division of a by b.
///
/// (a − m)/b is an integer, up to rounding.
#[inline(always)]
pub fn floor_quotient(a: f64, b: f64, m: f64) -> f64 {
    let quotient = a / b;
    if b == 0.0 {
        return quotient;
    }
    // If a is infinite or an operand is NaN, m is NaN and so is the result. An overflowing quotient stays infinite.
    if m.is_nan() || !quotient.is_finite() {
        return quotient + m;
    }
    floor_of_quotient(a, b, m)
}

/// Returns ⌊a / b⌋ for a finite quotient, given the exact remainder `m` of the truncated division of a by b.
#[inline(always)]
pub fn floor_of_quotient(a: f64, b: f64, m: f64) -> f64 {
    let correction = if m != 0.0 && (m < 0.0) != (b < 0.0) { 1.0 } else { 0.0 };
    let floor = ((a - m) / b).round_ties_even() - correction;
    if floor == 0.0 { floor.copysign(a / b) } else { floor }
}

/// Returns true if a / b is too large for the fast divisions, or b is 0 or infinite, or an operand is NaN.
#[inline(always)]
pub fn is_rare_quotient(a: f64, b: f64) -> bool {
    !(a.abs() < b.abs() * QUOTIENT_LIMIT && b.abs() < f64::INFINITY)
}

/// 2⁵². For smaller quotients, the rounding error is less than 1.
const QUOTIENT_LIMIT: f64 = 4_503_599_627_370_496.0;

/// Returns the remainder of truncated division, unless the quotient [is rare](is_rare_quotient).
///
/// The magnitude of the rounded and truncated quotient may be too large by 1. The remainder then has the wrong sign,
/// and is corrected. The fused multiply-add is exact.
#[inline(always)]
fn truncated_remainder(a: f64, b: f64) -> f64 {
    let m = (-(a / b).trunc()).mul_add(b, a);
    let is_wrong = m != 0.0 && (m < 0.0) != (a < 0.0);
    if is_wrong { m + b.abs().copysign(a) } else { m }
}

/// Returns ⌊a / b⌋ of the exact quotient, unless it [is rare](is_rare_quotient).
#[inline(always)]
pub fn floor_div_fast(a: f64, b: f64) -> f64 {
    floor_of_quotient(a, b, truncated_remainder(a, b))
}

/// Returns a − b·⌊a / b⌋, which has the sign of b, unless the quotient [is rare](is_rare_quotient).
#[inline(always)]
pub fn rem_fast(a: f64, b: f64) -> f64 {
    floored(truncated_remainder(a, b), b)
}

/// Returns ⌊a / b⌋ of the exact quotient; a / b for b = 0, and NaN for an infinite a.
#[inline]
pub fn floor_div(a: f64, b: f64) -> f64 {
    floor_quotient(a, b, libm::fmod(a, b))
}

/// Returns a − b·⌊a / b⌋, which has the sign of b.
#[inline]
pub fn rem(a: f64, b: f64) -> f64 {
    floored(libm::fmod(a, b), b)
}
