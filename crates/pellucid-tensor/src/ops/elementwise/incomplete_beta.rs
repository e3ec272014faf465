//! The incomplete beta function.
//!
//! The smaller of the two tails at x is computed. Let t be the variable of integration, w the difference between the
//! log odds of x and of t, and y = 1 − x. Then the lower tail is xᵃyᵇ/B(a, b) times the integral of e^(−a·w)·(1 − x +
//! x·e^(−w))^(−a−b) over w > 0. The integrand is log-concave, so one quadrature rule reaches the accuracy of `f64` for
//! all parameters. For small a, the integrand decays slowly; therefore a is first raised by the recurrence I(a, b) =
//! I(a + 1, b) + xᵃyᵇ/(a·B(a, b)), whose terms are positive.

use super::arithmetic;
use super::quadrature::{DEPTH, bound_of_end, end_of_integral, map_nodes};
use crate::ops::primitive::copy;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::Expr;
use pellucid_ir::formula::remainders::{
    HALF_LN_2PI, SERIES_BEGIN, digamma_minus_log, exp_m1_minus, log_ratio, log_ratio_minus, next_digamma_minus_log,
    remainder_of_any,
};
use pellucid_ir::{DType, Result, formula};

/// Computes the regularized incomplete beta function I_x(a, b) = ∫₀ˣ tᵃ⁻¹(1 − t)ᵇ⁻¹ dt / B(a, b), for 0 ≤ x ≤ 1 and
/// positive, finite a and b; otherwise NaN.
///
/// This is SciPy's `betainc`. a, b and x broadcast. The result is computed in `f64` with a relative error of about
/// 1e-15·(1 + |ln I|), and rounded. For b < 1e-3, the error near x = 1 is relative to 1. The result is differentiable
/// with respect to a, b and x. The derivative with respect to x is the density xᵃ⁻¹(1 − x)ᵇ⁻¹ / B(a, b); the
/// derivatives with respect to a and b have a relative error of about 1e-12.
///
/// # Errors
/// [`Error::ShapeMismatch`](pellucid_ir::Error::ShapeMismatch).
#[tensor_method]
pub fn betainc(a: &Tensor, b: &Tensor, x: &Tensor) -> Result<Tensor> {
    let dtype = float_dtype([a, b, x]);
    let x = copy::to_dtype(x, DType::F64)?;
    copy::to_dtype(&betainc_of_pair(a, b, &x, &arithmetic::sub(1.0, &x)?)?, dtype)
}

/// Computes 1 − I_x(a, b), the complement of [`betainc`], accurate where it is small.
///
/// # Errors
/// The errors of [`betainc`].
#[tensor_method]
pub fn betaincc(a: &Tensor, b: &Tensor, x: &Tensor) -> Result<Tensor> {
    let dtype = float_dtype([a, b, x]);
    let x = copy::to_dtype(x, DType::F64)?;
    copy::to_dtype(&betainc_of_pair(b, a, &arithmetic::sub(1.0, &x)?, &x)?, dtype)
}

/// Returns the common dtype, or `f32` for integers.
fn float_dtype([a, b, x]: [&Tensor; 3]) -> DType {
    let dtype = DType::promote(DType::promote(a.dtype(), b.dtype()), x.dtype());
    if dtype.is_float() { dtype } else { DType::F32 }
}

