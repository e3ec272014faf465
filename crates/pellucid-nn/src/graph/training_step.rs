//! A recorded training step over fixed buffers, and how it is compiled.

use super::batch::{Batch, BatchTensors, BoundModel, StepLoss, check_device, check_devices, zeros_on};
use super::check::StepCheck;
use super::coverage::{FrozenParameters, fill_optimizer};
use super::forward::StepComputation;
use super::gradients::BoundGradients;
use super::plan::StepPlan;
use super::record::{RecordedStep, StepOptions, record_evaluation, record_training};
use super::update::StepOptimizer;
use crate::loss::LossKind;
use crate::module::ModuleParts;
use crate::optim::Optimizer;
use crate::parameter::{EvaluationGuard, Parameter};
use pellucid_tensor::{Error, Result, Tensor, no_grad, ops};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A recorded training step over fixed buffers of its own.
///
/// [`GraphTrainer`](super::GraphTrainer) and [`Sequential::compile`](crate::Sequential::compile) create it.
pub struct TrainingStep<'f> {
    /// The input buffers, in order: x `[B, K]`, for example.
    pub inputs: Vec<Tensor>,
    /// The target buffer: class numbers `[B]`, or values of the logits' shape.
    pub targets: Tensor,
    /// The logits of the last launch, `[B, C]`.
    pub logits: Tensor,
    /// The loss of the last launch before the update: a 0-d tensor that stays on the device.
    pub loss: Tensor,
    /// The step.
    pub recorded: RecordedStep<'f>,
    /// Which gradients the optimizer reads from the plan's buffers.
    pub gradients: BoundGradients,
}

/// A model with the buffers of its inputs, a loss and an optimizer, from which a training step is made.
pub(super) struct TrainingSetup<'f> {
    pub(super) model: Arc<dyn BoundModel + 'f>,
    pub(super) loss: Arc<dyn StepLoss + 'f>,
    pub(super) optimizer: Arc<dyn Optimizer + 'f>,
    pub(super) max_scratch: usize,
    pub(super) options: StepOptions<'f>,
    /// The number of launches of all steps that accumulate gradients in the same buffers.
    pub(super) passes: Arc<AtomicU64>,
}

impl TrainingSetup<'_> {
    /// Returns the plan of the step. The first batch, if it is known, is checked.
    fn plan(&self, first: Option<(&dyn BatchTensors, &Tensor)>) -> Result<StepPlan> {
        let of_targets = |(_, y): (_, &Tensor)| LossKind::Custom { target: y.shape().clone(), dtype: y.dtype() };
        let Some(kind) = self.loss.target_kind().or_else(|| first.map(of_targets)) else {
            let help = "the targets of this loss are unknown; use loss.with_targets(shape, dtype), or let the first \
                        step() compile";
            return Err(Error::invalid("compile", help));
        };
        let model: &dyn ModuleParts = &*self.model;
        model.supports_capture()?;
        let mut plan = StepPlan::of(&*self.model, &kind)?;
        plan.max_scratch = self.max_scratch;
        if let Some((x, y)) = first {
            plan.check(SET_BATCH, x, y)?;
            plan.check_targets(&*self.loss, y)?;
            check_devices(SET_BATCH, x, self.model.batch())?;
            check_device(SET_BATCH, plan.device(), y)?;
        }
        Ok(plan)
    }
}

/// Returns a buffer for the targets of a step.
fn zero_targets(plan: &StepPlan) -> Result<Tensor> {
    let (shape, dtype) = &plan.loss.target;
    zeros_on(plan.device(), shape, *dtype)
}

/// The name of the copy of a batch in errors.
pub(super) const SET_BATCH: &str = "set_batch";

