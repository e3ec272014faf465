//! The error function, its complement and its inverse.

use super::exp::{exp, times_exp_of_product};
use super::log::{ln, ln_short};
use super::polynomial;

/// Returns erf x for |x| ≤ 1 as x + x·P(x²), with a minimax polynomial P of error 2⁻⁶².
#[inline(always)]
fn erf_near(x: f64) -> f64 {
    polynomial(
        x * x,
        [
            1.283_791_670_955_125_737_5e-1,
            -3.761_263_890_318_374_760_4e-1,
            1.128_379_167_095_485_749_6e-1,
            -2.686_617_064_507_289_570_2e-2,
            5.223_977_624_780_874_586_2e-3,
            -8.548_326_978_742_632_461_5e-4,
            1.205_533_103_691_379_444_4e-4,
            -1.492_559_350_719_066_215_8e-5,
            1.646_097_282_118_467_262_8e-6,
            -1.635_002_526_005_509_620_4e-7,
            1.465_788_005_199_365_969_7e-8,
            -1.136_566_662_456_770_189_6e-9,
            5.945_262_640_753_955_370_7e-11,
        ],
    )
    .mul_add(x, x)
}

/// Returns e^(a²/2)·Φ(−a) for 0 ≤ a ≤ 39.7, a rational minimax function with a relative error of 2⁻⁵⁹.
///
/// It is the quotient of a polynomial p and (k·a + m)·p + s(a). In this form, most of the rounding error of p cancels.
#[inline(always)]
fn scaled_tail(a: f64) -> f64 {
    let p = polynomial(
        a,
        [
            0.5,
            8.283_925_860_021_745_400e-1,
            6.803_398_980_320_791_647e-1,
            3.579_094_463_098_985_749e-1,
            1.323_232_789_612_925_952e-1,
            3.576_213_003_318_175_338e-2,
            7.145_879_313_421_102_613e-3,
            1.043_734_815_815_125_302e-3,
            1.070_598_356_111_358_090e-4,
            7.013_445_986_459_590_983e-6,
            2.256_008_005_459_505_007e-7,
        ],
    );
    let s = polynomial(
        a,
        [
            9.999_999_999_294_377_472e-1,
            1.201_355_595_375_073_537,
            7.427_505_990_778_054_611e-1,
            2.985_007_292_788_656_049e-1,
            8.458_579_443_121_115_172e-2,
            1.738_099_264_586_007_518e-2,
            2.581_095_278_614_275_652e-3,
            2.672_282_074_890_732_464e-4,
            1.758_010_219_311_916_460e-5,
            5.654_973_414_889_307_032e-7,
        ],
    );
    let line = 2.506_628_274_630_469_246f64.mul_add(a, 1.411_245_056_927_979_012e-10);
    p / line.mul_add(p, s)
}

/// Returns erfc x for 0 ≤ x ≤ 28.
#[inline(always)]
fn erfc_far(x: f64) -> f64 {
    times_exp_of_product(2.0 * scaled_tail(x * std::f64::consts::SQRT_2), -x, x)
}

/// Returns the error function erf x = 2/√π ∫₀ˣ e^(−t²) dt.
#[inline(always)]
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    let tail = (1.0 - erfc_far(if a > 6.0 { 6.0 } else { a })).copysign(x);
    if a > 1.0 { tail } else { erf_near(x) }
}

/// Returns erfc x = 1 − erf x, which is accurate even for large x.
#[inline(always)]
pub fn erfc(x: f64) -> f64 {
    let a = x.abs();
    let tail = erfc_far(if a > 28.0 { 28.0 } else { a });
    let y = if x < 0.0 { 2.0 - tail } else { tail };
    if a < 0.5 { 1.0 - erf_near(x) } else { y }
}

