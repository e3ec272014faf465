//! Checks and reads the outputs and targets of a batch. All checks run before a metric changes.

use pellucid_tensor::{DType, Error, ReadElement, Result, Shape, Tensor, no_grad, ops};

/// Options that several metrics share.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClassificationOptions {
    pub(super) threshold: f64,
    pub(super) scores: ScoreKind,
    pub(super) ignore_index: Option<i64>,
}

/// Implements options of a metric as methods, such as `metric_options!(Accuracy: threshold, ignore_index)`.
macro_rules! metric_options {
    ($metric:ident: $($option:ident),+) => {
        impl $metric {
            $(metric_options!(@$option);)+
        }
    };
    (@threshold) => {
        /// Sets the threshold of binary scores and of independent labels: a larger score predicts class 1. The default
        /// 0 is for logits; use 0.5 for probabilities. The threshold is rounded to the dtype of the scores.
        ///
        /// # Errors
        /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if the threshold is not finite.
        #[pellucid_derive::panicking_form]
        #[must_use]
        pub fn try_threshold(mut self, threshold: f64) -> Result<Self> {
            pellucid_tensor::OptionRange::FINITE.check("threshold", "the threshold", threshold, 0.0)?;
            self.options.threshold = threshold;
            Ok(self)
        }
    };
    (@scores) => {
        /// Sets whether the outputs are logits, the default, or probabilities.
        #[must_use]
        pub fn scores(mut self, kind: ScoreKind) -> Self {
            self.options.scores = kind;
            self
        }
    };
    (@ignore_index) => {
        /// Skips the samples with this label, such as PyTorch's −100, a padding token, or 255 for unlabelled pixels.
        #[must_use]
        pub fn ignore_index(mut self, label: i64) -> Self {
            self.options.ignore_index = Some(label);
            self
        }
    };
}
pub(super) use metric_options;

/// Whether scores are logits or probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScoreKind {
    /// Unnormalized log-probabilities, the outputs of a model that is trained with cross-entropy.
    #[default]
    Logits,
    /// Probabilities in [0, 1]. The probabilities of several classes sum to 1.
    Probabilities,
}

/// The form of the outputs of a classifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputForm {
    /// One score for each sample; a larger score favours class 1.
    BinaryScores,
    /// The scores of the given number of classes, on axis 1.
    ClassScores(usize),
    /// The predicted classes.
    Classes,
}

impl OutputForm {
    /// Returns the form of an output.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the shapes of output and target do not match.
    pub(super) fn new(op: &'static str, output: &Tensor, target: &Tensor) -> Result<OutputForm> {
        let (scores, labels) = (output.shape(), target.shape());
        // One output for each sample: [N], [N, 1] or a mask [N, 1, d..].
        let is_single = scores.rank() == 1 || scores.rank() > 1 && scores[1] == 1;
        let axis_1_removed = || scores[..1].iter().chain(&scores[2..]).eq(labels.iter());
        let has_axis_1_more = scores.rank() == labels.rank() + 1 && scores.rank() > 1 && axis_1_removed();
        match output.dtype().is_float() {
            true if has_axis_1_more && scores[1] > 1 => Ok(OutputForm::ClassScores(scores[1])),
            true if is_single && (has_axis_1_more || same_but_for_unit_axis(scores, labels)) => {
                Ok(OutputForm::BinaryScores)
            }
            false if same_but_for_unit_axis(scores, labels) => Ok(OutputForm::Classes),
            _ => Err(Error::shapes(op, [scores, labels], shape_help(output, target))),
        }
    }
}

/// Returns true for equal shapes, and for `[N]` and `[N, 1]`.
pub(super) fn same_but_for_unit_axis(a: &Shape, b: &Shape) -> bool {
    let without_unit = |shape: &Shape| shape[..].len() - usize::from(shape.rank() == 2 && shape[1] == 1);
    a.rank() > 0 && b.rank() > 0 && a[..without_unit(a)] == b[..without_unit(b)]
}

