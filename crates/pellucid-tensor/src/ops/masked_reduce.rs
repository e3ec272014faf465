//! Reductions over the elements where a mask is true.
//!
//! Elements where the mask is false are replaced by the neutral element: 0 in a sum, 1 in a product, −∞ in a maximum.
//! Their gradient is zero, also if they are NaN. Means and variances divide by the number of selected
//! elements.

use super::axes::{Axes, over};
use super::scatter_reduce::{ScatterReduceOp, neutral};
use crate::ops;
use crate::ops::check;
use crate::ops::precision::in_single;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result, Scalar};

/// Returns x where the mask is true, else `number`.
fn masked_or(op: &'static str, x: &Tensor, mask: &Tensor, number: Scalar) -> Result<Tensor> {
    if mask.dtype() != DType::Bool {
        return Err(Error::dtypes(op, [mask.dtype()], "the mask must be a bool tensor; compare with ne(0)"));
    }
    if x.shape().broadcast(mask.shape()).as_ref() != Some(x.shape()) {
        return Err(Error::shapes(op, [x.shape(), mask.shape()], "the mask must broadcast to the tensor's shape"));
    }
    ops::where_(mask, x, &ops::full((), number, x.dtype())?)
}

/// Counts the elements that the mask selects, in the dtype of x.
fn count(x: &Tensor, mask: &Tensor, axes: Axes) -> Result<Tensor> {
    ops::to_dtype(&ops::sum(&ops::broadcast_to(mask, x.shape())?, axes)?, x.dtype())
}

macro_rules! masked {
    ($($name:ident: $op:ident, $reduction:ident, $summary:literal;)*) => {$(
        #[doc = $summary]
        ///
        /// The mask broadcasts to x's shape. The gradient of the other elements is zero.
        ///
        /// # Errors
        /// [`Error::DTypeMismatch`] if the mask does not have dtype bool; [`Error::ShapeMismatch`] if it does not
        /// broadcast to x's shape;
        #[doc = concat!("those of [`ops::", stringify!($op), "`].")]
        #[tensor_method]
        pub fn $name(x: &Tensor, mask: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
            ops::$op(&masked_or(stringify!($name), x, mask, neutral(ScatterReduceOp::$reduction, x.dtype()))?, axes)
        }
    )*};
}

masked! {
    masked_sum: sum, Sum, "Computes the sum over axes of the elements where the mask is true; 0 of none.";
    masked_prod: prod, Prod, "Computes the product over axes of the elements where the mask is true; 1 of none.";
    masked_max: max, Max, "Returns the largest element over axes where the mask is true; of none the least value.";
    masked_min: min, Min, "Returns the smallest element over axes where the mask is true; of none the greatest value.";
    masked_argmax: argmax, Max, "Returns the index of the maximum over axes where the mask is true; 0 of none.";
    masked_argmin: argmin, Min, "Returns the index of the minimum over axes where the mask is true; 0 of none.";
    masked_logsumexp: logsumexp, Max, "Computes ln Σ exp x over axes, where the mask is true; −∞ of none.";
    masked_softmax: softmax, Max, "Computes the softmax over axes where the mask is true; 0 elsewhere, NaN for none.";
    masked_log_softmax: log_softmax, Max, "Computes the logarithm of [`masked_softmax`]; −∞ where the mask is false.";
    masked_softmin: softmin, Min, "Computes the masked softmax of −x over axes; see [`masked_softmax`].";
    masked_cumsum: cumsum, Sum, "Computes the cumulative sum along an axis, where the mask is true.";
    masked_cumprod: cumprod, Prod, "Computes the cumulative product along an axis, where the mask is true.";
}

/// Computes the mean over axes of the elements where the mask is true; NaN of none. Integers give `f32`.
///
/// ```
/// use pellucid_tensor::{Tensor, ops};
/// let (x, mask) = (Tensor::from([1.0, 2.0, f64::NAN]), Tensor::from([true, true, false]));
/// assert_eq!(ops::masked_mean(&x, &mask, ..)?.item::<f64>(), 1.5);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::DTypeMismatch`] if the mask does not have dtype bool; [`Error::ShapeMismatch`] if it does not broadcast to
/// x's shape; [`Error::AxisOutOfRange`].
#[tensor_method]
pub fn masked_mean(x: &Tensor, mask: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    let axes = axes.into();
    in_single!("masked_mean", [x] => masked_mean(x, mask, axes));
    let x = if x.dtype().is_float() { x.clone() } else { ops::to_dtype(x, DType::F32)? };
    let total = ops::sum(&masked_or("masked_mean", &x, mask, 0.into())?, axes.clone())?;
    ops::div(&total, &count(&x, mask, axes)?)
}

