//! Adaptive pooling: a specified number of windows of almost equal size.
//!
//! For L elements and O windows, window o contains the elements ⌊o·L/O⌋ .. ⌈(o + 1)·L/O⌉. Adjacent windows may overlap.

use super::resample_taps::{ResampleTaps, apply_taps};
use super::shuffle::concat_dims;
use super::{SpatialImages, check_lengths};
use crate::array::{host_values, host_vec};
use crate::ops::call::check;
use crate::ops::formula::broadcast;
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::{create, fill, gather, view};
use crate::ops::reduce::reductions;
use crate::ops::shape::rearrange;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result, Shape};
use std::ops::Range;

/// Returns the range of elements of window o.
fn window_range(len: usize, outputs: usize, o: usize) -> Range<usize> {
    let window_start = |o: usize| (o as u128 * len as u128 / outputs as u128) as usize;
    window_start(o)..((o + 1) as u128 * len as u128).div_ceil(outputs as u128) as usize
}

/// Returns the length of the longest window: ⌈(r + L)/O⌉ for the largest remainder r of o·L divided by O, which is a
/// multiple of their greatest common divisor.
fn longest_window(len: usize, outputs: usize) -> usize {
    let (mut a, mut b) = (len, outputs);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    if outputs == 0 { 1 } else { (outputs - a + len).div_ceil(outputs) }
}

/// Returns the number of windows for each spatial axis. `None` keeps the length of x.
fn output_lengths(op: &'static str, x: &Tensor, outputs: &[Option<usize>], spatial: usize) -> Result<Vec<usize>> {
    let rank = x.rank();
    if rank != spatial + 1 && rank != spatial + 2 {
        let help = format!("the input must be [N, C, ..] or [C, ..] with {spatial} spatial axes");
        return Err(Error::shapes(op, [x.shape()], help));
    }
    let outputs = if outputs.len() == 1 { vec![outputs[0]; spatial] } else { outputs.to_vec() };
    if outputs.len() != spatial {
        return Err(Error::invalid(
            op,
            format!("the output must have the same length for all axes, or {spatial} lengths; got {outputs:?}"),
        ));
    }
    let dims = &x.shape()[rank - spatial..];
    if dims.contains(&0) {
        return Err(Error::shapes(op, [x.shape()], "the spatial axes must not be empty"));
    }
    let outputs: Vec<usize> = outputs.iter().zip(dims).map(|(output, &len)| output.unwrap_or(len)).collect();
    check_lengths(&outputs).map_err(|error| error.with_shape(&concat_dims(&x.shape()[..rank - spatial], &outputs)))?;
    Ok(outputs)
}

/// Computes the means of `outputs` windows along an axis.
pub(crate) fn adaptive_means(x: &Tensor, axis: usize, outputs: usize) -> Result<Tensor> {
    let len = x.shape()[axis];
    if len == outputs {
        return Ok(x.clone());
    }
    if outputs > 0 && len.is_multiple_of(outputs) {
        let parts = rearrange::unflatten(x, axis as isize, [outputs as isize, (len / outputs) as isize])?;
        return reductions::mean(&parts, axis as isize + 1);
    }
    let mut taps = ResampleTaps::new(longest_window(len, outputs), outputs)?;
    for window in (0..outputs).map(|o| window_range(len, outputs, o)) {
        let weight = 1.0 / window.len() as f64;
        taps.push(window.map(|i| (i, weight)));
    }
    apply_taps(x, axis, &taps)
}

fn adaptive_avg(op: &'static str, spatial: usize, x: &Tensor, outputs: &[Option<usize>]) -> Result<Tensor> {
    check::floats(op, &[x])?;
    in_single!(op, [x] => adaptive_avg(op, spatial, x, outputs));
    let outputs = output_lengths(op, x, outputs, spatial)?;
    let first = x.rank() - spatial;
    outputs.iter().enumerate().try_fold(x.clone(), |y, (a, &outputs)| adaptive_means(&y, first + a, outputs))
}

