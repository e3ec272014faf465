//! The gamma family in `f64`; the `f32` methods round the results. The code is scalar: one call per lane.

use super::double::exp;
use std::f64::consts::PI;

/// Evaluates c₀ + x·(c₁ + x·(c₂ + …)) by Horner's rule without fused steps.
///
/// Scalar code is compiled for the baseline processor, on which a fused multiply-add is a library call.
fn horner<const N: usize>(x: f64, c: [f64; N]) -> f64 {
    c.iter().rev().fold(0.0, |y, c| y * x + c)
}

/// Returns ln |Γ(x)|; ∞ at 0, −1, −2, ...
#[inline]
pub fn lgamma(x: f64) -> f64 {
    libm::lgamma(x)
}

/// Returns ψ(x) = d/dx ln Γ(x); NaN at −1, −2, ..., and ∓∞ at ±0.
///
/// Negative x use reflection. The recurrence ψ(x + 1) = ψ(x) + 1/x then moves x into [1, 2], where ψ(x)/(x − x₀) is a
/// minimax polynomial; x₀ is the positive zero of ψ, stored as the sum of two floats. For x ≥ 10 the asymptotic series
/// is used (Abramowitz & Stegun 6.3.18). Near the negative zeros the error is relative to 1, not to ψ.
pub fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return -1.0 / x;
    }
    if x < 0.0 {
        if x == x.floor() {
            return f64::NAN;
        }
        return digamma(1.0 - x) - PI * cot_pi(x);
    }
    if x >= 10.0 {
        if x == f64::INFINITY {
            return x;
        }
        let z = 1.0 / (x * x);
        let series =
            horner(z, [1.0 / 12.0, -1.0 / 120.0, 1.0 / 252.0, -1.0 / 240.0, 1.0 / 132.0, -691.0 / 32760.0, 1.0 / 12.0]);
        return libm::log(x) - 0.5 / x - z * series;
    }
    let (mut x, mut sum) = (x, 0.0);
    while x > 2.0 {
        x -= 1.0;
        sum += 1.0 / x;
    }
    if x < 1.0 {
        sum -= 1.0 / x;
        x += 1.0;
    }
    // The positive zero x₀ of ψ as the sum of two floats.
    const ROOT: f64 = 1.461_632_144_968_362_2;
    const ROOT_LOW: f64 = 9.549_995_429_965_697e-17;
    let p = horner(
        x - 1.5,
        [
            9.510_558_760_318_328_794_5e-1,
            -4.236_274_212_814_606_018_1e-1,
            2.405_424_842_407_872_392_2e-1,
            -1.484_049_230_538_803_164_5e-1,
            9.498_872_445_284_917_973_6e-2,
            -6.192_213_327_554_048_872_1e-2,
            4.076_083_394_342_804_571_1e-2,
            -2.697_579_665_770_275_878_4e-2,
            1.790_724_823_439_817_569_5e-2,
            -1.190_822_015_169_407_938_3e-2,
            7.927_023_349_207_168_097_7e-3,
            -5.279_936_652_703_272_451_9e-3,
            3.518_088_454_854_564_997_9e-3,
            -2.345_499_717_048_967_961e-3,
            1.563_505_241_677_317_582_3e-3,
            -1.036_432_547_493_653_679_6e-3,
            6.902_734_389_341_303_724_5e-4,
            -4.860_331_985_158_190_895_5e-4,
            3.259_062_214_474_837_280_7e-4,
            -1.446_585_283_753_191_467_8e-4,
            9.325_303_648_721_165_016_4e-5,
            -1.783_320_286_165_690_683_4e-4,
            1.212_032_815_524_380_505_4e-4,
        ],
    );
    (x - ROOT - ROOT_LOW) * p + sum
}

/// Returns cot πx, computed from the exact fraction of x, or from its distance to ½ if that is smaller.
fn cot_pi(x: f64) -> f64 {
    let fraction = x - x.round_ties_even();
    let a = fraction.abs();
    let cot = if a > 0.25 { libm::tan(PI * (0.5 - a)) } else { 1.0 / libm::tan(PI * a) };
    cot.copysign(fraction)
}

/// Returns the n-th polygamma function ψ⁽ⁿ⁾(x) = (−1)ⁿ⁺¹ n! ζ(n + 1, x).
///
/// n is an integer from 0 to 170, beyond which n! overflows; for any other n the result is NaN. At a pole the result is
/// ∞ if both one-sided limits agree, otherwise NaN.
pub fn polygamma(n: f64, x: f64) -> f64 {
    if n == 0.0 {
        return digamma(x);
    }
    if !(n > 0.0 && n <= 170.0) || n != n.floor() || x.is_nan() {
        return f64::NAN;
    }
    let odd = n * 0.5 != (n * 0.5).floor();
    let factorial: f64 = (2..=n as u64).map(|k| k as f64).product();
    if x <= 0.0 && x == x.floor() {
        return if odd { f64::INFINITY } else { f64::NAN };
    }
    let y = factorial * zeta(n + 1.0, x);
    if odd { y } else { -y }
}

