//! Determinants.

use super::inv::{inverse, inverse_by_factors};
use super::svd::thin_svd;
use super::{as_row, block, eye, factor, lu, main_diagonal, mt, scalar_matrix, square_side};
use crate::autograd::{GradOptions, apply, apply_one, collect_gradients, interface::*};
use crate::ops::elementwise::{arithmetic, compare, transcendental};
use crate::ops::primitive::via_definition::via_definition;
use crate::ops::primitive::{create, fill, view};
use crate::ops::products::matmul::matmul;
use crate::ops::reduce::reductions;
use crate::ops::shape::diagonal;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::Factorization;
use pellucid_ir::{DType, Result};

/// The maximum number of zero singular values for which the derivatives of the determinant are exact.
const MAX_RANK_DEFICIENCY: usize = 8;

/// Returns the diagonal of U with a change of sign for every row exchange. Its product is det A.
fn signed_diagonal(factors: &lu::Factors) -> Result<Tensor> {
    let diagonal = main_diagonal(&factors.packed)?;
    let rows = create::arange(1, diagonal.shape()[diagonal.rank() - 1] as i32 + 1, 1, DType::I32)?;
    arithmetic::where_(&compare::ne(&factors.pivots, &rows)?, &arithmetic::neg(&diagonal)?, &diagonal)
}

/// Computes the determinant det A = ± Π Uᵢᵢ, by LU. The gradient is g times the cofactor matrix.
struct Det;

/// Computes the cofactor matrix from the factors of A.
///
/// The derivatives of the factors do not exist for a singular A. Therefore `backward` differentiates the gradient of
/// another definition of the determinant. Let U·Σ·Vᵀ be the singular value decomposition of A at the point of the
/// derivative. With U and V as constants, det A = det(U)·det(V)·det(M) for M = Uᵀ·A·V and for every A. At that point, M
/// is diagonal, with the smallest singular values last. M has the blocks [B, E; C, D], where D is at most 8 by 8, and
/// det M = det(B)·det(D − C·B⁻¹·E). If at most 8 singular values are zero, B is invertible. The determinant of the
/// Schur complement D − C·B⁻¹·E is computed without division (Bird 2011), so its derivatives are exact although the
/// complement is singular.
struct Cofactors(lu::Factors);

impl Cofactors {
    /// Computes det A.
    fn determinant(a: &Tensor) -> Result<Tensor> {
        let n = a.shape()[a.rank() - 1];
        let (u, v, sign) = {
            let [u, _, vt] = thin_svd(&a.detach())?;
            let sign = arithmetic::mul(&apply_one(Det, &[&u])?, &apply_one(Det, &[&vt])?)?;
            (u, mt(&vt)?, arithmetic::round(&sign)?)
        };
        let middle = matmul(&matmul(&mt(&u)?, a)?, &v)?;
        let (r, s) = (n - n.min(MAX_RANK_DEFICIENCY), n.min(MAX_RANK_DEFICIENCY));
        let last = block(&middle, (r, r), s, s)?;
        if r == 0 {
            return arithmetic::mul(&sign, &division_free(&last)?);
        }
        let first = block(&middle, (0, 0), r, r)?;
        let (e, c) = (block(&middle, (0, r), r, s)?, block(&middle, (r, 0), s, r)?);
        let schur = arithmetic::sub(&last, &matmul(&matmul(&c, &inverse(&first)?)?, &e)?)?;
        let log_abs_det = apply(SlogDet, &[&first])?[1].clone();
        arithmetic::mul(&arithmetic::mul(&sign, &transcendental::exp(&log_abs_det)?)?, &division_free(&schur)?)
    }
}

/// Computes the determinant of matrices `[.., n, n]` by n − 1 products (Bird 2011): X ← μ(X)·A. μ keeps the elements
/// above the diagonal, and replaces each diagonal element by minus the sum of the later diagonal elements.
fn division_free(a: &Tensor) -> Result<Tensor> {
    let n = a.shape()[a.rank() - 1];
    let later = diagonal::tril(&fill::ones([n, n], a.dtype())?, -1)?;
    let mut x = a.clone();
    for _ in 1..n {
        let sums = matmul(&as_row(&main_diagonal(&x)?)?, &later)?;
        let diagonal = arithmetic::mul(&sums, &eye(n, n, a.dtype())?)?;
        x = matmul(&arithmetic::sub(&diagonal::triu(&x, 1)?, &diagonal)?, a)?;
    }
    let corner = view::select(&view::select(&x, -1, 0)?, -1, 0)?;
    if n.is_multiple_of(2) { arithmetic::neg(&corner) } else { Ok(corner) }
}

