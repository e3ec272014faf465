//! The gamma family in `f32`. On the usual range it is computed in `f64` without branches, which on vectors is several
//! times as fast as the functions of [`gamma`]. Those functions compute the rest of the range. The results are rounded
//! once; the error before this rounding is below 10⁻⁹, relative to the result.

use super::FunctionOfOrder;
use crate::math::double::{exp_fast, exp_short, ln, ln_short, polynomial};
use crate::math::gamma;

/// Returns true for an operand that [`lgamma_fast`] and [`digamma_fast`] do not support: 0, negative or NaN.
#[inline(always)]
pub fn is_rare_gamma(x: f32) -> bool {
    x <= 0.0 || x.is_nan()
}

/// Returns ln |Γ(x)|; ∞ at 0, −1, −2, ...
#[inline]
pub fn lgamma(x: f32) -> f32 {
    if is_rare_gamma(x) { gamma::lgamma(x as f64) as f32 } else { lgamma_fast(x) }
}

/// Returns ln Γ(x) for x > 0.
///
/// For y = x in [1, 3), or y = x + 1 for x < 1, ln Γ(y) is (y − 1)(y − 2) times a polynomial. For larger x it is the
/// main part of Stirling's series plus a polynomial in 1/x².
#[inline(always)]
pub fn lgamma_fast(x: f32) -> f32 {
    let x = x as f64;
    let log = ln(x);
    let is_small = x < 1.0;
    let y = if is_small { x + 1.0 } else { x };
    let p = polynomial(
        y - 2.0,
        [
            4.227_843_350_984_771e-1,
            -1.003_173_016_744_126_5e-1,
            3.296_500_061_877_055e-2,
            -1.238_419_218_826_621e-2,
            4.998_641_258_776_28e-3,
            -2.108_130_964_765_358_5e-3,
            9.153_754_793_512_883e-4,
            -4.057_058_552_223_745_5e-4,
            1.825_639_426_554_127_5e-4,
            -8.310_518_696_968_469e-5,
            3.811_752_305_686_293e-5,
            -1.762_181_574_577_850_6e-5,
            8.366_499_709_972_441e-6,
            -3.947_876_198_613_529e-6,
            1.551_117_302_069_083_7e-6,
            -6.889_237_201_599_449e-7,
            6.911_528_448_554_133e-7,
            -3.621_099_820_174_942e-7,
            -9.965_978_356_299_81e-8,
            6.267_404_795_295_241e-8,
            8.455_958_052_357_426e-8,
            -4.338_954_227_484_241e-8,
        ],
    );
    let near = ((y - 1.0) * (y - 2.0)).mul_add(p, if is_small { -log } else { 0.0 });
    let z = 1.0 / x;
    let series = polynomial(
        z * z,
        [
            8.333_333_333_333_195e-2,
            -2.777_777_775_692_257_8e-3,
            7.936_502_710_962_759e-4,
            -5.951_869_426_164_748e-4,
            8.391_837_375_712_073e-4,
            -1.842_258_442_865_984_2e-3,
            5.016_359_175_794_67e-3,
            -1.211_300_450_061_651_7e-2,
            1.616_660_627_133_605e-2,
        ],
    );
    // ½·ln 2π − ½
    const CONSTANT: f64 = 0.418_938_533_204_672_74;
    let asymptotic = (x - 0.5).mul_add(log - 1.0, z.mul_add(series, CONSTANT));
    (if y < 3.0 { near } else { asymptotic }) as f32
}

/// Returns ψ(x) = d/dx ln Γ(x); NaN at −1, −2, ..., and ∓∞ at ±0.
#[inline]
pub fn digamma(x: f32) -> f32 {
    if is_rare_gamma(x) { gamma::digamma(x as f64) as f32 } else { digamma_fast(x) }
}

