//! Remainders of Stirling's formula, which avoid cancellation in log probabilities for large arguments (Loader 2000).
//!
//! ln Γ(x + 1) is x·ln x − x plus [`log_factorial_excess`], which is about ½·ln(2πx). In a log probability, the terms
//! x·ln x and the terms of the parameters combine to a [`deviance`]. Near the mode, both are small, whereas the
//! logarithms of gamma functions are large and cancel.

use pellucid_tensor::formula::Expr;
pub(crate) use pellucid_tensor::formula::remainders::{HALF_LN_2PI, SERIES_BEGIN, remainder, remainder_slope};
pub(crate) use pellucid_tensor::formula::remainders::{
    digamma_minus_log, log_ratio_minus, polynomial, remainder_coefficients, remainder_of_any,
};

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

/// Returns ln Γ(z + h) − ln Γ(z) for z > 0 and h ≥ 0.
pub(crate) fn log_gamma_step(z: Expr, h: Expr) -> Expr {
    let is_large = z.ge(SERIES_BEGIN);
    let (large, small) = (is_large.select(z, SERIES_BEGIN), is_large.select(1.0, z));
    let (step, sum) = (h, large + h);
    let series = (large - 0.5) * (step / large).ln_1p() + step * sum.ln() - step + remainder(sum) - remainder(large);
    is_large.select(series, (small + h).lgamma() - small.lgamma())
}

/// Returns ln Γ(z) − 2·ln Γ(z + h) + ln Γ(z + 2h) for z > 0 and h > 0, without cancellation for small h.
pub(crate) fn log_gamma_second_difference(z: Expr, h: Expr) -> Expr {
    let is_near = h.lt(0.25 * z);
    let step = is_near.select(h, 0.25 * z);
    // Twice the Taylor terms of even order around z + h.
    let mut factor = step * step;
    let mut series = 0.0 * z;
    for k in 1..=11 {
        series = series + factor * (z + step).polygamma(2 * k - 1);
        factor = factor * step * step / f64::from((2 * k + 1) * (2 * k + 2));
    }
    let distant = is_near.select(z, h);
    is_near.select(series, log_gamma_step(z, 2.0 * distant) - 2.0 * log_gamma_step(z, distant))
}

/// Returns ln B(a, b).
pub(crate) fn log_beta(a: Expr, b: Expr) -> Expr {
    let (small, large) = (a.lt(b).select(a, b), a.lt(b).select(b, a));
    small.lgamma() - log_gamma_step(large, small)
}

/// Returns f(q) − f(p) − (q − p)·f′(p) for the remainder f of Stirling's formula and p, q ≥ 10. `change` is q − p.
fn remainder_divergence(p: Expr, q: Expr, change: Expr) -> Expr {
    // For f(x) = x⁻ᵏ and v = (q − p)/p, the value is v²·gₖ with g₀ = 0 and gₖ₊₁ = (gₖ + (k + 1)·p⁻ᵏ)/q. The terms are
    // positive, so they do not cancel.
    let (v, inverse) = (change / p, p.recip());
    let (mut term, mut power, mut sum) = (0.0 * p, 0.0 * p + 1.0, 0.0 * p);
    for (k, coefficient) in remainder_coefficients().into_iter().enumerate().map(|(j, c)| (2.0 * j as f64, c)) {
        // Only g₂ⱼ₊₁ enters the sum; g₂ⱼ₊₂ is an intermediate step.
        term = (term + (k + 1.0) * power) / q;
        sum = sum + coefficient * term;
        power = power * inverse;
        term = (term + (k + 2.0) * power) / q;
        power = power * inverse;
    }
    sum * v * v
}

/// Returns ln Γ(c) − ln Γ(a) − (c − a)·ψ(a), the divergence of gamma distributions of the shapes a and c, minus its
/// leading term c·ln(c/a) − c + a, which [`deviance`] computes. `change` is c − a without cancellation.
pub(crate) fn shape_divergence_rest(a: Expr, c: Expr, change: Expr) -> Expr {
    let is_large = a.ge(SERIES_BEGIN) & c.ge(SERIES_BEGIN);
    let is_small = a.max(c).lt(2.0 * SERIES_BEGIN);
    let uses_series = is_large | is_small;
    let of_series = |x: Expr| uses_series.select(x, 1.0) + is_large.select(0.0, SERIES_BEGIN);
    let (p, q, step) = (of_series(a), of_series(c), uses_series.select(change, 0.0));
    let series = remainder_divergence(p, q, step) - 0.5 * log_ratio_minus(step / p, q / p);
    // By ln Γ(x) = ln Γ(x + 10) − Σ ln(x + i), the divergence is a sum of positive terms for small shapes.
    let (p, q) = (is_small.select(a, 1.0), is_small.select(c, 1.0));
    let step = is_small.select(change, 0.0);
    let near = |p: Expr, q: Expr| -q * log_ratio_minus(-step / q, p / q);
    let shifted = (0..SERIES_BEGIN as usize).fold(near(p + SERIES_BEGIN, q + SERIES_BEGIN) - near(p, q), |sum, i| {
        let at = p + i as f64;
        sum - log_ratio_minus(step / at, (q + i as f64) / at)
    });
    let (p, q) = (uses_series.select(1.0, a), uses_series.select(1.0, c));
    let distant = remainder_of_any(q) - remainder_of_any(p) - 0.5 * (q / p).ln() - (q - p) * digamma_minus_log(p);
    is_large.select(series, is_small.select(series + shifted, distant))
}