impl<'f> TrainingStep<'f> {
    /// Builds, checks and plans the model, fills the optimizer, binds the gradients and records. `shared` are gradient
    /// buffers to use, by name. `first` is the batch of the first launch, if it is known: it is checked before anything
    /// changes, and determines the targets of a loss that does not define them.
    pub(super) fn compile(
        setup: TrainingSetup<'f>,
        shared: &HashMap<String, Tensor>,
        first: Option<(&dyn BatchTensors, &Tensor)>,
    ) -> Result<TrainingStep<'f>> {
        let plan = setup.plan(first)?;
        let optimizer = Arc::clone(&setup.optimizer);
        let is_filled = fill_optimizer(&*setup.model, &*setup.loss, &*optimizer)?;
        let step = TrainingStep::record(setup, &plan, shared);
        if is_filled && step.is_err() {
            optimizer.unfill();
        }
        step
    }

    fn record(setup: TrainingSetup<'f>, plan: &StepPlan, shared: &HashMap<String, Tensor>) -> Result<TrainingStep<'f>> {
        let TrainingSetup { model, loss, optimizer, options, passes, .. } = setup;
        let parts: &dyn ModuleParts = &*model;
        FrozenParameters::of("compile", parts, &*loss, optimizer.parameters(), options.allow_untrained_parameters)?;
        plan.adopt_gradients(shared);
        let targets = zero_targets(plan)?;
        let parameters: Vec<Parameter> = parts.parameters().into_iter().map(|(_, p)| p).collect();
        let before: Vec<Option<Tensor>> = parameters.iter().map(|p| p.grad()).collect();
        let gradients = plan.bind(parts, optimizer.parameters())?;
        let computation = StepComputation { model, loss, targets };
        let recorded = record_training(computation, StepOptimizer::Optimizer(optimizer), plan, options, passes);
        // A failed recording restores the gradients.
        let put_back = |_: &Error| parameters.iter().zip(before).for_each(|(p, gradient)| p.set_grad(gradient));
        Ok(TrainingStep::new(recorded.inspect_err(put_back)?, gradients))
    }

    /// Records only an evaluation, for a first batch. A model can evaluate batches that it cannot train on, such as a
    /// batch of one sample with batch normalization.
    pub(super) fn compile_evaluation(
        setup: TrainingSetup<'f>,
        first: (&dyn BatchTensors, &Tensor),
    ) -> Result<TrainingStep<'f>> {
        let evaluating = EvaluationGuard::new();
        let plan = setup.plan(Some(first))?;
        drop(evaluating);
        let TrainingSetup { model, loss, options, .. } = setup;
        let computation = StepComputation { model, loss, targets: zero_targets(&plan)? };
        record_evaluation(computation, &plan, options.stream).map(TrainingStep::from)
    }

    fn new(recorded: RecordedStep<'f>, gradients: BoundGradients) -> TrainingStep<'f> {
        let StepComputation { model, targets, .. } = recorded.computation();
        let inputs = model.batch().named().into_iter().map(|(_, buffer)| buffer).collect();
        let (targets, logits, loss) = (targets.clone(), recorded.logits.clone(), recorded.loss.clone());
        TrainingStep { inputs, targets, logits, loss, recorded, gradients }
    }

    /// Copies a batch into the fixed buffers, without synchronizing.
    ///
    /// # Errors
    /// [`Error::Layer`] names the layer that would read a batch of another shape or dtype; then nothing is copied.
    pub fn set_batch(&self, x: &impl Batch, y: &Tensor) -> Result<()> {
        self.copy_batch(x, y)
    }

    pub(super) fn copy_batch(&self, x: &dyn BatchTensors, y: &Tensor) -> Result<()> {
        self.plan().check(SET_BATCH, x, y)?;
        self.plan().check_targets(&*self.recorded.computation().loss, y)?;
        // Only the values of the batch are copied, not its autograd graph.
        let _off = no_grad();
        let (mut buffers, mut copied) = (self.inputs.iter(), Ok(()));
        x.each_tensor(&mut |_, x| {
            if let (Some(buffer), Ok(())) = (buffers.next(), &copied) {
                copied = ops::copy_(buffer, x);
            }
        });
        copied.and_then(|()| ops::copy_(&self.targets, y)).map_err(|mut error| {
            error.set_operation(SET_BATCH);
            error
        })
    }

    /// Executes the step on the batch in the buffers.
    ///
    /// # Errors
    /// The errors of [`RecordedStep::launch`].
    pub fn launch(&mut self) -> Result<()> {
        self.recorded.launch()
    }

    /// Checks the step on the batch in the buffers; see [`RecordedStep::check_step`].
    ///
    /// # Errors
    /// The errors of [`RecordedStep::check_step`].
    pub fn check_step(&mut self) -> Result<StepCheck> {
        self.recorded.check_step()
    }

    /// Returns the plan of the step; see [`RecordedStep::plan`].
    pub fn plan(&self) -> &StepPlan {
        self.recorded.plan()
    }

    /// Whether the step is for batches of these shapes and dtypes.
    pub(super) fn fits(&self, x: &dyn BatchTensors) -> bool {
        let (mut buffers, mut same) = (self.inputs.iter(), true);
        x.each_tensor(&mut |_, x| {
            same &= buffers.next().is_some_and(|buffer| buffer.shape() == x.shape() && buffer.dtype() == x.dtype());
        });
        same && buffers.next().is_none()
    }
}

/// Creates a training step from a recording. It keeps the buffers that were passed at recording, on the device of the
/// step.
impl<'f> From<RecordedStep<'f>> for TrainingStep<'f> {
    fn from(recorded: RecordedStep<'f>) -> TrainingStep<'f> {
        let gradients = recorded.bound_gradients();
        TrainingStep::new(recorded, gradients)
    }
}
