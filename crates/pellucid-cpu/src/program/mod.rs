//! The tile interpreter: runs the families that a [`Program`](pellucid_ir::formula::Program) drives
//! (`Map`, `Row`, `Reduce`), and `Copy`.
//!
//! A program is turned into function pointers once (`prepare`); a run links them for the way its
//! operands lie (`link`), walks their common index space (`walk`) and evaluates tile after tile,
//! small enough that every intermediate stays in L1. Whatever the layout, the tile or the thread,
//! equal input bits give equal output bits: elementwise loops do not depend on position, and
//! reductions accumulate in an order that only the logical shape decides (`fold`).

mod copy;
mod evaluate;
mod family;
mod fold;
mod fuse;
mod loader;
pub(crate) mod loops;
mod lower;
mod map;
mod reduce;
mod row;
mod schedule;
mod strided;
#[cfg(test)]
mod tests;
mod transpose;

pub(crate) use copy::{copy, copy_turned};
pub(crate) use family::CopyFamily;
pub(crate) use map::batch::maps;
pub(crate) use map::dense::{Dense, dense, several};
pub(crate) use map::epilogue::MapEpilogue;
