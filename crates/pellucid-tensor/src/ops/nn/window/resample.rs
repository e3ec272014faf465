//! Resampling of spatial axes: interpolation, axis by axis.
//!
//! Every mode is a linear map along one axis after another. Each output is a weighted sum of a few neighbouring inputs.

use super::adaptive::adaptive_means;
use super::check_lengths;
use super::shuffle::concat_dims;
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::sparse::{SparseMatrix, multiply_axis};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::Expr;
use pellucid_ir::{DType, Error, Result};
use std::fmt;

/// The size of the result of [`interpolate`].
#[derive(Clone, PartialEq, Debug)]
pub enum Resize {
    /// Lengths, one per spatial axis.
    To(Vec<usize>),
    /// Factors, one per spatial axis: lengths are ⌊length·factor⌋, and coordinates are divided by exactly this factor.
    By(Vec<f64>),
}

impl fmt::Display for Resize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resize::To(to) => write!(f, "lengths {to:?}"),
            Resize::By(by) => write!(f, "factors {by:?}"),
        }
    }
}

/// The interpolation mode of [`interpolate`].
///
/// With `align_corners` the centers of the first and the last element are aligned; otherwise the edges of the image are
/// aligned, with elements as unit squares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterpolationMode {
    /// For output o, the element with the index ⌊o·scale⌋ (in `f32`, as in PyTorch and OpenCV).
    Nearest,
    /// The element with the nearest center.
    NearestExact,
    /// Linear interpolation of the two nearest elements along each axis: linear, bilinear, trilinear.
    Linear {
        /// Whether the centers of the corner elements of input and output are aligned.
        align_corners: bool,
    },
    /// Cubic interpolation of the four nearest elements along each axis (Keys 1981, with a = −0.75).
    Cubic {
        /// Whether the centers of the corner elements of input and output are aligned.
        align_corners: bool,
    },
    /// Linear interpolation with antialiasing: downsampling stretches the support of the filter by the scale. The mode
    /// is PyTorch's `bilinear` with `antialias`, and Pillow's `BILINEAR`. The edges of the image are aligned.
    LinearAntialias,
    /// Cubic interpolation (Keys 1981, with a = −0.5) with antialiasing: downsampling stretches the support of the
    /// filter by the scale. The mode is PyTorch's `bicubic` with `antialias`, and Pillow's `BICUBIC`. The edges of the
    /// image are aligned.
    CubicAntialias,
    /// The mean over the area of an output element, as in adaptive average pooling.
    Area,
}

/// Resizes images x `[N, C, spatial..]`, with one to three spatial axes, by interpolation axis by axis.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for booleans, and for integers except in the modes `Nearest` and
/// `NearestExact`; [`Error::InvalidArgument`] unless there is one length or factor per spatial axis and no resulting
/// length is 0; [`Error::OutOfMemory`].
#[tensor_method(autocast = Single)]
pub fn interpolate(x: &Tensor, size: Resize, mode: InterpolationMode) -> Result<Tensor> {
    let op = "interpolate";
    let spatial = x.rank().wrapping_sub(2);
    if !(1..=3).contains(&spatial) || x.shape()[2..].contains(&0) {
        let help =
            "the input must be [N, C, ..] with one to three spatial axes, none empty; unsqueeze() adds missing axes";
        return Err(Error::shapes(op, [x.shape()], help));
    }
    let picks = matches!(mode, InterpolationMode::Nearest | InterpolationMode::NearestExact);
    if x.dtype() == DType::Bool || !x.dtype().is_float() && !picks {
        return Err(Error::dtypes(op, [x.dtype()], "the input must have a float dtype; use to_dtype()"));
    }
    if !picks {
        in_single!(op, [x] => interpolate(x, size, mode));
    }
    let dims = &x.shape()[2..];
    // For each axis: the length of the result, and the step in x from one output to the next.
    let axes: Vec<(usize, f64)> = match &size {
        Resize::To(to) if to.len() == spatial => {
            to.iter().zip(dims).map(|(&to, &len)| (to, len as f64 / to as f64)).collect()
        }
        Resize::By(by) if by.len() == spatial => {
            by.iter().zip(dims).map(|(&by, &len)| ((len as f64 * by).floor() as usize, 1.0 / by)).collect()
        }
        other => {
            let reason = format!(
                "the size must have one number for each of {spatial} spatial axes, got {other}; pass {spatial} numbers"
            );
            return Err(Error::invalid(op, reason));
        }
    };
    if axes.iter().any(|&(to, scale)| to == 0 || !scale.is_finite() || scale <= 0.0) {
        let reason = format!(
            "the input of shape {} cannot be resized to {size}: factors must be finite and positive, and every new \
             length at least 1",
            x.shape()
        );
        return Err(Error::invalid(op, reason));
    }
    let lengths: Vec<usize> = axes.iter().map(|axis| axis.0).collect();
    check_lengths(&lengths).map_err(|error| error.with_shape(&concat_dims(&x.shape()[..2], &lengths)))?;
    let mut y = x.clone();
    for a in resampling_order(dims, &lengths) {
        let (to, scale) = axes[a];
        y = resample_axis(&y, a + 2, to, scale, mode)?;
    }
    Ok(y)
}

