//! Distances between vectors, and normalization of vectors.

use crate::array::host_values;
use crate::autograd::{apply_one, interface::*};
use crate::ops::call::axes::{check_reduction_rank, over};
use crate::ops::call::check;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::{apply_rows, broadcast, full_range, map_sum, power};
use crate::ops::primitive::concatenate::concatenate;
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::{copy, create, gather, precision, view};
use crate::ops::reduce::reductions;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::AxisSet;
use pellucid_ir::{Error, Result, Shape, formula};

/// Computes distances of vectors along the last axis: (Σ |aᵢ − bᵢ + ε|ᵖ)^(1/p) with ε = `eps`. a and b broadcast.
///
/// The operation stores the differences, an array of the broadcast shape. [`cdist`] of all pairs does not.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method(autocast = Single)]
pub fn pairwise_distance(a: &Tensor, b: &Tensor, p: f64, eps: f64, keepdims: bool) -> Result<Tensor> {
    in_single!("pairwise_distance", [a, b] => pairwise_distance(a, b, p, eps, keepdims));
    let axes = if keepdims { over(-1).keepdims() } else { over(-1) };
    reductions::norm(&arithmetic::add(&arithmetic::sub(a, b)?, eps)?, p, axes)
}

/// Computes the p-norm of a − b over all elements, a 0-d tensor. a and b broadcast.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers.
#[tensor_method(autocast = Single)]
pub fn dist(a: &Tensor, b: &Tensor, p: f64) -> Result<Tensor> {
    in_single!("dist", [a, b] => dist(a, b, p));
    if !(p > 0.0 && p.is_finite() && a.dtype().promote(b.dtype()).is_float()) {
        return reductions::norm(&arithmetic::sub(a, b)?, p, ..);
    }
    let shape = broadcast("dist", &[a, b])?;
    check_reduction_rank("dist", &shape)?;
    view::reshape_to(&norms(a, b, p, shape.size(), AxisSet::all(shape.rank()))?, &Shape::scalar())
}

/// Computes the p-norm distances of all pairs of rows of a `[.., N, D]` and b `[.., M, D]`: `[.., N, M]`.
///
/// The axes before the last two broadcast. The differences are reduced in the kernel that computes them. In addition to
/// inputs and result, the operation and its first two derivatives store a few arrays with the shapes of a, b and the
/// result, for every p. Third derivatives, and recorded second derivatives, store arrays `[.., N, M, D]`.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] for p < 0 or NaN.
#[tensor_method(autocast = Single)]
pub fn cdist(a: &Tensor, b: &Tensor, p: f64) -> Result<Tensor> {
    if a.rank() < 2 || b.rank() < 2 || a.shape()[a.rank() - 1] != b.shape()[b.rank() - 1] {
        return Err(Error::shapes(
            "cdist",
            [a.shape(), b.shape()],
            "the inputs must be [.., N, D] and [.., M, D], with points along the last axis",
        ));
    }
    check_order("cdist", p)?;
    check::floats("cdist", &[a, b])?;
    in_single!("cdist", [a, b] => cdist(a, b, p));
    let (a, b) = (precision::cast_operand("cdist", a)?, precision::cast_operand("cdist", b)?);
    distances(&a, &b, p)
}

/// The minimum number of points for which the distances of one point to all others are summed together, coordinate by
/// coordinate. A sum over the coordinates of each pair would be shorter than a few SIMD vectors.
const MIN_POINTS: usize = 32;

/// Computes the p-norms of the differences of all pairs of rows, without storing the differences.
fn distances(a: &Tensor, b: &Tensor, p: f64) -> Result<Tensor> {
    let is_by_coordinate = p != f64::INFINITY && b.shape()[b.rank() - 2] >= MIN_POINTS;
    let (a, b, axis) = match is_by_coordinate {
        true => (view::unsqueeze(a, -1)?, copy::contiguous(&view::transpose(b, -2, -1)?)?, -2),
        false => (view::unsqueeze(a, -2)?, b.clone(), -1),
    };
    let (a, b) = (&a, &view::unsqueeze(&b, -3)?);
    let shape = broadcast("cdist", &[a, b])?;
    check_reduction_rank("cdist", &shape)?;
    let coordinates = shape.axis("cdist", axis)?;
    let set = std::iter::once(coordinates).collect();
    let distances = norms(a, b, p, shape[coordinates], set)?;
    view::squeeze(&distances, axis)
}

