//! Reductions over the elements that are not NaN. Integers have no NaN, so they are reduced by the operation without
//! the prefix `nan`.

use crate::ops::call::axes::Axes;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::kernel_reduction::by_kernel;
use crate::ops::formula::over_axes::over_axes;
use crate::ops::index::masked;
use crate::ops::reduce::{reductions, scan};
use crate::ops::statistics::masked_reduce;
use crate::tensor::Tensor;
use pellucid_ir::Result;
use pellucid_ir::kernel::ReduceOp;

over_axes! {
    errors = "[`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange); \
              [`Error::InvalidArgument`](crate::Error::InvalidArgument) if there are no elements.";

    /// Returns the largest element over `axes` that is not NaN; NaN if all are NaN. Equal maxima share the gradient
    /// evenly.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// let x = Tensor::from([[1.0, f64::NAN], [3.0, 2.0]]);
    /// assert_eq!(x.nanmax(1).to_vec::<f64>(), [1.0, 3.0]);
    /// ```
    nanmax(x; axes) = extremum("nanmax", ReduceOp::Max, x, axes);
    /// Returns the smallest element over `axes` that is not NaN; NaN if all are NaN. Equal minima share the gradient
    /// evenly.
    nanmin(x; axes) = extremum("nanmin", ReduceOp::Min, x, axes);
    /// Returns the index (`i64`) of the first maximum over `axes` that is not NaN, in row-major order. If all elements
    /// are NaN it is 0; NumPy raises an error.
    nanargmax(x; axes) = position(x, axes, masked_reduce::masked_argmax, |x, axes| reductions::argmax(x, axes));
    /// Returns the index (`i64`) of the first minimum over `axes` that is not NaN, in row-major order. If all elements
    /// are NaN it is 0; NumPy raises an error.
    nanargmin(x; axes) = position(x, axes, masked_reduce::masked_argmin, |x, axes| reductions::argmin(x, axes));
}

over_axes! {
    errors = "[`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange); for cumulative operations, \
              [`Error::InvalidArgument`](crate::Error::InvalidArgument) for several axes.";

    /// Computes the product over `axes` of the elements that are not NaN; 1 if all are NaN.
    nanprod(x; axes) = reductions::prod(&without_nan(x, 1)?, axes), autocast = Single;
    /// Computes the cumulative sum along an axis, or (`..`) over all elements, with NaN as 0.
    nancumsum(x; axis) = scan::cumsum(&without_nan(x, 0)?, axis), autocast = Single;
    /// Computes the cumulative product along an axis, or (`..`) over all elements, with NaN as 1.
    nancumprod(x; axis) = scan::cumprod(&without_nan(x, 1)?, axis), autocast = Single;
}

over_axes! {
    errors = "[`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange); \
              [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) for integers.";

    /// Computes the variance over `axes` of the N elements that are not NaN, Σ (x − mean)² / (N − ddof); NaN if all are
    /// NaN.
    ///
    /// [`var`](crate::ops::var) documents the options.
    nanvar(x: floats; axes) =
        masked_reduce::masked_var(x, &compare::logical_not(&compare::isnan(x)?)?, axes), autocast = Single;
    /// Computes the standard deviation over `axes` of the elements that are not NaN, the square root of [`nanvar`].
    nanstd(x: floats; axes) =
        masked_reduce::masked_std(x, &compare::logical_not(&compare::isnan(x)?)?, axes), autocast = Single;
}

type ReductionFn = fn(&Tensor, Axes) -> Result<Tensor>;

/// Replaces NaN by `number`.
fn without_nan(x: &Tensor, number: i64) -> Result<Tensor> {
    if x.dtype().is_float() { masked::masked_fill(x, &compare::isnan(x)?, number) } else { Ok(x.clone()) }
}

/// Computes an extremum of the elements that are not NaN.
fn extremum(name: &'static str, op: ReduceOp, x: &Tensor, axes: Axes) -> Result<Tensor> {
    if !x.dtype().is_float() {
        return by_kernel(name, op, x, axes);
    }
    let nan = compare::isnan(x)?;
    let y = masked_reduce::masked_extremum(name, op, x, &compare::logical_not(&nan)?, axes.clone())?;
    arithmetic::where_(&reductions::all(&nan, axes)?, f64::NAN, &y)
}

/// Returns the first position of an extremum among the elements that are not NaN.
fn position(
    x: &Tensor,
    axes: Axes,
    masked: fn(&Tensor, &Tensor, Axes) -> Result<Tensor>,
    integer_position: ReductionFn,
) -> Result<Tensor> {
    match x.dtype().is_float() {
        true => masked(x, &compare::logical_not(&compare::isnan(x)?)?, axes),
        false => integer_position(x, axes),
    }
}
