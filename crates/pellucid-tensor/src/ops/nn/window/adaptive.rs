//! Adaptive pooling: a specified number of windows of almost equal size.
//!
//! For L elements and O windows, window o contains the elements ⌊o·L/O⌋ .. ⌈(o + 1)·L/O⌉. Adjacent windows may overlap.

use super::pool::MaxPoolOp;
use super::shuffle::concat_dims;
use super::{SpatialImages, check_lengths};
use crate::autograd::apply;
use crate::ops::call::check;
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::sparse::{SparseMatrix, multiply_axis};
use crate::ops::reduce::reductions;
use crate::ops::shape::rearrange;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::{PoolWindows, adaptive_window};
use pellucid_ir::{Error, Result};

/// Returns the length of the longest window: ⌈(r + L)/O⌉ for the largest remainder r of o·L divided by O. r is O −
/// gcd(L, O), because all remainders are multiples of gcd(L, O).
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
            format!("expected one output length for all axes, or {spatial} output lengths, got {outputs:?}"),
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

/// Computes the means of `outputs` windows along an axis. Errors name `op`.
pub(crate) fn adaptive_means(op: &'static str, x: &Tensor, axis: usize, outputs: usize) -> Result<Tensor> {
    let len = x.shape()[axis];
    if len == outputs {
        return Ok(x.clone());
    }
    if outputs > 0 && len.is_multiple_of(outputs) {
        return means_of_parts(x, &[(axis, outputs)]);
    }
    let mut matrix = SparseMatrix::new(len, outputs, outputs.saturating_mul(longest_window(len, outputs)))?;
    for window in (0..outputs).map(|o| adaptive_window(len, outputs, o)) {
        let weight = 1.0 / window.len() as f64;
        matrix.push_row(window.map(|i| (i, weight)));
    }
    multiply_axis(op, x, axis, matrix)
}

/// Divides axes into parts of equal length, and computes the means of the parts. `axes` lists each axis with its number
/// of parts, in ascending order.
fn means_of_parts(x: &Tensor, axes: &[(usize, usize)]) -> Result<Tensor> {
    let mut parts = x.clone();
    // The axes of the elements of a part. Each divided axis moves the later axes by one.
    let mut elements = Vec::new();
    for (k, &(axis, outputs)) in axes.iter().enumerate() {
        let len = (x.shape()[axis] / outputs) as isize;
        parts = rearrange::unflatten(&parts, (axis + k) as isize, [outputs as isize, len])?;
        elements.push((axis + k + 1) as isize);
    }
    reductions::mean(&parts, &elements[..])
}

fn adaptive_avg(op: &'static str, spatial: usize, x: &Tensor, outputs: &[Option<usize>]) -> Result<Tensor> {
    check::floats(op, &[x])?;
    in_single!(op, [x] => adaptive_avg(op, spatial, x, outputs));
    let outputs = output_lengths(op, x, outputs, spatial)?;
    let first = x.rank() - spatial;
    let (dims, axes) = (&x.shape()[first..], (0..spatial).map(|a| (first + a, outputs[a])));
    // Axes that are divided evenly are reduced together.
    let is_even = |&(axis, outputs): &(usize, usize)| {
        let len = dims[axis - first];
        outputs > 0 && len != outputs && len.is_multiple_of(outputs)
    };
    let even: Vec<(usize, usize)> = axes.clone().filter(is_even).collect();
    let y = if even.is_empty() { x.clone() } else { means_of_parts(x, &even)? };
    axes.filter(|axis| !is_even(axis)).try_fold(y, |y, (axis, outputs)| adaptive_means(op, &y, axis, outputs))
}

fn adaptive_max(op: &'static str, spatial: usize, x: &Tensor, outputs: &[Option<usize>]) -> Result<(Tensor, Tensor)> {
    let outputs = output_lengths(op, x, outputs, spatial)?;
    let images = SpatialImages::new(op, x, spatial)?;
    let mut counts = [1; 3];
    counts[3 - spatial..].copy_from_slice(&outputs);
    let found = apply(MaxPoolOp { windows: PoolWindows::Adaptive, outputs: counts }, &[&images.x])?;
    Ok((images.restore_axes(&found[0])?, images.restore_axes(&found[1])?))
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
