//! Special functions that are neither in `std` nor in `libm`. They are computed by series and bisection, slowly and
//! independently of the kernels.

/// Returns y such that erf(y) = x, by bisection on erf, or on erfc where erf is flat.
pub fn erfinv(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 1.0 {
        return f64::NAN;
    }
    if x.abs() == 1.0 {
        return f64::INFINITY * x;
    }
    let (mut low, mut high) = (0.0f64, 6.0);
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        let below = if x.abs() < 0.5 { libm::erf(middle) < x.abs() } else { libm::erfc(middle) > 1.0 - x.abs() };
        if below { low = middle } else { high = middle }
    }
    (0.5 * (low + high)).copysign(x)
}

/// Computes ψ(x): ψ(x + 1) − 1/x up to a large argument, then the asymptotic series; the reflection formula below 0.
pub fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return -f64::INFINITY.copysign(x);
    }
    if x == f64::NEG_INFINITY || (x < 0.0 && x == x.floor()) {
        return f64::NAN;
    }
    if x < 0.0 {
        // π·cot(πx) has period 1.
        let t = std::f64::consts::PI * (x - x.round());
        return digamma(1.0 - x) - std::f64::consts::PI * t.cos() / t.sin();
    }
    // The smallest terms are added first, which keeps the sum of many terms exact.
    let steps = (30.0 - x).ceil().max(0.0) as usize;
    let shift: f64 = (0..steps).rev().map(|k| 1.0 / (x + k as f64)).sum();
    let x = x + steps as f64;
    let s = 1.0 / (x * x);
    x.ln() - 0.5 / x - s * (1.0 / 12.0 - s * (1.0 / 120.0 - s * (1.0 / 252.0 - s / 240.0))) - shift
}

/// Computes 1 / (1 + e⁻ˣ).
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Computes ln(1 + eˣ) without overflow.
pub fn softplus(x: f64) -> f64 {
    if x > 0.0 { x + (-x).exp().ln_1p() } else { x.exp().ln_1p() }
}

/// Computes ⌊a / b⌋. For infinite b it is 0 or −1; for infinite a it is NaN unless b is 0.
pub fn floor_of_quotient(a: f64, b: f64) -> f64 {
    match (a.is_infinite(), b.is_infinite()) {
        (true, _) if b != 0.0 => f64::NAN,
        (false, true) if a * b < 0.0 => -1.0,
        _ => (a / b).floor(),
    }
}

/// Computes ⌊a / b⌋ of integers, or 0 where b is 0.
pub fn floor_div(a: i64, b: i64) -> i64 {
    if b == 0 { 0 } else { (a as f64 / b as f64).floor() as i64 }
}

/// Computes the remainder of [`floor_div`].
pub fn floor_rem(a: i64, b: i64) -> i64 {
    if b == 0 { 0 } else { a - b * floor_div(a, b) }
}

/// Computes aᵇ of integers by repeated multiplication; 0 for negative b, unless |a| is 1.
pub fn integer_pow(a: i64, b: i64) -> i64 {
    match (a, b) {
        (1, _) => 1,
        (-1, b) => {
            if b % 2 == 0 {
                1
            } else {
                -1
            }
        }
        (_, b) if b < 0 => 0,
        (a, b) => (0..b).fold(1i64, |p, _| p.wrapping_mul(a)),
    }
}

/// Computes the mean over the circle of a function of the angle.
pub fn mean_over_circle(f: impl Fn(f64) -> f64) -> f64 {
    let points = 64;
    (0..points).map(|k| f(2.0 * std::f64::consts::PI * k as f64 / points as f64)).sum::<f64>() / points as f64
}

/// Computes ∫ f over t > 0 by the trapezoidal rule, for an even f that decays faster than exponentially.
pub fn tail_integral(f: impl Fn(f64) -> f64) -> f64 {
    let step = 1.0 / 32.0;
    step * (0.5 * f(0.0) + (1..320).rev().map(|k| f(step * k as f64)).sum::<f64>())
}

