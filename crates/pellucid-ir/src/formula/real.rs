//! The functions of expressions, and a trait for generic code over expressions and numbers.
//!
//! Macros list every function once. The functions are methods of [`Expr`] and of the trait [`Real`], so a generic
//! function can be used both as a formula and as a scalar function:
//!
//! ```
//! # extern crate pellucid_ir as pellucid;
//! use pellucid::formula::{Literals, Real, SingleFloat};
//! use pellucid::formula;
//!
//! fn silu<T: Real>(x: T) -> T where f64: Literals<T> {
//!     x / (1.0 + (-x).exp())
//! }
//!
//! let graph = formula!(|x| silu(x));
//! assert_eq!(graph.to_string(), "formula(x) = x / (1 + exp(-x))");
//! assert_eq!(silu(0.0_f64), 0.0);
//! assert_eq!(silu(SingleFloat(0.0)), SingleFloat(0.0));
//! ```

use super::expr::{Expr, IntoExpr};
use super::primitive::{Binary, Unary};
use super::special;
use std::ops;

/// Runs a macro over the unary functions.
macro_rules! each_unary {
    ($go:ident) => {
        $go! {
            /// |x|
            abs => Abs;
            /// −1, 0 or 1; ±0 stays ±0, NaN stays NaN.
            signum => Sign;
            /// Largest integer ≤ x.
            floor => Floor;
            /// Smallest integer ≥ x.
            ceil => Ceil;
            /// Nearest integer; ties round to even.
            round_ties_even => Round;
            /// Nearest integer; ties round to even (unlike the method of `f64`).
            round => Round;
            /// Integer part, towards zero.
            trunc => Trunc;
            /// √x
            sqrt => Sqrt;
            /// 1/x
            recip => Recip;
            /// eˣ
            exp => Exp;
            /// 2ˣ
            exp2 => Exp2;
            /// eˣ − 1, accurate near 0.
            exp_m1 => Expm1;
            /// Natural logarithm.
            ln => Ln;
            /// Logarithm to base 2.
            log2 => Log2;
            /// Logarithm to base 10.
            log10 => Log10;
            /// ln(1 + x), accurate near 0.
            ln_1p => Ln1p;
            /// Sine, x in radians.
            sin => Sin;
            /// Cosine, x in radians.
            cos => Cos;
            /// Tangent, x in radians.
            tan => Tan;
            /// sin(πx), 0 at integers.
            sin_pi => SinPi;
            /// cos(πx)
            cos_pi => CosPi;
            /// Inverse sine.
            asin => Asin;
            /// Inverse cosine.
            acos => Acos;
            /// Inverse tangent.
            atan => Atan;
            /// Hyperbolic sine.
            sinh => Sinh;
            /// Hyperbolic cosine.
            cosh => Cosh;
            /// Hyperbolic tangent.
            tanh => Tanh;
            /// Inverse hyperbolic sine.
            asinh => Asinh;
            /// Inverse hyperbolic cosine.
            acosh => Acosh;
            /// Inverse hyperbolic tangent.
            atanh => Atanh;
            /// 1 / (1 + e⁻ˣ)
            sigmoid => Sigmoid;
            /// Error function, 2/√π ∫₀ˣ e^(−t²) dt.
            erf => Erf;
            /// 1 − erf(x), accurate for large x.
            erfc => Erfc;
            /// Inverse of `erf` on (−1, 1).
            erfinv => Erfinv;
            /// e^(x²)·erfc(x)
            erfcx => Erfcx;
            /// Φ(x), the standard normal distribution function.
            ndtr => Ndtr;
            /// Inverse of the standard normal distribution function, on (0, 1).
            ndtri => Ndtri;
            /// ln |Γ(x)|
            lgamma => Lgamma;
            /// ψ(x) = d/dx ln Γ(x)
            digamma => Digamma;
        }
    };
}

/// Runs a macro over the binary functions.
macro_rules! each_binary {
    ($go:ident) => {
        $go! {
            /// aᵇ
            pow => Pow;
            /// The angle of the point (other, self), in [−π, π].
            atan2 => Atan2;
            /// The larger operand, NaN if either operand is NaN; at ties the derivative is split evenly.
            max => Max;
            /// The smaller operand, NaN if either operand is NaN; at ties the derivative is split evenly.
            min => Min;
            /// a with the sign of b.
            copysign => Copysign;
            /// a·2ᵇ, even where 2ᵇ overflows or underflows.
            ldexp => Ldexp;
            /// ⌊a / b⌋
            floor_div => FloorDiv;
        }
    };
}

