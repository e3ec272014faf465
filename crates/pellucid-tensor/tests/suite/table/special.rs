//! Functions of one number that neither `std` nor `libm` has, from series and bisection: slow, and
//! independent of the kernels.

/// The y with erf(y) = x, by bisection on erf, or on erfc where erf is flat.
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

/// ψ(x) = ψ(x + 1) − 1/x up to a large argument, then the asymptotic series; reflected below 0.
pub fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return -f64::INFINITY.copysign(x);
    }
    if x == f64::NEG_INFINITY || (x < 0.0 && x == x.floor()) {
        return f64::NAN;
    }
    if x < 0.0 {
        // π·cot(πx), whose period is 1.
        let t = std::f64::consts::PI * (x - x.round());
        return digamma(1.0 - x) - std::f64::consts::PI * t.cos() / t.sin();
    }
    // The smallest terms first, so that the sum of many is as exact as one.
    let steps = (30.0 - x).ceil().max(0.0) as usize;
    let shift: f64 = (0..steps).rev().map(|k| 1.0 / (x + k as f64)).sum();
    let x = x + steps as f64;
    let s = 1.0 / (x * x);
    x.ln() - 0.5 / x - s * (1.0 / 12.0 - s * (1.0 / 120.0 - s * (1.0 / 252.0 - s / 240.0))) - shift
}

/// 1 / (1 + e⁻ˣ)
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// ln(1 + eˣ), without overflow.
pub fn softplus(x: f64) -> f64 {
    if x > 0.0 { x + (-x).exp().ln_1p() } else { x.exp().ln_1p() }
}

/// ⌊a / b⌋, where a finite number has an infinite one in it not at all, or −1 times.
pub fn floor_of_quotient(a: f64, b: f64) -> f64 {
    if a.is_finite() && b.is_infinite() && a * b < 0.0 { -1.0 } else { (a / b).floor() }
}

/// ⌊a / b⌋ of integers; 0 where b is 0.
pub fn floor_div(a: i64, b: i64) -> i64 {
    if b == 0 { 0 } else { (a as f64 / b as f64).floor() as i64 }
}

/// The remainder of [`floor_div`].
pub fn floor_rem(a: i64, b: i64) -> i64 {
    if b == 0 { 0 } else { a - b * floor_div(a, b) }
}

/// aᵇ of integers by repeated multiplication; 0 for a negative power, unless |a| is 1.
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
