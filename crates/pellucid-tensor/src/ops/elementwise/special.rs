//! Special functions, such as Bessel functions, and the functions of the gamma and normal distributions.

use super::table::{binary, unary};
use crate::array::host_values;
use crate::autograd::is_recorded;
use crate::ops::call::axes::check_reduction_rank;
use crate::ops::call::check;
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::{map, map_sum};
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::{copy, create, view};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::{Binary, Expr, ValueKind};
use pellucid_ir::{Error, Result, Scalar, formula};
use std::f64::consts::{FRAC_1_SQRT_2, LN_2, PI};

unary! {
    /// Computes ψ⁽ⁿ⁾(x), the n-th derivative of `digamma`, for an integer n from 0 to 170 (else NaN).
    polygamma(x; n) = x.polygamma(n);
    /// Computes e^(x²)·erfc(x), the scaled complementary error function, which decays as 1/(x√π).
    erfcx(x) = x.erfcx();
    /// Computes Φ(x), the standard normal distribution function, within 4 ULP in both tails. The derivative
    /// e^(−x²/2)/√(2π) is within 4 + x²/2 ULP.
    ndtr(x) = x.ndtr();
    /// Computes Φ⁻¹(x), the inverse of `ndtr`, for 0 < x < 1 (Wichura 1988).
    ndtri(x) = x.ndtri();
    /// Computes ln Φ(x), accurate where Φ is small or near 1.
    log_ndtr(x) = {
        let left = x.lt(-1.0).select(x, -1.0);
        let tail = (0.5 * (left * -FRAC_1_SQRT_2).erfcx()).ln() - 0.5 * left * left;
        x.lt(-1.0).select(tail, (-(-x).ndtr()).ln_1p())
    },
        d x = {
            // In the tail, φ/Φ is computed by Laplace's continued fraction, whose derivatives of every order are free
            // of cancellation. The tail begins at −4, or at −2.5 if derivatives are computed.
            let slope = |from: f64, levels: u32| {
                let t = x.lt(from).select(-x, -from);
                // The omitted part f satisfies f ≈ t + (levels + 1)/f.
                let rest = 0.5 * (t + (t * t + f64::from(4 * (levels + 1))).sqrt());
                let tail = t + (2..=levels).rev().fold(rest, |f, k| t + f64::from(k) / f).recip();
                x.lt(from).select(tail, 0.3989422804014327 * (-0.5 * x * x - y).exp())
            };
            g * refined.select(slope(-2.5, 50), slope(-4.0, 21))
        };
    /// Computes I₀(x), the modified Bessel function of the first kind of order 0.
    #[doc(alias = "bessel_i0")]
    i0(x) = x.bessel(Binary::BesselI, 0.0);
    /// Computes e^(−|x|)·I₀(x), exponentially scaled `i0`.
    ///
    /// Derivatives of orders 3 and 4 lose digits to cancellation: up to |x| = 30, their relative errors grow to 3e-3
    /// and 5e-2 in `f32` (measured), and to 2e-11 and 2e-10 in `f64`.
    i0e(x) = x.bessel(Binary::BesselIe, 0.0), d x = g * scaled_bessel_slope(Binary::BesselIe, 0.0, x, y);
    /// Computes I₁(x), the modified Bessel function of the first kind of order 1.
    #[doc(alias = "bessel_i1")]
    i1(x) = x.bessel(Binary::BesselI, 1.0);
    /// Computes e^(−|x|)·I₁(x), exponentially scaled `i1`.
    ///
    /// Derivatives of orders 3 and 4 lose digits to cancellation: up to |x| = 30, their relative errors grow to 3e-3
    /// and 5e-2 in `f32` (measured), and to 2e-11 and 2e-10 in `f64`.
    i1e(x) = x.bessel(Binary::BesselIe, 1.0), d x = g * scaled_bessel_slope(Binary::BesselIe, 1.0, x, y);
    /// Computes K₀(x), the modified Bessel function of the second kind of order 0; ∞ at 0, NaN for x < 0.
    #[doc(alias = "bessel_k0")]
    k0(x) = x.bessel(Binary::BesselK, 0.0);
    /// Computes eˣ·K₀(x), exponentially scaled `k0`.
    ///
    /// Derivatives of orders 3 and 4 lose digits to cancellation: up to |x| = 30, their relative errors grow to 2e-3
    /// and 3e-2 in `f32` (measured), and to 2e-11 and 2e-10 in `f64`.
    k0e(x) = x.bessel(Binary::BesselKe, 0.0), d x = g * scaled_bessel_slope(Binary::BesselKe, 0.0, x, y);
    /// Computes K₁(x), the modified Bessel function of the second kind of order 1; ∞ at 0, NaN for x < 0.
    #[doc(alias = "bessel_k1")]
    k1(x) = x.bessel(Binary::BesselK, 1.0);
    /// Computes eˣ·K₁(x), exponentially scaled `k1`.
    ///
    /// Derivatives of orders 3 and 4 lose digits to cancellation: up to |x| = 30, their relative errors grow to 2e-3
    /// and 3e-2 in `f32` (measured), and to 2e-11 and 2e-10 in `f64`.
    k1e(x) = x.bessel(Binary::BesselKe, 1.0), d x = g * scaled_bessel_slope(Binary::BesselKe, 1.0, x, y);
    /// Computes J₀(x), the Bessel function of the first kind of order 0.
    bessel_j0(x) = x.bessel(Binary::BesselJ, 0.0);
    /// Computes J₁(x), the Bessel function of the first kind of order 1.
    bessel_j1(x) = x.bessel(Binary::BesselJ, 1.0);
    /// Computes Y₀(x), the Bessel function of the second kind of order 0; −∞ at 0, NaN for x < 0.
    bessel_y0(x) = x.bessel(Binary::BesselY, 0.0);
    /// Computes Y₁(x), the Bessel function of the second kind of order 1; −∞ at 0, NaN for x < 0.
    bessel_y1(x) = x.bessel(Binary::BesselY, 1.0);
    /// Computes sin(x)/x, the spherical Bessel function of order 0; 1 at 0, and 0 at ±∞.
    spherical_bessel_j0(x) = {
        let is_limit = x.eq(0.0) | x.abs().eq(f64::INFINITY);
        let safe = is_limit.select(1.0, x);
        is_limit.select(x.eq(0.0).select(1.0, 0.0), safe.sin() / safe)
    },
        d x = x.abs().eq(f64::INFINITY).select(0.0, g * super::slope_of_sin_over(x, x.cos(), y));
}

