//! Where numbers belong among others: binary search, and what is counted with it.

use super::axes::Axes;
use crate::engine;
use crate::ops::precision::in_single;
use crate::ops::{self, check};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result, Shape};

/// The number of elements of a sorted row before each value: those less than it, or (`right`) not greater. In other words
/// the `i64` index at which the value, put before (behind) equal ones, keeps the row sorted; that of NaN is the length. NaNs
/// of the row are its last elements, as [`sort`](super::sort) leaves them.
///
/// The rows are the last axis of `sorted`: one vector for all values, or one row for every row of values, with equal leading
/// axes.
///
/// # Errors
/// [`Error::ShapeMismatch`] for other leading axes, or a `sorted` of no axis.
#[tensor_method]
pub fn searchsorted(sorted: &Tensor, values: &Tensor, right: bool) -> Result<Tensor> {
    let op = "searchsorted";
    let rank = sorted.rank();
    let fits = match rank {
        0 => false,
        1 => true,
        _ => rank == values.rank() && sorted.shape()[..rank - 1] == values.shape()[..rank - 1],
    };
    if !fits {
        let help = "sorted is one vector, or has the leading axes of the values";
        return Err(Error::shapes(op, [sorted.shape(), values.shape()], help));
    }
    let (len, shape) = (sorted.shape()[rank - 1], values.shape().clone());
    let (sorted, values) = (sorted.detach(), values.detach());
    let values = if rank == 1 { ops::ravel(&values)? } else { values };
    // The place is in low..=high, which every step halves.
    let mut low = ops::zeros(values.shape(), DType::I64)?;
    let mut high = ops::full(values.shape(), len as i64, DType::I64)?;
    for _ in 0..usize::BITS - len.leading_zeros() {
        let middle = ops::shift_right(&ops::add(&low, &high)?, 1)?;
        let there = ops::take_along_axis(&sorted, &ops::minimum(&middle, len as i64 - 1)?, -1)?;
        // False for a NaN of the row: it is behind all numbers, as sort() leaves it.
        let is_before = if right { ops::le(&there, &values)? } else { ops::lt(&there, &values)? };
        let open = ops::lt(&low, &high)?;
        let above = ops::logical_and(&open, &is_before)?;
        high = ops::where_(&ops::logical_and(&open, ops::logical_not(&is_before)?)?, &middle, &high)?;
        low = ops::where_(&above, &ops::add(&middle, 1)?, &low)?;
    }
    if values.dtype().is_float() {
        low = ops::where_(&ops::isnan(&values)?, len as i64, &low)?;
    }
    ops::reshape_to(&low, &shape)
}

/// The number of the bucket, between ascending boundaries, into which each element falls: [`searchsorted`] with the operands
/// exchanged. Bucket i is boundary i − 1 < x ≤ boundary i, or (`right`) boundary i − 1 ≤ x < boundary i.
///
/// # Errors
/// [`Error::ShapeMismatch`] for boundaries that are no vector.
#[tensor_method]
pub fn bucketize(x: &Tensor, boundaries: &Tensor, right: bool) -> Result<Tensor> {
    if boundaries.rank() != 1 {
        return Err(Error::shapes("bucketize", [boundaries.shape()], "boundaries are a vector"));
    }
    searchsorted(boundaries, x, right)
}

/// How often each of the numbers 0, 1, .. up to the largest (at least `least` of them) occurs in a vector, in `i64`; with
/// weights, which have gradients, the sum of those of its occurrences. The length depends on values, so a captured step refuses it.
///
/// # Errors
/// [`Error::DTypeMismatch`] unless x holds integers; [`Error::ShapeMismatch`] unless it is a vector and the weights have its
/// shape; [`Error::InvalidArgument`] for a negative number; [`Error::ReadInCapture`].
#[tensor_method]
#[track_caller]
pub fn bincount(x: &Tensor, weights: Option<&Tensor>, least: usize) -> Result<Tensor> {
    let op = "bincount";
    if !x.dtype().is_int() {
        return Err(Error::dtypes(op, [x.dtype()], "counts integers"));
    }
    if x.rank() != 1 || weights.is_some_and(|w| w.shape() != x.shape()) {
        let shapes = [Some(x.shape()), weights.map(|w| w.shape())];
        return Err(Error::shapes(op, shapes.into_iter().flatten(), "takes a vector, and weights of its shape"));
    }
    let help = "the largest number is a value; scatter_add_along(ones, x, 0, [classes]) counts into a fixed number of \
                classes, and histc() into bins";
    engine::check_readable(op, help)?;
    let numbers = x.array().to_vec::<i64>(op)?;
    if let Some(negative) = numbers.iter().find(|&&n| n < 0) {
        return Err(Error::invalid(op, format!("counts numbers ≥ 0, got {negative}")));
    }
    let len = numbers.iter().max().map_or(0, |&n| n as usize + 1).max(least);
    match weights {
        Some(weights) => ops::scatter_add_along(weights, x, 0, [len]),
        None => ops::scatter_add_along(&ops::ones(x.shape(), DType::I64)?, x, 0, [len]),
    }
}

