//! Powers, and division that rounds down.

/// Returns aᵇ, with every special case of IEEE 754-2019 §9.2.
#[inline]
pub fn pow(a: f64, b: f64) -> f64 {
    libm::pow(a, b)
}

/// Returns a − b·⌊a / b⌋, given the exact remainder `m` of the truncated division of a by b.
///
/// Adds b to m if their signs differ, as CPython's `float_rem` does.
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

/// Returns ⌊a / b⌋, given the exact remainder `m` of the truncated division of a by b.
///
/// (a − m)/b is an integer, up to rounding.
#[inline(always)]
pub fn floor_quotient(a: f64, b: f64, m: f64) -> f64 {
    let quotient = a / b;
    if b == 0.0 {
        return quotient;
    }
    // m is NaN if a is infinite or NaN, and then the result is NaN. An overflowing quotient stays infinite.
    if m.is_nan() || !quotient.is_finite() {
        return quotient + m;
    }
    let correction = if m != 0.0 && (m < 0.0) != (b < 0.0) { 1.0 } else { 0.0 };
    let floor = ((a - m) / b).round_ties_even() - correction;
    if floor == 0.0 { floor.copysign(quotient) } else { floor }
}

/// Returns ⌊a / b⌋ of the exact quotient; a / b for b = 0, and NaN for an infinite a.
#[inline]
pub fn floor_div(a: f64, b: f64) -> f64 {
    floor_quotient(a, b, libm::fmod(a, b))
}

/// Returns a − b·⌊a / b⌋, which has the sign of b.
#[inline]
pub fn rem(a: f64, b: f64) -> f64 {
    floored(libm::fmod(a, b), b)
}
