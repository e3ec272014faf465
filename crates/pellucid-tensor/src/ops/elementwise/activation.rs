//! Activation functions.
//!
//! Functions with a constant branch declare a derivative that reads the output. The next operation usually saves this
//! output as its input anyway; the symbolic derivative would keep the input alive as well.

use super::table::unary;
use crate::ops::formula::map;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::Expr;
use pellucid_ir::{Error, Result, Scalar, formula};
use std::f64::consts::FRAC_1_SQRT_2;

unary! {
    /// Computes the logistic sigmoid 1 / (1 + e⁻ˣ).
    #[doc(alias = "expit")]
    sigmoid(x) = x.sigmoid();
    /// Computes the rectified linear unit max(x, 0) (Nair & Hinton 2010); relu′(0) = 0. NaN stays NaN.
    relu(x) = x.relu(), d x = y.le(0.0).select(0.0, g);
    /// Computes min(relu(x), 6) (Howard et al. 2017); the derivative is 0 at 0 and at 6.
    relu6(x) = x.ge(6.0).select(6.0, x.relu()), d x = (y.le(0.0) | y.ge(6.0)).select(0.0, g);
    /// Computes x where x > 0, else slope·x (Maas et al. 2013).
    leaky_relu(x; slope) = x.gt(0.0).select(x, x * slope);
    /// Computes the exponential linear unit: x where x > 0, else α·(eˣ − 1) (Clevert et al. 2016).
    elu(x; alpha) = x.gt(0.0).select(x, alpha * x.min(0.0).exp_m1()),
        d x = g * x.gt(0.0).select(1.0, alpha * negative_part(x).exp());
    /// Computes max(x, 0) + min(α·(e^(x/α) − 1), 0) (Barron 2017).
    celu(x; alpha) = x.gt(0.0).select(x, alpha * (x.min(0.0) / alpha).exp_m1()),
        d x = g * x.gt(0.0).select(1.0, (negative_part(x) / alpha).exp());
    /// Computes λ·elu(x) with the constants of self-normalising networks (Klambauer et al. 2017).
    selu(x) = 1.0507009873554805 * x.gt(0.0).select(x, 1.6732632423543772 * x.min(0.0).exp_m1()),
        d x = g * 1.0507009873554805 * x.gt(0.0).select(1.0, 1.6732632423543772 * negative_part(x).exp());
    /// Computes the Gaussian error linear unit x·Φ(x) (Hendrycks & Gimpel 2016).
    gelu(x) = 0.5 * x * (1.0 + (x * FRAC_1_SQRT_2).erf());
    /// Computes the tanh approximation of `gelu`: ½x·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
    gelu_tanh(x) = 0.5 * x * (1.0 + (0.7978845608028654 * (x + 0.044715 * x * x * x)).tanh());
    /// Computes the sigmoid linear unit x·sigmoid(x) (Elfwing et al. 2018), also called swish.
    #[doc(alias = "swish")]
    silu(x) = x * x.sigmoid();
    /// Computes x·tanh(softplus(x)) (Misra 2019).
    mish(x) = x * (x.max(0.0) + (-x.abs()).exp().ln_1p()).tanh(),
        d x = {
            // tanh(ln(1 + n)) with n = eˣ, which has no kink at 0; it is 1 for large x.
            let n = x.gt(40.0).select(40.0, x).exp();
            let t = n * (n + 2.0) / (n * (n + 2.0) + 2.0);
            g * (t + x * (1.0 - t * t) * x.sigmoid())
        };
    /// Computes ln(1 + eˣ), a smooth approximation of relu, stable for large |x|.
    softplus(x) = x.max(0.0) + (-x.abs()).exp().ln_1p(), autocast = Single, d x = g * x.sigmoid();
    /// Computes ln(1 + e^(βx))/β, and x where βx exceeds t: relu with a corner rounded over a width of 1/β.
    softplus_beta(x; beta, t) = {
        let steep = beta * x;
        steep.gt(t).select(x, (steep.max(0.0) + (-steep.abs()).exp().ln_1p()) / beta)
    },
        d x = g * (beta * x).gt(t).select(1.0, (beta * x).sigmoid());
    /// Computes ln sigmoid(x) = −softplus(−x), stable for large |x|.
    #[doc(alias = "log_sigmoid")]
    logsigmoid(x) = x.min(0.0) - (-x.abs()).exp().ln_1p(), d x = g * (-x).sigmoid();
    /// Computes x / (1 + |x|).
    softsign(x) = x / (1.0 + x.abs());
    /// Computes relu6(x + 3)/6, a piecewise linear sigmoid (Courbariaux et al. 2015).
    hardsigmoid(x) = x.gt(-3.0).select(x.lt(3.0).select((x + 3.0) / 6.0, 1.0), x.is_nan().select(x, 0.0));
    /// Computes x·hardsigmoid(x) (Howard et al. 2019).
    hardswish(x) = x.gt(-3.0).select(x.lt(3.0).select(x * (x + 3.0) / 6.0, x), x.is_nan().select(x, 0.0));
    /// Computes x − tanh x.
    tanhshrink(x) = x - x.tanh();
    /// Returns x where |x| > λ, else 0.
    hardshrink(x; lambda) = x.abs().le(lambda).select(0.0, x);
    /// Returns x where x > t, else v.
    threshold(x; t, v) = x.le(t).select(v, x);
}

/// Returns min(x, 0) with the derivative 1 at 0, that from the left.
fn negative_part(x: Expr) -> Expr {
    x.gt(0.0).select(0.0, x)
}

/// Limits x to [low, high]; the derivative is 0 at both bounds. NaN stays NaN.
///
/// # Errors
/// [`Error::InvalidArgument`] if low exceeds high. A bound that is NaN makes all elements NaN.
#[tensor_method]
pub fn hardtanh(x: &Tensor, low: impl Into<Scalar>, high: impl Into<Scalar>) -> Result<Tensor> {
    let (low, high) = (low.into(), high.into());
    if low.to_f64() > high.to_f64() {
        let reason = format!("low must not exceed high, got {} and {}", low.to_f64(), high.to_f64());
        return Err(Error::invalid("hardtanh", reason));
    }
    if low.to_f64().is_nan() || high.to_f64().is_nan() {
        return crate::ops::clamp(x, low, high);
    }
    let formula = formula! {
        static hardtanh(x; low, high) = x.gt(low).select(x.lt(high).select(x, high), x.is_nan().select(x, low));
    };
    map(formula, &[x], &[low, high])
}

/// Moves x towards 0 by λ; 0 where |x| ≤ λ.
///
/// # Errors
/// [`Error::InvalidArgument`] for a λ that is negative or NaN.
#[tensor_method]
pub fn softshrink(x: &Tensor, lambda: impl Into<Scalar>) -> Result<Tensor> {
    let lambda = lambda.into();
    if lambda.to_f64().is_nan() || lambda.to_f64() < 0.0 {
        return Err(Error::invalid("softshrink", format!("λ must be at least 0, got {}", lambda.to_f64())));
    }
    let formula = formula! {
        static softshrink(x; lambda) = x.gt(lambda).select(x - lambda, x.lt(-lambda).select(x + lambda, x * 0.0));
    };
    map(formula, &[x], &[lambda])
}
