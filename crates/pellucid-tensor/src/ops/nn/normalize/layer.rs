//! Layer normalization and root-mean-square normalization, over the last axes.

use super::{score, standardized};
use crate::ops::call::axes::check_reduction_rank;
use crate::ops::call::check;
use crate::ops::formula::apply_rows;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::AxisSet;
use pellucid_ir::{Error, Result, Shape};

/// Returns the last axes of x, which must have the normalized shape. Weight and bias must have this shape too.
fn normalized_axes(op: &'static str, x: &Tensor, shape: &Shape, others: &[Option<&Tensor>]) -> Result<AxisSet> {
    let first = x.rank().checked_sub(shape.rank()).filter(|&l| x.shape()[l..] == shape[..] && shape.rank() > 0);
    let Some(first) = first else {
        let help = format!("the normalized shape {shape} must be the last axes of x, {}", x.shape());
        return Err(Error::shapes(op, [x.shape(), shape], help));
    };
    if let Some(other) = others.iter().flatten().find(|t| t.shape() != shape) {
        let help = "weight and bias must have the normalized shape";
        return Err(Error::shapes(op, [x.shape(), shape, other.shape()], help));
    }
    check::floats(op, &[x])?;
    check_reduction_rank(op, x.shape())?;
    Ok((first..x.rank()).collect())
}

/// Applies layer normalization (Ba, Kiros & Hinton 2016) over the last axes, of shape `shape`:
/// (x − mean) / √(var + eps)·weight + bias, with the biased variance.
///
/// x is `[.., shape]`; weight and bias, if given, have shape `shape`.
///
/// The squares (x − mean)² are scaled. For eps ≥ 1e-27 and rows of n elements, the quotients are accurate up to a
/// magnitude of about 2.9e20/√n in `f32` and half precision, and 1.4e163/√n in `f64`; for larger elements they are 0.
/// For eps = 0 they are accurate over the full range on the CPU. For any other eps (0 on a GPU, below 1e-27, or
/// negative), the sum of the unscaled squares must be representable. For eps > 0 the result is NaN if the sum of x
/// overflows.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] for an eps that is
/// not finite.
#[tensor_method]
pub fn layer_norm(
    x: &Tensor,
    shape: impl Into<Shape>,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let axes = normalized_axes("layer_norm", x, &shape.into(), &[weight, bias])?;
    check::finite("layer_norm", "eps", eps)?;
    standardized(x, weight, bias, eps, axes)
}

/// Applies root-mean-square normalization (Zhang & Sennrich 2019) over the last axes, of shape `shape`:
/// x / √(mean(x²) + eps)·weight.
///
/// x is `[.., shape]`; the weight, if given, has shape `shape`. [`layer_norm`] documents the range of x.
///
/// # Errors
/// The errors of [`layer_norm`].
#[tensor_method(autocast = Single)]
pub fn rms_norm(x: &Tensor, shape: impl Into<Shape>, weight: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    let axes = normalized_axes("rms_norm", x, &shape.into(), &[weight])?;
    check::finite("rms_norm", "eps", eps)?;
    let params = score::params(x, eps);
    match weight {
        None => apply_rows(score::unit_rms(x, eps), &[x], &params, axes),
        Some(w) => apply_rows(score::unit_rms_with_weight(x, eps), &[x, w], &params, axes),
    }
}
