//! [`Image`]: images with 8 bits per channel, from files and tensors.

mod codec;
mod folder;

pub use codec::DecodeOptions;
pub use folder::ImageFolder;

use crate::random::vec_with_capacity;
use pellucid_derive::panicking_form;
use pellucid_tensor::{DType, Error, Result, Tensor, ops, unwrap};
use std::fmt;

const OP: &str = "image";

/// An image of 8 bits for each channel: grayscale (1 channel), RGB (3) or RGBA (4).
///
/// ```
/// use pellucid::data::Image;
///
/// // One row of two pixels, red and white.
/// let image = Image::new(vec![255, 0, 0, 255, 255, 255], [1, 2, 3]);
/// assert_eq!(image.pixel(0, 1), [255, 255, 255]);
/// let tensor = image.to_tensor();
/// assert_eq!(tensor.shape().dims(), [3, 1, 2]);
/// assert_eq!(tensor.to_vec::<f32>(), [1.0, 1.0, 0.0, 1.0, 0.0, 1.0]);
/// assert_eq!(Image::from_tensor(&tensor)?, image);
///
/// // `Image::read(path)` reads PNG and JPEG files.
/// let png = image.encode_png()?;
/// assert_eq!(Image::decode(&png)?, image);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    /// The pixels in row-major order, with interleaved channels.
    pixels: Vec<u8>,
    height: usize,
    width: usize,
    channels: usize,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({} × {} × {})", self.height, self.width, self.channels)
    }
}

/// Calls a function with the number of channels as a constant.
macro_rules! for_channels {
    ($image:expr, $function:ident($($argument:expr),*)) => {
        match $image.channels() {
            1 => $function::<1>($($argument),*),
            3 => $function::<3>($($argument),*),
            _ => $function::<4>($($argument),*),
        }
    };
}
pub(crate) use for_channels;

/// Returns the table of `f(byte)` for all bytes. (The compiler would unroll `std::array::from_fn` into very long code.)
pub(crate) fn byte_table<T: Copy + Default>(mut f: impl FnMut(u8) -> T) -> [T; 256] {
    let mut table = [T::default(); 256];
    (0..=u8::MAX).zip(&mut table).for_each(|(byte, entry)| *entry = f(byte));
    table
}

impl Image {
    /// Creates an image from pixels in row-major order, `[height, width, channels]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there are 1, 3 or 4 channels, at least one pixel, and as many bytes as the
    /// shape requires.
    #[panicking_form]
    pub fn try_new(pixels: Vec<u8>, shape: [usize; 3]) -> Result<Image> {
        let [height, width, channels] = shape;
        if !matches!(channels, 1 | 3 | 4) {
            return Err(Error::invalid(OP, format!("an image must have 1, 3 or 4 channels, got {channels}")));
        }
        let size = height.checked_mul(width).and_then(|size| size.checked_mul(channels));
        if size != Some(pixels.len()) || pixels.is_empty() {
            let reason = format!("an image of shape {shape:?} needs one byte per element, got {} bytes", pixels.len());
            return Err(Error::invalid(OP, reason));
        }
        Ok(Image { pixels, height, width, channels })
    }

    /// Returns the number of rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Returns the number of columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the number of channels: 1, 3 or 4.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Returns the height, the width and the number of channels.
    pub fn shape(&self) -> [usize; 3] {
        [self.height, self.width, self.channels]
    }

    /// Returns the bytes of all pixels in row-major order.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Returns the bytes of all pixels as a mutable slice.
    pub fn pixels_mut(&mut self) -> &mut [u8] {
        &mut self.pixels
    }

    /// Returns the bytes of all pixels without a copy.
    pub fn into_pixels(self) -> Vec<u8> {
        self.pixels
    }

    /// Returns the channels of a pixel.
    ///
    /// # Panics
    /// Panics if the row or the column is out of bounds.
    #[track_caller]
    pub fn pixel(&self, row: usize, column: usize) -> &[u8] {
        assert!(column < self.width, "the column must be below the width {}, got {column}", self.width);
        let start = (row * self.width + column) * self.channels;
        &self.pixels[start..start + self.channels]
    }

