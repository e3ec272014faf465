//! Exponentials, logarithms, trigonometric, hyperbolic and special functions.

use super::{binary_row as binary, unary_row as unary};
use crate::table::row::{Gradient::Third, Row, Rule};
use crate::table::special::{digamma, erfinv};
use pellucid_tensor::{Tensor, ops};
use std::f64::consts::{LN_2, PI};

pub(super) fn rows() -> Vec<Row> {
    let rows = vec![
        unary!(exp, f64::exp).gradient(Third),
        unary!(exp2, f64::exp2),
        unary!(expm1, f64::exp_m1),
        unary!(ln, f64::ln).within(0.2..=3.0),
        unary!(log, f64::ln).within(0.2..=3.0),
        unary!(log2, f64::log2).within(0.2..=3.0),
        unary!(log10, f64::log10).within(0.2..=3.0),
        unary!(log1p, f64::ln_1p).within(-0.7..=3.0),
        unary!(sin, f64::sin).within(-4.0..=4.0).gradient(Third),
        unary!(cos, f64::cos).within(-4.0..=4.0),
        unary!(tan, f64::tan).within(-1.3..=1.3),
        unary!(asin, f64::asin).within(-0.9..=0.9),
        unary!(acos, f64::acos).within(-0.9..=0.9),
        unary!(atan, f64::atan),
        unary!(sinh, f64::sinh),
        unary!(cosh, f64::cosh),
        unary!(tanh, f64::tanh).gradient(Third),
        unary!(asinh, libm::asinh),
        unary!(acosh, libm::acosh).within(1.2..=4.0),
        unary!(atanh, libm::atanh).within(-0.8..=0.8),
        unary!(erf, libm::erf).gradient(Third),
        unary!(erfc, libm::erfc),
        unary!(erfinv, erfinv).within(-0.9..=0.9),
        unary!(lgamma, libm::lgamma).within(0.3..=6.0),
        unary!(digamma, digamma).within(0.3..=6.0).scale(2.0),
        unary!(sinc, |x| if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) }),
        unary!(logit, |x| (x / (1.0 - x)).ln()).within(0.1..=0.9),
        unary!(cbrt, f64::cbrt).within(0.2..=3.0).gradient(Third).ulps(2.0).check("the full range", || {
            let x = [1e300, -8.0, 5e-324, f64::MAX, -1e-310, 0.1, 27.0, -0.0, f64::MIN_POSITIVE];
            let y = ops::cbrt(&Tensor::from(x))?.to_vec::<f64>();
            let single = x.map(|v| v as f32);
            let z = ops::cbrt(&Tensor::from(single))?.to_vec::<f32>();
            let near = |i: usize| (y[i] - x[i].cbrt()).abs() <= 2.0 * f64::EPSILON * y[i].abs();
            let near_single = |i: usize| {
                z[i] == single[i].cbrt() || (z[i] - single[i].cbrt()).abs() <= 2.0 * f32::EPSILON * z[i].abs()
            };
            Ok((0..x.len()).all(|i| near(i) && near_single(i)) && y[7].is_sign_negative())
        }),
        unary!(deg2rad, f64::to_radians),
        unary!(rad2deg, f64::to_degrees),
        unary!(entr, |x| match x {
            0.0 => 0.0,
            x if x < 0.0 => f64::NEG_INFINITY,
            x => -x * x.ln(),
        })
        .within(0.2..=3.0)
        .gradient(Third),
        binary!(logaddexp, |a, b| if a == b { a + LN_2 } else { f64::max(a, b) + (-(a - b).abs()).exp().ln_1p() })
            .gradient(Third)
            .check("equal operands, infinite ones too", || {
                let x = Tensor::from([1.0, f64::INFINITY, f64::NEG_INFINITY]);
                Ok(ops::logaddexp(&x, &x)?.to_vec::<f64>() == [1.0 + LN_2, f64::INFINITY, f64::NEG_INFINITY])
            }),
        binary!(xlogy, |a, b| if a == 0.0 && !b.is_nan() { 0.0 } else { a * b.ln() })
            .input_within(1, 0.3..=3.0)
            .any_zero(),
        binary!(xlog1py, |a, b| if a == 0.0 && !b.is_nan() { 0.0 } else { a * b.ln_1p() })
            .input_within(1, -0.6..=3.0)
            .any_zero(),
        binary!(ldexp, |a, b| match a == 0.0 || a.is_infinite() {
            true if !b.is_nan() => a,
            _ => a * b.exp2(),
        }),
    ];
    rows.into_iter().map(|row| row.rule(Rule::Floats)).collect()
}
