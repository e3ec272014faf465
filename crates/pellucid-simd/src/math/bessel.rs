//! Bessel functions of integer order in `f64`; the `f32` methods round their results. The code is scalar: one call per
//! lane.

use super::double::{exp, ln};
use super::gamma::horner;
use std::f64::consts::{FRAC_2_PI, PI};

/// 1/√π.
const FRAC_1_SQRT_PI: f64 = 0.564_189_583_547_756_3;

/// The highest order of a modified Bessel function. Derivatives need orders slightly above the common ones.
const MAX_ORDER: f64 = 30.0;

/// Returns J_n(x) for an integer n with |n| ≤ 10⁴. For any other n, returns NaN.
///
/// For n < |x| the recurrence J_{n+1} = (2n/x)·J_n − J_{n−1} is stable. For n ≥ |x| it is applied downwards, and starts
/// with the quotient J_n/J_{n−1}, which a continued fraction computes (fdlibm, Sun Microsystems 1993).
pub fn bessel_j(n: f64, x: f64) -> f64 {
    let (order, a) = (n.abs(), x.abs());
    if order > 1e4 || order != order.floor() || x.is_nan() {
        return f64::NAN;
    }
    let sign = if is_odd(order) && x.is_sign_negative() != (n < 0.0) { -1.0 } else { 1.0 };
    if a == f64::INFINITY {
        return sign * 0.0;
    }
    if order >= 2.0 && a < 2e-9 {
        // The leading term (x/2)ⁿ/n! of the power series.
        let (mut power, mut i) = (1.0, 1.0);
        while i <= order && power > 0.0 {
            power *= 0.5 * a / i;
            i += 1.0;
        }
        return sign * power;
    }
    // The loop computes J₀, J₁ or both. `bessel_jy_01` is called in one place only, because shaders are compiled with
    // all calls inlined.
    let (mut below, mut y) = (0.0, 0.0);
    let mut k = if order >= 2.0 { 0.0 } else { order };
    let last = if order >= 1.0 { 1.0 } else { 0.0 };
    while k <= last {
        below = y;
        y = bessel_jy_01(k, a, 1.0);
        k += 1.0;
    }
    if order < 2.0 {
        return sign * y;
    }
    if order < a {
        k = 1.0;
        while k < order {
            let above = y * (2.0 * k / a) - below;
            below = y;
            y = above;
            k += 1.0;
        }
        return sign * y;
    }
    // The number of terms of the continued fraction is determined by the growth of its denominators.
    let mut factor = 2.0 * order / a + 2.0 / a;
    let (mut previous, mut denominator) = (2.0 * order / a, 2.0 * order / a * factor - 1.0);
    let mut terms = 1.0;
    while denominator < 1e9 {
        factor += 2.0 / a;
        let next = factor * denominator - previous;
        previous = denominator;
        denominator = next;
        terms += 1.0;
    }
    let mut quotient = 0.0;
    while terms >= 0.0 {
        quotient = 1.0 / (2.0 * (terms + order) / a - quotient);
        terms -= 1.0;
    }
    // `upper` and `lower` are J_k and J_{k−1}, both divided by J_{n−1} and by a scale that prevents overflow.
    let (mut upper, mut lower) = (quotient, 1.0f64);
    k = order - 1.0;
    while k > 0.0 {
        let next = lower * (2.0 * k / a) - upper;
        upper = lower;
        lower = next;
        if lower.abs() > 1e20 {
            upper /= lower;
            quotient /= lower;
            lower = 1.0;
        }
        k -= 1.0;
    }
    let scaled = if below.abs() >= y.abs() { below / lower } else { y / upper };
    sign * (quotient * scaled)
}

