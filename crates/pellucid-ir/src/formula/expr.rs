//! Expressions: handles to nodes, with which formulas are written as Rust expressions.

use super::builder::Builder;
use super::graph::{FormulaNode, Literal, NodeId, NodeInfo, ValueKind};
use super::primitive::{Binary, RowOp, Unary};
use crate::dtype::{DType, Scalar};
use std::fmt;
use std::ops;

/// A value of the formula under construction: a `Copy` handle to its node.
///
/// A handle is valid only inside the body of its formula ([`formula!`](crate::formula!) or
/// [`Formula::new`](super::Formula::new)); its use anywhere else panics. Operators and methods work as for numbers,
/// with literals on either side: `0.5 * x * (1.0 + x.erf())`. An operation on a value of the wrong [`ValueKind`] panics
/// with a text that names the conversion.
#[derive(Clone, Copy)]
pub struct Expr {
    builder: u32,
    node: u32,
}

/// The role of a name in a derivative line. The constant with this name is a placeholder for a node that does not exist
/// yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NameRole {
    Input,
    Param,
    Output,
    Gradient,
    Refined,
}

impl NameRole {
    /// The largest serial number of a builder. Larger numbers denote roles.
    pub(super) const FIRST: u32 = u32::MAX - 5;
    const ALL: [NameRole; 5] =
        [NameRole::Input, NameRole::Param, NameRole::Output, NameRole::Gradient, NameRole::Refined];
}

impl Expr {
    pub(super) fn at(builder: u32, id: NodeId) -> Expr {
        Expr { builder, node: id.index() as u32 }
    }

    const fn named(role: NameRole, number: usize) -> Expr {
        Expr { builder: NameRole::FIRST + 1 + role as u32, node: number as u32 }
    }

    /// Returns input `i` of the surrounding formula.
    pub const fn input(i: usize) -> Expr {
        Expr::named(NameRole::Input, i)
    }

    /// Returns parameter `k` of the surrounding formula.
    pub const fn param(k: usize) -> Expr {
        Expr::named(NameRole::Param, k)
    }

    /// Returns output `k` in a derivative line. A derivative that reads it saves the output.
    pub const fn output(k: usize) -> Expr {
        Expr::named(NameRole::Output, k)
    }

    /// Returns the incoming gradient of output `k` in a derivative line.
    pub const fn gradient(k: usize) -> Expr {
        Expr::named(NameRole::Gradient, k)
    }

    /// Returns a mask in a derivative line: true in the form from which derivatives of order 2 and higher are derived,
    /// and false in the first derivative itself.
    ///
    /// It selects between a form that is accurate in derivatives of every order and a faster one for the first only.
    pub const fn refined() -> Expr {
        Expr::named(NameRole::Refined, 0)
    }

    pub(super) fn role(self) -> Option<(NameRole, usize)> {
        let role = self.builder.checked_sub(NameRole::FIRST + 1)?;
        Some((NameRole::ALL[role as usize], self.node as usize))
    }

    pub(super) fn id_in(self, serial: u32) -> Option<NodeId> {
        (self.builder == serial).then(|| NodeId::new(self.node as usize))
    }

    #[track_caller]
    fn node_info(self) -> NodeInfo {
        match Builder::with(|b| b.id(self).map(|id| b.graph.node_info(id))) {
            Ok(node_info) => node_info,
            Err(reason) => panic!("formula: {reason}"),
        }
    }

    /// Returns the kind of the value.
    #[track_caller]
    pub fn kind(self) -> ValueKind {
        self.node_info().kind
    }

    /// Returns true if the value has one element for each row.
    #[track_caller]
    pub fn is_per_row(self) -> bool {
        self.node_info().per_row
    }

    /// Creates a constant.
    #[track_caller]
    pub fn literal(value: impl Into<Scalar>, kind: ValueKind) -> Expr {
        let literal = Literal::new(value.into(), kind);
        Builder::emit(&mut |b| Ok(b.literal(literal)))
    }

    #[track_caller]
    fn apply1(self, node: &dyn Fn(NodeId) -> FormulaNode) -> Expr {
        Builder::emit(&mut |b| {
            let a = b.id(self)?;
            b.node(node(a))
        })
    }

