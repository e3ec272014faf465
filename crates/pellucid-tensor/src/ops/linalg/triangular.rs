//! Solving systems with triangular matrices.

use super::{
    broadcast_batch, check_info, common_batch, factor, matrix_dims, mt, promote_operands, square_side, untracked_tensor,
};
use crate::autograd::{apply_one, interface::*};
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::broadcast;
use crate::ops::primitive::copy;
use crate::ops::products::matmul::matmul;
use crate::ops::reduce::reductions;
use crate::ops::shape::diagonal;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::Factorization;
use pellucid_ir::{Error, Result};

/// Computes X with A·X = B for triangular A. ∂B is A⁻ᵀ·g, and ∂A is the triangle of −∂B·Xᵀ (Giles 2008).
struct SolveTriangular {
    upper: bool,
    unit: bool,
}

impl Operation for SolveTriangular {
    fn name(&self) -> &'static str {
        "solve_triangular"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(0);
        if saves.needs(0) {
            saves.output(0);
        }
        let (a, b) = (untracked_tensor(inputs[0]), untracked_tensor(inputs[1]));
        let batch = common_batch("solve_triangular", &a, &b)?;
        let (a, b) = (broadcast_batch(&a, &batch)?, broadcast_batch(&b, &batch)?);
        let kernel = Factorization::TriangularSolve { upper: self.upper, unit: self.unit };
        factor(kernel, &[a.array(), b.array()])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let a = saved.input(0)?;
        let gradient_of_b = triangular(&mt(&a)?, &grads.get(0)?, !self.upper, self.unit)?;
        let mut gradients: InputGradients = smallvec![None, None];
        if needs.contains(0) {
            let full = arithmetic::neg(&matmul(&gradient_of_b, &mt(&saved.output(0)?)?)?)?;
            let inside = isize::from(self.unit);
            let triangle = if self.upper { diagonal::triu(&full, inside)? } else { diagonal::tril(&full, -inside)? };
            gradients[0] = Some(broadcast::sum_to(&triangle, a.shape())?);
        }
        if needs.contains(1) {
            gradients[1] = Some(broadcast::sum_to(&gradient_of_b, &saved.input_shape(1))?);
        }
        Ok(gradients)
    }
}

/// Solves A·X = B for checked operands; X is NaN if the diagonal of A contains a zero.
pub(super) fn triangular(a: &Tensor, b: &Tensor, upper: bool, unit: bool) -> Result<Tensor> {
    apply_one(SolveTriangular { upper, unit }, &[a, b])
}

/// Solves A·X = B (or X·A = B if `left` is false) for triangular A `[.., n, n]`.
///
/// The other triangle is not read. With `unit` the diagonal counts as 1 and is not read. B is `[.., n, k]`
/// (`[.., k, n]`); batch axes broadcast.
///
/// ∂B = A⁻ᵀ·g, ∂A = the triangle of −∂B·Xᵀ (Giles 2008).
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::Singular`] for a zero on the diagonal (in lazy and
/// captured steps, and on a GPU, X is NaN).
#[doc(alias = "triangular_solve")]
#[tensor_method]
pub fn solve_triangular(a: &Tensor, b: &Tensor, upper: bool, left: bool, unit: bool) -> Result<Tensor> {
    let op = "solve_triangular";
    let (a, b) = &promote_operands(op, a, b)?;
    let n = square_side(op, a)?;
    let (rows, columns) = matrix_dims(op, b)?;
    if n != if left { rows } else { columns } {
        let help = if left { "B must have as many rows as A" } else { "B must have as many columns as A" };
        return Err(Error::shapes(op, [a.shape(), b.shape()], help));
    }
    common_batch(op, a, b)?;
    if !unit {
        let zeros = compare::eq(&super::main_diagonal(&a.detach())?, 0.0)?;
        let any = copy::to_dtype(&reductions::any(&zeros, -1)?, pellucid_ir::DType::I32)?;
        check_info(op, &any, |_| "singular (a zero on its diagonal)".into(), "")?;
    }
    match left {
        true => triangular(a, b, upper, unit),
        false => mt(&triangular(&mt(a)?, &mt(b)?, !upper, unit)?),
    }
}
