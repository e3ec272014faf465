//! Recording of training and evaluation steps over the buffers of a plan.
//!
//! A step is one closure. [`capture`](pellucid_tensor::capture) records it; on a device without capture the closure
//! runs eagerly.

use super::batch::{Batch, Model, ModelWithBatch};
use super::buffer_tracker::BufferTracker;
use super::check::{StepCheck, check_step};
use super::coverage::{FrozenParameters, check_gradients};
use super::forward::{ForwardPass, StepComputation, StepOutputs};
use super::gradients::{BoundGradients, GradientBindings};
use super::plan::StepPlan;
use super::runner::{EagerStep, StepClosure, StepRunner};
use super::state::{ModelState, state_names};
use super::stream::Stream;
use super::update::{BeforeUpdate, ParameterUpdate, StepOptimizer, StepUpdate};
use crate::loss::Loss;
use crate::module::ModuleParts;
use crate::optim::GradScaler;
use crate::parameter::{EvaluationGuard, Parameter};
use pellucid_tensor::{BackwardOptions, Captured, Error, Result, Tensor, ThreadStream, no_grad, ops};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Options for recording a step.
#[derive(Clone)]
pub struct StepOptions<'f> {
    /// The stream of the launches. `None` means the default stream of the model's device.
    pub stream: Option<Stream>,
    /// The number k of launches whose gradients are accumulated, each weighted by 1/k, in the plan's buffers. The k-th
    /// launch updates the parameters with the mean over the k batches and zeroes the buffers. With 1, the default, each
    /// launch starts without gradients. The steps of one [`GraphTrainer`](super::GraphTrainer) count together, whatever
    /// the shapes of their batches.
    pub accumulate: u64,
    /// Scales the loss, for gradients in half precision, and skips updates with non-finite gradients. Gradients are
    /// divided by the scale before `before_update` runs.
    pub scaler: Option<Arc<GradScaler>>,
    /// A function that changes the gradients before the update.
    pub before_update: Option<BeforeUpdate<'f>>,
    /// Whether a parameter may require a gradient although the step's optimizer does not update it, as in a GAN. By
    /// default such a parameter is an error.
    pub allow_untrained_parameters: bool,
}

impl Default for StepOptions<'_> {
    fn default() -> Self {
        StepOptions {
            stream: None,
            accumulate: 1,
            scaler: None,
            before_update: None,
            allow_untrained_parameters: false,
        }
    }
}

impl<'f> RecordedStep<'f> {
    /// Records a training step: forward, loss, backward and update, on the contents of `x` and `y` at each launch.
    ///
    /// Recording runs no kernel: parameters, optimizer state, statistics and random generators stay unchanged until the
    /// first launch. Each launch starts without gradients. The result holds buffers for the logits and for the loss
    /// before the update. Model and loss are passed as pointers. The update is an optimizer, or a reference to one, or
    /// a closure, see [`ParameterUpdate`].
    ///
    /// ```
    /// use pellucid::nn::graph::{RecordedStep, StepOptions, StepPlan};
    /// use pellucid::nn::loss::{LossKind, MseLoss};
    /// use pellucid::nn::{Linear, Module, optim::{Sgd, SgdOptions}, sequential};
    /// use pellucid::{DType, Tensor};
    ///
    /// let (model, loss) = (sequential![Linear::new(3, 1)], MseLoss::default());
    /// let optimizer = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() });
    /// let (x, y) = (Tensor::ones([4, 3], DType::F32), Tensor::ones([4, 1], DType::F32));
    /// let plan = StepPlan::new(&model, &x, LossKind::Mse)?;
    /// assert_eq!(plan.bind_gradients(&model, &optimizer)?.bound, ["0.weight", "0.bias"]);
    ///
    /// let mut step = RecordedStep::training(&model, &loss, &optimizer, &plan, &x, &y, StepOptions::default())?;
    /// step.launch()?;
    /// let first = step.loss.item::<f32>();
    /// step.launch()?;
    /// assert!(step.loss.item::<f32>() < first);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Layer`] for buffers that do not match the plan, for a layer that rejects its input, or for one that
    /// cannot be captured; [`Error::ReadInCapture`] names the line that reads a value; [`Error::UntrainedParameters`]
    /// names parameters that require a gradient but do not belong to the optimizer; [`Error::InvalidArgument`] if
    /// `accumulate` is 0, if it is above 1 and not all gradients are stored in the plan's buffers, see
    /// [`StepPlan::bind_gradients`], or for a scaler with a closure; errors of [`capture`](pellucid_tensor::capture).
    pub fn training<X: Batch + 'f, Kind: ?Sized>(
        model: impl Deref<Target: Model<X>> + Send + Sync + 'f,
        loss: impl Deref<Target: Loss> + Send + Sync + 'f,
        update: impl ParameterUpdate<'f, Kind>,
        plan: &StepPlan,
        x: &X,
        y: &Tensor,
        options: StepOptions<'f>,
    ) -> Result<RecordedStep<'f>> {
        let model = Arc::new(ModelWithBatch::new(model, x)?);
        let computation = StepComputation { model, loss: Arc::new(loss), targets: y.clone() };
        record_training(computation, update.into_step_optimizer(), plan, options, Arc::default())
    }

    /// Records an evaluation: logits and loss for the contents of `x` and `y`, without a backward pass. All layers are
    /// in evaluation mode, as after [`Module::eval`](crate::Module::eval); afterwards the model's mode is restored.
    ///
    /// # Errors
    /// The errors of [`training`](RecordedStep::training).
    pub fn evaluation<X: Batch + 'f>(
        model: impl Deref<Target: Model<X>> + Send + Sync + 'f,
        loss: impl Deref<Target: Loss> + Send + Sync + 'f,
        plan: &StepPlan,
        x: &X,
        y: &Tensor,
        stream: Option<Stream>,
    ) -> Result<RecordedStep<'f>> {
        let model = Arc::new(ModelWithBatch::new(model, x)?);
        record_evaluation(StepComputation { model, loss: Arc::new(loss), targets: y.clone() }, plan, stream)
    }
}