fn shape_help(output: &Tensor, target: &Tensor) -> String {
    let (scores, labels) = (output.shape(), target.shape());
    if scores.rank() >= 1 && labels.rank() >= 1 && scores[0] != labels[0] {
        return format!("the output has {} samples, but the target has {}", scores[0], labels[0]);
    }
    if scores == labels && scores.rank() > 1 {
        return "a target with the shape of scores looks like one-hot rows: use argmax(1) of the target; for \
                independent labels, use MultiLabelAccuracy or MultiLabelF1Score"
            .to_string();
    }
    if scores.rank() > 2 && scores[..scores.rank() - 1] == labels[..] {
        return "the class axis of the scores must be axis 1: use movedim(-1, 1) of the output".to_string();
    }
    "the labels must be [N] for scores [N, C], and [N, d..] for scores [N, C, d..]; for binary scores and for \
     predicted classes, they must have the shape of the output"
        .to_string()
}

/// The predicted class and the label of each sample of a batch, without ignored samples.
pub(super) struct ClassBatch {
    /// The number of classes of the scores. If the outputs are predicted classes, the largest class or label of the
    /// batch plus 1.
    pub(super) classes: usize,
    /// (predicted class, label), both below `classes`.
    pub(super) pairs: Vec<(usize, usize)>,
    /// The first sample with a NaN score. It predicts no class and is not in `pairs`.
    pub(super) nan_sample: Option<usize>,
}

/// The maximum number of classes if the outputs are predicted classes. It bounds the memory of the metrics, which store
/// counts for each class.
const MAX_CLASSES: i64 = 1 << 20;

impl ClassBatch {
    /// Reads a batch.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for an invalid label.
    pub(super) fn read(
        op: &'static str,
        output: &Tensor,
        target: &Tensor,
        options: ClassificationOptions,
    ) -> Result<ClassBatch> {
        let _guard = no_grad();
        let form = OutputForm::new(op, output, target)?;
        let predicted = match form {
            OutputForm::BinaryScores => read(op, ops::gt(output, options.threshold))?,
            OutputForm::ClassScores(_) => read(op, ops::argmax(output, 1))?,
            OutputForm::Classes => read::<i64>(op, Ok(output.clone()))?,
        };
        let nans = match form {
            OutputForm::BinaryScores => read::<i64>(op, ops::isnan(output))?,
            OutputForm::ClassScores(_) => read(op, ops::max(output, 1).and_then(|scores| ops::isnan(&scores)))?,
            OutputForm::Classes => Vec::new(),
        };
        let labels = read_labels(op, form, output, target, options.ignore_index)?;
        let mut nan_sample = None;
        let mut pairs = Vec::with_capacity(labels.len());
        for (sample, (&class, &label)) in predicted.iter().zip(&labels).enumerate() {
            let Some(label) = label else { continue };
            if nans.get(sample).is_some_and(|is_nan| *is_nan != 0) {
                nan_sample.get_or_insert(sample);
                continue;
            }
            if !(0..MAX_CLASSES).contains(&class) {
                let reason = format!(
                    "the predicted class of sample {sample} is {class}, but it must be in 0..{MAX_CLASSES}; \
                     pass classes or float scores"
                );
                return Err(Error::invalid(op, reason));
            }
            pairs.push((class as usize, label));
        }
        let classes = match form {
            // A batch without samples changes nothing.
            _ if predicted.is_empty() => 0,
            OutputForm::BinaryScores => 2,
            OutputForm::ClassScores(classes) => classes,
            OutputForm::Classes => pairs.iter().map(|&(class, label)| class.max(label) + 1).max().unwrap_or(0),
        };
        Ok(ClassBatch { classes, pairs, nan_sample })
    }
}

/// Reads the elements of the result of an operation. Errors name the metric.
pub(super) fn read<T: ReadElement>(op: &'static str, result: Result<Tensor>) -> Result<Vec<T>> {
    result.and_then(|tensor| tensor.try_to_vec()).map_err(|mut error| {
        error.set_operation(op);
        error
    })
}

