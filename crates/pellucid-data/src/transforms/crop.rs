//! Crops and padding. Both read a window of an image that is extended beyond its edges.

use super::{ImageTransform, check_size};
use crate::image::Image;
use crate::random::{vec_with_capacity, with_rng};
use pellucid_derive::panicking_form;
use pellucid_tensor::{Error, Result, Scalar, ops::PaddingMode, unwrap};
use std::ops::Range;

/// Returns the source index in 0..len of a position, or `None` if the padding constant fills the position.
fn source_index(position: isize, len: usize, mode: PaddingMode) -> Option<usize> {
    let last = len as isize - 1;
    if (0..=last).contains(&position) {
        return Some(position as usize);
    }
    match mode {
        PaddingMode::Constant(_) => None,
        PaddingMode::Replicate => Some(position.clamp(0, last) as usize),
        PaddingMode::Circular => Some(position.rem_euclid(len as isize) as usize),
        // The reflection is periodic and does not repeat the edges.
        PaddingMode::Reflect if last == 0 => Some(0),
        PaddingMode::Reflect => {
            let offset = position.rem_euclid(2 * last);
            Some(offset.min(2 * last - offset) as usize)
        }
    }
}

/// Returns the window of `size` (height, width) whose upper left corner is at [`top`, `left`]. The window may exceed
/// the image, which is padded by `mode`.
///
/// # Errors
/// [`Error::InvalidArgument`] if the window has no pixels, or the padding constant is not a byte;
/// [`Error::OutOfMemory`].
pub fn crop(image: &Image, [top, left]: [isize; 2], size: [usize; 2], mode: PaddingMode) -> Result<Image> {
    let op = "crop";
    let [height, width] = size;
    if height == 0 || width == 0 {
        return Err(Error::invalid(op, format!("the crop must have at least one pixel, got {height} × {width}")));
    }
    let fill = match mode {
        PaddingMode::Constant(value) => {
            let byte = Some(value.to_f64()).filter(|value| (0.0..=255.0).contains(value) && value.fract() == 0.0);
            byte.ok_or_else(|| {
                Error::invalid(op, format!("the padding constant must be an integer from 0 to 255, got {value:?}"))
            })? as u8
        }
        _ => 0,
    };
    let channels = image.channels();
    let row_len = image.width() * channels;
    let right = left.saturating_add_unsigned(width);
    let mut pixels = vec_with_capacity(height.saturating_mul(width).saturating_mul(channels))?;
    for y in 0..height {
        match source_index(top.saturating_add_unsigned(y), image.height(), mode) {
            None => pixels.resize(pixels.len() + width * channels, fill),
            Some(row) => {
                let row = &image.pixels()[row * row_len..][..row_len];
                append_columns(&mut pixels, row, channels, left..right, mode, fill);
            }
        }
    }
    Image::try_new(pixels, [height, width, channels])
}

/// Appends the pixels of these columns of a row, which is padded by `mode`.
fn append_columns(
    pixels: &mut Vec<u8>,
    row: &[u8],
    channels: usize,
    columns: Range<isize>,
    mode: PaddingMode,
    fill: u8,
) {
    let width = row.len() / channels;
    let append_outside = |pixels: &mut Vec<u8>, columns: Range<isize>| {
        for column in columns {
            match source_index(column, width, mode) {
                Some(column) => pixels.extend_from_slice(&row[column * channels..][..channels]),
                None => pixels.resize(pixels.len() + channels, fill),
            }
        }
    };
    let (left, right, end) = (columns.start, columns.end, width as isize);
    append_outside(pixels, left..right.min(0));
    let (first, after) = (left.max(0), right.min(end));
    if first < after {
        pixels.extend_from_slice(&row[first as usize * channels..after as usize * channels]);
    }
    append_outside(pixels, left.max(end)..right);
}

/// Pads an image by this many pixels: left, top, right, bottom.
///
/// # Errors
/// [`Error::InvalidArgument`] if the padding constant is not a byte; [`Error::OutOfMemory`].
pub fn pad(image: &Image, [left, top, right, bottom]: [usize; 4], mode: PaddingMode) -> Result<Image> {
    let padded = |len: usize, before: usize, after: usize| {
        let sum =
            len.checked_add(before).and_then(|sum| sum.checked_add(after)).filter(|sum| isize::try_from(*sum).is_ok());
        sum.ok_or_else(|| {
            Error::invalid(
                "pad",
                format!("a length of {len} pixels with padding of {before} and {after} must be less than 2^63"),
            )
        })
    };
    let size = [padded(image.height(), top, bottom)?, padded(image.width(), left, right)?];
    crop(image, [-(top as isize), -(left as isize)], size, mode)
}