    #[track_caller]
    pub(super) fn unary(self, op: Unary) -> Expr {
        self.apply1(&|a| FormulaNode::Unary(op, a))
    }

    #[track_caller]
    pub(super) fn binary(op: Binary, a: impl IntoExpr, b: impl IntoExpr) -> Expr {
        let kind = a.kind().or(b.kind()).unwrap_or(ValueKind::Number);
        Expr::apply2(op, a.lift(kind), b.lift(kind))
    }

    #[track_caller]
    fn apply2(op: Binary, x: Expr, y: Expr) -> Expr {
        Builder::emit(&mut |b| {
            let node = FormulaNode::Binary(op, b.id(x)?, b.id(y)?);
            b.node(node)
        })
    }

    #[track_caller]
    fn apply3(node: fn(NodeId, NodeId, NodeId) -> FormulaNode, x: Expr, y: Expr, z: Expr) -> Expr {
        Builder::emit(&mut |b| {
            let node = node(b.id(x)?, b.id(y)?, b.id(z)?);
            b.node(node)
        })
    }
}

/// A type that converts to an [`Expr`]: an [`Expr`], or a literal, which adopts the kind of the other operand.
pub trait IntoExpr: Copy {
    /// Returns the kind, if it is known.
    fn kind(self) -> Option<ValueKind>;
    /// Converts the value to an expression; a literal becomes a constant of kind `kind`.
    fn lift(self, kind: ValueKind) -> Expr;
}

impl IntoExpr for Expr {
    #[track_caller]
    fn kind(self) -> Option<ValueKind> {
        Some(Expr::kind(self))
    }

    fn lift(self, _: ValueKind) -> Expr {
        self
    }
}

macro_rules! literal_operand {
    ($($t:ty => $kind:expr),*) => {$(
        impl IntoExpr for $t {
            fn kind(self) -> Option<ValueKind> {
                $kind
            }

            #[track_caller]
            fn lift(self, kind: ValueKind) -> Expr {
                Expr::literal(self, kind)
            }
        }
    )*};
}
literal_operand!(f64 => None, i32 => None, i64 => None, bool => Some(ValueKind::Mask));

macro_rules! operator {
    ($($trait:ident :: $method:ident => $op:ident: $($literal:ty),*;)*) => {$(
        impl ops::$trait for Expr {
            type Output = Expr;
            #[track_caller]
            fn $method(self, other: Expr) -> Expr {
                Expr::binary(Binary::$op, self, other)
            }
        }
        $(
            impl ops::$trait<$literal> for Expr {
                type Output = Expr;
                #[track_caller]
                fn $method(self, other: $literal) -> Expr {
                    Expr::binary(Binary::$op, self, other)
                }
            }
            impl ops::$trait<Expr> for $literal {
                type Output = Expr;
                #[track_caller]
                fn $method(self, other: Expr) -> Expr {
                    Expr::binary(Binary::$op, self, other)
                }
            }
        )*
    )*};
}
operator! {
    Add::add => Add: f64, i32;
    Sub::sub => Sub: f64, i32;
    Mul::mul => Mul: f64, i32;
    Div::div => Div: f64, i32;
    Rem::rem => Rem: f64, i32;
    BitAnd::bitand => And: i32, bool;
    BitOr::bitor => Or: i32, bool;
    BitXor::bitxor => Xor: i32, bool;
    Shl::shl => Shl: i32;
    Shr::shr => Shr: i32;
}

impl ops::Neg for Expr {
    type Output = Expr;
    #[track_caller]
    fn neg(self) -> Expr {
        self.unary(Unary::Neg)
    }
}

