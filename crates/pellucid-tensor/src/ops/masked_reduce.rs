//! Reductions of the elements that a mask leaves.
//!
//! One mechanism: an element where the mask is false becomes the number that does not count, 0 in a sum, 1 in a product, −∞ in a maximum. Whatever it
//! was, NaN too, its gradient is zero. Means and variances divide by the number of elements that are left.

use super::axes::{Axes, over};
use super::scatter_reduce::{ScatterReduceOp, neutral};
use crate::ops;
use crate::ops::precision::in_single;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result, Scalar};

/// x where the mask is true, else the number.
fn left(op: &'static str, x: &Tensor, mask: &Tensor, number: Scalar) -> Result<Tensor> {
    if mask.dtype() != DType::Bool {
        return Err(Error::dtypes(op, [mask.dtype()], "the mask is a bool tensor; compare with ne(0)"));
    }
    if x.shape().broadcast(mask.shape()).as_ref() != Some(x.shape()) {
        return Err(Error::shapes(op, [x.shape(), mask.shape()], "the mask must broadcast to the tensor's shape"));
    }
    ops::where_(mask, x, &ops::full((), number, x.dtype())?)
}

/// How many elements the mask leaves, in the dtype of x.
fn count(x: &Tensor, mask: &Tensor, axes: Axes) -> Result<Tensor> {
    ops::to_dtype(&ops::sum(&ops::broadcast_to(mask, x.shape())?, axes)?, x.dtype())
}

macro_rules! masked {
    ($($name:ident: $op:ident, $meeting:ident, $what:literal;)*) => {$(
        #[doc = concat!($what, " of the elements where the mask, which broadcasts to x's shape, is true: [`ops::", stringify!($op), "`] without the")]
        /// others, whose gradient is zero.
        ///
        /// # Errors
        /// [`Error::DTypeMismatch`] if the mask is not of dtype bool; [`Error::ShapeMismatch`] if it does not broadcast to x's shape; and
        #[doc = concat!("those of [`ops::", stringify!($op), "`].")]
        #[tensor_method]
        pub fn $name(x: &Tensor, mask: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
            ops::$op(&left(stringify!($name), x, mask, neutral(ScatterReduceOp::$meeting, x.dtype()))?, axes)
        }
    )*};
}

masked! {
    masked_sum: sum, Sum, "The sum over axes (0 of none)";
    masked_prod: prod, Prod, "The product over axes (1 of none)";
    masked_max: max, Max, "The largest over axes (the least number of the dtype, −∞ of floats, of none)";
    masked_min: min, Min, "The smallest over axes (the greatest number of the dtype, ∞ of floats, of none)";
    masked_argmax: argmax, Max, "The position of the largest over axes, counted among all elements (0 of none),";
    masked_argmin: argmin, Min, "The position of the smallest over axes, counted among all elements (0 of none),";
    masked_logsumexp: logsumexp, Max, "ln Σ exp x over axes (−∞ of none)";
    masked_softmax: softmax, Max, "The softmax over axes, 0 elsewhere (NaN in a row of none),";
    masked_log_softmax: log_softmax, Max, "The logarithm of the softmax over axes, −∞ elsewhere (NaN in a row of none),";
    masked_softmin: softmin, Min, "The softmax of −x over axes, 0 elsewhere (NaN in a row of none),";
    masked_cumsum: cumsum, Sum, "The running sum along an axis";
    masked_cumprod: cumprod, Prod, "The running product along an axis";
}

