//! Other numbers of elements along spatial axes: interpolation, axis by axis.
//!
//! Every way is a linear map of one axis after the other, of which each output sees a few inputs: neighbours by
//! their weights.

use super::adaptive::averaged;
use super::affordable;
use crate::array::host_vec;
use crate::ops;
use crate::ops::precision::in_single;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result, Shape};

/// What each output along an axis sees: the same number of elements with their weights.
pub(super) struct Taps {
    each: usize,
    elements: Vec<i64>,
    weights: Vec<f64>,
}

impl Taps {
    /// For this many outputs, each of which sees at most `each` elements.
    pub(super) fn new(each: usize, outputs: usize) -> Result<Taps> {
        let count = each.saturating_mul(outputs);
        Ok(Taps { each, elements: host_vec(count)?, weights: host_vec(count)? })
    }

    /// One more output, that sees these.
    pub(super) fn push(&mut self, seen: impl IntoIterator<Item = (usize, f64)>) {
        let start = self.elements.len();
        for (element, weight) in seen {
            self.elements.push(element as i64);
            self.weights.push(weight);
        }
        // What is missing is seen with weight 0; the last element does, so that nothing else is read.
        let last = self.elements[start..].last().copied().unwrap_or(0);
        self.elements.resize(start + self.each, last);
        self.weights.resize(start + self.each, 0.0);
    }
}

/// y_o = Σ weights·x along an axis.
pub(super) fn resampled(x: &Tensor, axis: usize, taps: &Taps) -> Result<Tensor> {
    let (outputs, each) = (taps.elements.len() / taps.each, taps.each);
    let elements = ops::from_host(&taps.elements[..], [outputs, each])?;
    if each == 1 && taps.weights.iter().all(|&w| w == 1.0) {
        return ops::index_select(x, axis as isize, &ops::ravel(&elements)?);
    }
    let seen = ops::index_select(x, axis as isize, &elements)?;
    let shape: Shape = [outputs, each].into_iter().chain(std::iter::repeat_n(1, x.rank() - axis - 1)).collect();
    let weights = ops::to_dtype(&ops::from_host(&taps.weights[..], [outputs, each])?, x.dtype())?;
    let weights = ops::reshape_to(&weights, &shape)?;
    // A weight of 0 is no product: NaN and ∞ stay with the outputs that see them.
    let parts = match taps.weights.contains(&0.0) {
        false => ops::mul(&seen, &weights)?,
        true => ops::where_(&ops::eq(&weights, 0.0)?, 0.0, &ops::mul(&seen, &weights)?)?,
    };
    ops::sum(&parts, axis as isize + 1)
}

/// Where [`interpolate`] ends.
#[derive(Clone, PartialEq, Debug)]
pub enum Resize {
    /// At these lengths, one a spatial axis.
    To(Vec<usize>),
    /// At ⌊length·factor⌋, a factor a spatial axis; coordinates are divided by exactly that factor.
    By(Vec<f64>),
}

/// How [`interpolate`] finds the elements between elements.
///
/// Where `align_corners` is set, the first and the last element stay where they are; otherwise the edges of the image
/// do, elements being little squares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resample {
    /// The element at ⌊o·scale⌋ (in `f32`, as PyTorch and OpenCV have it).
    Nearest,
    /// The element whose middle is nearest.
    NearestExact,
    /// Between the two neighbours along each axis: linear, bilinear, trilinear.
    Linear {
        /// Whether the corners stay.
        align_corners: bool,
    },
    /// A cubic through four neighbours (Keys 1981, with a = −0.75).
    Cubic {
        /// Whether the corners stay.
        align_corners: bool,
    },
    /// The mean over the area of an output, as the adaptive pools have it.
    Area,
}

