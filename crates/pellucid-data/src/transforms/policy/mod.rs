//! Automatic augmentation: random operations of random magnitude.

mod learned;

use super::ImageTransform;
use super::affine::{AffineMatrix, affine};
use super::color::{adjust_brightness, adjust_contrast, adjust_saturation};
use super::tone::{adjust_sharpness, autocontrast, equalize, invert, posterize, solarize};
use crate::image::Image;
use crate::random::{SplitMix64, with_rng};
use learned::SubPolicy;
use pellucid_derive::panicking_form;
use pellucid_tensor::{Error, Result, ops::InterpolationMode, unwrap};

/// An operation of automatic augmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AugmentOp {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
    Invert,
}

use AugmentOp::*;

/// The operations that RandAugment and TrivialAugment draw from.
const OPERATIONS: [AugmentOp; 14] = [
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
];

/// The largest magnitude of each kind of operation.
#[derive(Clone, Copy)]
struct MagnitudeLimits {
    shear: f64,
    /// The translation in pixels for an image of this length.
    translation: fn(usize) -> f64,
    degrees: f64,
    /// The maximum difference between a color factor and 1.
    color: f64,
    /// The number of bits that posterization removes.
    bits: f64,
}

/// The limits of AutoAugment and RandAugment, which were tuned for images of 331 pixels.
const LEARNED_LIMITS: MagnitudeLimits =
    MagnitudeLimits { shear: 0.3, translation: |len| 150.0 / 331.0 * len as f64, degrees: 30.0, color: 0.9, bits: 4.0 };

/// The limits of TrivialAugment (wide).
const WIDE_LIMITS: MagnitudeLimits =
    MagnitudeLimits { shear: 0.99, translation: |_| 32.0, degrees: 135.0, color: 0.99, bits: 6.0 };

impl AugmentOp {
    /// Returns true if the sign of the magnitude is random.
    fn is_signed(self) -> bool {
        !matches!(self, Identity | Posterize | Solarize | AutoContrast | Equalize | Invert)
    }

    /// Applies the operation with a magnitude in [−1, 1], which is a fraction of the limit. The sign is the direction.
    fn apply(self, image: Image, magnitude: f64, limits: MagnitudeLimits) -> Result<Image> {
        let [half_height, half_width] = [image.height(), image.width()].map(|len| len as f64 / 2.0);
        let mapped = |degrees: f64, translate: [f64; 2], shear: [f64; 2], center: [f64; 2]| {
            let shear = shear.map(|shear| (shear * limits.shear).atan().to_degrees());
            let matrix = AffineMatrix::new(degrees, translate, shear, center);
            affine(&image, matrix, InterpolationMode::NearestExact, 0)
        };
        // The translation is an integer number of pixels.
        let pixels = |len: usize| ((limits.translation)(len) * magnitude).trunc();
        // The upper left corner is a fixed point of shears.
        let corner = [-half_width, -half_height];
        match self {
            Identity => Ok(image),
            ShearX => mapped(0.0, [0.0; 2], [magnitude, 0.0], corner),
            ShearY => mapped(0.0, [0.0; 2], [0.0, magnitude], corner),
            TranslateX => mapped(0.0, [pixels(image.width()), 0.0], [0.0; 2], [0.0; 2]),
            TranslateY => mapped(0.0, [0.0, pixels(image.height())], [0.0; 2], [0.0; 2]),
            Rotate => mapped(-limits.degrees * magnitude, [0.0; 2], [0.0; 2], [0.0; 2]),
            Brightness => adjust_brightness(image, 1.0 + limits.color * magnitude),
            Color => adjust_saturation(image, 1.0 + limits.color * magnitude),
            Contrast => adjust_contrast(image, 1.0 + limits.color * magnitude),
            Sharpness => adjust_sharpness(image, 1.0 + limits.color * magnitude),
            Posterize => posterize(image, 8 - (limits.bits * magnitude).round_ties_even() as u32),
            Solarize => Ok(solarize(image, 255.0 * (1.0 - magnitude))),
            AutoContrast => Ok(autocontrast(image)),
            Equalize => Ok(equalize(image)),
            Invert => Ok(invert(image)),
        }
    }
}

/// Negates the magnitude of a signed operation with probability 1/2.
fn draw_sign(rng: &mut SplitMix64, operation: AugmentOp, magnitude: f64) -> f64 {
    if operation.is_signed() && rng.uniform() < 0.5 { -magnitude } else { magnitude }
}

/// Applies several random operations with the same magnitude (Cubuk et al. 2020).
#[derive(Clone, Copy, Debug)]
pub struct RandAugment {
    operations: usize,
    magnitude: f64,
}

