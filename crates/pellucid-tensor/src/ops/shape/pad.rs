//! Padding and cropping at the ends of axes.

use crate::array::host_values;
use crate::ops::primitive::fill;
use crate::ops::primitive::sparse::select_axis;
use crate::ops::primitive::view::{AxisSlices, embed_slices, slice_axes};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Integer, Result, Scalar};
use std::fmt;

/// The padding at both ends of each axis, as in `numpy.pad`: one count for all ends, one pair for all axes, or one pair
/// per axis, starting with the first. A negative count crops.
///
/// A pair is a tuple or an array of two counts. In a list of pairs, a single count applies to both ends of its axis.
///
/// ```
/// use pellucid::{Tensor, ops::PaddingMode};
/// let x = Tensor::from([[1.0, 2.0]]);
/// let zeros = PaddingMode::Constant(0.into());
/// assert_eq!(x.pad(1, zeros).shape().dims(), [3, 4]);
/// assert_eq!(x.pad((0, 2), zeros).shape().dims(), [3, 4]);
/// assert_eq!(x.pad(((0, 2),), zeros).shape().dims(), [3, 4]);
/// assert_eq!(x.pad(((1, 0), (0, 2)), zeros).shape().dims(), [2, 4]);
/// assert_eq!(x.pad((0, (1, 2)), zeros).shape().dims(), [1, 5]);
/// assert_eq!(x.pad([[0, 0], [2, -1]], PaddingMode::Replicate).to_vec::<f64>(), [1.0, 1.0, 1.0]);
/// ```
///
/// A flat list of integers is rejected, because it could mean one count per axis, or a pair, in either order of the
/// axes.
///
/// ```compile_fail
/// pellucid::ops::PadWidth::from([1, 2]);
/// ```
#[derive(Clone, Debug)]
pub enum PadWidth {
    /// The same element count at both ends of every axis.
    Same(isize),
    /// The element counts before and after every axis.
    Both(isize, isize),
    /// One pair of element counts for each axis; a single pair applies to all axes.
    Each(Vec<(isize, isize)>),
}

impl PadWidth {
    /// Returns the element counts before and after each of `rank` axes, or `None` for a wrong number of pairs.
    pub fn pairs(&self, rank: usize) -> Option<Vec<(isize, isize)>> {
        match self {
            PadWidth::Same(n) => Some(vec![(*n, *n); rank]),
            PadWidth::Both(before, after) => Some(vec![(*before, *after); rank]),
            PadWidth::Each(pairs) => match pairs[..] {
                [pair] => Some(vec![pair; rank]),
                _ => (pairs.len() == rank).then(|| pairs.clone()),
            },
        }
    }
}

/// Formats the counts as Rust source: `2`, `(0, 2)` or `[(1, 0), (0, 2)]`.
impl fmt::Display for PadWidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PadWidth::Same(n) => write!(f, "{n}"),
            PadWidth::Both(before, after) => write!(f, "({before}, {after})"),
            PadWidth::Each(pairs) => write!(f, "{pairs:?}"),
        }
    }
}

/// The padding of the two ends of an axis: `(before, after)`, `[before, after]`, or `(n,)` for both ends.
pub trait WidthPair {
    /// Returns the element counts before and after the axis.
    fn pair(self) -> (isize, isize);
}

impl<A: Integer, B: Integer> WidthPair for (A, B) {
    fn pair(self) -> (isize, isize) {
        (self.0.to_isize(), self.1.to_isize())
    }
}

impl<A: Integer> WidthPair for (A,) {
    fn pair(self) -> (isize, isize) {
        (self.0.to_isize(), self.0.to_isize())
    }
}

impl<A: Integer> WidthPair for [A; 2] {
    fn pair(self) -> (isize, isize) {
        self.map(A::to_isize).into()
    }
}

/// An entry of a tuple that converts to [`PadWidth`]: a number, or a pair `(before, after)`.
pub trait WidthEntry {
    /// Returns the width of this entry.
    fn width(self) -> PadWidth;
}