/// The name of the recording of a training step in errors.
const RECORD_TRAINING: &str = "record_training";

/// Implements [`RecordedStep::training`] without type parameters. `passes` counts the launches of all steps that
/// accumulate gradients in the same buffers.
pub(super) fn record_training<'f>(
    computation: StepComputation<'f>,
    optimizer: StepOptimizer<'f>,
    plan: &StepPlan,
    options: StepOptions<'f>,
    passes: Arc<AtomicU64>,
) -> Result<RecordedStep<'f>> {
    let model: Arc<dyn ModuleParts + Send + Sync + 'f> = computation.model.clone();
    let optimizer = optimizer.of_model(&*model, &*computation.loss);
    let updated = optimizer.parameters();
    let gradients = Arc::new(GradientBindings::of(&*model, updated, plan));
    let StepOptions { stream, accumulate, scaler, before_update, allow_untrained_parameters } = options;
    let frozen =
        FrozenParameters::of(RECORD_TRAINING, &*model, &*computation.loss, updated, allow_untrained_parameters)?;
    if accumulate == 0 || accumulate > 1 && !gradients.are_bound(updated) {
        let help = "accumulate must be at least 1; above 1 needs gradients in the plan's buffers: call \
                    bind_gradients() of the plan";
        return Err(Error::invalid(RECORD_TRAINING, help));
    }
    let scaler = match (scaler, &optimizer) {
        (None, _) => None,
        (Some(scaler), StepOptimizer::Optimizer(optimizer)) => Some((scaler, optimizer.clone())),
        (Some(_), StepOptimizer::Closure { .. }) => {
            let help = "a scaler skips updates of an optimizer; pass the optimizer instead of a closure";
            return Err(Error::invalid(RECORD_TRAINING, help));
        }
    };
    let stream = stream.unwrap_or_else(|| Stream::new(plan.device()));
    let (forward, tracker) =
        ForwardPass::new(RECORD_TRAINING, computation, plan)?.with_pins(plan).with_tracker(&stream);
    let outputs = forward.outputs();
    let mut names = state_names(&*model, &optimizer);
    names.extend(forward.inputs());
    let update = Arc::new(StepUpdate { optimizer, scaler, before_update });
    let bound = StepBindings {
        computation: forward.computation.clone(),
        state: ModelState::of(model),
        training: Some(TrainingBindings { gradients: gradients.clone(), frozen, update: update.clone() }),
    };
    let (pass, update): (StepClosure<'f>, Option<StepClosure<'f>>) = if accumulate == 1 {
        let pass = move || {
            gradients.clear();
            update.scaled(forward.run()?)?.try_backward_with(BackwardOptions::default())?;
            forward.track_gradients();
            gradients.collect()?;
            check_gradients(RECORD_TRAINING, update.optimizer.parameters())?;
            update.run()?;
            gradients.restore()
        };
        (Box::new(pass), None)
    } else {
        let collected = Arc::clone(&gradients);
        let scaling = Arc::clone(&update);
        let pass = move || {
            let loss = scaling.scaled(forward.run()?)?;
            let share = ops::full(loss.shape(), 1.0 / accumulate as f64, loss.dtype())?;
            loss.try_backward_with(BackwardOptions { gradient: Some(share), ..Default::default() })?;
            forward.track_gradients();
            collected.collect()?;
            collected.restore()
        };
        (Box::new(pass), Some(Box::new(move || update.run().and_then(|()| gradients.zero()))))
    };
    let update = update.map(|update| StepRunner::new(update, &stream)).transpose()?;
    let update = update.map(|run| AccumulatedUpdate { run, every: accumulate, passes });
    Ok(RecordedStep::new(StepRunner::new(pass, &stream)?, update, (plan, &tracker), (bound, names), outputs, stream))
}

