//! Application of a user-defined formula: elementwise, or with row reductions.

use super::{Axes, formula};
use crate::tensor::Tensor;
use pellucid_derive::operation;
use pellucid_ir::formula::Formula;
use pellucid_ir::{Result, Scalar};

/// Applies a user-defined elementwise formula to tensors that broadcast, in one kernel. Returns every output.
///
/// The formula is compiled and fused by the same code as a built-in operation, and is differentiable to any order.
///
/// ```
/// use pellucid::{formula, ops, Tensor};
/// let x = Tensor::from([0.5f64]).requires_grad_(true);
/// let y = ops::map(formula!(|x; k| (k * x).sin()), &[&x], &[2.0.into()])?.remove(0);
/// y.backward();
/// assert_eq!(x.grad().unwrap().item::<f64>(), 2.0 * 1f64.cos());
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the number of inputs or parameters is wrong, or the
/// formula has row reductions (see [`map_rows`]);
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch),
/// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch).
#[operation(transparent)]
pub fn map(formula: &Formula, inputs: &[&Tensor], params: &[Scalar]) -> Result<Vec<Tensor>> {
    formula::check(formula, inputs, params, false)?;
    Ok(formula::map_all(formula, inputs, params)?.into_vec())
}

/// Applies a user-defined formula with row reductions. A row extends over `axes` of the broadcast shape.
///
/// ```
/// use pellucid::{formula, ops, Tensor};
/// let x = Tensor::from([[1.0f64, 3.0], [2.0, 2.0]]);
/// let y = ops::map_rows(formula!(|x| x / x.row_sum()), &[&x], &[], -1)?;
/// assert_eq!(y[0].to_vec::<f64>(), [0.25, 0.75, 0.5, 0.5]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// Those of [`map`], and [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange).
#[operation(transparent)]
pub fn map_rows(
    formula: &Formula,
    inputs: &[&Tensor],
    params: &[Scalar],
    axes: impl Into<Axes>,
) -> Result<Vec<Tensor>> {
    formula::check(formula, inputs, params, true)?;
    formula::apply_rows_all(formula, inputs, params, axes.into())
}
