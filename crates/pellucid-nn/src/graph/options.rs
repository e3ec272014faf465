//! The options of a training step.

use crate::optim::GradScaler;
use crate::parameter::Parameter;
use pellucid_tensor::Result;
use std::sync::Arc;

/// A function that changes the gradients of these parameters before the update, such as clipping: the type of
/// [`StepOptions::before_update`].
pub type BeforeUpdate<'f> = Arc<dyn Fn(&[Parameter]) -> Result<()> + Send + Sync + 'f>;

/// Options for recording a step.
#[derive(Clone)]
pub struct StepOptions<'f> {
    /// Whether the step runs eagerly, operation by operation, as on a device without capture; default false. Results
    /// are the same, and a debugger can step through the operations.
    pub eager: bool,
    /// The number k of launches whose gradients are accumulated, each weighted by 1/k. The k-th launch updates the
    /// parameters with the mean over the k batches and zeroes the gradients. A parameter on which none of the k losses
    /// depends is not updated. With 1, the default, each launch starts without gradients. Launches with batches of all
    /// shapes count together.
    pub accumulate: usize,
    /// Scales the loss, for gradients in half precision, and skips updates with non-finite gradients. Gradients are
    /// divided by the scale before `before_update` runs.
    pub scaler: Option<Arc<GradScaler>>,
    /// A function that changes the gradients before the update.
    pub before_update: Option<BeforeUpdate<'f>>,
    /// Whether a parameter of the model may require a gradient although the step's optimizer does not update it, as in
    /// a GAN. By default such a parameter is rejected.
    pub allow_untrained_parameters: bool,
}

impl Default for StepOptions<'_> {
    fn default() -> Self {
        StepOptions {
            eager: false,
            accumulate: 1,
            scaler: None,
            before_update: None,
            allow_untrained_parameters: false,
        }
    }
}
