//! MixUp and CutMix: mixing the samples of a batch.

use crate::random::{SplitMix64, with_rng};
use pellucid_derive::panicking_form;
use pellucid_tensor::{DType, Error, OptionRange, Result, Tensor, ops, unwrap};

/// Draws from the gamma distribution Γ(α, 1) (Marsaglia & Tsang 2000).
fn draw_gamma(rng: &mut SplitMix64, alpha: f64) -> f64 {
    if alpha < 1.0 {
        let boost = (1.0 - rng.uniform()).powf(1.0 / alpha);
        return draw_gamma(rng, alpha + 1.0) * boost;
    }
    let d = alpha - 1.0 / 3.0;
    let c = (9.0 * d).sqrt().recip();
    loop {
        let x = rng.normal();
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && (1.0 - rng.uniform()).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

/// Draws from the distribution Beta(α, α).
fn draw_beta(rng: &mut SplitMix64, alpha: f64) -> f64 {
    let (a, b) = (draw_gamma(rng, alpha), draw_gamma(rng, alpha));
    // For small α, both gamma samples may round to 0. The beta distribution is then concentrated at 0 and 1.
    if a + b > 0.0 { a / (a + b) } else { f64::from(u8::from(rng.uniform() < 0.5)) }
}

/// Returns an error for options out of their range.
fn check_options(op: &'static str, alpha: f64, classes: usize) -> Result<()> {
    OptionRange::POSITIVE.check(op, "alpha", alpha, 1.0)?;
    OptionRange::COUNT.check(op, "classes", classes as f64, 10.0)
}

/// Checks a batch, and returns its classes as probabilities `[N, classes]` in the dtype of the inputs.
fn one_hot_labels(op: &'static str, classes: usize, inputs: &Tensor, labels: &Tensor) -> Result<Tensor> {
    if !inputs.dtype().is_float() {
        let help = "the inputs must have a float dtype; to_dtype(DType::F32) converts them";
        return Err(Error::dtypes(op, [inputs.dtype()], help));
    }
    if inputs.shape().first() != labels.shape().first() {
        let help = "inputs and labels must have the same number of samples, the length of the first axis";
        return Err(Error::shapes(op, [inputs.shape(), labels.shape()], help));
    }
    match labels.shape().dims() {
        [_] if labels.dtype() == DType::I64 => {
            let indices: Vec<i64> = labels.try_to_vec()?;
            if let Some(label) = indices.iter().find(|label| !(0..classes as i64).contains(*label)) {
                return Err(Error::invalid(op, format!("the labels must be in 0..{classes}, got {label}")));
            }
            ops::to_dtype(&ops::one_hot(labels, classes)?, inputs.dtype())
        }
        &[_, width] if labels.dtype().is_float() && width == classes => Ok(labels.clone()),
        dims => {
            let help = format!("the labels must be class indices i64 [N], or float probabilities [N, {classes}]");
            match dims {
                [_] => Err(Error::dtypes(op, [labels.dtype()], help)),
                &[_, width] if width == classes => Err(Error::dtypes(op, [labels.dtype()], help)),
                _ => Err(Error::shapes(op, [labels.shape()], help)),
            }
        }
    }
}

/// Returns λ x + (1 − λ) y, where λ is `fraction` and y is x rolled by one sample.
fn mix_samples(x: &Tensor, fraction: f64) -> Result<Tensor> {
    let next = ops::roll(x, 1, 0)?;
    ops::add(&ops::mul(x, fraction)?, &ops::mul(&next, 1.0 - fraction)?)
}

/// Mixes each sample of a batch, and its label, with the previous sample: λ x + (1 − λ) y with one λ ~ Beta(α, α) per
/// batch (Zhang et al. 2018).
///
/// ```
/// use pellucid::data::MixUp;
/// use pellucid::nn::loss::cross_entropy;
/// use pellucid::{DType, Tensor};
/// let (images, labels) = (Tensor::rand([4, 3, 8, 8], DType::F32), Tensor::from([0i64, 1, 2, 1]));
/// let (images, probabilities) = MixUp::new(0.2, 3).apply(&images, &labels)?;
/// assert_eq!(probabilities.shape().dims(), [4, 3]);
/// // The loss, and a trainer with a `CrossEntropyLoss`, accept class indices and probabilities.
/// let loss = cross_entropy(&Tensor::zeros([4, 3], DType::F32), &probabilities);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MixUp {
    alpha: f64,
    classes: usize,
}

impl MixUp {
    /// Creates a transform. `alpha` is the parameter α of the distribution of λ, and `classes` is the number of
    /// classes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if α is not positive and finite, or there are no classes.
    #[panicking_form]
    pub fn try_new(alpha: f64, classes: usize) -> Result<MixUp> {
        check_options("mix_up", alpha, classes)?;
        Ok(MixUp { alpha, classes })
    }

    /// Returns the mixed inputs `[N, ..]` and the probabilities of the classes `[N, classes]`. Labels are class indices
    /// `i64` `[N]` or probabilities `[N, classes]`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for invalid shapes and dtypes; [`Error::InvalidArgument`] for
    /// a class index out of range.
    pub fn apply(&self, inputs: &Tensor, labels: &Tensor) -> Result<(Tensor, Tensor)> {
        let labels = one_hot_labels("mix_up", self.classes, inputs, labels)?;
        let fraction = with_rng(|rng| draw_beta(rng, self.alpha))?;
        Ok((mix_samples(inputs, fraction)?, mix_samples(&labels, fraction)?))
    }
}

/// Replaces a rectangle of each image of a batch by the same rectangle of the previous image, and mixes the labels in
/// proportion to the areas (Yun et al. 2019). The fraction of the unchanged area has the distribution Beta(α, α) before
/// the rectangle is clipped at the edges of the image.
#[derive(Clone, Copy, Debug)]
pub struct CutMix {
    alpha: f64,
    classes: usize,
}

impl CutMix {
    /// Creates a transform. `alpha` is the parameter α of the distribution of the area, and `classes` is the number of
    /// classes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if α is not positive and finite, or there are no classes.
    #[panicking_form]
    pub fn try_new(alpha: f64, classes: usize) -> Result<CutMix> {
        check_options("cut_mix", alpha, classes)?;
        Ok(CutMix { alpha, classes })
    }

    /// Returns the mixed images `[N, C, H, W]` and the probabilities of the classes `[N, classes]`. Labels are class
    /// indices `i64` `[N]` or probabilities `[N, classes]`.
    ///
    /// # Errors
    /// The errors of [`MixUp::apply`]; [`Error::ShapeMismatch`] for images without four axes.
    pub fn apply(&self, images: &Tensor, labels: &Tensor) -> Result<(Tensor, Tensor)> {
        let op = "cut_mix";
        let &[_, _, height, width] = images.shape().dims() else {
            return Err(Error::shapes(op, [images.shape()], "the images must have the axes [N, C, H, W]"));
        };
        let labels = one_hot_labels(op, self.classes, images, labels)?;
        let [rows, columns] = with_rng(|rng| {
            let half = 0.5 * (1.0 - draw_beta(rng, self.alpha)).sqrt();
            // The rectangle is clipped at the edges of the image.
            [height, width].map(|len| {
                let (center, half) = (rng.below(len.max(1)), (half * len as f64) as usize);
                center.saturating_sub(half)..(center + half).min(len)
            })
        })?;
        let area = (rows.len() * columns.len()) as f64 / (height * width).max(1) as f64;
        let next = ops::roll(images, 1, 0)?;
        let result = ops::copy(images)?;
        let part = |tensor: &Tensor| {
            let part = ops::narrow(tensor, 2, rows.start, rows.len())?;
            ops::narrow(&part, 3, columns.start, columns.len())
        };
        ops::copy_(&part(&result)?, &part(&next)?)?;
        Ok((result, mix_samples(&labels, 1.0 - area)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::EpochSeed;

    #[test]
    fn shares_have_the_moments_of_their_distribution() {
        for alpha in [0.2, 1.0, 4.0] {
            let mut rng = EpochSeed { seed: 1, epoch: 0 }.rng();
            let fractions: Vec<f64> = (0..20_000).map(|_| draw_beta(&mut rng, alpha)).collect();
            assert!(fractions.iter().all(|fraction| (0.0..=1.0).contains(fraction)));
            let mean = fractions.iter().sum::<f64>() / 2e4;
            let variance = fractions.iter().map(|fraction| (fraction - mean).powi(2)).sum::<f64>() / 2e4;
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!((mean - 0.5).abs() < 0.012, "alpha {alpha}: the mean must be near 0.5, got {mean}");
            assert!(
                (variance / expected - 1.0).abs() < 0.05,
                "alpha {alpha}: variance {variance}, expected {expected}"
            );
        }
    }
}
