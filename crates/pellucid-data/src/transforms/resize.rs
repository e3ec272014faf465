//! Changes of the size.

use super::ImageTransform;
use super::crop::crop;
use crate::image::Image;
use crate::random::{SplitMix64, with_rng};
use fast_image_resize::images::{Image as Pixels, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use pellucid_tensor::ops::{InterpolationMode, PaddingMode};
use pellucid_tensor::{Error, Result, Scalar};

/// The largest number of pixels of a resized image.
const MAX_PIXELS: usize = 1 << 28;

/// Resizes an image to a height and a width. The interpolations are `LinearAntialias` and `CubicAntialias`, which have
/// Pillow's values, and `NearestExact`.
///
/// # Errors
/// [`Error::InvalidArgument`] for other interpolations, a size of 0 and a size of more than 2²⁸ pixels.
pub fn resize(image: &Image, size: [usize; 2], interpolation: InterpolationMode) -> Result<Image> {
    let op = "resize";
    let algorithm = match interpolation {
        InterpolationMode::NearestExact => ResizeAlg::Nearest,
        InterpolationMode::LinearAntialias => ResizeAlg::Convolution(FilterType::Bilinear),
        InterpolationMode::CubicAntialias => ResizeAlg::Convolution(FilterType::CatmullRom),
        other => {
            let help = "NearestExact, LinearAntialias and CubicAntialias are supported for images";
            return Err(Error::invalid(op, format!("the interpolation {other:?} is for tensors; {help}")));
        }
    };
    let [height, width] = size;
    if height.checked_mul(width).is_none_or(|pixels| !(1..=MAX_PIXELS).contains(&pixels)) {
        let reason = format!("the size must have from 1 to {MAX_PIXELS} pixels, got {height} × {width}");
        return Err(Error::invalid(op, reason));
    }
    if [image.height(), image.width()] == size {
        return Ok(image.clone());
    }
    let (pixel_type, channels) = match image.channels() {
        1 => (PixelType::U8, 1),
        3 => (PixelType::U8x3, 3),
        _ => (PixelType::U8x4, 4),
    };
    let refuse = |error: &dyn std::fmt::Display| Error::invalid(op, error.to_string());
    let len = |len: usize| u32::try_from(len).map_err(|error| refuse(&error));
    let source = ImageRef::new(len(image.width())?, len(image.height())?, image.pixels(), pixel_type);
    let source = source.map_err(|error| refuse(&error))?;
    let mut target = Pixels::new(len(width)?, len(height)?, pixel_type);
    // All channels are resized alike, as by torchvision.
    let options = ResizeOptions::new().resize_alg(algorithm).use_alpha(false);
    Resizer::new().resize(&source, &mut target, &options).map_err(|error| refuse(&error))?;
    Image::try_new(target.into_vec(), [height, width, channels])
}

/// Resizes an image to a height and a width, or its shorter side to a length.
///
/// ```
/// use pellucid::data::Image;
/// use pellucid::data::transforms::{ImageTransform, ResizeImage};
/// let image = Image::new(vec![9; 40 * 20 * 3], [40, 20, 3]);
/// assert_eq!(ResizeImage::new([8, 8]).apply(image.clone())?.shape(), [8, 8, 3]);
/// assert_eq!(ResizeImage::shorter_side(10).apply(image)?.shape(), [20, 10, 3]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "Resize")]
#[derive(Clone, Copy, Debug)]
pub struct ResizeImage {
    /// The height and the width.
    size: Option<[usize; 2]>,
    /// The length of the shorter side without a size.
    shorter: usize,
    interpolation: InterpolationMode,
}

impl ResizeImage {
    /// Resizes to a height and a width.
    pub fn new(size: [usize; 2]) -> ResizeImage {
        ResizeImage { size: Some(size), shorter: 0, interpolation: InterpolationMode::LinearAntialias }
    }

    /// Resizes the shorter side to a length, and the other one in proportion.
    pub fn shorter_side(length: usize) -> ResizeImage {
        ResizeImage { size: None, shorter: length, interpolation: InterpolationMode::LinearAntialias }
    }

    /// Sets the interpolation. Default: `LinearAntialias`.
    #[must_use]
    pub fn interpolation(self, interpolation: InterpolationMode) -> Self {
        ResizeImage { interpolation, ..self }
    }
}

impl ImageTransform for ResizeImage {
    fn apply(&self, image: Image) -> Result<Image> {
        let [height, width] = [image.height(), image.width()];
        // torchvision truncates the longer side.
        let scaled = |long: usize, short: usize| (self.shorter as u128 * long as u128 / short as u128) as usize;
        let size = self.size.unwrap_or_else(|| match height <= width {
            true => [self.shorter, scaled(width, height)],
            false => [scaled(height, width), self.shorter],
        });
        resize(&image, size, self.interpolation)
    }
}

/// Returns a random part of an image, of 8 % to 100 % of its area and an aspect ratio from 3/4 to 4/3, resized to a
/// size (Szegedy et al. 2015).
#[derive(Clone, Copy, Debug)]
pub struct RandomResizedCrop {
    size: [usize; 2],
    scale: (f64, f64),
    ratio: (f64, f64),
    interpolation: InterpolationMode,
}

impl RandomResizedCrop {
    /// Creates a crop with this height and width.
    pub fn new(size: [usize; 2]) -> RandomResizedCrop {
        let interpolation = InterpolationMode::LinearAntialias;
        RandomResizedCrop { size, scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0), interpolation }
    }

    /// Sets the least and the largest share of the area.
    #[must_use]
    pub fn scale(self, least: f64, largest: f64) -> Self {
        RandomResizedCrop { scale: (least, largest), ..self }
    }

    /// Sets the least and the largest ratio of width and height.
    #[must_use]
    pub fn ratio(self, least: f64, largest: f64) -> Self {
        RandomResizedCrop { ratio: (least, largest), ..self }
    }

    /// Sets the interpolation. Default: `LinearAntialias`.
    #[must_use]
    pub fn interpolation(self, interpolation: InterpolationMode) -> Self {
        RandomResizedCrop { interpolation, ..self }
    }

    /// Draws the corner and the size of a part. After ten tries that do not fit, it is the central part.
    fn draw(&self, rng: &mut SplitMix64, [height, width]: [usize; 2]) -> ([usize; 2], [usize; 2]) {
        for _ in 0..10 {
            let (rows, columns) = draw_rectangle(rng, height as f64 * width as f64, self.scale, self.ratio);
            if (1..=height).contains(&rows) && (1..=width).contains(&columns) {
                return ([rng.below(height - rows + 1), rng.below(width - columns + 1)], [rows, columns]);
            }
        }
        let (h, w) = (height as f64, width as f64);
        let (rows, columns) = match w / h {
            ratio if ratio < self.ratio.0 => ((w / self.ratio.0).round() as usize, width),
            ratio if ratio > self.ratio.1 => (height, (h * self.ratio.1).round() as usize),
            _ => (height, width),
        };
        let (rows, columns) = (rows.clamp(1, height), columns.clamp(1, width));
        ([(height - rows) / 2, (width - columns) / 2], [rows, columns])
    }
}

