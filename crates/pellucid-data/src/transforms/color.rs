//! Color transforms: brightness, contrast, saturation and hue. The alpha channel is unchanged.

use super::{ImageTransform, color_channels, map_bytes};
use crate::image::{Image, byte_table};
use crate::random::{SplitMix64, with_rng};
use pellucid_derive::panicking_form;
use pellucid_tensor::{Error, OptionRange, Result, unwrap};

/// The number of pixels that are computed together, so that the compiler uses vector instructions.
const BLOCK: usize = 32;

/// Converts an `f32` to a byte: clamped to [0, 255] and truncated, as in torchvision.
fn truncate_to_byte(value: f32) -> u8 {
    value as u8
}

/// Returns an error for a factor that is negative or not finite.
fn check_factor(op: &'static str, factor: f64) -> Result<f32> {
    if factor >= 0.0 && factor.is_finite() {
        return Ok(factor as f32);
    }
    Err(Error::invalid(op, format!("the factor must be finite and not negative, got {factor}")))
}

/// Replaces each byte x of the color channels by `f(x)`.
fn map_colors(image: &mut Image, f: impl Fn(f32) -> f32) {
    let table = byte_table(|byte| truncate_to_byte(f(byte.into())));
    if image.channels() == 4 {
        let identity = byte_table(|byte| byte);
        return map_bytes(image, &[table, table, table, identity]);
    }
    image.pixels_mut().iter_mut().for_each(|byte| *byte = table[usize::from(*byte)]);
}

/// Returns the luma of a pixel, 0.2989 R + 0.587 G + 0.114 B.
fn luma(r: f32, g: f32, b: f32) -> f32 {
    0.2989 * r + 0.587 * g + 0.114 * b
}

/// Calls `f` with blocks of pixels as planes of floats, red, green and blue, and writes their values back, truncated.
fn map_blocks(image: &mut Image, f: impl Fn(&mut [[f32; BLOCK]; 3])) {
    let channels = image.channels();
    for pixels in image.pixels_mut().chunks_mut(BLOCK * channels) {
        let mut planes = [[0.0f32; BLOCK]; 3];
        for (i, pixel) in pixels.chunks_exact(channels).enumerate() {
            for channel in 0..3 {
                planes[channel][i] = f32::from(pixel[channel]);
            }
        }
        f(&mut planes);
        for (i, pixel) in pixels.chunks_exact_mut(channels).enumerate() {
            for channel in 0..3 {
                pixel[channel] = truncate_to_byte(planes[channel][i]);
            }
        }
    }
}

/// Multiplies an image by a factor, in place: 0 is black, 1 changes nothing.
///
/// # Errors
/// [`Error::InvalidArgument`] if the factor is negative or not finite.
pub fn adjust_brightness(mut image: Image, factor: f64) -> Result<Image> {
    let factor = check_factor("adjust_brightness", factor)?;
    map_colors(&mut image, |x| x * factor);
    Ok(image)
}

/// Interpolates in place between the mean of the grayscale image (factor 0) and the image (factor 1); larger factors
/// extrapolate.
///
/// # Errors
/// [`Error::InvalidArgument`] if the factor is negative or not finite.
pub fn adjust_contrast(mut image: Image, factor: f64) -> Result<Image> {
    let factor = check_factor("adjust_contrast", factor)?;
    let channels = image.channels();
    let sum: u64 = match channels {
        1 => image.pixels().iter().map(|&gray| u64::from(gray)).sum(),
        _ => {
            let luma = |pixel: &[u8]| luma(pixel[0].into(), pixel[1].into(), pixel[2].into());
            image.pixels().chunks_exact(channels).map(|pixel| u64::from(truncate_to_byte(luma(pixel)))).sum()
        }
    };
    let mean = sum as f64 / (image.height() * image.width()) as f64;
    let offset = mean as f32 * (1.0 - factor);
    map_colors(&mut image, |x| x * factor + offset);
    Ok(image)
}

