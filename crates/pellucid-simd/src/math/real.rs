//! [`Real`]: the primitives of both float types under one set of names, for generic code.

use super::single::FunctionOfOrder;
use super::{bessel, double, gamma, single};

/// A float type with every unary and binary primitive.
///
/// The methods have the names of the inherent methods of `f32` and `f64`. The inherent methods call the `libm` of the
/// platform and must not be used. Code that is generic over `T: Real` can call only the methods of this trait.
pub trait Real:
    Copy
    + PartialOrd
    + core::ops::Neg<Output = Self>
    + core::ops::Add<Output = Self>
    + core::ops::Sub<Output = Self>
    + core::ops::Mul<Output = Self>
    + core::ops::Div<Output = Self>
{
    /// The value 0.
    const ZERO: Self;
    /// The value 1.
    const ONE: Self;
    /// Positive infinity.
    const INFINITY: Self;
    /// The largest magnitude for which the fast sine, cosine and tangent are accurate.
    const TRIG_LIMIT: Self;
    /// The largest magnitude for which the fast exponential is correct.
    const EXP_LIMIT: Self;
    /// The largest magnitude of b for which [`Real::ldexp_fast`] is correct.
    const LDEXP_LIMIT: Self;
    /// Returns eˣ for |x| ≤ [`Real::EXP_LIMIT`], without branches.
    fn exp_fast(self) -> Self;
    /// Returns 1 / (1 + e⁻ˣ) for |x| ≤ [`Real::EXP_LIMIT`], without branches.
    fn sigmoid_fast(self) -> Self;
    /// Returns sin x for |x| ≤ [`Real::TRIG_LIMIT`], without branches.
    fn sin_fast(self) -> Self;
    /// Returns cos x for |x| ≤ [`Real::TRIG_LIMIT`], without branches.
    fn cos_fast(self) -> Self;
    /// Returns tan x for |x| ≤ [`Real::TRIG_LIMIT`].
    fn tan_fast(self) -> Self;
    /// Returns self · b + c, rounded once.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// Returns √x.
    fn sqrt(self) -> Self;
    /// Returns |x|.
    fn abs(self) -> Self;
    /// Returns ⌊x⌋.
    fn floor(self) -> Self;
    /// Returns ⌈x⌉.
    fn ceil(self) -> Self;
    /// Returns the nearest integer, ties to even.
    fn round(self) -> Self;
    /// Returns the integer part: x rounded towards zero.
    fn trunc(self) -> Self;
    /// Returns the magnitude of `self` with the sign of `s`.
    fn copysign(self, s: Self) -> Self;
    /// Returns true if x is NaN.
    fn is_nan(self) -> bool;
    /// Returns true if x is neither infinite nor NaN.
    fn is_finite(self) -> bool;
    /// Returns 1/x if |x| and 1/|x| are powers of two in the range of normal numbers. Dividing by x then equals
    /// multiplying by 1/x.
    fn exact_reciprocal(self) -> Option<Self>;
    /// Returns the sign of x: −1 or 1. Returns ±0 and NaN unchanged.
    #[inline(always)]
    fn sign(self) -> Self {
        let unit = Self::ONE.copysign(self);
        if self.abs() > Self::ZERO { unit } else { self }
    }
    /// Returns the larger operand; NaN if either operand is NaN, and `b` if they are equal.
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        let m = if self > b { self } else { b };
        if self.is_nan() { self } else { m }
    }
    /// Returns the smaller operand; NaN if either operand is NaN, and `b` if they are equal.
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        let m = if self < b { self } else { b };
        if self.is_nan() { self } else { m }
    }
    /// Returns ⌊a / b⌋ of the exact quotient, a = self.
    ///
    /// The result is a / b if b = 0 or the quotient overflows, and NaN for an infinite a.
    fn floor_div(self, b: Self) -> Self;
    /// Returns a − b·⌊a / b⌋ with the sign of b, a = self.
    fn rem(self, b: Self) -> Self;
    /// Returns true if the fast divisions do not support the operands, a = self: a / b is large, b is 0 or infinite, or
    /// an operand is NaN.
    fn is_rare_quotient(self, b: Self) -> bool;
    /// Returns [`floor_div`](Real::floor_div) without branches, unless the quotient is rare.
    fn floor_div_fast(self, b: Self) -> Self;
    /// Returns [`rem`](Real::rem) without branches, unless the quotient is rare.
    fn rem_fast(self, b: Self) -> Self;
    /// Returns eˣ.
    fn exp(self) -> Self;
    /// Returns 2ˣ.
    fn exp2(self) -> Self;
    /// Returns eˣ − 1.
    fn expm1(self) -> Self;
    /// Returns ln x.
    fn ln(self) -> Self;
    /// Returns log₂ x.
    fn log2(self) -> Self;
    /// Returns log₁₀ x.
    fn log10(self) -> Self;
    /// Returns ln(1 + x).
    fn ln_1p(self) -> Self;
    /// Returns sin x.
    fn sin(self) -> Self;
    /// Returns cos x.
    fn cos(self) -> Self;
    /// Returns tan x.
    fn tan(self) -> Self;
    /// Returns sin πx; 0 at integers.
    fn sin_pi(self) -> Self;
    /// Returns cos πx.
    fn cos_pi(self) -> Self;
    /// Returns arcsin x.
    fn asin(self) -> Self;
    /// Returns arccos x.
    fn acos(self) -> Self;
    /// Returns arctan x.
    fn atan(self) -> Self;
    /// Returns the angle of the point (x, self).
    fn atan2(self, x: Self) -> Self;
    /// Returns sinh x.
    fn sinh(self) -> Self;
    /// Returns cosh x.
    fn cosh(self) -> Self;
    /// Returns tanh x.
    fn tanh(self) -> Self;
    /// Returns arsinh x.
    fn asinh(self) -> Self;
    /// Returns arcosh x.
    fn acosh(self) -> Self;
    /// Returns artanh x.
    fn atanh(self) -> Self;
    /// Returns the logistic function 1 / (1 + e⁻ˣ).
    fn sigmoid(self) -> Self;
    /// Returns erf x, the error function.
    fn erf(self) -> Self;
    /// Returns erfc x = 1 − erf x, which is accurate even for large x.
    fn erfc(self) -> Self;
    /// Returns erf⁻¹ x, the inverse error function.
    fn erfinv(self) -> Self;
    /// Returns e^(x²)·erfc x, the scaled complementary error function.
    fn erfcx(self) -> Self;
    /// Returns Φ(x), the standard normal distribution function, which is accurate even for large negative x.
    fn ndtr(self) -> Self;
    /// Returns Φ⁻¹ x, the inverse of the standard normal distribution function.
    fn ndtri(self) -> Self;
    /// Returns self·2ᵇ, even if 2ᵇ overflows or underflows.
    fn ldexp(self, b: Self) -> Self;
    /// Returns self·2ᵇ for |b| ≤ [`Real::LDEXP_LIMIT`], without branches.
    fn ldexp_fast(self, b: Self) -> Self;
    /// Returns selfᵇ.
    fn pow(self, b: Self) -> Self;
    /// Returns ln |Γ(x)|.
    fn lgamma(self) -> Self;
    /// Returns ψ(x), the digamma function.
    fn digamma(self) -> Self;
    /// Returns true for an operand that [`lgamma_fast`](Real::lgamma_fast) and [`digamma_fast`](Real::digamma_fast) do
    /// not support.
    fn is_rare_gamma(self) -> bool;
    /// Returns ln |Γ(x)|, or any value for a rare operand. The function of `f32` has no branches.
    fn lgamma_fast(self) -> Self;
    /// Returns ψ(x) unless the operand is rare. In `f32` it has no branches.
    fn digamma_fast(self) -> Self;
    /// Returns ψ⁽ⁿ⁾(x), the polygamma function, n = self.
    fn polygamma(self, x: Self) -> Self;
    /// Returns the Hurwitz zeta function ζ(s, x), s = self.
    fn zeta(self, x: Self) -> Self;
    /// Returns true for operands that [`zeta_fast`](Real::zeta_fast) does not support.
    fn is_rare_zeta(self, x: Self) -> bool;
    /// Returns ζ(s, x), s = self, unless the operands are rare. In `f32` it has no branches.
    fn zeta_fast(self, x: Self) -> Self;
    /// Returns the regularized lower incomplete gamma function P(a, x), a = self.
    fn igamma(self, x: Self) -> Self;
    /// Returns the regularized upper incomplete gamma function 1 − P(a, x), a = self.
    fn igammac(self, x: Self) -> Self;
    /// Returns true for operands that the fast incomplete gamma functions do not support.
    fn is_rare_incomplete_gamma(self, x: Self) -> bool;
    /// Returns P(a, x), a = self, unless the operands are rare. In `f32` it has no branches.
    fn igamma_fast(self, x: Self) -> Self;
    /// Returns 1 − P(a, x), a = self, unless the operands are rare. In `f32` it has no branches.
    fn igammac_fast(self, x: Self) -> Self;
    /// Returns J_n(x), the Bessel function of the first kind, n = self.
    fn bessel_j(self, x: Self) -> Self;
    /// Returns Y_n(x), the Bessel function of the second kind, n = self.
    fn bessel_y(self, x: Self) -> Self;
    /// Returns I_n(x), the modified Bessel function of the first kind, n = self.
    fn bessel_i(self, x: Self) -> Self;
    /// Returns e^(−|x|)·I_n(x), n = self.
    fn bessel_ie(self, x: Self) -> Self;
    /// Returns K_n(x), the modified Bessel function of the second kind, n = self.
    fn bessel_k(self, x: Self) -> Self;
    /// Returns eˣ·K_n(x), n = self.
    fn bessel_ke(self, x: Self) -> Self;
}

