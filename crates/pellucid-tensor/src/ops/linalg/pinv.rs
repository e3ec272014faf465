//! Pseudo-inverses and ranks, with a cutoff for small singular values.

use super::eigh::eigh;
use super::lyapunov::mirror_lower;
use super::svd::{svdvals, thin_svd};
use super::{as_column, as_row, matrix_dims, mt, square_side, untracked_tensor};
use crate::autograd::{apply_one, interface::*};
use crate::ops::call::axes;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::broadcast;
use crate::ops::primitive::{copy, fill, view};
use crate::ops::products::matmul::matmul;
use crate::ops::reduce::reductions;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result, Shape};

/// The bound max(atol, rtol·(largest singular value)) up to which singular values count as zero.
///
/// `atol` and `rtol` are 0-d or have the shape of the batch, and have no gradient. The default of `rtol` is max(m, n)·ε
/// of the dtype, or 0 if `atol` is given.
#[derive(Clone, Debug, Default)]
pub struct Cutoff {
    /// The absolute bound.
    pub atol: Option<Tensor>,
    /// The bound relative to the largest singular value.
    pub rtol: Option<Tensor>,
    /// Whether the matrices are symmetric. Then eigenvalues replace singular values, only the lower triangle is read,
    /// and gradients are symmetric, like those of [`eigh`](crate::ops::eigh).
    pub hermitian: bool,
}

impl Cutoff {
    /// Returns the cutoff at `rtol` times the largest singular value.
    pub fn relative(rtol: f64) -> Cutoff {
        Cutoff { rtol: Some(Tensor::from(rtol)), ..Cutoff::default() }
    }

    /// Returns both bounds as tensors of the matrices' dtype.
    fn bounds(&self, a: &Tensor) -> Result<[Tensor; 2]> {
        let cast = |t: &Tensor| copy::to_dtype(&t.detach(), a.dtype());
        let scalar = |x: f64| fill::full((), x, a.dtype());
        let (m, n) = (a.shape()[a.rank() - 2], a.shape()[a.rank() - 1]);
        let epsilon = a.dtype().epsilon().unwrap_or_default();
        let has_atol = match &self.atol {
            // An absolute bound of 0 is treated as absent.
            Some(atol) => copy::to_dtype(&compare::gt(atol, 0.0)?, a.dtype())?,
            None => scalar(0.0)?,
        };
        let default_rtol = arithmetic::mul(&arithmetic::sub(1.0, &has_atol)?, m.max(n) as f64 * epsilon)?;
        Ok([self.atol.as_ref().map_or_else(|| scalar(0.0), cast)?, self.rtol.as_ref().map_or(Ok(default_rtol), cast)?])
    }
}

/// Returns the mask of nonnegative values above the bound.
fn above_cutoff(values: &Tensor, [atol, rtol]: &[Tensor; 2]) -> Result<Tensor> {
    let largest = reductions::max(values, axes::over(-1).keepdims())?;
    let bound = arithmetic::maximum(&as_column(atol)?, &arithmetic::mul(&as_column(rtol)?, &largest)?)?;
    compare::gt(values, &bound)
}

/// Computes the pseudo-inverse A⁺ (Moore & Penrose). At constant rank (Golub & Pereyra 1973)
/// ∂A = −A⁺ᵀ·g·A⁺ᵀ + (I − A·A⁺)·gᵀ·A⁺·A⁺ᵀ + A⁺ᵀ·A⁺·gᵀ·(I − A⁺·A).
struct PseudoInverse {
    hermitian: bool,
}