/// Returns the Hurwitz zeta function ζ(s, q) = Σ (q + k)⁻ˢ over k ≥ 0.
///
/// The result is ∞ for s = 1 and at q = 0, −1, −2, ... It is NaN for s < 1, and for q < 0 unless s is an integer.
pub fn zeta(s: f64, q: f64) -> f64 {
    if s <= 1.0 || s.is_nan() || q.is_nan() {
        return if s == 1.0 { f64::INFINITY } else { f64::NAN };
    }
    if q > 0.0 {
        return hurwitz_zeta(s, q);
    }
    if q == q.floor() || s != s.floor() {
        return if q == q.floor() { f64::INFINITY } else { f64::NAN };
    }
    // The sum of (q + k)⁻ˢ over k ≥ 0 is the sum over all integers k, which depends on the fraction of q only, minus
    // the sum over k < 0.
    let (left, right) = (q - q.floor(), q.ceil() - q);
    let mirror = if s * 0.5 == (s * 0.5).floor() { 1.0 } else { -1.0 };
    (hurwitz_zeta(s, left) + mirror * hurwitz_zeta(s, right)) - mirror * hurwitz_zeta(s, 1.0 - q)
}

/// Returns ζ(s, q) for s > 1 and q > 0: sums the first terms directly, then applies the Euler–Maclaurin formula.
fn hurwitz_zeta(s: f64, q: f64) -> f64 {
    // B₂ⱼ/(2j)!
    const BERNOULLI: [f64; 8] = [
        1.0 / 12.0,
        -1.0 / 720.0,
        1.0 / 30240.0,
        -1.0 / 1_209_600.0,
        1.0 / 47_900_160.0,
        -691.0 / 1_307_674_368_000.0,
        1.0 / 74_724_249_600.0,
        -3617.0 / 10_670_622_842_880_000.0,
    ];
    if q == f64::INFINITY {
        return 0.0;
    }
    let (mut a, mut sum) = (q, 0.0);
    while a < 10.0 + s {
        let term = libm::pow(a, -s);
        sum += term;
        // The comparison is also true if both values are 0 or both are infinite.
        if term <= sum * 1e-18 {
            return sum;
        }
        a += 1.0;
    }
    let power = libm::pow(a, -s);
    let mut tail = power * a / (s - 1.0) + 0.5 * power;
    let mut factor = s * power / a;
    for (j, b) in BERNOULLI.iter().enumerate() {
        tail += b * factor;
        let k = s + 2.0 * j as f64;
        factor *= (k + 1.0) * (k + 2.0) / (a * a);
    }
    sum + tail
}

/// Returns the regularised lower incomplete gamma function P(a, x) for a ≥ 0 and x ≥ 0; otherwise NaN.
pub fn igamma(a: f64, x: f64) -> f64 {
    incomplete_gamma(a, x).0
}

/// Returns the regularised upper incomplete gamma function 1 − P(a, x), accurate where it is small.
pub fn igammac(a: f64, x: f64) -> f64 {
    incomplete_gamma(a, x).1
}

/// Returns (P(a, x), Q(a, x)) with Q = 1 − P.
///
/// For x < a + 1 computes P by its power series (Abramowitz & Stegun 6.5.29). Otherwise computes Q by its continued
/// fraction (6.5.31) with the method of Lentz (1976).
fn incomplete_gamma(a: f64, x: f64) -> (f64, f64) {
    let both_infinite = a == f64::INFINITY && x == f64::INFINITY;
    if !(a >= 0.0 && x >= 0.0) || both_infinite || (a == 0.0 && x == 0.0) {
        return (f64::NAN, f64::NAN);
    }
    if x == 0.0 || a == f64::INFINITY {
        return (0.0, 1.0);
    }
    if a == 0.0 || x == f64::INFINITY {
        return (1.0, 0.0);
    }
    let prefactor = exp(a * libm::log(x) - x - lgamma(a));
    // The number of significant terms grows as √a. The result is NaN if the limit does not suffice.
    const MAX_TERMS: f64 = 20_000.0;
    let mut k = 1.0;
    if x < a + 1.0 {
        let (mut term, mut sum) = (1.0 / a, 1.0 / a);
        while term > 1e-17 * sum && k < MAX_TERMS {
            term *= x / (a + k);
            sum += term;
            k += 1.0;
        }
        let p = if k < MAX_TERMS { prefactor * sum } else { f64::NAN };
        return (p, 1.0 - p);
    }
    let mut b = x + 1.0 - a;
    let (mut c, mut d) = (1e300, 1.0 / b);
    let (mut fraction, mut ratio) = (d, 0.0);
    while (ratio - 1.0f64).abs() > 1e-15 && k < MAX_TERMS {
        let n = -k * (k - a);
        b += 2.0;
        d = 1.0 / (n * d + b);
        c = b + n / c;
        ratio = c * d;
        fraction *= ratio;
        k += 1.0;
    }
    let q = if k < MAX_TERMS { prefactor * fraction } else { f64::NAN };
    (1.0 - q, q)
}
