//! Inverses, and solving systems with square matrices.

use super::{
    check_invertible, check_precision, common_batch, eye, lu, matrix_dims, mt, promote_operands, square_side,
    untracked_tensor,
};
use crate::autograd::{apply, interface::*};
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::broadcast;
use crate::ops::primitive::view;
use crate::ops::products::matmul::matmul;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result};

/// Computes A⁻¹, and the position of the first zero pivot of the LU factorization. ∂A = −A⁻ᵀ·g·A⁻ᵀ (Giles 2008).
struct Inverse;

impl Operation for Inverse {
    fn name(&self) -> &'static str {
        "inv"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.output(0);
        let (factors, side) = (lu::lu_factors(inputs[0])?, inputs[0].shape()[inputs[0].shape().rank() - 1]);
        let x = lu::solve_by_factors(&factors.packed, &factors.pivots, &eye(side, side, inputs[0].dtype())?, false)?;
        Ok(smallvec![x.array().clone(), factors.info.array().clone()])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let transposed = mt(&saved.output(0)?)?;
        let inner = matmul(&transposed, &grads.get(0)?)?;
        Ok(smallvec![Some(arithmetic::neg(&matmul(&inner, &transposed)?)?)])
    }
}

/// Computes X with A·X = B (`is_transposed`: Aᵀ·X = B), and the position of the first zero pivot of the LU
/// factorization of A.
///
/// ∂B = A⁻ᵀ·g, ∂A = −∂B·Xᵀ (Giles 2008). Gradients of every order reuse the factors of the first solution.
#[derive(Default)]
struct Solve {
    is_transposed: bool,
    factors: Option<lu::Factors>,
}

impl Operation for Solve {
    fn name(&self) -> &'static str {
        "solve"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(0);
        if saves.needs(0) {
            saves.output(0);
        }
        let factors = self.factors.clone().map_or_else(|| lu::lu_factors(inputs[0]), Ok)?;
        let x =
            lu::solve_by_factors(&factors.packed, &factors.pivots, &untracked_tensor(inputs[1]), self.is_transposed)?;
        factors.save(saves);
        Ok(smallvec![x.array().clone(), factors.info.array().clone()])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let a = saved.input(0)?;
        let back = Solve { is_transposed: !self.is_transposed, factors: Some(lu::Factors::from_saved(saved)?) };
        let gradient_of_b = apply(back, &[&a, &grads.get(0)?])?[0].clone();
        let mut gradients: InputGradients = smallvec![None, None];
        if needs.contains(0) {
            let (left, right) = (&gradient_of_b, &saved.output(0)?);
            let (left, right) = if self.is_transposed { (right, left) } else { (left, right) };
            let full = arithmetic::neg(&matmul(left, &mt(right)?)?)?;
            gradients[0] = Some(broadcast::sum_to(&full, a.shape())?);
        }
        if needs.contains(1) {
            gradients[1] = Some(broadcast::sum_to(&gradient_of_b, &saved.input_shape(1))?);
        }
        Ok(gradients)
    }
}

/// Computes A⁻¹; NaN if A is singular.
pub(super) fn inverse(a: &Tensor) -> Result<Tensor> {
    Ok(apply(Inverse, &[a])?[0].clone())
}

/// Computes A⁻¹ from the factors of A; NaN if A is singular.
pub(super) fn inverse_by_factors(a: &Tensor, factors: lu::Factors) -> Result<Tensor> {
    let n = a.shape()[a.rank() - 1];
    Ok(apply(Solve { is_transposed: false, factors: Some(factors) }, &[a, &eye(n, n, a.dtype())?])?[0].clone())
}

