//! Accuracy: the fraction of samples whose predicted class is correct.

use super::input::{ClassBatch, ClassificationOptions, OutputForm, metric_options, read_labels, read_scores};
use super::state::{metric_state, stored_struct};
use super::{Goal, Metric};
use pellucid_derive::panicking_form;
use pellucid_tensor::{Error, Result, Tensor, unwrap};

/// The counts of correct samples and of all samples.
#[derive(Clone, Copy, Debug, Default)]
struct CorrectCount {
    correct: u64,
    samples: u64,
    /// Whether a sample has a NaN score.
    has_nan: bool,
}

stored_struct!(CorrectCount { correct, samples, has_nan });

impl CorrectCount {
    /// Returns the fraction of correct samples, or NaN if there are no samples or a score is NaN.
    fn ratio(self) -> f64 {
        if self.has_nan {
            return f64::NAN;
        }
        self.correct as f64 / self.samples as f64
    }
}

/// The fraction of samples whose predicted class is the label, for all [forms of
/// outputs](super#outputs-and-targets-of-classification). It is NaN if a score of a sample is NaN.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::train::metrics::{Accuracy, Metric};
/// let mut accuracy = Accuracy::new().threshold(0.5);
/// accuracy.update(&Tensor::from([0.2, 0.7, 0.9]), &Tensor::from([0i64, 1, 0]))?;
/// assert_eq!(accuracy.compute()?, 2.0 / 3.0);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "accuracy_score")]
#[derive(Clone, Debug, Default)]
pub struct Accuracy {
    options: ClassificationOptions,
    count: CorrectCount,
}

impl Accuracy {
    /// Creates the metric for logits, without an ignored label.
    pub fn new() -> Accuracy {
        Accuracy::default()
    }
}

metric_options!(Accuracy: threshold, ignore_index);

impl Metric for Accuracy {
    fn name(&self) -> String {
        "accuracy".into()
    }

    fn goal(&self) -> Goal {
        Goal::Maximize
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let batch = ClassBatch::read("accuracy", output, target, self.options)?;
        self.count.correct += batch.pairs.iter().filter(|(class, label)| class == label).count() as u64;
        self.count.samples += batch.pairs.len() as u64;
        self.count.has_nan |= batch.nan_sample.is_some();
        Ok(())
    }

    fn compute(&self) -> Result<f64> {
        Ok(self.count.ratio())
    }

    fn reset(&mut self) {
        self.count = CorrectCount::default();
    }

    metric_state!(count);
}

/// The fraction of samples whose label is among the `k` classes with the largest scores.
///
/// Outputs are scores `[N, C]` or `[N, C, d..]`. For equal scores, the class with the larger index ranks first, as in
/// scikit-learn. The value is 1 if `k` is at least the number of classes, and NaN if a score is NaN.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::train::metrics::{Metric, TopKAccuracy};
/// let mut accuracy = TopKAccuracy::new(2);
/// accuracy.update(&Tensor::from([[0.5, 0.2, 0.3], [0.1, 0.2, 0.7]]), &Tensor::from([2i64, 0]))?;
/// assert_eq!(accuracy.compute()?, 0.5);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "top_k_accuracy_score")]
#[derive(Clone, Debug)]
pub struct TopKAccuracy {
    k: usize,
    options: ClassificationOptions,
    count: CorrectCount,
}

impl TopKAccuracy {
    /// Creates the metric for the `k` largest scores.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `k` is 0.
    #[panicking_form]
    pub fn try_new(k: usize) -> Result<TopKAccuracy> {
        if k == 0 {
            return Err(Error::invalid("top_k_accuracy", "k must be at least 1, got 0"));
        }
        Ok(TopKAccuracy { k, options: ClassificationOptions::default(), count: CorrectCount::default() })
    }
}

metric_options!(TopKAccuracy: ignore_index);

impl Metric for TopKAccuracy {
    fn name(&self) -> String {
        format!("top_{}_accuracy", self.k)
    }

    fn goal(&self) -> Goal {
        Goal::Maximize
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let op = "top_k_accuracy";
        let form = OutputForm::new(op, output, target)?;
        let OutputForm::ClassScores(classes) = form else {
            let help = "the output must be float scores [N, C] or [N, C, d..] of at least 2 classes";
            return Err(Error::shapes(op, [output.shape(), target.shape()], help));
        };
        let labels = read_labels(op, form, output, target, self.options.ignore_index)?;
        let scores = read_scores(op, form, output)?;
        for (scores, label) in scores.chunks_exact(classes).zip(labels) {
            let Some(label) = label else { continue };
            let is_above = |(class, &score): (usize, &f64)| match score.partial_cmp(&scores[label]) {
                Some(order) => order.is_gt() || order.is_eq() && class > label,
                None => false,
            };
            self.count.has_nan |= scores.iter().any(|score| score.is_nan());
            let above = scores.iter().enumerate().filter(|&score| is_above(score)).count();
            self.count.correct += u64::from(above < self.k);
            self.count.samples += 1;
        }
        Ok(())
    }

    fn compute(&self) -> Result<f64> {
        Ok(self.count.ratio())
    }

    fn reset(&mut self) {
        self.count = CorrectCount::default();
    }

    metric_state!(count);
}
