//! Image transforms for augmentation and preprocessing.
//!
//! | module | contents |
//! | --- | --- |
//! | `crop` | [`CenterCrop`], [`RandomCrop`], [`Pad`] |
//! | `resize` | [`ResizeImage`], [`RandomResizedCrop`] |
//! | `flip` | [`RandomHorizontalFlip`], [`RandomVerticalFlip`] |
//! | `affine` | [`RandomRotation`]; shears and translations |
//! | `color` | [`ColorJitter`], [`Grayscale`] |
//! | `tone` | the operations of automatic augmentation: equalization, posterization and others |
//! | `blur` | [`GaussianBlur`] |
//! | `erase` | [`RandomErasing`] |
//! | `policy` | [`RandAugment`], [`TrivialAugmentWide`], [`AutoAugment`] |
//! | `normalize` | [`Normalize`]: conversion of images to normalized tensors |
//!
//! [`functional`] contains the deterministic computations. All definitions are torchvision's.
//!
//! ```
//! use pellucid::data::transforms::{ColorJitter, ImageTransform, Normalize, RandomCrop, RandomHorizontalFlip};
//! use pellucid::data::{Dataset, Image, from_fn};
//!
//! let images = from_fn(10, |i| Ok((Image::new(vec![i as u8; 32 * 32 * 3], [32, 32, 3]), 0i64)));
//! let jitter = ColorJitter::new(0.4, 0.4, 0.4, 0.1);
//! let augment = (RandomCrop::new([32, 32]).padding(4), RandomHorizontalFlip::default(), jitter);
//! let normalize = Normalize::new(&[0.49, 0.48, 0.45], &[0.25, 0.24, 0.26]);
//! let samples = images.map(move |(image, class)| Ok((normalize.to_tensor(&augment.apply(image)?)?, class)));
//! assert_eq!(samples.get(3)?.0.shape().dims(), [3, 32, 32]);
//! # Ok::<(), pellucid::Error>(())
//! ```
//!
//! Random numbers are drawn by [`with_rng`]: inside a loader they depend only on the seed, the epoch and the position
//! of the sample.

mod affine;
mod blur;
mod color;
mod crop;
mod erase;
mod flip;
mod normalize;
mod policy;
mod resize;
mod tone;

pub use affine::RandomRotation;
pub use blur::GaussianBlur;
pub use color::{ColorJitter, Grayscale};
pub use crop::{CenterCrop, Pad, RandomCrop};
pub use erase::RandomErasing;
pub use flip::{RandomHorizontalFlip, RandomVerticalFlip};
pub use normalize::Normalize;
pub use policy::{AutoAugment, AutoAugmentPolicy, RandAugment, TrivialAugmentWide};
pub use resize::{RandomResizedCrop, ResizeImage};

/// Transforms without random numbers, as functions.
pub mod functional {
    pub use super::affine::{AffineMatrix, affine, rotate};
    pub use super::blur::gaussian_blur;
    pub use super::color::{adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation, grayscale};
    pub use super::crop::{center_crop, crop, pad};
    pub use super::erase::erase;
    pub use super::flip::{horizontal_flip, vertical_flip};
    pub use super::resize::resize;
    pub use super::tone::{adjust_sharpness, autocontrast, equalize, invert, posterize, solarize};
}

use crate::image::Image;
use crate::random::with_rng;
use pellucid_derive::panicking_form;
use pellucid_tensor::{OptionRange, Result, unwrap};

/// Returns an error unless a height and a width are at least 1.
fn check_size(op: &'static str, [height, width]: [usize; 2]) -> Result<()> {
    OptionRange::COUNT.check(op, "the height", height as f64, 224.0)?;
    OptionRange::COUNT.check(op, "the width", width as f64, 224.0)
}

/// A transform of an image. Closures and tuples of transforms are also transforms.
pub trait ImageTransform: Send + Sync {
    /// Returns the transformed image. Most transforms reuse the memory of `image`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if the image is not suitable, for example
    /// smaller than the crop.
    fn apply(&self, image: Image) -> Result<Image>;
}