impl ops::Not for Expr {
    type Output = Expr;
    #[track_caller]
    fn not(self) -> Expr {
        self.unary(Unary::Not)
    }
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        impl Expr {$(
            $(#[$doc])*
            #[track_caller]
            #[must_use]
            pub fn $name(self) -> Expr {
                self.unary(Unary::$op)
            }
        )*}
    };
}
super::real::each_unary!(unary_methods);
unary_methods! {
    /// Mask: x is NaN.
    is_nan => IsNan;
    /// Mask: x is neither infinite nor NaN.
    is_finite => IsFinite;
}

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        // `rem`, `shl` and `shr` are operators too; as methods they also accept literals of every type.
        #[allow(clippy::should_implement_trait)]
        impl Expr {$(
            $(#[$doc])*
            #[track_caller]
            #[must_use]
            pub fn $name(self, other: impl IntoExpr) -> Expr {
                Expr::binary(Binary::$op, self, other)
            }
        )*}
    };
}
super::real::each_binary!(binary_methods);
super::real::each_comparison!(binary_methods);
binary_methods! {
    /// a − b·⌊a / b⌋, with the sign of b (like Python's `%`, unlike Rust's).
    rem => Rem;
    /// a · 2ᵇ on integers.
    shl => Shl;
    /// ⌊a / 2ᵇ⌋ on integers.
    shr => Shr;
}

/// Compositions of several primitives.
impl Expr {
    /// x·x
    #[track_caller]
    #[must_use]
    pub fn square(self) -> Expr {
        self * self
    }

    /// x·x·x
    #[track_caller]
    #[must_use]
    pub fn cube(self) -> Expr {
        self * self * self
    }

    /// xⁿ by repeated multiplication, a negative power as the reciprocal of the positive one.
    #[track_caller]
    #[must_use]
    pub fn powi(self, n: i32) -> Expr {
        let one = Expr::literal(1, self.kind());
        let (mut power, mut result, mut exponent) = (self, one, n.unsigned_abs());
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = result * power;
            }
            exponent >>= 1;
            if exponent > 0 {
                power = power * power;
            }
        }
        if n < 0 { result.recip() } else { result }
    }

    /// max(x, 0); its derivative at 0 is 0, and NaN stays NaN.
    #[track_caller]
    #[must_use]
    pub fn relu(self) -> Expr {
        self.le(0).select(0, self)
    }

    /// x clamped to [lo, hi], and `hi` where lo > hi; NaN stays NaN. The derivative is 1 on the closed range and 0
    /// outside it.
    #[track_caller]
    #[must_use]
    pub fn clamp(self, lo: impl IntoExpr, hi: impl IntoExpr) -> Expr {
        let raised = self.lt(lo).select(lo, self);
        raised.gt(hi).select(hi, raised)
    }

    /// The n-th polygamma function ψ⁽ⁿ⁾(x).
    #[track_caller]
    #[must_use]
    pub fn polygamma(self, n: impl IntoExpr) -> Expr {
        Expr::binary(Binary::Polygamma, n.lift(ValueKind::Number), self)
    }

    /// Hurwitz' ζ(s, x) = Σ (x + k)⁻ˢ over k ≥ 0, for s > 1.
    #[track_caller]
    #[must_use]
    pub fn zeta(self, s: impl IntoExpr) -> Expr {
        Expr::binary(Binary::Zeta, s.lift(ValueKind::Number), self)
    }

    /// The regularized incomplete gamma functions P(a, x) and Q(a, x) = 1 − P(a, x).
    #[track_caller]
    #[must_use]
    pub fn igamma(self, a: impl IntoExpr) -> (Expr, Expr) {
        let a = a.lift(ValueKind::Number);
        (Expr::binary(Binary::Igamma, a, self), Expr::binary(Binary::Igammac, a, self))
    }

    /// A Bessel function of integer order n: J, Y, I or K, or the scaled e^(−|x|)·I or eˣ·K. For the modified functions
    /// (I and K), n is at most 30.
    #[track_caller]
    #[must_use]
    pub fn bessel(self, function: Binary, n: impl IntoExpr) -> Expr {
        Expr::binary(function, n.lift(ValueKind::Number), self)
    }

    /// `self ? a : b` for a mask. Only the selected operand receives a gradient, even if the other operand is NaN.
    #[track_caller]
    #[must_use]
    pub fn select(self, a: impl IntoExpr, b: impl IntoExpr) -> Expr {
        let kind = a.kind().or(b.kind()).unwrap_or(ValueKind::Number);
        Expr::apply3(FormulaNode::Select, self, a.lift(kind), b.lift(kind))
    }

    /// self·a + b, rounded once.
    #[track_caller]
    #[must_use]
    pub fn mul_add(self, a: impl IntoExpr, b: impl IntoExpr) -> Expr {
        Expr::apply3(FormulaNode::MulAdd, self, a.lift(ValueKind::Number), b.lift(ValueKind::Number))
    }

    /// Converts to a number: an index is rounded to the compute type, a mask is 0 or 1.
    #[track_caller]
    #[must_use]
    pub fn to_number(self) -> Expr {
        self.apply1(&|a| FormulaNode::Cast(ValueKind::Number, a))
    }

    /// Converts to an index: a number is truncated towards zero, a mask is 0 or 1.
    #[track_caller]
    #[must_use]
    pub fn to_index(self) -> Expr {
        self.apply1(&|a| FormulaNode::Cast(ValueKind::Index, a))
    }

    /// Converts to a mask: true for values other than zero.
    #[track_caller]
    #[must_use]
    pub fn to_mask(self) -> Expr {
        self.apply1(&|a| FormulaNode::Cast(ValueKind::Mask, a))
    }

    /// Rounds the number to a storage dtype and back. Fusion inserts this rounding where an intermediate value would
    /// have been stored.
    #[track_caller]
    #[must_use]
    pub fn round_to(self, dtype: DType) -> Expr {
        self.apply1(&|a| FormulaNode::Round(dtype, a))
    }
}

