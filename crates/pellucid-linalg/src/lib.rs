//! Factorisations of one matrix, in `f64` and on one thread: what the CPU backend runs for every matrix
//! of a batch.
//!
//! Fast algorithms are `faer`'s. What it has in another form than the family asks for is here: LU of
//! singular matrices ([`lu`]), L·D·Lᵀ as LAPACK's `sytf2` ([`ldl`]), QR as LAPACK's `geqrf` ([`qr`]), the exponential ([`exp`]). Every function takes
//! numbers of any kind; with NaN or infinity in what is read of a matrix, all of its factors are NaN.
#![forbid(unsafe_code)]

mod cholesky;
mod eigh;
mod exp;
mod ldl;
mod lu;
mod matrix;
mod qr;
mod svd;
#[cfg(test)]
mod testing;
mod triangular;

pub use cholesky::cholesky;
pub use eigh::eigh;
pub use exp::exp;
pub use ldl::{Pivot, ldl, solve_ldl};
pub use lu::{lu, row_order};
pub use matrix::Matrix;
pub use qr::qr;
pub use svd::{Basis, Svd, svd};
pub use triangular::{Triangle, solve_triangular};