/// The bins of a [`histogram`].
#[derive(Clone, Copy, Debug)]
pub enum Bins<'a> {
    /// So many of one width, from the smallest element to the largest.
    Count(usize),
    /// So many of one width, between these ends.
    Between(usize, f64, f64),
    /// Between these ascending edges, a vector.
    Edges(&'a Tensor),
}

/// How many elements fall into each bin, as floats, and the bins' edges (one more). A bin has its lower edge, the last one
/// both; elements beyond are not counted. With weights of x's shape their sums, with gradients; with `density` divided by the
/// total and the bin's width, so that the integral is 1.
///
/// # Errors
/// [`Error::DTypeMismatch`] unless all are floats of one dtype; [`Error::ShapeMismatch`]; [`Error::InvalidArgument`] for no bin,
/// ends that are not finite and ascending, and, where values can be read, edges that descend or elements that are not finite
/// if they set the ends; [`Error::OutOfMemory`].
#[tensor_method]
pub fn histogram(x: &Tensor, bins: Bins<'_>, weights: Option<&Tensor>, density: bool) -> Result<(Tensor, Tensor)> {
    let points = ops::reshape(x, [x.size(), 1])?;
    let (counts, mut edges) = counted("histogram", &points, x.shape(), &[bins], weights, density)?;
    Ok((counts, edges.remove(0)))
}

