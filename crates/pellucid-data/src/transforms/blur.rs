//! Gaussian blur.

use super::ImageTransform;
use crate::image::Image;
use crate::random::{vec_with_capacity, with_rng};
use pellucid_derive::panicking_form;
use pellucid_tensor::{Error, OptionRange, Result, unwrap};

/// Convolves an image with a Gaussian kernel of `kernel_size` pixels, with reflection padding.
///
/// # Errors
/// [`Error::InvalidArgument`] unless the size is odd and at most twice the shorter side minus 1, and the standard
/// deviation is positive and finite; [`Error::OutOfMemory`].
pub fn gaussian_blur(image: &Image, kernel_size: usize, sigma: f64) -> Result<Image> {
    let op = "gaussian_blur";
    let [height, width, channels] = image.shape();
    let radius = kernel_size / 2;
    if kernel_size.is_multiple_of(2) || radius >= height.min(width) {
        let reason = format!(
            "kernel_size must be odd and less than {} for an image of {height} × {width}, got {kernel_size}",
            2 * height.min(width)
        );
        return Err(Error::invalid(op, reason));
    }
    if !(sigma > 0.0 && sigma.is_finite()) {
        return Err(Error::invalid(op, format!("sigma must be positive and finite, got {sigma}")));
    }
    let weight = |i: usize| (-0.5 * ((i as f64 - radius as f64) / sigma).powi(2)).exp();
    let weights: Vec<f64> = (0..kernel_size).map(weight).collect();
    let sum: f64 = weights.iter().sum();
    let weights: Vec<f32> = weights.iter().map(|weight| (weight / sum) as f32).collect();

    // The horizontal pass writes floats; the vertical pass writes bytes.
    let mut blurred: Vec<f32> = vec_with_capacity(image.pixels().len())?;
    for row in image.pixels().chunks_exact(width * channels) {
        for x in 0..width {
            let columns: Vec<usize> = (0..kernel_size).map(|i| mirrored(x + i, radius, width) * channels).collect();
            for channel in 0..channels {
                let terms =
                    columns.iter().zip(&weights).map(|(column, weight)| weight * f32::from(row[column + channel]));
                blurred.push(terms.sum());
            }
        }
    }
    let len = width * channels;
    let mut pixels = vec_with_capacity(image.pixels().len())?;
    let mut sums = vec![0.0f32; len];
    for y in 0..height {
        sums.fill(0.0);
        for (i, weight) in weights.iter().enumerate() {
            let row = &blurred[mirrored(y + i, radius, height) * len..][..len];
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * value);
        }
        pixels.extend(sums.iter().map(|sum| sum.round_ties_even() as u8));
    }
    Image::try_new(pixels, [height, width, channels])
}

/// Returns the index of the position `shifted` − `radius`, reflected at both ends.
fn mirrored(shifted: usize, radius: usize, len: usize) -> usize {
    let index = shifted.abs_diff(radius);
    if index < len { index } else { 2 * (len - 1) - index }
}

/// Blurs an image with a Gaussian kernel of random standard deviation, by default from 0.1 to 2 pixels.
#[derive(Clone, Copy, Debug)]
pub struct GaussianBlur {
    kernel_size: usize,
    sigma: (f64, f64),
}

impl GaussianBlur {
    /// Creates a blur with a kernel of this odd number of pixels.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the number is even.
    #[panicking_form]
    pub fn try_new(kernel_size: usize) -> Result<GaussianBlur> {
        if kernel_size.is_multiple_of(2) {
            let reason = format!("kernel_size must be odd, got {kernel_size}; try 5");
            return Err(Error::invalid("gaussian_blur", reason));
        }
        Ok(GaussianBlur { kernel_size, sigma: (0.1, 2.0) })
    }

    /// Sets the range of the standard deviation.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless 0 < min ≤ max, both finite.
    #[panicking_form]
    #[must_use]
    pub fn try_sigma(self, min: f64, max: f64) -> Result<Self> {
        OptionRange::POSITIVE.check_interval("gaussian_blur", "sigma", [min, max], [0.1, 2.0])?;
        Ok(GaussianBlur { sigma: (min, max), ..self })
    }
}

impl ImageTransform for GaussianBlur {
    fn apply(&self, image: Image) -> Result<Image> {
        let sigma = with_rng(|rng| rng.uniform_in(self.sigma.0, self.sigma.1))?;
        gaussian_blur(&image, self.kernel_size, sigma)
    }
}
