//! Eigenvalues and eigenvectors of symmetric matrices.

use super::lyapunov::{Spectrum, lyapunov, symmetric_part};
use super::{WithoutGradient, as_column, as_row, eye, factor, mt, square_side, untracked_tensor};
use crate::autograd::{apply, apply_one, interface::*, is_recorded};
use crate::ops::elementwise::{activation, arithmetic};
use crate::ops::products::matmul::matmul;
use crate::ops::shape::diagonal;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::Result;
use pellucid_ir::kernel::Factorization;

/// Computes the eigenvalues w and eigenvectors V. With E_ij = w_j − w_i and skew(X) = X − Xᵀ,
/// ∂A = V·[½·skew(Vᵀ·∂V)/E + diag(∂w)]·Vᵀ, which is symmetric (Giles 2008).
struct Eigh;

impl Operation for Eigh {
    fn name(&self) -> &'static str {
        "eigh"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.output(0);
        saves.output(1);
        factor(Factorization::Eigh { vectors: true }, inputs)
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let (w, v) = (saved.output(0)?, saved.output(1)?);
        let mut middle = diagonal::diag_embed(&grads.get(0)?, 0, -2, -1)?;
        if let Some(g) = grads.try_get(1) {
            let n = w.shape()[w.rank() - 1];
            let gaps = arithmetic::add(&arithmetic::sub(&as_row(&w)?, &as_column(&w)?)?, &eye(n, n, w.dtype())?)?;
            let inside = matmul(&mt(&v)?, g)?;
            let rotation = arithmetic::div(&arithmetic::sub(&inside, &mt(&inside)?)?, &arithmetic::mul(&gaps, 2.0)?)?;
            middle = arithmetic::add(&middle, &rotation)?;
        }
        Ok(smallvec![Some(matmul(&matmul(&v, &middle)?, &mt(&v)?)?)])
    }
}

/// Computes eigenvalues w (ascending) and eigenvectors V (columns) of symmetric matrices: A = V·diag(w)·Vᵀ.
///
/// A is `[.., n, n]`; only its lower (`upper`: upper) triangle is read. The signs of the vectors are arbitrary. The
/// gradient treats the result as a function of symmetric matrices, and is symmetric (Giles 2008). For the vectors it
/// requires distinct eigenvalues.
///
/// # Errors
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch);
/// [`Error::NotConverged`](crate::Error::NotConverged).
#[doc(alias = "symeig")]
#[tensor_method]
pub fn eigh(a: &Tensor, upper: bool) -> Result<(Tensor, Tensor)> {
    square_side("eigh", a)?;
    let a = if upper { mt(a)? } else { a.clone() };
    let outputs = apply(Eigh, &[&a])?;
    Ok((outputs[0].clone(), outputs[1].clone()))
}

/// Computes the eigenvalues of symmetric matrices, as [`eigh`] does. ∂A = V·diag(g)·Vᵀ.
///
/// The first derivative of a symmetric function of the eigenvalues exists at equal eigenvalues. The second derivative
/// depends on the vectors and requires distinct eigenvalues.
///
/// # Errors
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch);
/// [`Error::NotConverged`](crate::Error::NotConverged).
#[tensor_method]
pub fn eigvalsh(a: &Tensor, upper: bool) -> Result<Tensor> {
    square_side("eigvalsh", a)?;
    let a = if upper { mt(a)? } else { a.clone() };
    if is_recorded(&[&a]) {
        return Ok(apply(Eigh, &[&a])?[0].clone());
    }
    apply_one(WithoutGradient("eigvalsh", Factorization::Eigh { vectors: false }), &[&a])
}

/// Computes X = √A by eigenvalues. ∂A solves X·∂A + ∂A·X = sym(g).
struct SquareRoot;

impl Operation for SquareRoot {
    fn name(&self) -> &'static str {
        "matrix_sqrth"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.output(0);
        let (w, v) = eigh(&untracked_tensor(inputs[0]), false)?;
        let root = Spectrum { values: arithmetic::sqrt(&activation::relu(&w)?)?, vectors: v };
        root.save(saves);
        Ok(smallvec![root.matrix_with(&root.values)?.array().clone()])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let g = symmetric_part(&grads.get(0)?)?;
        Ok(smallvec![Some(lyapunov(&saved.output(0)?, &g, Spectrum::saved(saved)?)?)])
    }
}

/// Computes the symmetric positive semidefinite X with X·X = A: X = V·diag(√w)·Vᵀ.
///
/// A is symmetric positive semidefinite, and only its lower triangle is read. Negative eigenvalues, which rounding may
/// produce, count as zero.
///
/// The gradient solves X·∂A + ∂A·X = g. It treats the result as a function of symmetric matrices, and is symmetric.
/// Derivatives of every order exist for positive definite A, even at equal eigenvalues. For a pair of eigenvalues that
/// are both zero the derivative is infinite; such pairs contribute 0.
///
/// # Errors
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch);
/// [`Error::NotConverged`](crate::Error::NotConverged).
#[doc(alias = "sqrtm")]
#[tensor_method]
pub fn matrix_sqrth(a: &Tensor) -> Result<Tensor> {
    square_side("matrix_sqrth", a)?;
    apply_one(SquareRoot, &[a])
}
