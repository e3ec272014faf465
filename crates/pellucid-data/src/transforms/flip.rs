//! Flips.

use super::{ImageTransform, is_drawn};
use crate::image::{Image, for_channels};
use pellucid_derive::panicking_form;
use pellucid_tensor::{OptionRange, Result, unwrap};

/// Mirrors an image at its vertical axis, in place.
pub fn horizontal_flip(mut image: Image) -> Image {
    fn reverse_rows<const C: usize>(pixels: &mut [u8], width: usize) {
        pixels.as_chunks_mut::<C>().0.chunks_exact_mut(width).for_each(<[_]>::reverse);
    }
    let width = image.width();
    for_channels!(image, reverse_rows(image.pixels_mut(), width));
    image
}

/// Mirrors an image at its horizontal axis, in place.
pub fn vertical_flip(mut image: Image) -> Image {
    let (rows, len) = (image.height(), image.width() * image.channels());
    let (upper, lower) = image.pixels_mut().split_at_mut(rows / 2 * len);
    let lower = lower.chunks_exact_mut(len).rev();
    upper.chunks_exact_mut(len).zip(lower).for_each(|(a, b)| a.swap_with_slice(b));
    image
}

macro_rules! random_flip {
    ($flip:ident, $op:literal, $function:ident, $axis:literal) => {
        #[doc = concat!("Mirrors an image at its ", $axis, " axis with a probability, by default 0.5.")]
        #[derive(Clone, Copy, Debug)]
        pub struct $flip {
            probability: f64,
        }

        impl $flip {
            /// Creates a flip with this probability.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if the probability is not in [0, 1].
            #[panicking_form]
            pub fn try_new(probability: f64) -> Result<$flip> {
                OptionRange::PROBABILITY.check($op, "the probability", probability, 0.5)?;
                Ok($flip { probability })
            }
        }

        impl Default for $flip {
            fn default() -> Self {
                $flip::new(0.5)
            }
        }

        impl ImageTransform for $flip {
            fn apply(&self, image: Image) -> Result<Image> {
                Ok(if is_drawn(self.probability)? { $function(image) } else { image })
            }
        }
    };
}
random_flip!(RandomHorizontalFlip, "random_horizontal_flip", horizontal_flip, "vertical");
random_flip!(RandomVerticalFlip, "random_vertical_flip", vertical_flip, "horizontal");
