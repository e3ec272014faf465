//! The primitives of formulas.
//!
//! These are the functions of one and of two values, and the row reductions; `FormulaNode` adds selection, fused
//! multiplication and addition, and conversions. Other functions are composed of primitives. A function is a primitive
//! only if it is more accurate than its composition (`ln_1p`, `expm1`), or is not a composition of other primitives
//! (`erf`, `digamma`).

/// Unary functions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Unary {
    /// −x
    Neg,
    /// |x|
    Abs,
    /// −1, 0 or 1; NaN stays NaN, and ±0 stays ±0.
    Sign,
    /// Largest integer ≤ x.
    Floor,
    /// Smallest integer ≥ x.
    Ceil,
    /// Nearest integer; ties round to even.
    Round,
    /// Integer part, towards zero.
    Trunc,
    /// √x
    Sqrt,
    /// 1/x
    Recip,
    /// eˣ
    Exp,
    /// 2ˣ
    Exp2,
    /// eˣ − 1, accurate near 0.
    Expm1,
    /// Natural logarithm.
    Ln,
    /// Logarithm to base 2.
    Log2,
    /// Logarithm to base 10.
    Log10,
    /// ln(1 + x), accurate near 0.
    Ln1p,
    /// Sine, x in radians.
    Sin,
    /// Cosine, x in radians.
    Cos,
    /// Tangent, x in radians.
    Tan,
    /// sin(πx), 0 at integers.
    SinPi,
    /// cos(πx)
    CosPi,
    /// Inverse sine.
    Asin,
    /// Inverse cosine.
    Acos,
    /// Inverse tangent.
    Atan,
    /// Hyperbolic sine.
    Sinh,
    /// Hyperbolic cosine.
    Cosh,
    /// Hyperbolic tangent.
    Tanh,
    /// Inverse hyperbolic sine.
    Asinh,
    /// Inverse hyperbolic cosine.
    Acosh,
    /// Inverse hyperbolic tangent.
    Atanh,
    /// 1 / (1 + e⁻ˣ)
    Sigmoid,
    /// Error function, 2/√π ∫₀ˣ e^(−t²) dt.
    Erf,
    /// 1 − erf(x), accurate for large x.
    Erfc,
    /// e^(x²)·erfc(x)
    Erfcx,
    /// Inverse of `erf` on (−1, 1).
    Erfinv,
    /// Φ(x), the standard normal distribution function, accurate where it is small.
    Ndtr,
    /// Inverse of the standard normal distribution function, on (0, 1).
    Ndtri,
    /// ln |Γ(x)|
    Lgamma,
    /// ψ(x) = d/dx ln Γ(x)
    Digamma,
    /// Bitwise complement of integers, logical negation of masks.
    Not,
    /// Mask: x is NaN.
    IsNan,
    /// Mask: x is neither infinite nor NaN.
    IsFinite,
}

/// Binary functions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Binary {
    /// a + b; integers wrap.
    Add,
    /// a − b; integers wrap.
    Sub,
    /// a · b; integers wrap.
    Mul,
    /// a / b; floats only.
    Div,
    /// ⌊a / b⌋; an integer divided by zero is 0, and the smallest integer divided by −1 wraps.
    FloorDiv,
    /// a − b·⌊a / b⌋, with the sign of b (like Python's `%`); an integer modulo zero is 0.
    Rem,
    /// aᵇ; for integers by repeated multiplication, wrapping, and 0 for negative b unless |a| = 1.
    Pow,
    /// The angle of the point (b, a), in [−π, π].
    Atan2,
    /// The larger operand; NaN if an operand is NaN.
    Max,
    /// The smaller operand; NaN if an operand is NaN.
    Min,
    /// a with the sign of b.
    Copysign,
    /// a·2ᵇ on floats, even where 2ᵇ overflows or underflows.
    Ldexp,
    /// The n-th polygamma function ψ⁽ⁿ⁾(x), n = a (an integer ≥ 0), x = b.
    Polygamma,
    /// Hurwitz' ζ(a, b) = Σ (b + k)⁻ᵃ over k ≥ 0, for a > 1.
    Zeta,
    /// The regularized lower incomplete gamma function P(a, b) = ∫₀ᵇ tᵃ⁻¹e⁻ᵗ dt / Γ(a).
    Igamma,
    /// 1 − P(a, b), accurate where it is small.
    Igammac,
    /// The Bessel function of the first kind of integer order a, J_a(b).
    BesselJ,
    /// The Bessel function of the second kind of integer order a, Y_a(b).
    BesselY,
    /// The modified Bessel function of the first kind of integer order a, I_a(b).
    BesselI,
    /// e^(−|b|)·I_a(b)
    BesselIe,
    /// The modified Bessel function of the second kind of integer order a, K_a(b).
    BesselK,
    /// eᵇ·K_a(b)
    BesselKe,
    /// Bitwise and of integers, logical and of masks.
    And,
    /// Bitwise or of integers, logical or of masks.
    Or,
    /// Bitwise or logical exclusive or.
    Xor,
    /// a · 2ᵇ on integers; 0 if b is negative, or at least the width of the integer.
    Shl,
    /// ⌊a / 2ᵇ⌋ on integers (arithmetic shift); if b is negative, or at least the width of the integer, it counts as
    /// the width − 1.
    Shr,
    /// Mask: a < b
    Lt,
    /// Mask: a ≤ b
    Le,
    /// Mask: a > b
    Gt,
    /// Mask: a ≥ b
    Ge,
    /// Mask: a = b
    Eq,
    /// Mask: a ≠ b
    Ne,
}

