//! The matrix exponential.

use super::{block, factor, mt, square_side};
use crate::autograd::{apply_one, interface::*};
use crate::ops::primitive::concatenate::concatenate;
use crate::ops::primitive::fill;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::Result;
use pellucid_ir::kernel::Factorization;

/// Computes exp(A). ∂A is the upper right block of exp([Aᵀ, g; 0, Aᵀ]) (Mathias 1996).
struct MatrixExp;

impl Operation for MatrixExp {
    fn name(&self) -> &'static str {
        "matrix_exp"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(0);
        factor(Factorization::Exp, inputs)
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let (a, g) = (mt(&saved.input(0)?)?, grads.get(0)?);
        let n = a.shape()[a.rank() - 1];
        let above = concatenate(&[&a, &g], -1)?;
        let below = concatenate(&[&fill::zeros_like(&a)?, &a], -1)?;
        let exponential = apply_one(MatrixExp, &[&concatenate(&[&above, &below], -2)?])?;
        Ok(smallvec![Some(block(&exponential, (0, n), n, n)?)])
    }
}

/// Computes the matrix exponential Σ Aᵏ/k! of square matrices `[.., n, n]`.
///
/// The method is scaling and squaring with a Padé approximant (Higham 2005). The gradient is a block of the exponential
/// of a matrix twice as large (Mathias 1996), whose computation uses about 80 times the memory of A.
///
/// # Errors
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch).
#[doc(alias = "expm")]
#[tensor_method]
pub fn matrix_exp(a: &Tensor) -> Result<Tensor> {
    square_side("matrix_exp", a)?;
    apply_one(MatrixExp, &[a])
}
