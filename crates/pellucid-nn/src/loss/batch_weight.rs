//! [`BatchWeight`]: the weight of the loss of a batch in the mean over several batches.

use pellucid_tensor::ops::Reduction;
use pellucid_tensor::{DType, Result, Tensor, no_grad, ops};

/// The weight of a batch's loss in the mean over several batches. The mean does not depend on how the samples are split
/// into batches: it is the sum of the losses of all samples, divided by the sum of their weights.
#[derive(Clone, Debug)]
pub enum BatchWeight {
    /// The loss is the mean over the samples, which all count equally.
    Samples,
    /// The loss is the sum over the samples. The mean divides the sum by the number of samples.
    SumOfSamples,
    /// The loss is a weighted mean with this sum of weights, a 0-d `f64` tensor on the device of the targets. A batch
    /// with the sum 0 does not count.
    Sum(Tensor),
}

impl BatchWeight {
    /// Returns the factor that converts the loss of a batch of `samples` samples to a sum over them, and the weight of
    /// the batch.
    ///
    /// # Errors
    /// The errors of reading the sum of weights.
    pub fn factor_and_weight(&self, samples: usize) -> Result<(f64, f64)> {
        let samples = samples as f64;
        Ok(match self {
            BatchWeight::Samples => (samples, samples),
            BatchWeight::SumOfSamples => (1.0, samples),
            BatchWeight::Sum(weight) => {
                let weight = weight.try_item::<f64>()?;
                (weight, weight)
            }
        })
    }

    /// Returns true if the batch does not count. Its loss, the mean of an empty set, is NaN.
    pub fn is_zero(&self) -> bool {
        matches!(self, BatchWeight::Sum(weight) if weight.try_item::<f64>().is_ok_and(|weight| weight == 0.0))
    }

    /// Returns the weight of a loss that is a plain mean or a sum.
    pub(super) fn of_reduction(reduction: Reduction) -> BatchWeight {
        match reduction {
            Reduction::Sum => BatchWeight::SumOfSamples,
            Reduction::Mean | Reduction::None => BatchWeight::Samples,
        }
    }

    /// Returns the weight of a loss of class indices: the sum of the weights of the classes that are not ignored.
    /// Samples whose targets are probabilities count equally.
    pub(super) fn of_classes(
        reduction: Reduction,
        y: &Tensor,
        weight: Option<&Tensor>,
        ignored: Option<i64>,
    ) -> Result<BatchWeight> {
        if reduction == Reduction::Sum || y.dtype().is_float() || weight.is_none() && ignored.is_none() {
            return Ok(BatchWeight::of_reduction(reduction));
        }
        let _off = no_grad();
        let classes = ops::to_dtype(&ops::flatten(y, 0, -1)?, DType::I64)?;
        let counts = ignored.map(|ignored| ops::ne(&classes, ignored)).transpose()?;
        let weights = match weight {
            None => ops::to_dtype(&ops::ones_like(&classes)?, DType::F64)?,
            Some(weight) => {
                // An ignored label may be outside the range of the classes.
                let classes = match &counts {
                    Some(counts) => ops::where_(counts, &classes, 0)?,
                    None => classes,
                };
                ops::index_select(&ops::to_dtype(&weight.detach(), DType::F64)?.try_to(y.device())?, 0, &classes)?
            }
        };
        let counted = match &counts {
            Some(counts) => ops::where_(counts, &weights, 0.0)?,
            None => weights,
        };
        ops::sum(&counted, ..).map(BatchWeight::Sum)
    }
}