/// Returns Y_n(x) for an integer n with |n| ≤ 10⁴ and x ≥ 0, otherwise NaN. At x = 0, the result is ∞ if n is odd and
/// negative, and −∞ otherwise.
///
/// The recurrence Y_{n+1} = (2n/x)·Y_n − Y_{n−1} is stable for all x.
pub fn bessel_y(n: f64, x: f64) -> f64 {
    let order = n.abs();
    if order > 1e4 || order != order.floor() || x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == f64::INFINITY {
        return 0.0;
    }
    let sign = if is_odd(order) && n < 0.0 { -1.0 } else { 1.0 };
    if x == 0.0 {
        return sign * f64::NEG_INFINITY;
    }
    let (mut below, mut y) = (0.0, 0.0);
    let mut k = if order >= 2.0 { 0.0 } else { order };
    let last = if order >= 1.0 { 1.0 } else { 0.0 };
    while k <= last {
        below = y;
        y = bessel_jy_01(k, x, 2.0);
        k += 1.0;
    }
    k = 1.0;
    while k < order && y > f64::NEG_INFINITY {
        let above = 2.0 * k / x * y - below;
        below = y;
        y = above;
        k += 1.0;
    }
    sign * y
}

/// The coefficients of R, S, U and V in ascending powers of 1/x², one coefficient of each per line (fdlibm, Sun
/// Microsystems 1993). P is 1 + R/S. Q is (U/V − 1/8)/x for order 0, and (U/V + 3/8)/x for order 1.
#[rustfmt::skip]
const QUOTIENTS: [[f64; 4]; 56] = [
    // Order 0, x ≥ 8.
    [0.0, 1.0, 0.0, 1.0],
    [-7.031_249_999_999_004e-2, 1.165_343_646_196_681_8e2, 7.324_218_749_999_35e-2, 1.637_760_268_956_898_2e2],
    [-8.081_670_412_753_498, 3.833_744_753_641_218_3e3, 1.176_820_646_822_527e1, 8.098_344_946_564_498e3],
    [-2.570_631_056_797_048_5e2, 4.059_785_726_484_725_5e4, 5.576_733_802_564_019e2, 1.425_382_914_191_204_8e5],
    [-2.485_216_410_094_288e3, 1.167_529_725_643_759_2e5, 8.859_197_207_564_686e3, 8.033_092_571_195_144e5],
    [-5.253_043_804_907_295e3, 4.762_772_841_467_309_6e4, 3.701_462_677_768_878e4, 8.405_015_798_190_605e5],
    [0.0, 0.0, 0.0, -3.438_992_935_378_666e5],
    // Order 0, x ≥ 4.5454.
    [-1.141_254_646_918_945e-11, 1.0, 1.840_859_635_945_155_3e-11, 1.0],
    [-7.031_249_408_735_993e-2, 6.075_393_826_923_003_4e1, 7.324_217_666_126_848e-2, 8.277_661_022_365_378e1],
    [-4.159_610_644_705_878, 1.051_252_305_957_045_8e3, 5.835_635_089_620_569_5, 2.077_814_164_213_93e3],
    [-6.767_476_522_651_673e1, 5.978_970_943_338_558e3, 1.351_115_772_864_498_3e2, 1.884_728_877_857_181e4],
    [-3.312_312_996_491_729_7e2, 9.625_445_143_577_745e3, 1.027_243_765_961_641e3, 5.675_111_228_949_473e4],
    [-3.464_333_883_656_049e2, 2.406_058_159_229_391e3, 1.989_977_858_646_053_8e3, 3.597_675_384_251_145e4],
    [0.0, 0.0, 0.0, -5.354_342_756_019_448e3],
    // Order 0, x ≥ 2.8571.
    [-2.547_046_017_719_519e-9, 1.0, 4.377_410_140_897_386e-9, 1.0],
    [-7.031_196_163_814_817e-2, 3.585_603_380_552_097e1, 7.324_111_800_429_114e-2, 4.875_887_297_245_872e1],
    [-2.409_032_215_495_296, 3.615_139_830_503_038_6e2, 3.344_231_375_161_707, 7.096_892_210_566_06e2],
    [-2.196_597_747_348_831e1, 1.193_607_837_921_115_3e3, 4.262_184_407_454_126_5e1, 3.704_148_226_201_113_6e3],
    [-5.807_917_047_017_376e1, 1.127_996_798_569_074_1e3, 1.708_080_913_405_656e2, 6.460_425_167_525_689e3],
    [-3.144_794_705_948_885e1, 1.735_809_308_133_357_5e2, 1.667_339_486_966_511_7e2, 2.516_333_689_203_689_6e3],
    [0.0, 0.0, 0.0, -1.492_474_518_361_564e2],
    // Order 0, x ≥ 2.
    [-8.875_343_330_325_264e-8, 1.0, 1.504_444_448_869_832_7e-7, 1.0],
    [-7.030_309_954_836_247e-2, 2.222_029_975_320_888e1, 7.322_342_659_630_793e-2, 3.036_558_483_552_192e1],
    [-1.450_738_467_809_529_9, 1.362_067_942_182_152e2, 1.998_191_740_938_16, 2.693_481_186_080_498_4e2],
    [-7.635_696_138_235_278, 2.704_702_786_580_835e2, 1.449_560_293_478_857_4e1, 8.447_837_575_953_201e2],
    [-1.119_316_688_603_567_5e1, 1.538_753_942_083_203_3e2, 3.166_623_175_047_815_4e1, 8.829_358_451_124_886e2],
    [-3.233_645_793_513_353_4, 1.465_761_769_482_562e1, 1.625_270_757_109_292_7e1, 2.126_663_885_117_988_3e2],
    [0.0, 0.0, 0.0, -5.310_954_938_826_669_5],
    // Order 1, x ≥ 8.
    [0.0, 1.0, 0.0, 1.0],
    [1.171_874_999_999_886_5e-1, 1.142_073_703_756_784_1e2, -1.025_390_624_999_927_1e-1, 1.613_953_697_007_229e2],
    [1.323_948_065_930_735_8e1, 3.650_930_834_208_534_6e3, -1.627_175_345_445_9e1, 7.825_385_999_233_485e3],
    [4.120_518_543_073_785_6e2, 3.695_620_602_690_334_6e4, -7.596_017_225_139_501e2, 1.338_753_362_872_495_8e5],
    [3.874_745_389_139_605_3e3, 9.760_279_359_349_508e4, -1.184_980_667_024_295_9e4, 7.196_577_236_832_409e5],
    [7.914_479_540_318_917e3, 3.080_427_206_278_888e4, -4.843_851_242_857_503_5e4, 6.666_012_326_177_764e5],
    [0.0, 0.0, 0.0, -2.944_902_643_038_346_4e5],
    // Order 1, x ≥ 4.5454.
    [1.319_905_195_562_435_2e-11, 1.0, -2.089_799_311_417_641e-11, 1.0],
    [1.171_874_931_906_141e-1, 5.928_059_872_211_313e1, -1.025_390_502_413_754_3e-1, 8.127_655_013_843_358e1],
    [6.802_751_278_684_329, 9.914_014_187_336_144e2, -8.056_448_281_239_36, 1.991_798_734_604_859_6e3],
    [1.083_081_829_901_891_1e2, 5.353_266_952_914_88e3, -1.836_696_074_748_883_8e2, 1.746_848_519_249_089e4],
    [5.176_361_395_331_998e2, 7.844_690_317_495_512e3, -1.373_193_760_655_081_6e3, 4.985_142_709_103_523e4],
    [5.287_152_013_633_375e2, 1.504_046_888_103_610_6e3, -2.612_444_404_532_156_6e3, 2.794_807_516_389_181_2e4],
    [0.0, 0.0, 0.0, -4.719_183_547_951_285e3],
    // Order 1, x ≥ 2.8571.
    [3.025_039_161_373_736e-9, 1.0, -5.078_312_264_617_666e-9, 1.0],
    [1.171_868_655_672_535_9e-1, 3.479_130_950_012_515e1, -1.025_378_298_208_370_9e-1, 4.766_515_503_237_295e1],
    [3.932_977_500_333_156_4, 3.367_624_587_478_257_5e2, -4.610_115_811_394_734, 6.738_651_126_766_997e2],
    [3.511_940_355_916_369e1, 1.046_871_399_757_751_3e3, -5.784_722_165_627_836_4e1, 3.380_152_866_795_263_4e3],
    [9.105_501_107_507_813e1, 8.908_113_463_982_564e2, -2.282_445_407_376_317e2, 5.547_729_097_207_228e3],
    [4.855_906_851_973_649e1, 1.037_879_324_396_392_8e2, -2.192_101_284_789_093_3e2, 1.903_119_193_388_108e3],
    [0.0, 0.0, 0.0, -1.352_011_914_443_073_4e2],
    // Order 1, x ≥ 2.
    [1.077_108_301_068_737_4e-7, 1.0, -1.783_817_275_109_588_7e-7, 1.0],
    [1.171_762_194_626_833_5e-1, 2.143_648_593_638_214e1, -1.025_170_426_079_855_5e-1, 2.953_336_290_605_238_5e1],
    [2.368_514_966_676_088, 1.252_902_271_684_027_5e2, -2.752_205_682_781_874_6, 2.529_815_499_821_905_3e2],
    [1.224_261_091_482_612_3e1, 2.322_764_690_571_628e2, -1.966_361_626_437_037_2e1, 7.575_028_348_686_454e2],
    [1.769_397_112_716_877_3e1, 1.176_793_732_871_471e2, -4.232_531_333_728_305e1, 7.393_932_053_204_672e2],
    [5.073_523_125_888_185, 8.364_638_933_716_183, -2.137_192_117_037_040_6e1, 1.559_490_033_366_661_2e2],
    [0.0, 0.0, 0.0, -4.959_498_988_226_282],
];