/// The smallest |x| for which an asymptotic series computes the derivatives of scaled Bessel functions.
const ASYMPTOTIC_LIMIT: f64 = 30.0;

/// Returns the derivative of y = e^(−|x|)·I_n(x) or eˣ·K_n(x).
///
/// It is a sum of functions of the neighbouring orders and of y, which nearly cancel for large |x|: derivatives of
/// order k have the size of y/|x|ᵏ. For such x, the asymptotic series c·|x|^(−½)·Σ aₖ·(±1/|x|)ᵏ is differentiated term
/// by term (Abramowitz & Stegun 9.7.1 and 9.7.2).
fn scaled_bessel_slope(function: Binary, order: f64, x: Expr, y: Expr) -> Expr {
    let is_first_kind = function == Binary::BesselIe;
    let (sign, scale) = if is_first_kind { (-1.0, FRAC_1_SQRT_2 / PI.sqrt()) } else { (1.0, (0.5 * PI).sqrt()) };
    let is_far = x.abs().gt(ASYMPTOTIC_LIMIT);
    let large = is_far.select(x.abs(), ASYMPTOTIC_LIMIT);
    let mut coefficient = 1.0;
    let terms = (1..=21).map(|k| {
        let term = (f64::from(k) - 0.5) * coefficient;
        let odd = f64::from(2 * k - 1);
        coefficient *= sign * (4.0 * order * order - odd * odd) / f64::from(8 * k);
        term
    });
    let terms: Vec<f64> = terms.collect();
    let u = large.recip();
    let series =
        terms[..20].iter().rev().fold(Expr::literal(terms[20], ValueKind::Number), |sum, &term| sum * u + term);
    let slope = -scale * large.pow(-1.5) * series;
    let (below, above) = (x.bessel(function, order - 1.0), x.bessel(function, order + 1.0));
    match is_first_kind {
        true => {
            let slope = if order == 0.0 { x.signum() * slope } else { slope };
            is_far.select(slope, 0.5 * (below + above) - x.signum() * y)
        }
        // At 0, the Bessel function of the higher order diverges faster, so y is omitted.
        false => is_far.select(slope, x.eq(0.0).select(0.0, y) - 0.5 * (below + above)),
    }
}

