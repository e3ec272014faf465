//! The operations of automatic augmentation (Cubuk et al. 2019): lookup tables, and sharpness. The alpha channel is
//! unchanged.

use super::color::histogram;
use super::{color_channels, map_bytes};
use crate::image::{Image, byte_table};
use pellucid_tensor::{Error, Result};

/// Returns the identity table.
fn identity() -> [u8; 256] {
    byte_table(|byte| byte)
}

/// Replaces the bytes of the color channels by `table(channel)[byte]`, in place.
fn map_color_tables(mut image: Image, table: impl Fn(&Image, usize) -> [u8; 256]) -> Image {
    let mut tables = [identity(); 4];
    for channel in 0..color_channels(&image) {
        tables[channel] = table(&image, channel);
    }
    let channels = image.channels();
    map_bytes(&mut image, &tables[..channels]);
    image
}

/// Inverts the colors: 255 − x.
pub fn invert(image: Image) -> Image {
    map_color_tables(image, |_, _| byte_table(|byte| 255 - byte))
}

/// Keeps the highest `bits` bits of each byte.
///
/// # Errors
/// [`Error::InvalidArgument`] for more than 8 bits.
pub fn posterize(image: Image, bits: u32) -> Result<Image> {
    if bits > 8 {
        return Err(Error::invalid("posterize", format!("`bits` must be at most 8, got {bits}")));
    }
    let mask = !(0xffu32 >> bits) as u8;
    Ok(map_color_tables(image, |_, _| byte_table(|byte| byte & mask)))
}

/// Inverts the bytes that are at least the threshold.
pub fn solarize(image: Image, threshold: f64) -> Image {
    let solarized = |byte: u8| if f64::from(byte) >= threshold { 255 - byte } else { byte };
    map_color_tables(image, |_, _| byte_table(solarized))
}

/// Stretches each channel linearly so that its minimum becomes 0 and its maximum 255. A constant channel is unchanged.
pub fn autocontrast(image: Image) -> Image {
    map_color_tables(image, |image, channel| {
        let counts = histogram(image, channel);
        let (min_value, max_value) = match (counts.iter().position(|n| *n > 0), counts.iter().rposition(|n| *n > 0)) {
            (Some(min_value), Some(max_value)) if min_value < max_value => (min_value as f32, max_value as f32),
            _ => return identity(),
        };
        let scale = 255.0 / (max_value - min_value);
        byte_table(|byte| ((f32::from(byte) - min_value) * scale) as u8)
    })
}

/// Equalizes the histogram of each channel.
pub fn equalize(image: Image) -> Image {
    map_color_tables(image, |image, channel| {
        let counts = histogram(image, channel);
        let last = counts.iter().rposition(|n| *n > 0).unwrap_or(0);
        let step = counts[..last].iter().sum::<usize>() / 255;
        if step == 0 {
            return identity();
        }
        // The entry of a byte depends on the number of smaller bytes.
        let mut below = 0;
        byte_table(|byte| {
            let entry = ((below + step / 2) / step).min(255) as u8;
            below += counts[usize::from(byte)];
            entry
        })
    })
}

/// Interpolates between a smoothed image (factor 0) and the image (factor 1); larger factors extrapolate. The edge
/// pixels are unchanged.
///
/// # Errors
/// [`Error::InvalidArgument`] if the factor is negative or not finite.
pub fn adjust_sharpness(mut image: Image, factor: f64) -> Result<Image> {
    if !(factor >= 0.0 && factor.is_finite()) {
        let reason = format!("the factor must be finite and not negative, got {factor}");
        return Err(Error::invalid("adjust_sharpness", reason));
    }
    let [height, width, channels] = image.shape();
    let (colors, factor) = (color_channels(&image), factor as f32);
    let source = image.clone();
    let bytes = source.pixels();
    for row in 1..height.saturating_sub(1) {
        for column in 1..width.saturating_sub(1) {
            for channel in 0..colors {
                let at = |row: usize, column: usize| bytes[(row * width + column) * channels + channel];
                let rows = row - 1..=row + 1;
                let sum: u32 =
                    rows.flat_map(|row| (column - 1..=column + 1).map(move |column| u32::from(at(row, column)))).sum();
                let center = at(row, column);
                // The 3 × 3 kernel has the weight 5 in the centre and 1 elsewhere.
                let smooth = ((sum + 4 * u32::from(center)) as f32 / 13.0).round_ties_even();
                let value = f32::from(center) * factor + smooth * (1.0 - factor);
                image.pixels_mut()[(row * width + column) * channels + channel] = value as u8;
            }
        }
    }
    Ok(image)
}
