//! [`Real`]: both float types under one set of names, so that a primitive's line is written once.

use super::{bessel, double, gamma, single};

/// A float type with every primitive of one or two numbers.
///
/// The methods carry the names of the inherent ones of `f32` and `f64`, which call the platform's
/// `libm` and must not be used: in code generic over `T: Real` only these are in reach.
pub trait Real:
    Copy
    + PartialOrd
    + core::ops::Neg<Output = Self>
    + core::ops::Add<Output = Self>
    + core::ops::Sub<Output = Self>
    + core::ops::Mul<Output = Self>
    + core::ops::Div<Output = Self>
{
    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;
    /// ∞
    const INFINITY: Self;
    /// Beyond this magnitude the fast sine, cosine and tangent no longer hold.
    const TRIG_LIMIT: Self;
    /// Beyond this magnitude the fast exponential no longer holds.
    const EXP_LIMIT: Self;
    /// eˣ for |x| ≤ [`Real::EXP_LIMIT`].
    fn exp_fast(self) -> Self;
    /// Sine of |x| ≤ [`Real::TRIG_LIMIT`], without branches.
    fn sin_fast(self) -> Self;
    /// Cosine of |x| ≤ [`Real::TRIG_LIMIT`], without branches.
    fn cos_fast(self) -> Self;
    /// Tangent of |x| ≤ [`Real::TRIG_LIMIT`], without branches.
    fn tan_fast(self) -> Self;
    /// a · b + c, rounded once.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// √x
    fn sqrt(self) -> Self;
    /// |x|
    fn abs(self) -> Self;
    /// ⌊x⌋
    fn floor(self) -> Self;
    /// ⌈x⌉
    fn ceil(self) -> Self;
    /// Nearest integer, halves to even.
    fn round(self) -> Self;
    /// Integer part.
    fn trunc(self) -> Self;
    /// The magnitude of `self` with the sign of `s`.
    fn copysign(self, s: Self) -> Self;
    /// x is NaN.
    fn is_nan(self) -> bool;
    /// x is neither infinite nor NaN.
    fn is_finite(self) -> bool;
    /// −1, 0 or 1; NaN and ±0 stay themselves.
    #[inline(always)]
    fn sign(self) -> Self {
        let unit = Self::ONE.copysign(self);
        if self.abs() > Self::ZERO { unit } else { self }
    }
    /// The larger, NaN if either is; of two equal values the second.
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        let m = if self > b { self } else { b };
        if self.is_nan() { self } else { m }
    }
    /// The smaller, NaN if either is; of two equal values the second.
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        let m = if self < b { self } else { b };
        if self.is_nan() { self } else { m }
    }
    /// ⌊a / b⌋ of the exact quotient; a / b where that is infinite or NaN.
    fn floor_div(self, b: Self) -> Self;
    /// a − b·⌊a / b⌋, with the sign of b.
    fn rem(self, b: Self) -> Self;
    /// eˣ
    fn exp(self) -> Self;
    /// 2ˣ
    fn exp2(self) -> Self;
    /// eˣ − 1
    fn expm1(self) -> Self;
    /// ln x
    fn ln(self) -> Self;
    /// log₂ x
    fn log2(self) -> Self;
    /// log₁₀ x
    fn log10(self) -> Self;
    /// ln(1 + x)
    fn ln_1p(self) -> Self;
    /// sin x
    fn sin(self) -> Self;
    /// cos x
    fn cos(self) -> Self;
    /// tan x
    fn tan(self) -> Self;
    /// arcsin x
    fn asin(self) -> Self;
    /// arccos x
    fn acos(self) -> Self;
    /// arctan x
    fn atan(self) -> Self;
    /// The angle of the point (x, self).
    fn atan2(self, x: Self) -> Self;
    /// sinh x
    fn sinh(self) -> Self;
    /// cosh x
    fn cosh(self) -> Self;
    /// tanh x
    fn tanh(self) -> Self;
    /// arsinh x
    fn asinh(self) -> Self;
    /// arcosh x
    fn acosh(self) -> Self;
    /// artanh x
    fn atanh(self) -> Self;
    /// 1 / (1 + e⁻ˣ)
    fn sigmoid(self) -> Self;
    /// erf x
    fn erf(self) -> Self;
    /// 1 − erf x
    fn erfc(self) -> Self;
    /// erf⁻¹ x
    fn erfinv(self) -> Self;
    /// e^(x²)·erfc x
    fn erfcx(self) -> Self;
    /// Φ⁻¹ x
    fn ndtri(self) -> Self;
    /// selfᵇ
    fn pow(self, b: Self) -> Self;
    /// ln |Γ(x)|
    fn lgamma(self) -> Self;
    /// ψ(x)
    fn digamma(self) -> Self;
    /// ψ⁽ⁿ⁾(x), n = self
    fn polygamma(self, x: Self) -> Self;
    /// Hurwitz' ζ(s, x), s = self
    fn zeta(self, x: Self) -> Self;
    /// P(a, x), a = self
    fn igamma(self, x: Self) -> Self;
    /// 1 − P(a, x), a = self
    fn igammac(self, x: Self) -> Self;
    /// J_n(x), n = self
    fn bessel_j(self, x: Self) -> Self;
    /// Y_n(x), n = self
    fn bessel_y(self, x: Self) -> Self;
    /// I_n(x), n = self
    fn bessel_i(self, x: Self) -> Self;
    /// e^(−|x|)·I_n(x), n = self
    fn bessel_ie(self, x: Self) -> Self;
    /// K_n(x), n = self
    fn bessel_k(self, x: Self) -> Self;
    /// eˣ·K_n(x), n = self
    fn bessel_ke(self, x: Self) -> Self;
}