/// Interpolates in place between the grayscale image (factor 0) and the image (factor 1); larger factors extrapolate. A
/// grayscale image is unchanged.
///
/// # Errors
/// [`Error::InvalidArgument`] if the factor is negative or not finite.
pub fn adjust_saturation(mut image: Image, factor: f64) -> Result<Image> {
    let factor = check_factor("adjust_saturation", factor)?;
    if image.channels() == 1 {
        return Ok(image);
    }
    map_blocks(&mut image, |[r, g, b]| {
        for i in 0..BLOCK {
            let gray = luma(r[i], g[i], b[i]) as i32 as f32 * (1.0 - factor);
            r[i] = r[i] * factor + gray;
            g[i] = g[i] * factor + gray;
            b[i] = b[i] * factor + gray;
        }
    });
    Ok(image)
}

/// Rotates the hue by a fraction of a full circle, in place. A grayscale image is unchanged.
///
/// # Errors
/// [`Error::InvalidArgument`] unless the factor is in [-0.5, 0.5].
pub fn adjust_hue(mut image: Image, factor: f64) -> Result<Image> {
    if !(-0.5..=0.5).contains(&factor) {
        return Err(Error::invalid("adjust_hue", format!("the factor must be in [-0.5, 0.5], got {factor}")));
    }
    if image.channels() == 1 {
        return Ok(image);
    }
    let shift = factor as f32 * 6.0;
    map_blocks(&mut image, |[r, g, b]| {
        for i in 0..BLOCK {
            [r[i], g[i], b[i]] = shift_hue([r[i], g[i], b[i]], shift);
        }
    });
    Ok(image)
}

/// Returns a color in [0, 255] with the hue shifted by sixths of a circle.
///
/// With the maximum M of a color, its range Δ and its hue h in sixths, the channel n of HSV → RGB is
/// M − Δ·clamp(min(k, 4 − k), 0, 1) for k = (n + h) mod 6 and n = 5, 3, 1 for red, green and blue.
#[inline(always)]
fn shift_hue([r, g, b]: [f32; 3], shift: f32) -> [f32; 3] {
    // Selections replace `f32::max`, whose NaN rule costs instructions.
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let smaller = |a: f32, b: f32| if a < b { a } else { b };
    let largest = larger(larger(r, g), b);
    let range = largest - smaller(smaller(r, g), b);
    let reciprocal = 1.0 / if range == 0.0 { 1.0 } else { range };
    let [dr, dg, db] = [(g - b) * reciprocal, (b - r) * reciprocal + 2.0, (r - g) * reciprocal + 4.0];
    let hue = if largest == r {
        dr
    } else if largest == g {
        dg
    } else {
        db
    };
    let channel = |n: f32| {
        let k = hue + (n + shift);
        let k = if k < 0.0 { k + 6.0 } else { k };
        let k = if k >= 6.0 { k - 6.0 } else { k };
        let k = if k >= 6.0 { k - 6.0 } else { k };
        let part = smaller(larger(smaller(k, 4.0 - k), 0.0), 1.0);
        // torchvision converts a float in [0, 1] to a byte with the factor 256 - 0.001.
        (largest - range * part) * (255.999 / 255.0)
    };
    [channel(5.0), channel(3.0), channel(1.0)]
}

/// Returns an error unless a grayscale image can have this number of channels.
fn check_gray_channels(channels: usize) -> Result<()> {
    match channels {
        1 | 3 => Ok(()),
        _ => Err(Error::invalid("grayscale", format!("a grayscale image must have 1 or 3 channels, got {channels}"))),
    }
}

/// Returns the grayscale image, with 1 or 3 equal channels.
///
/// # Errors
/// [`Error::InvalidArgument`] if `channels` is neither 1 nor 3.
pub fn grayscale(image: &Image, channels: usize) -> Result<Image> {
    check_gray_channels(channels)?;
    let [height, width, from] = image.shape();
    let luma = |pixel: &[u8]| truncate_to_byte(luma(pixel[0].into(), pixel[1].into(), pixel[2].into()));
    let gray = image.pixels().chunks_exact(from).map(|pixel| if from == 1 { pixel[0] } else { luma(pixel) });
    let pixels = gray.flat_map(|gray| std::iter::repeat_n(gray, channels)).collect();
    Image::try_new(pixels, [height, width, channels])
}

