//! The Airy function Ai, by the approximations of Cephes (Moshier 1989): a series near 0, rational functions elsewhere.

use crate::autograd::is_recorded;
use crate::ops::formula::{map, map_all};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::{Expr, Formula, GradientInput, GradientRequest, ValueKind};
use pellucid_ir::{Result, formula};
use std::f64::consts::{FRAC_PI_4, PI};

/// The largest |x| for which the series is used.
const END: f64 = 2.09;

/// Evaluates Σ cₖ·tᵏ from coefficients in descending order of the power.
fn polynomial(coefficients: &[f64], t: Expr) -> Expr {
    let first = t * coefficients[0] + coefficients[1];
    coefficients[2..].iter().fold(first, |p, &c| p * t + c)
}

/// Evaluates a polynomial like [`polynomial`]. The leading coefficient is 1, and is not in the list.
fn monic_polynomial(coefficients: &[f64], t: Expr) -> Expr {
    let first = t + coefficients[0];
    coefficients[1..].iter().fold(first, |p, &c| p * t + c)
}

/// Evaluates 1 + z/(a·b) + z²/(a·b·(a + 3)·(b + 3)) + ... With z = x³, the series for a = 2, b = 3 and x times the
/// series for a = 3, b = 4 solve y″ = x·y.
fn airy_series(z: Expr, a: f64, b: f64) -> Expr {
    let next = |k: i32| z * ((a + 3.0 * f64::from(k)) * (b + 3.0 * f64::from(k))).recip();
    (0..12).rev().fold(1.0 + next(12), |rest, k| 1.0 + next(k) * rest)
}

/// Computes Ai for |x| ≤ 2.09.
fn airy_near_zero(x: Expr) -> Expr {
    let z = x * x * x;
    0.355_028_053_887_817_2 * airy_series(z, 2.0, 3.0) - 0.258_819_403_792_806_8 * x * airy_series(z, 3.0, 4.0)
}

/// Computes Ai for x ≥ 2.09: e^(−ζ)/(2√π·x^¼) times a factor that tends to 1, with ζ = ⅔x^(3/2).
fn airy_positive(x: Expr) -> Expr {
    let root = x.sqrt();
    let zeta = x * root * (2.0 / 3.0);
    let t = zeta.recip();
    let near_one = polynomial(&AN, t) / polynomial(&AD, t);
    (0.5 / PI.sqrt()) * near_one * (-zeta).exp() / root.sqrt()
}

/// Computes Ai for x ≤ −2.09, an oscillation of amplitude 1/(√π·|x|^¼).
fn airy_negative(x: Expr) -> Expr {
    let root = (-x).sqrt();
    let zeta = -x * root * (2.0 / 3.0);
    let z = zeta.recip();
    let s = z * z;
    let sine_factor = 1.0 + s * polynomial(&AFN, s) / monic_polynomial(&AFD, s);
    let cosine_factor = z * polynomial(&AGN, s) / monic_polynomial(&AGD, s);
    let phase = zeta + FRAC_PI_4;
    PI.sqrt().recip() * (phase.sin() * sine_factor - phase.cos() * cosine_factor) / root.sqrt()
}

/// Computes Ai. Each branch clamps its argument to its range, so that unused branches produce no NaN gradients. The
/// branch near 0 computes the result for NaN.
fn airy_value(x: Expr) -> Expr {
    let inner = airy_near_zero(x.gt(END).select(0.0, x.lt(-END).select(0.0, x)));
    let outer = airy_positive(x.gt(END).select(x, END));
    x.lt(-END).select(airy_negative(x.lt(-END).select(x, -END)), x.gt(END).select(outer, inner))
}

fn value_formula() -> &'static Formula {
    formula! { static airy_ai(x) = airy_value(x); }
}

/// Limits x from above, because x·Ai would be ∞·0 at ∞. Beyond the limit, Ai and Ai′ are 0.
fn limit_argument(x: Expr) -> Expr {
    x.gt(1e3).select(1e3, x)
}