/// Methods that are computed in `f64`.
macro_rules! wide {
    ($t:ident, |$wide:ident| $round:expr; $($module:ident: $($name:ident($($x:ident)?)),*;)*) => {$($(
        #[inline(always)]
        fn $name(self $(, $x: $t)?) -> $t {
            let $wide = $module::$name(self as f64 $(, $x as f64)?);
            $round
        }
    )*)*};
}

/// Forwards each method to the free function of the same name.
macro_rules! real {
    ($t:ident, $module:ident, [$($inherent:ident)*], [$($unary:ident)*], [$($binary:ident)*], |$wide:ident| $round:expr) => {
        impl Real for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            const INFINITY: $t = $t::INFINITY;
            const TRIG_LIMIT: $t = $module::TRIG_LIMIT;
            const EXP_LIMIT: $t = $module::EXP_LIMIT;
            #[inline(always)]
            fn round(self) -> $t {
                $t::round_ties_even(self)
            }
            #[inline(always)]
            fn mul_add(self, b: $t, c: $t) -> $t {
                $t::mul_add(self, b, c)
            }
            #[inline(always)]
            fn copysign(self, s: $t) -> $t {
                $t::copysign(self, s)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                self != self
            }
            #[inline(always)]
            fn is_finite(self) -> bool {
                $t::abs(self) < $t::INFINITY
            }
            // The gamma family and Bessel's functions exist in f64 only; f32 rounds their result.
            wide! { $t, |$wide| $round;
                gamma: lgamma(), digamma(), polygamma(x), zeta(x), igamma(x), igammac(x);
                bessel: bessel_j(x), bessel_y(x), bessel_i(x), bessel_ie(x), bessel_k(x), bessel_ke(x);
            }
            $(
                #[inline(always)]
                fn $inherent(self) -> $t {
                    $t::$inherent(self)
                }
            )*
            $(
                #[inline(always)]
                fn $unary(self) -> $t {
                    $module::$unary(self)
                }
            )*
            $(
                #[inline(always)]
                fn $binary(self, b: $t) -> $t {
                    $module::$binary(self, b)
                }
            )*
        }
    };
}

macro_rules! both {
    ($inherent:tt, $unary:tt, $binary:tt) => {
        real!(f32, single, $inherent, $unary, $binary, |w| w as f32);
        real!(f64, double, $inherent, $unary, $binary, |w| w);
    };
}
both!(
    // IEEE operations, exact or correctly rounded in the standard library.
    [sqrt abs floor ceil trunc],
    [sin_fast cos_fast tan_fast exp_fast exp exp2 expm1 ln log2 log10 ln_1p sin cos tan asin acos atan sinh cosh tanh asinh
     acosh atanh sigmoid erf erfc erfcx erfinv ndtri],
    [floor_div rem atan2 pow]
);