/// Returns true if an integer ≥ 0 is odd. The most frequent orders need no call to `floor`.
#[inline(always)]
fn is_odd(order: f64) -> bool {
    if order < 2.0 { order == 1.0 } else { order * 0.5 != (order * 0.5).floor() }
}

/// Returns J_n(x) for `kind` 1 and Y_n(x) for `kind` 2, n = 0 or 1, for finite x > 0. J_n(0) is also supported.
#[inline(always)]
fn bessel_jy_01(order: f64, x: f64, kind: f64) -> f64 {
    if x >= 2.0 {
        return bessel_jy_01_from_2(order, x, kind);
    }
    let z = x * x;
    let first = if order == 0.0 { small_j0(x, z) } else { small_j1(x, z) };
    if kind == 1.0 {
        return first;
    }
    // Y₀(x) without the logarithmic term, and Y₁(x)/x without the logarithmic term and the pole, are functions of x².
    let product = first * libm::log(x);
    if order == 0.0 {
        let u = horner(
            z,
            [
                -7.380_429_510_868_723e-2,
                1.766_664_525_091_811_2e-1,
                -1.381_856_719_455_969e-2,
                3.474_534_320_936_836_5e-4,
                -3.814_070_537_243_641_6e-6,
                1.955_901_370_350_229_2e-8,
                -3.982_051_941_321_034e-11,
            ],
        );
        let v = horner(
            z,
            [
                1.0,
                1.273_048_348_341_237e-2,
                7.600_686_273_503_533e-5,
                2.591_508_518_404_578e-7,
                4.411_103_113_326_754_7e-10,
            ],
        );
        return u / v + FRAC_2_PI * product;
    }
    let u = horner(
        z,
        [
            -1.960_570_906_462_389_4e-1,
            5.044_387_166_398_113e-2,
            -1.912_568_958_757_635_5e-3,
            2.352_526_005_616_105e-5,
            -9.190_991_580_398_789e-8,
        ],
    );
    let v = horner(
        z,
        [
            1.0,
            1.991_673_182_366_499e-2,
            2.025_525_810_251_351_7e-4,
            1.356_088_010_975_162_3e-6,
            6.227_414_523_646_215e-9,
            1.665_592_462_079_920_8e-11,
        ],
    );
    x * (u / v) + FRAC_2_PI * (product - 1.0 / x)
}

