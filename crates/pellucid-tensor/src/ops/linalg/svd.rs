//! Singular value decomposition.

use super::lyapunov::{Spectrum, lyapunov, symmetric_part};
use super::{WithoutGradient, as_column, as_row, block, eye, factor, matrix_dims, mt, untracked_tensor};
use crate::autograd::{apply, apply_one, interface::*, is_recorded};
use crate::ops::elementwise::arithmetic;
use crate::ops::primitive::fill;
use crate::ops::products::matmul::matmul;
use crate::ops::shape::diagonal;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::{Factorization, SvdVectors};
use pellucid_ir::{Error, Result};

/// Computes U, S and Vᵀ. With E_ij = S_j² − S_i² and skew(X) = X − Xᵀ (Townsend 2016):
///
/// ∂A = U·[skew(Uᵀ·∂U)/E·S + S·skew(Vᵀ·∂V)/E + diag(∂S)]·Vᵀ + (I − U·Uᵀ)·∂U·S⁻¹·Vᵀ + U·S⁻¹·∂Vᵀ·(I − V·Vᵀ).
///
/// Vectors that only complete a basis have no derivative; their incoming gradients are ignored.
struct SingularValueDecomposition {
    vectors: SvdVectors,
}

impl Operation for SingularValueDecomposition {
    fn name(&self) -> &'static str {
        "svd"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        (0..3).for_each(|k| saves.output(k));
        factor(Factorization::Svd(self.vectors), inputs)
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let (u, s, vt) = (saved.output(0)?, saved.output(1)?, saved.output(2)?);
        let (m, n) = (u.shape()[u.rank() - 2], vt.shape()[vt.rank() - 1]);
        let k = m.min(n);
        let (u, vt) = (block(&u, (0, 0), m, k)?, block(&vt, (0, 0), k, n)?);
        let (across, down) = (as_row(&s)?, as_column(&s)?);
        // The squares in E may overflow or underflow although the singular values do not, so E is factored into gaps
        // and sums. The ones on the diagonal avoid a division of 0 by 0: the diagonal of skew(X) is 0.
        let diagonal = eye(k, k, s.dtype())?;
        let gaps = arithmetic::add(&arithmetic::sub(&across, &down)?, &diagonal)?;
        let sums = arithmetic::add(&arithmetic::add(&across, &down)?, &diagonal)?;
        let rotation = |x: &Tensor, values: &Tensor| {
            arithmetic::mul(&arithmetic::div(&arithmetic::sub(x, &mt(x)?)?, &gaps)?, &arithmetic::div(values, &sums)?)
        };
        let mut middle = diagonal::diag_embed(&grads.get(1)?, 0, -2, -1)?;
        let mut orthogonal_part = None;
        if let Some(g) = grads.try_get(0) {
            let g = block(g, (0, 0), m, k)?;
            let inside = matmul(&mt(&u)?, &g)?;
            middle = arithmetic::add(&middle, &rotation(&inside, &across)?)?;
            if m > k {
                let outside = arithmetic::div(&arithmetic::sub(&g, &matmul(&u, &inside)?)?, &across)?;
                orthogonal_part = Some(matmul(&outside, &vt)?);
            }
        }
        if let Some(g) = grads.try_get(2) {
            let g = block(g, (0, 0), k, n)?;
            let inside = matmul(&vt, &mt(&g)?)?;
            middle = arithmetic::add(&middle, &rotation(&inside, &down)?)?;
            if n > k {
                let outside = arithmetic::div(&arithmetic::sub(&g, &matmul(&mt(&inside)?, &vt)?)?, &down)?;
                orthogonal_part = Some(matmul(&u, &outside)?);
            }
        }
        let gradient = matmul(&matmul(&u, &middle)?, &vt)?;
        Ok(smallvec![Some(match orthogonal_part {
            Some(orthogonal_part) => arithmetic::add(&gradient, &orthogonal_part)?,
            None => gradient,
        })])
    }
}

/// Computes U, S and Vᵀ, with one vector for each singular value.
pub(super) fn thin_svd(a: &Tensor) -> Result<[Tensor; 3]> {
    let outputs = apply(SingularValueDecomposition { vectors: SvdVectors::Thin }, &[a])?;
    Ok([outputs[0].clone(), outputs[1].clone(), outputs[2].clone()])
}