/// Draws the height and the width of a rectangle with a share of an area and a ratio of width and height, whose
/// logarithm is uniform.
pub(super) fn draw_rectangle(rng: &mut SplitMix64, area: f64, scale: (f64, f64), ratio: (f64, f64)) -> (usize, usize) {
    let area = area * rng.uniform_in(scale.0, scale.1);
    let ratio = rng.uniform_in(ratio.0.ln(), ratio.1.ln()).exp();
    ((area / ratio).sqrt().round_ties_even() as usize, (area * ratio).sqrt().round_ties_even() as usize)
}

/// Checks the ranges of [`draw_rectangle`].
pub(super) fn check_rectangle(op: &'static str, scale: (f64, f64), ratio: (f64, f64)) -> Result<()> {
    for (name, (least, largest)) in [("scale", scale), ("ratio", ratio)] {
        if !(least > 0.0 && least <= largest && largest.is_finite()) {
            let reason = format!("the {name} must be a range of positive numbers, got {least} to {largest}");
            return Err(Error::invalid(op, reason));
        }
    }
    Ok(())
}

impl ImageTransform for RandomResizedCrop {
    fn apply(&self, image: Image) -> Result<Image> {
        check_rectangle("random_resized_crop", self.scale, self.ratio)?;
        let (corner, part) = with_rng(|rng| self.draw(rng, [image.height(), image.width()]))?;
        let corner = corner.map(|offset| offset as isize);
        let part = crop(&image, corner, part, PaddingMode::Constant(Scalar::Int(0)))?;
        resize(&part, self.size, self.interpolation)
    }
}
