//! Remainders of ln(1 + u), of eᵛ and of Stirling's formula, which avoid cancellation.
//!
//! The density of a gamma or beta distribution is a quotient of large powers and gamma functions. Its logarithm is
//! computed from these remainders, which are small near the mode (Loader 2000).

use super::expr::Expr;

/// ½·ln 2π.
pub const HALF_LN_2PI: f64 = 0.918_938_533_204_672_7;

/// The argument from which on the asymptotic series have the precision of `f64`.
pub const SERIES_BEGIN: f64 = 10.0;

/// The Bernoulli numbers B₂, B₄, .., B₁₆.
const BERNOULLI: [f64; 8] =
    [1.0 / 6.0, -1.0 / 30.0, 1.0 / 42.0, -1.0 / 30.0, 5.0 / 66.0, -691.0 / 2730.0, 7.0 / 6.0, -3617.0 / 510.0];

/// Returns the polynomial Σ cₖ·zᵏ.
pub fn polynomial(z: Expr, coefficients: [f64; 8]) -> Expr {
    let (last, others) = (coefficients[7], &coefficients[..7]);
    others.iter().rev().fold(0.0 * z + last, |sum, &c| sum * z + c)
}

/// The coefficients B₂ⱼ/(2j·(2j − 1)) of x^(1−2j) in the series of the remainder of Stirling's formula.
pub fn remainder_coefficients() -> [f64; 8] {
    std::array::from_fn(|i| BERNOULLI[i] / (2.0 * i as f64 + 2.0) / (2.0 * i as f64 + 1.0))
}

/// Returns ln Γ(x) − (x − ½)·ln x + x − ½·ln 2π, the remainder of Stirling's formula, for x ≥ 10.
pub fn remainder(x: Expr) -> Expr {
    polynomial((x * x).recip(), remainder_coefficients()) / x
}

/// Returns the derivative of [`remainder`] for x ≥ 10, which is ψ(x) − ln x + 1/(2x).
pub fn remainder_slope(x: Expr) -> Expr {
    let z = (x * x).recip();
    let coefficients = remainder_coefficients();
    polynomial(z, std::array::from_fn(|i| -(2.0 * i as f64 + 1.0) * coefficients[i])) * z
}

/// Returns [`remainder`] for x > 0.
pub fn remainder_of_any(x: Expr) -> Expr {
    let (is_large, large, small) = split(x);
    is_large.select(remainder(large), small.lgamma() - (small - 0.5) * small.ln() + small - HALF_LN_2PI)
}

/// Returns ψ(x) − ln x for x > 0.
pub fn digamma_minus_log(x: Expr) -> Expr {
    let (is_large, large, small) = split(x);
    is_large.select(remainder_slope(large) - 0.5 * large.recip(), small.digamma() - small.ln())
}

/// Returns ψ(x + 1) − ln x for x > 0.
pub fn next_digamma_minus_log(x: Expr) -> Expr {
    let (is_large, large, small) = split(x);
    is_large.select(remainder_slope(large) + 0.5 * large.recip(), (small + 1.0).digamma() - small.ln())
}

/// Returns the mask x ≥ 10, then x with the elements below 10 replaced by 10, then x with the elements from 10 on
/// replaced by 1. Functions for either range are thus finite for all elements.
fn split(x: Expr) -> (Expr, Expr, Expr) {
    let is_large = x.ge(SERIES_BEGIN);
    (is_large, is_large.select(x, SERIES_BEGIN), is_large.select(1.0, x))
}

/// The bound of |u| below which ln(1 + u) is computed from u instead of 1 + u.
const MAX_SERIES_ARGUMENT: f64 = 0.25;

/// Returns ln(1 + u) − u for 1 + u = `ratio` > 0, without cancellation. It is computed from `ratio` if |u| ≥ 1/4, and
/// from `u` alone if u is nearer to 0.
pub fn log_ratio_minus(u: Expr, ratio: Expr) -> Expr {
    let is_near = u.abs().lt(MAX_SERIES_ARGUMENT);
    let (near_argument, distant) = (is_near.select(u, 0.0), is_near.select(1.0, ratio));
    // ln(1 + u) is 2·artanh(s) for s = u/(2 + u), and 2s − u is −u·s.
    let s = near_argument / (2.0 + near_argument);
    let z = s * s;
    let series = (1..=10).rev().fold(0.0 * z, |sum, k| (sum + 1.0 / f64::from(2 * k + 1)) * z);
    is_near.select(2.0 * s * series - near_argument * s, distant.ln() - u)
}

/// Returns ln(1 + u) for 1 + u = `ratio` > 0. It is computed from `ratio` if |u| ≥ 1/4, and from `u` if u is nearer to
/// 0.
pub fn log_ratio(u: Expr, ratio: Expr) -> Expr {
    let is_near = u.abs().lt(MAX_SERIES_ARGUMENT);
    is_near.select(is_near.select(u, 0.0).ln_1p(), is_near.select(1.0, ratio).ln())
}

/// Returns eᵛ − 1 − v without cancellation.
pub fn exp_m1_minus(v: Expr) -> Expr {
    let is_near = v.abs().lt(0.75);
    let near_argument = is_near.select(v, 0.0);
    let series = (3..=17).rev().fold(0.0 * near_argument, |sum, k| (sum + 1.0) * near_argument / f64::from(k));
    // eᵛ is infinite above 1e4; ∞ − ∞ would be NaN.
    is_near.select(0.5 * near_argument * near_argument * (series + 1.0), v.exp_m1() - v.min(1e4))
}
