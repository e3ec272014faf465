//! Means of values and of losses.

use super::state::{metric_state, stored_struct};
use super::sum::CompensatedSum;
use super::{Goal, Metric};
use pellucid_nn::loss::{BatchWeight, Loss};
use pellucid_tensor::{Error, Result, Tensor, no_grad};

/// The weighted mean of values, Σ w·x/Σ w. It is NaN without values.
///
/// ```
/// use pellucid::train::metrics::Mean;
/// let mut mean = Mean::new();
/// mean.push(0.5, 64.0); // the loss of a batch of 64 samples
/// mean.push(1.0, 32.0);
/// assert_eq!(mean.value(), 2.0 / 3.0);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Mean {
    sum: CompensatedSum,
    weight: CompensatedSum,
}

stored_struct!(Mean { sum, weight });

impl Mean {
    /// Creates an empty mean.
    pub fn new() -> Mean {
        Mean::default()
    }

    /// Adds a value with a weight, such as the number of samples of a batch. A weight of 0 excludes the value.
    pub fn push(&mut self, value: f64, weight: f64) {
        // The product of 0 and an infinite value is NaN.
        if weight != 0.0 {
            self.sum.add(weight * value);
            self.weight.add(weight);
        }
    }

    /// Adds a sum of weighted values and the sum of their weights.
    fn push_sum(&mut self, sum: f64, weight: f64) {
        self.sum.add(sum);
        self.weight.add(weight);
    }

    /// Returns the mean.
    pub fn value(&self) -> f64 {
        self.sum.value() / self.weight.value()
    }

    /// Removes all values.
    pub fn reset(&mut self) {
        *self = Mean::default();
    }
}

/// The mean of a loss over samples.
///
/// The loss of a batch is a mean or a sum over its samples, or one value per sample (`Reduction::None`).
/// [`Loss::batch_weight`] weights the batches, so the value does not depend on the split into batches, except for
/// rounding: the loss of a batch is computed in the dtype of the loss. A batch whose loss is a mean has as its weight
/// the number of samples (the length of axis 0), or the sum of the class weights of labels that are not ignored. Sums
/// are divided by the number of samples.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::nn::loss::MseLoss;
/// use pellucid::train::metrics::{MeanLoss, Metric};
/// let mut loss = MeanLoss::new(MseLoss::default());
/// loss.update(&Tensor::from([1.0, 2.0]), &Tensor::from([0.0, 2.0]))?;
/// loss.update(&Tensor::from([4.0]), &Tensor::from([2.0]))?;
/// assert_eq!(loss.compute()?, (1.0 + 0.0 + 4.0) / 3.0);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MeanLoss<L> {
    loss: L,
    mean: Mean,
}

impl<L: Loss> MeanLoss<L> {
    /// Creates the metric for a loss.
    pub fn new(loss: L) -> MeanLoss<L> {
        MeanLoss { loss, mean: Mean::new() }
    }
}

impl<L: Loss> Metric for MeanLoss<L> {
    fn name(&self) -> String {
        "mean_loss".into()
    }

    fn goal(&self) -> Goal {
        Goal::Minimize
    }

    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        let samples = *output.shape().first().unwrap_or(&1);
        if samples == 0 {
            return Ok(());
        }
        let _guard = no_grad();
        let loss = self.loss.try_forward(output, target)?;
        let values = loss.try_to_vec::<f64>()?;
        let weight = self.loss.batch_weight(target)?;
        let (factor, sum_of_weights) = weight.factor_and_weight(samples)?;
        match values[..] {
            // The mean of a batch in which all targets are ignored is 0/0.
            _ if weight.is_zero() => {}
            [loss_of_batch] if loss.rank() == 0 || samples != 1 => {
                self.mean.push_sum(factor * loss_of_batch, sum_of_weights)
            }
            _ if loss.shape().first() == Some(&samples) => {
                self.mean.sum.extend(values.iter().copied());
                self.mean.weight.add(match weight {
                    BatchWeight::Sum(_) => sum_of_weights,
                    _ => values.len() as f64,
                });
            }
            _ => {
                let help = "the loss must be the mean or the sum of the batch, or have one value for each sample";
                return Err(Error::shapes("mean_loss", [output.shape(), loss.shape()], help));
            }
        }
        Ok(())
    }

    fn compute(&self) -> Result<f64> {
        Ok(self.mean.value())
    }

    fn reset(&mut self) {
        self.mean.reset();
    }

    metric_state!(mean);
}
