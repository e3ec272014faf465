//! The loss of very many classes, of which few are frequent.

use super::{Loss, borrowed};
use crate::call;
use crate::layer::Layer;
use crate::layers::Linear;
use crate::module::parameters_so_far;
use crate::parameter::Parameter;
use pellucid_derive::Module;
use pellucid_tensor::{Error, Result, Tensor, ops, unwrap};

/// The adaptive softmax (Grave et al. 2017) and its loss: the mean of −ln p of class numbers y `[N]`, given features x
/// `[N, in]` (or one number and `[in]`), with fewer parameters for rarer classes, which have the higher numbers.
///
/// `cutoffs` cut the classes into a head and clusters. The head has a score for each of its classes and for each cluster; in
/// cluster k (from 1) the features are first projected to `in / div_value^k` numbers. ln p of a class in a cluster is that of
/// the cluster plus that of the class in it. Shapes do not depend on the classes that come, so a step can be captured;
/// all clusters are computed.
///
/// ```
/// use pellucid_nn::Module;
/// use pellucid_nn::loss::{AdaptiveLogSoftmaxWithLoss, Loss};
/// use pellucid_tensor::{DType, Tensor};
/// let softmax = AdaptiveLogSoftmaxWithLoss::new(16, 1000, &[20, 200], 4.0)?;
/// let (x, y) = (Tensor::randn([8, 16], DType::F32), Tensor::randint(0, 1000, [8]));
/// let (loss, d_x) = softmax.forward_with_grad(&x, &y);
/// assert_eq!((loss.rank(), d_x.shape()), (0, x.shape()));
/// assert_eq!(softmax.log_prob(&x)?.shape().dims(), [8, 1000]);
/// assert_eq!(softmax.parameter_count(), 16 * 22 + 16 * 4 + 4 * 180 + 16 * 1 + 1 * 800);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct AdaptiveLogSoftmaxWithLoss {
    /// The scores of the head's classes, then of the clusters.
    pub head: Linear,
    /// The projection and the scores of each cluster.
    pub tail: Vec<(Linear, Linear)>,
}

impl AdaptiveLogSoftmaxWithLoss {
    /// For features of this length and so many classes, cut at these numbers, which rise; PyTorch's `div_value` is 4. Nothing
    /// has a bias; for one of the head, put it there.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for cutoffs that do not rise from above 0 to below the number of classes, for none, and for
    /// a projection to nothing.
    #[track_caller]
    pub fn new(inputs: usize, classes: usize, cutoffs: &[usize], div_value: f64) -> Result<AdaptiveLogSoftmaxWithLoss> {
        let op = "adaptive_log_softmax_with_loss";
        let ends: Vec<usize> = cutoffs.iter().copied().chain([classes]).collect();
        if cutoffs.is_empty() || ends[0] == 0 || !ends.is_sorted_by(|a, b| a < b) {
            let reason = format!("cutoffs rise from above 0 to below {classes} classes, got {cutoffs:?}");
            return Err(Error::invalid(op, reason));
        }
        let plain = |inputs, outputs| Linear::new(inputs, outputs).without_bias();
        let mut tail = Vec::new();
        for (k, pair) in ends.windows(2).enumerate() {
            let width = (inputs as f64 / div_value.powi(k as i32 + 1)).floor();
            if !(width >= 1.0 && width.is_finite()) {
                return Err(Error::invalid(op, format!("{inputs} / {div_value}^{} features are none", k + 1)));
            }
            tail.push((plain(inputs, width as usize), plain(width as usize, pair[1] - pair[0])));
        }
        Ok(AdaptiveLogSoftmaxWithLoss { head: plain(inputs, cutoffs[0] + cutoffs.len()), tail })
    }

    /// The logarithms of the probabilities of all classes, `[.., classes]`.
    ///
    /// # Errors
    /// Those of [`ops::linear`].
    pub fn log_prob(&self, x: &Tensor) -> Result<Tensor> {
        let head = ops::log_softmax(&self.head.try_forward(x)?, -1)?;
        let scores = self.head.weight.shape()[0];
        let common = scores - self.tail.len();
        let mut parts = vec![ops::narrow(&head, -1, 0, common)?];
        for (k, cluster) in self.tail.iter().enumerate() {
            let inside = ops::log_softmax(&cluster.try_forward(x)?, -1)?;
            parts.push(ops::add(&inside, &ops::narrow(&head, -1, common + k, 1)?)?);
        }
        ops::concatenate(&parts.iter().collect::<Vec<_>>(), -1)
    }

    /// The class of the highest probability, `[..]`.
    ///
    /// # Panics
    /// With the errors of [`log_prob`](AdaptiveLogSoftmaxWithLoss::log_prob).
    #[track_caller]
    pub fn predict(&self, x: &Tensor) -> Tensor {
        unwrap(self.log_prob(x).and_then(|logs| ops::argmax(&logs, -1)))
    }
}

impl Loss for AdaptiveLogSoftmaxWithLoss {
    fn try_forward(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        call::call(self, &[x, y], || ops::nll_loss(&self.log_prob(x)?, y, ops::NllLoss::default()))
    }

    fn trainable(&self) -> Vec<(String, Parameter)> {
        parameters_so_far(self)
    }
}

borrowed! { AdaptiveLogSoftmaxWithLoss }
