//! Reductions over the elements where a mask is true.
//!
//! The identity of the reduction replaces elements where the mask is false: 0 in a sum, 1 in a product, −∞ in a
//! maximum. The gradient of the replaced elements is zero, even if they are NaN. Means and variances divide by the
//! number of selected elements.

use crate::ops::call::axes::{Axes, over};
use crate::ops::call::check;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::kernel_reduction::extremum_where;
use crate::ops::formula::over_axes::{as_float, over_axes};
use crate::ops::formula::{broadcast, full_range, map};
use crate::ops::index::scatter_reduce::{ScatterReduceOp, reduction_identity};
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::{copy, fill, view};
use crate::ops::reduce::{reductions, scan, softmax, value_range};
use crate::ops::statistics::quantile;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::{AxisSet, ReduceOp};
use pellucid_ir::{Error, Result, Scalar, Shape, formula};

/// Returns x where the mask is true, else `replacement`.
fn masked_or(op: &'static str, x: &Tensor, mask: &Tensor, replacement: Scalar) -> Result<Tensor> {
    check_mask(op, x, mask)?;
    arithmetic::where_(mask, x, &fill::full((), replacement, x.dtype())?)
}

fn check_mask(op: &'static str, x: &Tensor, mask: &Tensor) -> Result<()> {
    check::mask_dtype(op, mask)?;
    if !mask.shape().broadcasts_to(x.shape()) {
        return Err(Error::shapes(op, [x.shape(), mask.shape()], "the mask must broadcast to the tensor's shape"));
    }
    Ok(())
}

/// Counts the elements that the mask selects, in the dtype of x.
fn count(x: &Tensor, mask: &Tensor, axes: Axes) -> Result<Tensor> {
    copy::to_dtype(&reductions::sum(&broadcast::broadcast_to(mask, x.shape())?, axes)?, x.dtype())
}