/// Row reductions.
impl Expr {
    /// Σ over the row, one value for each row.
    #[track_caller]
    #[must_use]
    pub fn row_sum(self) -> Expr {
        self.apply1(&|a| FormulaNode::RowReduce(RowOp::Sum, a))
    }

    /// The row's maximum; NaN if the row contains NaN.
    #[track_caller]
    #[must_use]
    pub fn row_max(self) -> Expr {
        self.apply1(&|a| FormulaNode::RowReduce(RowOp::Max, a))
    }

    /// The row's minimum; NaN if the row contains NaN.
    #[track_caller]
    #[must_use]
    pub fn row_min(self) -> Expr {
        self.apply1(&|a| FormulaNode::RowReduce(RowOp::Min, a))
    }

    /// The row's mean, Σx / n for n elements.
    #[track_caller]
    #[must_use]
    pub fn row_mean(self) -> Expr {
        self.row_sum() / row_len()
    }
}

/// The index of the element within the row.
#[track_caller]
pub fn row_index() -> Expr {
    Builder::emit(&mut |b| b.node(FormulaNode::RowIndex))
}

/// The number of elements of the row, as a number.
#[track_caller]
pub fn row_len() -> Expr {
    Builder::emit(&mut |b| b.node(FormulaNode::RowLength))
}

impl fmt::Debug for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expr({})", self.node)
    }
}

/// A return type of a formula body: one expression, or a tuple, an array or a vector of expressions.
pub trait IntoFormulaOutputs {
    /// Returns the outputs in order.
    fn into_outputs(self) -> Vec<Expr>;
}

impl IntoFormulaOutputs for Expr {
    fn into_outputs(self) -> Vec<Expr> {
        vec![self]
    }
}

impl IntoFormulaOutputs for Vec<Expr> {
    fn into_outputs(self) -> Vec<Expr> {
        self
    }
}

impl<const N: usize> IntoFormulaOutputs for [Expr; N] {
    fn into_outputs(self) -> Vec<Expr> {
        self.to_vec()
    }
}

macro_rules! tuple_outputs {
    ($($name:ident)*) => {
        impl IntoFormulaOutputs for ($(one!($name Expr),)*) {
            fn into_outputs(self) -> Vec<Expr> {
                let ($($name,)*) = self;
                vec![$($name),*]
            }
        }
    };
}
macro_rules! one {
    ($name:ident $t:ty) => {
        $t
    };
}
tuple_outputs!(a b);
tuple_outputs!(a b c);
tuple_outputs!(a b c d);
tuple_outputs!(a b c d e);
tuple_outputs!(a b c d e f);
