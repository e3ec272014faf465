//! The formulas of standard scores (x − mean) / √(var + eps) and of x / √(mean(x²) + eps).
//!
//! Both divide a deviation by the root of its mean square. Deviations are scaled by a power of two, c, so that the
//! squares of large elements do not overflow:
//!
//! ```text
//! d = (x − mean)·c or x·c     q = 1 / √(mean(d²) + eps·c²)     y = d·q
//! ```
//!
//! If eps > 0, all rows use one small c: squares that underflow are negligible compared with eps·c². If eps = 0, c is 1
//! in a row with a moderate mean square. Any other row is read again, and scaled by its largest magnitude. The GPU path
//! omits this rescaling, because a shader cannot skip a phase per row.
//!
//! With an incoming gradient a, and k = q²·mean(a·d), the derivative with respect to x is
//!
//! ```text
//! standard score: (a − mean(a) − k·d)·q·c     root mean square: (a − k·d)·q·c
//! ```

use crate::tensor::Tensor;
use pellucid_ir::formula::{Expr, Formula, row_len};
use pellucid_ir::{DType, Scalar, formula};

/// The parameters of the formulas: with one scale for all rows, c, −c and eps·c²; with one scale for each row, the
/// bounds of moderate mean squares, and the largest exponent of a scale.
pub(super) fn params(x: &Tensor, eps: f64) -> [Scalar; 3] {
    // The exponents of the smallest c, of the smallest eps·c², of the largest moderate square, and of the largest
    // scale. A derivative of order k contains q²ᵏ⁺¹, so c must not be very small.
    let (min_scale, min_eps, max_moderate, max_exponent) = match x.dtype() {
        DType::F64 => (-30, -960, 300, 1022),
        _ => (-4, -100, 60, 126),
    };
    let params = if is_scaled_by_row(x, eps) {
        [2f64.powi(-max_moderate), 2f64.powi(max_moderate), f64::from(max_exponent)]
    } else {
        let exponent = if eps > 0.0 { (min_eps - eps.log2().ceil() as i32) / 2 } else { 0 };
        let scale = 2f64.powi(exponent.clamp(min_scale, 0));
        [scale, -scale, eps * scale * scale]
    };
    params.map(Scalar::from)
}

/// Returns true if each row has its own scale.
fn is_scaled_by_row(x: &Tensor, eps: f64) -> bool {
    eps == 0.0 && x.device().is_cpu()
}

/// The deviations of a row, and their factors.
struct StandardScore {
    /// d, the scaled deviations.
    deviation: Expr,
    /// q, the reciprocal root of the mean square.
    factor: Expr,
    /// c, the scale of the deviations.
    scale: Expr,
}

impl StandardScore {
    /// Creates the scores with one scale for all rows.
    fn new(x: Expr, is_centred: bool, [scale, opposite, floor]: [Expr; 3]) -> StandardScore {
        // −mean·c, with the divisor −n/c, which is exact.
        let shift = is_centred.then(|| x.row_sum() / (row_len() / opposite));
        let deviation = shift.map_or(x * scale, |s| x.mul_add(scale, s));
        let square = (deviation * deviation).row_sum().mul_add(row_len().recip(), floor);
        StandardScore { deviation, factor: square.sqrt().recip(), scale }
    }

    /// Creates the scores for eps = 0, with one scale for each row.
    fn scaled_by_row(x: Expr, is_centred: bool, [low, high, max_exponent]: [Expr; 3]) -> StandardScore {
        let mean = is_centred.then(|| x.row_mean());
        let unscaled = mean.map_or(x, |m| x - m);
        let square = (unscaled * unscaled).row_mean();
        let is_moderate = square.ge(low) & square.le(high);
        let largest = x.abs().row_max();
        let exponent = largest.gt(0.0).select(largest, 1.0).log2().floor().clamp(-max_exponent, max_exponent);
        let scale = is_moderate.select(1.0, (-exponent).exp2());
        let mean = mean.map(|m| is_moderate.select(m, (x * scale).row_mean()));
        let deviation = mean.map_or(x * scale, |m| x.mul_add(scale, -m));
        let square = is_moderate.select(square, (deviation * deviation).row_mean());
        StandardScore { deviation, factor: square.sqrt().recip(), scale }
    }

    /// Returns the scores.
    fn value(self) -> Expr {
        self.deviation * self.factor
    }

    /// Returns the derivative with respect to the elements, with the incoming gradient `a`.
    fn derivative(self, a: Expr, is_centred: bool) -> Expr {
        let StandardScore { deviation, factor, scale } = self;
        let projection = (a * deviation).row_mean() * factor * factor;
        let centered = if is_centred { a - a.row_mean() } else { a };
        (centered - deviation * projection) * (factor * scale)
    }
}

/// Defines functions that return the formulas of one kind of score, with one scale for all rows or one for each row.
macro_rules! scores {
    ($centred:literal: $($(#[$doc:meta])* $function:ident = $name:ident(x $(, $w:ident)*), $y:expr, $a:expr;)*) => {$(
        $(#[$doc])*
        pub(super) fn $function(x: &Tensor, eps: f64) -> &'static Formula {
            if is_scaled_by_row(x, eps) {
                scores!(@formula $centred, scaled_by_row(low, high, max_exponent), $name($($w),*), $y, $a)
            } else {
                scores!(@formula $centred, new(scale, opposite, floor), $name($($w),*), $y, $a)
            }
        }
    )*};
    (@formula $centred:literal, $score:ident($($k:ident),*), $name:ident($($w:ident),*), $y:expr, $a:expr) => {
        formula! {
            static $name(x $(, $w)*; $($k),*) = {
                let y: fn(Expr $(, scores!(@expr $w))*) -> Expr = $y;
                y(StandardScore::$score(x, $centred, [$($k),*]).value() $(, $w)*)
            };
            d x = {
                let a: fn(Expr $(, scores!(@expr $w))*) -> Expr = $a;
                let slope = a(g $(, $w)*);
                StandardScore::$score(x, $centred, [$($k),*]).derivative(slope, $centred)
            };
        }
    };
    (@expr $w:ident) => { Expr };
}

scores! { true:
    /// Returns the formula of standard scores.
    standardized = standardized(x), |score| score, |slope| slope;
    /// Returns the formula of standard scores times a weight.
    standardized_with_weight = standardized(x, w), |score, weight| score * weight, |slope, weight| slope * weight;
    /// Returns the formula of standard scores times a weight, plus a bias.
    standardized_with_bias = standardized(x, w, b), |score, weight, bias| score.mul_add(weight, bias), |slope, weight, _| slope * weight;
}

scores! { false:
    /// Returns the formula of elements divided by their root mean square.
    unit_rms = rms_norm(x), |score| score, |slope| slope;
    /// Returns the formula of elements divided by their root mean square, times a weight.
    unit_rms_with_weight = rms_norm(x, w), |score, weight| score * weight, |slope, weight| slope * weight;
}