/// Computes Ai(x) = 1/π·∫ e^(−s³/3 − xs/2)·cos(½√3·xs + π/6) ds over s > 0, with s = exp(u − e⁻ᵘ), by the trapezoidal
/// rule.
pub fn airy(x: f64) -> f64 {
    use std::f64::consts::PI;
    let step = 1.0 / 64.0;
    let term = |k: i32| {
        let u = step * f64::from(k);
        let s = (u - (-u).exp()).exp();
        let (fall, phase) = ((-s * s * s / 3.0 - 0.5 * x * s).exp(), 0.75f64.sqrt() * x * s + PI / 6.0);
        fall * phase.cos() * s * (1.0 + (-u).exp())
    };
    step / PI * (-270..130).map(term).sum::<f64>()
}

/// Returns the terms (−1)ᵏ·(x/2)²ᵏ⁺ⁿ/(k!·(k + n)!) of a Bessel function of the first kind.
fn terms(n: i32, x: f64) -> Vec<f64> {
    let first = (1..=n).fold(1.0, |t, k| t * 0.5 * x / k as f64);
    let next = |t: &f64, k: i32| -t * 0.25 * x * x / (k as f64 * (k + n) as f64);
    (1..40).fold(vec![first], |mut all, k| {
        all.push(next(&all[all.len() - 1], k));
        all
    })
}

/// Computes J_n(x) by its series (Abramowitz & Stegun 9.1.10), for small x.
pub fn series_j(n: i32, x: f64) -> f64 {
    terms(n, x).iter().rev().sum()
}

/// Computes Y_n(x) of order 0 or 1 by its series (Abramowitz & Stegun 9.1.11), for small x.
pub fn series_y(n: i32, x: f64) -> f64 {
    if x <= 0.0 {
        return if x == 0.0 { f64::NEG_INFINITY } else { f64::NAN };
    }
    let weighed = terms(n, x)
        .into_iter()
        .enumerate()
        .map(|(k, t)| t * (digamma(k as f64 + 1.0) + digamma((k as i32 + n) as f64 + 1.0)));
    let logarithm = 2.0 * (0.5 * x).ln() * series_j(n, x);
    let pole = if n == 1 { 2.0 / x } else { 0.0 };
    (logarithm - pole - weighed.sum::<f64>()) / std::f64::consts::PI
}

/// Computes ζ(s, q) for q > 0: a thousand terms, and the integral of the other terms.
pub fn hurwitz(s: f64, q: f64) -> f64 {
    let end = q + 1000.0;
    let rest = end.powf(1.0 - s) / (s - 1.0) + 0.5 * end.powf(-s) + s * end.powf(-s - 1.0) / 12.0;
    rest + (0..1000).rev().map(|k| (q + k as f64).powf(-s)).sum::<f64>()
}

/// Computes P(a, x) by its power series (Abramowitz & Stegun 6.5.29).
pub fn gamma_share(a: f64, x: f64) -> f64 {
    let (mut term, mut sum) = (1.0, 0.0);
    for k in 1..200 {
        sum += term;
        term *= x / (a + f64::from(k));
    }
    (a * x.ln() - x - libm::lgamma(a + 1.0)).exp() * sum
}

/// Computes I_x(a, b) by its power series (Abramowitz & Stegun 26.5.4).
pub fn beta_share(a: f64, b: f64, x: f64) -> f64 {
    let (mut term, mut sum) = (1.0, 0.0);
    for k in 0..600 {
        sum += term;
        term *= x * (a + b + f64::from(k)) / (a + 1.0 + f64::from(k));
    }
    let log_beta = libm::lgamma(a) + libm::lgamma(b) - libm::lgamma(a + b);
    (a * x.ln() + b * (-x).ln_1p() - log_beta).exp() / a * sum
}
