//! PNG and JPEG files. Files are untrusted: sizes in headers are compared with limits before memory is allocated.

use super::Image;
use crate::random::vec_with_capacity;
use pellucid_tensor::{Error, Result};
use std::fs::File;
use std::io::{BufWriter, Cursor, Read, Write};
use std::path::Path;
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// The limits of [`Image::decode_with`] and [`Image::read_with`].
#[derive(Clone, Copy, Debug)]
pub struct DecodeOptions {
    /// The maximum number of pixels of an image. A small file can contain a large image. Default: 2²⁷, about 134
    /// million.
    pub max_pixels: usize,
    /// The maximum number of bytes of a file. Default: 2²⁹.
    pub max_bytes: usize,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        DecodeOptions { max_pixels: 1 << 27, max_bytes: 1 << 29 }
    }
}

/// A decoded image, or the reason why the bytes could not be decoded.
type DecodeResult = std::result::Result<Image, DecodeFailure>;

/// The reason why an image could not be decoded.
enum DecodeFailure {
    /// The bytes are not a valid image, or the image exceeds the limits.
    Invalid(String),
    /// The memory for the image cannot be allocated.
    Memory(Error),
}

impl From<String> for DecodeFailure {
    fn from(reason: String) -> Self {
        DecodeFailure::Invalid(reason)
    }
}

impl DecodeFailure {
    fn into_error(self, error: impl FnOnce(String) -> Error) -> Error {
        match self {
            DecodeFailure::Invalid(reason) => error(reason),
            DecodeFailure::Memory(memory) => memory,
        }
    }
}

impl DecodeOptions {
    /// Returns the number of pixels, or an error if it exceeds the limits.
    fn check_size(self, width: usize, height: usize) -> std::result::Result<usize, DecodeFailure> {
        let pixels = width.checked_mul(height).filter(|pixels| (1..=self.max_pixels).contains(pixels));
        pixels.ok_or_else(|| {
            DecodeFailure::Invalid(format!(
                "the image has {width} × {height} pixels; it must have from 1 to `max_pixels` = {}",
                self.max_pixels
            ))
        })
    }

    /// Allocates memory for an image whose size is within the limits.
    fn allocate(self, width: usize, height: usize, channels: usize) -> std::result::Result<Vec<u8>, DecodeFailure> {
        let pixels = self.check_size(width, height)?;
        let mut bytes = vec_with_capacity(pixels * channels).map_err(DecodeFailure::Memory)?;
        bytes.resize(pixels * channels, 0);
        Ok(bytes)
    }
}

impl Image {
    /// Reads a PNG or JPEG file. Samples of 16 bits are reduced to 8 bits, and palettes are expanded. The orientation
    /// in EXIF data is ignored, as in Pillow.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read, is damaged or truncated, has another format, or is larger than the
    /// default [`DecodeOptions`] permit; [`Error::OutOfMemory`].
    #[doc(alias = "imread")]
    pub fn read(path: impl AsRef<Path>) -> Result<Image> {
        Image::read_with(path, DecodeOptions::default())
    }

    /// Reads a PNG or JPEG file, with limits.
    ///
    /// # Errors
    /// The errors of [`read`](Image::read).
    pub fn read_with(path: impl AsRef<Path>, options: DecodeOptions) -> Result<Image> {
        let (op, path) = ("read_image", path.as_ref());
        let mut bytes = Vec::new();
        // Reading one byte beyond the limit detects a larger file.
        let read = File::open(path).and_then(|file| file.take(options.max_bytes as u64 + 1).read_to_end(&mut bytes));
        read.map_err(|error| Error::unreadable_file(op, path, &error))?;
        decode(&bytes, options).map_err(|failure| failure.into_error(|reason| Error::file(op, path, reason)))
    }

    /// Decodes the bytes of a PNG or JPEG file.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] in the cases of [`read`](Image::read); [`Error::OutOfMemory`].
    pub fn decode(bytes: &[u8]) -> Result<Image> {
        Image::decode_with(bytes, DecodeOptions::default())
    }

    /// Decodes the bytes of a PNG or JPEG file, with limits.
    ///
    /// # Errors
    /// The errors of [`decode`](Image::decode).
    pub fn decode_with(bytes: &[u8], options: DecodeOptions) -> Result<Image> {
        let invalid = |reason| Error::invalid("decode_image", reason);
        decode(bytes, options).map_err(|failure| failure.into_error(invalid))
    }

    /// Returns the bytes of a PNG file.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the height or the width is larger than 2³¹ − 1.
    pub fn encode_png(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.write_png(&mut bytes).map_err(|error| Error::invalid("encode_png", error.to_string()))?;
        Ok(bytes)
    }