impl RandAugment {
    /// Creates a transform with this number of operations, usually 2, and this magnitude from 0 to 30, usually 9.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a magnitude above 30.
    #[panicking_form]
    pub fn try_new(operations: usize, magnitude: usize) -> Result<RandAugment> {
        if magnitude > 30 {
            let reason = format!("the magnitude must be at most 30, got {magnitude}; try 9");
            return Err(Error::invalid("rand_augment", reason));
        }
        Ok(RandAugment { operations, magnitude: magnitude as f64 / 30.0 })
    }
}

impl Default for RandAugment {
    fn default() -> Self {
        RandAugment::new(2, 9)
    }
}

impl ImageTransform for RandAugment {
    fn apply(&self, image: Image) -> Result<Image> {
        (0..self.operations).try_fold(image, |image, _| {
            let (operation, magnitude) = with_rng(|rng| {
                let operation = OPERATIONS[rng.below(OPERATIONS.len())];
                (operation, draw_sign(rng, operation, self.magnitude))
            })?;
            operation.apply(image, magnitude, LEARNED_LIMITS)
        })
    }
}

/// Applies one random operation with a random magnitude (Müller & Hutter 2021).
#[derive(Clone, Copy, Debug, Default)]
pub struct TrivialAugmentWide;

impl ImageTransform for TrivialAugmentWide {
    fn apply(&self, image: Image) -> Result<Image> {
        let (operation, magnitude) = with_rng(|rng| {
            let operation = OPERATIONS[rng.below(OPERATIONS.len())];
            let magnitude = rng.below(31) as f64 / 30.0;
            (operation, draw_sign(rng, operation, magnitude))
        })?;
        operation.apply(image, magnitude, WIDE_LIMITS)
    }
}

/// The data set for which [`AutoAugment`] was learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoAugmentPolicy {
    /// ImageNet.
    #[default]
    ImageNet,
    /// CIFAR-10.
    Cifar10,
    /// Street View House Numbers.
    Svhn,
}

/// Applies a random sub-policy: one of 25 learned pairs of operations (Cubuk et al. 2019).
#[derive(Clone, Copy, Debug, Default)]
pub struct AutoAugment {
    policy: AutoAugmentPolicy,
}

impl AutoAugment {
    /// Creates a transform with the policy of a data set.
    pub fn new(policy: AutoAugmentPolicy) -> AutoAugment {
        AutoAugment { policy }
    }
}

impl ImageTransform for AutoAugment {
    fn apply(&self, image: Image) -> Result<Image> {
        let policies: &[SubPolicy] = match self.policy {
            AutoAugmentPolicy::ImageNet => &learned::IMAGENET,
            AutoAugmentPolicy::Cifar10 => &learned::CIFAR10,
            AutoAugmentPolicy::Svhn => &learned::SVHN,
        };
        let drawn = with_rng(|rng| {
            let pair = policies[rng.below(policies.len())];
            pair.map(|(operation, probability, step)| {
                let is_applied = rng.uniform() < probability;
                is_applied.then(|| (operation, draw_sign(rng, operation, step as f64 / 9.0)))
            })
        })?;
        drawn
            .into_iter()
            .flatten()
            .try_fold(image, |image, (operation, magnitude)| operation.apply(image, magnitude, LEARNED_LIMITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The integration tests compare the operations with torchvision's.
    #[test]
    fn every_operation_applies_at_every_magnitude() {
        let image = Image::new((0..=191).collect(), [8, 8, 3]);
        for limits in [LEARNED_LIMITS, WIDE_LIMITS] {
            for operation in OPERATIONS.into_iter().chain([Invert]) {
                for magnitude in [0.0, 0.3, 1.0, -1.0] {
                    if magnitude >= 0.0 || operation.is_signed() {
                        let result = operation.apply(image.clone(), magnitude, limits).unwrap();
                        assert_eq!(result.shape(), [8, 8, 3]);
                        let is_neutral = magnitude == 0.0 && (operation.is_signed() || operation == Posterize);
                        assert!(!is_neutral || result == image, "{operation:?} changes an image at magnitude 0");
                    }
                }
            }
        }
    }

    #[test]
    fn translations_are_in_pixels() {
        let image = Image::new((0..16).collect(), [4, 4, 1]);
        let limits = MagnitudeLimits { translation: |_| 2.5, ..WIDE_LIMITS };
        let right = TranslateX.apply(image.clone(), 1.0, limits).unwrap();
        assert_eq!(right.pixels()[..8], [0, 0, 0, 1, 0, 0, 4, 5]);
        let up = TranslateY.apply(image, -1.0, limits).unwrap();
        assert_eq!(up.pixels()[..9], [8, 9, 10, 11, 12, 13, 14, 15, 0]);
    }
}
