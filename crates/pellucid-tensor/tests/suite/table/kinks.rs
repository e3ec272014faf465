//! Conventions at corners, and derivatives at limits, with expected values written by hand.

use super::driver::Report;
use pellucid_tensor::{GradOptions, Result, Tensor, grad, ops};

type Unary = fn(&Tensor) -> Result<Tensor>;
const INF: f64 = f64::INFINITY;

/// Returns (label, function, x, first derivative, second derivative); a derivative of NaN is unspecified.
fn corners() -> Vec<(&'static str, Unary, f64, f64, f64)> {
    vec![
        ("abs", |x| ops::abs(x), 0.0, 0.0, 0.0),
        ("abs", |x| ops::abs(x), -0.0, 0.0, 0.0),
        ("relu", |x| ops::relu(x), 0.0, 0.0, 0.0),
        ("relu6", |x| ops::relu6(x), 0.0, 0.0, 0.0),
        ("relu6", |x| ops::relu6(x), 6.0, 0.0, 0.0),
        ("leaky_relu", |x| ops::leaky_relu(x, 0.1), 0.0, 0.1, 0.0),
        ("hardtanh", |x| ops::hardtanh(x, -1.0, 1.0), -1.0, 0.0, 0.0),
        ("hardtanh", |x| ops::hardtanh(x, -1.0, 1.0), 1.0, 0.0, 0.0),
        ("clamp, low end", |x| ops::clamp(x, -1.0, 2.0), -1.0, 1.0, 0.0),
        ("clamp, high end", |x| ops::clamp(x, -1.0, 2.0), 2.0, 1.0, 0.0),
        ("clamp, beyond", |x| ops::clamp(x, -1.0, 2.0), 2.5, 0.0, 0.0),
        ("clamp, low end alone", |x| ops::clamp(x, -1.0, INF), -1.0, 1.0, 0.0),
        ("clamp, high end alone", |x| ops::clamp(x, -INF, 2.0), 2.0, 1.0, 0.0),
        ("maximum, tie", |x| ops::maximum(x, 1.5), 1.5, 0.5, 0.0),
        ("minimum, tie", |x| ops::minimum(x, 1.5), 1.5, 0.5, 0.0),
        ("sign", |x| ops::sign(x), 0.0, 0.0, 0.0),
        ("floor", |x| ops::floor(x), 2.0, 0.0, 0.0),
        ("round", |x| ops::round(x), 2.5, 0.0, 0.0),
        ("elu", |x| ops::elu(x, 2.0), 0.0, 2.0, f64::NAN),
        ("softplus", |x| ops::softplus(x), 0.0, 0.5, 0.25),
        ("logsigmoid", |x| ops::logsigmoid(x), 0.0, 0.5, -0.25),
        ("mish", |x| ops::mish(x), 0.0, 0.6, f64::NAN),
        ("sinc", |x| ops::sinc(x), 0.0, 0.0, -std::f64::consts::PI * std::f64::consts::PI / 3.0),
        ("square root", |x| ops::sqrt(x), 0.0, INF, f64::NAN),
        ("pow, 0 squared", |x| ops::pow(x, 2.0), 0.0, 0.0, 2.0),
        ("pow, 0 to the 1", |x| ops::pow(x, 1.0), 0.0, 1.0, 0.0),
        ("pow, negative base", |x| ops::pow(x, 3.0), -2.0, 12.0, -12.0),
        ("pow, 0 to the 0", |x| ops::pow(x, 0.0), 0.0, 0.0, f64::NAN),
        ("pow of 2", |x| ops::pow(2.0, x), 0.0, std::f64::consts::LN_2, std::f64::consts::LN_2.powi(2)),
        ("3-norm at 0", |x| ops::norm(x, 3.0, ..), 0.0, 0.0, f64::NAN),
        ("norm at 0", |x| ops::norm(x, 2.0, ..), 0.0, 0.0, f64::NAN),
    ]
}

