//! Resizing.

use super::crop::crop;
use super::{ImageTransform, check_size};
use crate::image::{Image, for_channels};
use crate::random::{SplitMix64, vec_with_capacity, with_rng};
use pellucid_derive::panicking_form;
use pellucid_tensor::ops::{InterpolationMode, PaddingMode};
use pellucid_tensor::{Error, OptionRange, Result, Scalar, unwrap};

/// The maximum number of pixels of a resized image.
const MAX_PIXELS: usize = 1 << 28;

/// Resizes an image to a height and a width. The supported interpolations are `NearestExact`, and `LinearAntialias` and
/// `CubicAntialias`, whose results equal Pillow's `BILINEAR` and `BICUBIC`.
///
/// # Errors
/// [`Error::InvalidArgument`] for other interpolations, a size of 0 and a size of more than 2²⁸ pixels;
/// [`Error::OutOfMemory`].
pub fn resize(image: &Image, size: [usize; 2], interpolation: InterpolationMode) -> Result<Image> {
    let op = "resize";
    let [height, width] = size;
    if height.checked_mul(width).is_none_or(|pixels| !(1..=MAX_PIXELS).contains(&pixels)) {
        let reason = format!("the size must have from 1 to {MAX_PIXELS} pixels, got {height} × {width}");
        return Err(Error::invalid(op, reason));
    }
    let (kernel, support): (fn(f64) -> f64, f64) = match interpolation {
        InterpolationMode::NearestExact => return resize_nearest(image, size),
        InterpolationMode::LinearAntialias => (|x| (1.0 - x.abs()).max(0.0), 1.0),
        InterpolationMode::CubicAntialias => (cubic_kernel, 2.0),
        other => {
            let help = "NearestExact, LinearAntialias and CubicAntialias are supported for images";
            return Err(Error::invalid(op, format!("the interpolation {other:?} is for tensors; {help}")));
        }
    };
    // As in Pillow, an axis of the same length is not resampled, and the image between the passes is rounded to bytes.
    let mut result = image.clone();
    if width != image.width() {
        let weights = AxisWeights::new(image.width(), width, kernel, support)?;
        result = for_channels!(result, resample_rows(&result, &weights))?;
    }
    if height != image.height() {
        let weights = AxisWeights::new(image.height(), height, kernel, support)?;
        result = resample_columns(&result, &weights)?;
    }
    Ok(result)
}

