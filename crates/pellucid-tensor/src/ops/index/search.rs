//! Binary search in sorted rows, and histograms.

use crate::autograd::{apply_one, interface::*, placed_like};
use crate::engine;
use crate::ops::call::axes::Axes;
use crate::ops::elementwise::arithmetic;
use crate::ops::elementwise::arithmetic::interpolate;
use crate::ops::formula::{broadcast, map, map_all};
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::{copy, create, fill, gather, view};
use crate::ops::reduce::{reductions, scan, value_range};
use crate::ops::shape::join;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::Expr;
use pellucid_ir::kernel::{Kernel, Search};
use pellucid_ir::{DType, Error, Result, Shape, formula};

/// Returns the `i64` index at which each value would be inserted to keep a sorted row sorted.
///
/// The index is the number of elements less than the value (with `right`: not greater than it). NaN sorts last, as in
/// [`sort`](crate::ops::sort): the index of a NaN value is the length.
///
/// `sorted` is one vector for all values, or has the leading axes of `values`: its last axis is then the sorted row for
/// the values with the same leading indices.
///
/// If the dtypes of the operands differ, copies in their promoted dtype are compared.
/// [`interp`](crate::ops::interp), [`isin`](crate::ops::isin) and [`histogram`] call the operation.
///
/// # Errors
/// [`Error::ShapeMismatch`] for different leading axes, or a 0-d `sorted`.
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
        let help = "sorted must be a vector, or have the leading axes of the values";
        return Err(Error::shapes(op, [sorted.shape(), values.shape()], help));
    }
    let dtype = sorted.dtype().promote(values.dtype());
    let operand = |t: &Tensor| copy::to_dtype(&t.detach(), dtype);
    apply_one(SortedPositions { right }, &[&operand(sorted)?, &operand(values)?])
}

/// Computes the positions of values in sorted rows, which are integers and have no gradient.
struct SortedPositions {
    right: bool,
}

impl Operation for SortedPositions {
    fn name(&self) -> &'static str {
        "searchsorted"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let positions = Array::new(inputs[1].device(), DType::I64, inputs[1].shape().clone())?;
        engine::submit(&Kernel::Search(Search { right: self.right }), inputs, &[&positions])?;
        Ok(smallvec![positions])
    }
    fn backward(&self, _: &SavedTensors, _: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        Ok(smallvec![None, None])
    }
}

/// Returns the index of the bucket between ascending boundaries that contains each element.
///
/// This is [`searchsorted`] with swapped operands. Bucket i contains x if boundary i − 1 < x ≤ boundary i,
/// or with `right` if boundary i − 1 ≤ x < boundary i.
///
/// # Errors
/// [`Error::ShapeMismatch`] unless the boundaries are a vector.
#[doc(alias = "digitize")]
#[tensor_method]
pub fn bucketize(x: &Tensor, boundaries: &Tensor, right: bool) -> Result<Tensor> {
    if boundaries.rank() != 1 {
        return Err(Error::shapes("bucketize", [boundaries.shape()], "boundaries must be a vector"));
    }
    searchsorted(boundaries, x, right)
}

