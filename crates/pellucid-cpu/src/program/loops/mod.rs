//! The vector loops: every primitive over `n` contiguous values. Vectorized loops are compiled for several instruction
//! sets, of which one is selected at run time.
//!
//! A loop takes raw pointers and a count, because its caller, the tile interpreter, holds registers of untyped bytes.
//! All loops follow the same rules:
//!
//! * Any count is allowed, 0 included. Pointers need no alignment (64 bytes is fastest). A loop accesses no memory
//!   outside the `n` elements.
//! * `dst` may equal a source pointer exactly if both element types have the same size. The loop then copies the
//!   operand to a buffer in pieces, which is expensive for an addition and negligible for an `exp`. Any other overlap
//!   is undefined behaviour.
//! * The bits of a result depend only on the bits of its operands: not on the count, the index of the element, the
//!   instruction set or the neighbouring elements. (The sign and payload of a NaN are unspecified.)
//! * Masks are bytes 0 or 1. No other byte may be stored in a mask.
//!
//! | file | content |
//! | --- | --- |
//! | `unary.rs`, `binary.rs`, `ternary.rs` | primitives of one, two and three operands |
//! | `fused.rs`, `fused_instr.rs` | chains of float instructions, fused into one loop, and their instructions |
//! | `convert.rs` | conversions between dtypes and compute types |
//! | `fold.rs` | reductions, in the canonical order |
//! | `arg.rs` | index of the extremum |
//! | `pairs.rs` | sums of terms of pairs of values |
//! | `non_temporal.rs` | copies by non-temporal stores |
//! | `remainder.rs` | padding of remainders to full vectors, and operation in place |
//! | `loop_element.rs` | element types and unaligned memory access |
//!
//! The tables of `unary.rs` and `binary.rs` define each primitive in one line. [`pellucid_simd::math`] computes the
//! functions. Instruction sets are detected by [`pellucid_simd::Isa`].

mod arg;
mod binary;

mod convert;
mod fold;
mod fused;
mod fused_instr;
mod loop_element;
mod non_temporal;
mod pairs;
mod remainder;
mod ternary;
mod unary;

#[cfg(test)]
mod tests;

pub(crate) use arg::{ArgLoop, argmax, argmin};
pub(crate) use binary::{BinaryLoop, OperandForm, binary};
pub(crate) use convert::{convert, half_precision_sign, round, store};
pub(crate) use fold::{FoldLoops, FoldOp, LANES, ROWS, fold};
pub(crate) use fused::{ChainLoop, FusedOperands, chain};
pub(crate) use fused_instr::{Comparison, FusedInstr, MaskUpdate, Opcode};
pub(crate) use loop_element::are_apart;
#[cfg(test)]
use non_temporal::non_temporal_copy;
pub(crate) use non_temporal::{StreamLoop, store_fence, streaming};
pub(crate) use pairs::{PairOperand, PairSums, PairTerm};
pub(crate) use ternary::{TernaryLoop, mul_add, select};
pub(crate) use unary::{FillLoop, UnaryLoop, splat, unary};