/// Returns the order in which axes are resampled, as indices: first the axes that shrink most, so that the intermediate
/// images are small. Among axes with equal factors, the last axis is resampled first if the axes grow, and last if they
/// shrink, because products along the last axis cost most per element.
fn resampling_order(dims: &[usize], lengths: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..dims.len()).collect();
    order.sort_by(|&a, &b| {
        let growth = (lengths[a] as u128 * dims[b] as u128).cmp(&(lengths[b] as u128 * dims[a] as u128));
        growth.then(if lengths[a] > dims[a] { b.cmp(&a) } else { a.cmp(&b) })
    });
    order
}

fn resample_axis(x: &Tensor, axis: usize, to: usize, scale: f64, mode: InterpolationMode) -> Result<Tensor> {
    let len = x.shape()[axis];
    let last = len - 1;
    let clamped = |i: isize| i.clamp(0, last as isize) as usize;
    // Returns the coordinate of output o, in elements of x.
    let coordinate = |o: usize, align: bool| match align {
        true if to > 1 => o as f64 * last as f64 / (to - 1) as f64,
        true => 0.0,
        false => (o as f64 + 0.5) * scale - 0.5,
    };
    let matrix = match mode {
        InterpolationMode::Area => return adaptive_means("interpolate", x, axis, to),
        InterpolationMode::Nearest | InterpolationMode::NearestExact => {
            let shift = if mode == InterpolationMode::Nearest { 0.0 } else { 0.5 };
            let mut matrix = SparseMatrix::new(len, to, to)?;
            (0..to).for_each(|o| matrix.push_row([(clamped(((o as f32 + shift) * scale as f32) as isize), 1.0)]));
            matrix
        }
        InterpolationMode::Linear { align_corners } => {
            let mut matrix = SparseMatrix::new(len, to, 2 * to)?;
            for o in 0..to {
                let position = coordinate(o, align_corners).max(0.0);
                let low = clamped(position.floor() as isize);
                let weight_high = (position - low as f64).clamp(0.0, 1.0);
                matrix.push_row([(low, 1.0 - weight_high), ((low + 1).min(last), weight_high)]);
            }
            matrix
        }
        InterpolationMode::Cubic { align_corners } => {
            let mut matrix = SparseMatrix::new(len, to, 4 * to)?;
            for o in 0..to {
                let position = coordinate(o, align_corners);
                let low = position.floor();
                let weights = cubic(position - low);
                matrix.push_row((0..4).map(|k| (clamped(low as isize + k as isize - 1), weights[k])));
            }
            matrix
        }
        InterpolationMode::LinearAntialias => filter_taps(len, to, scale, 1.0, |d| (1.0 - d).max(0.0))?,
        InterpolationMode::CubicAntialias => filter_taps(len, to, scale, 2.0, |d| match d {
            d if d < 1.0 => keys_near(d, FILTER_A),
            d if d < 2.0 => keys_far(d, FILTER_A),
            _ => 0.0,
        })?,
    };
    multiply_axis("interpolate", x, axis, matrix)
}

/// Returns the taps of a resampling filter with support `radius`. If the axis shrinks, the support is stretched by the
/// scale. The weights of each output sum to 1.
fn filter_taps(len: usize, to: usize, scale: f64, radius: f64, filter: impl Fn(f64) -> f64) -> Result<SparseMatrix> {
    let stretch = scale.max(1.0);
    let support = radius * stretch;
    let most = ((2.0 * support).ceil() as usize).saturating_add(1).min(len);
    let mut matrix = SparseMatrix::new(len, to, most.saturating_mul(to))?;
    for o in 0..to {
        let center = (o as f64 + 0.5) * scale;
        let first = ((center - support + 0.5).max(0.0) as usize).min(len - 1);
        let end = ((center + support + 0.5) as usize).clamp(first + 1, len);
        let weight = |i: usize| filter((i as f64 + 0.5 - center).abs() / stretch);
        let total: f64 = (first..end).map(weight).sum();
        matrix.push_row((first..end).map(|i| (i, weight(i) / total)));
    }
    Ok(matrix)
}

/// The parameter a of Keys's cubic kernel.
const A: f64 = -0.75;

/// The parameter a of Keys's cubic kernel in antialiasing filters.
const FILTER_A: f64 = -0.5;

/// Evaluates Keys's cubic kernel at a distance d of at most 1.
fn keys_near(d: f64, a: f64) -> f64 {
    ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
}

/// Evaluates Keys's cubic kernel at a distance d from 1 to 2.
fn keys_far(d: f64, a: f64) -> f64 {
    ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
}

/// Returns the weights of the elements at −1, 0, 1 and 2 in the interpolation at t in [0, 1) (Keys, "Cubic convolution
/// interpolation", 1981).
fn cubic(t: f64) -> [f64; 4] {
    let (inner, outer) = (|d: f64| keys_near(d, A), |d: f64| keys_far(d, A));
    [outer(t + 1.0), inner(t), inner(1.0 - t), outer(2.0 - t)]
}

/// Returns weight k of [`cubic`] at t.
pub(super) fn cubic_weight(t: Expr, k: Expr) -> Expr {
    let horner = |d: Expr, c: [f64; 4]| ((d * c[0] + c[1]) * d + c[2]) * d + c[3];
    // The distance to the nearer of the two inner elements, on the side of element k.
    let distance = k.lt(2).select(t, 1.0 - t);
    let inner = horner(distance, [A + 2.0, -(A + 3.0), 0.0, 1.0]);
    let outer = horner(distance + 1.0, [A, -5.0 * A, 8.0 * A, -4.0 * A]);
    (k.eq(1) | k.eq(2)).select(inner, outer)
}
