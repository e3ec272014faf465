//! The equation S·X + X·S = G, which the derivatives of matrix square roots and polar factors solve.

use super::{as_column, as_row, mt, untracked_tensor};
use crate::autograd::{apply_one, interface::*};
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::products::matmul::matmul;
use crate::ops::shape::diagonal;
use crate::tensor::Tensor;
use pellucid_ir::Result;

/// The eigenvalues `[.., n]` and the eigenvectors (columns) of symmetric matrices, without history.
#[derive(Clone)]
pub(super) struct Spectrum {
    pub(super) values: Tensor,
    pub(super) vectors: Tensor,
}

impl Spectrum {
    /// Saves the spectrum for [`Spectrum::saved`].
    pub(super) fn save(&self, saves: &mut SaveForBackward) {
        saves.array(self.values.array().clone());
        saves.array(self.vectors.array().clone());
    }

    /// Returns the spectrum that a forward pass saved.
    pub(super) fn saved(saved: &SavedTensors) -> Result<Spectrum> {
        Ok(Spectrum { values: saved.array(0)?, vectors: saved.array(1)? })
    }

    /// Computes V·diag(f)·Vᵀ.
    pub(super) fn matrix_with(&self, f: &Tensor) -> Result<Tensor> {
        matmul(&arithmetic::mul(&self.vectors, &as_row(f)?)?, &mt(&self.vectors)?)
    }
}

/// Computes X = V·[(Vᵀ·G·V)ᵢⱼ/(wᵢ + wⱼ)]·Vᵀ for S = V·diag(w)·Vᵀ (Higham 2008, section B.14).
///
/// Bracketed elements with wᵢ + wⱼ = 0 are 0, so X is the least squares solution of the smallest norm. Let P be the
/// solution for the incoming gradient g in place of G. Then ∂G = P and ∂S = −(P·Xᵀ + Xᵀ·P). No derivative divides by wᵢ
/// − wⱼ, so derivatives of every order exist at equal eigenvalues.
struct Lyapunov {
    spectrum: Spectrum,
}

impl Operation for Lyapunov {
    fn name(&self) -> &'static str {
        "lyapunov"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(0);
        saves.output(0);
        self.spectrum.save(saves);
        let Spectrum { values: w, vectors: v } = &self.spectrum;
        let inside = matmul(&matmul(&mt(v)?, &untracked_tensor(inputs[1]))?, v)?;
        let sums = arithmetic::add(&as_column(w)?, &as_row(w)?)?;
        let inside = arithmetic::where_(&compare::eq(&sums, 0)?, 0.0, &arithmetic::div(&inside, &sums)?)?;
        let x = matmul(&matmul(v, &inside)?, &mt(v)?)?;
        Ok(smallvec![x.array().clone()])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let p = lyapunov(&saved.input(0)?, &grads.get(0)?, Spectrum::saved(saved)?)?;
        let mut gradients: InputGradients = smallvec![None, None];
        if needs.contains(0) {
            let xt = mt(&saved.output(0)?)?;
            gradients[0] = Some(arithmetic::neg(&arithmetic::add(&matmul(&p, &xt)?, &matmul(&xt, &p)?)?)?);
        }
        if needs.contains(1) {
            gradients[1] = Some(p);
        }
        Ok(gradients)
    }
}

/// Solves S·X + X·S = G for symmetric S with this spectrum. S and G have the same shape.
pub(super) fn lyapunov(s: &Tensor, g: &Tensor, spectrum: Spectrum) -> Result<Tensor> {
    apply_one(Lyapunov { spectrum }, &[s, g])
}

/// Mirrors the lower triangle of A at the diagonal. The gradient treats A as symmetric: ∂A = ½·(g + gᵀ).
struct MirrorLower;

impl Operation for MirrorLower {
    fn name(&self) -> &'static str {
        "mirror_lower"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let a = untracked_tensor(inputs[0]);
        let symmetric = arithmetic::add(&diagonal::tril(&a, 0)?, &mt(&diagonal::tril(&a, -1)?)?)?;
        Ok(smallvec![symmetric.array().clone()])
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        Ok(smallvec![Some(symmetric_part(&grads.get(0)?)?)])
    }
}

/// Returns the symmetric matrix with the lower triangle of A.
pub(super) fn mirror_lower(a: &Tensor) -> Result<Tensor> {
    apply_one(MirrorLower, &[a])
}

/// Computes ½·(x + xᵀ).
pub(super) fn symmetric_part(x: &Tensor) -> Result<Tensor> {
    arithmetic::mul(&arithmetic::add(x, &mt(x)?)?, 0.5)
}
