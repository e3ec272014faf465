//! The instructions of fused chains, and the instructions of programs that can be part of one.

use super::convert::round;
use super::unary::{VectorUnaryLoop, unary};
use pellucid_ir::Compute;
use pellucid_ir::formula::{Binary, Op, Unary};
use pellucid_simd::Isa;

/// A comparison of floats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Comparison {
    /// a < b
    Lt,
    /// a ≤ b
    Le,
    /// a > b
    Gt,
    /// a ≥ b
    Ge,
    /// a = b
    Eq,
    /// a ≠ b
    Ne,
}

impl Comparison {
    /// Returns the comparison that a primitive computes.
    fn of(op: Binary) -> Option<Comparison> {
        Some(match op {
            Binary::Lt => Comparison::Lt,
            Binary::Le => Comparison::Le,
            Binary::Gt => Comparison::Gt,
            Binary::Ge => Comparison::Ge,
            Binary::Eq => Comparison::Eq,
            Binary::Ne => Comparison::Ne,
            _ => return None,
        })
    }

    /// Returns the comparison of the operands in reverse order.
    pub(crate) fn reversed(self) -> Comparison {
        match self {
            Comparison::Lt => Comparison::Gt,
            Comparison::Le => Comparison::Ge,
            Comparison::Gt => Comparison::Lt,
            Comparison::Ge => Comparison::Le,
            Comparison::Eq | Comparison::Ne => self,
        }
    }
}

/// The effect of a comparison on the mask in registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MaskUpdate {
    /// The comparison replaces the mask.
    Replace,
    /// The conjunction of the mask and the comparison replaces the mask.
    And,
    /// The disjunction of the mask and the comparison replaces the mask.
    Or,
}

/// An instruction that can be part of a chain.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opcode {
    /// Addition.
    Add,
    /// Subtraction.
    Sub,
    /// Multiplication.
    Mul,
    /// Division.
    Div,
    /// Negation.
    Neg,
    /// Square root.
    Sqrt,
    /// Multiply-add, rounded once.
    MulAdd,
    /// The larger operand.
    Max,
    /// The smaller operand.
    Min,
    /// A comparison, whose mask stays in registers.
    Compare(Comparison),
    /// The test x ≠ x, whose mask stays in registers.
    IsNan,
    /// The test |x| < ∞, whose mask stays in registers.
    IsFinite,
    /// The conjunction of the last two masks.
    And,
    /// The disjunction of the last two masks.
    Or,
    /// A selection by the last mask.
    Select,
    /// The last mask as numbers 1 and 0.
    ToNumber,
    /// A function of one value, with its loop.
    Function(Unary, VectorUnaryLoop),
    /// Rounding through a narrower type, with its loop.
    Round(VectorUnaryLoop),
}

impl Opcode {
    /// Returns the opcode of an instruction, or `None` if the instruction cannot be part of a chain. Instructions on
    /// masks can be part of a chain that computes the masks.
    pub(crate) fn of(op: Op, compute: Compute, isa: Isa) -> Option<Opcode> {
        Some(match op {
            Op::Binary(Binary::And) if compute == Compute::Mask => Opcode::And,
            Op::Binary(Binary::Or) if compute == Compute::Mask => Opcode::Or,
            Op::Convert(_) if compute == Compute::Mask => Opcode::ToNumber,
            _ if !compute.is_float() => return None,
            Op::Binary(Binary::Max) => Opcode::Max,
            Op::Binary(Binary::Min) => Opcode::Min,
            Op::Binary(op) if Comparison::of(op).is_some() => Opcode::Compare(Comparison::of(op)?),
            Op::Unary(Unary::IsNan) => Opcode::IsNan,
            Op::Unary(Unary::IsFinite) => Opcode::IsFinite,
            Op::Select => Opcode::Select,
            Op::Binary(Binary::Add) => Opcode::Add,
            Op::Binary(Binary::Sub) => Opcode::Sub,
            Op::Binary(Binary::Mul) => Opcode::Mul,
            Op::Binary(Binary::Div) => Opcode::Div,
            Op::Unary(Unary::Neg) => Opcode::Neg,
            Op::Unary(Unary::Sqrt) => Opcode::Sqrt,
            Op::Unary(op) if !op.gives_mask() => Opcode::Function(op, unary(op, compute, isa)?.vector_loop()),
            Op::Round(dtype) => Opcode::Round(round(compute, dtype, isa)?.vector_loop()),
            Op::MulAdd => Opcode::MulAdd,
            _ => return None,
        })
    }

    /// Returns true for an instruction that neither reads nor computes a mask, and never goes through memory, as a
    /// function or a rounding may.
    pub(crate) fn is_arithmetic(self) -> bool {
        !matches!(self, Opcode::Function(..) | Opcode::Round(_) | Opcode::Select | Opcode::ToNumber)
            && !self.gives_mask()
    }

    /// Returns true if the result is a mask.
    pub(crate) fn gives_mask(self) -> bool {
        matches!(self, Opcode::And | Opcode::Or) || self.is_comparison()
    }

    /// Returns true if the result is a mask that is computed from numbers.
    pub(crate) fn is_comparison(self) -> bool {
        matches!(self, Opcode::Compare(_) | Opcode::IsNan | Opcode::IsFinite)
    }
}

