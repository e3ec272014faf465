//! Metrics of samples with several independent labels.

use super::averaged::f1_ratio;
use super::class_counts::{ClassAverage, ClassCount, quotient};
use super::input::{ClassificationOptions, OutputForm, metric_options, read, read_labels};
use super::state::metric_state;
use super::{Goal, Metric};
use pellucid_tensor::{Error, Result, Tensor, no_grad, ops, unwrap};

/// How [`MultiLabelF1Score`] is averaged over labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LabelAverage {
    /// The value for the counts summed over all labels.
    Micro,
    /// The mean over the labels.
    Macro,
}

/// The predictions and the labels of a batch, sample by sample. An ignored label is `None`.
struct LabelBatch {
    labels_per_sample: usize,
    pairs: Vec<Option<(bool, bool)>>,
    has_nan: bool,
}

impl LabelBatch {
    fn read(op: &'static str, output: &Tensor, target: &Tensor, options: ClassificationOptions) -> Result<LabelBatch> {
        let _guard = no_grad();
        let &[_, labels_per_sample] = output.shape().dims() else {
            let help = "the output must be scores [samples, labels], and the target must have the same shape, with \
                        elements 0 and 1";
            return Err(Error::shapes(op, [output.shape(), target.shape()], help));
        };
        if output.shape() != target.shape() {
            let help =
                "the labels must have the shape of the scores [samples, labels], with 1 for each label of a sample";
            return Err(Error::shapes(op, [output.shape(), target.shape()], help));
        }
        if !output.dtype().is_float() {
            let help = "the output must be float scores; convert predicted labels with to_dtype(DType::F32), and set the \
                        threshold to 0.5";
            return Err(Error::dtypes(op, [output.dtype()], help));
        }
        let predicted = read::<i64>(op, ops::gt(output, options.threshold))?;
        let nans = read::<i64>(op, ops::isnan(output))?;
        let labels = read_labels(op, OutputForm::BinaryScores, output, target, options.ignore_index)?;
        let mut batch = LabelBatch { labels_per_sample, pairs: Vec::with_capacity(labels.len()), has_nan: false };
        for ((&predicted, &is_nan), label) in predicted.iter().zip(&nans).zip(labels) {
            batch.has_nan |= is_nan != 0 && label.is_some();
            batch.pairs.push(label.map(|label| (predicted != 0, label == 1)));
        }
        Ok(batch)
    }
}

/// The fraction of labels that are predicted correctly, over all samples and labels `[N, L]`. A label is predicted if
/// its score is greater than the [threshold](MultiLabelAccuracy::threshold). The value is NaN if a score is NaN.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::train::metrics::{Metric, MultiLabelAccuracy};
/// let (logits, labels) = (Tensor::from([[2.0, -1.0], [0.5, 3.0]]), Tensor::from([[1i64, 0], [0, 1]]));
/// let (mut accuracy, mut exact) = (MultiLabelAccuracy::new(), MultiLabelAccuracy::new().exact(true));
/// accuracy.update(&logits, &labels)?;
/// exact.update(&logits, &labels)?;
/// assert_eq!((accuracy.compute()?, exact.compute()?), (0.75, 0.5));
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct MultiLabelAccuracy {
    options: ClassificationOptions,
    is_exact: bool,
    correct: u64,
    count: u64,
    has_nan: bool,
}

impl MultiLabelAccuracy {
    /// Creates the metric for logits, without an ignored label.
    pub fn new() -> MultiLabelAccuracy {
        MultiLabelAccuracy::default()
    }

    /// Sets whether samples are counted instead of labels: a sample is correct if all its labels are correct, as in
    /// scikit-learn's `accuracy_score`. Default false.
    #[doc(alias = "subset_accuracy")]
    #[must_use]
    pub fn exact(self, exact: bool) -> MultiLabelAccuracy {
        MultiLabelAccuracy { is_exact: exact, ..self }
    }
}

metric_options!(MultiLabelAccuracy: threshold, ignore_index);

impl Metric for MultiLabelAccuracy {
    fn name(&self) -> String {
        if self.is_exact { "exact_accuracy".into() } else { "label_accuracy".into() }
    }

