//! The basic interface of tensors: creation, indexing, printing, operators. Expected values and output come from NumPy
//! 2.

mod create;
mod display;
mod errors;
mod forms;
mod index;
mod integer_conversion;
mod operators;
mod options;
mod pools;
pub mod promotion;
mod storage_order;
mod unwind;
