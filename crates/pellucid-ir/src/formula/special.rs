//! The primitives in `f64`: the reference for all vectorized implementations.
//!
//! Functions of `std` and `libm` are used where they exist; the others are computed by series and integrals.

use super::primitive::{Binary, Unary};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

/// Evaluates a unary primitive; masks are 0 and 1.
pub fn unary(op: Unary, x: f64) -> f64 {
    match op {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign if x == 0.0 || x.is_nan() => x,
        Unary::Sign => x.signum(),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Trunc => x.trunc(),
        Unary::Sqrt => x.sqrt(),
        Unary::Recip => x.recip(),
        Unary::Exp => x.exp(),
        Unary::Exp2 => x.exp2(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Ln => x.ln(),
        Unary::Log2 => x.log2(),
        Unary::Log10 => x.log10(),
        Unary::Ln1p => x.ln_1p(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::SinPi => sin_pi(x),
        Unary::CosPi => sin_pi(0.5 - (x - 2.0 * (0.5 * x).round_ties_even()).abs()),
        Unary::Asin => x.asin(),
        Unary::Acos => x.acos(),
        Unary::Atan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Tanh => x.tanh(),
        Unary::Asinh => libm::asinh(x),
        Unary::Acosh => libm::acosh(x),
        Unary::Atanh => libm::atanh(x),
        Unary::Sigmoid if x < 0.0 => x.exp() / (1.0 + x.exp()),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Erf => libm::erf(x),
        Unary::Erfc => libm::erfc(x),
        Unary::Erfcx => erfcx(x),
        Unary::Erfinv => erfinv(x),
        Unary::Ndtr => ndtr(x),
        Unary::Ndtri => ndtri(x),
        Unary::Lgamma => libm::lgamma(x),
        Unary::Digamma => digamma(x),
        Unary::Not => bool_to_f64(x == 0.0),
        Unary::IsNan => bool_to_f64(x.is_nan()),
        Unary::IsFinite => bool_to_f64(x.is_finite()),
    }
}

/// Evaluates a binary primitive; masks are 0 and 1, bitwise primitives take integers.
pub fn binary(op: Binary, a: f64, b: f64) -> f64 {
    let (i, j) = (a as i64, b as i64);
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::FloorDiv => floor_div(a, b),
        Binary::Rem => floor_remainder(a % b, b),
        Binary::Pow => a.powf(b),
        Binary::Atan2 => a.atan2(b),
        Binary::Max | Binary::Min if a.is_nan() || b.is_nan() => f64::NAN,
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
        Binary::Copysign => a.copysign(b),
        Binary::Ldexp => ldexp(a, b),
        Binary::Polygamma => polygamma(a, b),
        Binary::Zeta => zeta(a, b),
        Binary::Igamma => igamma(a, b),
        Binary::Igammac => 1.0 - igamma(a, b),
        Binary::BesselJ => libm::jn(a as i32, b),
        Binary::BesselY => libm::yn(a as i32, b),
        Binary::BesselI => bessel_ie(a, b) * b.abs().exp(),
        Binary::BesselIe => bessel_ie(a, b),
        Binary::BesselK => bessel_ke(a, b) * (-b).exp(),
        Binary::BesselKe => bessel_ke(a, b),
        Binary::And => (i & j) as f64,
        Binary::Or => (i | j) as f64,
        Binary::Xor => (i ^ j) as f64,
        Binary::Shl => (if (0..64).contains(&j) { i << j } else { 0 }) as f64,
        Binary::Shr => (i >> if (0..64).contains(&j) { j } else { 63 }) as f64,
        Binary::Lt => bool_to_f64(a < b),
        Binary::Le => bool_to_f64(a <= b),
        Binary::Gt => bool_to_f64(a > b),
        Binary::Ge => bool_to_f64(a >= b),
        Binary::Eq => bool_to_f64(a == b),
        Binary::Ne => bool_to_f64(a != b),
    }
}

/// Returns sin πx, from the exact remainder of x modulo 2.
fn sin_pi(x: f64) -> f64 {
    let y = x - 2.0 * (0.5 * x).round_ties_even();
    (PI * if y.abs() > 0.5 { 1f64.copysign(y) - y } else { y }).sin()
}

/// Returns a·2ᵇ. The products with integer powers of two are exact, except the last one.
fn ldexp(a: f64, b: f64) -> f64 {
    let b = b.clamp(-3000.0, 3000.0);
    libm::scalbn(a, b.floor() as i32) * (b - b.floor()).exp2()
}

/// Returns the remainder of floored division by b from the remainder `m` of truncated division.
fn floor_remainder(m: f64, b: f64) -> f64 {
    if m == 0.0 {
        m.copysign(b)
    } else if (m < 0.0) != (b < 0.0) {
        m + b
    } else {
        m
    }
}

/// Returns ⌊a / b⌋ of the exact quotient, from the exact remainder; a / b for b = 0, and NaN for an infinite a.
fn floor_div(a: f64, b: f64) -> f64 {
    let (quotient, m) = (a / b, a % b);
    if b == 0.0 {
        return quotient;
    }
    if m.is_nan() || !quotient.is_finite() {
        return quotient + m;
    }
    let below = if m != 0.0 && (m < 0.0) != (b < 0.0) { 1.0 } else { 0.0 };
    let rounded = ((a - m) / b).round_ties_even() - below;
    if rounded == 0.0 { rounded.copysign(quotient) } else { rounded }
}

/// Evaluates a primitive of two 64-bit integers.
pub(super) fn binary_index(op: Binary, a: f64, b: f64) -> f64 {
    match op {
        Binary::FloorDiv | Binary::Rem if b == 0.0 => 0.0,
        _ => binary(op, a, b),
    }
}

fn bool_to_f64(b: bool) -> f64 {
    b as u8 as f64
}

/// Returns y such that erf(y) = x: Giles' single-precision polynomial (2010), then two steps of Halley's method. Where
/// erf is flat, the steps solve erfc(y) = 1 − |x|, whose right side is exact.
fn erfinv(x: f64) -> f64 {
    let q = 1.0 - x.abs();
    if x == 0.0 || q.is_nan() || q <= 0.0 {
        return match () {
            () if x == 0.0 => x,
            () if q == 0.0 => f64::INFINITY.copysign(x),
            () => f64::NAN,
        };
    }
    let w = -(q * (1.0 + x.abs())).ln();
    let horner = |c: &[f64], t: f64| c.iter().fold(0.0, |p, &c| p * t + c);
    let mut y = x.abs()
        * match w < 5.0 {
            true => horner(
                &[
                    2.81022636e-08,
                    3.43273939e-07,
                    -3.5233877e-06,
                    -4.39150654e-06,
                    0.00021858087,
                    -0.00125372503,
                    -0.00417768164,
                    0.246640727,
                    1.50140941,
                ],
                w - 2.5,
            ),
            false => horner(
                &[
                    -0.000200214257,
                    0.000100950558,
                    0.00134934322,
                    -0.00367342844,
                    0.00573950773,
                    -0.0076224613,
                    0.00943887047,
                    1.00167406,
                    2.83297682,
                ],
                w.sqrt() - 3.0,
            ),
        };
    for _ in 0..2 {
        // erf(y) − |x|, without the cancellation of either tail.
        let error = if q < 0.5 { q - libm::erfc(y) } else { libm::erf(y) - x.abs() };
        let slope = FRAC_2_SQRT_PI * (-y * y).exp();
        let step = error / slope;
        y -= step / (1.0 + y * step);
    }
    y.copysign(x)
}

/// Returns e^(x²)·erfc x: the product with a correction for the rounding error of x² if x ≤ 20, else the continued
/// fraction of Laplace.
fn erfcx(x: f64) -> f64 {
    if x <= 20.0 {
        let s = x * x;
        let d = x.mul_add(x, -s);
        return if s == f64::INFINITY { s } else { s.exp() * (1.0 + d) * libm::erfc(x) };
    }
    let fraction = (1..40).rev().fold(x, |f, k| x + 0.5 * k as f64 / f);
    1.0 / (fraction * PI.sqrt())
}

/// Returns Φ(x) = ½·erfc(t) with t = −x/√2, where the tail has a correction for the rounding error of t: the factor
/// e^(t² − x²/2).
fn ndtr(x: f64) -> f64 {
    let (t, h) = (-x * FRAC_1_SQRT_2, 0.5 * x);
    let difference = (t * t - h * x) + (t.mul_add(t, -(t * t)) - h.mul_add(x, -(h * x)));
    let corrected = 0.5 * libm::erfc(t) * (1.0 + difference);
    if (-40.0..-1.0).contains(&x) { corrected } else { 0.5 * libm::erfc(t) }
}

/// Returns y such that Φ(y) = x, by Newton's method on ln Φ. It starts from the left of y and converges, because ln Φ
/// is concave.
fn ndtri(x: f64) -> f64 {
    match x {
        0.0 => return f64::NEG_INFINITY,
        1.0 => return f64::INFINITY,
        x if !(0.0..=1.0).contains(&x) => return f64::NAN,
        x if x > 0.5 => return -ndtri(1.0 - x),
        _ => {}
    }
    let mut y = -(-2.0 * x.ln()).sqrt();
    for _ in 0..60 {
        let mass = ndtr(y);
        let slope = (-0.5 * y * y).exp() / (2.0 * PI).sqrt() / mass;
        y -= (mass.ln() - x.ln()) / slope;
    }
    y
}

/// Returns Hurwitz' ζ(s, q): the sum over k < 1000 plus the Euler–Maclaurin remainder. For q < 0 it is defined only for
/// integer s.
fn zeta(s: f64, q: f64) -> f64 {
    if s <= 1.0 || s.is_nan() || q.is_nan() {
        return if s == 1.0 { f64::INFINITY } else { f64::NAN };
    }
    if q <= 0.0 && q == q.floor() {
        return f64::INFINITY;
    }
    if q < 0.0 && s != s.floor() {
        return f64::NAN;
    }
    let terms = 1000;
    let a = q + terms as f64;
    let head: f64 = (0..terms).rev().map(|k| (q + k as f64).powf(-s)).sum();
    head + a.powf(1.0 - s) / (s - 1.0) + 0.5 * a.powf(-s) + s * a.powf(-s - 1.0) / 12.0
}

/// Returns P(a, x), by Simpson's rule in u = ∛t, which smooths the density at 0.
fn igamma(a: f64, x: f64) -> f64 {
    if x <= 0.0 || a <= 0.0 || !x.is_finite() || !a.is_finite() {
        return if x == 0.0 && a > 0.0 { 0.0 } else { f64::NAN };
    }
    let steps = 20_000;
    let width = x.cbrt() / steps as f64;
    let density = |k: usize| {
        let u = width * k as f64;
        3.0 * ((3.0 * a - 1.0) * u.ln() - u.powi(3) - libm::lgamma(a)).exp()
    };
    let weight = |k: usize| if k == steps { 1.0 } else { 2.0 + 2.0 * (k % 2) as f64 };
    (1..=steps).map(|k| weight(k) * density(k)).sum::<f64>() * width / 3.0
}

/// Returns e^(−|x|)·I_n(x), the mean over θ of e^(x·cos θ − |x|)·cos nθ. For this periodic function the trapezoidal
/// rule has full precision.
fn bessel_ie(n: f64, x: f64) -> f64 {
    let points = 100 + (20.0 * x.abs().min(1e6).sqrt()) as usize;
    let value = |k: usize| {
        let theta = 2.0 * PI * k as f64 / points as f64;
        (x * theta.cos() - x.abs()).exp() * (n * theta).cos()
    };
    (0..points).map(value).sum::<f64>() / points as f64
}

/// Returns eˣ·K_n(x) = ∫ e^(x·(1 − cosh t))·cosh nt dt over t > 0, by the trapezoidal rule.
fn bessel_ke(n: f64, x: f64) -> f64 {
    if x <= 0.0 || x.is_nan() {
        return if x == 0.0 { f64::INFINITY } else { f64::NAN };
    }
    let step = 0.1f64.min(0.5 / x.sqrt());
    let value = |k: usize| {
        let t = step * k as f64;
        (-2.0 * x * (0.5 * t).sinh().powi(2)).exp() * (n * t).cosh()
    };
    let end = (1.0 + 60.0 / x).acosh() + 10.0;
    step * (0.5 + (1..(end / step) as usize).map(value).filter(|v| v.is_finite()).sum::<f64>())
}

/// Returns ψ(x): reflection for negative x, recurrence up to 10, then the asymptotic series.
fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    if x < 0.0 {
        if x == x.floor() {
            return f64::NAN;
        }
        // π·cot(πx), whose period is 1.
        return digamma(1.0 - x) - PI / (PI * (x - x.round())).tan();
    }
    let (mut x, mut sum) = (x, 0.0);
    while x < 10.0 {
        sum -= 1.0 / x;
        x += 1.0;
    }
    let t = 1.0 / (x * x);
    let tail = BERNOULLI.iter().enumerate().rev().fold(0.0, |p, (k, b)| (p + b / (2.0 * (k + 1) as f64)) * t);
    sum + x.ln() - 0.5 / x - tail
}