/// Computes the variance over axes of the N elements where the mask is true, Σ (x − mean)² / (N − ddof); NaN of none.
///
/// Options are those of [`var`](ops::var).
///
/// # Errors
/// Those of [`masked_mean`]; [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn masked_var(x: &Tensor, mask: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    moments("masked_var", x, mask, axes.into())
}

/// Computes the standard deviation over axes of the elements where the mask is true, the square root of [`masked_var`].
///
/// # Errors
/// Those of [`masked_var`].
#[tensor_method]
pub fn masked_std(x: &Tensor, mask: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    let axes = axes.into();
    in_single!("masked_std", [x] => masked_std(x, mask, axes));
    ops::sqrt(&moments("masked_std", x, mask, axes)?)
}

fn moments(op: &'static str, x: &Tensor, mask: &Tensor, axes: Axes) -> Result<Tensor> {
    check_float(op, x)?;
    in_single!(op, [x] => moments(op, x, mask, axes));
    let (resolved, ddof) = axes.resolve_moments(op, x.shape())?;
    let kept = over(resolved.set.iter().map(|axis| axis as isize).collect::<Vec<_>>()).keepdims();
    let numbers = count(x, mask, kept.clone())?;
    let mean = ops::div(&ops::sum(&masked_or(op, x, mask, 0.into())?, kept.clone())?, &numbers)?;
    let total = ops::sum(&ops::square(&masked_or(op, &ops::sub(x, &mean)?, mask, 0.into())?)?, kept)?;
    let variance = ops::div(&total, &ops::maximum(&ops::sub(&numbers, ddof as f64)?, 0.0)?)?;
    ops::reshape_to(&variance, &resolved.shape(x.shape()))
}

fn check_float(op: &'static str, x: &Tensor) -> Result<()> {
    match x.dtype().is_float() {
        true => Ok(()),
        false => Err(Error::dtypes(op, [x.dtype()], "takes floats; use to_dtype()")),
    }
}

/// Returns the median over axes of the elements where the mask is true, and its `i64` index among all elements.
///
/// For an even number it is the lower of the two middle elements; NaN of none. NaN is ignored, as in
/// [`nanmedian`](ops::nanmedian).
///
/// # Errors
/// Those of [`masked_mean`]; [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] over zero elements.
#[tensor_method]
pub fn masked_median(x: &Tensor, mask: &Tensor, axes: impl Into<Axes>) -> Result<(Tensor, Tensor)> {
    check_float("masked_median", x)?;
    ops::nanmedian(&masked_or("masked_median", x, mask, f64::NAN.into())?, axes)
}

/// Computes the p-norm over axes of the elements where the mask is true (see [`norm`](ops::norm)); 0 of none, ∞ if p <
/// 0.
///
/// # Errors
/// Those of [`masked_mean`]; [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn masked_norm(x: &Tensor, mask: &Tensor, p: f64, axes: impl Into<Axes>) -> Result<Tensor> {
    check_float("masked_norm", x)?;
    let number = if p < 0.0 { f64::INFINITY } else { 0.0 };
    ops::norm(&masked_or("masked_norm", x, mask, number.into())?, p, axes)
}

/// Normalises x along an axis by the norm of the elements where the mask is true, x / max(‖x‖_p, ε); 0 elsewhere.
///
/// # Errors
/// Those of [`masked_norm`]; [`Error::InvalidArgument`] for an ε that is not finite.
#[tensor_method]
pub fn masked_normalize(x: &Tensor, mask: &Tensor, p: f64, axis: isize, eps: f64) -> Result<Tensor> {
    check::finite("masked_normalize", "eps", eps)?;
    in_single!("masked_normalize", [x] => masked_normalize(x, mask, p, axis, eps));
    let length = masked_norm(x, mask, p, over(axis).keepdims())?;
    ops::div(&masked_or("masked_normalize", x, mask, 0.into())?, &ops::maximum(&length, eps)?)
}
