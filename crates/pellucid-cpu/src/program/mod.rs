//! The interpreter of elementwise programs: a virtual machine whose registers are tiles of values.
//!
//! It runs the families that a [`Program`](pellucid_ir::formula::Program) drives (`Map`, `Row`, `Reduce`), and `Copy`.
//! A program passes through these stages:
//!
//! | stage | module | what it does |
//! | --- | --- | --- |
//! | entry | `family` | checks dtypes and shapes of the operands |
//! | lowering | `lower` | resolves every instruction to its loop and gives every value a slot, once per program |
//! | | `prepared` | the lowered program |
//! | scheduling | `schedule` | orders the instructions for the granularities of the operands and allocates buffers |
//! | | `kernel_schedule` | the schedule, and the cache of a program's schedules |
//! | | `slot` | the slots of the values, and their granularities |
//! | fusion | `fuse` | joins instructions into chains whose intermediate values stay in registers |
//! | | `shortcut` | skips the instructions of an operand that no lane of a block selects |
//! | execution | `execute` | executes the instructions of a schedule on one tile |
//! | | `evaluate` | evaluates one segment of an index space tile by tile |
//! | | `map` | stores the results element by element: strided, dense, small and batched maps, epilogues |
//! | | `reduce` | accumulates the results over axes |
//! | | `row` | runs programs that contain reductions over rows, phase by phase |
//! | | `copy` | copies, converts and transposes arrays without a program |
//! | support | `loops` | the loops of all primitives, compiled once per instruction set |
//! | | `fold` | the canonical order of reductions |
//! | | `loader` | gather, scatter and fill: from strided memory to tiles and back |
//! | | `transpose` | transposition of matrices, block by block |
//!
//! Lowering happens once for each program and is cached in it. Schedules are cached for each combination of operand
//! granularities. A tile is small enough for its buffers to stay in the inner caches.
//!
//! Whatever the layout, the tile size or the number of threads, equal input bits produce equal output bits:
//! elementwise loops do not depend on the index of an element, and the order of a reduction depends on the logical
//! shape only (`fold`).

mod copy;
mod evaluate;
mod execute;
mod family;
mod fold;
mod fuse;
mod kernel_schedule;
mod loader;
pub(crate) mod loops;
mod lower;
mod map;
mod prepared;
mod reduce;
mod row;
mod schedule;
mod shortcut;
mod slot;
#[cfg(test)]
mod tests;
pub(crate) mod transpose;

pub(crate) use copy::{copy, copy_axis_last};
pub(crate) use map::batch::run_dense_maps;
pub(crate) use map::dense::{dense, dense_batch};
pub(crate) use map::dense_operand::DensePtr;
pub(crate) use map::epilogue::MapEpilogue;
