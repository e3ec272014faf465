//! im2col and its transpose: windows as columns, and the sum of columns to an image.

use super::{Spatial, check_lengths};
use crate::array::host_values;
use crate::ops::primitive::precision::{round_to_operands, widened_dtype};
use crate::ops::primitive::sparse::{add_to_axis, select_axis};
use crate::ops::primitive::{copy, view};
use crate::ops::shape::pad::{PaddingMode, pad};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::Window;
use pellucid_ir::{Error, Result, Shape};

/// The windows along one axis.
struct AxisWindows {
    /// `[taps, outputs]`, row-major: the position of each tap of each window in the padded axis.
    positions: Vec<i64>,
    taps: usize,
    outputs: usize,
    padding: usize,
}

/// The windows of [`unfold`] and [`fold`]. By default, neighbouring windows start one element apart.
///
/// ```
/// use pellucid::{DType, Tensor, ops::FoldOptions};
/// let x = Tensor::ones([1, 2, 5, 5], DType::F32);
/// assert_eq!(x.unfold(FoldOptions::new(3), 2).shape().dims(), [1, 18, 9]);
/// assert_eq!(x.unfold(FoldOptions { stride: 2.into(), ..FoldOptions::new(3) }, 2).shape().dims(), [1, 18, 4]);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoldOptions {
    /// The size of a window.
    pub size: Spatial,
    /// The spacing of the elements of a window.
    pub dilation: Spatial,
    /// The zero padding at both ends of each axis.
    pub padding: Spatial,
    /// The stride between windows.
    pub stride: Spatial,
}

impl FoldOptions {
    /// Creates windows of this size with stride 1, without padding.
    pub fn new(size: impl Into<Spatial>) -> FoldOptions {
        FoldOptions { size: size.into(), dilation: 1.into(), padding: 0.into(), stride: 1.into() }
    }
}

/// Computes the windows along each spatial axis; `dims` are the spatial lengths.
fn windows_of_axes(op: &'static str, dims: &[usize], options: &FoldOptions) -> Result<Vec<AxisWindows>> {
    let count = dims.len();
    if !(1..=3).contains(&count) {
        return Err(Error::invalid(op, format!("the input must have one to three spatial axes, got {count}")));
    }
    check_lengths(dims)?;
    let FoldOptions { size, dilation, padding, stride } = options;
    let window = Window {
        size: size.to_positive(op, "the size", count, Spatial::ONE_ELEMENT)?,
        dilation: dilation.to_positive(op, "dilation", count, Spatial::DEFAULT_IS_ONE)?,
        stride: stride.to_positive(op, "stride", count, Spatial::DEFAULT_IS_ONE)?,
        before: padding.to_three(op, "padding", count, 0)?,
    };
    (3 - count..3)
        .zip(dims)
        .map(|(a, &len)| {
            let (taps, dilation, stride, padding) =
                (window.size[a], window.dilation[a], window.stride[a], window.before[a]);
            let padded = len + 2 * padding;
            let outputs = window.outputs(a, padded).ok_or_else(|| {
                let extent = window.extent(a);
                Error::invalid(
                    op,
                    format!(
                        "a window of {extent} does not fit into a padded axis of length {padded}; use a smaller window"
                    ),
                )
            })?;
            let place = |t: usize| (0..outputs).map(move |o| (t * dilation + o * stride) as i64);
            let positions = host_values(taps.saturating_mul(outputs), (0..taps).flat_map(place))?;
            Ok(AxisWindows { positions, taps, outputs, padding })
        })
        .collect()
}

/// Returns the product of lengths, or `usize::MAX` if it overflows, which is more elements than any tensor has.
fn product(lengths: impl Iterator<Item = usize>) -> usize {
    lengths.fold(1, usize::saturating_mul)
}