/// Runs a macro over the comparisons.
macro_rules! each_comparison {
    ($go:ident) => {
        $go! {
            /// Mask: a < b
            lt => Lt;
            /// Mask: a ≤ b
            le => Le;
            /// Mask: a > b
            gt => Gt;
            /// Mask: a ≥ b
            ge => Ge;
            /// Mask: a = b
            eq => Eq;
            /// Mask: a ≠ b
            ne => Ne;
        }
    };
}
pub(super) use {each_binary, each_comparison, each_unary};

/// A literal type that can be the left operand of arithmetic with `T`: the bound `where f64: Literals<T>` allows
/// `0.5 * x` in generic code.
pub trait Literals<T>:
    Argument<T> + ops::Add<T, Output = T> + ops::Sub<T, Output = T> + ops::Mul<T, Output = T> + ops::Div<T, Output = T>
{
}

impl<T, L> Literals<T> for L where
    L: Argument<T>
        + ops::Add<T, Output = T>
        + ops::Sub<T, Output = T>
        + ops::Mul<T, Output = T>
        + ops::Div<T, Output = T>
{
}

/// An argument of a method of [`Real`]: a value of the type itself, or a literal.
pub trait Argument<T>: Copy {
    /// Converts to the number type.
    fn number(self) -> T;
}

/// The result of a comparison of [`Real`]s: `bool`, or a mask expression.
pub trait RealMask<T>: Copy + ops::BitAnd<Output = Self> + ops::BitOr<Output = Self> + ops::Not<Output = Self> {
    /// `self ? a : b`
    fn select(self, a: impl Argument<T>, b: impl Argument<T>) -> T;
}

impl<T> RealMask<T> for bool {
    fn select(self, a: impl Argument<T>, b: impl Argument<T>) -> T {
        if self { a.number() } else { b.number() }
    }
}

impl Argument<Expr> for Expr {
    fn number(self) -> Expr {
        self
    }
}

impl Argument<Expr> for f64 {
    #[track_caller]
    fn number(self) -> Expr {
        self.lift(super::ValueKind::Number)
    }
}

impl RealMask<Expr> for Expr {
    #[track_caller]
    fn select(self, a: impl Argument<Expr>, b: impl Argument<Expr>) -> Expr {
        Expr::select(self, a.number(), b.number())
    }
}

macro_rules! real_trait {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        /// A real number or expression: [`Expr`], `f64`, or [`SingleFloat`] (an `f32` whose literals are written as
        /// `f64`).
        pub trait Real:
            Copy
            + Argument<Self>
            + ops::Neg<Output = Self>
            + ops::Add<Output = Self>
            + ops::Sub<Output = Self>
            + ops::Mul<Output = Self>
            + ops::Div<Output = Self>
            + ops::Add<f64, Output = Self>
            + ops::Sub<f64, Output = Self>
            + ops::Mul<f64, Output = Self>
            + ops::Div<f64, Output = Self>
        {
            /// The type of the result of a comparison.
            type Mask: RealMask<Self>;
            $($(#[$doc])* #[must_use] fn $name(self) -> Self;)*
            each_binary!(real_binary);
            each_comparison!(real_comparison);
            /// Mask: x is NaN.
            fn is_nan(self) -> Self::Mask;
            /// a·b + c, rounded once.
            #[must_use]
            fn mul_add(self, a: impl Argument<Self>, b: impl Argument<Self>) -> Self;
            /// x clamped to [lo, hi]; NaN stays NaN.
            #[must_use]
            fn clamp(self, lo: impl Argument<Self>, hi: impl Argument<Self>) -> Self {
                let raised = self.lt(lo).select(lo, self);
                raised.gt(hi).select(hi, raised)
            }
            /// x·x
            #[must_use]
            fn square(self) -> Self {
                self * self
            }
        }
    };
}
macro_rules! real_binary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        $($(#[$doc])* #[must_use] fn $name(self, other: impl Argument<Self>) -> Self;)*
    };
}
macro_rules! real_comparison {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        $($(#[$doc])* fn $name(self, other: impl Argument<Self>) -> Self::Mask;)*
    };
}
each_unary!(real_trait);

macro_rules! expr_unary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {$(
        #[track_caller]
        fn $name(self) -> Expr {
            self.unary(Unary::$op)
        }
    )*};
}
macro_rules! expr_binary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {$(
        #[track_caller]
        fn $name(self, other: impl Argument<Expr>) -> Expr {
            Expr::binary(Binary::$op, self, other.number())
        }
    )*};
}