impl Operation for PseudoInverse {
    fn name(&self) -> &'static str {
        "pinv"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(0);
        saves.output(0);
        let bounds = [untracked_tensor(inputs[1]), untracked_tensor(inputs[2])];
        let a = untracked_tensor(inputs[0]);
        let (u, s, vt) = if self.hermitian {
            let (w, v) = eigh(&a, false)?;
            (v.clone(), w, mt(&v)?)
        } else {
            let [u, s, vt] = thin_svd(&a)?;
            (u, s, vt)
        };
        let counts = above_cutoff(&arithmetic::abs(&s)?, &bounds)?;
        // NaN is not above a bound, but must not be treated as zero either.
        let inverse = arithmetic::where_(
            &compare::logical_or(&counts, &compare::isnan(&s)?)?,
            &arithmetic::reciprocal(&s)?,
            0.0,
        )?;
        let inverse_of_a = matmul(&arithmetic::mul(&mt(&vt)?, &as_row(&inverse)?)?, &mt(&u)?)?;
        Ok(smallvec![inverse_of_a.array().clone()])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let (a, x, g) = (saved.input(0)?, saved.output(0)?, grads.get(0)?);
        let (xt, gt) = (mt(&x)?, mt(&g)?);
        let inner = arithmetic::neg(&matmul(&matmul(&xt, &g)?, &xt)?)?;
        let columns = matmul(&gt, &matmul(&x, &xt)?)?;
        let columns = arithmetic::sub(&columns, &matmul(&a, &matmul(&x, &columns)?)?)?;
        let rows = matmul(&matmul(&xt, &x)?, &gt)?;
        let rows = arithmetic::sub(&rows, &matmul(&matmul(&rows, &x)?, &a)?)?;
        Ok(smallvec![Some(arithmetic::add(&inner, &arithmetic::add(&columns, &rows)?)?), None, None])
    }
}

/// Computes the pseudo-inverse A⁺ `[.., n, m]` of A `[.., m, n]` (Moore 1920, Penrose 1955), from singular values.
///
/// Singular values up to the cutoff count as zero.
///
/// The gradient assumes constant rank (Golub & Pereyra 1973). It exists at equal singular values.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::NotConverged`].
#[doc(alias = "pseudo_inverse")]
#[tensor_method]
pub fn pinv(a: &Tensor, cutoff: &Cutoff) -> Result<Tensor> {
    let (m, n) = check_operands("pinv", a, cutoff)?;
    if a.size() == 0 {
        // If A has no elements, the inverse has none either.
        return mt(&view::reshape_to(a, &super::batch(a).iter().copied().chain([m, n]).collect())?);
    }
    let [atol, rtol] = cutoff.bounds(a)?;
    // The matrices broadcast with the bounds here, so that the broadcast gradient is summed.
    let batch = super::batch(a);
    let batch = Shape::broadcast_all([&batch, atol.shape(), rtol.shape()]).ok_or_else(|| {
        Error::shapes("pinv", [a.shape(), atol.shape(), rtol.shape()], "atol and rtol must broadcast to the same shape")
    })?;
    let a = broadcast::broadcast_to(a, batch.iter().copied().chain([m, n]).collect::<Shape>())?;
    // The gradient multiplies by the full matrix A, but only the lower triangle of A may be read.
    let a = &if cutoff.hermitian { mirror_lower(&a)? } else { a };
    apply_one(PseudoInverse { hermitian: cutoff.hermitian }, &[a, &atol, &rtol])
}

/// Computes the rank: the number of singular values (or absolute eigenvalues) above the cutoff, in `i64`, with the
/// batch shape.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::NotConverged`].
#[tensor_method]
pub fn matrix_rank(a: &Tensor, cutoff: &Cutoff) -> Result<Tensor> {
    let (m, n) = check_operands("matrix_rank", a, cutoff)?;
    if m.min(n) == 0 {
        return fill::full_on_device_of(a, super::batch(a), 0, DType::I64);
    }
    let a = a.detach();
    let values = if cutoff.hermitian { arithmetic::abs(&super::eigvalsh(&a, false)?)? } else { svdvals(&a)? };
    reductions::sum(&above_cutoff(&values, &cutoff.bounds(&a)?)?, -1)
}

fn check_operands(op: &'static str, a: &Tensor, cutoff: &Cutoff) -> Result<(usize, usize)> {
    let (m, n) = if cutoff.hermitian { square_side(op, a).map(|n| (n, n))? } else { matrix_dims(op, a)? };
    let batch = super::batch(a);
    for bound in [&cutoff.atol, &cutoff.rtol].into_iter().flatten() {
        if !bound.dtype().is_float() {
            return Err(Error::dtypes(
                op,
                [a.dtype(), bound.dtype()],
                "`atol` and `rtol` must be floats; use to_dtype()",
            ));
        }
        if bound.shape().broadcast(&batch).is_none() {
            let help = "`atol` and `rtol` must be 0-d, or have one element per matrix";
            return Err(Error::shapes(op, [a.shape(), bound.shape()], help));
        }
    }
    Ok((m, n))
}