impl<F: Fn(Image) -> Result<Image> + Send + Sync> ImageTransform for F {
    fn apply(&self, image: Image) -> Result<Image> {
        self(image)
    }
}

macro_rules! tuple_transforms {
    ($(($($part:ident $field:tt),+)),+) => {$(
        /// Applies the transforms in order.
        impl<$($part: ImageTransform),+> ImageTransform for ($($part,)+) {
            fn apply(&self, image: Image) -> Result<Image> {
                $(let image = self.$field.apply(image)?;)+
                Ok(image)
            }
        }
    )+};
}
tuple_transforms!(
    (A 0),
    (A 0, B 1),
    (A 0, B 1, C 2),
    (A 0, B 1, C 2, D 3),
    (A 0, B 1, C 2, D 3, E 4),
    (A 0, B 1, C 2, D 3, E 4, F 5),
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6),
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
);

/// Applies a list of transforms that is built at run time. For a fixed list, use a tuple.
///
/// ```
/// use pellucid::data::Image;
/// use pellucid::data::transforms::{CenterCrop, Compose, Grayscale, ImageTransform};
/// let mut transform = Compose::new().then(CenterCrop::new([2, 2]));
/// if std::env::var("GRAY").is_ok() {
///     transform = transform.then(Grayscale::new());
/// }
/// let image = transform.apply(Image::new(vec![0; 4 * 4 * 3], [4, 4, 3]))?;
/// assert_eq!(image.shape()[..2], [2, 2]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Default)]
pub struct Compose {
    transforms: Vec<Box<dyn ImageTransform>>,
}

impl std::fmt::Debug for Compose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Compose({} transforms)", self.transforms.len())
    }
}

impl Compose {
    /// Creates a transform that changes nothing.
    pub fn new() -> Compose {
        Compose::default()
    }

    /// Appends a transform.
    #[must_use]
    pub fn then(mut self, transform: impl ImageTransform + 'static) -> Self {
        self.transforms.push(Box::new(transform));
        self
    }
}

impl ImageTransform for Compose {
    fn apply(&self, image: Image) -> Result<Image> {
        self.transforms.iter().try_fold(image, |image, transform| transform.apply(image))
    }
}

/// Applies a transform with a given probability.
///
/// ```
/// use pellucid::data::transforms::{GaussianBlur, RandomApply};
/// let sometimes = RandomApply::new(0.2, GaussianBlur::new(5));
/// ```
#[derive(Clone, Debug)]
pub struct RandomApply<T> {
    probability: f64,
    transform: T,
}

impl<T: ImageTransform> RandomApply<T> {
    /// Creates a transform that is applied with this probability.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if the probability is not in [0, 1].
    #[panicking_form]
    pub fn try_new(probability: f64, transform: T) -> Result<RandomApply<T>> {
        OptionRange::PROBABILITY.check("random_apply", "the probability", probability, 0.5)?;
        Ok(RandomApply { probability, transform })
    }
}

impl<T: ImageTransform> ImageTransform for RandomApply<T> {
    fn apply(&self, image: Image) -> Result<Image> {
        if is_drawn(self.probability)? { self.transform.apply(image) } else { Ok(image) }
    }
}

/// Returns true with this probability.
fn is_drawn(probability: f64) -> Result<bool> {
    with_rng(|rng| rng.uniform() < probability)
}

/// Replaces each byte by its entry in the table of its channel.
fn map_bytes(image: &mut Image, tables: &[[u8; 256]]) {
    let channels = image.channels();
    for channel in 0..channels {
        let table = &tables[channel.min(tables.len() - 1)];
        image
            .pixels_mut()
            .iter_mut()
            .skip(channel)
            .step_by(channels)
            .for_each(|byte| *byte = table[usize::from(*byte)]);
    }
}

/// Returns the number of channels without alpha.
fn color_channels(image: &Image) -> usize {
    image.channels().min(3)
}
