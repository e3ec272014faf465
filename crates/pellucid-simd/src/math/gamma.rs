//! The gamma family in `f64`; the `f32` methods round the results. The code is scalar: one call per lane.

use super::double::{cos_reduced, exp, ln, pow, power_of_two, sin_reduced};
use std::f64::consts::PI;

/// Evaluates c₀ + x·(c₁ + x·(c₂ + …)) by Horner's rule without fused multiply-adds.
///
/// Scalar code is compiled for the baseline processor, on which a fused multiply-add is a library call.
#[inline(always)]
pub(super) fn horner<const N: usize>(x: f64, c: [f64; N]) -> f64 {
    let mut y = c[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        y = y * x + c[i];
    }
    y
}

/// Returns ln |Γ(x)|; ∞ at 0, −1, −2, ...
///
/// For negative x, the reflection formula |Γ(x)·Γ(1 − x)| = π/|sin πx| is used.
#[inline(always)]
pub fn lgamma(x: f64) -> f64 {
    let a = x.abs();
    if a == f64::INFINITY || a.is_nan() {
        return a;
    }
    let y = lgamma_positive(a);
    // For tiny x of either sign, |Γ(x)| is 1/|x| to the last bit.
    if x > 0.0 || a < 8.5e-22 {
        return y;
    }
    let (sine, _) = sin_and_cos_pi(a);
    if sine == 0.0 { f64::INFINITY } else { ln(PI / (sine * a)) - y }
}

/// Returns ln Γ(x) for finite x ≥ 0 (fdlibm, Sun Microsystems 1993).
///
/// For x < 2, ln Γ is approximated by a function of the distance of x to 2, 1 or the minimum of Γ; for small x it is
/// computed as ln Γ(x + 1) − ln x. The recurrence moves x < 8 into [2, 3]. Stirling's series is used for larger x.
#[inline(always)]
fn lgamma_positive(x: f64) -> f64 {
    // All branches share this logarithm, because shaders are compiled with all calls inlined.
    let log = ln(logarithm_in_lgamma(x));
    if x < 2.0 {
        let is_small = x < 0.9;
        // Γ is evaluated at 1 + t.
        let t = if is_small { x } else { x - 1.0 };
        let y = if t > 0.7316 {
            lgamma_near_two(1.0 - t)
        } else if t > 0.231_64 {
            lgamma_near_minimum(t)
        } else {
            lgamma_near_one(t)
        };
        // ln Γ(1) is +0.
        return if is_small { y - log } else { 0.0 + y };
    }
    if x < 8.0 {
        let i = x.floor();
        let y = x - i;
        let p = y * horner(
            y,
            [
                -7.721_566_490_153_286_554_94e-2,
                2.149_824_159_606_088_525_01e-1,
                3.257_787_964_089_309_817_87e-1,
                1.463_504_726_524_644_528_05e-1,
                2.664_227_030_336_386_095_60e-2,
                1.840_284_514_073_377_156_52e-3,
                3.194_753_265_841_008_676_17e-5,
            ],
        );
        let q = horner(
            y,
            [
                1.0,
                1.392_005_334_676_210_459_58,
                7.219_355_475_671_380_695_25e-1,
                1.719_338_656_328_030_789_93e-1,
                1.864_591_917_156_529_013_44e-2,
                7.779_424_963_818_935_964_34e-4,
                7.326_684_307_446_256_361_89e-6,
            ],
        );
        return 0.5 * y + p / q + log;
    }
    // For x ≥ 2⁵⁸, the series does not affect the result.
    let z = 1.0 / x;
    let series = stirling_series(z * z);
    (x - 0.5) * (log - 1.0) + (4.189_385_332_046_727_250_52e-1 + z * series)
}

/// Returns x·(ln Γ(x) − (x − ½)·ln x + x − ½·ln 2π) for z = 1/x² and x ≥ 8.
#[inline(always)]
fn stirling_series(z: f64) -> f64 {
    horner(
        z,
        [
            8.333_333_333_333_296_788_49e-2,
            -2.777_777_777_287_755_364_70e-3,
            7.936_505_586_430_195_585_00e-4,
            -5.951_875_574_503_399_631_35e-4,
            8.363_399_189_962_821_391_26e-4,
            -1.630_929_340_965_752_739_89e-3,
        ],
    )
}