/// The Bernoulli numbers B₂, B₄, ..., B₂₄.
const BERNOULLI: [f64; 12] = [
    1.0 / 6.0,
    -1.0 / 30.0,
    1.0 / 42.0,
    -1.0 / 30.0,
    5.0 / 66.0,
    -691.0 / 2730.0,
    7.0 / 6.0,
    -3617.0 / 510.0,
    43867.0 / 798.0,
    -174611.0 / 330.0,
    854513.0 / 138.0,
    -236364091.0 / 2730.0,
];

/// Returns ψ⁽ⁿ⁾(x) = (−1)ⁿ⁺¹ n! ζ(n+1, x), with Hurwitz' ζ by the Euler–Maclaurin formula.
fn polygamma(n: f64, x: f64) -> f64 {
    if n == 0.0 {
        return digamma(x);
    }
    if n < 0.0 || n != n.floor() || n > 100.0 || x.is_nan() || x < -1e5 {
        return f64::NAN;
    }
    let s = n + 1.0;
    let power = |a: f64, k: f64| a.powi(k as i32);
    let (mut a, mut zeta) = (x, 0.0);
    if x <= 0.0 && x == x.floor() {
        return if n as i64 % 2 == 0 { f64::NAN } else { f64::INFINITY };
    }
    while a < 12.0 + s {
        zeta += power(a, -s);
        a += 1.0;
    }
    zeta += power(a, -n) / n + power(a, -s) / 2.0;
    // The j-th term is B₂ⱼ/(2j)! · s(s+1)…(s+2j−2) · a^(−s−2j+1).
    let mut term = s * power(a, -s - 1.0) / 2.0;
    for (j, b) in BERNOULLI.iter().enumerate() {
        zeta += b * term;
        let k = 2.0 * (j + 1) as f64;
        term *= (s + k - 1.0) * (s + k) / ((k + 1.0) * (k + 2.0) * a * a);
    }
    let factorial: f64 = (1..=n as u64).map(|k| k as f64).product();
    factorial * zeta * if n as i64 % 2 == 0 { -1.0 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_functions_have_their_known_values() {
        let close =
            |a: f64, b: f64| assert!((a - b).abs() <= 4e-15 * b.abs().max(0.25), "{a} differs from the expected {b}");
        for x in [-0.999_999, -0.9, -0.3, 1e-8, 0.5, 0.999, 1.0 - 1e-15] {
            close(libm::erf(erfinv(x)), x);
        }
        close(erfinv(0.5), 0.476_936_276_204_469_9);
        close(digamma(1.0), -0.577_215_664_901_532_9);
        close(digamma(0.5), -1.963_510_026_021_423_5);
        close(digamma(-0.5), 0.036_489_973_978_576_52);
        close(polygamma(1.0, 1.0), PI * PI / 6.0);
        close(polygamma(1.0, 0.5), PI * PI / 2.0);
        close(polygamma(2.0, 1.0), -2.404_113_806_319_188_6);
        close(polygamma(3.0, 0.5), PI.powi(4));
        assert_eq!(polygamma(1.0, f64::INFINITY), 0.0);
        assert!(digamma(-3.0).is_nan() && erfinv(1.5).is_nan());
        assert_eq!(erfinv(-1.0), f64::NEG_INFINITY);
        assert_eq!(binary(Binary::Rem, -1.0, 3.0), 2.0);
        assert_eq!((binary(Binary::FloorDiv, 1.0, 0.1), binary(Binary::FloorDiv, -7.0, 2.0)), (9.0, -4.0));
        assert_eq!(binary(Binary::FloorDiv, -5.0, f64::INFINITY), -1.0);
        assert!(binary(Binary::FloorDiv, f64::INFINITY, 1.0).is_nan());
    }
}
