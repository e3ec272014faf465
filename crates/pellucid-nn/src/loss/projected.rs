//! The cross-entropy of a linear layer's scores, which the loss computes itself.

use super::{BatchWeight, CrossEntropyLoss, Loss};
use crate::call;
use crate::layer::Layer;
use crate::layers::Linear;
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::{DType, Error, Result, Shape, Tensor, ops, unwrap};

/// [`CrossEntropyLoss`] of the scores `W·x` of features x `[N, in]` (or `[in]`). Targets y are class indices
/// `[N, d..]`, or probabilities `[N, C, d..]`.
///
/// ```
/// use pellucid::nn::Module;
/// use pellucid::nn::loss::{LinearCrossEntropyLoss, Loss};
/// use pellucid::{DType, Tensor};
/// let loss = LinearCrossEntropyLoss::new(5, 10, &[4, 3]);
/// let (x, y) = (Tensor::randn([2, 5], DType::F32), Tensor::randint(0, 10, [2, 4, 3]));
/// let (value, d_x) = loss.forward_with_grad(&x, &y);
/// assert_eq!((value.rank(), d_x.shape()), (0, x.shape()));
/// assert_eq!(loss.parameter_count(), 10 * 4 * 3 * 5);
/// ```
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct LinearCrossEntropyLoss {
    /// The layer that computes the scores. Its weight is `[C·d.., in]`, classes outermost; by default it has no bias.
    pub linear: Linear,
    /// The loss of the scores.
    pub loss: CrossEntropyLoss,
    /// The number of classes C, and the axes d.. of the positions, each of which has one class.
    #[module(skip)]
    score_axes: Shape,
}

impl LinearCrossEntropyLoss {
    /// Creates the loss for this many features and classes, with one class at each position. `positions` is the shape
    /// of the positions, `[]` for one position.
    ///
    /// # Errors
    /// The errors of [`Linear::new`].
    #[panicking_form]
    pub fn try_new(inputs: usize, classes: usize, positions: &[usize]) -> Result<LinearCrossEntropyLoss> {
        let score_axes: Shape = [classes].iter().chain(positions).copied().collect();
        let linear = Linear::try_new(inputs, score_axes.size())?.try_bias(false)?;
        Ok(LinearCrossEntropyLoss { linear, loss: CrossEntropyLoss::default(), score_axes })
    }

    /// Sets whether the scores have a bias; default false. An added bias is initialized as in [`Linear`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_bias(self, bias: bool) -> Result<LinearCrossEntropyLoss> {
        Ok(LinearCrossEntropyLoss { linear: self.linear.try_bias(bias)?, ..self })
    }

    /// Returns the shape of the scores of features of this shape.
    fn score_shape(&self, features: &Shape) -> Shape {
        let samples = features.split_last().map_or(&[][..], |(_, samples)| samples);
        samples.iter().chain(self.score_axes.iter()).copied().collect()
    }
}

impl Loss for LinearCrossEntropyLoss {
    fn try_forward(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        call::call(self, &[x, y], || {
            if x.rank() == 0 || x.rank() > 2 {
                let help = "the features must have shape [N, in] or [in]";
                return Err(Error::shapes("linear_cross_entropy", [x.shape()], help));
            }
            let scores = self.linear.try_forward(x)?;
            self.loss.try_forward(&ops::reshape(&scores, self.score_shape(x.shape()).dims())?, y)
        })
    }

    fn expected_targets(&self, x: &Shape, dtype: DType) -> Result<Option<(Shape, DType)>> {
        self.loss.expected_targets(&self.score_shape(x), dtype)
    }

    fn check_targets(&self, x: &Shape, y: &Tensor) -> Result<()> {
        self.loss.check_targets(&self.score_shape(x), y)
    }

    fn batch_weight(&self, y: &Tensor) -> Result<BatchWeight> {
        self.loss.batch_weight(y)
    }
}
