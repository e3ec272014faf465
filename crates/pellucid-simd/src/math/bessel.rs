//! Bessel functions of integer order in `f64`; the `f32` methods round their results. The code is scalar: one call per
//! lane.

use super::double::{exp, expm1};
use std::f64::consts::PI;

/// The highest order of a modified Bessel function. Derivatives need orders slightly above the common ones.
const MAX_ORDER: f64 = 30.0;

/// Returns J_n(x) for an integer n with |n| ≤ 10⁴; otherwise NaN.
pub fn bessel_j(n: f64, x: f64) -> f64 {
    if n == n.floor() && n.abs() <= 1e4 { libm::jn(n as i32, x) } else { f64::NAN }
}

/// Returns Y_n(x) for an integer n with |n| ≤ 10⁴, otherwise NaN; −∞ at x = 0, NaN for x < 0.
pub fn bessel_y(n: f64, x: f64) -> f64 {
    if n == n.floor() && n.abs() <= 1e4 { libm::yn(n as i32, x) } else { f64::NAN }
}

/// Returns I_n(x) for an integer n with |n| ≤ 30. For any other n and finite x the result is NaN.
pub fn bessel_i(n: f64, x: f64) -> f64 {
    if x.is_infinite() {
        return with_parity(n, x, f64::INFINITY);
    }
    // e^|x| is applied as two factors, so that only the final product can overflow.
    let half = exp(0.5 * x.abs());
    bessel_ie(n, x) * half * half
}

/// Returns e^(−|x|)·I_n(x) for an integer n with |n| ≤ 30; otherwise NaN.
///
/// The power series (Abramowitz & Stegun 9.6.10) has terms of one sign. The asymptotic series (9.7.1) is used where |x|
/// is large compared with n².
pub fn bessel_ie(n: f64, x: f64) -> f64 {
    let (a, order) = (x.abs(), n.abs());
    if !is_supported_order(order) || x.is_nan() {
        return f64::NAN;
    }
    if a == f64::INFINITY {
        return 0.0;
    }
    let y = if a < 20.0 + 0.5 * order * order { power_series(order, a) } else { asymptotic_series(order, a) };
    with_parity(n, x, y)
}

/// Returns true if the modified Bessel functions support this order.
fn is_supported_order(order: f64) -> bool {
    order <= MAX_ORDER && order == order.floor()
}

/// Returns −y if x < 0 and the order n is odd, otherwise y: I_n has the parity of n.
fn with_parity(n: f64, x: f64, y: f64) -> f64 {
    if x < 0.0 && n * 0.5 != (n * 0.5).floor() { -y } else { y }
}

/// Computes e^(−a)·I_n(a) by the power series.
fn power_series(order: f64, a: f64) -> f64 {
    let q = 0.25 * a * a;
    let (mut term, mut k) = (1.0, 1.0);
    while k <= order {
        term *= 0.5 * a / k;
        k += 1.0;
    }
    let mut sum = term;
    k = 1.0;
    while term > 1e-18 * sum {
        term *= q / (k * (k + order));
        sum += term;
        k += 1.0;
    }
    // The sum is at most e^a, and a is below 470 here, so the sum does not overflow.
    sum * exp(-a)
}

/// Computes e^(−a)·I_n(a) by the asymptotic series.
fn asymptotic_series(order: f64, a: f64) -> f64 {
    let (mut term, mut sum, mut k) = (1f64, 1.0, 1.0);
    while term.abs() > 1e-17 && k < 60.0 {
        let odd = 2.0 * k - 1.0;
        term *= -(4.0 * order * order - odd * odd) / (8.0 * k * a);
        sum += term;
        k += 1.0;
    }
    sum / (2.0 * PI * a).sqrt()
}

/// Returns K_n(x) for an integer n with |n| ≤ 30, otherwise NaN; ∞ at x = 0, NaN for x < 0.
pub fn bessel_k(n: f64, x: f64) -> f64 {
    bessel_ke(n, x) * exp(-x)
}

/// Returns eˣ·K_n(x) for an integer n with |n| ≤ 30, otherwise NaN; ∞ at x = 0, NaN for x < 0.
///
/// Integrates e^(−2x·sinh²(t/2))·cosh nt over t > 0 (Abramowitz & Stegun 9.6.24) by the trapezoidal rule with step h.
/// Its error decreases as e^(−π²/h), or as e^(−2π²/h²x) for large x.
pub fn bessel_ke(n: f64, x: f64) -> f64 {
    let order = n.abs();
    if !is_supported_order(order) || x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 || x == f64::INFINITY {
        return if x == 0.0 { f64::INFINITY } else { 0.0 };
    }
    let step = 0.65 / x.sqrt();
    let h = if step < 0.2 { step } else { 0.2 };
    let (mut sum, mut k) = (0.5, 1.0);
    loop {
        let t = k * h;
        // 2·sinh²(t/2) = cosh t − 1, without the cancellation of the difference.
        let e = expm1(0.5 * t);
        let s = 0.5 * (e + e / (e + 1.0));
        let decay = 2.0 * x * s * s;
        if decay > 45.0 + order * t {
            return sum * h;
        }
        sum += 0.5 * (exp(order * t - decay) + exp(-order * t - decay));
        k += 1.0;
    }
}