/// Computes the inverses of square matrices `[.., n, n]`. ∂A = −A⁻ᵀ·g·A⁻ᵀ (Giles 2008).
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::Singular`] for a singular matrix (in lazy and captured
/// steps, and on a GPU, the result is NaN).
#[doc(alias = "inverse")]
#[tensor_method]
pub fn inv(a: &Tensor) -> Result<Tensor> {
    square_side("inv", a)?;
    let outputs = apply(Inverse, &[a])?;
    check_invertible("inv", &outputs[1])?;
    Ok(outputs[0].clone())
}

/// Computes the inverses as [`inv`] does, and returns an `i32` info instead of an error.
///
/// The info is the position, counted from 1, of the first zero pivot; 0 if there is none. If it is not 0, the inverse
/// is NaN.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
#[tensor_method]
pub fn inv_ex(a: &Tensor) -> Result<(Tensor, Tensor)> {
    square_side("inv_ex", a)?;
    let outputs = apply(Inverse, &[a])?;
    Ok((outputs[0].clone(), outputs[1].clone()))
}

/// Solves A·X = B (or X·A = B if `left` is false) for square A `[.., n, n]`.
///
/// B is a stack of matrices `[.., n, k]` (`[.., k, n]` if `left` is false), or of vectors `[.., n]`. B contains vectors
/// if it is 1-D, or has A's shape without the last axis. Batch axes broadcast.
///
/// ∂B = A⁻ᵀ·g, ∂A = −∂B·Xᵀ (Giles 2008).
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for vectors with `left` false;
/// [`Error::Singular`] for a singular matrix (in lazy and captured steps, and on a GPU, X is NaN).
#[tensor_method]
pub fn solve(a: &Tensor, b: &Tensor, left: bool) -> Result<Tensor> {
    let (x, info) = solve_with_info("solve", a, b, left)?;
    check_invertible("solve", &info)?;
    Ok(x)
}

/// Computes X as [`solve`] does, and returns an `i32` info instead of an error.
///
/// The info is the position, counted from 1, of the first zero pivot; 0 if there is none. If it is not 0, X is NaN.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
#[tensor_method]
pub fn solve_ex(a: &Tensor, b: &Tensor, left: bool) -> Result<(Tensor, Tensor)> {
    solve_with_info("solve_ex", a, b, left)
}

fn solve_with_info(op: &'static str, a: &Tensor, b: &Tensor, left: bool) -> Result<(Tensor, Tensor)> {
    let (a, b) = &promote_operands(op, a, b)?;
    let n = square_side(op, a)?;
    let vectors = b.rank() == 1 || b.shape()[..] == a.shape()[..a.rank() - 1];
    if vectors && !left {
        let reason = "a vector B requires left = true; for X·A = B, pass rows [.., 1, n] by unsqueeze(-2)";
        return Err(Error::invalid(op, reason));
    }
    let right = if vectors { super::as_column(b)? } else { b.clone() };
    let (rows, columns) = matrix_dims(op, &right)?;
    if n != if left { rows } else { columns } {
        let help = format!("A has {n} rows, so B must have {n} {}", if left { "rows" } else { "columns" });
        return Err(Error::shapes(op, [a.shape(), b.shape()], help));
    }
    common_batch(op, a, &right)?;
    let outputs = match left {
        true => apply(Solve::default(), &[a, &right])?,
        false => apply(Solve { is_transposed: true, factors: None }, &[a, &mt(&right)?])?,
    };
    let x = match (vectors, left) {
        (true, _) => view::squeeze(&outputs[0], -1)?,
        (false, true) => outputs[0].clone(),
        (false, false) => mt(&outputs[0])?,
    };
    Ok((x, outputs[1].clone()))
}

/// Computes the inverse of a tensor as a linear map from its last axes to its first `ind` axes.
///
/// `tensordot(tensorinv(A), A, ind)` is the identity. The product of the first `ind` lengths must equal the product of
/// the other lengths. In the result, the other axes come first.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] if `ind` is 0; [`Error::Singular`].
#[tensor_method]
pub fn tensorinv(a: &Tensor, ind: usize) -> Result<Tensor> {
    let op = "tensorinv";
    if ind == 0 {
        return Err(Error::invalid(op, "ind must be at least 1"));
    }
    check_precision(op, a)?;
    let (first, last) = a.shape().split_at(ind.min(a.rank()));
    let (rows, columns) = (first.iter().product::<usize>(), last.iter().product::<usize>());
    if rows != columns {
        let help = format!(
            "the product of the first {ind} lengths must equal the product of the others, got {rows} and {columns}"
        );
        return Err(Error::shapes(op, [a.shape()], help));
    }
    let inverse = inv(&view::reshape(a, [rows as isize, columns as isize])?)?;
    view::reshape_to(&inverse, &last.iter().chain(first).copied().collect())
}

/// Solves `tensordot(A, X, rank of X) = B` for X, whose axes are the axes of A beyond the rank of B.
///
/// The axes `axes` of A are first moved to the end.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::AxisOutOfRange`]; [`Error::Singular`].
#[tensor_method]
pub fn tensorsolve(a: &Tensor, b: &Tensor, axes: &[isize]) -> Result<Tensor> {
    let op = "tensorsolve";
    let (a, b) = &promote_operands(op, a, b)?;
    let ends: Vec<isize> = (0..axes.len()).map(|k| k as isize - axes.len() as isize).collect();
    let a = view::movedim(a, axes, &ends)?;
    let unknown = &a.shape()[b.rank().min(a.rank())..];
    let size = unknown.iter().product::<usize>();
    if size != b.size() || size.checked_mul(size) != Some(a.size()) {
        let help = format!(
            "B has {} elements, so A must have the square of this number of elements, and the product of the lengths \
             of A after the first {} must be {}",
            b.size(),
            b.rank(),
            b.size()
        );
        return Err(Error::shapes(op, [a.shape(), b.shape()], help));
    }
    let matrix = view::reshape(&a, [size as isize, size as isize])?;
    view::reshape_to(&solve(&matrix, &view::ravel(b)?, true)?, &unknown.iter().copied().collect())
}