/// Computes I_x(a, b) in `f64` from x and y = 1 − x. Values and gradients are computed from the smaller of x and y,
/// which may be more accurate than 1 minus the other.
///
/// # Errors
/// [`Error::ShapeMismatch`](pellucid_ir::Error::ShapeMismatch).
#[doc(hidden)]
pub fn betainc_of_pair(a: &Tensor, b: &Tensor, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let function = formula! {
        static betainc(a: per_row, b: per_row, x: per_row, rest: per_row, node, weight) = {
            let (is_inside, tail) = BetaTail::for_arguments(a, b, x, rest);
            let smaller = tail.log_weight().exp() * tail.integrals(node, weight).total;
            let value = tail.is_lower.select(smaller, 1.0 - smaller);
            let is_end = |end: f64| x.eq(end) & is_positive(a) & is_positive(b);
            is_inside.select(value, is_end(0.0).select(0.0, is_end(1.0).select(1.0, f64::NAN)))
        };
        d a = g * parameter_slope([a, b, x, rest], node, weight, true);
        d b = g * parameter_slope([a, b, x, rest], node, weight, false);
        d x = x.le(0.5).select(g * beta_density(a, b, x, rest), 0.0);
        d rest = x.le(0.5).select(0.0, -(g * beta_density(a, b, x, rest)));
    };
    map_nodes("betainc", function, &[a, b, x, y])
}

/// Computes the distribution function of Student's t distribution with df degrees of freedom, in `f64`.
///
/// For z < 0 it is ½·I_x(df/2, ½) with x = df/(df + z²); for z > 0 it is the complement of this value.
///
/// # Errors
/// [`Error::ShapeMismatch`](pellucid_ir::Error::ShapeMismatch).
#[doc(hidden)]
pub fn student_t_cdf(df: &Tensor, z: &Tensor) -> Result<Tensor> {
    let function = formula! {
        static student_t_cdf(df: per_row, z: per_row, node, weight) = {
            let (is_inside, tail) = student_t_tail(df, z);
            let smaller = tail.log_weight().exp() * tail.integrals(node, weight).total;
            let half = 0.5 * tail.is_lower.select(smaller, 1.0 - smaller);
            let limit = z.abs().gt(1.0).select(0.0, 0.5);
            let half = is_inside.select(half, (df.is_nan() | z.is_nan()).select(df + z, limit));
            z.lt(0.0).select(half, 1.0 - half)
        };
        d df = {
            let (is_inside, tail) = student_t_tail(df, z);
            let [by_own, by_other] = tail.slopes(node, weight);
            // The derivative of x = df/(df + z²) with respect to df is x(1 − x)/df.
            let own_weight = tail.log_weight().exp() * tail.a / df;
            let slope = 0.25 * tail.is_lower.select(by_own, -by_other) + 0.5 * own_weight;
            is_inside.select(g * z.lt(0.0).select(slope, -slope), 0.0)
        };
        d z = {
            let h = 0.5 * df;
            let ratio = z / df.sqrt();
            let is_far = ratio.abs().gt(1e9);
            let near = is_far.select(0.0, ratio);
            let log = is_far.select(2.0 * is_far.select(ratio.abs(), 1.0).ln(), (near * near).ln_1p());
            g * (log_gamma_half_step(h) - (h + 0.5) * log - HALF_LN_2PI).exp()
        };
    };
    map_nodes("student_t_cdf", function, &[df, z])
}

/// Returns ln Γ(h + ½) − ln Γ(h) − ½·ln h.
fn log_gamma_half_step(h: Expr) -> Expr {
    // (h + ½ − ½)·ln(h + ½) − (h − ½)·ln h − ½ − ½·ln h is h·ln(1 + 1/2h) − ½.
    let u = 0.5 / h;
    h * log_ratio_minus(u, 1.0 + u) + remainder_of_any(h + 0.5) - remainder_of_any(h)
}

/// Returns the mask of arguments inside the domain, and the tail of the distribution of df/(df + z²).
fn student_t_tail(df: Expr, z: Expr) -> (Expr, BetaTail) {
    // The tiny offset keeps the derivative at z = 0 finite.
    let ratio = z.lt(0.0).select(-z, z) / df.sqrt() + 1e-140;
    let is_small = ratio.lt(1.0);
    let (small, large) = (is_small.select(ratio, 1.0), is_small.select(1.0, ratio));
    let (square, inverse) = (small * small, (large * large).recip());
    let x = is_small.select((1.0 + square).recip(), inverse / (1.0 + inverse));
    let y = is_small.select(square / (1.0 + square), (1.0 + inverse).recip());
    BetaTail::for_arguments(0.5 * df, 0.0 * df + 0.5, x, y)
}

