//! The loops: every primitive over a run of values, compiled once per instruction set and chosen at run
//! time.
//!
//! A loop takes raw pointers and a count, because its caller, the tile interpreter, holds registers of
//! untyped bytes. The rules are the same for all of them:
//!
//! * Any count, 0 included; pointers need no alignment (64 bytes is fastest); no padding is read or
//!   written.
//! * `dst` may equal a source pointer exactly if both element types have the same size (the operand is
//!   then copied aside in pieces: dear for an addition, free for an `exp`). Any other overlap is
//!   undefined behaviour.
//! * A value's bits depend on its operands' bits alone: not on the count, the position, the isa or
//!   the neighbours. (The sign and payload of a NaN are unspecified.)
//! * Masks are bytes 0 or 1; nothing else may be stored in one.
//!
//! | file | loops |
//! | --- | --- |
//! | `unary.rs`, `binary.rs`, `ternary.rs` | primitives of one, two and three operands |
//! | `chain.rs` | several instructions on floats at once |
//! | `convert.rs` | dtypes to compute types and back |
//! | `fold.rs` | reductions, in the canonical order |
//! | `arg.rs` | position of the extremum |
//! | `stream.rs` | stores past the caches |
//! | `isa.rs`, `stride.rs`, `elem.rs` | what the loops stand on: instruction sets, tails, memory |
//!
//! What each primitive *is* stands in one line of the tables of `unary.rs` and `binary.rs`; how it is computed,
//! in [`pellucid_simd::math`].

mod arg;
mod binary;

mod convert;
mod element;
mod fold;
mod fused;
mod non_temporal;
mod stride;
mod ternary;
mod unary;

#[cfg(test)]
mod tests;

pub(crate) use arg::{ArgLoop, argmax, argmin};
pub(crate) use binary::{BinaryLoop, Form, binary};
pub(crate) use convert::{convert, round, store};
pub(crate) use element::are_apart;
pub(crate) use fold::{Fold, FoldLoops, LANES, ROWS, fold};
pub(crate) use fused::{ChainLoop, FusedInstr, FusedOperands, Opcode, chain};
#[cfg(test)]
use non_temporal::stream;
pub(crate) use non_temporal::{StreamLoop, store_fence, streaming};
pub(crate) use ternary::{TernaryLoop, mul_add, select};
pub(crate) use unary::{FillLoop, UnaryLoop, splat, unary};