/// Returns ψ(x) for x > 0.
///
/// For y = x in [1, 2), or y = x + 1 for x < 1, ψ(y)/(y − y₀) is a polynomial; y₀ is the positive zero of ψ, stored as
/// the sum of two floats. For larger x, ψ is ln x − 1/2x minus a polynomial in 1/x².
#[inline(always)]
pub fn digamma_fast(x: f32) -> f32 {
    const ROOT: f64 = 1.461_632_144_968_362_2;
    const ROOT_LOW: f64 = 9.549_995_429_965_697e-17;
    let x = x as f64;
    let is_small = x < 1.0;
    let y = if is_small { x + 1.0 } else { x };
    let p = polynomial(
        2.0 * y - 3.0,
        [
            9.510_558_760_318_485e-1,
            -2.118_137_106_407_809_4e-1,
            6.013_562_105_768_62e-2,
            -1.855_061_537_871_860_5e-2,
            5.936_795_344_698_165e-3,
            -1.935_066_717_450_320_6e-3,
            6.368_873_559_031_193e-4,
            -2.107_479_958_090_847_2e-4,
            6.995_360_882_359_225e-5,
            -2.326_001_363_949_910_7e-5,
            7.731_542_191_326_564e-6,
            -2.573_691_468_085_299e-6,
            8.748_907_140_193_092e-7,
            -2.928_449_709_132_882_3e-7,
            8.034_316_949_929_909e-8,
            -2.603_198_928_567_231_5e-8,
            1.787_870_435_843_373_3e-8,
            -6.134_820_458_356_04e-9,
        ],
    );
    let z = 1.0 / x;
    let near = (y - ROOT - ROOT_LOW).mul_add(p, if is_small { -z } else { 0.0 });
    let u = z * z;
    let series = polynomial(
        u,
        [
            8.333_333_333_332_463e-2,
            -8.333_333_320_890_514e-3,
            3.968_250_980_663_096e-3,
            -4.166_379_689_253_368e-3,
            7.561_059_943_876_292e-3,
            -2.062_720_451_835_769_7e-2,
            7.328_054_919_184_786e-2,
            -2.829_457_795_596_237_4e-1,
            9.962_954_537_514_567e-1,
            -2.790_672_114_884_272,
            5.546_282_146_784_931_5,
            -6.797_776_644_443_28,
            3.821_186_907_063_975,
        ],
    );
    let asymptotic = u.mul_add(-series, (-0.5f64).mul_add(z, ln(x)));
    (if y < 2.0 { near } else { asymptotic }) as f32
}

/// The polygamma function ψ⁽ⁿ⁾ of order 1, 2 or 3 for x > 0.
///
/// ψ⁽ⁿ⁾(x) = (−1)ⁿ⁺¹·(n!·Σ (x + k)⁻ⁿ⁻¹ over k < 8 + the rest), where the rest is the asymptotic series at x + 8
/// (Abramowitz & Stegun 6.4.11).
#[derive(Clone, Copy)]
pub struct Polygamma {
    order: f64,
    /// n!, and the first two coefficients of the asymptotic series: (n − 1)! and n!/2.
    factorials: [f64; 3],
    /// B₂ₖ·(2k + n − 1)!/(2k)! for k ≥ 1.
    series: [f64; 8],
}

/// The functions of orders 1, 2 and 3.
const POLYGAMMA: [Polygamma; 3] = {
    const BERNOULLI: [f64; 8] =
        [1.0 / 6.0, -1.0 / 30.0, 1.0 / 42.0, -1.0 / 30.0, 5.0 / 66.0, -691.0 / 2730.0, 7.0 / 6.0, -3617.0 / 510.0];
    let signs = [1.0, -1.0, 1.0];
    let mut all = [Polygamma { order: 0.0, factorials: [0.0; 3], series: [0.0; 8] }; 3];
    let mut i = 0;
    while i < 3 {
        let factorial = [1.0, 2.0, 6.0][i] * signs[i];
        all[i].order = (i + 1) as f64;
        all[i].factorials = [factorial, factorial / (i + 1) as f64, 0.5 * factorial];
        let mut k = 0;
        while k < 8 {
            let even = 2.0 * (k + 1) as f64;
            let factor = [1.0, even + 1.0, (even + 1.0) * (even + 2.0)][i];
            all[i].series[k] = signs[i] * BERNOULLI[k] * factor;
            k += 1;
        }
        i += 1;
    }
    all
};

impl FunctionOfOrder for Polygamma {
    #[inline(always)]
    fn of_order(n: f32) -> Option<Polygamma> {
        POLYGAMMA.into_iter().find(|f| f.order == n as f64)
    }

    #[inline(always)]
    fn at(&self, x: f32) -> f32 {
        let x = x as f64;
        // zⁿ
        let power = |z: f64| {
            let square = if self.order == 2.0 { z * z } else { z };
            if self.order == 3.0 { z * z * z } else { square }
        };
        let (mut sum, mut k) = (0.0, 0.0);
        while k < 8.0 {
            let z = 1.0 / (x + k);
            sum = power(z).mul_add(z, sum);
            k += 1.0;
        }
        let z = 1.0 / (x + 8.0);
        let [factorial, first, second] = self.factorials;
        let series = (z * z).mul_add(polynomial(z * z, self.series), z.mul_add(second, first));
        factorial.mul_add(sum, power(z) * series) as f32
    }

    #[inline(always)]
    fn is_rare(x: f32) -> bool {
        is_rare_gamma(x)
    }

    #[inline(never)]
    fn exact(n: f32, x: f32) -> f32 {
        gamma::polygamma(n as f64, x as f64) as f32
    }
}

/// Returns true for operands that [`zeta_fast`] does not support.
#[inline(always)]
pub fn is_rare_zeta(s: f32, q: f32) -> bool {
    !(s > 1.0 && s <= 8.0 && (f32::MIN_POSITIVE..1e30).contains(&q))
}

/// Returns the Hurwitz zeta function ζ(s, q).
#[inline]
pub fn zeta(s: f32, q: f32) -> f32 {
    if is_rare_zeta(s, q) { gamma::zeta(s as f64, q as f64) as f32 } else { zeta_fast(s, q) }
}

