//! Activation functions.
//!
//! Some functions with a constant branch, such as `relu`, declare a derivative that reads the output. The next
//! operation usually saves this output as its input anyway; the symbolic derivative would keep the input alive as well.
//!
//! The product rule for x·s(x) computes g·x, which may overflow where s′ is 0. Therefore either a separate branch
//! computes the result for large x, or the derivative is declared as g·(s + x·s′).

use super::table::unary;
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::map;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::Expr;
use pellucid_ir::{Error, Result, Scalar, formula};

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
    /// Computes λ·elu(x) with the constants of self-normalizing networks (Klambauer et al. 2017).
    selu(x) = 1.0507009873554805 * x.gt(0.0).select(x, 1.6732632423543772 * x.min(0.0).exp_m1()),
        d x = g * 1.0507009873554805 * x.gt(0.0).select(1.0, 1.6732632423543772 * negative_part(x).exp());
    /// Computes the Gaussian error linear unit x·Φ(x) (Hendrycks & Gimpel 2016), accurate where Φ is small, like
    /// [`ndtr`](crate::ops::ndtr()). At −∞ the result is −0, the limit.
    gelu(x) = {
        // Below −40, Φ is 0, even in `f64`.
        let u = x.lt(-40.0).select(-40.0, x);
        u * u.ndtr()
    },
        d x = {
            let u = x.clamp(-40.0, 40.0);
            g * (u.ndtr() + u * (0.3989422804014327 * (-0.5 * u * u).exp()))
        };
    /// Computes the tanh approximation of `gelu`, ½x·(1 + tanh u) with u = √(2/π)·(x + 0.044715·x³), as x·sigmoid(2u),
    /// which is accurate where the factor is small.
    gelu_tanh(x) = {
        // Beyond 32 the sigmoid is 0 or 1, even in `f64`. Powers of a large x would overflow.
        let is_far = x.abs().gt(32.0);
        let u = is_far.select(0.0, x);
        let v = 1.5957691216057308 * (u + 0.044715 * u * u * u);
        is_far.select(x * x.gt(0.0).to_number(), u * v.sigmoid())
    };
    /// Computes the sigmoid linear unit x·sigmoid(x) (Elfwing et al. 2018), also called swish. For x below −87 (in
    /// `f64` −708) the factor is subnormal, so the relative error grows.
    #[doc(alias = "swish")]
    silu(x) = x * x.sigmoid(),
        d x = {
            let s = x.sigmoid();
            g * (s + x * (s * refined.select((-x).sigmoid(), 1.0 - s)))
        };
    /// Computes x·tanh(softplus(x)) (Misra 2019). For large negative x, the relative error grows as in [`silu`].
    mish(x) = x * (x.max(0.0) + (-x.abs()).exp().ln_1p()).tanh(),
        d x = {
            // Let n = eˣ and r = 2/((1 + n)² + 1). Then t = tanh(ln(1 + n)) is 1 − r, a form that has no kink at 0. For
            // x > 0, t may be near 1, and its derivatives are computed from r. For x < 0, r may be near 1, and the
            // difference 1 − r would cancel.
            let n = x.gt(40.0).select(40.0, x).exp();
            let m = n * (n + 2.0);
            let r = x.gt(40.0).select(0.0, 2.0 / (m + 2.0));
            let t = x.gt(0.0).select(1.0 - r, m / (m + 2.0));
            g * (t + x * (r * (2.0 - r)) * x.sigmoid())
        };
    /// Computes ln(1 + eˣ), a smooth approximation of relu, stable for large |x|.
    softplus(x) = x.max(0.0) + (-x.abs()).exp().ln_1p(), autocast = Single, d x = g * x.sigmoid();
    /// Computes ln(1 + e^(βx))/β, or x where βx > t. It approaches relu as β grows.
    softplus_beta(x; beta, t) = {
        let safe_l = beta * x;
        safe_l.gt(t).select(x, (safe_l.max(0.0) + (-safe_l.abs()).exp().ln_1p()) / beta)
    },
        d x = g * (beta * x).gt(t).select(1.0, (beta * x).sigmoid());
    /// Computes ln sigmoid(x) = −softplus(−x), stable for large |x|.
    #[doc(alias = "log_sigmoid")]
    logsigmoid(x) = x.min(0.0) - (-x.abs()).exp().ln_1p(), d x = g * (-x).sigmoid();
    /// Computes x / (1 + |x|).
    softsign(x) = x / (1.0 + x.abs()),
        d x = {
            // The symbolic derivative would contain a difference that cancels for large |x|, and a square that could
            // overflow.
            let r = 1.0 / (1.0 + x.abs());
            g * r * r
        };
    /// Computes relu6(x + 3)/6, a piecewise linear sigmoid (Courbariaux et al. 2015).
    hardsigmoid(x) = (x + 3.0).clamp(0.0, 6.0) * (1.0 / 6.0),
        d x = (x.le(-3.0) | x.ge(3.0)).select(0.0, g * (1.0 / 6.0));
    /// Computes x·hardsigmoid(x) (Howard et al. 2019).
    hardswish(x) = {
        let u = x.lt(-3.0).select(-3.0, x);
        let v = u + 3.0;
        u * (v.gt(6.0).select(6.0, v) * (1.0 / 6.0))
    },
        d x = g * x.le(-3.0).select(0.0, x.ge(3.0).select(1.0, (2.0 * x + 3.0) * (1.0 / 6.0)));
    /// Computes x − tanh x, accurate near 0. The derivative is tanh² x.
    tanhshrink(x) = x.abs().lt(1.0).select(tanhshrink_near_zero(x.min(1.0).max(-1.0)), x - x.tanh()),
        d x = {
            let t = x.tanh();
            g * (t * t)
        };
    /// Returns x where |x| > λ, else 0.
    hardshrink(x; lambda) = x.abs().le(lambda).select(0.0, x);
    /// Returns x where x > t, else v.
    threshold(x; t, v) = x.le(t).select(v, x);
}

