//! Inverse trigonometric functions (fdlibm, Sun Microsystems 1993).

use super::polynomial;
use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};

/// π minus the nearest `f64`.
const PI_LOW: f64 = 1.224_646_799_147_353_177_2e-16;

/// Returns arctan x.
///
/// The argument is reduced to |t| ≤ 7/16 by arctan a = arctan c + arctan((a − c)/(1 + a·c)) with c = ½, 1, 3/2 or ∞.
/// arctan c is stored as the sum of two floats.
#[inline(always)]
pub fn atan(x: f64) -> f64 {
    let a = x.abs();
    let (num, den, high, low) = if a < 0.4375 {
        (a, 1.0, 0.0, 0.0)
    } else if a < 0.6875 {
        (2.0 * a - 1.0, 2.0 + a, 4.636_476_090_008_060_935_15e-1, 2.269_877_745_296_168_709_24e-17)
    } else if a < 1.1875 {
        (a - 1.0, a + 1.0, FRAC_PI_4, 3.061_616_997_868_383_017_93e-17)
    } else if a < 2.4375 {
        (a - 1.5, 1.0 + 1.5 * a, 9.827_937_232_473_290_540_82e-1, 1.390_331_103_123_099_845_16e-17)
    } else {
        (-1.0, a, FRAC_PI_2, 6.123_233_995_736_766_035_87e-17)
    };
    let t = num / den;
    let z = t * t;
    let p = z * polynomial(
        z,
        [
            3.333_333_333_333_293_180_27e-1,
            -1.999_999_999_987_648_324_76e-1,
            1.428_571_427_250_346_637_11e-1,
            -1.111_111_040_546_235_578_80e-1,
            9.090_887_133_436_506_561_96e-2,
            -7.691_876_205_044_829_994_95e-2,
            6.661_073_137_387_531_206_69e-2,
            -5.833_570_133_790_573_486_45e-2,
            4.976_877_994_615_932_360_17e-2,
            -3.653_157_274_421_691_552_70e-2,
            1.628_582_011_536_578_236_23e-2,
        ],
    );
    (high - ((t * p - low) - t)).copysign(x)
}

/// Returns the angle of the point (x, y), in [−π, π].
#[inline(always)]
pub fn atan2(y: f64, x: f64) -> f64 {
    let infinite = x.abs() == f64::INFINITY && y.abs() == f64::INFINITY;
    let slope = (y / x).abs();
    let slope = if infinite { 1.0 } else { slope };
    // The quotient of two zeros is NaN.
    let slope = if y == 0.0 { 0.0 } else { slope };
    let angle = atan(slope);
    let angle = if x.is_sign_negative() { PI - (angle - PI_LOW) } else { angle };
    if x.is_nan() || y.is_nan() { f64::NAN } else { angle.copysign(y) }
}

/// Returns [`atan2`] for operands that are exact in `f32`, with a relative error of 2⁻³⁹. The `f32` functions round its
/// results.
///
/// The quotient is reduced to |t| ≤ tan π/8 by arctan q = π/4 + arctan((q − 1)/(q + 1)) and arctan q = π/2 −
/// arctan(1/q), with one division.
#[inline(always)]
pub fn atan2_short(y: f64, x: f64) -> f64 {
    const TAN_PI_8: f64 = 0.414_213_562_373_095_05;
    // After clamping, the quotient of two infinities is 1. The quotient of a finite `f32` and an infinity is so small
    // or so large that the rounded angle does not change.
    let num = if y.abs() > 1e300 { 1e300 } else { y.abs() };
    let den = if x.abs() > 1e300 { 1e300 } else { x.abs() };
    let is_steep = num * TAN_PI_8 > den;
    let is_middle = num > den * TAN_PI_8;
    let top = if is_steep {
        -den
    } else if is_middle {
        num - den
    } else {
        num
    };
    let bottom = if is_steep {
        num
    } else if is_middle {
        num + den
    } else {
        den
    };
    // The angle of the origin is 0.
    let t = top / if bottom == 0.0 { 1.0 } else { bottom };
    let p = polynomial(
        t * t,
        [
            9.999_999_999_992_754e-1,
            -3.333_333_327_874_140_6e-1,
            1.999_999_322_211_194_2e-1,
            -1.428_539_241_960_278_8e-1,
            1.110_355_421_443_651_3e-1,
            -8.993_382_112_270_767e-2,
            6.977_703_531_032_4e-2,
            -3.771_336_204_557_953e-2,
        ],
    );
    let base = if is_steep {
        FRAC_PI_2
    } else if is_middle {
        FRAC_PI_4
    } else {
        0.0
    };
    let angle = p.mul_add(t, base);
    (if x.is_sign_negative() { PI - angle } else { angle }).copysign(y)
}