/// Returns ζ(s, q) = Σ (q + k)⁻ˢ for 1 < s ≤ 8 and q > 0: eight terms, and the Euler–Maclaurin formula for the rest.
#[inline(always)]
pub fn zeta_fast(s: f32, q: f32) -> f32 {
    let (s, q) = (s as f64, q as f64);
    let power = |x: f64| exp_short(-s * ln_short(x));
    let first = (power(q) + power(q + 1.0)) + (power(q + 2.0) + power(q + 3.0));
    let second = (power(q + 4.0) + power(q + 5.0)) + (power(q + 6.0) + power(q + 7.0));
    let a = q + 8.0;
    let (r, last) = (1.0 / a, power(a));
    let v = r * r;
    // B₂ⱼ/(2j)!·s·(s + 1)···(s + 2j − 2)/a²ʲ⁻¹, by Horner's rule.
    let level = |j: f64, factor: f64, rest: f64| (s + (2.0 * j - 1.0)) * (s + 2.0 * j) * v * factor * rest + 1.0;
    let series = level(6.0, -35.0 / 1382.0, 1.0);
    let series = level(5.0, -691.0 / 27300.0, series);
    let series = level(4.0, -1.0 / 39.6, series);
    let series = level(3.0, -1.0 / 40.0, series);
    let series = level(2.0, -1.0 / 42.0, series);
    let series = level(1.0, -1.0 / 60.0, series);
    let tail = a / (s - 1.0) + 0.5 + s * r * (1.0 / 12.0) * series;
    (first + second + last * tail) as f32
}

/// Returns true for operands that [`igamma_fast`] and [`igammac_fast`] do not support.
#[inline(always)]
pub fn is_rare_incomplete_gamma(a: f32, x: f32) -> bool {
    !((0.01..=16.0).contains(&a) && (1e-6..=16.0).contains(&x) && x <= a + 4.0)
}

/// Returns the regularized lower incomplete gamma function P(a, x).
#[inline]
pub fn igamma(a: f32, x: f32) -> f32 {
    if is_rare_incomplete_gamma(a, x) { gamma::igamma(a as f64, x as f64) as f32 } else { igamma_fast(a, x) }
}

/// Returns the regularized upper incomplete gamma function 1 − P(a, x).
#[inline]
pub fn igammac(a: f32, x: f32) -> f32 {
    if is_rare_incomplete_gamma(a, x) { gamma::igammac(a as f64, x as f64) as f32 } else { igammac_fast(a, x) }
}

/// Returns P(a, x) for 0.01 ≤ a ≤ 16 and 10⁻⁶ ≤ x ≤ 16 with x ≤ a + 4.
#[inline(always)]
pub fn igamma_fast(a: f32, x: f32) -> f32 {
    lower_gamma(a as f64, x as f64) as f32
}

/// Returns 1 − P(a, x) in the range of [`igamma_fast`]. The result is at least 4·10⁻⁵ there.
#[inline(always)]
pub fn igammac_fast(a: f32, x: f32) -> f32 {
    (1.0 - lower_gamma(a as f64, x as f64)) as f32
}

/// Returns P(a, x) by 49 terms of its power series (Abramowitz & Stegun 6.5.29), added with one denominator:
/// xᵃ·e⁻ˣ/Γ(a + 49) times the sum of xᵏ·(a + k + 1)···(a + 48). Stirling's series computes the gamma function.
#[inline(always)]
fn lower_gamma(a: f64, x: f64) -> f64 {
    let (mut sum, mut power) = (1.0, 1.0);
    (sum, power) = next_eight_terms(sum, power, a, x);
    (sum, power) = next_eight_terms(sum, power, a + 8.0, x);
    (sum, power) = next_eight_terms(sum, power, a + 16.0, x);
    (sum, power) = next_eight_terms(sum, power, a + 24.0, x);
    (sum, power) = next_eight_terms(sum, power, a + 32.0, x);
    (sum, _) = next_eight_terms(sum, power, a + 40.0, x);
    let m = a + 49.0;
    let z = 1.0 / m;
    let series = polynomial(z * z, [1.0 / 12.0, -1.0 / 360.0, 1.0 / 1260.0, -1.0 / 1680.0]);
    // ½·ln 2π
    const CONSTANT: f64 = 0.918_938_533_204_672_7;
    let log_gamma = (m - 0.5) * ln(m) - m + CONSTANT + z * series;
    sum * exp_fast(a * ln(x) - x - log_gamma)
}

/// Adds eight terms to a sum whose last term is `power`: multiplies the sum by a + k for k = 1, .., 8, and adds the
/// next power of x.
#[inline(always)]
fn next_eight_terms(sum: f64, power: f64, a: f64, x: f64) -> (f64, f64) {
    let (mut sum, mut power, mut k) = (sum, power, 0.0);
    while k < 8.0 {
        k += 1.0;
        power *= x;
        sum = sum.mul_add(a + k, power);
    }
    (sum, power)
}