/// Returns functions, arguments of large magnitude, values and derivatives; naive formulas compute ∞/∞, 0·∞ or ∞ − ∞.
fn limits() -> Vec<(&'static str, Unary, f64, f64, f64)> {
    vec![
        ("sigmoid", |x| ops::sigmoid(x), 1e4, 0.0, 0.0),
        ("sigmoid", |x| ops::sigmoid(x), -1e4, 0.0, 0.0),
        ("sigmoid", |x| ops::sigmoid(x), INF, 0.0, 0.0),
        ("tanh", |x| ops::tanh(x), 1e4, 0.0, 0.0),
        ("tanh", |x| ops::tanh(x), -INF, 0.0, 0.0),
        ("erf", |x| ops::erf(x), 1e4, 0.0, 0.0),
        ("softplus", |x| ops::softplus(x), 1e4, 1.0, 0.0),
        ("softplus", |x| ops::softplus(x), -1e4, 0.0, 0.0),
        ("softplus", |x| ops::softplus(x), INF, 1.0, 0.0),
        ("logsigmoid", |x| ops::logsigmoid(x), 1e4, 0.0, 0.0),
        ("logsigmoid", |x| ops::logsigmoid(x), -1e4, 1.0, 0.0),
        ("elu", |x| ops::elu(x, 1.0), 1e4, 1.0, 0.0),
        ("elu", |x| ops::elu(x, 1.0), -1e4, 0.0, 0.0),
        ("celu", |x| ops::celu(x, 2.0), 1e4, 1.0, 0.0),
        ("selu", |x| ops::selu(x), -1e4, 0.0, 0.0),
        ("gelu", |x| ops::gelu(x), 1e4, 1.0, 0.0),
        ("gelu", |x| ops::gelu(x), -1e4, 0.0, 0.0),
        ("gelu_tanh", |x| ops::gelu_tanh(x), 1e4, 1.0, 0.0),
        ("silu", |x| ops::silu(x), 1e4, 1.0, 0.0),
        ("silu", |x| ops::silu(x), -1e4, 0.0, 0.0),
        ("mish", |x| ops::mish(x), 1e4, 1.0, 0.0),
        ("mish", |x| ops::mish(x), -1e4, 0.0, 0.0),
        ("softplus_beta", |x| ops::softplus_beta(x, 2.0, 20.0), 1e4, 1.0, 0.0),
        ("softplus_beta", |x| ops::softplus_beta(x, 2.0, 20.0), -1e4, 0.0, 0.0),
        ("erfcx", |x| ops::erfcx(x), INF, 0.0, f64::NAN),
        ("log_ndtr", |x| ops::log_ndtr(x), 1e4, 0.0, 0.0),
        ("i0e", |x| ops::i0e(x), 1e300, 0.0, 0.0),
        ("softsign", |x| ops::softsign(x), 1e4, 1.0 / (10_001.0 * 10_001.0), f64::NAN),
        ("exp", |x| ops::exp(x), -1e4, 0.0, 0.0),
        ("exp", |x| ops::exp(x), -INF, 0.0, 0.0),
        ("log1p", |x| ops::log1p(x), 1e4, 1.0 / 10_001.0, f64::NAN),
        ("atan", |x| ops::atan(x), INF, 0.0, f64::NAN),
        ("where_", |x| ops::where_(&ops::gt(x, 0.0)?, &ops::ln(&ops::maximum(x, 1e-30)?)?, 0.0), -1.0, 0.0, 0.0),
    ]
}

/// Returns the first two derivatives, by two backward passes.
fn derivatives(f: Unary, at: f64) -> Result<(f64, f64)> {
    let x = Tensor::from(at).requires_grad_(true);
    let options = || GradOptions { create_graph: true, ..Default::default() };
    let first = grad(&[&f(&x)?], &[&x], options())?.remove(0);
    let second = match first.requires_grad() {
        true => grad(&[&first], &[&x], options())?[0].item(),
        false => 0.0,
    };
    Ok((first.item(), second))
}

fn check_kinks(cases: Vec<(&'static str, Unary, f64, f64, f64)>) {
    let mut report = Report::default();
    for (name, f, at, first, second) in cases {
        report.section(format!("{name} at {at}"), |report| {
            let (got, then) = derivatives(f, at)?;
            let near = |a: f64, b: f64| a == b || (a - b).abs() <= 1e-12 * b.abs();
            report.expect(near(got, first), || format!("the derivative is {got}, expected {first}"));
            let promised = !second.is_nan();
            report.expect(!promised || near(then, second), || {
                format!("the second derivative is {then}, expected {second}")
            });
            Ok(())
        });
    }
    report.finish();
}

#[test]
fn conventions_at_corners() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    check_kinks(corners());
}

#[test]
fn derivatives_at_limits() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    check_kinks(limits());
}