/// Returns J₀(x) for 0 ≤ x < 2 and z = x² (fdlibm, Sun Microsystems 1993).
#[inline(always)]
fn small_j0(x: f64, z: f64) -> f64 {
    let r = z * horner(
        z,
        [
            1.562_499_999_999_999_5e-2,
            -1.899_792_942_388_547_2e-4,
            1.829_540_495_327_006_7e-6,
            -4.618_326_885_321_032e-9,
        ],
    );
    let s = horner(
        z,
        [1.0, 1.561_910_294_648_900_1e-2, 1.169_267_846_633_374_5e-4, 5.135_465_502_073_181e-7, 1.166_140_033_337_9e-9],
    );
    (1.0 + 0.5 * x) * (1.0 - 0.5 * x) + z * (r / s)
}

/// Returns J₁(x) for 0 ≤ x < 2 and z = x² (fdlibm, Sun Microsystems 1993).
#[inline(always)]
fn small_j1(x: f64, z: f64) -> f64 {
    let r = z * horner(z, [-6.25e-2, 1.407_056_669_551_897e-3, -1.599_556_310_840_356e-5, 4.967_279_996_095_844_5e-8]);
    let s = horner(
        z,
        [
            1.0,
            1.915_375_995_383_634_6e-2,
            1.859_467_855_886_309_2e-4,
            1.177_184_640_426_236_8e-6,
            5.046_362_570_762_170_4e-9,
            1.235_422_744_261_379_1e-11,
        ],
    );
    (0.5 + r / s) * x
}

