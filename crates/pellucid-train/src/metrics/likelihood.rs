//! Metrics of the likelihood of the labels: log loss and perplexity.

use super::input::{
    ClassificationOptions, OutputForm, ScoreKind, check_float, check_probabilities, metric_options, read, read_labels,
    read_scores,
};
use super::state::{metric_state, stored_struct};
use super::sum::CompensatedSum;
use super::{Goal, Metric};
use pellucid_tensor::ops::{self, CrossEntropyOptions, Reduction};
use pellucid_tensor::{DType, Error, Result, Tensor, no_grad};

/// The sum of −log p(label) over samples.
#[derive(Clone, Copy, Debug, Default)]
struct LogLikelihood {
    sum: CompensatedSum,
    samples: u64,
}

stored_struct!(LogLikelihood { sum, samples });

impl LogLikelihood {
    fn update(
        &mut self,
        op: &'static str,
        output: &Tensor,
        target: &Tensor,
        options: ClassificationOptions,
    ) -> Result<()> {
        let _guard = no_grad();
        let form = OutputForm::new(op, output, target)?;
        check_float(op, output)?;
        let labels = read_labels(op, form, output, target, options.ignore_index)?;
        let losses = match (options.scores, form) {
            (ScoreKind::Logits, OutputForm::ClassScores(_)) => class_losses(op, output, target, options.ignore_index)?,
            (ScoreKind::Logits, _) => {
                let scores = read_scores(op, form, output)?;
                let binary = |(score, label): (f64, &Option<usize>)| match label {
                    Some(1) => softplus(-score),
                    _ => softplus(score),
                };
                scores.into_iter().zip(&labels).map(binary).collect()
            }
            (ScoreKind::Probabilities, _) => probability_losses(op, form, output, &labels)?,
        };
        let counted = losses.into_iter().zip(&labels).filter(|(_, label)| label.is_some());
        self.sum.extend(counted.map(|(loss, _)| loss));
        self.samples += labels.iter().flatten().count() as u64;
        Ok(())
    }

    fn mean(self) -> f64 {
        self.sum.value() / self.samples as f64
    }
}

/// Returns ln(1 + eˣ) = max(x, 0) + ln(1 + e^−|x|).
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Returns the cross-entropy of each sample for logits of several classes, computed in the dtype of the logits (half
/// precision in `f32`).
fn class_losses(op: &'static str, output: &Tensor, target: &Tensor, ignore_index: Option<i64>) -> Result<Vec<f64>> {
    let logits = match output.dtype() {
        DType::F16 | DType::BF16 => ops::to_dtype(output, DType::F32)?,
        _ => output.clone(),
    };
    let options = CrossEntropyOptions { ignore_index, reduction: Reduction::None, ..Default::default() };
    read(op, ops::to_dtype(target, DType::I64).and_then(|target| ops::cross_entropy(&logits, &target, options)))
}

/// Returns −log p(label) of each sample for probabilities, which are clipped to [ε, 1 − ε]; ε depends on the dtype.
fn probability_losses(
    op: &'static str,
    form: OutputForm,
    output: &Tensor,
    labels: &[Option<usize>],
) -> Result<Vec<f64>> {
    let width = if let OutputForm::ClassScores(classes) = form { classes } else { 1 };
    let scores = read_scores(op, form, output)?;
    check_probabilities(op, &scores, width, output.dtype())?;
    let epsilon = output.dtype().epsilon().unwrap_or(0.0);
    let loss = |(scores, label): (&[f64], &Option<usize>)| {
        let probability = match (label, form) {
            (Some(label), OutputForm::ClassScores(_)) => scores[*label],
            (Some(0), _) => 1.0 - scores[0],
            _ => scores[0],
        };
        -probability.clamp(epsilon, 1.0 - epsilon).ln()
    };
    Ok(scores.chunks_exact(width).zip(labels).map(loss).collect())
}

/// The mean of −log p(label), the cross-entropy.
///
/// Outputs are logits or probabilities, of several classes or binary: see the
/// [forms](super#outputs-and-targets-of-classification). The loss of a sample is computed in `f64` for binary logits,
/// and in the dtype of the logits for several classes (half precision in `f32`). The losses are summed in `f64`.
/// Probabilities p are clipped to [ε, 1 − ε], as in scikit-learn, where ε is the distance from 1 to the next larger
/// number of the dtype.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::train::metrics::{LogLoss, Metric, ScoreKind};
/// let mut loss = LogLoss::new().scores(ScoreKind::Probabilities);
/// loss.update(&Tensor::from([[0.25, 0.75], [0.5, 0.5]]), &Tensor::from([1i64, 0]))?;
/// assert!((loss.compute()? + (0.75f64.ln() + 0.5f64.ln()) / 2.0).abs() < 1e-7);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct LogLoss {
    options: ClassificationOptions,
    likelihood: LogLikelihood,
}

impl LogLoss {
    /// Creates the metric for logits.
    pub fn new() -> LogLoss {
        LogLoss::default()
    }
}

metric_options!(LogLoss: scores, ignore_index);

impl Metric for LogLoss {
    fn name(&self) -> String {
        "log_loss".into()
    }

    fn goal(&self) -> Goal {
        Goal::Minimize
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        self.likelihood.update("log_loss", output, target, self.options)
    }

    fn compute(&self) -> Result<f64> {
        Ok(self.likelihood.mean())
    }

    fn reset(&mut self) {
        self.likelihood = LogLikelihood::default();
    }

    metric_state!(likelihood);
}

/// The exponential of the mean of −log p(token), over the tokens that are not ignored.
///
/// Outputs are logits or probabilities of a vocabulary on axis 1, `[N, V]` or `[N, V, d..]`, as in
/// [`CrossEntropyLoss`](pellucid_nn::loss::CrossEntropyLoss); targets are token ids `[N]` or `[N, d..]`.
///
/// ```
/// use pellucid::train::metrics::{Metric, Perplexity};
/// use pellucid::{DType, Tensor};
/// let mut perplexity = Perplexity::new().ignore_index(-100);
/// // One text of 3 tokens, the last of which is padding. All 4 words have equal probabilities.
/// perplexity.update(&Tensor::zeros([1, 4, 3], DType::F64), &Tensor::from([[1i64, 3, -100]]))?;
/// assert!((perplexity.compute()? - 4.0).abs() < 1e-12);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Perplexity {
    options: ClassificationOptions,
    likelihood: LogLikelihood,
}

impl Perplexity {
    /// Creates the metric for logits, without ignored tokens.
    pub fn new() -> Perplexity {
        Perplexity::default()
    }
}

metric_options!(Perplexity: scores, ignore_index);

impl Metric for Perplexity {
    fn name(&self) -> String {
        "perplexity".into()
    }

    fn goal(&self) -> Goal {
        Goal::Minimize
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let op = "perplexity";
        if !matches!(OutputForm::new(op, output, target)?, OutputForm::ClassScores(_)) {
            let help = "the output must be [N, V] or [N, V, d..] for a vocabulary of at least 2 tokens, and the target [N] \
                        or [N, d..]; if the vocabulary is the last axis, call movedim(-1, 1)";
            return Err(Error::shapes(op, [output.shape(), target.shape()], help));
        }
        self.likelihood.update(op, output, target, self.options)
    }

    fn compute(&self) -> Result<f64> {
        Ok(self.likelihood.mean().exp())
    }

    fn reset(&mut self) {
        self.likelihood = LogLikelihood::default();
    }

    metric_state!(likelihood);
}
