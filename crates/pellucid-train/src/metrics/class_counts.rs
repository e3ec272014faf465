//! Counts of predicted and true classes, and the per-class ratios and averages that are computed from them.

use super::input::ClassBatch;
use super::state::stored_struct;
use super::sum::CompensatedSum;
use pellucid_tensor::{Error, Result, Tensor};

/// How a per-class metric is averaged over classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClassAverage {
    /// The value of class 1. More than two classes are an error.
    Binary,
    /// The value for the counts summed over all classes.
    Micro,
    /// The mean over the classes that occur as a label or as a prediction.
    Macro,
    /// The mean over the classes, each weighted by the number of samples with its label.
    Weighted,
}

impl ClassAverage {
    /// Returns the scikit-learn name of the metric with this average.
    pub(super) fn name(self, metric: &str) -> String {
        match self {
            ClassAverage::Binary => metric.to_string(),
            ClassAverage::Micro => format!("{metric}_micro"),
            ClassAverage::Macro => format!("{metric}_macro"),
            ClassAverage::Weighted => format!("{metric}_weighted"),
        }
    }
}

/// The counts of one class.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClassCount {
    /// The number of samples with this label and this prediction.
    pub(super) true_positives: u64,
    /// The number of samples with this prediction, correct or not.
    pub(super) predicted: u64,
    /// The number of samples with this label.
    pub(super) actual: u64,
}

stored_struct!(ClassCount { true_positives, predicted, actual });

/// A function that returns a ratio of the counts of a class as (numerator, denominator).
pub(super) type ClassRatio = fn(ClassCount) -> (u64, u64);

/// The counts of all classes.
#[derive(Clone, Debug, Default)]
pub(super) struct ClassCounts {
    counts: Vec<ClassCount>,
    /// Whether a sample has a NaN score. All values are then NaN.
    has_nan: bool,
}

stored_struct!(ClassCounts { counts, has_nan });

impl ClassCounts {
    /// Adds a batch.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the average requires two classes and the batch has more.
    pub(super) fn add(
        &mut self,
        op: &'static str,
        batch: &ClassBatch,
        average: ClassAverage,
        output: &Tensor,
    ) -> Result<()> {
        if average == ClassAverage::Binary && batch.classes > 2 {
            let (classes, shape) = (batch.classes, output.shape());
            let reason = format!(
                "ClassAverage::Binary requires 2 classes, but an output of shape {shape} has {classes}; use Micro, \
                 Macro or Weighted"
            );
            return Err(Error::invalid(op, reason));
        }
        if batch.classes > self.counts.len() {
            self.counts.resize(batch.classes, ClassCount::default());
        }
        self.has_nan |= batch.nan_sample.is_some();
        for &(class, label) in &batch.pairs {
            self.counts[class].predicted += 1;
            self.counts[label].actual += 1;
            self.counts[label].true_positives += u64::from(class == label);
        }
        Ok(())
    }

    /// Returns the ratio of each class. For a denominator of 0, the ratio is 0 if the class occurs as a label or as a
    /// prediction, otherwise NaN. All ratios are NaN if a score is NaN.
    pub(super) fn per_class(&self, ratio: ClassRatio) -> Vec<f64> {
        let value = |&count: &ClassCount| match count.actual + count.predicted {
            0 => f64::NAN,
            _ if self.has_nan => f64::NAN,
            _ => quotient(ratio(count)),
        };
        self.counts.iter().map(value).collect()
    }

    /// Returns the average of the ratio over classes; NaN if there are no samples, or if a score is NaN.
    pub(super) fn average(&self, ratio: ClassRatio, average: ClassAverage) -> f64 {
        let samples: u64 = self.counts.iter().map(|count| count.actual).sum();
        if samples == 0 || self.has_nan {
            return f64::NAN;
        }
        match average {
            ClassAverage::Binary => self.counts.get(1).map_or(0.0, |&count| quotient(ratio(count))),
            ClassAverage::Micro => {
                let sum = |(n, d), &count| {
                    let (numerator, denominator) = ratio(count);
                    (n + numerator, d + denominator)
                };
                quotient(self.counts.iter().fold((0, 0), sum))
            }
            ClassAverage::Macro => {
                let values: Vec<f64> = self.per_class(ratio).into_iter().filter(|value| !value.is_nan()).collect();
                values.iter().copied().collect::<CompensatedSum>().value() / values.len() as f64
            }
            ClassAverage::Weighted => {
                let weighted = |&count: &ClassCount| count.actual as f64 * quotient(ratio(count));
                self.counts.iter().map(weighted).collect::<CompensatedSum>().value() / samples as f64
            }
        }
    }

    pub(super) fn clear(&mut self) {
        *self = ClassCounts::default();
    }
}

/// Returns the quotient, or 0 if the denominator is 0.
pub(super) fn quotient((numerator, denominator): (u64, u64)) -> f64 {
    if denominator == 0 { 0.0 } else { numerator as f64 / denominator as f64 }
}
