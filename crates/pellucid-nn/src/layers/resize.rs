//! Resizing of images: interpolation, and rearrangement of channels and pixels.

use crate::layer::Layer;
use pellucid_derive::Module;
use pellucid_tensor::ops::{InterpolationMode, Resize};
use pellucid_tensor::{Result, Tensor, ops};

/// Interpolation of images `[B, C, spatial..]` to other spatial lengths, for one to three spatial axes.
///
/// ```
/// use pellucid::nn::{Layer, Upsample};
/// use pellucid::ops::InterpolationMode;
/// let twice = Upsample::by([2.0]).mode(InterpolationMode::Linear { align_corners: false });
/// assert_eq!(twice.output_shape(&[1, 3, 8, 8])?.dims(), [1, 3, 16, 16]);
/// assert_eq!(Upsample::to([5, 7]).output_shape(&[1, 3, 8, 8])?.dims(), [1, 3, 5, 7]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "UpsamplingNearest2d")]
#[doc(alias = "UpsamplingBilinear2d")]
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct Upsample {
    /// The lengths or factors, one for all spatial axes or one each.
    pub size: Resize,
    /// The interpolation mode.
    pub mode: InterpolationMode,
}

impl Upsample {
    /// Creates a layer that resizes to these lengths, one for all spatial axes or one each, by nearest-neighbour
    /// interpolation.
    pub fn to(lengths: impl Into<Vec<usize>>) -> Upsample {
        Upsample { size: Resize::To(lengths.into()), mode: InterpolationMode::Nearest }
    }

    /// Creates a layer that scales by these factors, one for all spatial axes or one each, by nearest-neighbour
    /// interpolation.
    pub fn by(factors: impl Into<Vec<f64>>) -> Upsample {
        Upsample { size: Resize::By(factors.into()), mode: InterpolationMode::Nearest }
    }

    /// Sets the interpolation mode.
    pub fn mode(self, mode: InterpolationMode) -> Upsample {
        Upsample { mode, ..self }
    }
}

impl Layer for Upsample {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let spatial = x.rank().saturating_sub(2);
        let size = match &self.size {
            Resize::To(all) if all.len() == 1 => Resize::To(vec![all[0]; spatial]),
            Resize::By(all) if all.len() == 1 => Resize::By(vec![all[0]; spatial]),
            each => each.clone(),
        };
        ops::interpolate(x, size, self.mode)
    }
}

/// Rearranges `[.., C·r², H, W]` to `[.., C, H·r, W·r]`: r² channels become r×r pixels (Shi et al. 2016).
#[derive(Clone, Copy, Debug, Module)]
#[module(display)]
pub struct PixelShuffle(
    /// The factor r.
    pub usize,
);

impl Layer for PixelShuffle {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::pixel_shuffle(x, self.0)
    }
}

/// Rearranges `[.., C, H·r, W·r]` to `[.., C·r², H, W]`: the inverse of [`PixelShuffle`].
#[derive(Clone, Copy, Debug, Module)]
#[module(display)]
pub struct PixelUnshuffle(
    /// The factor r.
    pub usize,
);

impl Layer for PixelUnshuffle {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::pixel_unshuffle(x, self.0)
    }
}

/// Shuffles the channels of x `[B, C, ..]`: transposes them as `[groups, C / groups]` (Zhang et al. 2018).
#[derive(Clone, Copy, Debug, Module)]
#[module(display)]
pub struct ChannelShuffle(
    /// The number of groups.
    pub usize,
);

impl Layer for ChannelShuffle {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::channel_shuffle(x, self.0)
    }
}