fn is_positive(a: Expr) -> Expr {
    a.gt(0.0) & a.lt(f64::INFINITY)
}

/// Returns the derivative with respect to a (`is_first`) or b, which is 0 at x = 0 and x = 1.
fn parameter_slope([a, b, x, y]: [Expr; 4], node: Expr, weight: Expr, is_first: bool) -> Expr {
    let (is_inside, tail) = BetaTail::for_arguments(a, b, x, y);
    let [by_own, by_other] = tail.slopes(node, weight);
    let (lower, upper) = if is_first { (by_own, by_other) } else { (by_other, by_own) };
    let is_end = (x.eq(0.0) | x.eq(1.0)) & is_positive(a) & is_positive(b);
    is_inside.select(tail.is_lower.select(lower, -upper), is_end.select(0.0, f64::NAN))
}

/// Returns the density xᵃ⁻¹yᵇ⁻¹ / B(a, b). For small a and b and at the ends, it is computed by `pow` instead of
/// logarithms, so that its derivatives at the ends exist.
fn beta_density(a: Expr, b: Expr, x: Expr, y: Expr) -> Expr {
    let (is_inside, tail) = BetaTail::for_arguments(a, b, x, y);
    let is_large = is_inside & (a.ge(SERIES_BEGIN) | b.ge(SERIES_BEGIN));
    let (c, d) = (is_large.select(1.0, a), is_large.select(1.0, b));
    let (from_0, from_1) = (is_large.select(0.5, x), is_large.select(0.5, y));
    let powers = from_0.pow(c - 1.0) * from_1.pow(d - 1.0) * ((c + d).lgamma() - c.lgamma() - d.lgamma()).exp();
    let large = tail.log_weight().exp() * tail.a / (tail.x * tail.y);
    is_large.select(large, ((x.ge(0.0) & y.ge(0.0)) | x.is_nan()).select(powers, f64::NAN))
}

/// The smaller tail of Beta(a, b) at x, as a lower tail. For an upper tail, a and b are exchanged, and so are x and y.
struct BetaTail {
    is_lower: Expr,
    a: Expr,
    b: Expr,
    x: Expr,
    /// y = 1 − x.
    y: Expr,
    /// a − (a + b)·x, which is not negative.
    distance: Expr,
}

/// The integral and its derivatives.
struct BetaIntegrals {
    total: Expr,
    by_a: Expr,
    by_b: Expr,
}

/// The number of steps of the recurrence.
const STEPS: u32 = 8;

impl BetaTail {
    /// Returns the mask of arguments inside the domain, and the tail. Arguments outside the domain are replaced by
    /// valid arguments.
    fn for_arguments(a: Expr, b: Expr, x: Expr, y: Expr) -> (Expr, BetaTail) {
        let is_inside = is_positive(a) & is_positive(b) & x.gt(0.0) & y.gt(0.0);
        let (a, b) = (is_inside.select(a, 1.0), is_inside.select(b, 1.0));
        let (x, y) = (is_inside.select(x, 0.5), is_inside.select(y, 0.5));
        // a − (a + b)·x is computed from the smaller of x and y, without the rounding errors of the sum and of the
        // product.
        let is_left = x.le(0.5);
        let (near, other, at) = (is_left.select(a, b), is_left.select(b, a), is_left.select(x, y));
        let n = near + other;
        let rounded = n - near;
        let n_error = (near - (n - rounded)) + (other - rounded);
        let product = n * at;
        let product_error = n.mul_add(at, -product);
        let distance = (near - product) - product_error - n_error * at;
        let distance = is_left.select(distance, -distance);
        let is_lower = distance.ge(0.0);
        let either = |lower: Expr, upper: Expr| is_lower.select(lower, upper);
        let (a, b, x, y) = (either(a, b), either(b, a), either(x, y), either(y, x));
        (is_inside, BetaTail { is_lower, a, b, x, y, distance: either(distance, -distance) })
    }

