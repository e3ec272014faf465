//! The operation table: every operation of `ops` has a row, and one driver runs them all.
//!
//! A row is data: the name of the operation, how to call it, the range of its inputs, and a reference in plain `f64`
//! loops that shares no code with formulas and kernels. From it the driver tests
//!
//! - the value, in `f64` and `f32`, with broadcasting, zero-size and 0-d inputs;
//! - bitwise equality for transposed, reversed, strided, offset and broadcast inputs;
//! - bitwise equality on another device, and outputs and gradients on the device of the inputs, pinned if an input is;
//! - the same dtypes, bits and errors in lazy, captured and deferred execution (`modes`);
//! - every dtype, and every pair of dtypes: the dtype of the result, its value, or an error that changes nothing;
//! - NaN, ±∞ and ±0;
//! - gradients of first and second order against central differences: of all inputs, of each alone, of one tensor that
//!   is passed twice, and through views; their shapes and dtypes;
//! - derivatives of higher orders against differences of the order below (`orders`).
//!
//! `coverage` compares the rows with the registry of operations: an operation without a row is a failure. `kinks`
//! contains the conventions at corners and limits, written by hand.

mod algebra;
mod between_points;
mod bits;
mod calls;
mod coverage;
mod data;
pub mod devices;
mod driver;
mod gradients;
mod kinks;
mod modes;
mod nd;
mod orders;
mod points;
mod row;
pub mod rows;
mod special;

pub use data::operands;
pub use row::Row;
