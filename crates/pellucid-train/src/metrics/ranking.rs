//! Metrics of the ranking of samples by score. All scores and labels are stored, so the values are exact.

use super::input::{
    ClassificationOptions, OutputForm, ScoreKind, check_probabilities, metric_options, read_labels, read_scores,
};
use super::state::{StoredValue, metric_state, wrong_state};
use super::sum::CompensatedSum;
use super::{Goal, Metric};
use pellucid_tensor::{Error, Result, Tensor};

/// The positive and negative sample counts of a group with equal scores.
#[derive(Clone, Copy, Debug, Default)]
struct TiedSamples {
    positives: u64,
    negatives: u64,
}

/// Groups samples by score, in descending order. Returns `None` if a score is NaN, because the order is then undefined.
fn tied_samples(samples: impl Iterator<Item = (f64, bool)>) -> Option<Vec<TiedSamples>> {
    let mut samples: Vec<(f64, bool)> = samples.collect();
    if samples.iter().any(|(score, _)| score.is_nan()) {
        return None;
    }
    samples.sort_unstable_by(|(a, _), (b, _)| b.total_cmp(a));
    let group = |group: &[(f64, bool)]| {
        let positives = group.iter().filter(|(_, is_positive)| *is_positive).count() as u64;
        TiedSamples { positives, negatives: group.len() as u64 - positives }
    };
    // 0 and −0 are adjacent in the total order, and belong to one group.
    Some(samples.chunk_by(|(a, _), (b, _)| a == b).map(group).collect())
}

/// Returns the area under the ROC curve: the probability that a positive sample has a larger score than a negative one,
/// where a tie counts one half (Hanley & McNeil 1982). It is NaN if there are no positive or no negative samples.
fn area_under_roc(samples: impl Iterator<Item = (f64, bool)>) -> f64 {
    let Some(groups) = tied_samples(samples) else { return f64::NAN };
    // A tie counts one half, so twice the number of ordered pairs is an integer and exact. It exceeds 64 bits for
    // billions of samples.
    let (mut positives, mut negatives, mut twice_ordered) = (0u128, 0u128, 0u128);
    for group in groups {
        let (tied_positives, tied_negatives) = (u128::from(group.positives), u128::from(group.negatives));
        twice_ordered += tied_negatives * (2 * positives + tied_positives);
        positives += tied_positives;
        negatives += tied_negatives;
    }
    twice_ordered as f64 / (2 * positives * negatives) as f64
}

/// The area under the receiver operating characteristic curve, exact even for tied scores.
///
/// - Binary: scores `[N]` or `[N, 1]`. Only their order matters.
/// - Several classes: logits or probabilities `[N, C]`. The value is the mean over the classes of the one-vs-rest area
///   (macro average; Provost & Domingos 2000). Logits are converted to probabilities by a softmax in `f64`.
///
/// The value is NaN if a class has no samples or all samples, or if a score is NaN. The metric stores all scores and
/// labels, 8 bytes each, until [`reset`](Metric::reset).
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::train::metrics::{Metric, RocAuc};
/// let mut auc = RocAuc::new();
/// auc.update(&Tensor::from([0.1, 0.4, 0.35, 0.8]), &Tensor::from([0i64, 0, 1, 1]))?;
/// assert_eq!(auc.compute()?, 0.75);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "roc_auc_score")]
#[derive(Clone, Debug, Default)]
pub struct RocAuc {
    options: ClassificationOptions,
    /// The number of scores per sample: 1 for binary scores, 0 before the first batch.
    width: usize,
    /// The rows of `width` scores. For several classes, these are probabilities.
    scores: Vec<f64>,
    labels: Vec<usize>,
}

impl RocAuc {
    /// Creates the metric for logits.
    pub fn new() -> RocAuc {
        RocAuc::default()
    }

    /// Returns the one-vs-rest area of each class. For binary scores, returns only the area of class 1.
    pub fn per_class(&self) -> Vec<f64> {
        let area = |column: usize| {
            let positive = if self.width == 1 { 1 } else { column };
            let scores = self.scores.iter().skip(column).step_by(self.width);
            area_under_roc(scores.zip(&self.labels).map(|(&score, &label)| (score, label == positive)))
        };
        (0..self.width).map(area).collect()
    }
}

metric_options!(RocAuc: scores, ignore_index);

impl Metric for RocAuc {
    fn name(&self) -> String {
        "roc_auc".into()
    }

    fn goal(&self) -> Goal {
        Goal::Maximize
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let op = "roc_auc";
        let form = OutputForm::new(op, output, target)?;
        let width = if let OutputForm::ClassScores(classes) = form { classes } else { 1 };
        let labels = read_labels(op, form, output, target, self.options.ignore_index)?;
        let mut scores = read_scores(op, form, output)?;
        if labels.is_empty() {
            return Ok(());
        }
        if self.width != 0 && self.width != width {
            let reason = format!(
                "the output has shape {}, but earlier batches had {} scores per sample",
                output.shape(),
                self.width
            );
            return Err(Error::invalid(op, reason));
        }
        match self.options.scores {
            ScoreKind::Probabilities => check_probabilities(op, &scores, width, output.dtype())?,
            ScoreKind::Logits if width > 1 => scores.chunks_exact_mut(width).for_each(softmax),
            ScoreKind::Logits => {}
        }
        self.width = width;
        for (scores, label) in scores.chunks_exact(width).zip(labels) {
            let Some(label) = label else { continue };
            self.scores.extend(scores);
            self.labels.push(label);
        }
        Ok(())
    }

