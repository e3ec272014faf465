//! [`Normalize`]: conversion of images to normalized tensors.

use crate::image::{Image, byte_table};
use pellucid_derive::panicking_form;
use pellucid_tensor::{Error, OptionRange, Result, Tensor, ops, unwrap};

/// Subtracts the mean of each channel and divides by the standard deviation. Both refer to pixel values in [0, 1].
///
/// [`to_tensor`](Normalize::to_tensor) converts an image and normalizes it in one pass. The result equals
/// `normalize.apply_to(&image.to_tensor())`.
///
/// ```
/// use pellucid::data::Image;
/// use pellucid::data::transforms::Normalize;
/// let normalize = Normalize::new(&[0.5], &[0.25]);
/// let image = Image::new(vec![0, 255], [1, 2, 1]);
/// assert_eq!(normalize.to_tensor(&image)?.to_vec::<f32>(), [-2.0, 2.0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Normalize {
    mean: Vec<f32>,
    std: Vec<f32>,
    /// The normalized value of each byte, for each channel.
    tables: Box<[[f32; 256]; 4]>,
}

const OP: &str = "normalize";

impl Normalize {
    /// Creates a transform with the means and standard deviations of the channels. A single mean and a single standard
    /// deviation apply to all channels. [`to_tensor`](Normalize::to_tensor) rejects an image with a different number of
    /// channels.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an empty list, means that are not finite, and standard deviations that are not
    /// finite and above 0.
    #[panicking_form]
    pub fn try_new(mean: &[f64], std: &[f64]) -> Result<Normalize> {
        for (name, values) in [("means", mean), ("standard deviations", std)] {
            OptionRange::COUNT.check(OP, &format!("the number of {name}"), values.len() as f64, 3.0)?;
        }
        mean.iter().try_for_each(|&mean| OptionRange::FINITE.check(OP, "a mean", mean, 0.5))?;
        std.iter().try_for_each(|&std| OptionRange::POSITIVE.check(OP, "a standard deviation", std, 0.25))?;
        let [mean, std] = [mean, std].map(|values| values.iter().map(|value| *value as f32).collect::<Vec<f32>>());
        let channel_value =
            |values: &[f32], channel: usize| values.get(channel).or(values.last()).copied().unwrap_or(f32::NAN);
        let table = |channel| {
            let (mean, std) = (channel_value(&mean, channel), channel_value(&std, channel));
            byte_table(|byte| (f32::from(byte) / 255.0 - mean) / std)
        };
        let tables = Box::new([table(0), table(1), table(2), table(3)]);
        Ok(Normalize { mean, std, tables })
    }

    /// Creates a transform with the means and standard deviations of ImageNet.
    pub fn imagenet() -> Normalize {
        Normalize::new(&[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225])
    }

    /// Returns an error if the number of values does not match the number of channels.
    fn check(&self, channels: usize) -> Result<()> {
        let lengths = [self.mean.len(), self.std.len()];
        if lengths.iter().any(|len| *len != 1 && *len != channels) {
            let [means, deviations] = lengths;
            let reason = format!(
                "the image has {channels} channels, but there are {means} means and {deviations} standard deviations"
            );
            return Err(Error::invalid(OP, reason));
        }
        Ok(())
    }

    /// Converts an image to a normalized `f32` tensor `[channels, height, width]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the channel counts differ; [`Error::OutOfMemory`].
    pub fn to_tensor(&self, image: &Image) -> Result<Tensor> {
        self.check(image.channels())?;
        image.map_to_tensor(&self.tables)
    }

    /// Normalizes a tensor of images `[.., channels, height, width]`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for fewer than three axes; [`Error::InvalidArgument`] if the channel counts differ;
    /// [`Error::DTypeMismatch`] for integers.
    pub fn apply_to(&self, images: &Tensor) -> Result<Tensor> {
        let &[.., channels, _, _] = images.shape().dims() else {
            return Err(Error::shapes(
                OP,
                [images.shape()],
                "the tensor must have the axes [.., channels, height, width]",
            ));
        };
        if !images.dtype().is_float() {
            let help = "the images must have a float dtype, with values in [0, 1]; use Image::to_tensor()";
            return Err(Error::dtypes(OP, [images.dtype()], help));
        }
        self.check(channels)?;
        let per_channel = |values: &[f32]| {
            let tensor = Tensor::try_new(values, [values.len(), 1, 1])?;
            ops::to_dtype(&tensor, images.dtype())?.try_to(images.device())
        };
        ops::div(&ops::sub(images, &per_channel(&self.mean)?)?, &per_channel(&self.std)?)
    }
}
