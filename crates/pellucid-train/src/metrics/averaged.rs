//! Precision, recall, F1 and intersection over union: per-class ratios of counts, averaged over classes.

use super::class_counts::{ClassAverage, ClassCount, ClassCounts};
use super::input::{ClassBatch, ClassificationOptions, metric_options};
use super::state::metric_state;
use super::{Goal, Metric};
use pellucid_tensor::{Result, Tensor, unwrap};

/// Returns 2·TP and 2·TP + FP + FN, the numerator and the denominator of F1.
pub(super) fn f1_ratio(count: ClassCount) -> (u64, u64) {
    (2 * count.true_positives, count.predicted + count.actual)
}

/// Defines metrics from their names in logs and errors, and from the ratio of the counts of a class as (numerator,
/// denominator).
macro_rules! averaged {
    ($($(#[$doc:meta])* $metric:ident($op:literal) = |$count:ident| $ratio:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $metric {
            average: ClassAverage,
            options: ClassificationOptions,
            counts: ClassCounts,
        }

        impl $metric {
            /// Creates the metric for logits, without an ignored label.
            pub fn new(average: ClassAverage) -> $metric {
                $metric { average, options: ClassificationOptions::default(), counts: ClassCounts::default() }
            }

            /// Returns the value of each class; NaN for a class that occurs neither as a label nor as a prediction. The
            /// `Macro` average excludes such classes.
            pub fn per_class(&self) -> Vec<f64> {
                self.counts.per_class(Self::ratio)
            }

            fn ratio($count: ClassCount) -> (u64, u64) {
                $ratio
            }
        }

        metric_options!($metric: threshold, ignore_index);

        impl Metric for $metric {
            fn name(&self) -> String {
                self.average.name($op)
            }

            fn goal(&self) -> Goal {
                Goal::Maximize
            }

            fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
                let batch = ClassBatch::read($op, output, target, self.options)?;
                self.counts.add($op, &batch, self.average, output)
            }

            fn compute(&self) -> Result<f64> {
                Ok(self.counts.average(Self::ratio, self.average))
            }

            fn reset(&mut self) {
                self.counts.clear();
            }

            metric_state!(counts);
        }
    )*};
}

averaged! {
    /// The fraction of the predictions of a class that are correct: TP/(TP + FP). It is 0 for a class that has samples
    /// but is never predicted. The metric accepts all [forms of outputs](super#outputs-and-targets-of-classification).
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::train::metrics::{ClassAverage, Metric, Precision};
    /// let mut precision = Precision::new(ClassAverage::Binary);
    /// precision.update(&Tensor::from([1.5, 0.2, -0.4]), &Tensor::from([1i64, 0, 1]))?;
    /// assert_eq!(precision.compute()?, 0.5);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    #[doc(alias = "precision_score")]
    Precision("precision") = |count| (count.true_positives, count.predicted);

    /// The fraction of the samples of a class that are predicted as this class: TP/(TP + FN). It is 0 for a class that
    /// is predicted but has no samples. The metric accepts all [forms of
    /// outputs](super#outputs-and-targets-of-classification).
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::train::metrics::{ClassAverage, Metric, Recall};
    /// let mut recall = Recall::new(ClassAverage::Macro);
    /// recall.update(&Tensor::from([0i64, 2, 2]), &Tensor::from([0i64, 1, 2]))?;
    /// assert_eq!(recall.per_class(), [1.0, 0.0, 1.0]);
    /// assert_eq!(recall.compute()?, 2.0 / 3.0);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    #[doc(alias = "recall_score")]
    Recall("recall") = |count| (count.true_positives, count.actual);

    /// The harmonic mean of precision and recall: 2·TP/(2·TP + FP + FN). It is 0 for a class that occurs as a label or
    /// as a prediction, but has no true positives. The metric accepts all [forms of
    /// outputs](super#outputs-and-targets-of-classification).
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::train::metrics::{ClassAverage, F1Score, Metric};
    /// let mut f1 = F1Score::new(ClassAverage::Binary);
    /// f1.update(&Tensor::from([1i64, 1, 0]), &Tensor::from([1i64, 0, 1]))?;
    /// assert_eq!(f1.compute()?, 0.5);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    #[doc(alias = "f1_score")]
    F1Score("f1") = |count| f1_ratio(count);

    /// The Jaccard index of two sets, the samples that are labelled as a class and the samples that are predicted as
    /// this class: TP/(TP + FP + FN). In semantic segmentation, samples are pixels. The metric accepts all [forms of
    /// outputs](super#outputs-and-targets-of-classification).
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::train::metrics::{ClassAverage, IntersectionOverUnion, Metric};
    /// let mut iou = IntersectionOverUnion::new(ClassAverage::Macro).ignore_index(255);
    /// // The scores of 3 classes for an image of 2 by 2 pixels. One pixel is not labelled.
    /// let scores = Tensor::from([[[[2.0, 0.0], [0.0, 1.0]], [[0.0, 3.0], [1.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]]]]);
    /// iou.update(&scores, &Tensor::from([[[0i64, 1], [0, 255]]]))?;
    /// assert_eq!(iou.per_class()[..2], [0.5, 0.5]);
    /// assert!(iou.per_class()[2].is_nan() && iou.compute()? == 0.5);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    #[doc(alias("jaccard_score", "mean_iou"))]
    IntersectionOverUnion("iou") = |count| {
        (count.true_positives, count.predicted + count.actual - count.true_positives)
    };
}