/// Returns min(x, 0). The derivative at 0 is 1, the derivative from the left.
fn negative_part(x: Expr) -> Expr {
    x.gt(0.0).select(0.0, x)
}

/// Returns x − tanh x for |x| ≤ 1, without cancellation.
///
/// Lambert's continued fraction is tanh x = x/(1 + q) with q = x²/(3 + x²/(5 + ..)). So x − tanh x is x·q/(1 + q). It
/// is evaluated as one quotient of polynomials in x², whose coefficients are positive.
fn tanhshrink_near_zero(x: Expr) -> Expr {
    // With t = x², q is t·n/d. The fraction ends with the term 2·9 + 1, which leaves an error below 2⁻⁵⁶ of the result.
    let (mut n, mut d) = (vec![1.0], vec![19.0]);
    for k in (1..9).rev() {
        // t/(c + t·n/d) = t·d/(c·d + t·n)
        let mut sum: Vec<f64> = d.iter().map(|d| f64::from(2 * k + 1) * d).collect();
        sum.resize(sum.len().max(n.len() + 1), 0.0);
        for (sum, n) in sum[1..].iter_mut().zip(&n) {
            *sum += n;
        }
        (n, d) = (d, sum);
    }
    let t = x * x;
    let unit = d[0];
    let polynomial = |c: &[f64]| {
        let mut c = c.iter().rev().map(|c| c / unit);
        let high = [c.next(), c.next()].map(Option::unwrap_or_default);
        c.fold(t * high[0] + high[1], |y, c| y * t + c)
    };
    let (n, d) = (t * polynomial(&n), polynomial(&d));
    x * (n / (d + n))
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
        return arithmetic::clamp(x, low, high);
    }
    let formula = formula! {
        static hardtanh(x; low, high) = x.clamp(low, high);
        d x = (x.le(low) | x.ge(high)).select(0.0, g);
    };
    map(formula, &[x], &[low, high])
}

/// Moves x towards 0 by λ; the result is 0 where |x| ≤ λ.
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
        static softshrink(x; lambda) = x - x.clamp(-lambda, lambda);
        d x = x.abs().gt(lambda).select(g, 0.0);
    };
    map(formula, &[x], &[lambda])
}