/// A [`histogram`] in D dimensions: how many points `[.., D]` fall into each box of bins, one list of them an axis, and the edges along
/// each. Weights have x's shape without the last axis; a density is divided by the box's volume.
///
/// # Errors
/// Those of [`histogram`].
#[tensor_method]
pub fn histogramdd(
    x: &Tensor,
    bins: &[Bins<'_>],
    weights: Option<&Tensor>,
    density: bool,
) -> Result<(Tensor, Vec<Tensor>)> {
    let op = "histogramdd";
    let Some((&dimensions, lead)) = x.shape().split_last().filter(|(d, _)| **d == bins.len() && **d > 0) else {
        let help = format!("takes [.., D], and bins for each of D axes, of which there are {}", bins.len());
        return Err(Error::shapes(op, [x.shape()], help));
    };
    let points = ops::reshape(x, [lead.iter().product(), dimensions])?;
    counted(op, &points, &lead.into(), bins, weights, density)
}

/// The histogram of points `[N, D]`, whose weights have the shape `weighed`.
fn counted(
    op: &'static str,
    points: &Tensor,
    weighed: &Shape,
    bins: &[Bins<'_>],
    weights: Option<&Tensor>,
    density: bool,
) -> Result<(Tensor, Vec<Tensor>)> {
    if let Some(weights) = weights
        && (weights.shape() != weighed || weights.dtype() != points.dtype())
    {
        let help = "weights have the shape and dtype of what they weigh";
        return Err(Error::shapes(op, [weighed, weights.shape()], help));
    }
    let (points, count) = (points.detach(), points.shape()[0]);
    let (mut all, mut shape) = (Vec::new(), Vec::new());
    let (mut inside, mut place) = (ops::full([count], true, DType::Bool)?, ops::zeros([count], DType::I64)?);
    for (axis, &bins) in bins.iter().enumerate() {
        let x = ops::select(&points, 1, axis as isize)?;
        let edges = edges(op, &x, bins)?;
        let (first, last, len) = (ops::select(&edges, 0, 0)?, ops::select(&edges, 0, -1)?, edges.size() - 1);
        let within = ops::logical_and(&ops::ge(&x, &first)?, &ops::le(&x, &last)?)?;
        inside = ops::logical_and(&inside, &within)?;
        let bin = ops::clamp(&ops::sub(&searchsorted(&edges, &x, true)?, 1)?, 0, len as i64 - 1)?;
        // Boxes in row-major order.
        place = ops::add(&ops::mul(&place, len as i64)?, &bin)?;
        shape.push(len);
        all.push(edges);
    }
    // Counted in integers: `f32` has no odd number above 2²⁴.
    let weights = weights.map_or_else(|| ops::ones([count], DType::I64), ops::ravel)?;
    let boxes = shape.iter().try_fold(1usize, |n, &len| n.checked_mul(len)).ok_or_else(Error::absurd_size)?;
    let sums = ops::scatter_add_along(&ops::where_(&inside, &weights, 0)?, &place, 0, [boxes])?;
    let mut counts = ops::to_dtype(&ops::reshape(&sums, &shape[..])?, points.dtype())?;
    if density {
        counts = ops::div(&counts, &ops::sum(&counts, Axes::from(..))?)?;
        for (axis, edges) in all.iter().enumerate() {
            let along: Vec<usize> = (0..shape.len()).map(|k| if k == axis { shape[k] } else { 1 }).collect();
            counts = ops::div(&counts, &ops::reshape(&ops::diff(edges, 1, 0)?, &along[..])?)?;
        }
    }
    Ok((counts, all))
}

fn edges(op: &'static str, x: &Tensor, bins: Bins<'_>) -> Result<Tensor> {
    if !x.dtype().is_float() {
        return Err(Error::dtypes(op, [x.dtype()], "takes floats; bincount() counts integers"));
    }
    let (count, low, high) = match bins {
        Bins::Edges(edges) if edges.rank() != 1 || edges.size() < 2 => {
            return Err(Error::shapes(op, [edges.shape()], "edges are a vector of two or more"));
        }
        Bins::Edges(edges) if edges.dtype() != x.dtype() => {
            return Err(Error::dtypes(op, [x.dtype(), edges.dtype()], "edges have the dtype of the elements"));
        }
        Bins::Edges(edges) => {
            let widths = ops::diff(&edges.detach(), 1, 0)?;
            check::in_range_without_nan(op, "differences of neighbouring edges", &widths, 0.0..=f64::INFINITY)?;
            return Ok(edges.detach());
        }
        Bins::Between(_, low, high) if !(low.is_finite() && high.is_finite() && low <= high) => {
            return Err(Error::invalid(op, format!("ends are finite and ascending, got {low} and {high}")));
        }
        Bins::Between(count, low, high) => (count, ops::full((), low, x.dtype())?, ops::full((), high, x.dtype())?),
        Bins::Count(count) if x.size() == 0 => (count, ops::zeros((), x.dtype())?, ops::ones((), x.dtype())?),
        Bins::Count(count) => (count, ops::min(&x.detach(), ..)?, ops::max(&x.detach(), ..)?),
    };
    if count == 0 {
        return Err(Error::invalid(op, "takes at least one bin"));
    }
    if let Bins::Count(_) = bins {
        for end in [&low, &high] {
            check::in_range_without_nan(op, "elements that set the ends of the bins", end, f64::MIN..=f64::MAX)?;
        }
    }
    let width = ops::sub(&high, &low)?;
    check::in_range_without_nan(op, "the distance between the ends of the bins", &width, 0.0..=f64::MAX)?;
    // Ends that are equal are half a unit away on both sides.
    let apart = ops::mul(&ops::to_dtype(&ops::eq(&low, &high)?, x.dtype())?, 0.5)?;
    let (low, high) = (ops::sub(&low, &apart)?, ops::add(&high, &apart)?);
    let parts = count.checked_add(1).ok_or_else(Error::absurd_size)?;
    let parts = ops::linspace(0.0, 1.0, parts, x.dtype())?;
    let inner = ops::lerp(&low, &high, &parts)?;
    ops::where_(&ops::eq(&parts, 1.0)?, &high, &inner)
}

/// The counts of `bins` bins of one width between two numbers, or, if these are equal, from the smallest element to the largest. An
/// element's bin is ⌊(x − low)·bins / (high − low)⌋, so that near an edge rounding may put it elsewhere than [`histogram`], which compares
/// with the edges.
///
/// # Errors
/// Those of [`histogram`].
#[tensor_method]
pub fn histc(x: &Tensor, bins: usize, low: f64, high: f64) -> Result<Tensor> {
    in_single!("histc", [x] => histc(x, bins, low, high));
    let ends = if low == high { Bins::Count(bins) } else { Bins::Between(bins, low, high) };
    let edges = edges("histc", x, ends)?;
    let x = ops::ravel(&x.detach())?;
    let (low, high) = (ops::select(&edges, 0, 0)?, ops::select(&edges, 0, -1)?);
    let inside = ops::logical_and(&ops::ge(&x, &low)?, &ops::le(&x, &high)?)?;
    let scaled = ops::mul(&ops::sub(&x, &low)?, bins as f64)?;
    let bin = ops::floor(&ops::where_(&inside, &ops::div(&scaled, &ops::sub(&high, &low)?)?, 0)?)?;
    let bin = ops::to_dtype(&ops::minimum(&bin, bins as f64 - 1.0)?, DType::I64)?;
    let counts = ops::scatter_add_along(&ops::to_dtype(&inside, DType::I64)?, &bin, 0, [bins])?;
    ops::to_dtype(&counts, x.dtype())
}