/// Converts an image to grayscale.
#[derive(Clone, Copy, Debug)]
pub struct Grayscale {
    channels: usize,
}

impl Grayscale {
    /// Creates a transform to images with one channel.
    pub fn new() -> Grayscale {
        Grayscale { channels: 1 }
    }

    /// Sets the number of channels, 1 or 3.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for other numbers.
    #[panicking_form]
    #[must_use]
    pub fn try_channels(self, channels: usize) -> Result<Self> {
        check_gray_channels(channels)?;
        Ok(Grayscale { channels })
    }
}

impl Default for Grayscale {
    fn default() -> Self {
        Grayscale::new()
    }
}

impl ImageTransform for Grayscale {
    fn apply(&self, image: Image) -> Result<Image> {
        grayscale(&image, self.channels)
    }
}

/// Changes brightness, contrast, saturation and hue by random factors, in a random order.
///
/// For a strength s, the factor of brightness, contrast and saturation is uniform in [max(0, 1 − s), 1 + s], and the
/// hue shift is uniform in [−s, s].
///
/// ```
/// use pellucid::data::Image;
/// use pellucid::data::transforms::{ColorJitter, ImageTransform};
/// let jitter = ColorJitter::new(0.4, 0.4, 0.4, 0.1);
/// let image = jitter.apply(Image::new(vec![100; 12], [2, 2, 3]))?;
/// assert_eq!(image.shape(), [2, 2, 3]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ColorJitter {
    brightness: f64,
    contrast: f64,
    saturation: f64,
    hue: f64,
}

impl ColorJitter {
    /// Creates a transform with the strengths of brightness, contrast, saturation and hue. A strength of 0 changes
    /// nothing. The strength of hue must be at most 0.5.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for strengths that are negative or not finite, or a hue above 0.5.
    #[panicking_form]
    pub fn try_new(brightness: f64, contrast: f64, saturation: f64, hue: f64) -> Result<ColorJitter> {
        let strengths = [("brightness", brightness), ("contrast", contrast), ("saturation", saturation), ("hue", hue)];
        for (name, strength) in strengths {
            OptionRange::NONNEGATIVE.check("color_jitter", &format!("the strength of {name}"), strength, 0.1)?;
        }
        if hue > 0.5 {
            let reason = format!("the strength of hue must be at most 0.5, got {hue}; try 0.1");
            return Err(Error::invalid("color_jitter", reason));
        }
        Ok(ColorJitter { brightness, contrast, saturation, hue })
    }

    /// Draws the order of the four changes, and their factors.
    fn draw(&self, rng: &mut SplitMix64) -> ([usize; 4], [f64; 4]) {
        let mut order = [0, 1, 2, 3];
        rng.shuffle(&mut order);
        let strengths = [self.brightness, self.contrast, self.saturation];
        let [brightness, contrast, saturation] =
            strengths.map(|strength| rng.uniform_in((1.0 - strength).max(0.0), 1.0 + strength));
        (order, [brightness, contrast, saturation, rng.uniform_in(-self.hue, self.hue)])
    }
}

impl ImageTransform for ColorJitter {
    fn apply(&self, mut image: Image) -> Result<Image> {
        let strengths = [self.brightness, self.contrast, self.saturation, self.hue];
        let (order, factors) = with_rng(|rng| self.draw(rng))?;
        for change in order.into_iter().filter(|change| strengths[*change] > 0.0) {
            let factor = factors[change];
            image = match change {
                0 => adjust_brightness(image, factor)?,
                1 => adjust_contrast(image, factor)?,
                2 => adjust_saturation(image, factor)?,
                _ => adjust_hue(image, factor)?,
            };
        }
        Ok(image)
    }
}

/// Returns the histogram of the bytes of a channel.
pub(super) fn histogram(image: &Image, channel: usize) -> [usize; 256] {
    let mut counts = [0; 256];
    debug_assert!(channel < color_channels(image));
    image.pixels().iter().skip(channel).step_by(image.channels()).for_each(|&byte| counts[usize::from(byte)] += 1);
    counts
}