/// Implements methods of `f64` by functions of the named modules.
macro_rules! impl_in_f64 {
    ($($module:ident: $($name:ident($($x:ident)?)),*;)*) => {$($(
        #[inline(always)]
        fn $name(self $(, $x: f64)?) -> f64 {
            $module::$name(self $(, $x)?)
        }
    )*)*};
}

/// Implements methods of `f32` by functions of [`single`].
macro_rules! impl_special {
    ($module:ident; $($name:ident($($x:ident)?): $out:ty),*) => {$(
        #[inline(always)]
        fn $name(self $(, $x: f32)?) -> $out {
            $module::$name(self $(, $x)?)
        }
    )*};
}

/// Implements the predicates for rare operands of functions that have no rare operands in `f64`.
macro_rules! impl_without_rare {
    ($($name:ident($($x:ident)?)),*) => {$(
        #[inline(always)]
        fn $name(self $(, $x: f64)?) -> bool {
            false
        }
    )*};
}

/// Implements the fast functions of `f64` by the functions that support all operands.
macro_rules! impl_without_fast {
    ($($name:ident($($x:ident)?) $all:ident),*) => {$(
        #[inline(always)]
        fn $name(self $(, $x: f64)?) -> f64 {
            Real::$all(self $(, $x)?)
        }
    )*};
}