/// Defines masked operations by the operations without a mask: the identity of the reduction replaces the elements
/// where the mask is false.
macro_rules! masked {
    ($($(#[$doc:meta])* $name:ident = $module:ident::$op:ident, neutral $neutral:ident;)*) => {
        over_axes! {
            errors = "[`Error::DTypeMismatch`] if the mask does not have dtype bool; [`Error::ShapeMismatch`] if it does \
                      not broadcast to x's shape; the errors of the operation without a mask.";
            $(
                $(#[$doc])*
                ///
                /// The mask broadcasts to x's shape. The gradient of the elements that are not selected is zero.
                $name(x, mask: &Tensor; axes) = {
                    let identity = reduction_identity(ScatterReduceOp::$neutral, x.dtype());
                    $module::$op(&masked_or(stringify!($name), x, mask, identity)?, axes)
                };
            )*
        }
    };
}

masked! {
    /// Computes the sum over axes of the elements where the mask is true; 0 if there are none.
    masked_sum = reductions::sum, neutral Sum;
    /// Computes the product over axes of the elements where the mask is true; 1 if there are none.
    masked_prod = reductions::prod, neutral Prod;
    /// Computes ln Σ exp x over axes, for the elements where the mask is true; −∞ if there are none.
    masked_logsumexp = reductions::logsumexp, neutral Max;
    /// Computes the softmax over axes where the mask is true, and 0 where it is false; NaN if it is false everywhere.
    masked_softmax = softmax::softmax, neutral Max;
    /// Computes the logarithm of [`masked_softmax`]; −∞ where the mask is false.
    masked_log_softmax = softmax::log_softmax, neutral Max;
    /// Computes the masked softmax of −x over axes; see [`masked_softmax`].
    masked_softmin = softmax::softmin, neutral Min;
    /// Computes the cumulative sum along an axis. Elements where the mask is false count as 0.
    masked_cumsum = scan::cumsum, neutral Sum;
    /// Computes the cumulative product along an axis. Elements where the mask is false count as 1.
    masked_cumprod = scan::cumprod, neutral Prod;
}

over_axes! {
    errors = "[`Error::DTypeMismatch`] if the mask does not have dtype bool; [`Error::ShapeMismatch`] if it does not \
              broadcast to x's shape; [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] if there are no elements.";

    /// Returns the largest element over axes where the mask is true; if there are none, the smallest value of the
    /// dtype.
    ///
    /// The mask broadcasts to x's shape. The gradient of the elements that are not selected is zero.
    masked_max(x, mask: &Tensor; axes) = masked_extremum("masked_max", ReduceOp::Max, x, mask, axes.into());
    /// Returns the smallest element over axes where the mask is true; if there are none, the greatest value of the
    /// dtype.
    ///
    /// The mask broadcasts to x's shape. The gradient of the elements that are not selected is zero.
    masked_min(x, mask: &Tensor; axes) = masked_extremum("masked_min", ReduceOp::Min, x, mask, axes.into());
    /// Returns the index (`i64`), among all elements, of the first maximum over axes where the mask is true. If an
    /// element where the mask is true is NaN, returns the index of the first such element. Returns 0 if the mask is
    /// false everywhere.
    masked_argmax(x, mask: &Tensor; axes) = position(x, mask, axes, masked_max);
    /// Returns the index (`i64`), among all elements, of the first minimum over axes where the mask is true. If an
    /// element where the mask is true is NaN, returns the index of the first such element. Returns 0 if the mask is
    /// false everywhere.
    masked_argmin(x, mask: &Tensor; axes) = position(x, mask, axes, masked_min);
}

over_axes! {
    errors = "[`Error::DTypeMismatch`] if the mask does not have dtype bool; [`Error::ShapeMismatch`] if it does not \
              broadcast to x's shape; [`Error::AxisOutOfRange`].";

    /// Computes the mean over axes of the elements where the mask is true; NaN if there are none. The result of
    /// integers is `f32`.
    ///
    /// ```
    /// use pellucid::{Tensor, ops};
    /// let (x, mask) = (Tensor::from([1.0, 2.0, f64::NAN]), Tensor::from([true, true, false]));
    /// assert_eq!(ops::masked_mean(&x, &mask, ..)?.item::<f64>(), 1.5);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    masked_mean(x, mask: &Tensor; axes) = {
        in_single!("masked_mean", [x] => masked_mean(x, mask, axes));
        let x = &as_float(x)?;
        let total = reductions::sum(&masked_or("masked_mean", x, mask, 0.into())?, axes.clone())?;
        arithmetic::div(&total, &count(x, mask, axes)?)
    }, autocast = Single;
}

over_axes! {
    errors = "The errors of [`masked_mean`]; [`Error::DTypeMismatch`] for integers.";

    /// Computes the variance over axes of the N elements where the mask is true, Σ (x − mean)² / (N − ddof); NaN
    /// if there are none.
    ///
    /// [`var`](crate::ops::var) documents the options. On the CPU, squares and sums that overflow or underflow are
    /// scaled. The differences x − mean must be representable.
    masked_var(x: floats, mask: &Tensor; axes) = {
        in_single!("masked_var", [x] => masked_var(x, mask, axes));
        let Deviations { values, axes, free, shape } = deviations("masked_var", x, mask, axes.into())?;
        view::reshape_to(&full_range::mean_square_of(&values, &free, axes)?, &shape)
    }, autocast = Single;
    /// Computes the standard deviation over axes of the elements where the mask is true, the square root of
    /// [`masked_var`]. The derivative for equal elements is 0.
    masked_std(x: floats, mask: &Tensor; axes) = {
        in_single!("masked_std", [x] => masked_std(x, mask, axes));
        let Deviations { values, axes, free, shape } = deviations("masked_std", x, mask, axes.into())?;
        view::reshape_to(&arithmetic::div(&full_range::norm(&values, 2.0, axes)?, &arithmetic::sqrt(&free)?)?, &shape)
    }, autocast = Single;
    /// Returns the median over axes of the elements where the mask is true, and its `i64` index among all elements.
    ///
    /// For an even count it is the lower of the two middle elements; if the mask selects no element, it is NaN. NaN
    /// elements are ignored, as in [`nanmedian`](crate::ops::nanmedian). An axis without elements has no median:
    /// [`Error::InvalidArgument`].
    masked_median(x: floats, mask: &Tensor; axes) -> (Tensor, Tensor) =
        quantile::nanmedian(&masked_or("masked_median", x, mask, f64::NAN.into())?, axes);
    /// Computes the p-norm over axes of the elements where the mask is true (see [`norm`](crate::ops::norm)). If there
    /// are none, the norm is 0, or ∞ if p < 0.
    masked_norm(x: floats, mask: &Tensor, p: f64; axes) = match p {
        f64::NEG_INFINITY => masked_min(&arithmetic::abs(x)?, mask, axes),
        _ => {
            let identity = if p < 0.0 { f64::INFINITY } else { 0.0 };
            reductions::norm(&masked_or("masked_norm", x, mask, identity.into())?, p, axes)
        }
    };
}

/// Computes an extremum of the elements where the mask is true. The mask broadcasts to x's shape.
pub(super) fn masked_extremum(
    name: &'static str,
    op: ReduceOp,
    x: &Tensor,
    mask: &Tensor,
    axes: Axes,
) -> Result<Tensor> {
    let reduce = if op == ReduceOp::Max { ScatterReduceOp::Max } else { ScatterReduceOp::Min };
    let selected = masked_or(name, x, mask, reduction_identity(reduce, x.dtype()))?;
    extremum_where(name, op, &selected, &broadcast::broadcast_to(mask, x.shape())?, axes)
}

/// Returns the position of the first selected element that equals the extremum. An element where the mask is false is
/// not selected, even if it equals the identity.
fn position(
    x: &Tensor,
    mask: &Tensor,
    axes: Axes,
    extremum: fn(&Tensor, &Tensor, Axes) -> Result<Tensor>,
) -> Result<Tensor> {
    let x = x.detach();
    let best = extremum(&x, mask, axes.clone().keepdims())?;
    // If the extremum is NaN, it equals no element, so NaN elements are included.
    let is_best = match x.dtype().is_float() {
        true => map(formula! { static is_extremum(x, best) = x.eq(best) | x.ne(x); }, &[&x, &best], &[])?,
        false => compare::eq(&x, &best)?,
    };
    reductions::argmax(&compare::logical_and(&is_best, mask)?, axes)
}

/// The deviations of elements from the mean of their row.
struct Deviations {
    /// x − mean where the mask is true, else 0.
    values: Tensor,
    /// The axes of a row.
    axes: AxisSet,
    /// N − ddof of each row. The variance times this number is the sum of squares.
    free: Tensor,
    /// The shape of the variance.
    shape: Shape,
}

fn deviations(op: &'static str, x: &Tensor, mask: &Tensor, axes: Axes) -> Result<Deviations> {
    check_mask(op, x, mask)?;
    let (resolved, ddof) = axes.resolve_moments(op, x.shape())?;
    let kept_axes = over(resolved.set.iter().map(|axis| axis as isize).collect::<Vec<_>>()).keepdims();
    let counts = count(x, mask, kept_axes)?;
    let mut mean = full_range::masked_mean(x, mask, &counts, resolved.set)?;
    let free = arithmetic::maximum(&arithmetic::sub(&counts, ddof as f64)?, 0.0)?;
    if ddof > 0 {
        // If N is at most 1 and at most ddof, the estimate is 0/0, and its derivative must be NaN. But the derivative
        // of the norm of a zero vector is 0, so the mean is replaced by NaN.
        mean = value_range::nan_unless(
            &compare::gt(&arithmetic::maximum(&free, &arithmetic::sub(&counts, 1.0)?)?, 0.0)?,
            &mean,
        )?;
    }
    let values = masked_or(op, &arithmetic::sub(x, &mean)?, mask, 0.into())?;
    Ok(Deviations { values, axes: resolved.set, free, shape: resolved.shape(x.shape()) })
}

/// Normalizes x along an axis by the norm of the elements where the mask is true, x / max(‖x‖_p, ε); 0 elsewhere.
///
/// # Errors
/// The errors of [`masked_norm`]; [`Error::InvalidArgument`] for an ε that is not finite.
#[tensor_method(autocast = Single)]
pub fn masked_normalize(x: &Tensor, mask: &Tensor, p: f64, axis: isize, eps: f64) -> Result<Tensor> {
    check::finite("masked_normalize", "eps", eps)?;
    in_single!("masked_normalize", [x] => masked_normalize(x, mask, p, axis, eps));
    let length = masked_norm(x, mask, p, over(axis).keepdims())?;
    arithmetic::div(&masked_or("masked_normalize", x, mask, 0.into())?, &arithmetic::maximum(&length, eps)?)
}
