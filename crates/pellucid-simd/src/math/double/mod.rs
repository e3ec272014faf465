//! The primitives on one `f64`.
//!
//! The exponential and logarithm families, sine, cosine, tanh and the error functions are branch-free
//! and vectorise; the rest calls the `libm` crate lane by lane, whose results are the same on every
//! platform.

mod erf;
mod exp;
mod log;
mod pow;
mod trig;

pub use erf::{erf, erfc, erfcx, erfinv, ndtri};
pub use exp::{EXP_LIMIT, exp, exp_fast, expm1, sigmoid, tanh};
pub use libm::{acos, asin, asinh, atan, atan2, atanh, cosh, exp2, log2, log10, sinh};
pub use log::{ln, ln_1p};
pub use pow::{floor_div, pow, rem};
pub use pow::{floor_quotient, floored};
pub use trig::{TRIG_LIMIT, cos, cos_fast, sin, sin_fast, tan, tan_fast};

/// arcosh x. `libm` gives numbers below −2 a value.
#[inline]
pub fn acosh(x: f64) -> f64 {
    if x >= 1.0 { libm::acosh(x) } else { f64::NAN }
}

/// 1.5 · 2⁵²: added to a float, it leaves the nearest integer in the low bits of the sum.
const MAGIC: f64 = 6_755_399_441_055_744.0;

/// c₀ + x·(c₁ + x·(c₂ + …)), by Horner's rule with fused steps.
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

/// 2ⁿ as a float, −1022 ≤ n ≤ 1023.
#[inline(always)]
fn power_of_two(n: i64) -> f64 {
    f64::from_bits((n.wrapping_add(1023) << 52) as u64)
}

/// The integer nearest to |x| < 2⁵¹, halves to even, as a float and as an integer.
#[inline(always)]
fn nearest(x: f64) -> (f64, i64) {
    let t = x + MAGIC;
    (t - MAGIC, (t.to_bits() as i64).wrapping_sub(MAGIC.to_bits() as i64))
}

/// |n| < 2⁵¹ as a float, without the conversion instruction that AVX2 lacks.
#[inline(always)]
fn from_integer(n: i64) -> f64 {
    f64::from_bits(n.wrapping_add(MAGIC.to_bits() as i64) as u64) - MAGIC
}