/// Returns the kernel of cubic interpolation (Keys 1981, with a = −0.5).
fn cubic_kernel(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

fn resize_nearest(image: &Image, [height, width]: [usize; 2]) -> Result<Image> {
    let source = |index: usize, len: usize, from: usize| {
        (((index as f64 + 0.5) * from as f64 / len as f64) as usize).min(from - 1)
    };
    let mut pixels = vec_with_capacity(height * width * image.channels())?;
    for row in 0..height {
        let row = source(row, height, image.height());
        (0..width).for_each(|column| pixels.extend_from_slice(image.pixel(row, source(column, width, image.width()))));
    }
    Image::try_new(pixels, [height, width, image.channels()])
}

/// The number of fraction bits of a weight.
const WEIGHT_BITS: u32 = 22;

/// The filter weights for each pixel of a resized axis.
struct AxisWeights {
    /// The first pixel of each sum.
    first: Vec<usize>,
    /// The weights of each sum, in fixed point.
    weights: Vec<i32>,
    /// The number of weights of each sum. Weights beyond the end of the axis are 0.
    taps: usize,
}

impl AxisWeights {
    fn new(from: usize, to: usize, kernel: fn(f64) -> f64, support: f64) -> Result<AxisWeights> {
        let scale = from as f64 / to as f64;
        // For downsampling, the support of the filter is scaled.
        let width = scale.max(1.0);
        let support = support * width;
        let taps = (2 * support.ceil() as usize + 1).min(from);
        let (mut first, mut weights) = (vec_with_capacity(to)?, vec_with_capacity(to.saturating_mul(taps))?);
        for index in 0..to {
            let center = (index as f64 + 0.5) * scale;
            let start = (center - support + 0.5).max(0.0) as usize;
            let end = ((center + support + 0.5) as usize).min(from);
            // All sums have the same number of terms, so the last sums begin earlier.
            let begin = start.min(from - taps);
            let weight = |pixel: usize| match (start..end).contains(&pixel) {
                true => kernel((pixel as f64 - center + 0.5) / width),
                false => 0.0,
            };
            let sum: f64 = (begin..begin + taps).map(weight).sum();
            let fixed = |pixel| (weight(pixel) / sum * f64::from(1 << WEIGHT_BITS)).round() as i32;
            first.push(begin);
            weights.extend((begin..begin + taps).map(fixed));
        }
        Ok(AxisWeights { first, weights, taps })
    }

    /// Returns the first pixel and the weights of each sum.
    fn sums(&self) -> impl Iterator<Item = (usize, &[i32])> {
        self.first.iter().copied().zip(self.weights.chunks_exact(self.taps))
    }
}

/// Half a unit in the last place, the initial value of a sum of weighted bytes.
const ROUNDING: i32 = 1 << (WEIGHT_BITS - 1);

/// Converts a sum of weighted bytes to a byte.
fn to_byte(sum: i32) -> u8 {
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}

/// Resamples the horizontal axis.
fn resample_rows<const C: usize>(image: &Image, weights: &AxisWeights) -> Result<Image> {
    let [height, width, channels] = image.shape();
    let mut pixels = vec_with_capacity(height * weights.first.len() * C)?;
    for row in image.pixels().as_chunks::<C>().0.chunks_exact(width) {
        for (first, weights) in weights.sums() {
            let mut sums = [ROUNDING; C];
            for (pixel, weight) in row[first..].iter().zip(weights) {
                for channel in 0..C {
                    sums[channel] += i32::from(pixel[channel]) * weight;
                }
            }
            pixels.extend(sums.map(to_byte));
        }
    }
    Image::try_new(pixels, [height, weights.first.len(), channels])
}

/// Resamples the vertical axis.
fn resample_columns(image: &Image, weights: &AxisWeights) -> Result<Image> {
    let [_, width, channels] = image.shape();
    let len = width * channels;
    let mut pixels = vec_with_capacity(weights.first.len() * len)?;
    let mut sums = vec![0; len];
    for (first, weights) in weights.sums() {
        sums.fill(ROUNDING);
        for (row, weight) in image.pixels()[first * len..].chunks_exact(len).zip(weights) {
            sums.iter_mut().zip(row).for_each(|(sum, byte)| *sum += i32::from(*byte) * weight);
        }
        pixels.extend(sums.iter().map(|sum| to_byte(*sum)));
    }
    Image::try_new(pixels, [weights.first.len(), width, channels])
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
    /// The length of the shorter side, if `size` is `None`.
    shorter: usize,
    interpolation: InterpolationMode,
}

impl ResizeImage {
    /// Resizes to a height and a width.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the height or the width is 0.
    #[panicking_form]
    pub fn try_new(size: [usize; 2]) -> Result<ResizeImage> {
        check_size("resize", size)?;
        Ok(ResizeImage { size: Some(size), shorter: 0, interpolation: InterpolationMode::LinearAntialias })
    }

    /// Resizes the shorter side to a length, and the longer side in proportion.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a length of 0.
    #[panicking_form]
    pub fn try_shorter_side(length: usize) -> Result<ResizeImage> {
        OptionRange::COUNT.check("resize", "the length", length as f64, 224.0)?;
        Ok(ResizeImage { size: None, shorter: length, interpolation: InterpolationMode::LinearAntialias })
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

/// Crops a random part of an image and resizes it (Szegedy et al. 2015). By default the part has 8 % to 100 % of the
/// area and an aspect ratio from 3/4 to 4/3.
#[derive(Clone, Copy, Debug)]
pub struct RandomResizedCrop {
    size: [usize; 2],
    scale: (f64, f64),
    ratio: (f64, f64),
    interpolation: InterpolationMode,
}

impl RandomResizedCrop {
    /// Creates a transform with this output height and width.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the height or the width is 0.
    #[panicking_form]
    pub fn try_new(size: [usize; 2]) -> Result<RandomResizedCrop> {
        check_size("random_resized_crop", size)?;
        let interpolation = InterpolationMode::LinearAntialias;
        Ok(RandomResizedCrop { size, scale: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0), interpolation })
    }

    /// Sets the range of the area of the crop, as a fraction of the area of the image.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless 0 < min ≤ max, both finite.
    #[panicking_form]
    #[must_use]
    pub fn try_scale(self, min: f64, max: f64) -> Result<Self> {
        OptionRange::POSITIVE.check_interval("random_resized_crop", "scale", [min, max], [0.08, 1.0])?;
        Ok(RandomResizedCrop { scale: (min, max), ..self })
    }

    /// Sets the range of the aspect ratio, width / height.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless 0 < min ≤ max, both finite.
    #[panicking_form]
    #[must_use]
    pub fn try_ratio(self, min: f64, max: f64) -> Result<Self> {
        OptionRange::POSITIVE.check_interval("random_resized_crop", "ratio", [min, max], [0.75, 1.33])?;
        Ok(RandomResizedCrop { ratio: (min, max), ..self })
    }

    /// Sets the interpolation. Default: `LinearAntialias`.
    #[must_use]
    pub fn interpolation(self, interpolation: InterpolationMode) -> Self {
        RandomResizedCrop { interpolation, ..self }
    }

    /// Draws the corner and the size of a crop. If no crop fits after ten tries, returns the largest central crop whose
    /// aspect ratio is in the range.
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

/// Draws the height and the width of a rectangle. The fraction of the area is uniform, and the logarithm of the aspect
/// ratio is uniform.
pub(super) fn draw_rectangle(rng: &mut SplitMix64, area: f64, scale: (f64, f64), ratio: (f64, f64)) -> (usize, usize) {
    let area = area * rng.uniform_in(scale.0, scale.1);
    let ratio = rng.uniform_in(ratio.0.ln(), ratio.1.ln()).exp();
    ((area / ratio).sqrt().round_ties_even() as usize, (area * ratio).sqrt().round_ties_even() as usize)
}

impl ImageTransform for RandomResizedCrop {
    fn apply(&self, image: Image) -> Result<Image> {
        let (corner, part) = with_rng(|rng| self.draw(rng, [image.height(), image.width()]))?;
        let corner = corner.map(|offset| offset as isize);
        let part = crop(&image, corner, part, PaddingMode::Constant(Scalar::Int(0)))?;
        resize(&part, self.size, self.interpolation)
    }
}