/// Reductions along the row, the primitives that make a formula a *row* formula.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum RowOp {
    /// Σ over the row.
    Sum,
    /// The row's maximum; NaN if the row contains NaN.
    Max,
    /// The row's minimum; NaN if the row contains NaN.
    Min,
}

impl Unary {
    /// All unary primitives.
    pub const ALL: [Unary; Unary::IsFinite as usize + 1] = {
        use Unary::*;
        [
            Neg, Abs, Sign, Floor, Ceil, Round, Trunc, Sqrt, Recip, Exp, Exp2, Expm1, Ln, Log2, Log10, Ln1p, Sin, Cos,
            Tan, SinPi, CosPi, Asin, Acos, Atan, Sinh, Cosh, Tanh, Asinh, Acosh, Atanh, Sigmoid, Erf, Erfc, Erfcx,
            Erfinv, Ndtr, Ndtri, Lgamma, Digamma, Not, IsNan, IsFinite,
        ]
    };

    /// Returns the name in formulas and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Unary::Neg => "neg",
            Unary::Abs => "abs",
            Unary::Sign => "signum",
            Unary::Floor => "floor",
            Unary::Ceil => "ceil",
            Unary::Round => "round_ties_even",
            Unary::Trunc => "trunc",
            Unary::Sqrt => "sqrt",
            Unary::Recip => "recip",
            Unary::Exp => "exp",
            Unary::Exp2 => "exp2",
            Unary::Expm1 => "exp_m1",
            Unary::Ln => "ln",
            Unary::Log2 => "log2",
            Unary::Log10 => "log10",
            Unary::Ln1p => "ln_1p",
            Unary::Sin => "sin",
            Unary::Cos => "cos",
            Unary::Tan => "tan",
            Unary::SinPi => "sin_pi",
            Unary::CosPi => "cos_pi",
            Unary::Asin => "asin",
            Unary::Acos => "acos",
            Unary::Atan => "atan",
            Unary::Sinh => "sinh",
            Unary::Cosh => "cosh",
            Unary::Tanh => "tanh",
            Unary::Asinh => "asinh",
            Unary::Acosh => "acosh",
            Unary::Atanh => "atanh",
            Unary::Sigmoid => "sigmoid",
            Unary::Erf => "erf",
            Unary::Erfc => "erfc",
            Unary::Erfcx => "erfcx",
            Unary::Erfinv => "erfinv",
            Unary::Ndtr => "ndtr",
            Unary::Ndtri => "ndtri",
            Unary::Lgamma => "lgamma",
            Unary::Digamma => "digamma",
            Unary::Not => "not",
            Unary::IsNan => "is_nan",
            Unary::IsFinite => "is_finite",
        }
    }

    /// Returns true if the result is a mask for every kind of operand.
    pub const fn gives_mask(self) -> bool {
        matches!(self, Unary::IsNan | Unary::IsFinite)
    }

    /// Returns true if evaluation costs far more than a memory access; gradients then save the result.
    pub const fn is_transcendental(self) -> bool {
        use Unary::*;
        match self {
            Neg | Abs | Sign | Floor | Ceil | Round | Trunc | Sqrt | Recip | Not | IsNan | IsFinite => false,
            Exp | Exp2 | Expm1 | Ln | Log2 | Log10 | Ln1p | Sin | Cos | Tan | SinPi | CosPi | Asin | Acos | Atan
            | Sinh | Cosh | Tanh | Asinh | Acosh | Atanh | Sigmoid | Erf | Erfc | Erfcx | Erfinv | Ndtr | Ndtri
            | Lgamma | Digamma => true,
        }
    }
}

