//! Matrix factorizations in `f32` and `f64`, of one matrix or of a group of small matrices. The CPU backend applies
//! them to all matrices of a batch.
//!
//! All arithmetic on elements is in the dtype of the matrix. Blocked algorithms compute most of the work as matrix
//! products of `pellucid-gemm`. The rest is safe code that the compiler vectorizes for each instruction set
//! ([`run_vectorized`](pellucid_simd::run_vectorized)). Neither the products nor the compiler changes the order of
//! operations, so results are bit-identical on all instruction sets and for all numbers of threads. If a factorization
//! reads an element that is NaN or infinite, all its factors are NaN.
//!
//! | module | contents |
//! | --- | --- |
//! | `scalar` | [`MatrixElement`]: the element type; loops over vectors |
//! | `matrix` | an owned matrix for intermediate results |
//! | `group` | groups of small matrices, one in each lane of the vectors: the functions whose names end in `_group` |
//! | `panel` | the copies in which panels of a few columns are factored |
//! | `triangular` | [`solve_triangular`]: A·X = B for triangular A |
//! | `cholesky` | [`cholesky()`]: A = L·Lᵀ |
//! | `lu` | [`lu()`], [`row_order`] and [`solve_lu`]: P·A = L·U |
//! | `cofactors` | [`cofactors()`]: the derivative of the determinant |
//! | `ldl` | [`ldl()`] and [`solve_ldl`]: P·A·Pᵀ = L·D·Lᵀ of symmetric indefinite matrices |
//! | `exp` | [`exp()`]: the matrix exponential |
//! | `reflectors` | Householder reflections, and blocks of them |
//! | `qr` | [`qr()`] and [`householder_basis`]: A = Q·R |
//! | `rotations` | sequences of plane rotations |
//! | `eigh` | [`eigh()`]: A = V·diag(w)·Vᵀ of symmetric matrices |
//! | `bidiagonal` | the reduction to bidiagonal form |
//! | `svd` | [`svd()`]: A = U·diag(S)·Vᵀ |
//! | `least_squares` | [`least_squares()`]: X with the smallest ‖A·X − B‖ |
#![forbid(unsafe_code)]

mod bidiagonal;
mod cholesky;
mod cofactors;
mod eigh;
mod exp;
mod group;
mod ldl;
mod least_squares;
mod lu;
mod matrix;
mod panel;
mod qr;
mod reflectors;
mod rotations;
mod scalar;
mod svd;
#[cfg(test)]
mod testing;
mod triangular;

pub use cholesky::{cholesky, cholesky_group};
pub use cofactors::{cofactors, cofactors_group};
pub use eigh::eigh;
pub use exp::exp;
pub use group::{GROUP, fits_group};
pub use ldl::{Pivot, ldl, solve_ldl};
pub use least_squares::least_squares;
pub use lu::{lu, lu_group, row_order, solve_lu, solve_lu_group};
pub use qr::{householder_basis, qr};
pub use scalar::MatrixElement;
pub use svd::{SingularBases, svd};
pub use triangular::{TriangleKind, solve_triangular, solve_triangular_group};

/// The error of an iteration that has not converged within its limit of QR sweeps. All results are NaN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotConverged;
