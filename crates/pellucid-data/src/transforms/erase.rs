//! Random erasing (Zhong et al. 2020).

use super::resize::{check_rectangle, draw_rectangle};
use super::{ImageTransform, is_drawn};
use crate::image::Image;
use crate::random::with_rng;
use pellucid_tensor::{Error, Result};

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
    /// Creates a transform that is applied with this probability.
    pub fn new(probability: f64) -> RandomErasing {
        RandomErasing { probability, scale: (0.02, 0.33), ratio: (0.3, 3.3), value: 0 }
    }

    /// Sets the range of the fraction of the area.
    #[must_use]
    pub fn scale(self, min: f64, max: f64) -> Self {
        RandomErasing { scale: (min, max), ..self }
    }

    /// Sets the range of the aspect ratio, width / height.
    #[must_use]
    pub fn ratio(self, min: f64, max: f64) -> Self {
        RandomErasing { ratio: (min, max), ..self }
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
        check_rectangle("random_erasing", self.scale, self.ratio)?;
        if !is_drawn("random_erasing", self.probability)? {
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