/// Implements [`RecordedStep::evaluation`] without type parameters.
pub(super) fn record_evaluation<'f>(
    computation: StepComputation<'f>,
    plan: &StepPlan,
    stream: Option<Stream>,
) -> Result<RecordedStep<'f>> {
    let stream = stream.unwrap_or_else(|| Stream::new(plan.device()));
    let model: Arc<dyn ModuleParts + Send + Sync + 'f> = computation.model.clone();
    let evaluating = EvaluationGuard::new();
    let (forward, tracker) = ForwardPass::new("record_evaluation", computation, plan)?.with_tracker(&stream);
    drop(evaluating);
    let outputs = forward.outputs();
    let names = forward.inputs();
    let computation = forward.computation.clone();
    let bound = StepBindings { computation, state: ModelState::of(model), training: None };
    let pass = move || {
        let _off = no_grad();
        let _evaluating = EvaluationGuard::new();
        forward.run().map(drop)
    };
    let pass = StepRunner::new(Box::new(pass), &stream)?;
    Ok(RecordedStep::new(pass, None, (plan, &tracker), (bound, names), outputs, stream))
}

/// A recorded step, and the buffers of its results.
pub struct RecordedStep<'f> {
    /// The logits of the last launch.
    pub logits: Tensor,
    /// The loss of the last launch before the update: a 0-d tensor that stays on the device.
    pub loss: Tensor,
    plan: StepPlan,
    pass: StepRunner<'f>,
    /// The separate update of a step that accumulates gradients.
    update: Option<AccumulatedUpdate<'f>>,
    bound: StepBindings<'f>,
    stream: Stream,
    /// The random numbers of the thread that recorded the step.
    random: ThreadStream,
}

/// An update that runs after several passes.
struct AccumulatedUpdate<'f> {
    run: StepRunner<'f>,
    /// The number of passes before each update.
    every: u64,
    /// The number of passes so far, of all steps with the same gradient buffers.
    passes: Arc<AtomicU64>,
}

/// The tensors that a step is bound to.
struct StepBindings<'f> {
    computation: StepComputation<'f>,
    state: ModelState<'f>,
    /// `None` for an evaluation.
    training: Option<TrainingBindings<'f>>,
}

/// The tensors that the backward pass and the update of a step are bound to.
struct TrainingBindings<'f> {
    gradients: Arc<GradientBindings>,
    /// The parameters that must stay frozen.
    frozen: FrozenParameters,
    update: Arc<StepUpdate<'f>>,
}

impl<'f> RecordedStep<'f> {
    fn new(
        mut pass: StepRunner<'f>,
        update: Option<AccumulatedUpdate<'f>>,
        (plan, tracker): (&StepPlan, &BufferTracker),
        (bound, mut names): (StepBindings<'f>, Vec<(String, Tensor)>),
        StepOutputs { logits, loss }: StepOutputs,
        stream: Stream,
    ) -> RecordedStep<'f> {
        let mut plan = plan.clone();
        if let StepRunner::Captured(captured) = &mut pass {
            bound.state.each(&mut |name, tensor| names.push((name.to_string(), tensor.clone())));
            names.extend([("logits".to_string(), logits.clone()), ("loss".to_string(), loss.clone())]);
            // A shared tensor is labelled with its first name.
            names.iter().rev().for_each(|(name, tensor)| captured.name(tensor, name));
        }
        tracker.store_locations(&mut plan, pass.captured());
        RecordedStep { logits, loss, plan, pass, update, bound, stream, random: ThreadStream::current() }
    }