impl Operation for Det {
    fn name(&self) -> &'static str {
        "det"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(0);
        let factors = lu::lu_factors(inputs[0])?;
        factors.save(saves);
        Ok(smallvec![reductions::prod(&signed_diagonal(&factors)?, -1)?.array().clone()])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let cofactors = apply_one(Cofactors(lu::Factors::from_saved(saved)?), &[&saved.input(0)?])?;
        Ok(smallvec![Some(arithmetic::mul(&scalar_matrix(&grads.get(0)?)?, &cofactors)?)])
    }
}

impl Operation for Cofactors {
    fn name(&self) -> &'static str {
        "det_backward"
    }
    fn forward(&self, _: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(0);
        factor(Factorization::Cofactors, &[self.0.packed.array(), self.0.pivots.array()])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let a = saved.input(0)?;
        if a.size() == 0 {
            return Ok(smallvec![Some(fill::zeros_like(&a)?)]);
        }
        let definition = |a: &[Tensor]| {
            let options = GradOptions { create_graph: true, ..GradOptions::default() };
            collect_gradients(&[&Cofactors::determinant(&a[0])?], &[&a[0]], options)
        };
        Ok(via_definition(&[&a], &[&grads.get(0)?], definition)?.into_iter().map(Some).collect())
    }
}

/// Computes the sign of the determinant, and ln |det A| = Σ ln |Uᵢᵢ|, by LU. The gradient is ∂A = g·A⁻ᵀ (Giles 2008).
struct SlogDet;

impl Operation for SlogDet {
    fn name(&self) -> &'static str {
        "slogdet"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(0);
        let factors = lu::lu_factors(inputs[0])?;
        factors.save(saves);
        let diagonal = signed_diagonal(&factors)?;
        let sign = reductions::prod(&arithmetic::sign(&diagonal)?, -1)?;
        let log_abs_det = reductions::sum(&transcendental::ln(&arithmetic::abs(&diagonal)?)?, -1)?;
        Ok(smallvec![sign.array().clone(), log_abs_det.array().clone()])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let inverse = inverse_by_factors(&saved.input(0)?, lu::Factors::from_saved(saved)?)?;
        Ok(smallvec![Some(arithmetic::mul(&scalar_matrix(&grads.get(1)?)?, &mt(&inverse)?)?)])
    }
}

/// Computes the determinants of square matrices `[.., n, n]`; 1 for n = 0.
///
/// The gradient is g times the cofactor matrix, which is accurate for singular matrices too (Stewart 1998). Derivatives
/// of higher order are exact if at most 8 singular values are zero (Bird 2011).
///
/// # Errors
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch).
#[tensor_method]
pub fn det(a: &Tensor) -> Result<Tensor> {
    square_side("det", a)?;
    apply_one(Det, &[a])
}

/// Computes the sign of the determinants of square matrices, and ln |det A|; (0, −∞) for singular matrices.
///
/// The gradient of the logarithm is ∂A = g·A⁻ᵀ (Giles 2008), and NaN for singular matrices. The gradient of the sign is
/// zero.
///
/// # Errors
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch).
#[tensor_method]
pub fn slogdet(a: &Tensor) -> Result<(Tensor, Tensor)> {
    square_side("slogdet", a)?;
    let outputs = apply(SlogDet, &[a])?;
    Ok((outputs[0].clone(), outputs[1].clone()))
}

/// Computes ln det A of square matrices; NaN if the determinant is negative, −∞ if it is zero. ∂A = g·A⁻ᵀ.
///
/// # Errors
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch).
#[tensor_method]
pub fn logdet(a: &Tensor) -> Result<Tensor> {
    square_side("logdet", a)?;
    let outputs = apply(SlogDet, &[a])?;
    // The logarithm of the sign is 0, −∞ or NaN.
    arithmetic::add(&outputs[1], &transcendental::ln(&outputs[0].detach())?)
}