impl Binary {
    /// All binary primitives.
    pub const ALL: [Binary; Binary::Ne as usize + 1] = {
        use Binary::*;
        [
            Add, Sub, Mul, Div, FloorDiv, Rem, Pow, Atan2, Max, Min, Copysign, Ldexp, Polygamma, Zeta, Igamma, Igammac,
            BesselJ, BesselY, BesselI, BesselIe, BesselK, BesselKe, And, Or, Xor, Shl, Shr, Lt, Le, Gt, Ge, Eq, Ne,
        ]
    };

    /// Returns the name in formulas and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
            Binary::Div => "div",
            Binary::FloorDiv => "floor_div",
            Binary::Rem => "rem",
            Binary::Pow => "pow",
            Binary::Atan2 => "atan2",
            Binary::Max => "max",
            Binary::Min => "min",
            Binary::Copysign => "copysign",
            Binary::Ldexp => "ldexp",
            Binary::Polygamma => "polygamma",
            Binary::Zeta => "zeta",
            Binary::Igamma => "igamma",
            Binary::Igammac => "igammac",
            Binary::BesselJ => "bessel_j",
            Binary::BesselY => "bessel_y",
            Binary::BesselI => "bessel_i",
            Binary::BesselIe => "bessel_ie",
            Binary::BesselK => "bessel_k",
            Binary::BesselKe => "bessel_ke",
            Binary::And => "and",
            Binary::Or => "or",
            Binary::Xor => "xor",
            Binary::Shl => "shl",
            Binary::Shr => "shr",
            Binary::Lt => "lt",
            Binary::Le => "le",
            Binary::Gt => "gt",
            Binary::Ge => "ge",
            Binary::Eq => "eq",
            Binary::Ne => "ne",
        }
    }

    /// Returns true if the result is a mask for every kind of operands.
    pub const fn gives_mask(self) -> bool {
        use Binary::*;
        match self {
            Lt | Le | Gt | Ge | Eq | Ne => true,
            Add | Sub | Mul | Div | FloorDiv | Rem | Pow | Atan2 | Max | Min | Copysign | Ldexp | Polygamma | Zeta
            | Igamma | Igammac | BesselJ | BesselY | BesselI | BesselIe | BesselK | BesselKe | And | Or | Xor | Shl
            | Shr => false,
        }
    }

    /// Returns true for functions that are defined for floats only.
    pub const fn is_real(self) -> bool {
        use Binary::*;
        matches!(self, Div | Atan2 | Copysign | Ldexp) || self.is_special()
    }

    /// Returns true for functions of a parameter a and a number b that are differentiated with respect to b only.
    pub const fn is_special(self) -> bool {
        use Binary::*;
        match self {
            Polygamma | Zeta | Igamma | Igammac | BesselJ | BesselY | BesselI | BesselIe | BesselK | BesselKe => true,
            Add | Sub | Mul | Div | FloorDiv | Rem | Pow | Atan2 | Max | Min | Copysign | Ldexp | And | Or | Xor
            | Shl | Shr | Lt | Le | Gt | Ge | Eq | Ne => false,
        }
    }

    /// Returns true if evaluation costs far more than a memory access.
    pub const fn is_transcendental(self) -> bool {
        matches!(self, Binary::Pow | Binary::Atan2 | Binary::Ldexp) || self.is_special()
    }

    /// Returns true if swapping the operands never changes a bit of the result.
    pub const fn is_commutative(self) -> bool {
        use Binary::*;
        matches!(self, Add | Mul | And | Or | Xor | Eq | Ne)
    }
}

impl RowOp {
    /// Returns the name in formulas and messages.
    pub const fn name(self) -> &'static str {
        match self {
            RowOp::Sum => "row_sum",
            RowOp::Max => "row_max",
            RowOp::Min => "row_min",
        }
    }
}
