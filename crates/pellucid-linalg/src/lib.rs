//! Single-threaded factorizations of one matrix in `f64`, which the CPU backend runs for every matrix of a batch.
//!
//! The fast algorithms come from `faer`. Algorithms that `faer` does not provide in the required form are implemented
//! here: LU of singular matrices ([`lu()`]), L·D·Lᵀ as in LAPACK's `sytf2` ([`ldl()`]), QR as in LAPACK's `geqrf`
//! ([`qr()`]), and the exponential ([`exp()`]). If a factorization reads an element that is NaN or infinite, all its
//! factors are NaN.
//!
//! | module | contents |
//! | --- | --- |
//! | `cholesky` | [`cholesky()`]: A = L·Lᵀ |
//! | `eigh` | [`eigh()`]: A = V·diag(w)·Vᵀ of symmetric matrices |
//! | `exp` | [`exp()`]: the matrix exponential |
//! | `ldl` | [`ldl()`] and [`solve_ldl`]: P·A·Pᵀ = L·D·Lᵀ of symmetric indefinite matrices |
//! | `lu` | [`lu()`] and [`row_order`]: P·A = L·U |
//! | `matrix` | [`Matrix`]: the column-major matrix of all functions |
//! | `qr` | [`qr()`]: A = Q·R |
//! | `svd` | [`svd()`]: A = U·diag(S)·Vᵀ |
//! | `triangular` | [`solve_triangular`]: A·X = B for triangular A |
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
pub use triangular::{TriangleKind, solve_triangular};