    /// Executes the step on the contents of its buffers.
    ///
    /// Gradients that were removed since the last launch, for example by `zero_grad`, are first restored to the
    /// plan's buffers. If a gradient is bound to another tensor, the step is recorded again.
    ///
    /// # Errors
    /// [`Error::Rebound`] names a parameter or buffer that is not the tensor of the recording; the optimizer and the
    /// plan do not know the new tensor. [`Error::UntrainedParameters`] names a parameter that was frozen at recording,
    /// requires a gradient now and does not belong to the optimizer. Also errors of [`Captured::launch`], or of eager
    /// operations.
    pub fn launch(&mut self) -> Result<()> {
        let _random = self.random.enter();
        self.bound.state.check()?;
        if let Some(TrainingBindings { gradients, frozen, .. }) = &self.bound.training {
            frozen.check()?;
            gradients.put_back(self.update.is_some())?;
        }
        self.pass.launch()?;
        let Some(AccumulatedUpdate { run, every, passes }) = &mut self.update else { return Ok(()) };
        let pass = passes.fetch_add(1, Ordering::Relaxed) + 1;
        if pass.is_multiple_of(*every) { run.launch() } else { Ok(()) }
    }

    /// Launches a training step twice on the contents of its buffers, and returns whether the loss falls and the update
    /// opposes the gradient. Both launches draw the same random numbers. Parameters, buffers, gradients, the optimizer,
    /// a scaler, the default random generator and the results of the last launch are restored; only state inside a
    /// closure that is the [update](ParameterUpdate) is not.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an evaluation, for a step that accumulates gradients, and for one that keeps no
    /// gradients, see [`StepPlan::bind_gradients`]; the errors of [`launch`](RecordedStep::launch).
    pub fn check_step(&mut self) -> Result<StepCheck> {
        let Some(training) = self.bound.training.as_ref().filter(|_| self.update.is_none()) else {
            let help = "an evaluation never updates, and a step that accumulates gradients does not update in every launch; check \
                        a training step with accumulate = 1";
            return Err(Error::invalid("check_step", help));
        };
        let mut written = training.update.state();
        self.bound.state.each(&mut |_, tensor| written.push(tensor.clone()));
        let parameters: Vec<Parameter> = training.gradients.parameters().cloned().collect();
        written.extend(parameters.iter().map(|p| p.tensor().clone()));
        written.extend([self.logits.clone(), self.loss.clone()]);
        let _random = self.random.enter();
        check_step(written, &parameters, &mut || {
            self.launch()?;
            self.loss.try_item::<f64>()
        })
    }

    /// Returns which gradients the update reads from the plan's buffers.
    pub(super) fn bound_gradients(&self) -> BoundGradients {
        let Some(TrainingBindings { update, .. }) = &self.bound.training else { return BoundGradients::default() };
        BoundGradients::current(&*self.bound.computation.model, update.optimizer.parameters(), &self.plan)
    }

    /// Returns how often the step was recorded, and the number of kept recordings, including recordings of a separate
    /// update.
    pub(super) fn recordings(&self) -> (u64, usize) {
        let runners = std::iter::once(&self.pass).chain(self.update.as_ref().map(|update| &update.run));
        runners
            .map(StepRunner::recordings)
            .fold((0, 0), |(recorded, held), stats| (recorded + stats.misses + 1, held + stats.held))
    }

    /// Returns the model with its inputs, and the loss with its targets.
    pub(super) fn computation(&self) -> &StepComputation<'f> {
        &self.bound.computation
    }

    /// Whether launches replay a recording.
    pub fn is_captured(&self) -> bool {
        matches!(self.pass, StepRunner::Captured(_))
    }

    /// Returns the step if it runs eagerly; [`reason`](EagerStep::reason) tells why.
    pub fn eager(&self) -> Option<&EagerStep<'f>> {
        match &self.pass {
            StepRunner::Eager(step) => Some(step),
            StepRunner::Captured(_) => None,
        }
    }

    /// Returns the recording; for a step that accumulates, the recording of its passes.
    pub fn captured(&mut self) -> Option<&mut Captured<'f>> {
        match &mut self.pass {
            StepRunner::Captured(captured) => Some(captured),
            StepRunner::Eager(_) => None,
        }
    }

    /// Returns the stream of the launches.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the plan, with the known location of each buffer.
    pub fn plan(&self) -> &StepPlan {
        &self.plan
    }
}

impl fmt::Debug for RecordedStep<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pass {
            StepRunner::Captured(captured) => write!(f, "captured {}", captured.plan()),
            StepRunner::Eager(step) => write!(f, "eager step: {}", step.reason()),
        }
    }
}
