//! Order statistics: medians, quantiles, and modes.

use crate::ops::call::axes::{Axes, ResolvedAxes, over};
use crate::ops::call::check;
use crate::ops::elementwise::operand::TensorOrScalar;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::over_axes::over_axes;
use crate::ops::formula::{broadcast, map};
use crate::ops::index::search::searchsorted;
use crate::ops::index::sort::sort;
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::view::reshape_to;
use crate::ops::primitive::{copy, create, fill, gather, view};
use crate::ops::reduce::{reductions, value_range};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result, formula};
use smallvec::SmallVec;

/// The sorted rows of x with NaN last, and the positions of their elements.
struct RankedRows {
    axes: ResolvedAxes,
    len: usize,
    values: Tensor,
    positions: Tensor,
}

/// Moves the reduced axes of x to the end and flattens them into one, in row-major order.
fn move_axes_behind(axes: ResolvedAxes, x: &Tensor) -> Result<Tensor> {
    let other_axes = (0..x.rank()).filter(|&k| !axes.set.contains(k));
    let order: SmallVec<[isize; 6]> = other_axes.chain(axes.set.iter()).map(|k| k as isize).collect();
    let mut shape = axes.set.remove(x.shape()).to_vec();
    shape.push(axes.set.count(x.shape()));
    reshape_to(&view::permute(x, &order[..])?, &shape.into())
}

impl RankedRows {
    fn new(op: &'static str, x: &Tensor, axes: Axes) -> Result<RankedRows> {
        let axes = axes.resolve(op, x.shape())?;
        let rows = move_axes_behind(axes, x)?;
        let len = axes.set.count(x.shape());
        if len == 0 && axes.shape(x.shape()).size() != 0 {
            return Err(Error::invalid(
                op,
                format!("the reduced axes must have at least one element, got shape {}", x.shape()),
            ));
        }
        let (values, positions) = sort(&rows, -1, false)?;
        Ok(RankedRows { axes, len, values, positions })
    }

    /// Returns the number of elements of each row that are not NaN, `[.., 1]`.
    fn counts(&self) -> Result<Tensor> {
        let shape = self.values.shape().with_axis(self.values.rank() - 1, 1);
        if !self.values.dtype().is_float() {
            return fill::full_on_device_of(&self.values, shape, self.len as i64, DType::I64);
        }
        let largest = fill::full_on_device_of(&self.values, shape, f64::INFINITY, self.values.dtype())?;
        searchsorted(&self.values, &largest, true)
    }

    /// Returns the elements at ranks `[.., 1]`, and their positions, in the shape of the reduction of x.
    fn pick(&self, x: &Tensor, ranks: &Tensor) -> Result<(Tensor, Tensor)> {
        let shape = self.axes.shape(x.shape());
        let picked = |rows: &Tensor| reshape_to(&gather::take_along_axis(rows, ranks, -1)?, &shape);
        Ok((picked(&self.values)?, picked(&self.positions)?))
    }

    /// Returns the rank of the last element of the first longest run of equal elements in each row.
    fn longest_run_ends(&self) -> Result<Tensor> {
        let starts = searchsorted(&self.values, &self.values, false)?;
        // The distance from the start of the run is the length so far. NaN is not equal to NaN; its position is the
        // length of the row.
        let length = formula! { static run_length(rank, start) = (rank - start).max(0); };
        reductions::argmax(&map(length, &[&create::indices(self.len)?, &starts], &[])?, over(-1).keepdims())
    }
}

