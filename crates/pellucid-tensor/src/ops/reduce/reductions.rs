//! Reductions over axes.
//!
//! The order of accumulation depends only on the shape and the axes. On one device, the results are bit-identical for
//! any layout and any number of threads.

use crate::autograd::{apply_one, interface::*};
use crate::ops::call::axes::Axes;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::kernel_reduction::{accumulator, by_kernel, identity_formula, run_reduction};
use crate::ops::formula::over_axes::{over_axes, row_formula};
use crate::ops::formula::{broadcast, full_range, map_sum};
use crate::ops::primitive::concatenate::{self, concatenate};
use crate::ops::primitive::precision::{in_single, round_to_operands, widened_dtype};
use crate::ops::primitive::via_definition::via_definition;
use crate::ops::primitive::view::reshape_to;
use crate::ops::primitive::{copy, fill, precision, view};
use crate::tensor::Tensor;
use pellucid_ir::formula::Formula;
use pellucid_ir::kernel::{AxisSet, ReduceOp};
use pellucid_ir::{DType, Result, formula};

over_axes! {
    errors = "[`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange).";

    /// Computes the sum over `axes`.
    ///
    /// Integers and booleans sum in `i64`; `f16` and `bf16` accumulate in `f32`. The gradient of every element is the
    /// incoming gradient.
    sum(x; axes) = sum_formula(identity_formula(), x, &axes, None), autocast = Single;
    /// Computes the product over `axes`. Integers and booleans multiply in `i64`, wrapping.
    ///
    /// The gradient g·Π_{j≠i} xⱼ is exact where elements are zero, in every order.
    prod(x; axes) = product(&precision::cast_operand("prod", x)?, axes), autocast = Single;
    /// Computes the arithmetic mean over `axes`, Σ x / N. The result of integers is `f32`.
    #[doc(alias = "average")]
    mean(x; axes) = {
        let axes = axes.resolve("mean", x.shape())?;
        let number = widened_dtype(&[x]).unwrap_or(if x.dtype().is_float() { x.dtype() } else { DType::F32 });
        let total = map_sum(identity_formula(), &[x], &[], axes.set, Some(number))?;
        let mean = arithmetic::div(&total, axes.set.count(x.shape()) as f64)?;
        reshape_to(&round_to_operands("mean", &[x], mean)?, &axes.shape(x.shape()))
    }, autocast = Single;
    /// Returns true where at least one element over `axes` is nonzero; false if there are no elements.
    any(x; axes) = by_kernel("any", ReduceOp::Any, x, axes);
    /// Returns true where all elements over `axes` are nonzero; true if there are no elements.
    all(x; axes) = by_kernel("all", ReduceOp::All, x, axes);
    /// Counts the nonzero elements over `axes`, in `i64`.
    count_nonzero(x; axes) = sum(&compare::ne(x, 0)?, axes);
    /// Computes the sum over `axes` of the elements that are not NaN.
    nansum(x; axes) = match x.dtype().is_float() {
        true => sum_formula(formula! { static nansum(x) = x.ne(x).select(0.0, x); }, x, &axes, None),
        false => sum(x, axes),
    }, autocast = Single;
    /// Computes the mean over `axes` of the elements that are not NaN; NaN if all are NaN.
    nanmean(x; axes) = {
        if !x.dtype().is_float() {
            return mean(x, axes);
        }
        in_single!("nanmean", [x] => nanmean(x, axes));
        let count = sum(&compare::logical_not(&compare::isnan(x)?)?, axes.clone())?;
        arithmetic::div(&nansum(x, axes)?, &copy::to_dtype(&count, x.dtype())?)
    }, autocast = Single;
}

over_axes! {
    errors = "[`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange); \
              [`Error::InvalidArgument`](crate::Error::InvalidArgument) if there are no elements.";

    /// Returns the largest element over `axes`; NaN if one is NaN. Equal maxima share the gradient evenly.
    #[doc(alias = "amax")]
    max(x; axes) = by_kernel("max", ReduceOp::Max, x, axes);
    /// Returns the smallest element over `axes`; NaN if one is NaN. Equal minima share the gradient evenly.
    #[doc(alias = "amin")]
    min(x; axes) = by_kernel("min", ReduceOp::Min, x, axes);
    /// Returns the smallest and the largest element over `axes`; NaN if one is NaN. Equal extrema share the gradient
    /// evenly.
    aminmax(x; axes) -> (Tensor, Tensor) = Ok((min(x, axes.clone())?, max(x, axes)?));
    /// Computes the distance from the smallest to the largest element over `axes` (peak to peak); NaN if one is NaN.
    /// Integers wrap. Equal extrema share the gradient evenly.
    ptp(x; axes) = arithmetic::sub(&max(x, axes.clone())?, &min(x, axes)?);
    /// Returns the `i64` index of the first maximum over `axes`, in row-major order over these axes. If an element is
    /// NaN, returns the index of the first NaN.
    argmax(x; axes) = by_kernel("argmax", ReduceOp::ArgMax, x, axes);
    /// Returns the `i64` index of the first minimum over `axes`, in row-major order over these axes. If an element is
    /// NaN, returns the index of the first NaN.
    argmin(x; axes) = by_kernel("argmin", ReduceOp::ArgMin, x, axes);
}