    fn compute(&self) -> Result<f64> {
        let areas = self.per_class();
        Ok(areas.iter().copied().collect::<CompensatedSum>().value() / areas.len() as f64)
    }

    fn reset(&mut self) {
        *self = RocAuc { options: self.options, ..RocAuc::new() };
    }

    metric_state!(width, scores, labels);

    fn savepoint(&self) -> Option<Vec<f64>> {
        Some(vec![self.width as f64, self.labels.len() as f64])
    }

    fn roll_back(&mut self, savepoint: &[f64]) -> Result<()> {
        let [width, labels] = read_savepoint(&self.name(), savepoint, self.labels.len())?;
        self.width = width;
        self.scores.truncate(width * labels);
        self.labels.truncate(labels);
        Ok(())
    }
}

/// Decodes a savepoint whose last element is a sample count of at most `len`.
fn read_savepoint<const N: usize>(metric: &str, savepoint: &[f64], len: usize) -> Result<[usize; N]> {
    let mut numbers = savepoint.iter();
    let counts: Option<Vec<usize>> = (0..savepoint.len()).map(|_| usize::restore(&mut numbers)).collect();
    let counts = counts.and_then(|counts| <[usize; N]>::try_from(counts).ok());
    let is_valid = |counts: &[usize; N]| counts.last().is_some_and(|&samples| samples <= len);
    counts.filter(is_valid).ok_or_else(|| wrong_state(metric, savepoint.len()))
}

/// Replaces the logits of a sample with their probabilities.
fn softmax(row: &mut [f64]) {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter_mut().for_each(|score| *score = (*score - largest).exp());
    let sum: f64 = row.iter().sum();
    row.iter_mut().for_each(|score| *score /= sum);
}

/// The average precision of binary scores: the area Σₙ (Rₙ − Rₙ₋₁)·Pₙ under the precision-recall curve, without
/// interpolation. Rₙ and Pₙ are the recall and the precision if the n-th largest distinct score is the threshold.
///
/// Scores are `[N]` or `[N, 1]`. Only their order matters. The value is 0 if all samples are negative, as in
/// scikit-learn, and NaN if there are no samples or a score is NaN. The metric stores all samples, 16 bytes each, until
/// [`reset`](Metric::reset).
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::train::metrics::{AveragePrecision, Metric};
/// let mut precision = AveragePrecision::new();
/// precision.update(&Tensor::from([0.1, 0.4, 0.35, 0.8]), &Tensor::from([0i64, 0, 1, 1]))?;
/// assert!((precision.compute()? - 5.0 / 6.0).abs() < 1e-12);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "average_precision_score")]
#[derive(Clone, Debug, Default)]
pub struct AveragePrecision {
    options: ClassificationOptions,
    samples: Vec<(f64, bool)>,
}

impl AveragePrecision {
    /// Creates the metric.
    pub fn new() -> AveragePrecision {
        AveragePrecision::default()
    }
}

metric_options!(AveragePrecision: ignore_index);

impl Metric for AveragePrecision {
    fn name(&self) -> String {
        "average_precision".into()
    }

    fn goal(&self) -> Goal {
        Goal::Maximize
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let op = "average_precision";
        let form = OutputForm::new(op, output, target)?;
        if let OutputForm::ClassScores(_) = form {
            let help = "the output must be binary scores [N] or [N, 1]; select the scores of the positive class";
            return Err(Error::shapes(op, [output.shape(), target.shape()], help));
        }
        let labels = read_labels(op, form, output, target, self.options.ignore_index)?;
        let scores = read_scores(op, form, output)?;
        let samples = scores.into_iter().zip(labels);
        self.samples.extend(samples.filter_map(|(score, label)| label.map(|label| (score, label == 1))));
        Ok(())
    }

    fn compute(&self) -> Result<f64> {
        let Some(groups) = tied_samples(self.samples.iter().copied()) else { return Ok(f64::NAN) };
        let positives: u64 = groups.iter().map(|group| group.positives).sum();
        if positives == 0 {
            return Ok(if groups.is_empty() { f64::NAN } else { 0.0 });
        }
        let (mut true_positives, mut ranked) = (0, 0);
        let area = |group: &TiedSamples| {
            true_positives += group.positives;
            ranked += group.positives + group.negatives;
            group.positives as f64 / positives as f64 * (true_positives as f64 / ranked as f64)
        };
        Ok(groups.iter().map(area).collect::<CompensatedSum>().value())
    }

    fn reset(&mut self) {
        self.samples.clear();
    }

    metric_state!(samples);

    fn savepoint(&self) -> Option<Vec<f64>> {
        Some(vec![self.samples.len() as f64])
    }

    fn roll_back(&mut self, savepoint: &[f64]) -> Result<()> {
        let [samples] = read_savepoint(&self.name(), savepoint, self.samples.len())?;
        self.samples.truncate(samples);
        Ok(())
    }
}