impl<P: WidthPair> WidthEntry for P {
    fn width(self) -> PadWidth {
        PadWidth::Each(vec![self.pair()])
    }
}

macro_rules! width_from_numbers {
    ($($t:ty),*) => {$(
        impl WidthEntry for $t {
            fn width(self) -> PadWidth {
                PadWidth::Same(self.to_isize())
            }
        }
        impl From<$t> for PadWidth {
            fn from(n: $t) -> PadWidth {
                n.width()
            }
        }
    )*};
}
width_from_numbers!(isize, usize, i32, i64, u32, u64);

impl<A: WidthEntry> From<(A,)> for PadWidth {
    fn from(all: (A,)) -> PadWidth {
        all.0.width()
    }
}

impl<A: WidthEntry, B: WidthEntry> From<(A, B)> for PadWidth {
    fn from(entries: (A, B)) -> PadWidth {
        match (entries.0.width(), entries.1.width()) {
            (PadWidth::Same(before), PadWidth::Same(after)) => PadWidth::Both(before, after),
            axes => PadWidth::Each([axes.0, axes.1].iter().filter_map(|width| width.pairs(1)).flatten().collect()),
        }
    }
}

macro_rules! width_from_tuples {
    ($({$($name:ident)+})*) => {$(
        impl<$($name: WidthPair),+> From<($($name,)+)> for PadWidth {
            #[allow(non_snake_case)]
            fn from(($($name,)+): ($($name,)+)) -> PadWidth {
                PadWidth::Each(vec![$($name.pair()),+])
            }
        }
    )*};
}
width_from_tuples!({A B C} {A B C D} {A B C D E} {A B C D E F});

impl<P: WidthPair + Copy> From<&[P]> for PadWidth {
    fn from(pairs: &[P]) -> PadWidth {
        PadWidth::Each(pairs.iter().map(|&pair| pair.pair()).collect())
    }
}

impl<P: WidthPair, const N: usize> From<[P; N]> for PadWidth {
    fn from(pairs: [P; N]) -> PadWidth {
        PadWidth::Each(pairs.map(P::pair).into())
    }
}

impl<P: WidthPair + Copy, const N: usize> From<&[P; N]> for PadWidth {
    fn from(pairs: &[P; N]) -> PadWidth {
        PadWidth::from(&pairs[..])
    }
}

impl<P: WidthPair + Copy> From<Vec<P>> for PadWidth {
    fn from(pairs: Vec<P>) -> PadWidth {
        PadWidth::from(&pairs[..])
    }
}

impl<P: WidthPair + Copy> From<&Vec<P>> for PadWidth {
    fn from(pairs: &Vec<P>) -> PadWidth {
        PadWidth::from(&pairs[..])
    }
}

/// The values of padding elements.
#[derive(Clone, Copy, Debug)]
pub enum PaddingMode {
    /// Padding elements are this constant.
    Constant(Scalar),
    /// Padding elements mirror the tensor at the edge, without the edge itself: c b | a b c | b a.
    Reflect,
    /// Padding elements repeat the edge: a a | a b c | c c.
    Replicate,
    /// Padding elements continue the cropped tensor periodically: b c | a b c | a b.
    Circular,
}

impl PaddingMode {
    /// Returns the name of the corresponding `mode` in PyTorch.
    fn name(self) -> &'static str {
        match self {
            PaddingMode::Constant(_) => "constant",
            PaddingMode::Reflect => "reflect",
            PaddingMode::Replicate => "replicate",
            PaddingMode::Circular => "circular",
        }
    }
}

