//! Affine maps: rotations, shears and translations.

use super::ImageTransform;
use crate::image::Image;
use crate::random::{vec_with_capacity, with_rng};
use pellucid_derive::panicking_form;
use pellucid_tensor::ops::InterpolationMode;
use pellucid_tensor::{Error, OptionRange, Result, unwrap};

/// The map from a pixel of the result to a position in the image: (a x + b y + c, d x + e y + f). The origin is the
/// centre of the image; x points right and y points down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AffineMatrix(pub [f64; 6]);

impl AffineMatrix {
    /// Returns the map of a clockwise rotation by `degrees`, shears by angles in degrees along x and y, and a
    /// translation, around a centre. The definitions are torchvision's.
    pub fn new(degrees: f64, translate: [f64; 2], shear: [f64; 2], center: [f64; 2]) -> AffineMatrix {
        let (rotation, [shear_x, shear_y]) = (degrees.to_radians(), shear.map(f64::to_radians));
        let difference = rotation - shear_y;
        let a = difference.cos() / shear_y.cos();
        let b = -difference.cos() * shear_x.tan() / shear_y.cos() - rotation.sin();
        let c = difference.sin() / shear_y.cos();
        let d = -difference.sin() * shear_x.tan() / shear_y.cos() + rotation.cos();
        // The determinant of a rotation and shears is 1, so this is the inverse.
        let [x, y] = [center[0] + translate[0], center[1] + translate[1]];
        AffineMatrix([d, -b, center[0] - d * x + b * y, -c, a, center[1] + c * x - a * y])
    }
}

/// Applies an affine map to an image. The interpolation is `NearestExact` or `Linear`. Outside the image, all channels
/// have the value `fill`.
///
/// # Errors
/// [`Error::InvalidArgument`] for other interpolations, and for numbers that are not finite; [`Error::OutOfMemory`].
pub fn affine(image: &Image, matrix: AffineMatrix, interpolation: InterpolationMode, fill: u8) -> Result<Image> {
    let op = "affine";
    let AffineMatrix([a, b, c, d, e, f]) = matrix;
    if let Some(value) = matrix.0.iter().find(|value| !value.is_finite()) {
        return Err(Error::invalid(op, format!("the elements of the matrix must be finite, got {value}")));
    }
    let is_linear = match interpolation {
        InterpolationMode::NearestExact => false,
        InterpolationMode::Linear { .. } => true,
        other => {
            let reason = format!("the interpolation must be NearestExact or Linear, got {other:?}");
            return Err(Error::invalid(op, reason));
        }
    };
    let [height, width, channels] = image.shape();
    let [half_height, half_width] = [height, width].map(|len| len as f64 / 2.0 - 0.5);
    let mut pixels = vec_with_capacity(image.pixels().len())?;
    for row in 0..height {
        let y = row as f64 - half_height;
        for column in 0..width {
            let x = column as f64 - half_width;
            let (x, y) = (a * x + b * y + c + half_width, d * x + e * y + f + half_height);
            if is_linear {
                append_linear(image, x, y, fill, &mut pixels);
            } else {
                append_nearest(image, x, y, fill, &mut pixels);
            }
        }
    }
    Image::try_new(pixels, [height, width, channels])
}

/// Returns the pixel at integer coordinates, if it is in the image.
fn pixel_at(image: &Image, x: f64, y: f64) -> Option<&[u8]> {
    let is_inside = x >= 0.0 && y >= 0.0 && x < image.width() as f64 && y < image.height() as f64;
    is_inside.then(|| image.pixel(y as usize, x as usize))
}

fn append_nearest(image: &Image, x: f64, y: f64, fill: u8, pixels: &mut Vec<u8>) {
    match pixel_at(image, x.round_ties_even(), y.round_ties_even()) {
        Some(pixel) => pixels.extend_from_slice(pixel),
        None => pixels.resize(pixels.len() + image.channels(), fill),
    }
}

fn append_linear(image: &Image, x: f64, y: f64, fill: u8, pixels: &mut Vec<u8>) {
    let (left, top) = (x.floor(), y.floor());
    let (right_weight, lower_weight) = (x - left, y - top);
    let corners = [
        (left, top, (1.0 - right_weight) * (1.0 - lower_weight)),
        (left + 1.0, top, right_weight * (1.0 - lower_weight)),
        (left, top + 1.0, (1.0 - right_weight) * lower_weight),
        (left + 1.0, top + 1.0, right_weight * lower_weight),
    ];
    let mut sums = [0.0; 4];
    for (x, y, weight) in corners {
        let pixel = pixel_at(image, x, y);
        for (channel, sum) in sums.iter_mut().enumerate().take(image.channels()) {
            *sum += weight * f64::from(pixel.map_or(fill, |pixel| pixel[channel]));
        }
    }
    pixels.extend(sums[..image.channels()].iter().map(|sum| sum.round_ties_even() as u8));
}

/// Rotates an image counterclockwise around its centre, with bilinear interpolation. The size is unchanged, and pixels
/// from outside the image have the value `fill`.
///
/// # Errors
/// [`Error::InvalidArgument`] if the angle is not finite; [`Error::OutOfMemory`].
pub fn rotate(image: &Image, degrees: f64, fill: u8) -> Result<Image> {
    let matrix = AffineMatrix::new(-degrees, [0.0; 2], [0.0; 2], [0.0; 2]);
    affine(image, matrix, InterpolationMode::Linear { align_corners: false }, fill)
}

/// Rotates an image by a random angle, with bilinear interpolation.
#[derive(Clone, Copy, Debug)]
pub struct RandomRotation {
    degrees: f64,
    fill: u8,
}

impl RandomRotation {
    /// Creates a rotation by up to `degrees` in both directions.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the number is negative or not finite.
    #[panicking_form]
    pub fn try_new(degrees: f64) -> Result<RandomRotation> {
        OptionRange::NONNEGATIVE.check("random_rotation", "degrees", degrees, 10.0)?;
        Ok(RandomRotation { degrees, fill: 0 })
    }

    /// Sets the value of pixels from outside the image. Default: 0.
    #[must_use]
    pub fn fill(self, fill: u8) -> Self {
        RandomRotation { fill, ..self }
    }
}

impl ImageTransform for RandomRotation {
    fn apply(&self, image: Image) -> Result<Image> {
        let degrees = with_rng(|rng| rng.uniform_in(-self.degrees, self.degrees))?;
        rotate(&image, degrees, self.fill)
    }
}