over_axes! {
    errors = "[`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] if there are no elements.";

    /// Returns the median over `axes` and its `i64` index, in row-major order over the axes.
    ///
    /// For an even number of elements it is the lower of the two middle elements; it is NaN if an element is NaN. The
    /// gradient goes to that index.
    median(x; axes) -> (Tensor, Tensor) = {
        let ranked = RankedRows::new("median", x, axes)?;
        let middle = ranked.len.saturating_sub(1) as i64 / 2;
        let rank = formula! { static median(count; len, middle) = count.lt(len).select(count, middle); };
        ranked.pick(x, &map(rank, &[&ranked.counts()?], &[(ranked.len as i64).into(), middle.into()])?)
    };
    /// Returns the [`median`] of the elements that are not NaN; NaN if all are NaN.
    nanmedian(x; axes) -> (Tensor, Tensor) = {
        let ranked = RankedRows::new("nanmedian", x, axes)?;
        let rank = formula! { static nanmedian(count) = (count - 1).floor_div(2).max(0); };
        ranked.pick(x, &map(rank, &[&ranked.counts()?], &[])?)
    };
    /// Returns the most frequent element over `axes`, the smallest in a tie, and the `i64` index of its last
    /// occurrence.
    ///
    /// NaN elements count as different from each other. The gradient goes to that index.
    mode(x; axes) -> (Tensor, Tensor) = {
        let ranked = RankedRows::new("mode", x, axes)?;
        ranked.pick(x, &ranked.longest_run_ends()?)
    };
}

/// The interpolation of a quantile between two neighbouring elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QuantileInterpolation {
    /// Linear interpolation.
    #[default]
    Linear,
    /// The lower element.
    Lower,
    /// The higher element.
    Higher,
    /// The mean of both elements.
    Midpoint,
    /// The nearer element; in a tie, the element with even rank.
    Nearest,
}

/// Computes the q-quantiles over `axes`: the sorted elements at rank q·(n − 1), counted from 0; NaN if an element is
/// NaN.
///
/// If q is a vector of probabilities, its axis comes first in the result. `f16` and `bf16` are computed in `f32`;
/// probabilities then have x's dtype or `f32`.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::DTypeMismatch`] for integers; [`Error::ShapeMismatch`] for probabilities of rank
/// 2 or more; [`Error::InvalidArgument`] if there are no elements, or for a probability outside [0, 1]. If the
/// probabilities are a tensor whose values cannot be read, as in a captured step or on a GPU, the result is NaN
/// instead.
#[doc(alias = "percentile")]
#[tensor_method]
pub fn quantile<'a>(
    x: &Tensor,
    q: impl Into<TensorOrScalar<'a>>,
    axes: impl Into<Axes>,
    interpolation: QuantileInterpolation,
) -> Result<Tensor> {
    quantiles("quantile", x, q.into(), axes.into(), interpolation, false)
}

/// Computes the [`quantile`] of the elements that are not NaN; NaN if all are NaN.
///
/// # Errors
/// The errors of [`quantile`].
#[doc(alias = "nanpercentile")]
#[tensor_method]
pub fn nanquantile<'a>(
    x: &Tensor,
    q: impl Into<TensorOrScalar<'a>>,
    axes: impl Into<Axes>,
    interpolation: QuantileInterpolation,
) -> Result<Tensor> {
    quantiles("nanquantile", x, q.into(), axes.into(), interpolation, true)
}

/// Returns the probabilities as a tensor, and true if they were checked to be in [0, 1].
///
/// # Errors
/// The errors of [`quantile`].
fn checked_probabilities(op: &'static str, x: &Tensor, q: TensorOrScalar<'_>, axes: &Axes) -> Result<(Tensor, bool)> {
    check::floats(op, &[x])?;
    // In `bf16`, 0.999 would be rounded to 1.
    let single = if matches!(x.dtype(), DType::F16 | DType::BF16) { DType::F32 } else { x.dtype() };
    let outside = |p: f64| !(0.0..=1.0).contains(&p);
    let rejected = |p: f64| Error::invalid(op, format!("probabilities must be in [0, 1], got {p}"));
    let is_number = matches!(q, TensorOrScalar::Scalar(_));
    // The tensor is created on the device of x, because a captured step has one device.
    let q = q.tensor_or_else(|number| match number.to_f64() {
        p if outside(p) => Err(rejected(p)),
        _ => fill::full_on_device_of(x, (), number, single),
    })?;
    if q.dtype() != x.dtype() && q.dtype() != single {
        let help = "probabilities must have the dtype of x (for f16 and bf16 also f32); use to_dtype()";
        return Err(Error::dtypes(op, [x.dtype(), q.dtype()], help));
    }
    if q.rank() > 1 {
        return Err(Error::shapes(op, [q.shape()], "probabilities must be a scalar or a vector"));
    }
    axes.resolve(op, x.shape())?;
    let is_checked = is_number || check::is_readable(&q);
    if is_checked
        && !is_number
        && let Some(p) = q.array().to_vec::<f64>(op)?.into_iter().find(|p| outside(*p))
    {
        return Err(rejected(p));
    }
    Ok((q, is_checked))
}

