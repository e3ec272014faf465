//! Vector types, instruction-set dispatch, and mathematical functions.
//!
//! This crate is the lowest layer of the CPU backend of Pellucid. Most users need the crate `pellucid`.
//!
//! | module | contents |
//! | --- | --- |
//! | `isa` | [`Isa`]: the instruction sets, their detection, [`per_isa!`], which compiles a function for each, and [`run_vectorized`], which does so for safe code |
//! | [`tiles`] | [`TileUnit`](tiles::TileUnit): the tile registers of AMX, and their emulation |
//! | [`vector`] | [`Vector`](vector::Vector) and [`FloatVector`](vector::FloatVector), for x86-64 and portable; [`Element`] and [`Float`], the element types |
//! | [`math`] | the unary and binary functions, with bit-identical results on every processor |

mod isa;
pub mod math;
pub mod tiles;
pub mod vector;

pub use isa::{AutoVectorized, Avx2, Avx512, InstructionSet, Isa, Portable, VectorWork, run_vectorized, vector_work};
pub use vector::{Element, Float};
