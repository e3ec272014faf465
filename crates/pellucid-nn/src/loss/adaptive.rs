//! The adaptive softmax, a loss for very many classes, few of them frequent.

use super::{Loss, TargetForm, Targets};
use crate::call;
use crate::layer::Layer;
use crate::layers::Linear;
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::{DType, Error, Result, Shape, Tensor, ops, unwrap};

/// The adaptive softmax (Grave et al. 2017) and its loss, the mean of −ln p of class indices y `[N]` for features x
/// `[N, in]`.
///
/// Without a batch, y is a scalar and x is `[in]`. Rarer classes must have higher indices, and have fewer parameters.
/// `cutoffs` split the classes into a head and clusters. The head has a score for each of its classes and for each
/// cluster. Cluster k (from 1) first projects the features to `in / div_value^k` values. ln p of a class in a cluster
/// is ln p of the cluster plus ln p of the class within it. All clusters are always computed, so shapes do not depend
/// on y and a step can be captured.
///
/// ```
/// use pellucid::nn::Module;
/// use pellucid::nn::loss::{AdaptiveLogSoftmaxWithLoss, Loss};
/// use pellucid::{DType, Tensor};
/// let softmax = AdaptiveLogSoftmaxWithLoss::new(16, 1000, &[20, 200], 4.0);
/// let (x, y) = (Tensor::randn([8, 16], DType::F32), Tensor::randint(0, 1000, [8]));
/// let (loss, d_x) = softmax.forward_with_grad(&x, &y);
/// assert_eq!((loss.rank(), d_x.shape()), (0, x.shape()));
/// assert_eq!(softmax.log_prob(&x).shape().dims(), [8, 1000]);
/// assert_eq!(softmax.parameter_count(), 16 * 22 + 16 * 4 + 4 * 180 + 16 * 1 + 1 * 800);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct AdaptiveLogSoftmaxWithLoss {
    /// The layer that computes the scores of the head's classes, then of the clusters.
    pub head: Linear,
    /// For each cluster, the projection of the features and the layer that computes the scores of its classes.
    pub tail: Vec<(Linear, Linear)>,
}

impl AdaptiveLogSoftmaxWithLoss {
    /// Creates the loss for this many features and classes, with increasing cutoffs; PyTorch's default of `div_value`
    /// is 4. There are no biases; assign one to `head` if needed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the cutoffs are empty or do not increase strictly between 0 and the number of
    /// classes, or if a projection has no features.
    #[panicking_form]
    pub fn try_new(
        inputs: usize,
        classes: usize,
        cutoffs: &[usize],
        div_value: f64,
    ) -> Result<AdaptiveLogSoftmaxWithLoss> {
        let op = "adaptive_log_softmax_with_loss";
        let ends: Vec<usize> = cutoffs.iter().copied().chain([classes]).collect();
        if cutoffs.is_empty() || ends[0] == 0 || !ends.is_sorted_by(|a, b| a < b) {
            let reason = format!(
                "the cutoffs must increase strictly between 0 and {classes}, the number of classes, got {cutoffs:?}"
            );
            return Err(Error::invalid(op, reason));
        }
        let plain = |inputs, outputs| Linear::try_new(inputs, outputs)?.try_bias(false);
        let mut tail = Vec::new();
        for (k, pair) in ends.windows(2).enumerate() {
            let width = (inputs as f64 / div_value.powi(k as i32 + 1)).floor();
            if !(width >= 1.0 && width.is_finite()) {
                let k = k + 1;
                let reason = format!(
                    "cluster {k} must have at least one feature, but {inputs} / {div_value}^{k} is less than 1; reduce \
                     div_value"
                );
                return Err(Error::invalid(op, reason));
            }
            tail.push((plain(inputs, width as usize)?, plain(width as usize, pair[1] - pair[0])?));
        }
        Ok(AdaptiveLogSoftmaxWithLoss { head: plain(inputs, cutoffs[0] + cutoffs.len())?, tail })
    }

    /// Returns the logarithms of the probabilities of all classes, `[.., classes]`.
    ///
    /// # Errors
    /// The errors of [`ops::linear`].
    #[panicking_form]
    pub fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        let head = ops::log_softmax(&self.head.try_forward(x)?, -1)?;
        let scores = self.head.weight.shape()[0];
        let common = scores - self.tail.len();
        let mut parts = vec![ops::narrow(&head, -1, 0, common)?];
        for (k, cluster) in self.tail.iter().enumerate() {
            let inside = ops::log_softmax(&cluster.try_forward(x)?, -1)?;
            parts.push(ops::add(&inside, &ops::narrow(&head, -1, common + k, 1)?)?);
        }
        ops::concatenate(&parts, -1)
    }

    /// Returns the shape of the scores of all classes for features of this shape.
    fn score_shape(&self, features: &Shape) -> Shape {
        let outputs = |layer: &Linear| layer.weight.shape()[0];
        let in_tail: usize = self.tail.iter().map(|(_, scores)| outputs(scores)).sum();
        let classes = outputs(&self.head) - self.tail.len() + in_tail;
        features.split_last().map_or(&[][..], |(_, samples)| samples).iter().copied().chain([classes]).collect()
    }

    /// Returns the class of the highest probability, `[..]`.
    ///
    /// # Errors
    /// The errors of [`try_log_prob`](AdaptiveLogSoftmaxWithLoss::try_log_prob).
    #[panicking_form]
    pub fn try_predict(&self, x: &Tensor) -> Result<Tensor> {
        self.try_log_prob(x).and_then(|logs| ops::argmax(&logs, -1))
    }
}

impl Loss for AdaptiveLogSoftmaxWithLoss {
    fn try_forward(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        call::call(self, &[x, y], || ops::nll_loss(&self.try_log_prob(x)?, y, ops::NllLossOptions::default()))
    }

    fn expected_targets(&self, x: &Shape, dtype: DType) -> Result<Option<(Shape, DType)>> {
        TargetForm::ClassIndices.expected(&self.score_shape(x), dtype)
    }

    fn check_targets(&self, x: &Shape, y: &Tensor) -> Result<()> {
        Targets::Classes { ignored: None, weight: None }.check_if_readable("nll_loss", &self.score_shape(x), y)
    }
}