/// Counts the occurrences of 0, 1, .. up to the largest element of a vector of integers, in `i64`.
///
/// The result has at least `min_length` elements. With weights, which have gradients, it contains the sum of the
/// weights of each integer. The length depends on values, so a captured step cannot contain the operation.
///
/// # Errors
/// [`Error::DTypeMismatch`] unless x contains integers; [`Error::ShapeMismatch`] unless x is a vector and the weights
/// have the shape of x; [`Error::InvalidArgument`] for a negative element; [`Error::ReadInCapture`].
#[tensor_method]
#[track_caller]
pub fn bincount(x: &Tensor, weights: Option<&Tensor>, min_length: usize) -> Result<Tensor> {
    let op = "bincount";
    if !x.dtype().is_int() {
        return Err(Error::dtypes(op, [x.dtype()], "the input must have an integer dtype"));
    }
    if x.rank() != 1 || weights.is_some_and(|w| w.shape() != x.shape()) {
        let shapes = [Some(x.shape()), weights.map(|w| w.shape())];
        return Err(Error::shapes(
            op,
            shapes.into_iter().flatten(),
            "the input must be a vector, and the weights a vector of the same length; ravel() both",
        ));
    }
    let help = "the length depends on values; scatter_add_along(ones, x, 0, [classes]) counts a fixed number of \
                classes; histc() counts into bins";
    engine::check_readable(op, help)?;
    let mut len = min_length;
    if x.size() > 0 {
        let (smallest, largest) = reductions::aminmax(&x.detach(), ..)?;
        let read = |end: &Tensor| Ok(end.array().to_vec::<i64>(op)?[0]);
        let (smallest, largest) = (read(&smallest)?, read(&largest)?);
        if smallest < 0 {
            let reason = format!("elements must be at least 0, got {smallest}; subtract the minimum, or use histc()");
            return Err(Error::invalid(op, reason));
        }
        len = len.max(largest as usize + 1);
    }
    let ones = || broadcast::broadcast_to(&fill::ones((), DType::I64)?, x.shape());
    let counted = weights.map_or_else(ones, |weights| Ok(weights.clone()))?;
    gather::scatter_add_along(&counted, x, 0, [len])
}

/// The bins of a [`histogram`].
#[derive(Clone, Copy, Debug)]
pub enum Bins<'a> {
    /// The number of bins of equal width from the smallest element to the largest.
    Count(usize),
    /// The number of bins of equal width, and the lower and the upper end.
    Between(usize, f64, f64),
    /// A vector of ascending edges.
    Edges(&'a Tensor),
}

/// Counts the elements in each bin, as floats. Returns the counts, and the bin edges (one more than counts).
///
/// A bin contains its lower edge, and the last bin also its upper edge. Elements outside are not counted. With weights
/// of x's shape, each bin contains the sum of the weights of its elements, which is differentiable. With `density` the
/// counts are divided by their total and the bin width, so that the integral is 1.
///
/// [`searchsorted`] finds the bins. In addition to operands and result, the operation stores a few arrays of x's shape
/// in `i64`.
///
/// # Errors
/// [`Error::DTypeMismatch`] unless all operands are floats of the same dtype; [`Error::ShapeMismatch`];
/// [`Error::InvalidArgument`] for 0 bins, ends that are not finite and ascending, and, in eager mode on the CPU, for
/// edges that descend or elements that are not finite but determine the ends (otherwise the counts are NaN);
/// [`Error::OutOfMemory`].
#[tensor_method]
pub fn histogram(x: &Tensor, bins: Bins<'_>, weights: Option<&Tensor>, density: bool) -> Result<(Tensor, Tensor)> {
    let points = view::reshape(x, [x.size(), 1])?;
    let (counts, mut edges) = histogram_of_points("histogram", &points, x.shape(), &[bins], weights, density)?;
    Ok((counts, edges.remove(0)))
}