/// Returns the argument of the logarithm in ln Γ(x): x, or Γ(x)/Γ(y + 2) = (y + 2)·(y + 3)···(x − 1) for x in [2, 8),
/// where y is the fraction of x.
#[inline(always)]
fn logarithm_in_lgamma(x: f64) -> f64 {
    if x < 2.0 {
        return x;
    }
    if x >= 8.0 {
        return x;
    }
    let (mut product, mut factor) = (1.0, x - 1.0);
    while factor >= 2.0 {
        product *= factor;
        factor -= 1.0;
    }
    product
}

/// Returns ln Γ(2 − y).
#[inline(always)]
fn lgamma_near_two(y: f64) -> f64 {
    let p = horner(
        y,
        [
            7.721_566_490_153_286_554_94e-2,
            3.224_670_334_241_135_916_11e-1,
            6.735_230_105_312_926_818_24e-2,
            2.058_080_843_251_673_328_06e-2,
            7.385_550_860_814_028_839_57e-3,
            2.890_513_836_734_156_290_91e-3,
            1.192_707_631_833_620_678_45e-3,
            5.100_697_921_535_113_366_08e-4,
            2.208_627_907_139_083_855_57e-4,
            1.080_115_672_475_839_399_54e-4,
            2.521_445_654_512_573_269_39e-5,
            4.486_409_496_189_151_601_50e-5,
        ],
    );
    y * p - 0.5 * y
}

/// Returns ln Γ(1 + t) near the minimum of Γ at 1 + t = 1.46..., where the result is −0.12....
#[inline(always)]
fn lgamma_near_minimum(t: f64) -> f64 {
    const MINIMUM: f64 = 4.616_321_449_683_622_457_6e-1;
    const VALUE: f64 = -1.214_862_905_358_496_114_61e-1;
    const VALUE_LOW: f64 = 3.638_676_997_039_505_365_41e-18;
    let y = t - MINIMUM;
    let p = horner(
        y,
        [
            4.838_361_227_238_100_470_42e-1,
            -1.475_877_229_945_939_117_52e-1,
            6.462_494_023_913_338_547_78e-2,
            -3.278_854_107_598_596_495_65e-2,
            1.797_067_508_118_203_871_26e-2,
            -1.031_422_412_983_414_374_50e-2,
            6.100_538_702_462_913_326_35e-3,
            -3.684_520_167_811_382_567_60e-3,
            2.259_647_809_006_124_722_50e-3,
            -1.403_464_699_892_328_438_13e-3,
            8.810_818_824_376_540_113_82e-4,
            -5.385_953_053_567_405_467_15e-4,
            3.156_320_709_036_259_503_61e-4,
            -3.127_541_683_751_208_605_18e-4,
            3.355_291_926_355_190_735_43e-4,
        ],
    );
    VALUE + (y * y * p + VALUE_LOW)
}

/// Returns ln Γ(1 + y) for small y.
#[inline(always)]
fn lgamma_near_one(y: f64) -> f64 {
    let p = y * horner(
        y,
        [
            -7.721_566_490_153_286_554_94e-2,
            6.328_270_640_250_933_665_17e-1,
            1.454_922_501_372_347_687_37,
            9.777_175_279_633_727_456_03e-1,
            2.289_637_280_646_924_510_92e-1,
            1.338_109_185_367_877_660_377e-2,
        ],
    );
    let q = horner(
        y,
        [
            1.0,
            2.455_977_937_130_411_348_22,
            2.128_489_763_798_933_953_61,
            7.692_851_504_566_727_830_63e-1,
            1.042_226_455_933_691_342_54e-1,
            3.217_092_422_824_239_118_10e-3,
        ],
    );
    p / q - 0.5 * y
}

/// Returns ψ(x) = d/dx ln Γ(x); NaN at −1, −2, ..., and ∓∞ at ±0.
///
/// For negative x, the reflection formula is used. The recurrence ψ(x + 1) = ψ(x) + 1/x then moves x into [1, 2], where
/// a minimax function approximates ψ(x)/(x − x₀); x₀ is the positive zero of ψ, stored as the sum of two floats. For x
/// ≥ 10 the asymptotic series is used (Abramowitz & Stegun 6.3.18). Near the negative zeros of ψ, only the absolute
/// error is small, not the relative error.
#[inline(always)]
pub fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return -1.0 / x;
    }
    if x < 0.0 && x == x.floor() {
        return f64::NAN;
    }
    // The function is called in one place, because shaders are compiled with all calls inlined.
    let y = digamma_positive(if x < 0.0 { 1.0 - x } else { x });
    if x < 0.0 { y - PI * cot_pi(x) } else { y }
}