/// The largest length whose ranks `f32` represents exactly.
const MAX_SINGLE_RANKS: usize = 1 << 24;

/// Returns the elements of sorted rows at ranks that may be fractional.
fn at_ranks(rows: &Tensor, ranks: &Tensor, interpolation: QuantileInterpolation) -> Result<Tensor> {
    let elements_at = |ranks: &Tensor| gather::take_along_axis(rows, &copy::to_dtype(ranks, DType::I64)?, -1);
    let (low, high) = (|| arithmetic::floor(ranks), || arithmetic::ceil(ranks));
    match interpolation {
        QuantileInterpolation::Lower => elements_at(&low()?),
        QuantileInterpolation::Higher => elements_at(&high()?),
        QuantileInterpolation::Nearest => elements_at(&arithmetic::round(ranks)?),
        QuantileInterpolation::Linear => {
            let low = low()?;
            let weight = copy::to_dtype(&arithmetic::sub(ranks, &low)?, rows.dtype())?;
            arithmetic::lerp(&elements_at(&low)?, &elements_at(&high()?)?, &weight)
        }
        QuantileInterpolation::Midpoint => arithmetic::lerp(
            &elements_at(&low()?)?,
            &elements_at(&high()?)?,
            &fill::full_on_device_of(rows, (), 0.5, rows.dtype())?,
        ),
    }
}

fn quantiles(
    op: &'static str,
    x: &Tensor,
    q: TensorOrScalar<'_>,
    axes: Axes,
    interpolation: QuantileInterpolation,
    ignore_nan: bool,
) -> Result<Tensor> {
    let (q, is_checked) = checked_probabilities(op, x, q, &axes)?;
    // `bf16` does not represent every rank above 256.
    in_single!(op, [x] => {
        let probabilities = copy::to_dtype(&q, DType::F32)?;
        quantiles(op, x, TensorOrScalar::Owned(probabilities), axes, interpolation, ignore_nan)
    });
    // If the values of a tensor cannot be read, the quantile of an invalid probability is NaN.
    let is_valid = match is_checked {
        true => None,
        false => Some(compare::logical_and(&compare::ge(&q, 0.0)?, &compare::le(&q, 1.0)?)?),
    };
    let q = match &is_valid {
        Some(is_valid) => arithmetic::where_(is_valid, &q, 0.0)?,
        None => q,
    };
    let ranked = RankedRows::new(op, x, axes)?;
    let counts = ranked.counts()?;
    let last = match ignore_nan {
        true => arithmetic::maximum(&arithmetic::sub(&counts, 1)?, 0)?,
        false => fill::full_on_device_of(x, (), ranked.len.saturating_sub(1) as i64, DType::I64)?,
    };
    let rank_dtype = if ranked.len > MAX_SINGLE_RANKS { DType::F64 } else { x.dtype() };
    let last = copy::to_dtype(&last, rank_dtype)?;
    let ranks = arithmetic::mul(&copy::to_dtype(&view::reshape(&q, [q.size()])?, rank_dtype)?, &last)?;
    let has_nan = || compare::lt(&counts, ranked.len as i64);
    let ranks = if ignore_nan { ranks } else { arithmetic::where_(&has_nan()?, &last, &ranks)? };
    let shape = counts.shape().with_axis(counts.rank() - 1, q.size());
    let ranks = broadcast::broadcast_to(&ranks, &shape)?;
    let y = at_ranks(&ranked.values, &ranks, interpolation)?;
    let y = match &is_valid {
        Some(is_valid) => value_range::nan_unless(&view::reshape(is_valid, [q.size()])?, &y)?,
        None => y,
    };
    let reduced = ranked.axes.shape(x.shape());
    if q.rank() == 0 {
        return reshape_to(&y, &reduced);
    }
    let shape: Vec<usize> = std::iter::once(q.size()).chain(reduced.iter().copied()).collect();
    reshape_to(&view::movedim(&y, [-1], [0])?, &shape.into())
}
