//! Remainders of Stirling's formula, which avoid cancellation in log probabilities for large arguments (Loader 2000).
//!
//! ln Γ(x + 1) is x·ln x − x plus [`log_factorial_excess`], which is about ½·ln(2πx). In a log probability, the terms
//! x·ln x and the terms of the parameters combine to a [`deviance`]. Near the mode, both are small, whereas the
//! logarithms of gamma functions are large and cancel.

use pellucid_tensor::formula::Expr;

/// ½·ln 2π.
pub(crate) const HALF_LN_2PI: f64 = 0.918_938_533_204_672_7;

/// The Bernoulli numbers B₂, B₄, .., B₁₆.
const BERNOULLI: [f64; 8] =
    [1.0 / 6.0, -1.0 / 30.0, 1.0 / 42.0, -1.0 / 30.0, 5.0 / 66.0, -691.0 / 2730.0, 7.0 / 6.0, -3617.0 / 510.0];

/// The smallest argument for which the asymptotic series have the precision of `f64`.
pub(crate) const SERIES_BEGIN: f64 = 10.0;

/// Returns the polynomial Σ cₖ·zᵏ.
fn polynomial(z: Expr, coefficients: [f64; 8]) -> Expr {
    let (last, others) = (coefficients[7], &coefficients[..7]);
    others.iter().rev().fold(0.0 * z + last, |sum, &c| sum * z + c)
}

/// The coefficients B₂ⱼ/(2j·(2j − 1)) of x^(1−2j) in the series of the remainder of Stirling's formula.
fn remainder_coefficients() -> [f64; 8] {
    std::array::from_fn(|i| BERNOULLI[i] / (2.0 * i as f64 + 2.0) / (2.0 * i as f64 + 1.0))
}

/// Returns ln Γ(x) − (x − ½)·ln x + x − ½·ln 2π, the remainder of Stirling's formula, for x ≥ 10.
pub(crate) fn remainder(x: Expr) -> Expr {
    polynomial((x * x).recip(), remainder_coefficients()) / x
}

/// Returns the derivative of [`remainder`] for x ≥ 10, which is ψ(x) − ln x + 1/(2x).
pub(crate) fn remainder_slope(x: Expr) -> Expr {
    let z = (x * x).recip();
    let coefficients = remainder_coefficients();
    polynomial(z, std::array::from_fn(|i| -(2.0 * i as f64 + 1.0) * coefficients[i])) * z
}

/// Returns ln Γ(x + 1) − (x·ln x − x) for x ≥ 0: 0 at 0, and ½·ln(2πx) + O(1/x) for large x.
pub(crate) fn log_factorial_excess(x: Expr) -> Expr {
    let is_large = x.ge(SERIES_BEGIN);
    let large = is_large.select(x, SERIES_BEGIN);
    let small = is_large.select(1.0, x);
    let log = (is_large | x.eq(0.0)).select(1.0, x).ln();
    is_large.select(0.5 * large.ln() + HALF_LN_2PI + remainder(large), (small + 1.0).lgamma() - small * log + small)
}

/// Returns c(h) = ln Γ(h + ½) − ln Γ(h) − ½·ln h and its derivative for h > 0. c is about −1/(8h) for large h.
pub(crate) fn half_step(h: Expr) -> (Expr, Expr) {
    let is_large = h.ge(SERIES_BEGIN);
    let large = is_large.select(h, SERIES_BEGIN);
    let small = is_large.select(1.0, h);
    let scaled = remainder_coefficients();
    let coefficients: [f64; 8] = std::array::from_fn(|i| scaled[i] * (0.5f64.powi(2 * i as i32 + 1) - 2.0));
    let slopes = std::array::from_fn(|i| -(2.0 * i as f64 + 1.0) * coefficients[i]);
    let z = (large * large).recip();
    let value = is_large
        .select(polynomial(z, coefficients) / large, (small + 0.5).lgamma() - small.lgamma() - 0.5 * small.ln());
    let slope =
        is_large.select(polynomial(z, slopes) * z, (small + 0.5).digamma() - small.digamma() - 0.5 * small.recip());
    (value, slope)
}

/// Returns a mask that is true where x is close to m and [`deviance`] uses a series.
fn is_near(x: Expr, m: Expr) -> Expr {
    (x - m).abs().lt(0.1 * (x + m))
}

/// Returns x·ln(x/m) + m − x for x, m ≥ 0: half of the deviance of a count x with the mean m, which is about (x −
/// m)²/(2m) near m. It is m for x = 0, and ∞ for m = 0 and x > 0.
pub(crate) fn deviance(x: Expr, m: Expr) -> Expr {
    let skips = is_near(x, m) | x.eq(0.0);
    let (a, b) = (skips.select(1.0, x), skips.select(1.0, m));
    // ln(x/0) has an infinite derivative, and x/m has none at m = 0.
    let is_zero = b.eq(0.0);
    let log_ratio = is_zero.select(-is_zero.select(b, 1.0).ln(), (a / is_zero.select(1.0, b)).ln());
    deviance_with(x, m, log_ratio)
}

/// Computes [`deviance`] from a precomputed ln(x/m), which is used where x is neither 0 nor close to m.
pub(crate) fn deviance_with(x: Expr, m: Expr, log_ratio: Expr) -> Expr {
    let near = is_near(x, m);
    let (a, b) = (near.select(x, 1.0), near.select(m, 1.0));
    // x·ln(x/m) is 2x·artanh(v) for v = (x − m)/(x + m), and 2xv + m − x is (x − m)·v.
    let v = (a - b) / (a + b);
    let w = v * v;
    let series = (1..=9).rev().fold(0.0 * w, |sum, k| (sum + 1.0 / f64::from(2 * k + 1)) * w);
    let distant = x.eq(0.0).select(m, x * x.eq(0.0).select(0.0, log_ratio) + (m - x));
    near.select(v * ((a - b) + 2.0 * a * series), distant)
}