/// Returns the label of each sample, or `None` for ignored samples.
///
/// # Errors
/// [`Error::DTypeMismatch`] unless the labels are integers or `bool`, or floats for binary scores;
/// [`Error::InvalidArgument`] for an invalid label.
pub(super) fn read_labels(
    op: &'static str,
    form: OutputForm,
    output: &Tensor,
    target: &Tensor,
    ignore_index: Option<i64>,
) -> Result<Vec<Option<usize>>> {
    let classes = match form {
        OutputForm::BinaryScores => 2,
        OutputForm::ClassScores(classes) => classes as i64,
        OutputForm::Classes => MAX_CLASSES,
    };
    let is_ignored = |label: i64| Some(label) == ignore_index;
    let label_error = |sample: usize, label: &dyn std::fmt::Display| {
        let help = match ignore_index {
            None => "; ignore_index skips the samples of one label",
            Some(_) => "",
        };
        let shape = output.shape();
        Error::invalid(
            op,
            format!("label {sample} is {label}, but the classes of an output of shape {shape} are 0..{classes}{help}"),
        )
    };
    let as_class = |(sample, label): (usize, i64)| match label {
        label if is_ignored(label) => Ok(None),
        label if (0..classes).contains(&label) => Ok(Some(label as usize)),
        label => Err(label_error(sample, &label)),
    };
    match (target.dtype(), form) {
        (dtype, OutputForm::BinaryScores) if dtype.is_float() => {
            // Binary losses have float targets, so float labels are accepted.
            let labels = read::<f64>(op, Ok(target.clone()))?.into_iter().enumerate();
            labels
                .map(|(sample, label)| match label as i64 {
                    whole if whole as f64 == label => as_class((sample, whole)),
                    _ => Err(label_error(sample, &label)),
                })
                .collect()
        }
        (dtype, _) if dtype.is_float() => {
            let help = "the labels must be integers; convert class indices with to_dtype(DType::I64)";
            Err(Error::dtypes(op, [dtype], help))
        }
        _ => read::<i64>(op, Ok(target.clone()))?.into_iter().enumerate().map(as_class).collect(),
    }
}

/// Returns the scores of a float output in row-major order, with the class axis moved to the end.
///
/// # Errors
/// [`Error::DTypeMismatch`] if the output does not have a float dtype.
pub(super) fn read_scores(op: &'static str, form: OutputForm, output: &Tensor) -> Result<Vec<f64>> {
    let _guard = no_grad();
    check_float(op, output)?;
    match form {
        OutputForm::ClassScores(_) if output.rank() > 2 => read(op, ops::movedim(output, 1, -1)),
        _ => read(op, Ok(output.clone())),
    }
}

/// Returns an error unless the output has a float dtype.
pub(super) fn check_float(op: &'static str, output: &Tensor) -> Result<()> {
    match output.dtype() {
        dtype if dtype.is_float() => Ok(()),
        dtype => Err(Error::dtypes(op, [dtype], "the output must have a float dtype; use to_dtype(DType::F32)")),
    }
}

/// Checks that rows of `width` scores are probabilities: they must be in [0, 1], and rows of several scores must sum to
/// 1. NaN is accepted.
///
/// # Errors
/// [`Error::InvalidArgument`] for other scores; it names the row.
pub(super) fn check_probabilities(op: &'static str, scores: &[f64], width: usize, dtype: DType) -> Result<()> {
    let help = "pass probabilities, or set ScoreKind::Logits";
    // The tolerance √ε is scikit-learn's. Sums of rounded probabilities are closer to 1, except for very large numbers
    // of classes.
    let tolerance = dtype.epsilon().map_or(0.0, f64::sqrt);
    for (row, scores) in scores.chunks_exact(width).enumerate() {
        if let Some(score) = scores.iter().find(|&&score| !score.is_nan() && !(0.0..=1.0).contains(&score)) {
            let reason = format!("sample {row} has the probability {score}, which is not in [0, 1]; {help}");
            return Err(Error::invalid(op, reason));
        }
        let sum: f64 = scores.iter().sum();
        if width > 1 && (sum - 1.0).abs() > tolerance {
            let reason = format!("the probabilities of sample {row} sum to {sum}, not to 1; {help}");
            return Err(Error::invalid(op, reason));
        }
    }
    Ok(())
}
