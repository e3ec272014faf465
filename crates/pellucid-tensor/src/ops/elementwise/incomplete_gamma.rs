//! The incomplete gamma functions and their derivatives with respect to the shape a.
//!
//! The derivative of P(a, x) is computed from the smaller of the two tails at x. With t = x·e^(∓w) (− for the lower
//! tail) and the density p, the tail is x·p(x) times the integral of e^(∓a·w + x(1 − e^(∓w))) over w > 0. The
//! derivative of the integrand with respect to a is the integrand times ∓w. For the lower tail, a is first raised by
//! the recurrence P(a, x) = P(a + 1, x) + xᵃe⁻ˣ/Γ(a + 1), whose terms are positive.

use super::quadrature::{bound_of_end, end_of_integral, map_nodes};
use crate::autograd::is_recorded;
use crate::ops::formula::map;
use crate::ops::primitive::copy;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::remainders::{
    HALF_LN_2PI, digamma_minus_log, exp_m1_minus, log_ratio, log_ratio_minus, next_digamma_minus_log, remainder_of_any,
};
use pellucid_ir::formula::{Expr, Formula};
use pellucid_ir::{DType, Result, formula};

/// Computes the regularized lower incomplete gamma function P(a, x) = ∫₀ˣ tᵃ⁻¹e⁻ᵗ dt / Γ(a), for a ≥ 0 and x ≥ 0.
///
/// This is SciPy's `gammainc`. a and x broadcast. The derivative with respect to x is the density xᵃ⁻¹e⁻ˣ / Γ(a). The
/// derivative with respect to a is computed in `f64` by quadrature, with a relative error of about 1e-13.
///
/// # Errors
/// [`Error::ShapeMismatch`](pellucid_ir::Error::ShapeMismatch).
#[tensor_method]
pub fn igamma(a: &Tensor, x: &Tensor) -> Result<Tensor> {
    if !is_recorded(&[a]) {
        return map(formula! { static igamma(a, x) = x.igamma(a).0; }, &[a, x], &[]);
    }
    let with_slope = formula! {
        static igamma(a: per_row, x: per_row, node, weight) = x.igamma(a).0;
        d a = g * shape_slope(a, x, node, weight);
    };
    with_shape_gradient("igamma", with_slope, a, x)
}

/// Computes 1 − P(a, x), the regularized upper incomplete gamma function (see [`igamma`]), accurate where it is small.
///
/// # Errors
/// The errors of [`igamma`].
#[tensor_method]
pub fn igammac(a: &Tensor, x: &Tensor) -> Result<Tensor> {
    if !is_recorded(&[a]) {
        return map(formula! { static igammac(a, x) = x.igamma(a).1; }, &[a, x], &[]);
    }
    let with_slope = formula! {
        static igammac(a: per_row, x: per_row, node, weight) = x.igamma(a).1;
        d a = -(g * shape_slope(a, x, node, weight));
    };
    with_shape_gradient("igammac", with_slope, a, x)
}

/// Applies a formula of a, x and the nodes of the quadrature. The formula is computed in `f64`, like the elementwise
/// `igamma`, so the values of both are bit-identical.
fn with_shape_gradient(op: &'static str, formula: &Formula, a: &Tensor, x: &Tensor) -> Result<Tensor> {
    copy::to_dtype(&map_nodes(op, formula, &[a, x])?, DType::promote(a.dtype(), x.dtype()))
}

/// Returns the derivative of ln x with respect to a for the quantile x of Gamma(a, 1) at a fixed probability, from a
/// and y = ln x, in `f64`. It is −(∂P/∂a) / (x·p(x)) for the density p (implicit reparametrization; Figurnov et al.
/// 2018).
///
/// # Errors
/// [`Error::ShapeMismatch`](pellucid_ir::Error::ShapeMismatch).
#[doc(hidden)]
pub fn log_gamma_quantile_slope(a: &Tensor, y: &Tensor) -> Result<Tensor> {
    let slope = formula! {
        static log_gamma_quantile_slope(a: per_row, y: per_row, node, weight) = {
            let log_ratio = y - a.ln();
            GammaTail { a, x: y.exp(), excess: a * log_ratio.exp_m1(), log_ratio }.quantile_slope(node, weight)
        };
    };
    map_nodes("log_gamma_quantile", slope, &[a, y])
}

/// Returns ∂P(a, x)/∂a: 0 at x = 0 and x = ∞, NaN outside the domain.
fn shape_slope(a: Expr, x: Expr, node: Expr, weight: Expr) -> Expr {
    let is_end = (x.eq(0.0) | x.eq(f64::INFINITY)) & a.gt(0.0);
    let is_inside = a.gt(0.0) & a.lt(f64::INFINITY) & x.gt(0.0) & x.lt(f64::INFINITY);
    let (a, x) = (is_inside.select(a, 1.0), is_inside.select(x, 1.0));
    let (excess, ratio) = (x - a, x / a);
    let relative = excess / a;
    let exponent = a * log_ratio_minus(relative, ratio) - remainder_of_any(a) + 0.5 * a.ln() - HALF_LN_2PI;
    let tail = GammaTail { a, x, excess, log_ratio: log_ratio(relative, ratio) };
    let slope = -(exponent.exp() * tail.quantile_slope(node, weight));
    is_inside.select(slope, is_end.select(0.0, f64::NAN))
}

/// The arguments of a tail of the gamma distribution.
struct GammaTail {
    a: Expr,
    x: Expr,
    /// x − a.
    excess: Expr,
    /// ln(x/a).
    log_ratio: Expr,
}

/// The number of steps of the recurrence of the lower tail.
const STEPS: u32 = 8;

impl GammaTail {
    /// Returns −(∂P/∂a) / (x·p(x)).
    fn quantile_slope(&self, node: Expr, weight: Expr) -> Expr {
        let GammaTail { a, x, excess, log_ratio } = *self;
        let is_lower = x.lt(a.max(1.0));
        let raised = a + f64::from(STEPS);
        let decay = is_lower.select(f64::from(STEPS) - excess, excess);
        let toward = |w: Expr| is_lower.select(-w, w);
        let minus_exponent = |w: Expr| decay * w + x * exp_m1_minus(toward(w));
        let end = end_of_integral(bound_of_end(decay, x), |w| {
            let slope = x * toward(w).exp_m1();
            (minus_exponent(w), decay + is_lower.select(-slope, slope))
        });
        let w = end * node;
        let density = end * weight * (-minus_exponent(w)).exp();
        let (integral, moment) = (density.row_sum(), (density * toward(w)).row_sum());

        // The terms xᵏ/((a + 1)···(a + k)) of the recurrence, and their derivatives with respect to a.
        let (mut term, mut sum, mut by_a, mut log_slope) = (0.0 * x + 1.0, 0.0 * x, 0.0 * x, 0.0 * x);
        for k in 0..STEPS {
            (sum, by_a) = (sum + term, by_a + term * log_slope);
            let next = a + f64::from(k + 1);
            (term, log_slope) = (term * x / next, log_slope - next.recip());
        }
        let total = sum + term * raised * integral;
        let total_by_a = by_a + term * (log_slope * raised * integral + integral + raised * moment);
        let lower = -((log_ratio - next_digamma_minus_log(a)) * total + total_by_a) / a;
        let upper = (log_ratio - digamma_minus_log(a)) * integral + moment;
        is_lower.select(lower, upper)
    }
}