fn adaptive_max(op: &'static str, spatial: usize, x: &Tensor, outputs: &[Option<usize>]) -> Result<(Tensor, Tensor)> {
    let outputs = output_lengths(op, x, outputs, spatial)?;
    let images = SpatialImages::new(op, x, spatial)?;
    let dims = images.dims();
    let mut counts = [1; 3];
    counts[3 - spatial..].copy_from_slice(&outputs);
    // The row-major positions of the elements of every window. Shorter windows repeat their last position.
    let along = |a: usize| host_values(counts[a], (0..counts[a]).map(|o| window_range(dims[a], counts[a], o)));
    let axes = [along(0)?, along(1)?, along(2)?];
    let most = [0, 1, 2].map(|a| longest_window(dims[a], counts[a]));
    let at = |a: usize, o: usize, t: usize| axes[a][o].start + t.min(axes[a][o].len() - 1);
    let (windows, taps) = (counts.iter().product::<usize>(), most.iter().product::<usize>());
    let mut positions: Vec<i64> = host_vec(windows.saturating_mul(taps))?;
    for o in 0..windows {
        let o = [o / (counts[1] * counts[2]), o / counts[2] % counts[1], o % counts[2]];
        for t in 0..taps {
            let t = [t / (most[1] * most[2]), t / most[2] % most[1], t % most[2]];
            let [z, y, x] = [0, 1, 2].map(|a| at(a, o[a], t[a]));
            positions.push(((z * dims[1] + y) * dims[2] + x) as i64);
        }
    }
    let positions = create::from_host(&positions[..], [windows, taps])?;
    let (n, c) = (images.x.shape()[0], images.x.shape()[1]);
    let flat = view::flatten(&images.x, 2, -1)?;
    let window_values = gather::index_select(&flat.detach(), 2, &positions)?;
    let largest =
        if windows == 0 { fill::zeros([n, c, 0], DType::I64)? } else { reductions::argmax(&window_values, 3)? };
    let broadcast_positions = broadcast::broadcast_to(&positions, [n, c, windows, taps])?;
    let chosen = gather::take_along_axis(&broadcast_positions, &view::unsqueeze(&largest, 3)?, 3)?;
    let chosen = view::reshape_to(&chosen, &[n, c, windows].into())?;
    let values = gather::take_along_axis(&flat, &chosen, 2)?;
    let shape: Shape = [n, c].iter().chain(&counts).copied().collect();
    Ok((
        images.restore_axes(&view::reshape_to(&values, &shape)?)?,
        images.restore_axes(&view::reshape_to(&chosen, &shape)?)?,
    ))
}

macro_rules! adaptive {
    ($($avg:ident, $max:ident: $spatial:literal, $size:literal;)*) => {$(
        /// Computes the means of `outputs` windows along each spatial axis; `None` keeps an axis.
        ///
        #[doc = concat!("x is `[N, C, ", $size, "]` or `[C, ", $size, "]`.")]
        /// For O windows over L elements, window o contains the elements ⌊o·L/O⌋ .. ⌈(o + 1)·L/O⌉. If an O is 0, the
        /// result is empty.
        ///
        /// # Errors
        /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers; [`Error::InvalidArgument`] for a wrong
        /// number of lengths; [`Error::OutOfMemory`].
        #[tensor_method(autocast = Single)]
        pub fn $avg(x: &Tensor, outputs: &[Option<usize>]) -> Result<Tensor> {
            adaptive_avg(stringify!($avg), $spatial, x, outputs)
        }

        #[doc = concat!("Returns the maxima of the windows of [`", stringify!($avg), "`], and their `i64` positions.")]
        ///
        /// Positions are row-major over the spatial axes. The gradient goes to these positions.
        ///
        /// # Errors
        #[doc = concat!("The errors of [`", stringify!($avg), "`], except that integers are allowed.")]
        #[tensor_method]
        pub fn $max(x: &Tensor, outputs: &[Option<usize>]) -> Result<(Tensor, Tensor)> {
            adaptive_max(stringify!($max), $spatial, x, outputs)
        }
    )*};
}

adaptive! {
    adaptive_avg_pool1d, adaptive_max_pool1d: 1, "L";
    adaptive_avg_pool2d, adaptive_max_pool2d: 2, "H, W";
    adaptive_avg_pool3d, adaptive_max_pool3d: 3, "D, H, W";
}