/// Computes the p-norms of a − b over axes with `len` elements, which keep length 1. a and b broadcast.
fn norms(a: &Tensor, b: &Tensor, p: f64, len: usize, axis: AxisSet) -> Result<Tensor> {
    match p {
        f64::INFINITY if len == 0 => reductions::norm(&arithmetic::sub(a, b)?, p, over(-1).keepdims()),
        f64::INFINITY => {
            let dtype = a.dtype().promote(b.dtype());
            apply_one(LargestDifference { axis }, &[&copy::to_dtype(a, dtype)?, &copy::to_dtype(b, dtype)?])
        }
        0.0 | 1.0 => map_sum(power::difference_power(p), &[a, b], &[], axis, None),
        p => full_range::distance(a, b, p, axis),
    }
}

/// Computes the largest |a − b| over the last axis, which keeps length 1. It is not a row formula, because the
/// derivative of a row formula is stored in the shape of the differences. The derivative of this operation is summed in
/// the kernel that computes it.
struct LargestDifference {
    axis: AxisSet,
}

impl Operation for LargestDifference {
    fn name(&self) -> &'static str {
        "cdist"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(0);
        saves.input(1);
        saves.output(0);
        let [a, b] = [inputs[0], inputs[1]].map(|array| Tensor::from(array.clone()));
        let largest = formula! { static distance_max(a, b) = (a - b).abs().row_max(); };
        Ok(smallvec![apply_rows(largest, &[&a, &b], &[], self.axis)?.array().clone()])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let (a, b, y) = (saved.input(0)?, saved.input(1)?, saved.output(0)?);
        // Equal maxima share the gradient evenly.
        let ties = formula! { static distance_ties(a, b, y) = (a - b).abs().eq(y).to_number(); };
        let tie_fraction = arithmetic::div(&grads.get(0)?, &map_sum(ties, &[&a, &b, &y], &[], self.axis, None)?)?;
        let gradient = formula! {
            static distance_max_gradient(a, b, y, tie_fraction) = {
                let d = a - b;
                d.abs().eq(y).to_number() * (d.signum() * tie_fraction)
            };
        };
        let full = broadcast("cdist", &[&a, &b])?;
        let gradient_of = |k: usize, from: &Tensor, to: &Tensor| -> Result<Option<Tensor>> {
            if !needs.contains(k) {
                return Ok(None);
            }
            let axes = broadcast::broadcast_axes(from.shape(), &full);
            let sum = map_sum(gradient, &[from, to, &y, &tie_fraction], &[], axes, None)?;
            view::reshape_to(&sum, from.shape()).map(Some)
        };
        Ok(smallvec![gradient_of(0, &a, &b)?, gradient_of(1, &b, &a)?])
    }
}

/// Computes the p-norm distances of rows i < j of x `[N, D]`, in the order (0, 1), (0, 2), .., (1, 2), ..:
/// `[N(N − 1)/2]`.
///
/// The distances are elements of `cdist(x, x, p)` and have the same range. Like it, the operation and its gradient
/// store a few arrays `[N, N]`.
///
/// # Errors
/// [`Error::ShapeMismatch`] unless x is a matrix; [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] for
/// p < 0 or NaN; [`Error::OutOfMemory`].
#[tensor_method(autocast = Single)]
pub fn pdist(x: &Tensor, p: f64) -> Result<Tensor> {
    if x.rank() != 2 {
        return Err(Error::shapes("pdist", [x.shape()], "the input must be [N, D]: N points with D coordinates"));
    }
    check_order("pdist", p)?;
    check::floats("pdist", &[x])?;
    in_single!("pdist", [x] => pdist(x, p));
    let x = &precision::cast_operand("pdist", x)?;
    let count = x.shape()[0];
    let pairs = count as u128 * count.saturating_sub(1) as u128 / 2;
    if usize::try_from(pairs).is_err() {
        return Err(Error::size_overflow());
    }
    // The distances of the first points of `others`, which are `points`, to all later points of `others`.
    let distances_to_later = |points: &Tensor, others: &Tensor| {
        let (height, width) = (points.shape()[0], others.shape()[0]);
        let pairs = height * width - height * (height + 1) / 2;
        let each = (0..height).flat_map(|i| (i + 1..width).map(move |j| (i * width + j) as i64));
        let upper = create::from_host(&host_values(pairs, each)?, [pairs])?;
        gather::index_select(&view::ravel(&distances(points, others, p)?)?, 0, &upper)
    };
    if count < MIN_PDIST_ROWS {
        return distances_to_later(x, x);
    }
    // Blocks of points with all points from their first one on: about half of all pairs are computed.
    let rows = count.div_ceil(PDIST_BLOCKS);
    let block = |first: usize| {
        let others = view::narrow(x, 0, first, count - first)?;
        distances_to_later(&view::narrow(&others, 0, 0, rows.min(count - first))?, &others)
    };
    let blocks = (0..count).step_by(rows).map(block).collect::<Result<Vec<_>>>()?;
    concatenate(&blocks, 0)
}

/// The number of blocks of points of [`pdist`].
const PDIST_BLOCKS: usize = 8;