/// Pads x at the ends of its axes, with values that the mode determines. Negative widths crop.
///
/// # Errors
/// [`Error::InvalidArgument`] unless there is one pair, or one per axis; if more elements are cropped than an axis has;
/// or if an axis is too short for the mode. `Reflect` needs more elements than it adds at an end, `Circular` needs at
/// least as many, and `Replicate` needs one.
#[doc(alias = "constant_pad")]
#[tensor_method]
pub fn pad(x: &Tensor, width: impl Into<PadWidth>, mode: PaddingMode) -> Result<Tensor> {
    let width = width.into();
    let Some(pairs) = width.pairs(x.rank()) else {
        let (given, axes) = (if let PadWidth::Each(pairs) = &width { pairs.len() } else { 1 }, x.rank());
        let reason = format!(
            "the width must be one pair (before, after) for all axes, or one for each of the {axes} axes of {}; got \
             {given}: {width}; a pair (0, 0) leaves an axis unchanged",
            x.shape()
        );
        return Err(Error::invalid("pad", reason));
    };
    for (axis, &(before, after)) in pairs.iter().enumerate() {
        let (len, limit) = (x.shape()[axis] as i128, 1 << 60);
        let (before, after) = (before as i128, after as i128);
        // A replicated axis may be cropped completely, because its edges are still known.
        let remaining = if matches!(mode, PaddingMode::Replicate) { 0 } else { len + before.min(0) + after.min(0) };
        if remaining < 0 || len + before + after < 0 || before.abs().max(after.abs()) > limit {
            return Err(Error::invalid(
                "pad",
                format!(
                    "axis {axis} of length {len} cannot be padded by ({before}, {after}); negative numbers crop, but \
                     no more elements than the axis has"
                ),
            ));
        }
    }
    match mode {
        PaddingMode::Constant(value) => pad_constant(x, &pairs, value),
        _ => pad_by_index(x, &pairs, mode),
    }
}

/// Crops x, then pads it with a constant.
fn pad_constant(x: &Tensor, pairs: &[(isize, isize)], value: Scalar) -> Result<Tensor> {
    if x.dtype().is_int() {
        fill::check_written("pad", value, x.dtype())?;
    }
    let mut slices_kept = AxisSlices::new();
    for (axis, &(before, after)) in pairs.iter().enumerate() {
        let (start, end) = (before.min(0).unsigned_abs(), after.min(0).unsigned_abs());
        if start + end > 0 {
            slices_kept.push((axis, start, 1, x.shape()[axis] - start - end));
        }
    }
    let x = slice_axes(x, slices_kept)?;
    let added: Vec<(usize, usize)> = pairs.iter().map(|&(b, a)| (b.max(0) as usize, a.max(0) as usize)).collect();
    if added.iter().all(|&(b, a)| b + a == 0) {
        return Ok(x);
    }
    let shape = x.shape().iter().zip(&added).map(|(&len, &(b, a))| b + len + a).collect();
    let slices = added.iter().enumerate().map(|(axis, &(before, _))| (axis, before, 1, x.shape()[axis])).collect();
    embed_slices(&x, shape, slices, value)
}

/// Pads by selecting an element of x for every index of the result.
fn pad_by_index(x: &Tensor, pairs: &[(isize, isize)], mode: PaddingMode) -> Result<Tensor> {
    let mut padded = x.clone();
    for (axis, &(before, after)) in pairs.iter().enumerate().filter(|(_, pair)| **pair != (0, 0)) {
        let len = x.shape()[axis];
        // Circular padding repeats the cropped axis only.
        let (first, period) = (before.min(0).abs(), len as isize + before.min(0) + after.min(0));
        let max_width = match mode {
            PaddingMode::Reflect => len.saturating_sub(1),
            PaddingMode::Circular => period as usize,
            _ if len == 0 => 0,
            _ => usize::MAX,
        };
        if before.max(after).max(0) as usize > max_width {
            let reason = format!(
                "axis {axis} of length {len} is too short for {} padding of ({before}, {after}); pad less",
                mode.name()
            );
            return Err(Error::invalid("pad", reason));
        }
        let last = len as isize - 1;
        let from = |i: isize| match mode {
            PaddingMode::Reflect => last - (last - i.abs()).abs(),
            PaddingMode::Circular => first + (i - first).rem_euclid(period),
            _ => i.clamp(0, last),
        };
        let positions = -before..len as isize + after;
        let index = host_values(positions.len(), positions.map(|i| from(i) as i64))?;
        padded = select_axis("pad", &padded, axis, (&index, &[index.len()]))?;
    }
    Ok(padded)
}
