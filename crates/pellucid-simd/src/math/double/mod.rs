//! The primitives in `f64`.
//!
//! The functions with the base e (`exp`, `expm1`, `ln`, `ln_1p`, `sigmoid`, `tanh`), sine and cosine up to
//! [`TRIG_LIMIT`], powers, arctan and the error functions are branch-free and vectorize. The other functions are
//! computed lane by lane, most of them by the `libm` crate, whose results are the same on every platform.

mod erf;
mod exp;
mod inverse;
mod log;
mod pow;
mod trig;

pub use erf::{erf, erfc, erfcx, erfinv, erfinv_short, ndtr, ndtri};
pub use exp::{
    EXP_LIMIT, LDEXP_LIMIT, exp, exp_fast, exp_short, expm1, ldexp, ldexp_fast, sigmoid, sigmoid_fast, tanh,
};
pub use inverse::{atan, atan2, atan2_short};
pub use libm::{acos, asin, asinh, atanh, cosh, exp2, log2, log10, sinh};
pub use log::{atanh_short, ln, ln_1p, ln_short};
pub use pow::{floor_div, floor_div_fast, is_rare_quotient, pow, rem, rem_fast};
pub use pow::{floor_of_quotient, floor_quotient, floored};
pub use trig::{TRIG_LIMIT, cos, cos_fast, cos_pi, sin, sin_fast, sin_pi, tan, tan_fast};
pub(in crate::math) use trig::{cos_reduced, sin_and_cos_fast, sin_reduced};

/// The source text of this module's functions, the gamma family and the Bessel functions. GPU backends translate the
/// functions that do not call `libm` to their shader language. All function names are distinct.
pub const SOURCES: [&str; 9] = [
    include_str!("erf.rs"),
    include_str!("exp.rs"),
    include_str!("inverse.rs"),
    include_str!("log.rs"),
    include_str!("mod.rs"),
    include_str!("pow.rs"),
    include_str!("trig.rs"),
    include_str!("../gamma.rs"),
    include_str!("../bessel.rs"),
];

/// Returns arcosh x, and NaN for x < 1. (`libm::acosh` does not return NaN below −2.)
#[inline]
pub fn acosh(x: f64) -> f64 {
    if x >= 1.0 { libm::acosh(x) } else { f64::NAN }
}

/// 1.5 · 2⁵². If a float x is added to this constant, the low bits of the sum are the integer nearest to x.
const MAGIC: f64 = 6_755_399_441_055_744.0;

/// Evaluates c₀ + x·(c₁ + x·(c₂ + …)) by Horner's rule with fused multiply-adds.
#[inline(always)]
pub fn polynomial<const N: usize>(x: f64, c: [f64; N]) -> f64 {
    let mut y = c[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        y = y.mul_add(x, c[i]);
    }
    y
}

/// Returns 2ⁿ as a float, for −1022 ≤ n ≤ 1023.
#[inline(always)]
pub(in crate::math) fn power_of_two(n: i64) -> f64 {
    f64::from_bits((n.wrapping_add(1023) << 52) as u64)
}

/// Returns 1/x if |x| and 1/|x| are powers of two in the range of normal numbers. Dividing by x then equals multiplying
/// by 1/x.
#[inline(always)]
pub fn exact_reciprocal(x: f64) -> Option<f64> {
    let (sign, magnitude) = (x.to_bits() & 1 << 63, x.to_bits() & !(1 << 63));
    let is_power_of_two = magnitude & 0x000f_ffff_ffff_ffff == 0 && (1..=2045).contains(&(magnitude >> 52));
    is_power_of_two.then(|| f64::from_bits(sign | (0x7fe0_0000_0000_0000 - magnitude)))
}

/// Returns the integer nearest to x for |x| < 2⁵¹, ties to even, as a float and as an integer.
#[inline(always)]
fn nearest(x: f64) -> (f64, i64) {
    let t = x + MAGIC;
    (t - MAGIC, (t.to_bits() as i64).wrapping_sub(MAGIC.to_bits() as i64))
}

/// Returns n as a float for |n| < 2⁵¹, without a conversion instruction, which AVX2 lacks.
#[inline(always)]
fn from_integer(n: i64) -> f64 {
    f64::from_bits(n.wrapping_add(MAGIC.to_bits() as i64) as u64) - MAGIC
}