/// Crops an image to `size` (height, width) around its centre. A smaller image is padded with zeros.
///
/// # Errors
/// [`Error::InvalidArgument`] if `size` has no pixels; [`Error::OutOfMemory`].
pub fn center_crop(image: &Image, size: [usize; 2]) -> Result<Image> {
    let [top, left] = [(image.height(), size[0]), (image.width(), size[1])].map(|(len, part)| {
        // torchvision rounds a half to even for crops, and down for padding.
        match len.checked_sub(part) {
            Some(rest) => (rest as f64 / 2.0).round_ties_even() as isize,
            None => -((part - len) as isize / 2),
        }
    });
    crop(image, [top, left], size, PaddingMode::Constant(Scalar::Int(0)))
}

/// Crops an image around its centre. A smaller image is padded with zeros.
#[derive(Clone, Copy, Debug)]
pub struct CenterCrop {
    size: [usize; 2],
}

impl CenterCrop {
    /// Creates a crop to this height and width.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the height or the width is 0.
    #[panicking_form]
    pub fn try_new(size: [usize; 2]) -> Result<CenterCrop> {
        check_size("center_crop", size)?;
        Ok(CenterCrop { size })
    }
}

impl ImageTransform for CenterCrop {
    fn apply(&self, image: Image) -> Result<Image> {
        center_crop(&image, self.size)
    }
}

/// Pads an image on all sides.
#[derive(Clone, Copy, Debug)]
pub struct Pad {
    sides: [usize; 4],
    mode: PaddingMode,
}

impl Pad {
    /// Creates a padding of `width` black pixels on each side.
    pub fn new(width: usize) -> Pad {
        Pad::sides([width; 4])
    }

    /// Creates a padding of black pixels: left, top, right, bottom.
    pub fn sides(sides: [usize; 4]) -> Pad {
        Pad { sides, mode: PaddingMode::Constant(Scalar::Int(0)) }
    }

    /// Sets the padding mode.
    #[must_use]
    pub fn mode(self, mode: PaddingMode) -> Self {
        Pad { mode, ..self }
    }
}

impl ImageTransform for Pad {
    fn apply(&self, image: Image) -> Result<Image> {
        pad(&image, self.sides, self.mode)
    }
}

/// Crops an image at a random position, after optional padding.
///
/// ```
/// use pellucid::data::Image;
/// use pellucid::data::transforms::{ImageTransform, RandomCrop};
/// let crop = RandomCrop::new([32, 32]).padding(4);
/// let image = crop.apply(Image::new(vec![7; 32 * 32 * 3], [32, 32, 3]))?;
/// assert_eq!(image.shape(), [32, 32, 3]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RandomCrop {
    size: [usize; 2],
    padding: usize,
    mode: PaddingMode,
}

impl RandomCrop {
    /// Creates a crop to this height and width.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the height or the width is 0.
    #[panicking_form]
    pub fn try_new(size: [usize; 2]) -> Result<RandomCrop> {
        check_size("random_crop", size)?;
        Ok(RandomCrop { size, padding: 0, mode: PaddingMode::Constant(Scalar::Int(0)) })
    }

    /// Sets the number of pixels of padding on each side. Default: 0.
    #[must_use]
    pub fn padding(self, padding: usize) -> Self {
        RandomCrop { padding, ..self }
    }

    /// Sets the padding mode. Default: zeros ([`PaddingMode::Constant`]).
    #[must_use]
    pub fn mode(self, mode: PaddingMode) -> Self {
        RandomCrop { mode, ..self }
    }
}

impl ImageTransform for RandomCrop {
    fn apply(&self, image: Image) -> Result<Image> {
        let padded = [image.height(), image.width()].map(|len| len.saturating_add(self.padding.saturating_mul(2)));
        let rest = [0, 1].map(|axis| padded[axis].checked_sub(self.size[axis]));
        let [Some(down), Some(right)] = rest else {
            let ([height, width], [rows, columns]) = (self.size, padded);
            let reason = format!(
                "a crop of {height} × {width} does not fit in an image of {rows} × {columns}; resize or pad it"
            );
            return Err(Error::invalid("random_crop", reason));
        };
        let (top, left) = with_rng(|rng| (rng.below(down.saturating_add(1)), rng.below(right.saturating_add(1))))?;
        let corner = [top, left].map(|offset| offset as isize - self.padding as isize);
        crop(&image, corner, self.size, self.mode)
    }
}
