//! Activation functions.

use super::unary_row as unary;
use crate::table::row::{Gradient::Third, Row, Rule, argument_rejected};
use crate::table::special::{sigmoid, softplus};
use pellucid_tensor::{Tensor, ops};
use std::f64::consts::{FRAC_2_PI, SQRT_2};

fn elu(x: f64, alpha: f64) -> f64 {
    if x > 0.0 { x } else { alpha * x.exp_m1() }
}

/// Clamps x to [low, high]; NaN is preserved.
fn clamped(x: f64, low: f64, high: f64) -> f64 {
    if x < low {
        low
    } else if x > high {
        high
    } else {
        x
    }
}

pub(super) fn rows() -> Vec<Row> {
    vec![
        unary!(sigmoid, sigmoid).rule(Rule::Floats).gradient(Third),
        unary!(relu, |x| if x > 0.0 || x.is_nan() { x } else { 0.0 }).away(&[0.0]),
        unary!(relu6, |x| clamped(x, 0.0, 6.0)).rule(Rule::Numbers).within(-3.0..=9.0).away(&[0.0, 6.0]).any_zero(),
        unary!(leaky_relu(0.1), |x| if x > 0.0 { x } else { 0.1 * x }).rule(Rule::Floats).away(&[0.0]),
        unary!(elu(1.3), |x| elu(x, 1.3)).rule(Rule::Floats).away(&[0.0]).any_zero(),
        unary!(celu(1.3), |x| 1.3 * elu(x / 1.3, 1.0)).rule(Rule::Floats).away(&[0.0]).any_zero(),
        unary!(selu, |x| 1.0507009873554805 * elu(x, 1.6732632423543772)).rule(Rule::Floats).away(&[0.0]).any_zero(),
        // The limit at −∞, where the product is ∞·0.
        unary!(gelu, |x| if x == f64::NEG_INFINITY { -0.0 } else { 0.5 * x * (1.0 + libm::erf(x / SQRT_2)) })
            .rule(Rule::Floats)
            .any_zero()
            .gradient(Third),
        unary!(gelu_tanh, |x| 0.5 * x * (1.0 + (FRAC_2_PI.sqrt() * (x + 0.044715 * x.powi(3))).tanh()))
            .rule(Rule::Floats),
        unary!(silu, |x| x * sigmoid(x)).rule(Rule::Floats).gradient(Third),
        unary!(mish, |x| x * softplus(x).tanh()).rule(Rule::Floats),
        unary!(softplus, softplus).rule(Rule::Floats).gradient(Third),
        unary!(logsigmoid, |x| -softplus(-x)).rule(Rule::Floats).any_zero(),
        unary!(softsign, |x| x / (1.0 + x.abs())).rule(Rule::Floats),
        unary!(hardtanh(-1.0, 1.0), |x| clamped(x, -1.0, 1.0))
            .rule(Rule::Floats)
            .away(&[-1.0, 1.0])
            .any_zero()
            .check("bounds in the wrong order must be an error", || {
                argument_rejected(ops::hardtanh(&Tensor::from([1.0]), 2.0, 1.0))
            }),
        unary!(softplus_beta(2.0, 3.0), |x| if 2.0 * x > 3.0 { x } else { softplus(2.0 * x) / 2.0 })
            .rule(Rule::Floats)
            .away(&[1.5]),
        unary!(hardsigmoid, |x| clamped(x / 6.0 + 0.5, 0.0, 1.0))
            .rule(Rule::Floats)
            .within(-5.0..=5.0)
            .away(&[-3.0, 3.0]),
        // The limit at −∞, where the product is 0·∞.
        unary!(hardswish, |x| if x <= -3.0 { 0.0 } else { x * clamped(x / 6.0 + 0.5, 0.0, 1.0) })
            .rule(Rule::Floats)
            .within(-5.0..=5.0)
            .away(&[-3.0, 3.0])
            .any_zero(),
        unary!(tanhshrink, |x| if x.abs() < 1e-5 { x * x * x / 3.0 } else { x - x.tanh() })
            .rule(Rule::Floats)
            .scale(1.0),
        unary!(softshrink(0.5), |x| if x.abs() > 0.5 { x - 0.5f64.copysign(x) } else { 0.0 * x })
            .rule(Rule::Floats)
            .away(&[-0.5, 0.5])
            .any_zero()
            .check("a negative threshold must be an error", || {
                argument_rejected(ops::softshrink(&Tensor::from([1.0]), -0.5))
            }),
        unary!(hardshrink(0.5), |x| if x.abs() <= 0.5 { 0.0 } else { x }).rule(Rule::Floats).away(&[-0.5, 0.5]),
        unary!(threshold(0.3, -2.5), |x| if x <= 0.3 { -2.5 } else { x }).rule(Rule::Floats).away(&[0.3]),
    ]
}