/// Computes a [`histogram`] of points `[.., D]` in D dimensions. Returns the counts and the edges along each dimension.
///
/// There is one entry of `bins` per dimension. Weights have x's shape without the last axis. `density` divides the
/// counts by their total and by the volume of the cell. The counts have one element for each cell, even for few points.
/// They are summed in `i64`, or in the dtype of the weights, and then converted.
///
/// # Errors
/// The errors of [`histogram`].
#[tensor_method]
pub fn histogramdd(
    x: &Tensor,
    bins: &[Bins<'_>],
    weights: Option<&Tensor>,
    density: bool,
) -> Result<(Tensor, Vec<Tensor>)> {
    let op = "histogramdd";
    let Some((&dimensions, outer)) = x.shape().split_last().filter(|(d, _)| **d == bins.len() && **d > 0) else {
        let help = format!("the input must be [.., D], where D is the number of entries of `bins`, {}", bins.len());
        return Err(Error::shapes(op, [x.shape()], help));
    };
    let points = view::reshape(x, [outer.iter().product(), dimensions])?;
    histogram_of_points(op, &points, &outer.into(), bins, weights, density)
}

/// Computes the [`histogram`] of points (xᵢ, yᵢ). Returns the counts, and the edges along x and along y.
///
/// # Errors
/// The errors of [`histogram`]; [`Error::ShapeMismatch`] unless x and y are vectors of the same length.
#[tensor_method]
pub fn histogram2d(
    x: &Tensor,
    y: &Tensor,
    bins: [Bins<'_>; 2],
    weights: Option<&Tensor>,
    density: bool,
) -> Result<(Tensor, Tensor, Tensor)> {
    let op = "histogram2d";
    if x.rank() != 1 || x.shape() != y.shape() {
        return Err(Error::shapes(op, [x.shape(), y.shape()], "x and y must be vectors of the same length"));
    }
    let (counts, edges) = histogram_of_points(op, &join::stack(&[x, y], 1)?, x.shape(), &bins, weights, density)?;
    let [x_edges, y_edges] = <[Tensor; 2]>::try_from(edges).expect("there must be edges along both dimensions");
    Ok((counts, x_edges, y_edges))
}

/// Computes the histogram of points `[N, D]`. The weights have the shape `weights_shape`.
fn histogram_of_points(
    op: &'static str,
    points: &Tensor,
    weights_shape: &Shape,
    bins: &[Bins<'_>],
    weights: Option<&Tensor>,
    density: bool,
) -> Result<(Tensor, Vec<Tensor>)> {
    if let Some(weights) = weights
        && weights.shape() != weights_shape
    {
        let help = "weights must have the shape of the elements";
        return Err(Error::shapes(op, [weights_shape, weights.shape()], help));
    }
    if let Some(weights) = weights
        && weights.dtype() != points.dtype()
    {
        let help = "weights must have the dtype of the elements; use to_dtype()";
        return Err(Error::dtypes(op, [points.dtype(), weights.dtype()], help));
    }
    let points = points.detach();
    let (mut all_edges, mut shape, mut is_valid) = (Vec::new(), Vec::new(), None);
    let (mut inside, mut cell) = (None, None);
    for (axis, &bins) in bins.iter().enumerate() {
        let x = view::select(&points, 1, axis as isize)?;
        let (edges, are_edges) = bin_edges(op, &x, bins)?;
        is_valid = value_range::both(is_valid, are_edges)?;
        let len = edges.size() - 1;
        inside = value_range::both(inside, Some(is_between(&x, &edges)?))?;
        cell = Some(cells(cell.as_ref(), &searchsorted(&edges, &x, true)?, len)?);
        shape.push(len);
        all_edges.push(edges);
    }
    let (inside, cell) = inside.zip(cell).expect("the points must have at least one dimension");
    // Elements are counted as integers, since `f32` cannot represent every count above 2²⁴.
    let weights = match weights {
        Some(weights) => arithmetic::where_(&inside, &view::ravel(weights)?, 0)?,
        None => copy::to_dtype(&inside, DType::I64)?,
    };
    let boxes = shape.iter().try_fold(1usize, |n, &len| n.checked_mul(len)).ok_or_else(Error::size_overflow)?;
    let sums = gather::scatter_add_along(&weights, &cell, 0, [boxes])?;
    let mut counts = copy::to_dtype(&view::reshape(&sums, &shape[..])?, points.dtype())?;
    if density {
        counts = arithmetic::div(&counts, &reductions::sum(&counts, Axes::from(..))?)?;
        for (axis, edges) in all_edges.iter().enumerate() {
            let along: Vec<usize> = (0..shape.len()).map(|k| if k == axis { shape[k] } else { 1 }).collect();
            counts = arithmetic::div(&counts, &view::reshape(&scan::diff(edges, 1, 0)?, &along[..])?)?;
        }
    }
    if let Some(is_valid) = &is_valid {
        counts = value_range::nan_unless(is_valid, &counts)?;
    }
    let all_edges = all_edges.iter().map(|edges| placed_like(op, &counts, edges)).collect::<Result<_>>()?;
    Ok((counts, all_edges))
}

/// Returns the mask of the elements of x from the first to the last edge.
fn is_between(x: &Tensor, edges: &Tensor) -> Result<Tensor> {
    let inside = formula! { static histogram_inside(x, first, last) = x.ge(first) & x.le(last); };
    map(inside, &[x, &view::select(edges, 0, 0)?, &view::select(edges, 0, -1)?], &[])
}

/// Returns the numbers of cells in row-major order, from the cells of the dimensions so far, and the positions of the
/// elements in the edges of `len` bins of another dimension.
fn cells(so_far: Option<&Tensor>, positions: &Tensor, len: usize) -> Result<Tensor> {
    let params = [(len as i64).into()];
    let Some(cell) = so_far else {
        let first = formula! { static histogram_bin(position; len) = bin_at(position, len); };
        return map(first, &[positions], &params);
    };
    let next = formula! { static histogram_cell(cell, position; len) = cell * len + bin_at(position, len); };
    map(next, &[cell, positions], &params)
}

/// Returns the bin of a position in the edges of `len` bins. The last bin contains the last edge.
fn bin_at(position: Expr, len: Expr) -> Expr {
    (position - 1).max(0).min(len - 1)
}

/// The lower and the upper end of the bins, 0-d, and the mask of [`bin_edges`].
type BinEnds = ([Tensor; 2], Option<Tensor>);

/// Returns the bin edges of x. If the values that determine the edges cannot be read, also returns a 0-d mask, which is
/// true if the edges are valid.
fn bin_edges(op: &'static str, x: &Tensor, bins: Bins<'_>) -> Result<(Tensor, Option<Tensor>)> {
    check_binned(op, x)?;
    let count = match bins {
        Bins::Edges(edges) if edges.rank() != 1 || edges.size() < 2 => {
            return Err(Error::shapes(op, [edges.shape()], "edges must be a vector of at least two elements"));
        }
        Bins::Edges(edges) if edges.dtype() != x.dtype() => {
            return Err(Error::dtypes(op, [x.dtype(), edges.dtype()], "edges must have the dtype of the elements"));
        }
        Bins::Edges(edges) => {
            let ascend = value_range::ascending_or_mask(op, "edges", edges, false)?;
            return Ok((edges.detach(), ascend));
        }
        Bins::Between(count, ..) | Bins::Count(count) => count,
    };
    let ends = if let Bins::Between(_, low, high) = bins { Some([low, high]) } else { None };
    let ([low, high], is_valid) = bin_ends(op, x, count, ends)?;
    let parts = count.checked_add(1).ok_or_else(Error::size_overflow)?;
    let parts = create::linspace(0.0, 1.0, parts, low.dtype())?;
    let edges = formula! {
        static histogram_edges(low, high, part) = part.eq(1.0).select(high, interpolate(low, high, part));
    };
    Ok((copy::to_dtype(&map(edges, &[&low, &high, &parts], &[])?, x.dtype())?, is_valid))
}

/// Returns an error unless x contains floats.
fn check_binned(op: &'static str, x: &Tensor) -> Result<()> {
    match x.dtype().is_float() {
        true => Ok(()),
        false => Err(Error::dtypes(op, [x.dtype()], "the input must have a float dtype; bincount() counts integers")),
    }
}

/// Returns the ends of `count` bins of equal width, between the given ends or the extrema of x. The ends are `f32` for
/// half precision, so that edges are rounded once.
fn bin_ends(op: &'static str, x: &Tensor, count: usize, ends: Option<[f64; 2]>) -> Result<BinEnds> {
    let single = if matches!(x.dtype(), DType::F16 | DType::BF16) { DType::F32 } else { x.dtype() };
    let [low, high] = match ends {
        Some([low, high]) if !(low.is_finite() && high.is_finite() && low <= high) => {
            let reason = format!("the ends of the bins must be finite and ascending, got {low:?} and {high:?}");
            return Err(Error::invalid(op, reason));
        }
        None if x.size() > 0 => {
            let (low, high) = reductions::aminmax(&x.detach(), ..)?;
            [copy::to_dtype(&low, single)?, copy::to_dtype(&high, single)?]
        }
        ends => {
            let [low, high] = ends.unwrap_or([0.0, 1.0]);
            let end = |value: f64| fill::full_on_device_of(x, (), value, single);
            [end(low)?, end(high)?]
        }
    };
    if count == 0 {
        return Err(Error::invalid(op, "the number of bins must be at least 1, got 0"));
    }
    let mut is_valid = None;
    if ends.is_none() {
        for end in [&low, &high] {
            let (subject, range) = ("elements that set the ends of the bins", f64::MIN..=f64::MAX);
            is_valid = value_range::both(is_valid, value_range::in_range_or_mask(op, subject, end, range, false)?)?;
        }
    }
    let width = copy::to_dtype(&arithmetic::sub(&high, &low)?, x.dtype())?;
    let (subject, range) = ("the distance between the ends of the bins", 0.0..=f64::MAX);
    is_valid = value_range::both(is_valid, value_range::in_range_or_mask(op, subject, &width, range, false)?)?;
    // If the ends are equal, both are moved outwards by ½, or by a larger distance where the dtype cannot represent a
    // change of ½.
    let moved = formula! {
        static histogram_ends(low, high; epsilon, limit) = {
            let margin = low.eq(high).select((low.abs() * epsilon).max(0.5), 0.0);
            ((low - margin).max(-limit), (high + margin).min(limit))
        };
    };
    let params = [x.dtype().epsilon().unwrap_or_default().into(), x.dtype().range().1];
    let ends: [Tensor; 2] =
        map_all(moved, &[&low, &high], &params)?.into_vec().try_into().expect("the formula must have two outputs");
    Ok((ends, is_valid))
}

/// Counts the elements in `bins` bins of equal width between two ends. Equal ends select the extrema of x.
///
/// The bin of an element is ⌊(x − low)·bins / (high − low)⌋. If the product overflows, the quotient is computed first.
/// Near an edge, rounding may select another bin than [`histogram`], which compares with the edges.
///
/// # Errors
/// The errors of [`histogram`].
#[tensor_method]
pub fn histc(x: &Tensor, bins: usize, low: f64, high: f64) -> Result<Tensor> {
    in_single!("histc", [x] => histc(x, bins, low, high));
    check_binned("histc", x)?;
    let ends = if low == high { None } else { Some([low, high]) };
    let ([low, high], is_valid) = bin_ends("histc", x, bins, ends)?;
    let placed = formula! {
        static histc(x, low, high; bins) = {
            let (distance, width) = (x - low, high - low);
            let scaled = distance * bins;
            let quotient = scaled.is_finite().select(scaled / width, distance / width * bins);
            let inside = x.ge(low) & x.le(high);
            (inside, inside.select(quotient, 0.0).floor())
        };
    };
    let x = view::ravel(&x.detach())?;
    let placed = map_all(placed, &[&x, &low, &high], &[(bins as f64).into()])?;
    // Bins are clamped as integers, because `f32` does not represent every integer above 2²⁴.
    let bin = arithmetic::minimum(&copy::to_dtype(&placed[1], DType::I64)?, bins as i64 - 1)?;
    let counts = gather::scatter_add_along(&copy::to_dtype(&placed[0], DType::I64)?, &bin, 0, [bins])?;
    let counts = copy::to_dtype(&counts, x.dtype())?;
    match &is_valid {
        Some(is_valid) => value_range::nan_unless(is_valid, &counts),
        None => Ok(counts),
    }
}