/// Extracts every window as a column (im2col): `[N, C, spatial..]` to `[N, C·taps, windows]`, both in row-major order.
/// `spatial` is the number of spatial axes, 1 to 3.
///
/// For a single image without N, the result has no axis N.
///
/// # Errors
/// [`Error::ShapeMismatch`]; [`Error::InvalidArgument`] for invalid windows.
#[tensor_method]
pub fn unfold(x: &Tensor, options: FoldOptions, spatial: usize) -> Result<Tensor> {
    let op = "unfold";
    if !(1..=3).contains(&spatial) {
        return Err(Error::invalid(op, format!("the input must have one to three spatial axes, got {spatial}")));
    }
    if x.rank() != spatial + 2 && x.rank() != spatial + 1 {
        let help = format!("the input must be [N, C, ..] or [C, ..] with {spatial} spatial axes");
        return Err(Error::shapes(op, [x.shape()], help));
    }
    let first = x.rank() - spatial;
    let axes = windows_of_axes(op, &x.shape()[first..], &options)?;
    let around = |a: usize| if a < first { 0 } else { axes[a - first].padding as isize };
    let width: Vec<(isize, isize)> = (0..x.rank()).map(|a| (around(a), around(a))).collect();
    let mut y = pad(x, &width[..], PaddingMode::Constant(0.into()))?;
    // Every axis becomes two: taps and windows. Products along the last axis cost most per element, so this axis is
    // expanded first, while the tensor is small.
    for (k, axis) in axes.iter().enumerate().rev() {
        y = select_axis(op, &y, first + k, (&axis.positions, &[axis.taps, axis.outputs]))?;
    }
    let taps = (0..spatial).map(|k| (first + 2 * k) as isize);
    let windows = taps.clone().map(|a| a + 1);
    let order: Vec<isize> = (0..first as isize).chain(taps).chain(windows).collect();
    let columns = product(axes.iter().map(|a| a.outputs));
    let rows = product(axes.iter().map(|a| a.taps).chain([x.shape()[first - 1]]));
    let shape: Shape = x.shape()[..first - 1].iter().copied().chain([rows, columns]).collect();
    view::reshape_to(&view::permute(&y, &order)?, &shape)
}

/// Sums columns of windows to an image with spatial lengths `dims`: the transpose of [`unfold`].
///
/// Elements that several windows contain are added.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the rows are not divisible by the taps, or the number of columns is not the number of
/// windows; [`Error::InvalidArgument`] for invalid windows; [`Error::OutOfMemory`].
#[tensor_method]
pub fn fold(x: &Tensor, dims: &[usize], options: FoldOptions) -> Result<Tensor> {
    let op = "fold";
    let axes = windows_of_axes(op, dims, &options)?;
    let (taps, columns) = (product(axes.iter().map(|a| a.taps)), product(axes.iter().map(|a| a.outputs)));
    let fits = (x.rank() == 2 || x.rank() == 3)
        && x.shape()[x.rank() - 1] == columns
        && x.shape()[x.rank() - 2].is_multiple_of(taps);
    if !fits {
        let help = format!("the input must be [N, C·{taps}, {columns}], for {columns} windows of {taps} elements");
        return Err(Error::shapes(op, [x.shape()], help));
    }
    let outer_axes = x.rank() - 2;
    let channels = x.shape()[outer_axes] / taps;
    let lengths = axes.iter().map(|a| a.taps).chain(axes.iter().map(|a| a.outputs));
    let shape: Shape = x.shape()[..outer_axes].iter().copied().chain([channels]).chain(lengths).collect();
    // Each axis needs one kernel; the result is rounded after the last kernel.
    let compute_dtype = widened_dtype(&[x]).unwrap_or(x.dtype());
    let mut y = view::reshape_to(&copy::to_dtype(x, compute_dtype)?, &shape)?;
    // The taps of every axis are followed by its windows.
    let first = outer_axes + 1;
    let order = (0..axes.len()).flat_map(|k| [first + k, first + axes.len() + k]);
    let order: Vec<isize> = (0..first).chain(order).map(|axis| axis as isize).collect();
    y = view::permute(&y, &order)?;
    for (k, (axis, &len)) in axes.iter().zip(dims).enumerate() {
        y = view::flatten(&y, (first + k) as isize, (first + k + 1) as isize)?;
        let inside = |place: &i64| (*place as usize).checked_sub(axis.padding).filter(|&place| place < len);
        let positions = host_values(axis.positions.len(), axis.positions.iter().map(inside))?;
        y = add_to_axis(op, &y, first + k, &positions, len)?;
    }
    round_to_operands(op, &[x], y)
}
