//! Elementwise operations, most of which are defined by one formula.
//!
//! The function, the method of `Tensor`, the kernels, and the derivatives of every order are generated from the
//! formula. An entry of a table declares a derivative where the symbolic derivative is wrong or inaccurate in a limit,
//! or would keep more tensors alive. If a formula is not defined for integers, integer inputs are first converted to
//! `f32`. If it is not defined for booleans, they are first converted to `i64`.

pub(super) mod activation;
pub(super) mod airy;
pub(crate) mod arithmetic;
pub(super) mod compare;
pub(super) mod incomplete_beta;
pub(super) mod incomplete_gamma;
pub(super) mod numbers;
pub(super) mod operand;
mod operators;
pub(super) mod parts;
mod quadrature;
pub(super) mod special;
mod table;
pub(super) mod transcendental;

pub use activation::{hardtanh, softshrink};
pub use airy::airy_ai;
pub use arithmetic::{addcdiv, addcmul, clamp, lerp, nan_to_num, where_};
pub use compare::isclose;
pub use incomplete_beta::{betainc, betaincc};
#[doc(hidden)]
pub use incomplete_beta::{betainc_of_pair, student_t_cdf};
#[doc(hidden)]
pub use incomplete_gamma::log_gamma_quantile_slope;
pub use incomplete_gamma::{igamma, igammac};
pub use numbers::{frexp, gcd, lcm, nextafter};
pub use operand::TensorOrScalar;
pub use parts::{around, divmod, modf};
pub use special::{logit_with, multigammaln, zeta};

use pellucid_ir::formula::Expr;

/// Returns ln(x / (1 − x)). Near ½ the quotient is near 1; its difference from 1 is computed without cancellation.
fn log_odds(x: Expr) -> Expr {
    let near_half = (x - 0.5).abs().lt(0.25);
    near_half.select(((2.0 * x - 1.0) / (1.0 - x)).ln_1p(), (x / (1.0 - x)).ln())
}

/// Computes the derivative of y = sin(t)/t from the cosine of t. For |t| < 4 it is the Taylor series −t/3·(1 −
/// t²/(2·5)·(1 − t²/(4·7)·(1 − ..))). The derivatives of the series are free of cancellation; 21 terms suffice for the
/// derivatives up to order 12.
fn slope_of_sin_over(t: Expr, cosine: Expr, y: Expr) -> Expr {
    let is_near = t.abs().lt(4.0);
    let (small, large) = (is_near.select(t, 0.0), is_near.select(4.0, t));
    let square = small * small;
    let ratio = |k: i32| square * f64::from(2 * k * (2 * k + 3)).recip();
    let series = (1..21).rev().fold(1.0 - ratio(21), |rest, k| 1.0 - ratio(k) * rest);
    is_near.select(small * series * (-1.0 / 3.0), (cosine - y) / large)
}

/// Computes a − b, and 0 for equal infinities.
fn difference(a: Expr, b: Expr) -> Expr {
    (a.eq(b) & !a.is_finite()).select(0.0, a - b)
}
