//! Windows laid out as columns, and their sum back into an image.

use super::{Spatial, affordable, positive};
use crate::array::host_values;
use crate::ops;
use crate::ops::gather::scatter_add_axis;
use crate::ops::precision::{rounded, single};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result, Shape};

/// Windows along one axis.
struct Axis {
    /// `[taps, outputs]`: where each tap of each window lies in the padded axis.
    places: Tensor,
    taps: usize,
    outputs: usize,
    padding: usize,
    /// With padding.
    padded: usize,
}

/// The windows along every spatial axis, of which there are as many as `dims`.
fn axes(op: &'static str, dims: &[usize], options: [&Spatial; 4]) -> Result<Vec<Axis>> {
    let count = dims.len();
    if !(1..=3).contains(&count) {
        return Err(Error::invalid(op, format!("takes one to three spatial axes, not {count}")));
    }
    affordable(dims)?;
    let [size, dilation, padding, stride] = options;
    let size = positive(op, "the size", size.three(op, "size", count, 1)?)?;
    let dilation = positive(op, "dilation", dilation.three(op, "dilation", count, 1)?)?;
    let stride = positive(op, "stride", stride.three(op, "stride", count, 1)?)?;
    let padding = padding.three(op, "padding", count, 0)?;
    (3 - count..3)
        .zip(dims)
        .map(|(a, &len)| {
            let padded = len + 2 * padding[a];
            let reach = dilation[a] * (size[a] - 1) + 1;
            let Some(room) = padded.checked_sub(reach) else {
                let reason = format!("a window of {reach} does not fit an axis of {padded} with its padding");
                return Err(Error::invalid(op, reason));
            };
            let outputs = room / stride[a] + 1;
            let place = |t: usize| (0..outputs).map(move |o| (t * dilation[a] + o * stride[a]) as i64);
            let places = host_values(size[a].saturating_mul(outputs), (0..size[a]).flat_map(place))?;
            let places = ops::from_host(&places[..], [size[a], outputs])?;
            Ok(Axis { places, taps: size[a], outputs, padding: padding[a], padded })
        })
        .collect()
}

/// The product, or the largest number where that is larger: no tensor has this many elements.
fn product(lengths: impl Iterator<Item = usize>) -> usize {
    lengths.fold(1, usize::saturating_mul)
}

/// Every window as a column: `[N, C, spatial..]` to `[N, C·taps, windows]`, both in row-major order (im2col). One
/// image may come without N, and stays so.
///
/// # Errors
/// [`Error::ShapeMismatch`]; [`Error::InvalidArgument`] for impossible windows.
#[tensor_method]
pub fn unfold(
    x: &Tensor,
    size: impl Into<Spatial>,
    dilation: impl Into<Spatial>,
    padding: impl Into<Spatial>,
    stride: impl Into<Spatial>,
    spatial: usize,
) -> Result<Tensor> {
    let op = "unfold";
    if !(1..=3).contains(&spatial) {
        return Err(Error::invalid(op, format!("takes one to three spatial axes, not {spatial}")));
    }
    if x.rank() != spatial + 2 && x.rank() != spatial + 1 {
        let help = format!("takes [N, C, ..] or [C, ..] with {spatial} spatial axes");
        return Err(Error::shapes(op, [x.shape()], help));
    }
    let first = x.rank() - spatial;
    let options = [&size.into(), &dilation.into(), &padding.into(), &stride.into()];
    let axes = axes(op, &x.shape()[first..], options)?;
    let around = |a: usize| if a < first { 0 } else { axes[a - first].padding as isize };
    let width: Vec<(isize, isize)> = (0..x.rank()).map(|a| (around(a), around(a))).collect();
    let mut y = ops::pad(x, &width[..], ops::PadMode::Constant(0.into()))?;
    // Every axis becomes two: taps and windows.
    for (k, axis) in axes.iter().enumerate() {
        y = ops::index_select(&y, (first + 2 * k) as isize, &axis.places)?;
    }
    let taps = (0..spatial).map(|k| (first + 2 * k) as isize);
    let windows = taps.clone().map(|a| a + 1);
    let order: Vec<isize> = (0..first as isize).chain(taps).chain(windows).collect();
    let columns = product(axes.iter().map(|a| a.outputs));
    let rows = product(axes.iter().map(|a| a.taps).chain([x.shape()[first - 1]]));
    let shape: Shape = x.shape()[..first - 1].iter().copied().chain([rows, columns]).collect();
    ops::reshape_to(&ops::permute(&y, &order)?, &shape)
}

/// The transpose of [`unfold`]: what several windows say of one element is added up. `dims` are the spatial lengths of
/// the result.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the rows are no multiple of the taps, or the columns not as many as the windows;
/// [`Error::InvalidArgument`] for impossible windows; [`Error::OutOfMemory`].
#[tensor_method]
pub fn fold(
    x: &Tensor,
    dims: &[usize],
    size: impl Into<Spatial>,
    dilation: impl Into<Spatial>,
    padding: impl Into<Spatial>,
    stride: impl Into<Spatial>,
) -> Result<Tensor> {
    let op = "fold";
    let axes = axes(op, dims, [&size.into(), &dilation.into(), &padding.into(), &stride.into()])?;
    let (taps, columns) = (product(axes.iter().map(|a| a.taps)), product(axes.iter().map(|a| a.outputs)));
    let fits = (x.rank() == 2 || x.rank() == 3)
        && x.shape()[x.rank() - 1] == columns
        && x.shape()[x.rank() - 2].is_multiple_of(taps);
    if !fits {
        let help = format!("takes [N, C·{taps}, {columns}], for windows of {taps} elements at {columns} places");
        return Err(Error::shapes(op, [x.shape()], help));
    }
    let lead = x.rank() - 2;
    let channels = x.shape()[lead] / taps;
    let lengths = axes.iter().map(|a| a.taps).chain(axes.iter().map(|a| a.outputs));
    let shape: Shape = x.shape()[..lead].iter().copied().chain([channels]).chain(lengths).collect();
    // Each axis is one kernel; the result is rounded after the last.
    let number = single(&[x]).unwrap_or(x.dtype());
    let mut y = ops::reshape_to(&ops::to_dtype(x, number)?, &shape)?;
    let first = lead + 1;
    for (k, axis) in axes.iter().enumerate() {
        // Taps, taps.., windows, windows..: the first of either become one axis, in the place of the taps.
        let left = axes.len() - k;
        let pair = ops::movedim(&y, &[(first + k + left) as isize], &[(first + k + 1) as isize])?;
        let pair = ops::flatten(&pair, (first + k) as isize, (first + k + 1) as isize)?;
        let places = ops::ravel(&axis.places)?;
        y = scatter_add_axis(&pair, first + k, &places, axis.padded)?;
    }
    for (k, axis) in axes.iter().enumerate() {
        y = ops::narrow(&y, (first + k) as isize, axis.padding, axis.padded - 2 * axis.padding)?;
    }
    rounded(op, &[x], y)
}
