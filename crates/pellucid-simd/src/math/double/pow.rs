//! Powers, and division rounded down.

/// aᵇ, with every special case of IEEE 754-2019 §9.2.
#[inline]
pub fn pow(a: f64, b: f64) -> f64 {
    libm::pow(a, b)
}

/// a − b·⌊a / b⌋ from the exact remainder of truncated division, `m`: moved to the sign of b (CPython's
/// `float_rem`).
#[inline(always)]
pub fn floored(m: f64, b: f64) -> f64 {
    if m == 0.0 {
        m.copysign(b)
    } else if (m < 0.0) != (b < 0.0) {
        m + b
    } else {
        m
    }
}

/// ⌊a / b⌋ from that remainder: (a − m)/b is a whole number but for rounding.
#[inline(always)]
pub fn floor_quotient(a: f64, b: f64, m: f64) -> f64 {
    let quotient = a / b;
    if b == 0.0 {
        return quotient;
    }
    // An infinite or NaN operand `a` has no remainder, hence no quotient; an overflowing quotient stays infinite.
    if m.is_nan() || !quotient.is_finite() {
        return quotient + m;
    }
    let below = if m != 0.0 && (m < 0.0) != (b < 0.0) { 1.0 } else { 0.0 };
    let whole = ((a - m) / b).round_ties_even() - below;
    if whole == 0.0 { whole.copysign(quotient) } else { whole }
}

/// ⌊a / b⌋ of the exact quotient; a / b for b = 0, and NaN for an infinite a.
#[inline]
pub fn floor_div(a: f64, b: f64) -> f64 {
    floor_quotient(a, b, libm::fmod(a, b))
}

/// a − b·⌊a / b⌋, with the sign of b.
#[inline]
pub fn rem(a: f64, b: f64) -> f64 {
    floored(libm::fmod(a, b), b)
}