/// Returns J_n(x) for `kind` 1 and Y_n(x) for `kind` 2, n = 0 or 1, for x ≥ 2.
///
/// With φ = x − π/4 − n·π/2, J is √(2/πx)·(P·cos φ − Q·sin φ) and Y is √(2/πx)·(P·sin φ + Q·cos φ).
#[inline(always)]
fn bessel_jy_01_from_2(order: f64, x: f64, kind: f64) -> f64 {
    let z = 1.0 / (x * x);
    let interval: usize = if x >= 8.0 {
        0usize
    } else if x >= 4.545_454 {
        7usize
    } else if x >= 2.857_142 {
        14usize
    } else {
        21usize
    };
    let base: usize = interval + if order == 1.0 { 28usize } else { 0usize };
    let (mut r, mut s, mut u, mut v) = (0.0, 0.0, 0.0, 0.0);
    let mut j: usize = base + 7usize;
    while j > base {
        j -= 1;
        let row = QUOTIENTS[j];
        r = r * z + row[0];
        s = s * z + row[1];
        u = u * z + row[2];
        v = v * z + row[3];
    }
    let (sine, cosine) = sine_and_cosine(x);
    let p = 1.0 + r / s;
    let q = (u / v + if order == 1.0 { 0.375 } else { -0.125 }) / x;
    // The phases of J₀, Y₀, J₁ and Y₁ differ by multiples of π/2: J₁ has the phase of Y₀, and Y₁ has the phase of −J₀.
    let is_cosine = kind - order == 1.0;
    let y = if is_cosine { p * cosine - q * sine } else { p * sine + q * cosine };
    (if kind + order == 3.0 { -y } else { y }) * (FRAC_1_SQRT_PI / x.sqrt())
}

/// Returns √2·sin(x − π/4) = sin x − cos x and √2·cos(x − π/4) = sin x + cos x for x ≥ 2.
///
/// Cancellation makes one of them inaccurate. It is computed as −cos 2x, the product of both, divided by the other.
/// Shaders use a separate function, which reduces x − π/4 exactly.
fn sine_and_cosine(x: f64) -> (f64, f64) {
    let (s, c) = (libm::sin(x), libm::cos(x));
    let (difference, sum) = (s - c, s + c);
    if x > 1e300 {
        return (difference, sum);
    }
    let product = -libm::cos(2.0 * x);
    if s * c < 0.0 { (difference, product / difference) } else { (product / sum, sum) }
}