binary! {
    /// Computes log₂(2ᵃ + 2ᵇ) without overflow of the powers. For equal infinities, each operand receives half the
    /// gradient. If the result is near 0, its error is relative to the larger operand, as in PyTorch.
    logaddexp2(a, b) = a.max(b) + (-a.eq(b).select(0.0, a - b).abs()).exp2().ln_1p() * LN_2.recip(), autocast = Single,
        d a = g * (super::difference(a, b) * LN_2).sigmoid(), d b = g * (super::difference(b, a) * LN_2).sigmoid();
}

/// Computes ln(z / (1 − z)) of z = x limited to [eps, 1 − eps]: PyTorch's `logit` with `eps`. The derivative outside
/// these bounds is 0.
///
/// # Errors
/// [`Error::InvalidArgument`] for an eps outside [0, ½]; [`Error::DTypeMismatch`] for a dtype that the formula is
/// not defined for.
#[doc(alias = "logit")]
#[tensor_method]
pub fn logit_with(x: &Tensor, eps: f64) -> Result<Tensor> {
    if !(0.0..=0.5).contains(&eps) {
        return Err(Error::invalid("logit_with", format!("eps must be in [0, 0.5], got {eps}")));
    }
    let formula = formula! {
        static logit_with(x; low, high) = super::log_odds(x.clamp(low, high));
        d x = (x.lt(low) | x.gt(high)).select(0.0, g / x + g / (1.0 - x));
    };
    map(formula, &[x], &[Scalar::Float(eps), Scalar::Float(1.0 - eps)])
}

/// Computes the Hurwitz zeta function ζ(s, q) = Σ (q + k)⁻ˢ over k ≥ 0.
///
/// The value is ∞ for s = 1 and at the poles q = 0, −1, .., and NaN for s < 1, and for q < 0 unless s is an integer. s
/// and q broadcast. The derivative with respect to q is −s·ζ(s + 1, q).
///
/// # Errors
/// [`Error::ShapeMismatch`]; [`Error::NoGradient`] if s requires a gradient.
#[tensor_method]
pub fn zeta(s: &Tensor, q: &Tensor) -> Result<Tensor> {
    if is_recorded(&[s]) {
        return Err(Error::NoGradient { op: "zeta" });
    }
    map(formula! { static zeta(s, q) = q.zeta(s); }, &[s, q], &[])
}

/// Computes the multivariate log-gamma function ln Γ_p(x) (PyTorch's `mvlgamma`), for x > (p − 1)/2.
///
/// ln Γ_p(x) = p(p − 1)/4·ln π + Σ ln Γ(x − i/2) over 0 ≤ i < p.
///
/// # Errors
/// [`Error::InvalidArgument`] for p = 0; [`Error::DTypeMismatch`] for integers; [`Error::OutOfMemory`].
#[tensor_method]
pub fn multigammaln(x: &Tensor, p: usize) -> Result<Tensor> {
    let op = "multigammaln";
    if p == 0 {
        return Err(Error::invalid(op, "the dimension p must be at least 1"));
    }
    check::floats(op, &[x])?;
    in_single!(op, [x] => multigammaln(x, p));
    let column = view::unsqueeze(x, -1)?;
    check_reduction_rank(op, column.shape())?;
    let shifts = host_values(p, (0..p).map(|i| -0.5 * i as f64))?;
    let shifts = copy::to_dtype(&create::from_host(&shifts, [p])?, x.dtype())?;
    // The terms are summed in the kernel that computes them.
    let term = formula! { static multigammaln(x, shift) = (x + shift).lgamma(); };
    let sum = map_sum(term, &[&column, &shifts], &[], std::iter::once(x.rank()).collect(), None)?;
    arithmetic::add(&view::squeeze(&sum, -1)?, 0.25 * (p as f64 * (p - 1) as f64) * PI.ln())
}