/// The minimum number of points for which [`pdist`] computes blocks. For fewer points, the additional kernels cost more
/// than the pairs that are not needed.
const MIN_PDIST_ROWS: usize = 256;

/// Returns an error unless the order p is at least 0.
fn check_order(op: &'static str, p: f64) -> Result<()> {
    if p >= 0.0 { Ok(()) } else { Err(Error::invalid(op, format!("the order p must be at least 0, got {p}"))) }
}

/// Computes the cosine similarity a·b / (max(‖a‖, ε)·max(‖b‖, ε)) along an axis. a and b broadcast.
///
/// The norms ‖a‖ and ‖b‖ must be representable: if one overflows, the result is 0.
///
/// Products are summed in the kernel that computes them. In addition to inputs and result, the operation stores arrays
/// with the shapes of a and b.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::AxisOutOfRange`], [`Error::DTypeMismatch`] for integers;
/// [`Error::InvalidArgument`] for an ε that is not finite.
#[tensor_method(autocast = Single)]
pub fn cosine_similarity(a: &Tensor, b: &Tensor, axis: isize, eps: f64) -> Result<Tensor> {
    check::finite("cosine_similarity", "eps", eps)?;
    let shape = check::common_shape("cosine_similarity", &[a, b], "a and b must broadcast")?;
    in_single!("cosine_similarity", [a, b] => cosine_similarity(a, b, axis, eps));
    let axis = shape.axis("cosine_similarity", axis)?;
    // Vectors are normalized before they are broadcast. But an operand with length 1 along the axis is broadcast first,
    // because its vectors have the broadcast length.
    let unit = |x: &Tensor| {
        let local_axis = (axis + x.rank()).checked_sub(shape.rank());
        match local_axis.filter(|&local_axis| x.shape()[local_axis] == shape[axis]) {
            Some(local_axis) => normalize(x, 2.0, local_axis as isize, eps),
            None => normalize(&broadcast::broadcast_to(x, &shape)?, 2.0, axis as isize, eps),
        }
    };
    let product = formula! { static cosine_similarity(a, b) = a * b; };
    let dot = map_sum(product, &[&unit(a)?, &unit(b)?], &[], std::iter::once(axis).collect(), None)?;
    view::squeeze(&dot, axis as isize)
}

/// Normalizes vectors along an axis to length 1: x / max(‖x‖_p, ε). The norm must be representable: if it overflows,
/// the result is 0.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] for an ε that is not
/// finite.
#[tensor_method(autocast = Single)]
pub fn normalize(x: &Tensor, p: f64, axis: isize, eps: f64) -> Result<Tensor> {
    check::finite("normalize", "eps", eps)?;
    in_single!("normalize", [x] => normalize(x, p, axis, eps));
    arithmetic::div(x, &arithmetic::maximum(&reductions::norm(x, p, over(axis).keepdims())?, eps)?)
}

/// Scales every slice along an axis down to the p-norm `max_norm` if its p-norm is larger.
///
/// # Errors
/// [`Error::ShapeMismatch`] for fewer than two axes; [`Error::AxisOutOfRange`]; [`Error::DTypeMismatch`] for integers;
/// [`Error::InvalidArgument`] for p ≤ 0 or a negative `max_norm`.
#[tensor_method(autocast = Single)]
pub fn renorm(x: &Tensor, p: f64, axis: isize, max_norm: f64) -> Result<Tensor> {
    let op = "renorm";
    if x.rank() < 2 {
        return Err(Error::shapes(op, [x.shape()], "the input must have at least two axes; unsqueeze() adds one"));
    }
    if p.is_nan() || p <= 0.0 || max_norm.is_nan() || max_norm < 0.0 {
        return Err(Error::invalid(
            op,
            format!("`p` must be above 0 and `max_norm` at least 0, got {p} and {max_norm}"),
        ));
    }
    in_single!(op, [x] => renorm(x, p, axis, max_norm));
    let axis = x.shape().axis(op, axis)?;
    let other_axes: Vec<isize> = (0..x.rank()).filter(|&k| k != axis).map(|k| k as isize).collect();
    let length = reductions::norm(x, p, over(other_axes).keepdims())?;
    let exceeds = compare::gt(&length, max_norm)?;
    if max_norm == 0.0 {
        // The quotient below would divide by `max_norm`, which is 0.
        return arithmetic::where_(&exceeds, 0.0, x);
    }
    // PyTorch also adds 1e-7; it avoids a division by a norm of 0.
    // This is a quotient, because the derivatives of a factor max_norm/norm contain higher powers of the norm.
    let divisor = arithmetic::div(&arithmetic::add(&length, 1e-7)?, max_norm)?;
    arithmetic::div(x, &arithmetic::where_(&exceeds, &divisor, 1.0)?)
}
