//! LDLᵀ factorization of symmetric indefinite matrices, and solving with it.

use super::{WithoutGradient, broadcast_batch, check_info, common_batch, matrix_dims, promote_operands, square_side};
use crate::autograd::{apply, apply_one};
use crate::ops::formula::broadcast;
use crate::ops::primitive::copy;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::Factorization;
use pellucid_ir::{DType, Error, Result, Shape};

/// Factorizes symmetric A `[.., n, n]` as P·A·Pᵀ = L·D·Lᵀ, with the pivoting of Bunch and Kaufman (1977).
///
/// Only the lower triangle of A is read. L is lower triangular with ones on the diagonal. D is block diagonal, with
/// blocks of size 1 and 2. The results have the form of LAPACK's `sytrf`: a matrix that contains D and, below its
/// blocks, L; and the pivots, `i32 [.., n]`, which are negative for blocks of size 2. Both results are arguments of
/// [`ldl_solve`].
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::NoGradient`] if A requires a gradient;
/// [`Error::Singular`] for a zero block of D (only in eager mode on the CPU).
#[tensor_method]
pub fn ldl_factor(a: &Tensor) -> Result<(Tensor, Tensor)> {
    let (packed, pivots, info) = ldl_with_info("ldl_factor", a)?;
    check_info(
        "ldl_factor",
        &info,
        |k| format!("singular (block {k} of its factor D is 0)"),
        "; pinv() and lstsq() accept singular matrices",
    )?;
    Ok((packed, pivots))
}

/// Computes the factors of [`ldl_factor`], and an `i32` info instead of an error.
///
/// The info is the position, counted from 1, of the first zero block of D; 0 if there is none.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::NoGradient`] if A requires a gradient.
#[tensor_method]
pub fn ldl_factor_ex(a: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    ldl_with_info("ldl_factor_ex", a)
}

fn ldl_with_info(op: &'static str, a: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    square_side(op, a)?;
    let outputs = apply(WithoutGradient(op, Factorization::Ldl), &[a])?;
    Ok((outputs[0].clone(), outputs[1].clone(), outputs[2].clone()))
}

/// Solves A·X = B for symmetric A, from the factors and pivots of [`ldl_factor`], with B `[.., n, k]`.
///
/// Batch axes broadcast. For singular A, X contains infinities or NaN.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for invalid pivots;
/// [`Error::NoGradient`] if the factors or B require a gradient.
#[tensor_method]
pub fn ldl_solve(packed: &Tensor, pivots: &Tensor, b: &Tensor) -> Result<Tensor> {
    let op = "ldl_solve";
    let (packed, b) = &promote_operands(op, packed, b)?;
    let (n, (rows, _)) = (square_side(op, packed)?, matrix_dims(op, b)?);
    if n != rows {
        return Err(Error::shapes(op, [packed.shape(), b.shape()], "B must have as many rows as A"));
    }
    if !pivots.dtype().is_int() {
        return Err(Error::dtypes(op, [packed.dtype(), pivots.dtype()], "pivots must be integers"));
    }
    if pivots.shape()[..] != packed.shape()[..packed.rank() - 1] {
        return Err(Error::shapes(op, [packed.shape(), pivots.shape()], "`pivots` must have one element for each row"));
    }
    let batch = common_batch(op, packed, b)?;
    let pivots = broadcast::broadcast_to(pivots, batch.iter().copied().chain([n]).collect::<Shape>())?;
    let pivots = copy::to_dtype(&pivots, DType::I32)?;
    let operands = [&broadcast_batch(packed, &batch)?, &pivots, &broadcast_batch(b, &batch)?];
    apply_one(WithoutGradient(op, Factorization::LdlSolve), &operands)
}