/// Images with other lengths, axis by axis; x is `[N, C, spatial..]` with one, two or three spatial axes.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for integers (but for the nearest element);
/// [`Error::InvalidArgument`] if there is not one length or factor a spatial axis, or nothing would be left;
/// [`Error::OutOfMemory`].
#[tensor_method]
pub fn interpolate(x: &Tensor, size: Resize, mode: Resample) -> Result<Tensor> {
    let op = "interpolate";
    let spatial = x.rank().wrapping_sub(2);
    if !(1..=3).contains(&spatial) || x.shape()[2..].contains(&0) {
        return Err(Error::shapes(op, [x.shape()], "takes [N, C, ..] with one to three spatial axes, none empty"));
    }
    let picks = matches!(mode, Resample::Nearest | Resample::NearestExact);
    if x.dtype() == DType::Bool || !x.dtype().is_float() && !picks {
        return Err(Error::dtypes(op, [x.dtype()], "takes floats; use to_dtype()"));
    }
    if !picks {
        in_single!(op, [x] => interpolate(x, size, mode));
    }
    let dims = &x.shape()[2..];
    // Lengths, and how far it is in x from one output to the next.
    let axes: Vec<(usize, f64)> = match &size {
        Resize::To(to) if to.len() == spatial => {
            to.iter().zip(dims).map(|(&to, &len)| (to, len as f64 / to as f64)).collect()
        }
        Resize::By(by) if by.len() == spatial => {
            by.iter().zip(dims).map(|(&by, &len)| ((len as f64 * by).floor() as usize, 1.0 / by)).collect()
        }
        other => {
            return Err(Error::invalid(
                op,
                format!("takes one number for each of {spatial} spatial axes, got {other:?}"),
            ));
        }
    };
    if axes.iter().any(|&(to, scale)| to == 0 || !scale.is_finite() || scale <= 0.0) {
        let given = match &size {
            Resize::By(by) => format!("factors {by:?}"),
            Resize::To(to) => format!("lengths {to:?}"),
        };
        let reason = format!(
            "makes no image of shape {} of {given}: factors are finite and positive, and every new length is at least 1",
            x.shape()
        );
        return Err(Error::invalid(op, reason));
    }
    affordable(&axes.iter().map(|axis| axis.0).collect::<Vec<_>>())?;
    let mut y = x.clone();
    for (k, &(to, scale)) in axes.iter().enumerate() {
        y = along(&y, k + 2, to, scale, mode)?;
    }
    Ok(y)
}

fn along(x: &Tensor, axis: usize, to: usize, scale: f64, mode: Resample) -> Result<Tensor> {
    let len = x.shape()[axis];
    let last = len - 1;
    let clamped = |i: isize| i.clamp(0, last as isize) as usize;
    // Where output o lies among the elements.
    let place = |o: usize, align: bool| match align {
        true if to > 1 => o as f64 * last as f64 / (to - 1) as f64,
        true => 0.0,
        false => (o as f64 + 0.5) * scale - 0.5,
    };
    let taps = match mode {
        Resample::Area => return averaged(x, axis, to),
        Resample::Nearest | Resample::NearestExact => {
            let shift = if mode == Resample::Nearest { 0.0 } else { 0.5 };
            let mut taps = Taps::new(1, to)?;
            (0..to).for_each(|o| taps.push([(clamped(((o as f32 + shift) * scale as f32) as isize), 1.0)]));
            taps
        }
        Resample::Linear { align_corners } => {
            let mut taps = Taps::new(2, to)?;
            for o in 0..to {
                let at = place(o, align_corners).max(0.0);
                let low = clamped(at.floor() as isize);
                let far = (at - low as f64).clamp(0.0, 1.0);
                taps.push([(low, 1.0 - far), ((low + 1).min(last), far)]);
            }
            taps
        }
        Resample::Cubic { align_corners } => {
            let mut taps = Taps::new(4, to)?;
            for o in 0..to {
                let at = place(o, align_corners);
                let low = at.floor();
                let weights = cubic(at - low);
                taps.push((0..4).map(|k| (clamped(low as isize + k as isize - 1), weights[k])));
            }
            taps
        }
    };
    resampled(x, axis, &taps)
}

/// a in Keys's cubic.
const A: f64 = -0.75;

/// The weights of the elements at −1, 0, 1, 2 for a place t in 0..1 (Keys, "Cubic convolution interpolation", 1981).
fn cubic(t: f64) -> [f64; 4] {
    let near = |d: f64| ((A + 2.0) * d - (A + 3.0)) * d * d + 1.0;
    let far = |d: f64| ((A * d - 5.0 * A) * d + 8.0 * A) * d - 4.0 * A;
    [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]
}

/// The same weights for a tensor of places.
pub(super) fn cubic_at(t: &Tensor) -> Result<Vec<Tensor>> {
    let horner = |d: &Tensor, c: [f64; 4]| {
        c[1..].iter().try_fold(ops::full_like(d, c[0])?, |sum, &c| ops::add(&ops::mul(&sum, d)?, c))
    };
    let near = |d: &Tensor| horner(d, [A + 2.0, -(A + 3.0), 0.0, 1.0]);
    let far = |d: &Tensor| horner(d, [A, -5.0 * A, 8.0 * A, -4.0 * A]);
    let rest = ops::sub(1.0, t)?;
    Ok(vec![far(&ops::add(t, 1.0)?)?, near(t)?, near(&rest)?, far(&ops::add(&rest, 1.0)?)?])
}
