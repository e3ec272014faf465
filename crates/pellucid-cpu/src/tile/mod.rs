//! The tile interpreter: runs the families that a [`Program`](pellucid_ir::formula::Program) drives
//! (`Map`, `Row`, `Reduce`), and `Copy`.
//!
//! A program is turned into function pointers once (`prepare`); a run links them for the way its
//! operands lie (`link`), walks their common index space (`walk`) and evaluates tile after tile,
//! small enough that every intermediate stays in L1. Whatever the layout, the tile or the thread,
//! equal input bits give equal output bits: elementwise loops do not depend on position, and
//! reductions accumulate in an order that only the logical shape decides (`fold`).

mod chain;
mod copy;
mod dense;
mod eval;
mod fold;
mod link;
mod loader;
mod map;
mod parts;
mod prepare;
mod reduce;
mod row;
mod small;
#[cfg(test)]
mod tests;
mod turn;
mod walk;

pub(crate) use copy::{copy, copy_turned};
pub(crate) use dense::{Dense, dense, several};
pub(crate) use map::map;
pub(crate) use parts::Parts;
pub(crate) use reduce::reduce;
pub(crate) use row::row;
