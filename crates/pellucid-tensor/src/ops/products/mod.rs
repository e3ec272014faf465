//! Products of matrices and tensors.

pub(super) mod blas;
pub(super) mod einsum;
pub(super) mod matmul;