/// Computes U, S (descending) and Vᵀ with A = U·diag(S)·Vᵀ, for A `[.., m, n]`.
///
/// With k = min(m, n), U is `[.., m, k]`, S `[.., k]`, Vᵀ `[.., k, n]`. With `full_matrices` U is `[.., m, m]` and Vᵀ
/// `[.., n, n]`; the vectors that complete the bases have no derivative.
///
/// The signs of the vectors are arbitrary. The gradient (Giles 2008; Townsend 2016) of a function that does not depend
/// on them requires distinct singular values, and for m ≠ n also nonzero ones.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::NotConverged`].
#[tensor_method]
pub fn svd(a: &Tensor, full_matrices: bool) -> Result<(Tensor, Tensor, Tensor)> {
    matrix_dims("svd", a)?;
    let vectors = if full_matrices { SvdVectors::Full } else { SvdVectors::Thin };
    let outputs = apply(SingularValueDecomposition { vectors }, &[a])?;
    Ok((outputs[0].clone(), outputs[1].clone(), outputs[2].clone()))
}

/// Computes the singular values, descending: `[.., k]`, k = min(m, n). ∂A = U·diag(g)·Vᵀ.
///
/// The first derivative of a symmetric function of the values exists at equal nonzero values. The second derivative
/// depends on the vectors and requires distinct values, and for m ≠ n also nonzero ones.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::NotConverged`].
#[tensor_method]
pub fn svdvals(a: &Tensor) -> Result<Tensor> {
    matrix_dims("svdvals", a)?;
    if is_recorded(&[a]) {
        let [_, s, _] = thin_svd(a)?;
        return Ok(s);
    }
    apply_one(WithoutGradient("svdvals", Factorization::Svd(SvdVectors::Without)), &[a])
}

/// Computes Q and H of A = Q·H. With L(H, G), the solution X of H·X + X·H = G, and M = Qᵀ·∂Q − sym(∂H)·H,
/// ∂A = Q·[sym(∂H) + L(H, M − Mᵀ)] + (I − Q·Qᵀ)·∂Q·H⁻¹ (Higham 2008, section 8.1), where H⁻¹ = L(H, 2·I).
struct Polar;

impl Operation for Polar {
    fn name(&self) -> &'static str {
        "polar"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        (0..2).for_each(|k| saves.output(k));
        let [u, s, vt] = thin_svd(&untracked_tensor(inputs[0]))?;
        let spectrum = Spectrum { values: s, vectors: mt(&vt)? };
        spectrum.save(saves);
        let (q, h) = (matmul(&u, &vt)?, spectrum.matrix_with(&spectrum.values)?);
        Ok(smallvec![q.array().clone(), h.array().clone()])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let (q, h, spectrum) = (saved.output(0)?, saved.output(1)?, Spectrum::saved(saved)?);
        let (g, stretch) = (grads.get(0)?, symmetric_part(&grads.get(1)?)?);
        let inside = matmul(&mt(&q)?, &g)?;
        let m = arithmetic::sub(&inside, &matmul(&stretch, &h)?)?;
        let rotation = lyapunov(&h, &arithmetic::sub(&m, &mt(&m)?)?, spectrum.clone())?;
        let gradient = matmul(&q, &arithmetic::add(&stretch, &rotation)?)?;
        if q.shape()[q.rank() - 2] == q.shape()[q.rank() - 1] {
            return Ok(smallvec![Some(gradient)]);
        }
        let twice = diagonal::diag_embed(&fill::full_like(&spectrum.values, 2.0)?, 0, -2, -1)?;
        let inverse = lyapunov(&h, &twice, spectrum)?;
        let orthogonal_part = matmul(&arithmetic::sub(&g, &matmul(&q, &inside)?)?, &inverse)?;
        Ok(smallvec![Some(arithmetic::add(&gradient, &orthogonal_part)?)])
    }
}

/// Computes the polar decomposition A = Q·H: Q has orthonormal columns, H is symmetric positive semidefinite.
///
/// A and Q are `[.., m, n]` with m ≥ n, H is `[.., n, n]`. From the singular value decomposition, Q = U·Vᵀ and
/// H = V·diag(S)·Vᵀ.
///
/// Derivatives of every order exist for A of full column rank, even at equal singular values (Higham 2008). For a pair
/// of singular values that are both zero, Q has no derivative; such pairs contribute 0 to the gradient.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::NotConverged`].
#[tensor_method]
pub fn polar(a: &Tensor) -> Result<(Tensor, Tensor)> {
    let (m, n) = matrix_dims("polar", a)?;
    if m < n {
        let help = "the matrices must have at least as many rows as columns; transpose() matrices with fewer rows";
        return Err(Error::shapes("polar", [a.shape()], help));
    }
    let outputs = apply(Polar, &[a])?;
    Ok((outputs[0].clone(), outputs[1].clone()))
}