    fn goal(&self) -> Goal {
        Goal::Maximize
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let op = if self.is_exact { "exact_accuracy" } else { "label_accuracy" };
        let batch = LabelBatch::read(op, output, target, self.options)?;
        self.has_nan |= batch.has_nan;
        let group = if self.is_exact { batch.labels_per_sample.max(1) } else { 1 };
        for labels in batch.pairs.chunks(group) {
            let mut counted = labels.iter().flatten().peekable();
            if counted.peek().is_some() {
                self.count += 1;
                self.correct += u64::from(counted.all(|(predicted, label)| predicted == label));
            }
        }
        Ok(())
    }

    fn compute(&self) -> Result<f64> {
        Ok(if self.has_nan { f64::NAN } else { self.correct as f64 / self.count as f64 })
    }

    fn reset(&mut self) {
        *self = MultiLabelAccuracy { options: self.options, is_exact: self.is_exact, ..Default::default() };
    }

    metric_state!(correct, count, has_nan);
}

/// The F1 score of independent labels `[N, L]`: 2·TP/(2·TP + FP + FN) of each label, or its average. A label is
/// predicted if its score is greater than the [threshold](MultiLabelF1Score::threshold). The F1 score of a
/// label that neither occurs nor is predicted is 0, as in scikit-learn. The values are NaN if a score is NaN.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::train::metrics::{LabelAverage, Metric, MultiLabelF1Score};
/// let mut f1 = MultiLabelF1Score::new(LabelAverage::Macro);
/// f1.update(&Tensor::from([[2.0, -1.0], [0.5, 3.0]]), &Tensor::from([[1i64, 0], [0, 1]]))?;
/// assert_eq!(f1.per_label(), [2.0 / 3.0, 1.0]);
/// assert_eq!(f1.compute()?, (2.0 / 3.0 + 1.0) / 2.0);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MultiLabelF1Score {
    average: LabelAverage,
    options: ClassificationOptions,
    counts: Vec<ClassCount>,
    /// The number of labels that are not ignored, over all samples.
    label_count: u64,
    has_nan: bool,
}

impl MultiLabelF1Score {
    /// Creates the metric for logits, without an ignored label.
    pub fn new(average: LabelAverage) -> MultiLabelF1Score {
        let options = ClassificationOptions::default();
        MultiLabelF1Score { average, options, counts: Vec::new(), label_count: 0, has_nan: false }
    }

    /// Returns the F1 score of each label.
    pub fn per_label(&self) -> Vec<f64> {
        self.counts.iter().map(|&count| if self.has_nan { f64::NAN } else { quotient(f1_ratio(count)) }).collect()
    }
}

metric_options!(MultiLabelF1Score: threshold, ignore_index);

impl Metric for MultiLabelF1Score {
    fn name(&self) -> String {
        match self.average {
            LabelAverage::Micro => ClassAverage::Micro.name("f1"),
            LabelAverage::Macro => ClassAverage::Macro.name("f1"),
        }
    }

    fn goal(&self) -> Goal {
        Goal::Maximize
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let op = "f1";
        let batch = LabelBatch::read(op, output, target, self.options)?;
        if batch.pairs.is_empty() {
            return Ok(());
        }
        if !self.counts.is_empty() && self.counts.len() != batch.labels_per_sample {
            let reason = format!(
                "the output has {} labels per sample, but earlier outputs had {}",
                batch.labels_per_sample,
                self.counts.len()
            );
            return Err(Error::invalid(op, reason));
        }
        self.counts.resize(batch.labels_per_sample, ClassCount::default());
        self.has_nan |= batch.has_nan;
        for labels in batch.pairs.chunks(batch.labels_per_sample.max(1)) {
            for (count, pair) in self.counts.iter_mut().zip(labels) {
                let Some((predicted, label)) = *pair else { continue };
                count.predicted += u64::from(predicted);
                count.actual += u64::from(label);
                count.true_positives += u64::from(predicted && label);
                self.label_count += 1;
            }
        }
        Ok(())
    }

    fn compute(&self) -> Result<f64> {
        if self.label_count == 0 || self.has_nan {
            return Ok(f64::NAN);
        }
        Ok(match self.average {
            LabelAverage::Micro => {
                let sum = |(n, d), &count| {
                    let (numerator, denominator) = f1_ratio(count);
                    (n + numerator, d + denominator)
                };
                quotient(self.counts.iter().fold((0, 0), sum))
            }
            LabelAverage::Macro => self.per_label().iter().sum::<f64>() / self.counts.len() as f64,
        })
    }

    fn reset(&mut self) {
        *self = MultiLabelF1Score { options: self.options, ..MultiLabelF1Score::new(self.average) };
    }

    metric_state!(counts, label_count, has_nan);
}