/// The mean over axes of the elements where the mask is true, NaN of none. Integers give `f32`.
///
/// ```
/// use pellucid_tensor::{Tensor, ops};
/// let (x, mask) = (Tensor::from([1.0, 2.0, f64::NAN]), Tensor::from([true, true, false]));
/// assert_eq!(ops::masked_mean(&x, &mask, ..)?.item::<f64>(), 1.5);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::DTypeMismatch`] if the mask is not of dtype bool; [`Error::ShapeMismatch`] if it does not broadcast to x's shape;
/// [`Error::AxisOutOfRange`].
#[tensor_method]
pub fn masked_mean(x: &Tensor, mask: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    let axes = axes.into();
    in_single!("masked_mean", [x] => masked_mean(x, mask, axes));
    let x = if x.dtype().is_float() { x.clone() } else { ops::to_dtype(x, DType::F32)? };
    let total = ops::sum(&left("masked_mean", &x, mask, 0.into())?, axes.clone())?;
    ops::div(&total, &count(&x, mask, axes)?)
}

/// The variance over axes of the N elements where the mask is true, Σ (x − mean)² / (N − ddof), as [`var`](ops::var) has it: NaN of
/// none.
///
/// # Errors
/// Those of [`masked_mean`]; [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn masked_var(x: &Tensor, mask: &Tensor, axes: impl Into<Axes>) -> Result<Tensor> {
    moments("masked_var", x, mask, axes.into())
}

/// The standard deviation over axes of the elements where the mask is true: the root of [`masked_var`].
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
    floats(op, x)?;
    in_single!(op, [x] => moments(op, x, mask, axes));
    let (resolved, ddof) = axes.resolve_moments(op, x.shape())?;
    let kept = over(resolved.set.iter().map(|axis| axis as isize).collect::<Vec<_>>()).keepdims();
    let numbers = count(x, mask, kept.clone())?;
    let mean = ops::div(&ops::sum(&left(op, x, mask, 0.into())?, kept.clone())?, &numbers)?;
    let total = ops::sum(&ops::square(&left(op, &ops::sub(x, &mean)?, mask, 0.into())?)?, kept)?;
    let variance = ops::div(&total, &ops::maximum(&ops::sub(&numbers, ddof as f64)?, 0.0)?)?;
    ops::reshape_to(&variance, &resolved.shape(x.shape()))
}

fn floats(op: &'static str, x: &Tensor) -> Result<()> {
    match x.dtype().is_float() {
        true => Ok(()),
        false => Err(Error::dtypes(op, [x.dtype()], "takes floats; use to_dtype()")),
    }
}

/// The median over axes of the elements where the mask is true, and its `i64` position among all: of an even number the lower of the two
/// in the middle, NaN of none. As in [`nanmedian`](ops::nanmedian), NaN does not count.
///
/// # Errors
/// Those of [`masked_mean`]; [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] over zero elements.
#[tensor_method]
pub fn masked_median(x: &Tensor, mask: &Tensor, axes: impl Into<Axes>) -> Result<(Tensor, Tensor)> {
    floats("masked_median", x)?;
    ops::nanmedian(&left("masked_median", x, mask, f64::NAN.into())?, axes)
}

/// The p-norm over axes of the elements where the mask is true, as [`norm`](ops::norm) has it; 0 of none, or ∞ for p < 0.
///
/// # Errors
/// Those of [`masked_mean`]; [`Error::DTypeMismatch`] for integers.
#[tensor_method]
pub fn masked_norm(x: &Tensor, mask: &Tensor, p: f64, axes: impl Into<Axes>) -> Result<Tensor> {
    floats("masked_norm", x)?;
    let number = if p < 0.0 { f64::INFINITY } else { 0.0 };
    ops::norm(&left("masked_norm", x, mask, number.into())?, p, axes)
}

/// x / max(‖x‖_p, ε) along an axis, where the norm is that of the elements where the mask is true; 0 elsewhere.
///
/// # Errors
/// Those of [`masked_norm`].
#[tensor_method]
pub fn masked_normalize(x: &Tensor, mask: &Tensor, p: f64, axis: isize, eps: f64) -> Result<Tensor> {
    in_single!("masked_normalize", [x] => masked_normalize(x, mask, p, axis, eps));
    let length = masked_norm(x, mask, p, over(axis).keepdims())?;
    ops::div(&left("masked_normalize", x, mask, 0.into())?, &ops::maximum(&length, eps)?)
}
