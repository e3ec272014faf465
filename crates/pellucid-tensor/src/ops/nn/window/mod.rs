//! Operations on windows over one, two or three spatial axes: convolution, pooling, resampling.
//!
//! Images are `[N, C, spatial..]`, or `[C, spatial..]` for a single image. The kernels have three spatial axes. For
//! fewer axes, axes of length 1 are inserted before the spatial axes, and removed from the result.

mod adaptive;
mod conv;
mod fold;
mod fractional;
mod grid;
mod pool;
mod resample;
mod shuffle;

pub use adaptive::{
    adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d, adaptive_max_pool1d, adaptive_max_pool2d,
    adaptive_max_pool3d,
};
pub use conv::{
    ConvOptions, ConvPadding, conv_transpose1d, conv_transpose2d, conv_transpose3d, conv1d, conv2d, conv3d,
};
pub use fold::{FoldOptions, fold, unfold};
pub use fractional::{fractional_max_pool2d, fractional_max_pool3d};
pub use grid::{GridSampleMode, GridSamplePadding, affine_grid, grid_sample};
pub use pool::{
    AvgPoolDivisor, PoolOptions, avg_pool1d, avg_pool2d, avg_pool3d, lp_pool1d, lp_pool2d, lp_pool3d, max_pool1d,
    max_pool2d, max_pool3d, max_unpool1d, max_unpool2d, max_unpool3d,
};
pub use resample::{InterpolationMode, Resize, interpolate};
pub use shuffle::{channel_shuffle, pixel_shuffle, pixel_unshuffle};

pub(crate) use conv::window_sums;

use crate::ops::primitive::view;
use crate::tensor::Tensor;
use pellucid_ir::{Error, Result, Shape};
use std::fmt;

/// The maximum length, stride or padding. Sums and products of a few such values do not overflow.
const MAX_LENGTH: usize = 1 << 31;

/// The value of an option for each spatial axis: one value for all axes, or a list that starts with the first axis.
#[derive(Clone, PartialEq, Eq)]
pub struct Spatial(Vec<usize>);

impl fmt::Debug for Spatial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Spatial {
    /// The remedy for a stride or dilation of 0.
    #[doc(hidden)]
    pub const DEFAULT_IS_ONE: &str = "use 1, the default";
    /// The remedy for a stride of 0 if windows are adjacent by default.
    #[doc(hidden)]
    pub const DEFAULT_IS_SIZE: &str = "the default is the size of the window";
    /// The remedy for a window without elements.
    #[doc(hidden)]
    pub const ONE_ELEMENT: &str = "use 1 for an axis on which the window has one element";

    /// Returns three positive values: 1 for missing axes, then one value for each of `count` axes.
    fn to_positive(&self, op: &'static str, option: &str, count: usize, help: &str) -> Result<[usize; 3]> {
        check_positive(op, option, &self.0, help)?;
        self.to_three(op, option, count, 1)
    }

    /// Returns three values: `default` for missing axes, then one value for each of `count` axes.
    fn to_three(&self, op: &'static str, option: &str, count: usize, default: usize) -> Result<[usize; 3]> {
        if let Some(number) = self.0.iter().find(|&&number| number > MAX_LENGTH) {
            return Err(Error::invalid(op, format!("{option} of {number} exceeds the maximum, {MAX_LENGTH}")));
        }
        let mut all = [default; 3];
        match self.0[..] {
            [single] => all[3 - count..].fill(single),
            ref each if each.len() == count => all[3 - count..].copy_from_slice(each),
            ref each => {
                let reason =
                    format!("{option} must be one number, or one for each of {count} spatial axes; got {each:?}");
                return Err(Error::invalid(op, reason));
            }
        }
        Ok(all)
    }
}

impl From<usize> for Spatial {
    fn from(all: usize) -> Spatial {
        Spatial(vec![all])
    }
}

impl<const N: usize> From<[usize; N]> for Spatial {
    fn from(each: [usize; N]) -> Spatial {
        Spatial(each.to_vec())
    }
}

impl From<&[usize]> for Spatial {
    fn from(each: &[usize]) -> Spatial {
        Spatial(each.to_vec())
    }
}

impl From<Vec<usize>> for Spatial {
    fn from(each: Vec<usize>) -> Spatial {
        Spatial(each)
    }
}

/// A batch of images with three spatial axes, and the original number of spatial axes.
struct SpatialImages {
    /// `[N, C, z, y, x]`.
    x: Tensor,
    /// Whether x had a batch axis.
    is_batched: bool,
    spatial: usize,
}

impl SpatialImages {
    /// Reshapes `[N, C, spatial..]`, or one image without N.
    fn new(op: &'static str, x: &Tensor, spatial: usize) -> Result<SpatialImages> {
        let is_batched = x.rank() == spatial + 2;
        if !is_batched && x.rank() != spatial + 1 {
            let remedy = match x.rank() {
                rank if rank == spatial => "; add the channel axis with unsqueeze(0)",
                rank if rank < spatial => "; add axes with unsqueeze(0)",
                _ => "; merge leading axes with flatten()",
            };
            let help = format!("the input must be [N, C, ..] or [C, ..] with {spatial} spatial axes{remedy}");
            return Err(Error::shapes(op, [x.shape()], help));
        }
        let n = if is_batched { x.shape()[0] } else { 1 };
        let rest = x.shape().iter().skip(usize::from(is_batched));
        let (channels, dims): (usize, Vec<usize>) = {
            let mut rest = rest.copied();
            (rest.next().expect("images must have a channel axis"), rest.collect())
        };
        let shape = [n, channels].into_iter().chain(std::iter::repeat_n(1, 3 - spatial)).chain(dims);
        let x = view::reshape_to(x, &shape.collect())?;
        Ok(SpatialImages { x, is_batched, spatial })
    }

    /// Returns the three spatial lengths.
    fn dims(&self) -> [usize; 3] {
        [2, 3, 4].map(|a| self.x.shape()[a])
    }

    /// Removes the inserted axes from a result `[N, C', z, y, x]`.
    fn restore_axes(&self, y: &Tensor) -> Result<Tensor> {
        let outer = y.shape()[..2].iter().skip(usize::from(!self.is_batched));
        let shape: Shape = outer.chain(&y.shape()[5 - self.spatial..]).copied().collect();
        view::reshape_to(y, &shape)
    }
}

/// Returns an error with the remedy `help` unless all values of the option `option` are at least 1.
#[doc(hidden)]
pub fn check_positive(op: &'static str, option: &str, values: &[usize], help: &str) -> Result<()> {
    if values.contains(&0) {
        let reason = format!("{option} must be at least 1 on every axis, got {values:?}; {help}");
        return Err(Error::invalid(op, reason));
    }
    Ok(())
}

/// Returns an error if a result of these spatial lengths cannot fit into memory. Callers check this before they
/// allocate memory in proportion to the lengths.
fn check_lengths(lengths: &[usize]) -> Result<()> {
    let elements = lengths.iter().fold(1usize, |elements, &len| elements.saturating_mul(len));
    let fits = elements as u64 <= 1 << 40 && lengths.iter().all(|&len| len <= MAX_LENGTH);
    if fits { Ok(()) } else { Err(Error::size_overflow()) }
}