    /// Returns ln(xᵃyᵇ/(a·B(a, b))).
    fn log_weight(&self) -> Expr {
        let BetaTail { a, b, x, y, distance, .. } = *self;
        let n = a + b;
        a * log_ratio_minus(-distance / a, n * x / a) + b * log_ratio_minus(distance / b, n * y / b)
            - remainder_of_any(a)
            - remainder_of_any(b)
            + remainder_of_any(n)
            + 0.5 * (b / n / a).ln()
            - HALF_LN_2PI
    }

    /// Returns the derivatives of the tail with respect to a and b.
    fn slopes(&self, node: Expr, weight: Expr) -> [Expr; 2] {
        let BetaTail { a, b, x, y, distance, .. } = *self;
        let n = a + b;
        let BetaIntegrals { total, by_a, by_b } = self.integrals(node, weight);
        let log_a = log_ratio(-distance / a, n * x / a) + digamma_minus_log(n) - next_digamma_minus_log(a);
        let log_b = log_ratio(distance / b, n * y / b) + digamma_minus_log(n) - digamma_minus_log(b);
        let weight = self.log_weight().exp();
        [weight * (log_a * total + by_a), weight * (log_b * total + by_b)]
    }

    /// Returns the tail divided by xᵃyᵇ/(a·B(a, b)), and the derivatives of this quotient.
    fn integrals(&self, node: Expr, weight: Expr) -> BetaIntegrals {
        let BetaTail { a, b, x, y, distance, .. } = *self;
        let (raised, n) = (a + f64::from(STEPS), a + b + f64::from(STEPS));
        let decay = distance + f64::from(STEPS) * y;
        let is_left = x.le(0.5);
        let base = is_left.select(x, y);
        // The result is ln(1 − x + x·e^(−w)) + x·w, computed from the smaller of x and y.
        let curve = |w: Expr| {
            let v = is_left.select(-w, w);
            let u = base * v.exp_m1();
            log_ratio_minus(u, 1.0 + u) + base * exp_m1_minus(v)
        };
        let bound = bound_of_end(decay, n * x * y);
        // Where y is small, the slope of the exponent soon reaches its limit `raised`. This limit yields a second
        // bound.
        let bound = is_left.select(bound, bound.min((DEPTH - n * is_left.select(1.0, y).ln()) / raised));
        let end = end_of_integral(bound, |w| {
            let v = is_left.select(-w, w);
            let share = base * v.exp() / (1.0 + base * v.exp_m1());
            (decay * w + n * curve(w), is_left.select(raised - n * share, n * share - b))
        });
        let w = end * node;
        let curve = curve(w);
        let density = end * weight * (-(decay * w + n * curve)).exp();
        let integral = density.row_sum();
        let (moment_a, moment_b) = ((density * (-y * w - curve)).row_sum(), (density * (x * w - curve)).row_sum());

        // The terms xᵏ·(n)ₖ/(a + 1)ₖ of the recurrence, with their logarithmic derivatives.
        let zero = 0.0 * x;
        let (mut term, mut log_a, mut log_b) = (zero + 1.0, zero, zero);
        let (mut total, mut by_a, mut by_b) = (zero, zero, zero);
        for k in 0..STEPS {
            (total, by_a, by_b) = (total + term, by_a + term * log_a, by_b + term * log_b);
            let (sum, next) = (a + b + f64::from(k), a + f64::from(k + 1));
            term = term * x * sum / next;
            (log_a, log_b) = (log_a + sum.recip() - next.recip(), log_b + sum.recip());
        }
        BetaIntegrals {
            total: total + term * raised * integral,
            by_a: by_a + term * (log_a * raised * integral + integral + raised * moment_a),
            by_b: by_b + term * raised * (log_b * integral + moment_b),
        }
    }
}
