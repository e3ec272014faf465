//! Linear least squares.

use super::pinv::{Cutoff, matrix_rank, pinv_with_values, rank_of_values};
use super::svd::svdvals;
use super::{common_batch, matrix_dims, promote_operands};
use crate::autograd::is_recorded;
use crate::ops::elementwise::arithmetic;
use crate::ops::primitive::{fill, view};
use crate::ops::products::matmul::matmul;
use crate::ops::reduce::reductions;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result};

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

/// Solves linear least squares problems: X = A⁺·B minimizes ‖A·X − B‖. Among all minimizers, it has the smallest ‖X‖.
///
/// A is `[.., m, n]`, B `[.., m, k]`, or `[.., m]` with as many batch axes as A (X is then `[.., n]`); batch axes
/// broadcast. Singular values up to `rcond` times the largest count as zero; the default of `rcond` is max(m, n)·ε,
/// with the ε of the dtype.
///
/// The gradients follow from [`pinv`](super::pinv()), the product, and [`svdvals`].
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
    common_batch(op, a, &right)?;
    let cutoff = rcond.map_or_else(Cutoff::default, Cutoff::relative);
    let (inverse, values) = pinv_with_values(a, &cutoff)?;
    let solution = matmul(&inverse, &right)?;
    let residuals = match m > n {
        true => {
            let residual = arithmetic::sub(&matmul(a, &solution)?, &right)?;
            reductions::sum(&arithmetic::square(&residual)?, -2)?
        }
        false => fill::full_on_device_of(a, [0], 0, a.dtype())?,
    };
    let solution = if vectors { view::squeeze(&solution, -1)? } else { solution };
    let rank =
        if values.size() == 0 { matrix_rank(a, &cutoff)? } else { rank_of_values(&a.detach(), &values, &cutoff)? };
    Ok(Lstsq { solution, residuals, rank, singular_values: if is_recorded(&[a]) { svdvals(a)? } else { values } })
}
