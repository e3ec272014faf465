//! Random erasing (Zhong et al. 2020).

use super::resize::draw_rectangle;
use super::{ImageTransform, is_drawn};
use crate::image::Image;
use crate::random::with_rng;
use pellucid_derive::panicking_form;
use pellucid_tensor::{Error, OptionRange, Result, unwrap};

/// Sets the pixels of a rectangle to a value, in place.
///
/// # Errors
/// [`Error::InvalidArgument`] if the rectangle is not inside the image.
pub fn erase(mut image: Image, [top, left]: [usize; 2], [rows, columns]: [usize; 2], value: u8) -> Result<Image> {
    let [height, width, channels] = image.shape();
    let is_inside = |start: usize, len: usize, limit: usize| start.checked_add(len).is_some_and(|end| end <= limit);
    if !is_inside(top, rows, height) || !is_inside(left, columns, width) {
        let reason = format!(
            "the rectangle of {rows} × {columns} at ({top}, {left}) must be inside the image of {height} × {width}"
        );
        return Err(Error::invalid("erase", reason));
    }
    for row in image.pixels_mut().chunks_exact_mut(width * channels).skip(top).take(rows) {
        row[left * channels..][..columns * channels].fill(value);
    }
    Ok(image)
}

/// Erases a random rectangle with a given probability, by default 0.5. The rectangle covers 2 % to 33 % of the area,
/// with an aspect ratio from 0.3 to 3.3.
#[derive(Clone, Copy, Debug)]
pub struct RandomErasing {
    probability: f64,
    scale: (f64, f64),
    ratio: (f64, f64),
    value: u8,
}

impl RandomErasing {
    /// Creates a transform with this probability.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the probability is not in [0, 1].
    #[panicking_form]
    pub fn try_new(probability: f64) -> Result<RandomErasing> {
        OptionRange::PROBABILITY.check("random_erasing", "the probability", probability, 0.5)?;
        Ok(RandomErasing { probability, scale: (0.02, 0.33), ratio: (0.3, 3.3), value: 0 })
    }

    /// Sets the range of the erased area, as a fraction of the area of the image.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless 0 < min ≤ max, both finite.
    #[panicking_form]
    #[must_use]
    pub fn try_scale(self, min: f64, max: f64) -> Result<Self> {
        OptionRange::POSITIVE.check_interval("random_erasing", "scale", [min, max], [0.02, 0.33])?;
        Ok(RandomErasing { scale: (min, max), ..self })
    }

    /// Sets the range of the aspect ratio, width / height.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless 0 < min ≤ max, both finite.
    #[panicking_form]
    #[must_use]
    pub fn try_ratio(self, min: f64, max: f64) -> Result<Self> {
        OptionRange::POSITIVE.check_interval("random_erasing", "ratio", [min, max], [0.3, 3.3])?;
        Ok(RandomErasing { ratio: (min, max), ..self })
    }

    /// Sets the value of erased pixels. Default: 0.
    #[must_use]
    pub fn value(self, value: u8) -> Self {
        RandomErasing { value, ..self }
    }
}

impl Default for RandomErasing {
    fn default() -> Self {
        RandomErasing::new(0.5)
    }
}

impl ImageTransform for RandomErasing {
    fn apply(&self, image: Image) -> Result<Image> {
        if !is_drawn(self.probability)? {
            return Ok(image);
        }
        let [height, width, _] = image.shape();
        let rectangle = with_rng(|rng| {
            // As in torchvision, the image is unchanged if no rectangle fits after ten tries.
            (0..10).find_map(|_| {
                let (rows, columns) = draw_rectangle(rng, height as f64 * width as f64, self.scale, self.ratio);
                let fits = rows < height && columns < width;
                fits.then(|| ([rng.below(height - rows + 1), rng.below(width - columns + 1)], [rows, columns]))
            })
        })?;
        match rectangle {
            Some((corner, size)) => erase(image, corner, size, self.value),
            None => Ok(image),
        }
    }
}