/// Computes Ai′ as the derivative of the approximations of Ai.
fn airy_slope(x: Expr) -> Expr {
    let x = limit_argument(x);
    let gradient = value_formula().gradient(GradientRequest::for_input(0));
    let operand = |read: &GradientInput| {
        if matches!(read, GradientInput::Gradient(_)) { Expr::literal(1, ValueKind::Number) } else { x }
    };
    let operands: Vec<Expr> = gradient.reads.iter().map(operand).collect();
    gradient.formula.call(&operands, &[])[0]
}

/// Computes Ai(x), the Airy function of the first kind: the solution of y″ = x·y that tends to 0 as x grows. It is NaN
/// at −∞.
///
/// For x < 0, the phase ⅔·|x|^(3/2) is rounded to the dtype, as in PyTorch. The error relative to the amplitude is at
/// most 2ε·|x|^(3/2), where ε is the unit in the last place of 1: a result in `f32` has no correct digits for x below
/// about −3e4.
///
/// # Errors
/// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) for a dtype that the formula is not defined for.
#[tensor_method]
pub fn airy_ai(x: &Tensor) -> Result<Tensor> {
    if !is_recorded(&[x]) {
        return map(value_formula(), &[x], &[]);
    }
    // Since Ai″ = x·Ai, the derivatives of every order are sums of Ai and Ai′ with polynomial coefficients in x. So the
    // approximations are differentiated only once.
    let with_slope = formula! {
        static airy_ai(x) = [airy_value(x), airy_slope(x)];
        d x = g0 * y1 + g1 * limit_argument(x) * y0;
    };
    Ok(map_all(with_slope, &[x], &[])?.swap_remove(0))
}

const AN: [f64; 8] = [
    0.346_538_101_525_629,
    12.007_595_273_964_581,
    76.279_605_361_523_45,
    168.089_224_934_630_58,
    159.756_391_350_164_42,
    70.536_090_684_044_42,
    14.026_469_116_338_967,
    1.0,
];

const AD: [f64; 8] = [
    0.567_594_532_638_770_2,
    14.756_256_258_484_72,
    84.513_897_014_147_46,
    177.318_088_145_400_45,
    164.234_692_871_529_7,
    71.477_840_082_557_56,
    14.095_913_560_783_403,
    1.0,
];

const AFN: [f64; 9] = [
    -0.131_696_323_418_331_8,
    -0.626_456_544_431_912_3,
    -0.693_158_036_036_933_5,
    -0.279_779_981_545_119_1,
    -0.049_190_013_260_950_03,
    -0.004_062_659_235_948_854,
    -0.000_159_276_496_239_262_1,
    -2.776_491_081_552_329e-6,
    -1.677_876_984_891_146_5e-8,
];

const AFD: [f64; 9] = [
    13.356_042_070_655_324,
    32.682_503_279_522_464,
    26.736_704_094_149_957,
    9.187_074_029_072_596,
    1.475_291_467_716_664_2,
    0.115_687_173_795_188_04,
    0.004_402_916_416_152_112,
    7.547_203_482_874_142e-5,
    4.518_500_929_705_803_5e-7,
];

const AGN: [f64; 11] = [
    0.019_733_993_209_168_57,
    0.391_103_029_615_688_27,
    1.065_798_975_995_955_9,
    0.939_169_229_816_650_2,
    0.351_465_656_105_547_64,
    0.063_388_891_962_892_55,
    0.005_858_041_130_483_885,
    0.000_282_851_600_836_737,
    6.987_936_699_972_61e-6,
    8.117_892_395_543_892e-8,
    3.415_517_847_659_236e-10,
];

const AGD: [f64; 10] = [
    9.308_929_080_774_42,
    19.835_292_871_831_214,
    15.564_662_893_286_462,
    5.476_860_694_229_755,
    0.954_293_611_618_961_9,
    0.086_458_082_635_239_21,
    0.004_126_565_238_242_226,
    0.000_101_259_085_116_509_14,
    1.171_667_332_144_135_2e-6,
    4.918_345_700_629_3e-9,
];