/// Returns ψ(x) for x > 0 and for NaN.
#[inline(always)]
fn digamma_positive(x: f64) -> f64 {
    if x >= 10.0 {
        if x == f64::INFINITY {
            return x;
        }
        let z = 1.0 / (x * x);
        let series =
            horner(z, [1.0 / 12.0, -1.0 / 120.0, 1.0 / 252.0, -1.0 / 240.0, 1.0 / 132.0, -691.0 / 32760.0, 1.0 / 12.0]);
        return ln(x) - 0.5 / x - z * series;
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

/// Returns |sin πx| and |cos πx|, computed from the exact fraction of x, or from its distance to ½ if that is smaller.
#[inline(always)]
fn sin_and_cos_pi(x: f64) -> (f64, f64) {
    let fraction = (x - x.round_ties_even()).abs();
    let is_far = fraction > 0.25;
    let angle = PI * if is_far { 0.5 - fraction } else { fraction };
    let (sine, cosine) = (sin_reduced(angle, 0.0), cos_reduced(angle, 0.0));
    if is_far { (cosine, sine) } else { (sine, cosine) }
}

/// Returns cot πx.
#[inline(always)]
fn cot_pi(x: f64) -> f64 {
    let (sine, cosine) = sin_and_cos_pi(x);
    (cosine / sine).copysign(x - x.round_ties_even())
}

/// Returns the n-th polygamma function ψ⁽ⁿ⁾(x) = (−1)ⁿ⁺¹ n! ζ(n + 1, x).
///
/// n must be an integer from 0 to 170, because larger factorials overflow; for any other n the result is NaN. At a
/// pole, the result is ∞ if n is odd, and NaN if n is even, because then the one-sided limits differ. For n = 0, see
/// [`digamma`].
pub fn polygamma(n: f64, x: f64) -> f64 {
    if n == 0.0 {
        return digamma(x);
    }
    if !(n > 0.0 && n <= 170.0) || n != n.floor() || x.is_nan() {
        return f64::NAN;
    }
    let odd = n * 0.5 != (n * 0.5).floor();
    if x <= 0.0 && x == x.floor() {
        return if odd { f64::INFINITY } else { f64::NAN };
    }
    // n! is represented as factorial·2^shift, and ζ is multiplied by 2^shift, because n! exceeds the range of `f32`, in
    // which shaders compute.
    let (mut factorial, mut shift, mut k) = (1.0, 0.0, 2.0);
    while k <= n {
        factorial *= k;
        if factorial > 256.0 {
            factorial /= 256.0;
            shift += 8.0;
        }
        k += 1.0;
    }
    let y = factorial * scaled_zeta(n + 1.0, x, shift);
    if odd { y } else { -y }
}

/// Returns the Hurwitz zeta function ζ(s, q) = Σ (q + k)⁻ˢ over k ≥ 0.
///
/// The result is NaN for s < 1, and ∞ for s = 1. For s > 1, it is ∞ at q = 0, −1, −2, ..., and NaN at all other q < 0
/// unless s is an integer.
pub fn zeta(s: f64, q: f64) -> f64 {
    scaled_zeta(s, q, 0.0)
}

/// Returns 2^shift·ζ(s, q) for an integer shift from 0 to 1000.
fn scaled_zeta(s: f64, q: f64, shift: f64) -> f64 {
    if s <= 1.0 || s.is_nan() || q.is_nan() {
        return if s == 1.0 { f64::INFINITY } else { f64::NAN };
    }
    if q <= 0.0 && (q == q.floor() || s != s.floor()) {
        return if q == q.floor() { f64::INFINITY } else { f64::NAN };
    }
    // The sum of (q + k)⁻ˢ over k ≥ 0 is the sum over all integers k, which depends on the fraction of q only, minus
    // the sum over k < 0.
    let (left, right) = (q - q.floor(), q.ceil() - q);
    let mirror = if s * 0.5 == (s * 0.5).floor() { 1.0 } else { -1.0 };
    let (mut sum, mut k) = (0.0, 0.0);
    while k < 3.0 {
        let (weight, from) = if q > 0.0 {
            (1.0, q)
        } else if k == 0.0 {
            (1.0, left)
        } else if k == 1.0 {
            (mirror, right)
        } else {
            (-mirror, 1.0 - q)
        };
        sum += weight * hurwitz_zeta(s, from, shift);
        k += if q > 0.0 { 3.0 } else { 1.0 };
    }
    sum
}

/// Returns 2^shift·ζ(s, q) for s > 1 and q > 0: sums the first terms, then applies the Euler–Maclaurin formula.
fn hurwitz_zeta(s: f64, q: f64, shift: f64) -> f64 {
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
    if q == f64::INFINITY || (s == f64::INFINITY && q > 1.0) {
        return 0.0;
    }
    if s == f64::INFINITY {
        return if q == 1.0 { 1.0 } else { f64::INFINITY };
    }
    let (mut a, mut sum) = (q, 0.0);
    loop {
        // a^(1 − s) is computed first and a^(−s) from it, because a^(−s) alone may underflow in shaders, which compute
        // in `f32`.
        let integral = scaled_power(a, s - 1.0, shift);
        let power = integral / a;
        if a >= 10.0 + s {
            let mut tail = integral / (s - 1.0) + 0.5 * power;
            let mut factor = s * power / a;
            let mut j: usize = 0;
            while j < BERNOULLI.len() {
                tail += BERNOULLI[j] * factor;
                let k = s + 2.0 * j as f64;
                factor *= (k + 1.0) * (k + 2.0) / (a * a);
                j += 1;
            }
            return sum + tail;
        }
        sum += power;
        // The comparison is also true if both values are 0 or both are infinite.
        if power <= sum * 1e-18 {
            return sum;
        }
        a += 1.0;
    }
}

/// Returns 2^shift·a⁻ˢ. Shaders use a separate function.
#[inline(always)]
fn scaled_power(a: f64, s: f64, shift: f64) -> f64 {
    pow(a, -s) * power_of_two(shift as i64)
}

/// Returns the regularized lower incomplete gamma function P(a, x) for a ≥ 0 and x ≥ 0. Otherwise, and if both are 0 or
/// both are ∞, returns NaN.
pub fn igamma(a: f64, x: f64) -> f64 {
    incomplete_gamma(a, x).0
}

/// Returns the regularized upper incomplete gamma function 1 − P(a, x), which is accurate even if it is small. It is
/// NaN if [`igamma`] is.
pub fn igammac(a: f64, x: f64) -> f64 {
    incomplete_gamma(a, x).1
}

/// Returns (P(a, x), Q(a, x)) with Q = 1 − P.
///
/// For x < max(a, 1) computes P by its power series (Abramowitz & Stegun 6.5.29). Otherwise computes Q by its continued
/// fraction (6.5.31) with the method of Lentz (1976). Near x = a, their numbers of terms grow as √a; therefore an
/// integral replaces both for large a. For small a and x, [`upper_gamma_of_small`] computes Q.
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
    if a < 1e-4 && x < 1.0 {
        let q = upper_gamma_of_small(a, x);
        return (1.0 - q, q);
    }
    // Γ(a) = Γ(m)/(a·(a + 1)···(m − 1)) with m = a + j ≥ 8, where Stirling's series for Γ(m) converges.
    let m = if a < 8.0 { a + (8.0 - a).ceil() } else { a };
    let z = 1.0 / m;
    let distance = x - a;
    let is_near = a >= 8.0 && distance.abs() < 0.2 * a;
    let exponent = if is_near { a * log_1p_minus(distance / a) } else { a * ln(x / m) + (m - x) };
    // xᵃ·e⁻ˣ/Γ(a).
    let mut prefactor = exp(exponent - z * stirling_series(z * z)) * (m * (0.5 / PI)).sqrt();
    if is_near && a >= 2e5 {
        let tail = 0.125 * prefactor * tail_integral(a, x);
        return if x < a { (tail, 1.0 - tail) } else { (1.0 - tail, tail) };
    }
    let mut factor = a;
    while factor < m {
        prefactor *= factor * z;
        factor += 1.0;
    }
    if x < 1.0 || x < a {
        let p = prefactor * lower_gamma_series(a, x);
        (p, 1.0 - p)
    } else {
        let q = prefactor * upper_gamma_fraction(a, x);
        (1.0 - q, q)
    }
}

/// Returns Q(a, x) = 1 − (1 + g)·(1 + S) = −g − S·(1 + g) for small a and x, with 1 + g = xᵃ/Γ(a + 1) and S = Σ
/// a·(−x)ᵏ/((a + k)·k!). The series of g in w = ln(1 + g) and the sum S are accurate even for tiny a.
fn upper_gamma_of_small(a: f64, x: f64) -> f64 {
    const EULER_GAMMA: f64 = 0.577_215_664_901_532_9;
    let log_gamma = a * (a * (0.822_467_033_424_113_2 - a * 0.400_685_634_386_531_4) - EULER_GAMMA);
    let w = a * ln(x) - log_gamma;
    let (mut power, mut sum, mut other, mut growth) = (1.0f64, 0.0, 1.0, 0.0);
    let mut k = 1.0;
    while power.abs() > 1e-18 {
        power *= -x / k;
        sum += power * (a / (a + k));
        other *= w / k;
        growth += other;
        k += 1.0;
    }
    -growth - sum * (1.0 + growth)
}

/// Returns 8 times the integral of e^(−xu)·(1 + u)^(a−1) over u > 0, or for x < a over u < 0. The integral times xᵃ·e⁻ˣ
/// is Γ(a, x), or γ(a, x) for x < a.
///
/// The trapezoidal rule in t with |u| = c·e^(t − e^(−t)) converges fast (Takahasi & Mori 1974).
fn tail_integral(a: f64, x: f64) -> f64 {
    let distance = x - a;
    let sign = if x < a { -1.0 } else { 1.0 };
    let c = 1.0 / (distance.abs() + a.sqrt());
    // `libm::exp` uses no fused multiply-add, which is a library call here. e is e^t from t = −3.9 in steps of 1/8.
    let (mut e, mut sum) = (0.020_241_911_445_804_39, 0.0);
    while e < 41.0 {
        let w = c * e * libm::exp(-1.0 / e);
        if w < 0.2 {
            let u = sign * w;
            sum += libm::exp((a - 1.0) * log_1p_minus(u) - (distance + 1.0) * u) * (w + w / e);
        }
        e *= 1.133_148_453_066_826_3;
    }
    sum
}

/// The limit on the terms of the series and of the continued fraction, of which at most 4000 are significant.
const MAX_TERMS: f64 = 8_000.0;

/// Returns the series Σ xᵏ/(a·(a + 1)···(a + k)).
fn lower_gamma_series(a: f64, x: f64) -> f64 {
    let (mut term, mut sum, mut k) = (1.0 / a, 1.0 / a, 1.0);
    while term > 0.0625 * f64::EPSILON * sum && k < MAX_TERMS {
        term *= x / (a + k);
        sum += term;
        k += 1.0;
    }
    sum
}

/// Returns the continued fraction of Γ(a, x)·eˣ·x⁻ᵃ.
fn upper_gamma_fraction(a: f64, x: f64) -> f64 {
    let mut b = x + 1.0 - a;
    let (mut c, mut d) = (1e30, 1.0 / b);
    let (mut fraction, mut ratio, mut k) = (d, 0.0f64, 1.0);
    while (ratio - 1.0).abs() > 4.0 * f64::EPSILON && k < MAX_TERMS {
        let n = -k * (k - a);
        b += 2.0;
        d = 1.0 / (n * d + b);
        c = b + n / c;
        ratio = c * d;
        fraction *= ratio;
        k += 1.0;
    }
    fraction
}

/// Returns ln(1 + u) − u for |u| ≤ 0.2, without cancellation.
#[inline(always)]
fn log_1p_minus(u: f64) -> f64 {
    let s = u / (2.0 + u);
    let z = s * s;
    let series = horner(
        z,
        [1.0 / 3.0, 1.0 / 5.0, 1.0 / 7.0, 1.0 / 9.0, 1.0 / 11.0, 1.0 / 13.0, 1.0 / 15.0, 1.0 / 17.0, 1.0 / 19.0],
    );
    2.0 * s * z * series - u * s
}
