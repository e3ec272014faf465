//! The options of a training step.

use crate::optim::GradScaler;
use crate::parameter::Parameter;
use pellucid_tensor::{CaptureOptions, Error, Result};
use std::fmt;
use std::sync::Arc;

/// A function that changes the gradients of these parameters before the update, such as clipping: the type of
/// [`StepOptions::before_update`].
pub type BeforeUpdate<'f> = Arc<dyn Fn(&[Parameter]) -> Result<()> + Send + Sync + 'f>;

/// All options of a [`GraphTrainer`](super::GraphTrainer) or a [`TrainingStep`](super::TrainingStep). Setting them
/// replaces all earlier options.
#[derive(Clone)]
pub struct StepOptions<'f> {
    /// Whether the step runs eagerly, operation by operation, as on a device without capture; default false. Results
    /// are the same. Model and loss may read values. A model with unbuilt lazy layers is traced before its first step,
    /// so it must not read a value before its last lazy layer. A debugger can step through the operations. A batch that
    /// model or loss rejects changes no parameter, but layers before the one that rejects it may have updated their
    /// statistics and drawn random numbers.
    pub eager: bool,
    /// The number k of launches whose gradients are accumulated, each weighted by 1/k; at least 1. The k-th launch
    /// updates the parameters with the mean over the k batches and zeroes the gradients;
    /// [`update_early`](super::GraphTrainer::update_early) uses the mean over fewer. A parameter on which none of the k
    /// losses depends is not updated. With 1, the default, each launch starts without gradients. Launches count
    /// regardless of the shapes of their batches.
    pub accumulate: usize,
    /// Scales the loss, for gradients in half precision, and skips updates with non-finite gradients. Gradients are
    /// divided by the scale before `before_update` runs.
    pub scaler: Option<Arc<GradScaler>>,
    /// A function that changes the gradients before each update:
    ///
    /// ```
    /// use pellucid::nn::optim::{Sgd, SgdOptions, clip_grad_norm};
    /// use pellucid::nn::{Linear, Module, graph::{GraphTrainer, StepOptions}, loss::MseLoss};
    /// use pellucid::{DType, Tensor};
    /// use std::sync::Arc;
    /// let model = Linear::new(3, 1);
    /// let sgd = Sgd::new(model.parameters(), SgdOptions::default());
    /// let mut trainer = GraphTrainer::new(model, MseLoss::default(), sgd).with_options(StepOptions {
    ///     before_update: Some(Arc::new(|parameters| clip_grad_norm(parameters, 1.0).map(drop))),
    ///     ..Default::default()
    /// });
    /// trainer.prepare(&Tensor::zeros([8, 3], DType::F32))?;
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    pub before_update: Option<BeforeUpdate<'f>>,
    /// Whether a parameter of the model may require a gradient although the step's optimizer does not update it. By
    /// default such a parameter is rejected. A GAN needs this option:
    ///
    /// ```
    /// use pellucid::nn::graph::{GraphTrainer, StepOptions};
    /// use pellucid::nn::{Linear, Module, loss::BceWithLogitsLoss, optim::{Sgd, SgdOptions}};
    /// use pellucid::{DType, Tensor};
    /// // The generator learns to deceive the discriminator, which has an optimizer of its own.
    /// let (generator, discriminator) = (Linear::new(2, 4), Linear::new(4, 1));
    /// let sgd = Sgd::new(generator.parameters(), SgdOptions::default());
    /// let mut trainer = GraphTrainer::new((generator, discriminator), BceWithLogitsLoss::default(), sgd)
    ///     .with_options(StepOptions { allow_untrained_parameters: true, ..Default::default() });
    /// trainer.prepare(&Tensor::zeros([8, 2], DType::F32))?;
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    pub allow_untrained_parameters: bool,
    /// The maximum number of recordings of the step, and of the evaluation; default 8, at least 1. The least recently
    /// used recording is dropped first, and is recorded again when it is needed.
    pub max_recordings: usize,
}

impl StepOptions<'_> {
    /// Returns an error for an option out of its range.
    pub(super) fn check(&self, op: &'static str) -> Result<()> {
        for (name, value) in [("accumulate", self.accumulate), ("max_recordings", self.max_recordings)] {
            if value == 0 {
                return Err(Error::invalid(op, format!("`{name}` must be at least 1, got 0")));
            }
        }
        Ok(())
    }

    /// Returns the options for capturing the step.
    pub(super) fn capture_options(&self) -> CaptureOptions {
        CaptureOptions { max_recordings: self.max_recordings, ..CaptureOptions::default() }
    }
}

impl Default for StepOptions<'_> {
    fn default() -> Self {
        StepOptions {
            eager: false,
            accumulate: 1,
            scaler: None,
            before_update: None,
            allow_untrained_parameters: false,
            max_recordings: CaptureOptions::default().max_recordings,
        }
    }
}

impl fmt::Debug for StepOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepOptions")
            .field("eager", &self.eager)
            .field("accumulate", &self.accumulate)
            .field("scaler", &self.scaler)
            .field("before_update", &self.before_update.as_ref().map(|_| ".."))
            .field("allow_untrained_parameters", &self.allow_untrained_parameters)
            .field("max_recordings", &self.max_recordings)
            .finish()
    }
}