/// Returns I_n(x) for an integer n with |n| ≤ 30, or for infinite x; otherwise NaN.
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

/// Returns K_n(x), which is ∞ at x = 0, for an integer n with |n| ≤ 30 and x ≥ 0; otherwise NaN.
pub fn bessel_k(n: f64, x: f64) -> f64 {
    let (y, exponent) = factor_and_exponent(n, x);
    y * exp(exponent)
}

/// Returns eˣ·K_n(x), which is ∞ at x = 0, for an integer n with |n| ≤ 30 and x ≥ 0; otherwise NaN.
pub fn bessel_ke(n: f64, x: f64) -> f64 {
    let (y, exponent) = factor_and_exponent(n, x);
    let scale = if exponent == 0.0 { x } else { 0.0 };
    y * exp(scale)
}

/// Returns (y, a) with K_n(x) = y·eᵃ. For finite x > 0, a is 0 or −x. Otherwise, y itself is 0, ∞ or NaN.
///
/// For x ≤ 2, K₀ and K₁ are power series (Abramowitz & Stegun 9.6.13; Temme 1975). For larger x they follow from a
/// continued fraction and a series, which Steed's method evaluates together (Temme 1975; Thompson & Barnett 1987). The
/// recurrence K_{n+1} = K_{n−1} + (2n/x)·K_n is stable.
fn factor_and_exponent(n: f64, x: f64) -> (f64, f64) {
    let order = n.abs();
    if !is_supported_order(order) || x.is_nan() || x < 0.0 {
        return (f64::NAN, -1.0);
    }
    if x == 0.0 || x == f64::INFINITY {
        return (if x == 0.0 { f64::INFINITY } else { 0.0 }, -1.0);
    }
    let is_small = x <= 2.0;
    let (mut zero, mut one) = (0.0, 0.0);
    if is_small {
        const EULER_GAMMA: f64 = 0.577_215_664_901_532_9;
        let z = 0.25 * x * x;
        // The terms are (z^k/k!²)·f and (z^k/k!²)·(½ − k·f), where f is ψ(k + 1) − ln(x/2).
        let (mut term, mut f, mut k) = (1.0, -ln(0.5 * x) - EULER_GAMMA, 0.0);
        while term > 1e-19 {
            zero += term * f;
            one += term * (0.5 - k * f);
            k += 1.0;
            f += 1.0 / k;
            term *= z / (k * k);
        }
        one *= 2.0 / x;
    } else {
        // Steed's method; u and `above` are products c·q of Temme's algorithm, which neither overflow nor underflow.
        let (mut b, mut k) = (2.0 * (1.0 + x), 1.0);
        let (mut d, mut u, mut above) = (1.0 / b, 0.0, 0.25);
        let (mut step, mut fraction, mut q) = (d, d, 0.25);
        let (mut sum, mut part) = (1.0 + q * d, q * d);
        while part.abs() > f64::EPSILON * 0.25 * sum && k < 200.0 {
            k += 1.0;
            // The partial numerator of the fraction is −((k − 1)² + k − ¾) for k ≥ 2.
            let a = -0.25 - k * (k - 1.0);
            let next = (b * above - u) / k;
            u = -a * above / k;
            above = next;
            q += above;
            b += 2.0;
            d = 1.0 / (b + a * d);
            step *= b * d - 1.0;
            fraction += step;
            part = q * step;
            sum += part;
        }
        zero = (0.5 * PI / x).sqrt() / sum;
        one = zero * (x + 0.5 - 0.25 * fraction) / x;
    }
    let (mut y, mut below, mut k) = (if order == 0.0 { zero } else { one }, zero, 1.0);
    while k < order {
        let next = below + 2.0 * k / x * y;
        below = y;
        y = next;
        k += 1.0;
    }
    (y, if is_small { 0.0 } else { -x })
}