/// Implements methods of `f32` by types that represent a function of one order.
macro_rules! impl_of_order {
    ($($name:ident $function:ident $(:: <$scaled:literal>)?),*) => {$(
        #[inline(always)]
        fn $name(self, x: f32) -> f32 {
            single::$function $(::<$scaled>)? ::value(self, x)
        }
    )*};
}

/// Implements [`Real`] for a float type by forwarding each method to the free function of the same name.
macro_rules! impl_real {
    (
        $t:ident, $module:ident, [$($inherent:ident)*], [$($unary:ident)*], [$($binary:ident)*],
        { $($special:tt)* }
    ) => {
        impl Real for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            const INFINITY: $t = $t::INFINITY;
            const TRIG_LIMIT: $t = $module::TRIG_LIMIT;
            const EXP_LIMIT: $t = $module::EXP_LIMIT;
            const LDEXP_LIMIT: $t = $module::LDEXP_LIMIT;
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
            #[inline(always)]
            fn exact_reciprocal(self) -> Option<$t> {
                $module::exact_reciprocal(self)
            }
            $($special)*
            #[inline(always)]
            fn is_rare_quotient(self, b: $t) -> bool {
                $module::is_rare_quotient(self, b)
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

/// Implements [`Real`] for `f32` and `f64`.
macro_rules! impl_real_for_both {
    ($inherent:tt, $unary:tt, $binary:tt) => {
        impl_real!(f32, single, $inherent, $unary, $binary, {
            impl_special! { single;
                is_rare_gamma(): bool, lgamma(): f32, lgamma_fast(): f32, digamma(): f32, digamma_fast(): f32,
                is_rare_zeta(x): bool, zeta(x): f32, zeta_fast(x): f32, is_rare_incomplete_gamma(x): bool,
                igamma(x): f32, igamma_fast(x): f32, igammac(x): f32, igammac_fast(x): f32
            }
            impl_of_order! {
                polygamma Polygamma, bessel_j BesselJ, bessel_y BesselY, bessel_i BesselI::<false>,
                bessel_ie BesselI::<true>, bessel_k BesselK::<false>, bessel_ke BesselK::<true>
            }
        });
        impl_real!(f64, double, $inherent, $unary, $binary, {
            impl_in_f64! {
                gamma: lgamma(), digamma(), polygamma(x), zeta(x), igamma(x), igammac(x);
                bessel: bessel_j(x), bessel_y(x), bessel_i(x), bessel_ie(x), bessel_k(x), bessel_ke(x);
            }
            impl_without_rare! { is_rare_gamma(), is_rare_zeta(_x), is_rare_incomplete_gamma(_x) }
            impl_without_fast! {
                lgamma_fast() lgamma, digamma_fast() digamma, zeta_fast(x) zeta, igamma_fast(x) igamma,
                igammac_fast(x) igammac
            }
        });
    };
}
impl_real_for_both!(
    // IEEE operations, which the standard library computes exactly or with correct rounding.
    [sqrt abs floor ceil trunc],
    [sin_fast cos_fast tan_fast exp_fast sigmoid_fast exp exp2 expm1 ln log2 log10 ln_1p sin cos tan sin_pi cos_pi asin
     acos atan sinh cosh tanh asinh acosh atanh sigmoid erf erfc erfcx erfinv ndtr ndtri],
    [floor_div floor_div_fast rem rem_fast atan2 pow ldexp ldexp_fast]
);
