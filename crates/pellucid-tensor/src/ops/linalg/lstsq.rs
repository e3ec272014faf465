//! Linear least squares.

use super::pinv::{Cutoff, matrix_rank, pinv};
use super::svd::svdvals;
use super::{broadcast_batch, common_batch, factor, matrix_dims, mt, promote_operands, untracked_tensor};
use crate::autograd::{apply, interface::*, is_recorded};
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::broadcast;
use crate::ops::primitive::{copy, fill, view};
use crate::ops::products::matmul::matmul;
use crate::ops::reduce::reductions;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::Factorization;
use pellucid_ir::{DType, Error, Result, Shape};

/// The result of [`lstsq`].
#[derive(Clone, Debug)]
pub struct Lstsq {
    /// X, `[.., n, k]`.
    pub solution: Tensor,
    /// The sums of squares of the columns of A·X − B, `[.., k]`; empty unless A has more rows than columns.
    pub residuals: Tensor,
    /// The rank of A, in `i64`, with A's batch shape.
    pub rank: Tensor,
    /// The singular values of A, descending.
    pub singular_values: Tensor,
}

/// Computes X = A⁺·B, the singular values of A, and its rank. The values and the rank have no gradient.
///
/// With P = A⁺, w = Pᵀ·g and the residual r = B − A·X, ∂B = w and ∂A = r·(P·w)ᵀ + (Pᵀ·X)·(g − Aᵀ·w)ᵀ − w·Xᵀ, at
/// constant rank (Golub & Pereyra 1973).
struct LeastSquares {
    rcond: f64,
}

impl Operation for LeastSquares {
    fn name(&self) -> &'static str {
        "lstsq"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        (0..2).for_each(|k| saves.input(k));
        saves.output(0);
        let a = untracked_tensor(inputs[0]);
        let bound = fill::full_on_device_of(&a, (), self.rcond, a.dtype())?;
        let bounds: Shape = super::batch(&a).iter().copied().chain([1]).collect();
        let bounds = broadcast::broadcast_to(&bound, bounds)?;
        factor(Factorization::LeastSquares, &[inputs[0], inputs[1], bounds.array()])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let (a, b, x) = (saved.input(0)?, saved.input(1)?, saved.output(0)?);
        // The gradients of the other outputs are ignored.
        let Some(g) = grads.try_get(0) else { return Ok(smallvec![None, None]) };
        let inverse = pinv(&a, &Cutoff::relative(self.rcond))?;
        let w = matmul(&mt(&inverse)?, g)?;
        if !needs.contains(0) {
            return Ok(smallvec![None, Some(w)]);
        }
        let residual = arithmetic::sub(&b, &matmul(&a, &x)?)?;
        let columns = matmul(&residual, &mt(&matmul(&inverse, &w)?)?)?;
        let outside = arithmetic::sub(g, &matmul(&mt(&a)?, &w)?)?;
        let rows = matmul(&matmul(&mt(&inverse)?, &x)?, &mt(&outside)?)?;
        let inner = matmul(&w, &mt(&x)?)?;
        Ok(smallvec![Some(arithmetic::sub(&arithmetic::add(&columns, &rows)?, &inner)?), Some(w)])
    }
}

/// Solves linear least squares problems: X = A⁺·B minimizes ‖A·X − B‖. Among all minimizers, it has the smallest ‖X‖.
///
/// A is `[.., m, n]`, B `[.., m, k]`, or `[.., m]` with as many batch axes as A (X is then `[.., n]`); batch axes
/// broadcast. Singular values up to `rcond` times the largest count as zero; the default of `rcond` is max(m, n)·ε,
/// with the ε of the dtype.
///
/// The solution is computed from the QR factorization of A, or from its singular vectors if A has less than full rank
/// or fewer rows than columns. The gradients follow from [`pinv`](super::pinv()), the product, and [`svdvals`].
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::NotConverged`].
#[tensor_method]
pub fn lstsq(a: &Tensor, b: &Tensor, rcond: Option<f64>) -> Result<Lstsq> {
    let op = "lstsq";
    let (a, b) = &promote_operands(op, a, b)?;
    let (m, n) = matrix_dims(op, a)?;
    let vectors = b.rank() + 1 == a.rank();
    let right = if vectors { super::as_column(b)? } else { b.clone() };
    if matrix_dims(op, &right)?.0 != m {
        return Err(Error::shapes(op, [a.shape(), b.shape()], "B must have as many rows as A"));
    }
    let batch = common_batch(op, a, &right)?;
    let rcond = rcond.unwrap_or_else(|| default_rcond(a));
    let [solution, values, rank] =
        least_squares(&broadcast_batch(a, &batch)?, &broadcast_batch(&right, &batch)?, rcond)?;
    let residuals = match m > n {
        true => {
            let residual = arithmetic::sub(&matmul(a, &solution)?, &right)?;
            reductions::sum(&arithmetic::square(&residual)?, -2)?
        }
        false => fill::full_on_device_of(a, [0], 0, a.dtype())?,
    };
    let solution = if vectors { view::squeeze(&solution, -1)? } else { solution };
    let has_own_batch = super::batch(a) == batch;
    let singular_values = if is_recorded(&[a]) || !has_own_batch { svdvals(a)? } else { values };
    let rank = if has_own_batch { rank } else { matrix_rank(a, &Cutoff::relative(rcond))? };
    Ok(Lstsq { solution, residuals, rank, singular_values })
}

/// Returns the default bound of singular values that count as zero, relative to the largest one.
pub(in crate::ops) fn default_rcond(a: &Tensor) -> f64 {
    let [m, n] = [2, 1].map(|k| a.shape()[a.rank() - k]);
    m.max(n) as f64 * a.dtype().epsilon().unwrap_or_default()
}

/// Returns the solution X of `[.., m, n]` and `[.., m, k]` with the same batch axes, and the singular values and the
/// rank of A without gradient.
pub(in crate::ops) fn least_squares(a: &Tensor, b: &Tensor, rcond: f64) -> Result<[Tensor; 3]> {
    let outputs = apply(LeastSquares { rcond }, &[a, b])?;
    Ok([outputs[0].clone(), outputs[1].detach(), copy::to_dtype(&outputs[2], DType::I64)?])
}