    /// Writes a PNG file.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    pub fn save_png(&self, path: impl AsRef<Path>) -> Result<()> {
        let (op, path) = ("save_png", path.as_ref());
        let file = File::create(path).map_err(|error| Error::unwritable_file(op, path, &error))?;
        self.write_png(BufWriter::new(file)).map_err(|error| {
            // An incomplete file is removed.
            let _ = std::fs::remove_file(path);
            match error {
                png::EncodingError::IoError(error) => Error::unwritable_file(op, path, &error),
                error => Error::file(op, path, error.to_string()),
            }
        })
    }

    fn write_png(&self, mut target: impl Write) -> std::result::Result<(), png::EncodingError> {
        // The encoder rejects `u32::MAX`, which replaces larger lengths.
        let len = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let mut encoder = png::Encoder::new(&mut target, len(self.width()), len(self.height()));
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_color(match self.channels() {
            1 => png::ColorType::Grayscale,
            3 => png::ColorType::Rgb,
            _ => png::ColorType::Rgba,
        });
        let mut writer = encoder.write_header()?;
        writer.write_image_data(self.pixels())?;
        writer.finish()?;
        Ok(target.flush()?)
    }
}

/// Decodes an image. The first bytes determine the format.
fn decode(bytes: &[u8], options: DecodeOptions) -> DecodeResult {
    if bytes.len() > options.max_bytes {
        let reason = format!("the file has more bytes than the limit `max_bytes`, {}", options.max_bytes);
        return Err(DecodeFailure::Invalid(reason));
    }
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => decode_png(bytes, options),
        [0xff, 0xd8, ..] => decode_jpeg(bytes, options),
        [] => Err(DecodeFailure::Invalid("the file is empty".to_string())),
        _ => {
            let start = &bytes[..bytes.len().min(4)];
            Err(DecodeFailure::Invalid(format!(
                "the format is neither PNG nor JPEG: the file starts with {start:02x?}"
            )))
        }
    }
}

fn decode_png(bytes: &[u8], options: DecodeOptions) -> DecodeResult {
    let invalid = |error: png::DecodingError| format!("the PNG image is damaged: {error}");
    // This limit applies to metadata; the pixels have a separate limit.
    let limits = png::Limits { bytes: options.max_bytes };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    decoder.set_ignore_text_chunk(true);
    let header = decoder.read_header_info().map_err(invalid)?;
    // The error of the decoder would not contain the size.
    options.check_size(header.width as usize, header.height as usize)?;
    let mut reader = decoder.read_info().map_err(invalid)?;
    let [width, height] = [reader.info().width, reader.info().height].map(|len| len as usize);
    let (color, _) = reader.output_color_type();
    let mut pixels = options.allocate(width, height, color.samples())?;
    reader.next_frame(&mut pixels).map_err(invalid)?;
    reader.finish().map_err(invalid)?;
    let (pixels, channels) = match color {
        png::ColorType::Grayscale => (pixels, 1),
        png::ColorType::Rgb => (pixels, 3),
        png::ColorType::GrayscaleAlpha => {
            (pixels.as_chunks::<2>().0.iter().flat_map(|&[gray, alpha]| [gray, gray, gray, alpha]).collect(), 4)
        }
        _ => (pixels, 4),
    };
    Ok(Image { pixels, height, width, channels })
}

fn decode_jpeg(bytes: &[u8], options: DecodeOptions) -> DecodeResult {
    // Some messages of the decoder end with a newline.
    let invalid = |error: zune_jpeg::errors::DecodeErrors| {
        format!("the JPEG image is damaged or not supported: {}", error.to_string().trim_end())
    };
    // Otherwise, the pixels after the end of a truncated file would be gray.
    let settings = DecoderOptions::default().set_strict_mode(true);
    // The only limit is the number of pixels. By default, the decoder would reject sides of more than 2¹⁴ pixels.
    let settings = settings.set_max_width(usize::from(u16::MAX)).set_max_height(usize::from(u16::MAX));
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), settings);
    decoder.decode_headers().map_err(invalid)?;
    let (width, height) = decoder.dimensions().unwrap_or_default();
    let (color, channels) = match decoder.input_colorspace() {
        Some(ColorSpace::Luma) => (ColorSpace::Luma, 1),
        _ => (ColorSpace::RGB, 3),
    };
    let mut pixels = options.allocate(width, height, channels)?;
    decoder.set_options(settings.jpeg_set_out_colorspace(color));
    decoder.decode_into(&mut pixels).map_err(invalid)?;
    if !has_end_of_image(bytes) {
        let reason = "the JPEG image is truncated: the end-of-image marker is missing";
        return Err(DecodeFailure::Invalid(reason.to_string()));
    }
    Ok(Image { pixels, height, width, channels })
}

/// Returns true if the end-of-image marker follows the last scan. The decoder does not detect a few missing bytes.
fn has_end_of_image(bytes: &[u8]) -> bool {
    let is_marker = |marker: u8| move |pair: &[u8]| pair == [0xff, marker];
    let scan = bytes.windows(2).rposition(is_marker(0xda)).unwrap_or(0);
    bytes[scan..].windows(2).any(is_marker(0xd9))
}