impl Real for Expr {
    type Mask = Expr;
    each_unary!(expr_unary);
    each_binary!(expr_binary);
    each_comparison!(expr_binary);
    #[track_caller]
    fn is_nan(self) -> Expr {
        Expr::is_nan(self)
    }
    #[track_caller]
    fn mul_add(self, a: impl Argument<Expr>, b: impl Argument<Expr>) -> Expr {
        Expr::mul_add(self, a.number(), b.number())
    }
}

/// Implements [`Real`] for a float type: the functions of the scalar evaluator, with results rounded to the type.
macro_rules! plain_real {
    ($t:ty, |$x:ident| $wide:expr, |$y:ident| $narrow:expr) => {
        impl Real for $t {
            type Mask = bool;
            each_unary!(plain_unary);
            each_binary!(plain_binary);
            each_comparison!(plain_comparison);
            fn is_nan(self) -> bool {
                wide(self).is_nan()
            }
            fn mul_add(self, a: impl Argument<Self>, b: impl Argument<Self>) -> Self {
                narrow(f64::mul_add(wide(self), wide(a.number()), wide(b.number())))
            }
        }
        fn wide($x: $t) -> f64 {
            $wide
        }
        fn narrow($y: f64) -> $t {
            $narrow
        }
    };
}
macro_rules! plain_unary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {$(
        fn $name(self) -> Self {
            narrow(special::unary(Unary::$op, wide(self)))
        }
    )*};
}
macro_rules! plain_binary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {$(
        fn $name(self, other: impl Argument<Self>) -> Self {
            narrow(special::binary(Binary::$op, wide(self), wide(other.number())))
        }
    )*};
}
macro_rules! plain_comparison {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {$(
        fn $name(self, other: impl Argument<Self>) -> bool {
            special::binary(Binary::$op, wide(self), wide(other.number())) != 0.0
        }
    )*};
}

mod double {
    use super::*;

    impl Argument<f64> for f64 {
        fn number(self) -> f64 {
            self
        }
    }

    plain_real!(f64, |x| x, |y| y);
}

/// An `f32` that implements [`Real`]: literals are `f64` and rounded once.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct SingleFloat(pub f32);

mod single {
    use super::*;

    impl Argument<SingleFloat> for SingleFloat {
        fn number(self) -> SingleFloat {
            self
        }
    }

    impl Argument<SingleFloat> for f64 {
        fn number(self) -> SingleFloat {
            SingleFloat(self as f32)
        }
    }

    impl ops::Neg for SingleFloat {
        type Output = SingleFloat;
        fn neg(self) -> SingleFloat {
            SingleFloat(-self.0)
        }
    }

    macro_rules! operator {
        ($($trait:ident :: $method:ident)*) => {$(
            impl ops::$trait for SingleFloat {
                type Output = SingleFloat;
                fn $method(self, other: SingleFloat) -> SingleFloat {
                    SingleFloat(ops::$trait::$method(self.0, other.0))
                }
            }
            impl ops::$trait<f64> for SingleFloat {
                type Output = SingleFloat;
                fn $method(self, other: f64) -> SingleFloat {
                    SingleFloat(ops::$trait::$method(self.0, other as f32))
                }
            }
            impl ops::$trait<SingleFloat> for f64 {
                type Output = SingleFloat;
                fn $method(self, other: SingleFloat) -> SingleFloat {
                    SingleFloat(ops::$trait::$method(self as f32, other.0))
                }
            }
        )*};
    }
    operator!(Add::add Sub::sub Mul::mul Div::div);

    plain_real!(SingleFloat, |x| x.0 as f64, |y| SingleFloat(y as f32));
}