/// Returns Φ(x) = ½·erfc(−x/√2), the standard normal distribution function, which is accurate even for large negative
/// x.
#[inline(always)]
pub fn ndtr(x: f64) -> f64 {
    let a = x.abs();
    // Beyond 39 the result is 0 or 1.
    let a = if a > 39.0 { 39.0 } else { a };
    let tail = times_exp_of_product(scaled_tail(a), -0.5 * a, a);
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// Returns e^(x²)·erfc x. Above 28 it is computed by the asymptotic series (Abramowitz & Stegun 7.1.23).
#[inline(always)]
pub fn erfcx(x: f64) -> f64 {
    let a = x.abs();
    let c = if a > 28.0 { 28.0 } else { a };
    let near = 2.0 * scaled_tail(c * std::f64::consts::SQRT_2);
    let v = 0.5 / (a * a);
    let series = polynomial(v, [1.0, -1.0, 3.0, -15.0, 105.0, -945.0, 10395.0]);
    let y = if a > 28.0 { series * FRAC_1_SQRT_PI / a } else { near };
    // For x < 0 the result is 2·e^(x²) − e^(x²)·erfc |x|; the rounding error d of s = x² is compensated.
    let s = x * x;
    let d = x.mul_add(x, -s);
    let e = 2.0 * exp(s);
    // An infinite e must not be multiplied by a negative d, because the sum would be NaN.
    let left = if e < f64::INFINITY { e.mul_add(d, e) - y } else { f64::INFINITY };
    let y = if x < 0.0 { left } else { y };
    if x.is_nan() { x } else { y }
}

/// 1/√π.
const FRAC_1_SQRT_PI: f64 = 0.564_189_583_547_756_286_9;

/// Returns y such that Φ(y) = ½ + q, for |q| ≤ 0.425.
#[inline(always)]
fn middle_quantile(q: f64) -> f64 {
    let r = q.mul_add(-q, 0.180625);
    q * polynomial(
        r,
        [
            3.387_132_872_796_366_608_0,
            1.331_416_678_917_843_774_5e2,
            1.971_590_950_306_551_442_7e3,
            1.373_169_376_550_946_112_5e4,
            4.592_195_393_154_987_145_7e4,
            6.726_577_092_700_870_085_3e4,
            3.343_057_558_358_812_810_5e4,
            2.509_080_928_730_122_672_7e3,
        ],
    ) / polynomial(
        r,
        [
            1.0,
            4.231_333_070_160_091_125_2e1,
            6.871_870_074_920_579_083_0e2,
            5.394_196_021_424_751_107_7e3,
            2.121_379_430_158_659_586_7e4,
            3.930_789_580_009_271_061_0e4,
            2.872_908_573_572_194_267_4e4,
            5.226_495_278_852_854_561_0e3,
        ],
    )
}

/// Returns y such that Φ(y) = ½ + q, where `tail` = min(Φ(y), 1 − Φ(y)).
///
/// Evaluates the rational functions of Wichura (AS 241, 1988), whose relative error is 10⁻¹⁶.
#[inline(always)]
fn quantile(q: f64, tail: f64) -> f64 {
    let middle = middle_quantile(q);
    // The tails are functions of r = √(−ln tail).
    let r = (-ln(tail)).sqrt();
    let t = r - 1.6;
    let near = polynomial(
        t,
        [
            1.423_437_110_749_683_577_34,
            4.630_337_846_156_545_295_90,
            5.769_497_221_460_691_405_50,
            3.647_848_324_763_204_605_04,
            1.270_458_252_452_368_382_58,
            2.417_807_251_774_506_117_70e-1,
            2.272_384_498_926_918_458_33e-2,
            7.745_450_142_783_414_076_40e-4,
        ],
    ) / polynomial(
        t,
        [
            1.0,
            2.053_191_626_637_758_821_87,
            1.676_384_830_183_803_849_40,
            6.897_673_349_851_000_045_50e-1,
            1.481_039_764_274_800_745_90e-1,
            1.519_866_656_361_645_719_66e-2,
            5.475_938_084_995_344_946_00e-4,
            1.050_750_071_644_416_843_24e-9,
        ],
    );
    let t = r - 5.0;
    let outer_tail = polynomial(
        t,
        [
            6.657_904_643_501_103_777_20,
            5.463_784_911_164_114_369_90,
            1.784_826_539_917_291_335_80,
            2.965_605_718_285_048_912_30e-1,
            2.653_218_952_657_612_309_30e-2,
            1.242_660_947_388_078_438_60e-3,
            2.711_555_568_743_487_578_15e-5,
            2.010_334_399_292_288_132_65e-7,
        ],
    ) / polynomial(
        t,
        [
            1.0,
            5.998_322_065_558_879_376_90e-1,
            1.369_298_809_227_358_053_10e-1,
            1.487_536_129_085_061_485_25e-2,
            7.868_691_311_456_132_591_00e-4,
            1.846_318_317_510_054_681_80e-5,
            1.421_511_758_316_445_888_70e-7,
            2.044_263_103_389_939_785_64e-15,
        ],
    );
    let outer_tail = if r <= 5.0 { near } else { outer_tail }.copysign(q);
    if q.abs() <= 0.425 { middle } else { outer_tail }
}

/// Returns erf⁻¹ x = Φ⁻¹((1 + x)/2)/√2; ±∞ at ±1, NaN outside [−1, 1].
#[inline(always)]
pub fn erfinv(x: f64) -> f64 {
    let a = x.abs();
    let y = quantile(0.5 * x, 0.5 * (1.0 - a)) * std::f64::consts::FRAC_1_SQRT_2;
    let y = if a == 1.0 { f64::INFINITY.copysign(x) } else { y };
    if a <= 1.0 { y } else { f64::NAN }
}

/// Returns erf⁻¹ x for an `f32` with |x| < 1, with a relative error of 10⁻¹⁰. `single::erfinv` rounds its results.
#[inline(always)]
pub fn erfinv_short(x: f64) -> f64 {
    let a = x.abs();
    let w = -ln_short((1.0 - a) * (1.0 + a));
    let near = polynomial(
        w - 2.5,
        [
            1.501_409_351_146_384_6,
            0.246_640_276_740_310_5,
            -4.177_318_237_818_001_6e-3,
            -1.252_707_927_755_813_8e-3,
            2.182_514_750_183_782_9e-4,
            -4.996_029_793_085_69e-6,
            -3.417_694_437_194_123e-6,
            4.787_016_840_970_178e-7,
            1.387_428_515_078_472_8e-8,
            -1.086_384_211_719_076_2e-8,
            8.062_102_112_709_003e-10,
            1.235_954_681_386_647_7e-10,
            -1.976_811_184_664_257_8e-11,
        ],
    );
    let tail = polynomial(
        w.sqrt() - 3.0,
        [
            2.832_976_798_449_459_4,
            1.001_675_274_579_695_5,
            9.445_550_762_263_176_7e-3,
            -7.643_731_613_527_196_9e-3,
            5.684_683_438_622_216_9e-3,
            -3.559_450_187_966_863_5e-3,
            1.487_060_689_974_684_7e-3,
            -1.468_573_177_806_614_5e-4,
            -2.936_993_217_023_875_2e-4,
            2.041_105_372_986_395_5e-4,
            -2.977_647_037_769_874_7e-5,
            -2.657_125_433_047_004e-5,
            1.040_542_571_056_032_9e-5,
        ],
    );
    x * if w < 5.0 { near } else { tail }
}

/// Returns Φ⁻¹ x, the inverse of the standard normal distribution function; NaN outside [0, 1].
#[inline(always)]
pub fn ndtri(x: f64) -> f64 {
    let (q, upper) = (x - 0.5, 1.0 - x);
    let tail = if x < upper { x } else { upper };
    let y = quantile(q, tail);
    let y = if tail == 0.0 { f64::INFINITY.copysign(q) } else { y };
    if tail >= 0.0 { y } else { f64::NAN }
}
