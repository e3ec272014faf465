//! The operation table: every operation of `ops` has a row, and one driver runs them all.
//!
//! A row is data: the operation's name, how to call it, the range of its inputs, and a reference in
//! plain `f64` loops that knows nothing of formulas or kernels. From it the driver tests
//!
//! - the value, in `f64` and `f32`, with broadcasting, zero-size and 0-d inputs;
//! - the same bits for transposed, flipped, strided, shifted and stretched inputs;
//! - every dtype, and every pair of two: the result's dtype, its value, or a refusal that changes
//!   nothing;
//! - NaN, ±∞ and ±0;
//! - gradients of first and second order against central differences: of all inputs, of each alone,
//!   of one tensor that is passed twice, and through views; their shapes and dtypes;
//! - derivatives of higher orders against differences of the order below (`orders`).
//!
//! `coverage` compares the rows with the source of `ops`: an operation without a row fails. `kinks`
//! has the conventions at corners and limits, by hand.

mod algebra;
mod coverage;
mod data;
mod driver;
mod gradients;
mod kinks;
mod nd;
mod orders;
mod row;
pub mod rows;
mod special;

pub use coverage::with_sizes;
pub use data::operands;
pub use row::Row;