over_axes! {
    errors = "[`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange); \
              [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) for integers.";

    /// Computes the variance over `axes`, Σ (x − mean)² / (N − ddof), in two passes over the row.
    /// `ddof` is 0 unless [`Axes::ddof`] sets it.
    var(x: floats; axes) = moment("var", x, axes, false), autocast = Single;
    /// Computes the standard deviation over `axes`, the square root of [`var`]. The derivative for equal elements is 0,
    /// as in PyTorch.
    std(x: floats; axes) = moment("std", x, axes, true), autocast = Single;
    /// Computes the vector norm of order p over `axes`, (Σ |x|ᵖ)^(1/p).
    ///
    /// For p = ∞ it is the largest |x|, for −∞ the smallest, and for 0 the number of nonzero elements. The derivative
    /// at the zero vector is 0. For p ≤ 1, the derivative with respect to an element of 0 is 0, as in PyTorch.
    #[doc(alias("vector_norm", "linalg_norm"))]
    norm(x: floats, p: f64; axes) = match p {
        f64::INFINITY => max(&arithmetic::abs(x)?, axes),
        f64::NEG_INFINITY => min(&arithmetic::abs(x)?, axes),
        0.0 => sum_formula(formula! { static count(x) = x.eq(0.0).select(0.0, 1.0); }, x, &axes, None),
        1.0 => sum_formula(formula! { static magnitudes(x) = x.abs(); }, x, &axes, None),
        p => power_norm(x, p, &axes),
    }, autocast = Single;
}

row_formula! {
    errors = "[`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange); \
              [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) for integers.";

    /// Computes ln Σ exp x over `axes`, stable for any magnitude of x. The gradient is the softmax.
    ///
    /// If the result is near 0, its error is relative to the largest element, as in PyTorch.
    logsumexp(x: floats; axes) = {
        let m = x.row_max();
        // A maximum of ±∞ must not be subtracted from itself.
        let m = m.is_finite().select(m, 0.0);
        (x - m).exp().row_sum().ln() + m
    }, autocast = Single,
        d x = {
            // For large elements, y is rounded to their precision, and exp(x − y) would not be the softmax.
            let m = x.row_max();
            let e = (x - m.is_finite().select(m, 0.0)).exp();
            g * (e * e.row_sum().recip())
        };
}

/// Computes Σ f(x) over axes in one kernel, in the dtype `accumulation`, by default the accumulator dtype of [`sum`].
fn sum_formula(f: &'static Formula, x: &Tensor, axes: &Axes, accumulation: Option<DType>) -> Result<Tensor> {
    let axes = axes.resolve(f.name(), x.shape())?;
    let sums = map_sum(f, &[x], &[], axes.set, accumulation.or(Some(accumulator(x.dtype()))))?;
    reshape_to(&sums, &axes.shape(x.shape()))
}

/// Computes the variance over axes, or its square root.
fn moment(op: &'static str, x: &Tensor, axes: Axes, is_deviation: bool) -> Result<Tensor> {
    let (axes, ddof) = axes.resolve_moments(op, x.shape())?;
    // For N ≤ ddof the estimate is undefined: the sum is divided by 0, and the result is NaN or infinity, as in NumPy.
    let free = (axes.set.count(x.shape()) as f64 - ddof as f64).max(0.0);
    let moments = match is_deviation {
        true => full_range::deviation(x, free, axes.set)?,
        false => full_range::variance(x, free, axes.set)?,
    };
    reshape_to(&round_to_operands(op, &[x], moments)?, &axes.shape(x.shape()))
}

/// Computes (Σ |x|ᵖ)^(1/p); p is neither 0 nor infinite.
fn power_norm(x: &Tensor, p: f64, axes: &Axes) -> Result<Tensor> {
    let axes = axes.resolve("norm", x.shape())?;
    let norms = full_range::norm(x, p, axes.set)?;
    reshape_to(&round_to_operands("norm", &[x], norms)?, &axes.shape(x.shape()))
}

/// Computes the product over axes.
struct Product {
    axes: AxisSet,
}

impl Product {
    /// Computes products by a tree, like the kernel: each step multiplies one half of the factors by the other half.
    /// The gradients of these multiplications contain no division.
    fn tree(&self, x: &Tensor) -> Result<Tensor> {
        in_single!("prod", [x] => self.tree(x));
        let mut y = x.clone();
        for axis in self.axes.iter() {
            if y.shape()[axis] == 0 {
                return broadcast::broadcast_to(
                    &fill::full_on_device_of(x, (), 1, y.dtype())?,
                    self.axes.keepdims(x.shape()),
                );
            }
            // The axis is moved to the front, so that both halves are contiguous.
            y = copy::contiguous(&view::movedim(&y, [axis], [0])?)?;
            while y.shape()[0] > 1 {
                let (len, half) = (y.shape()[0], y.shape()[0] / 2);
                let parts = concatenate::split(&y, [half, half, len % 2], 0)?;
                let product = arithmetic::mul(&parts[0], &parts[1])?;
                y = if len % 2 == 0 { product } else { concatenate(&[&product, &parts[2]], 0)? };
            }
            y = view::movedim(&y, [0], [axis])?;
        }
        Ok(y)
    }

    fn gradient(&self, x: &Tensor, g: &Tensor) -> Result<Tensor> {
        if x.size() == 0 {
            // The empty product is constant.
            return fill::zeros_like(x);
        }
        Ok(via_definition(&[x], &[g], |x| Ok(vec![self.tree(&x[0])?]))?.swap_remove(0))
    }
}

impl Operation for Product {
    fn name(&self) -> &'static str {
        "prod"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(0);
        Ok(smallvec![run_reduction("prod", ReduceOp::Prod, self.axes, inputs[0])?])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        Ok(smallvec![Some(self.gradient(&saved.input(0)?, &grads.get(0)?)?)])
    }
}

fn product(x: &Tensor, axes: Axes) -> Result<Tensor> {
    let axes = axes.resolve("prod", x.shape())?;
    let products = apply_one(Product { axes: axes.set }, &[x])?;
    reshape_to(&products, &axes.shape(x.shape()))
}
