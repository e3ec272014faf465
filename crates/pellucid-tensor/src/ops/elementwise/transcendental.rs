//! Exponentials, logarithms, trigonometric, hyperbolic and special functions.

use super::table::{binary, unary};

unary! {
    /// Computes eˣ.
    exp(x) = x.exp(), autocast = Single;
    /// Computes 2ˣ.
    exp2(x) = x.exp2(), autocast = Single;
    /// Computes eˣ − 1, accurate near 0.
    expm1(x) = x.exp_m1(), autocast = Single;
    /// Computes the cube root ∛x, even of negative numbers. The derivative at 0 is ∞.
    cbrt(x) = {
        // A step of Newton's method removes the error of the power.
        let y = (x.abs().ln() * (1.0 / 3.0)).exp().copysign(x);
        let root = y + (x / (y * y) - y) * (1.0 / 3.0);
        (x.eq(0.0) | !x.is_finite()).select(x, root)
    },
        // The derivative of y⁻² at 0 is infinite, like the second derivative of the root. The derivative of 1/(y·y)
        // would be 0/0.
        d x = g / 3.0 * y.pow(-2.0);
    /// Computes the natural logarithm.
    ln(x) = x.ln(), autocast = Single;
    /// Computes the natural logarithm; NumPy's name for `ln`.
    log(x) = x.ln(), autocast = Single;
    /// Computes the logarithm to base 2.
    log2(x) = x.log2(), autocast = Single;
    /// Computes the logarithm to base 10.
    log10(x) = x.log10(), autocast = Single;
    /// Computes ln(1 + x), accurate near 0.
    log1p(x) = x.ln_1p(), autocast = Single;
    /// Computes the sine of an angle in radians.
    sin(x) = x.sin();
    /// Computes the cosine of an angle in radians.
    cos(x) = x.cos();
    /// Computes the tangent of an angle in radians.
    tan(x) = x.tan(), autocast = Single;
    /// Computes the inverse sine, in [−π/2, π/2].
    #[doc(alias = "arcsin")]
    asin(x) = x.asin(), autocast = Single;
    /// Computes the inverse cosine, in [0, π].
    #[doc(alias = "arccos")]
    acos(x) = x.acos(), autocast = Single;
    /// Computes the inverse tangent, in [−π/2, π/2].
    #[doc(alias = "arctan")]
    atan(x) = x.atan();
    /// Computes the hyperbolic sine (eˣ − e⁻ˣ)/2.
    sinh(x) = x.sinh(), autocast = Single;
    /// Computes the hyperbolic cosine (eˣ + e⁻ˣ)/2.
    cosh(x) = x.cosh(), autocast = Single;
    /// Computes the hyperbolic tangent sinh x / cosh x.
    tanh(x) = x.tanh();
    /// Computes the inverse of `sinh`.
    #[doc(alias = "arcsinh")]
    asinh(x) = x.asinh();
    /// Computes the inverse of `cosh`, for x ≥ 1.
    #[doc(alias = "arccosh")]
    acosh(x) = x.acosh(), autocast = Single;
    /// Computes the inverse of `tanh`, for |x| < 1.
    #[doc(alias = "arctanh")]
    atanh(x) = x.atanh();
    /// Computes the error function 2/√π ∫₀ˣ e^(−t²) dt.
    erf(x) = x.erf();
    /// Computes 1 − erf(x), within 4 ULP, even for large x. The derivative −2/√π·e^(−x²) is within 4 + x² ULP.
    erfc(x) = x.erfc();
    /// Computes the inverse of `erf`, for |x| < 1.
    erfinv(x) = x.erfinv(), autocast = Single;
    /// Computes ln |Γ(x)|. Near its negative zeros (−2.457, −2.748, −3.144, ..) the error is relative to 1, not to the
    /// result: at most 1e-15·max(1, |x|) in `f64`.
    #[doc(alias = "gammaln")]
    lgamma(x) = x.lgamma(), autocast = Single;
    /// Computes ψ(x), the derivative of ln Γ(x). Near its negative zeros (−0.504, −1.573, −2.611, ..) the error is
    /// relative to 1, not to the result: at most 4e-15 in `f64`.
    #[doc(alias = "psi")]
    digamma(x) = x.digamma(), autocast = Single;
    /// Computes sin(πx)/(πx): 1 at 0, and 0 at all other integers.
    sinc(x) = {
        let t = x * std::f64::consts::PI;
        t.eq(0.0).select(1.0, x.sin_pi() / t)
    },
        d x = g * std::f64::consts::PI * super::slope_of_sin_over(x * std::f64::consts::PI, x.cos_pi(), y);
    /// Computes ln(x / (1 − x)), the inverse of `sigmoid`, accurate near ½.
    logit(x) = super::log_odds(x), d x = g / x + g / (1.0 - x);
    /// Converts degrees to radians.
    #[doc(alias = "radians")]
    deg2rad(x) = x * (std::f64::consts::PI / 180.0);
    /// Converts radians to degrees.
    #[doc(alias = "degrees")]
    rad2deg(x) = x * (180.0 / std::f64::consts::PI);
    /// Computes −x·ln x, the entropy of one probability; 0 at 0, −∞ for x < 0.
    entr(x) = x.gt(0.0).select(-x * x.max(0.0).ln(), x.eq(0.0).select(0.0, x.is_nan().select(x, f64::NEG_INFINITY))),
        d x = g * (-1.0 - x.ln());
}

binary! {
    /// Computes ln(eᵃ + eᵇ) without overflow of the powers. For equal infinities, each operand receives half the
    /// gradient. If the result is near 0, its error is relative to the larger operand, as in PyTorch.
    logaddexp(a, b) = a.max(b) + (-a.eq(b).select(0.0, a - b).abs()).exp().ln_1p(), autocast = Single,
        d a = g * super::difference(a, b).sigmoid(), d b = g * super::difference(b, a).sigmoid();
    /// Computes a·ln b; 0 where a is 0, unless b is NaN. The gradient at (0, 0) is 0.
    xlogy(a, b) = a.ne(0.0).select(a * b.ln(), b.is_nan().select(b, 0.0)), autocast = Single,
        d a = g * (a.eq(0.0) & b.le(0.0)).select(0.0, b.ln()), d b = g * (a / (a.eq(0.0) & b.eq(0.0)).select(f64::INFINITY, b));
    /// Computes a·ln(1 + b); 0 where a is 0, unless b is NaN. The gradient at (0, −1) is 0.
    xlog1py(a, b) = a.ne(0.0).select(a * b.ln_1p(), b.is_nan().select(b, 0.0)),
        d a = g * (a.eq(0.0) & b.le(-1.0)).select(0.0, b.ln_1p()), d b = g * (a / (a.eq(0.0) & b.eq(-1.0)).select(f64::INFINITY, 1.0 + b));
    /// Computes a·2ᵇ, even where 2ᵇ overflows or underflows and the result does not.
    ldexp(a, b) = a.ldexp(b);
}
