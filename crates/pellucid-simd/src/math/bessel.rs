//! Bessel functions of whole orders in `f64`; `f32` rounds their results. Scalar code: these run lane by lane.

use super::double::{exp, sinh};
use std::f64::consts::PI;

/// The highest order of a modified function: derivatives ask for orders a little beyond the first ones.
const MAX_ORDER: f64 = 30.0;

/// J_n(x), of any whole order.
pub fn bessel_j(n: f64, x: f64) -> f64 {
    if n == n.floor() && n.abs() <= 1e4 { libm::jn(n as i32, x) } else { f64::NAN }
}

/// Y_n(x), of any whole order; −∞ at 0, NaN below.
pub fn bessel_y(n: f64, x: f64) -> f64 {
    if n == n.floor() && n.abs() <= 1e4 { libm::yn(n as i32, x) } else { f64::NAN }
}

/// I_n(x), |n| ≤ 30.
pub fn bessel_i(n: f64, x: f64) -> f64 {
    if x.is_infinite() {
        return odd_sign(n, x, f64::INFINITY);
    }
    // e^|x| in two factors, so that only the product overflows.
    let half = exp(0.5 * x.abs());
    bessel_ie(n, x) * half * half
}

/// e^(−|x|)·I_n(x), |n| ≤ 30: the power series (Abramowitz & Stegun 9.6.10), whose terms all have one sign, or, where |x| is
/// large beside n², the asymptotic one (9.7.1).
pub fn bessel_ie(n: f64, x: f64) -> f64 {
    let (a, order) = (x.abs(), n.abs());
    if !is_order(order) || x.is_nan() {
        return f64::NAN;
    }
    if a == f64::INFINITY {
        return 0.0;
    }
    let y = if a < 20.0 + 0.5 * order * order { small_argument(order, a) } else { large_argument(order, a) };
    odd_sign(n, x, y)
}

fn is_order(order: f64) -> bool {
    order <= MAX_ORDER && order == order.floor()
}

/// An odd order changes its sign with x.
fn odd_sign(n: f64, x: f64, y: f64) -> f64 {
    if x < 0.0 && n * 0.5 != (n * 0.5).floor() { -y } else { y }
}

fn small_argument(order: f64, a: f64) -> f64 {
    let q = 0.25 * a * a;
    let mut term = (1..=order as u32).fold(1.0, |t, k| t * (0.5 * a / k as f64));
    let (mut sum, mut k) = (term, 1.0);
    while term > 1e-18 * sum {
        term *= q / (k * (k + order));
        sum += term;
        k += 1.0;
    }
    // The sum may be e^a with a up to 470.
    sum * exp(-a)
}

fn large_argument(order: f64, a: f64) -> f64 {
    let (mut term, mut sum, mut k) = (1f64, 1.0, 1.0);
    while term.abs() > 1e-17 && k < 60.0 {
        let odd = 2.0 * k - 1.0;
        term *= -(4.0 * order * order - odd * odd) / (8.0 * k * a);
        sum += term;
        k += 1.0;
    }
    sum / (2.0 * PI * a).sqrt()
}

/// K_n(x), |n| ≤ 30; ∞ at 0, NaN below.
pub fn bessel_k(n: f64, x: f64) -> f64 {
    bessel_ke(n, x) * exp(-x)
}

/// eˣ·K_n(x), |n| ≤ 30: the integral of e^(−2x·sinh²(t/2))·cosh nt over t > 0 (Abramowitz & Stegun 9.6.24) by the trapezoidal
/// rule, whose error falls as e^(−π²/h), or e^(−2π²/h²x) where x is large.
pub fn bessel_ke(n: f64, x: f64) -> f64 {
    let order = n.abs();
    if !is_order(order) || x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 || x == f64::INFINITY {
        return if x == 0.0 { f64::INFINITY } else { 0.0 };
    }
    let wide = 0.65 / x.sqrt();
    let h = if wide < 0.2 { wide } else { 0.2 };
    let (mut sum, mut k) = (0.5, 1.0);
    loop {
        let t = k * h;
        // 2·sinh²(t/2) = cosh t − 1, without its cancellation.
        let s = sinh(0.5 * t);
        let fall = 2.0 * x * s * s;
        if fall > 45.0 + order * t {
            return sum * h;
        }
        sum += 0.5 * (exp(order * t - fall) + exp(-order * t - fall));
        k += 1.0;
    }
}
