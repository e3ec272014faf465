//! Exponentials, logarithms, trigonometric, hyperbolic and special functions.

use super::{binary, unary};

unary! {
    /// eˣ
    exp(x) = x.exp();
    /// 2ˣ
    exp2(x) = x.exp2();
    /// eˣ − 1, accurate near 0.
    expm1(x) = x.exp_m1();
    /// The natural logarithm.
    ln(x) = x.ln();
    /// The natural logarithm, by NumPy's name.
    log(x) = x.ln();
    /// The logarithm to base 2.
    log2(x) = x.log2();
    /// The logarithm to base 10.
    log10(x) = x.log10();
    /// ln(1 + x), accurate near 0.
    log1p(x) = x.ln_1p();
    /// The sine of an angle in radians.
    sin(x) = x.sin();
    /// The cosine of an angle in radians.
    cos(x) = x.cos();
    /// The tangent of an angle in radians.
    tan(x) = x.tan();
    /// The angle in [−π/2, π/2] with this sine.
    asin(x) = x.asin();
    /// The angle in [0, π] with this cosine.
    acos(x) = x.acos();
    /// The angle in (−π/2, π/2) with this tangent.
    atan(x) = x.atan();
    /// (eˣ − e⁻ˣ)/2
    sinh(x) = x.sinh();
    /// (eˣ + e⁻ˣ)/2
    cosh(x) = x.cosh();
    /// sinh x / cosh x
    tanh(x) = x.tanh();
    /// The inverse of `sinh`.
    asinh(x) = x.asinh();
    /// The inverse of `cosh`, for x ≥ 1.
    acosh(x) = x.acosh();
    /// The inverse of `tanh`, for |x| < 1.
    atanh(x) = x.atanh();
    /// The error function 2/√π ∫₀ˣ e^(−t²) dt.
    erf(x) = x.erf();
    /// 1 − erf(x), accurate for large x.
    erfc(x) = x.erfc();
    /// The inverse of `erf`, for |x| < 1.
    erfinv(x) = x.erfinv();
    /// ln |Γ(x)|
    lgamma(x) = x.lgamma();
    /// ψ(x), the derivative of ln Γ(x).
    digamma(x) = x.digamma();
    /// sin(πx)/(πx), 1 at 0.
    sinc(x) = {
        let t = x * std::f64::consts::PI;
        t.eq(0.0).select(1.0, t.sin() / t.eq(0.0).select(1.0, t))
    },
        d x = g * std::f64::consts::PI * super::slope_of_sin_over(x * std::f64::consts::PI, y);
    /// ln(x / (1 − x)), the inverse of `sigmoid`.
    logit(x) = (x / (1.0 - x)).ln();
    /// An angle in degrees, in radians.
    deg2rad(x) = x * (std::f64::consts::PI / 180.0);
    /// An angle in radians, in degrees.
    rad2deg(x) = x * (180.0 / std::f64::consts::PI);
    /// The entropy of one probability: −x·ln x, 0 at 0, −∞ below.
    entr(x) = x.gt(0.0).select(-x * x.max(0.0).ln(), x.eq(0.0).select(0.0, x.is_nan().select(x, f64::NEG_INFINITY))),
        d x = g * (-1.0 - x.ln());
}

binary! {
    /// ln(eᵃ + eᵇ), where neither power overflows.
    logaddexp(a, b) = a.max(b) + (-a.eq(b).select(0.0, a - b).abs()).exp().ln_1p(),
        d a = g * (a - b).sigmoid(), d b = g * (b - a).sigmoid();
    /// a·ln b; 0 where a is 0, unless b is NaN.
    xlogy(a, b) = a.eq(0.0).select(b.is_nan().select(b, 0.0), a * b.ln()),
        d a = g * (a.eq(0.0) & b.le(0.0)).select(0.0, b.ln()), d b = g * a / b;
    /// a·ln(1 + b); 0 where a is 0, unless b is NaN.
    xlog1py(a, b) = a.eq(0.0).select(b.is_nan().select(b, 0.0), a * b.ln_1p()),
        d a = g * (a.eq(0.0) & b.le(-1.0)).select(0.0, b.ln_1p()), d b = g * a / (1.0 + b);
    /// a·2ᵇ
    ldexp(a, b) = a * b.exp2();
}