    /// Returns a grayscale image, (19595 R + 38470 G + 7471 B + 2¹⁵) / 2¹⁶, like Pillow's `convert("L")`.
    pub fn to_grayscale(&self) -> Image {
        let gray = |pixel: &[u8]| {
            let [r, g, b] = [0, 1, 2].map(|channel| u32::from(pixel[channel]));
            ((19595 * r + 38470 * g + 7471 * b + 0x8000) >> 16) as u8
        };
        let pixels = match self.channels {
            1 => self.pixels.clone(),
            channels => self.pixels.chunks_exact(channels).map(gray).collect(),
        };
        Image { pixels, channels: 1, ..*self }
    }

    /// Returns an RGB image: a grayscale channel is repeated, and the alpha channel is dropped.
    pub fn to_rgb(&self) -> Image {
        let pixels = match self.channels {
            1 => self.pixels.iter().flat_map(|gray| [*gray; 3]).collect(),
            3 => self.pixels.clone(),
            _ => self.pixels.as_chunks::<4>().0.iter().flat_map(|&[r, g, b, _]| [r, g, b]).collect(),
        };
        Image { pixels, channels: 3, ..*self }
    }

    /// Returns the pixels divided by 255, as an `f32` tensor `[channels, height, width]`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[doc(alias = "ToTensor")]
    #[panicking_form]
    pub fn try_to_tensor(&self) -> Result<Tensor> {
        self.map_to_tensor(&[byte_table(|byte| f32::from(byte) / 255.0); 4])
    }

    /// Maps each byte through the table of its channel, and returns an `f32` tensor.
    pub(crate) fn map_to_tensor(&self, tables: &[[f32; 256]; 4]) -> Result<Tensor> {
        fn planes<const C: usize>(image: &Image, tables: &[[f32; 256]; 4], values: &mut Vec<f32>) {
            let (pixels, _) = image.pixels.as_chunks::<C>();
            for channel in 0..C {
                let table = &tables[channel];
                values.extend(pixels.iter().map(|pixel| table[usize::from(pixel[channel])]));
            }
        }
        let mut values = vec_with_capacity(self.pixels.len())?;
        for_channels!(self, planes(self, tables, &mut values));
        Tensor::try_new(values, [self.channels, self.height, self.width])
    }

    /// Creates an image from a tensor `[channels, height, width]` of `u8`, or of floats in [0, 1], which are rounded to
    /// multiples of 1/255. Floats outside [0, 1] become 0 or 255.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] unless the tensor has three axes with 1, 3 or 4 channels and at least one pixel;
    /// [`Error::DTypeMismatch`] for other dtypes; [`Error::InvalidArgument`] for NaN; [`Error::OutOfMemory`].
    #[doc(alias = "ToPILImage")]
    pub fn from_tensor(tensor: &Tensor) -> Result<Image> {
        let op = "from_tensor";
        let shape = tensor.shape();
        let &[channels @ (1 | 3 | 4), height, width] = shape.dims() else {
            let help = "the tensor must be an image [channels, height, width] of 1, 3 or 4 channels";
            return Err(Error::shapes(op, [shape], help));
        };
        if height == 0 || width == 0 {
            return Err(Error::shapes(op, [shape], "the image must have at least one pixel"));
        }
        let pixels_last = ops::permute(&tensor.detach(), [1, 2, 0])?;
        let pixels = match tensor.dtype() {
            DType::U8 => pixels_last.try_to_vec()?,
            dtype if dtype.is_float() => {
                let values: Vec<f32> = pixels_last.try_to_vec()?;
                if values.iter().any(|value| value.is_nan()) {
                    return Err(Error::invalid(op, "the tensor must not contain NaN"));
                }
                values.iter().map(|value| (value * 255.0).round() as u8).collect()
            }
            dtype => return Err(Error::dtypes(op, [dtype], "the tensor must have dtype u8, or floats in [0, 1]")),
        };
        Image::try_new(pixels, [height, width, channels])
    }
}
