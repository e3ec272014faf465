//! Cholesky factorization, and solving with it.

use super::triangular::{solve_triangular, triangular};
use super::{check_info, common_batch, eye, factor, matrix_dims, mt, promote_operands, square_side};
use crate::autograd::{apply, interface::*};
use crate::ops::elementwise::arithmetic;
use crate::ops::products::matmul::matmul;
use crate::ops::shape::diagonal;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::Factorization;
use pellucid_ir::{Error, Result};

/// Computes L with A = L·Lᵀ. The gradient is ∂A = L⁻ᵀ·sym(Φ(Lᵀ·g))·L⁻¹ for symmetric A, where Φ keeps the lower
/// triangle and halves the diagonal (Murray 2016).
struct Cholesky;

impl Operation for Cholesky {
    fn name(&self) -> &'static str {
        "cholesky"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.output(0);
        factor(Factorization::Cholesky, inputs)
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let l = saved.output(0)?;
        let inner = matmul(&mt(&l)?, &grads.get(0)?)?;
        let (lower, strict) = (diagonal::tril(&inner, 0)?, diagonal::tril(&inner, -1)?);
        let middle = arithmetic::mul(&arithmetic::add(&lower, &mt(&strict)?)?, 0.5)?;
        let right = mt(&triangular(&mt(&l)?, &middle, true, false)?)?;
        Ok(smallvec![Some(triangular(&mt(&l)?, &right, true, false)?)])
    }
}

/// Computes the lower triangular L with A = L·Lᵀ, or (`upper`) Lᵀ, of symmetric positive definite A `[.., n, n]`.
///
/// Only the lower (upper) triangle of A is read.
///
/// The gradient treats the result as a function of symmetric matrices, and is symmetric (Murray 2016).
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::Singular`] for a matrix that is not positive definite
/// (in lazy and captured steps, and on a GPU, L is NaN).
#[tensor_method]
pub fn cholesky(a: &Tensor, upper: bool) -> Result<Tensor> {
    let (l, info) = cholesky_with_info("cholesky", a, upper)?;
    let description =
        |minor: i32| format!("not positive definite (its leading minor of order {minor} is not positive)");
    check_info("cholesky", &info, description, "; cholesky_ex() returns this as a value")?;
    Ok(l)
}

/// Computes the factor of [`cholesky`], and an `i32` info instead of an error.
///
/// The info is the order of the first leading minor that is not positive, or 0 if there is none. If it is not 0, the
/// factor is NaN.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
#[tensor_method]
pub fn cholesky_ex(a: &Tensor, upper: bool) -> Result<(Tensor, Tensor)> {
    cholesky_with_info("cholesky_ex", a, upper)
}

fn cholesky_with_info(op: &'static str, a: &Tensor, upper: bool) -> Result<(Tensor, Tensor)> {
    square_side(op, a)?;
    let a = if upper { mt(a)? } else { a.clone() };
    let outputs = apply(Cholesky, &[&a])?;
    let l = if upper { mt(&outputs[0])? } else { outputs[0].clone() };
    Ok((l, outputs[1].clone()))
}

/// Solves A·X = B for A = L·Lᵀ (`upper`: A = Lᵀ·L), with B `[.., n, k]`; batch axes broadcast.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::Singular`] for a zero on the diagonal of L.
#[tensor_method]
pub fn cholesky_solve(b: &Tensor, l: &Tensor, upper: bool) -> Result<Tensor> {
    let op = "cholesky_solve";
    let (b, l) = &promote_operands(op, b, l)?;
    if square_side(op, l)? != matrix_dims(op, b)?.0 {
        return Err(Error::shapes(op, [b.shape(), l.shape()], "B must have as many rows as L"));
    }
    common_batch(op, l, b)?;
    let (first, second) = if upper { (mt(l)?, l.clone()) } else { (l.clone(), mt(l)?) };
    solve_triangular(&second, &solve_triangular(&first, b, false, true, false)?, true, true, false)
}

/// Computes the inverse of A = L·Lᵀ (`upper`: A = Lᵀ·L).
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::Singular`] for a zero on the diagonal of L.
#[tensor_method]
pub fn cholesky_inverse(l: &Tensor, upper: bool) -> Result<Tensor> {
    let n = square_side("cholesky_inverse", l)?;
    // A⁻¹ = L⁻ᵀ·L⁻¹.
    let lower = if upper { mt(l)? } else { l.clone() };
    let inverse = solve_triangular(&lower, &eye(n, n, l.dtype())?, false, true, false)?;
    matmul(&mt(&inverse)?, &inverse)
}