/// An instruction on the block v; t and t′ are blocks of tile operands, u and u′ are uniform operands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FusedInstr {
    /// v + t
    AddTile,
    /// v + u
    AddOne,
    /// v + v
    Double,
    /// v − t
    SubTile,
    /// v − u
    SubOne,
    /// t − v
    TileSub,
    /// u − v
    OneSub,
    /// v · t
    MulTile,
    /// v · u
    MulOne,
    /// v · v
    Square,
    /// v / t
    DivTile,
    /// v / u
    DivOne,
    /// t / v
    TileDiv,
    /// u / v
    OneDiv,
    /// −v
    Neg,
    /// √v
    Sqrt,
    /// max(v, t)
    MaxTile,
    /// max(v, u)
    MaxOne,
    /// max(t, v)
    TileMax,
    /// max(u, v)
    OneMax,
    /// min(v, t)
    MinTile,
    /// min(v, u)
    MinOne,
    /// min(t, v)
    TileMin,
    /// min(u, v)
    OneMin,
    /// The mask of v ∘ t; v is unchanged.
    CompareTile(Comparison, MaskUpdate),
    /// The mask of v ∘ u; v is unchanged.
    CompareOne(Comparison, MaskUpdate),
    /// The mask of t ∘ t′; v is unchanged.
    CompareTiles(Comparison, MaskUpdate),
    /// The mask of t ∘ u′; v is unchanged.
    CompareTileOne(Comparison, MaskUpdate),
    /// The mask of v ≠ v; v is unchanged.
    IsNan(MaskUpdate),
    /// The mask of |v| < ∞; v is unchanged.
    IsFinite(MaskUpdate),
    /// The mask of |t| < ∞; v is unchanged.
    TileIsFinite(MaskUpdate),
    /// u where v < u, otherwise v: a comparison together with its selection.
    RaiseToOne,
    /// u where v > u, otherwise v: a comparison together with its selection.
    LowerToOne,
    /// Nothing: the previous instruction of the loop also computes the result of this one.
    NoOp,
    /// v where the last mask is true, otherwise t.
    SelectElseTile,
    /// v where the last mask is true, otherwise u.
    SelectElseOne,
    /// t where the last mask is true, otherwise v.
    SelectTile,
    /// u where the last mask is true, otherwise v.
    SelectOne,
    /// t where the last mask is true, otherwise t′.
    SelectTileTile,
    /// t where the last mask is true, otherwise u′.
    SelectTileOne,
    /// u where the last mask is true, otherwise t′.
    SelectOneTile,
    /// u where the last mask is true, otherwise u′.
    SelectOneOne,
    /// 1 where the last mask is true, otherwise 0.
    ToNumber,
    /// v if the boolean u′ is true, otherwise t.
    IfElseTile,
    /// v if the boolean u′ is true, otherwise u.
    IfElseOne,
    /// t if the boolean u′ is true, otherwise v.
    IfTile,
    /// u if the boolean u′ is true, otherwise v.
    IfOne,
    /// |v|, computed in registers if the vectors have a fused multiply-add, otherwise by the loop.
    Abs(VectorUnaryLoop),
    /// ⌊v⌋, computed like `Abs`.
    Floor(VectorUnaryLoop),
    /// v rounded towards 0, computed like `Abs`.
    Trunc(VectorUnaryLoop),
    /// eᵛ, computed in registers if the vector type has an implementation and no value of the block is rare, otherwise
    /// by the loop.
    Exp(VectorUnaryLoop),
    /// 1 / (1 + e⁻ᵛ), computed like `Exp`; in `f64`, if the vectors have a fused multiply-add.
    Sigmoid(VectorUnaryLoop),
    /// Φ(v), computed like `Exp`.
    Ndtr(VectorUnaryLoop),
    /// tanh v, computed in registers if the vector type has an implementation, otherwise by the loop.
    Tanh(VectorUnaryLoop),
    /// sin v, computed like `Abs` if no value of the block is rare.
    Sin(VectorUnaryLoop),
    /// cos v, computed like `Sin`.
    Cos(VectorUnaryLoop),
    /// f(v), computed by the loop of f.
    Apply(VectorUnaryLoop),
    /// v · t + t′
    MulTileAddTile,
    /// v · t + u′
    MulTileAddOne,
    /// v · u + t′
    MulOneAddTile,
    /// v · u + u′
    MulOneAddOne,
    /// t · t′ + v
    AddTileTile,
    /// t · u′ + v
    AddTileOne,
}

impl FusedInstr {
    /// Returns true for a function of v that is computed in registers or by a loop.
    #[inline(always)]
    pub(super) fn is_function(self) -> bool {
        use FusedInstr::*;
        let is_in_registers = matches!(self, Exp(_) | Sigmoid(_) | Ndtr(_) | Tanh(_) | Sin(_) | Cos(_));
        is_in_registers || matches!(self, Apply(_) | Abs(_) | Floor(_) | Trunc(_))
    }

    /// Returns true if the instruction computes a mask and leaves v as it is.
    #[inline(always)]
    pub(super) fn gives_mask(self) -> bool {
        use FusedInstr::*;
        let is_comparison = matches!(self, CompareTile(..) | CompareOne(..) | CompareTiles(..) | CompareTileOne(..));
        is_comparison || matches!(self, IsNan(_) | IsFinite(_) | TileIsFinite(_))
    }
}
