//! Application of a user-defined formula: elementwise, or with row reductions.

use crate::ops::call::axes::Axes;
use crate::ops::formula;
use crate::tensor::Tensor;
use pellucid_derive::operation;
use pellucid_ir::formula::Formula;
use pellucid_ir::{Error, Result, Scalar};

/// Applies a user-defined elementwise formula with one output to tensors that broadcast, in one kernel.
///
/// The formula is compiled and fused by the same code as a built-in operation, and is differentiable to any order.
///
/// ```
/// use pellucid::{formula, ops, Tensor};
/// let x = Tensor::from([0.5f64]).requires_grad_(true);
/// let y = ops::map(formula!(|x; k| (k * x).sin()), &[&x], &[2.0.into()])?;
/// y.backward();
/// assert_eq!(x.grad().unwrap().item::<f64>(), 2.0 * 1f64.cos());
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] if the number of inputs or parameters is wrong, if the formula has several outputs (see
/// [`map_all`]), or if it has row reductions (see [`map_rows`]); [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
#[operation(transparent)]
pub fn map(formula: &Formula, inputs: &[&Tensor], params: &[Scalar]) -> Result<Tensor> {
    formula::check_application(formula, inputs, params, false)?;
    check_one_output(formula, "map_all")?;
    formula::map(formula, inputs, params)
}

/// Applies a user-defined elementwise formula to tensors that broadcast, in one kernel, and returns every output in the
/// order of the formula; see [`map`].
///
/// ```
/// use pellucid::{formula, ops, Tensor};
/// let x = Tensor::from([2.0, 3.0]);
/// let outputs = ops::map_all(formula!(|x| (x * x, x * x * x)), &[&x], &[])?;
/// assert_eq!(outputs[0].to_vec::<f64>(), [4.0, 9.0]);
/// assert_eq!(outputs[1].to_vec::<f64>(), [8.0, 27.0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of [`map`], except the error for several outputs.
#[operation(transparent)]
pub fn map_all(formula: &Formula, inputs: &[&Tensor], params: &[Scalar]) -> Result<Vec<Tensor>> {
    formula::check_application(formula, inputs, params, false)?;
    Ok(formula::map_all(formula, inputs, params)?.into_vec())
}

/// Applies a user-defined formula with row reductions and one output. A row extends over `axes` of the broadcast shape.
///
/// ```
/// use pellucid::{formula, ops, Tensor};
/// let x = Tensor::from([[1.0f64, 3.0], [2.0, 2.0]]);
/// let y = ops::map_rows(formula!(|x| x / x.row_sum()), &[&x], &[], -1)?;
/// assert_eq!(y.to_vec::<f64>(), [0.25, 0.75, 0.5, 0.5]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of [`map`], except the error for row reductions; [`Error::AxisOutOfRange`].
#[operation(transparent)]
pub fn map_rows(formula: &Formula, inputs: &[&Tensor], params: &[Scalar], axes: impl Into<Axes>) -> Result<Tensor> {
    formula::check_application(formula, inputs, params, true)?;
    check_one_output(formula, "map_rows_all")?;
    Ok(formula::apply_rows_all(formula, inputs, params, axes.into())?.swap_remove(0))
}

/// Applies a user-defined formula with row reductions, and returns every output in the order of the formula; see
/// [`map_rows`].
///
/// ```
/// use pellucid::{formula, ops, Tensor};
/// let x = Tensor::from([[1.0f64, 3.0], [2.0, 2.0]]);
/// let outputs = ops::map_rows_all(formula!(|x| (x.row_sum(), x - x.row_mean())), &[&x], &[], -1)?;
/// assert_eq!(outputs[0].to_vec::<f64>(), [4.0, 4.0]);
/// assert_eq!(outputs[1].to_vec::<f64>(), [-1.0, 1.0, 0.0, 0.0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of [`map_rows`], except the error for several outputs.
#[operation(transparent)]
pub fn map_rows_all(
    formula: &Formula,
    inputs: &[&Tensor],
    params: &[Scalar],
    axes: impl Into<Axes>,
) -> Result<Vec<Tensor>> {
    formula::check_application(formula, inputs, params, true)?;
    formula::apply_rows_all(formula, inputs, params, axes.into())
}

/// Returns an error that names the function `multiple_output_fn` if the formula has several outputs.
fn check_one_output(formula: &Formula, multiple_output_fn: &str) -> Result<()> {
    match formula.outputs().len() {
        1 => Ok(()),
        outputs => {
            let reason = format!("the formula has {outputs} outputs; {multiple_output_fn}() returns all of them");
            Err(Error::invalid(formula.name(), reason))
        }
    }
}
