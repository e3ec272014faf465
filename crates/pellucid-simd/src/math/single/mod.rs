//! The primitives in `f32`.
//!
//! Polynomials are minimax (Remez exchange) unless a source is named. Their arguments are reduced so far that the
//! approximation error is less than the rounding error. Functions that would lose bits in `f32` with any polynomial
//! (`pow`, the inverse hyperbolic functions, ...) are computed in `f64` and rounded once. On vectors this takes two to
//! three times as long as in `f32`, and reduces the error to half an ULP.

use super::F32Lanes;

mod bessel;
mod erf;
mod exp;
mod gamma;
mod hyperbolic;
mod inverse;
mod log;
mod order;
mod pow;
mod trig;

pub use bessel::{BesselI, BesselJ, BesselK, BesselY};
pub use erf::{NDTR_LIMIT, erf, erfc, erfcx, erfinv, ndtr, ndtr_fast, ndtri};
pub use exp::{EXP_LIMIT, LDEXP_LIMIT, exp, exp_fast, exp2, expm1, ldexp, ldexp_fast, sigmoid, sigmoid_fast};
pub use gamma::{
    Polygamma, digamma, digamma_fast, igamma, igamma_fast, igammac, igammac_fast, is_rare_gamma,
    is_rare_incomplete_gamma, is_rare_zeta, lgamma, lgamma_fast, zeta, zeta_fast,
};
pub use hyperbolic::{acosh, asinh, atanh, cosh, sinh, tanh};
pub use inverse::{acos, asin, atan, atan2};
pub use log::{ln, ln_1p, log2, log10};
pub use order::FunctionOfOrder;
pub use pow::{floor_div, floor_div_fast, is_rare_quotient, pow, rem, rem_fast};
pub use trig::{TRIG_LIMIT, cos, cos_fast, cos_pi, sin, sin_fast, sin_pi, tan, tan_fast};

/// The source text of the functions of this module, except for the gamma family and the Bessel functions, which shaders
/// compute as in `double`. GPU backends translate the text to their shader language, so that each function is written
/// only once.
pub const SOURCES: [&str; 8] = [
    include_str!("erf.rs"),
    include_str!("exp.rs"),
    include_str!("hyperbolic.rs"),
    include_str!("inverse.rs"),
    include_str!("log.rs"),
    include_str!("mod.rs"),
    include_str!("pow.rs"),
    include_str!("trig.rs"),
];

/// Evaluates c₀ + x·(c₁ + x·(c₂ + …)) by Horner's rule with fused multiply-adds.
#[inline(always)]
pub fn polynomial<S: F32Lanes, const N: usize>(x: S, c: [f32; N]) -> S {
    let mut y = S::splat(c[N - 1]);
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        y = y.mul_add(x, S::splat(c[i]));
    }
    y
}

/// Returns 2ⁿ as a float, for −126 ≤ n ≤ 127.
#[inline(always)]
pub fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

/// Returns 1/x if |x| and 1/|x| are powers of two in the range of normal numbers. Dividing by x then equals multiplying
/// by 1/x.
#[inline(always)]
pub fn exact_reciprocal(x: f32) -> Option<f32> {
    let (sign, magnitude) = (x.to_bits() & 1 << 31, x.to_bits() & !(1 << 31));
    let is_power_of_two = magnitude & 0x007f_ffff == 0 && (1..=253).contains(&(magnitude >> 23));
    is_power_of_two.then(|| f32::from_bits(sign | (0x7f00_0000 - magnitude)))
}

/// Returns the integer nearest to x for |x| < 2²², ties to even, as a float and as an integer.
///
/// Adding 1.5 · 2²³ moves the integer into the low bits of the sum.
#[inline(always)]
pub fn nearest(x: f32) -> (f32, i32) {
    const MAGIC: f32 = 12_582_912.0;
    let t = x + MAGIC;
    (t - MAGIC, (t.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32))
}
