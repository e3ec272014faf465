//! Tensors as users meet them: made, indexed, printed, combined. What is expected of values and texts
//! comes from NumPy 2.

mod create;
mod display;
mod errors;
mod exact;
mod index;
mod operators;
mod pools;
pub mod promotion;
mod unwind;
