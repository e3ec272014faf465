//! A training step over any inputs, with any losses and results.

use super::batch::as_step_input;
use super::options::StepOptions;
use super::step::StepCore;
use crate::optim::Optimizer;
use crate::parameter::first_device;
use pellucid_tensor::{CacheStats, Captured, IntoOutputs, Result, Tensor};
use std::fmt;
use std::sync::Arc;

/// A training step over any inputs: a closure computes the loss and other results, and an optimizer minimizes the loss.
///
/// The first launch with inputs of new shapes or dtypes records the step ([`capture`](pellucid_tensor::capture())):
/// closure, backward pass and update. To train several losses, return their sum. Only the parameters of the optimizer
/// get gradients, so the two losses of a GAN need two steps, each with its own optimizer. The step keeps one gradient
/// buffer for each parameter, which [`Tensor::grad`] returns between launches. [`GraphTrainer`](super::GraphTrainer)
/// records the step of a model and a loss.
///
/// ```
/// use pellucid::nn::graph::TrainingStep;
/// use pellucid::nn::loss::{BceWithLogitsLoss, Loss};
/// use pellucid::nn::{Layer, Linear, Module, optim::{Adam, AdamOptions, Sgd, SgdOptions}};
/// use pellucid::{DType, Tensor};
/// let (generator, discriminator) = (Linear::new(2, 4), Linear::new(4, 1));
/// let loss = BceWithLogitsLoss::default();
/// let label = |logits: &Tensor, y: f64| loss.forward(logits, &Tensor::full([8, 1], y, DType::F32));
/// // The discriminator distinguishes real samples from generated ones. Its step returns the loss and two scores.
/// let adam = Adam::new(discriminator.parameters(), AdamOptions::default());
/// let mut discriminate = TrainingStep::new(adam, |inputs| {
///     let (real, noise) = (&inputs[0], &inputs[1]);
///     let (real, fake) = (discriminator.forward(real), discriminator.forward(&generator.forward(noise)));
///     [label(&real, 1.0) + label(&fake, 0.0), real.mean(..), fake.mean(..)]
/// });
/// // The generator learns to deceive the discriminator, which this step does not change.
/// let sgd = Sgd::new(generator.parameters(), SgdOptions::default());
/// let mut deceive = TrainingStep::new(sgd, |inputs| {
///     label(&discriminator.forward(&generator.forward(&inputs[0])), 1.0)
/// });
/// for _ in 0..3 {
///     let (real, noise) = (Tensor::randn([8, 4], DType::F32), Tensor::randn([8, 2], DType::F32));
///     let results = discriminate.launch(&[&real, &noise])?;
///     println!("loss {}, scores {} and {}", results[0], results[1], results[2]);
///     deceive.launch(&[&noise])?;
/// }
/// # Ok::<(), pellucid::Error>(())
/// ```
pub struct TrainingStep<'f> {
    core: StepCore<'f>,
    /// The inputs of the current launch.
    inputs: Vec<Tensor>,
}

impl<'f> TrainingStep<'f> {
    /// Creates a step without recordings. The first tensor that `compute` returns is the loss, a scalar; the others are
    /// results. `compute` may return a [`Result`].
    pub fn new<R: IntoOutputs>(
        optimizer: impl Optimizer + 'f,
        compute: impl Fn(&[Tensor]) -> R + Send + Sync + 'f,
    ) -> TrainingStep<'f> {
        let compute = Arc::new(move |inputs: &[Tensor]| compute(inputs).into_outputs());
        TrainingStep { core: StepCore::new(Arc::new(optimizer), compute), inputs: Vec::new() }
    }

    /// Sets all options, and drops earlier recordings and accumulated gradients. The parameters of the closure are not
    /// known, so [`allow_untrained_parameters`](StepOptions::allow_untrained_parameters) has no effect.
    pub fn with_options(mut self, options: StepOptions<'f>) -> Self {
        self.core.set_options(options);
        self
    }

    /// Returns the optimizer.
    pub fn optimizer(&self) -> &(dyn Optimizer + 'f) {
        &*self.core.optimizer
    }

    /// Returns the number of kept recordings, and how often a launch found a recording (hit) or created one (miss). The
    /// separate update of a step that accumulates gradients counts as a recording and as a miss. A step that runs
    /// eagerly has none.
    pub fn cache_stats(&self) -> CacheStats {
        self.core.cache_stats()
    }

    /// Returns the captured step; for a step that accumulates gradients, without its update. `None` before the first
    /// recording, and for a step that runs eagerly.
    pub fn captured(&self) -> Option<&Captured<'f>> {
        self.core.pass.as_ref()?.captured()
    }

    /// Records the step for inputs of these shapes and dtypes, before the first launch needs it. The values are not
    /// used.
    ///
    /// # Errors
    /// The errors of the closure and of [`capture`](pellucid_tensor::capture());
    /// [`Error::ShapeMismatch`](pellucid_tensor::Error::ShapeMismatch) for a loss that is not a scalar;
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if the loss depends on no parameter of the
    /// optimizer, or if `accumulate` or `max_recordings` is 0. On error, parameters, gradients and optimizer are
    /// unchanged.
    pub fn prepare(&mut self, inputs: &[&Tensor]) -> Result<()> {
        self.place(inputs)?;
        self.core.prepare(&self.inputs).map(drop)
    }

    /// Executes the step. Returns the loss before the update, and the other results of the closure. The next launch
    /// with inputs of these shapes overwrites them.
    ///
    /// Free inputs are copied to the device of the parameters. Gradients that were removed or replaced since the last
    /// launch, for example by `zero_grad` or by another step of the same parameters, are set to their buffers again.
    ///
    /// # Errors
    /// The errors of [`prepare`](TrainingStep::prepare), if the step is recorded;
    /// [`Error::DeviceMismatch`](pellucid_tensor::Error::DeviceMismatch) for an input that is pinned to another device;
    /// errors of [`Captured::launch`].
    pub fn launch(&mut self, inputs: &[&Tensor]) -> Result<&[Tensor]> {
        self.place(inputs)?;
        self.core.launch(&self.inputs)
    }

    /// Updates the parameters with the gradients of fewer launches than [`accumulate`](StepOptions::accumulate), as
    /// [`GraphTrainer::update_early`](super::GraphTrainer::update_early) does, for example after the last batch of an
    /// epoch. Returns false if no gradients were accumulated.
    ///
    /// # Errors
    /// The errors of the update. After one, the accumulated gradients are discarded.
    pub fn update_early(&mut self) -> Result<bool> {
        self.core.update_early()
    }

    fn place(&mut self, inputs: &[&Tensor]) -> Result<()> {
        let device = first_device(&*self.optimizer().parameters());
        self.inputs.clear();
        inputs.iter().try_for_each(|x| as_step_input("launch", device, x).map(|x| self.inputs.push(x)))
    }
}

impl fmt::Debug for TrainingStep<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrainingStep").field("cache_stats", &self.cache_stats()).finish_non_exhaustive()
    }
}
