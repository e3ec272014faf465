//! Single-threaded factorisations of one matrix in `f64`, which the CPU backend runs for every matrix of a batch.
//!
//! The fast algorithms are those of `faer`. Algorithms that `faer` does not have in the required form are implemented
//! here: LU of singular matrices ([`lu`]), L·D·Lᵀ as LAPACK's `sytf2` ([`ldl`]), QR as LAPACK's `geqrf` ([`qr`]), and
//! the exponential ([`exp`]). If an element that is read is NaN or infinite, all factors are NaN.
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
