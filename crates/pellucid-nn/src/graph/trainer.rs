//! A recorded step with its buffers, and a trainer that records and launches such steps.

use super::batch::{Batch, BatchTensors, BoundModel, Model, ModelWithBatch, StepLoss, zeros_on};
use super::coverage::{FrozenParameters, fill_optimizer};
use super::gradients::BoundGradients;
use super::paths::{ModelPath, current_path, is_on_path};
use super::plan::StepPlan;
use super::record::{RecordedStep, StepComputation, StepOptions, record_evaluation, record_training};
use crate::layer::Layer;
use crate::loss::Loss;
use crate::module::ModuleParts;
use crate::optim::Optimizer;
use crate::parameter::Parameter;
use pellucid_tensor::{CacheStats, Error, Result, Shape, Tensor, no_grad, ops};
use std::marker::PhantomData;
use std::rc::Rc;

/// A recorded training step over fixed buffers of its own.
///
/// [`GraphTrainer`] and [`Sequential::compile`](crate::Sequential::compile) make it.
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
    computation: StepComputation<'f>,
}

/// A model with the buffers of its inputs, a loss and an optimizer, from which a training step is made.
pub(super) struct TrainingSetup<'f> {
    pub(super) model: Rc<dyn BoundModel + 'f>,
    pub(super) loss: Rc<dyn StepLoss + 'f>,
    pub(super) optimizer: Rc<dyn Optimizer + 'f>,
    pub(super) max_scratch: usize,
    pub(super) options: StepOptions<'f>,
}

impl<'f> TrainingStep<'f> {
    /// Builds, checks and plans the model, fills the optimizer, binds the gradients and records. `share` is a plan
    /// whose gradient buffers are used.
    pub(super) fn compile(setup: TrainingSetup<'f>, share: Option<&StepPlan>) -> Result<TrainingStep<'f>> {
        let Some(kind) = setup.loss.target_kind() else {
            let help = "the targets of this loss are unknown; use loss.with_targets(shape, dtype)";
            return Err(Error::invalid("compile", help));
        };
        let model: &dyn ModuleParts = &*setup.model;
        model.supports_capture()?;
        let plan = StepPlan::of(&*setup.model, &kind, setup.max_scratch)?;
        let optimizer = Rc::clone(&setup.optimizer);
        let is_filled = fill_optimizer(model, &*setup.loss, &*optimizer)?;
        let step = TrainingStep::record(setup, &plan, share);
        if is_filled && step.is_err() {
            optimizer.unfill();
        }
        step
    }

    fn record(setup: TrainingSetup<'f>, plan: &StepPlan, share: Option<&StepPlan>) -> Result<TrainingStep<'f>> {
        let TrainingSetup { model, loss, optimizer, options, .. } = setup;
        let parts: &dyn ModuleParts = &*model;
        FrozenParameters::of("compile", parts, &*loss, &*optimizer, options.allow_untrained_parameters)?;
        if let Some(other) = share {
            plan.adopt_gradients(other);
        }
        let (shape, dtype) = &plan.loss.target;
        let targets = zeros_on(plan.device(), shape, *dtype)?;
        let parameters: Vec<Parameter> = parts.parameters().into_iter().map(|(_, p)| p).collect();
        let before: Vec<Option<Tensor>> = parameters.iter().map(|p| p.grad()).collect();
        let gradients = plan.bind(parts, optimizer.parameters())?;
        let inputs = model.batch().named().into_iter().map(|(_, buffer)| buffer).collect();
        let computation = StepComputation { model, loss, targets: targets.clone() };
        let recorded = record_training(computation.clone(), optimizer, plan, options);
        // A failed recording restores the gradients.
        let put_back = |_: &Error| parameters.iter().zip(before).for_each(|(p, gradient)| p.set_grad(gradient));
        let recorded = recorded.inspect_err(put_back)?;
        let (logits, loss) = (recorded.logits.clone(), recorded.loss.clone());
        Ok(TrainingStep { inputs, targets, logits, loss, recorded, gradients, computation })
    }

    /// Copies a batch into the fixed buffers, without synchronizing.
    ///
    /// # Errors
    /// [`Error::Layer`] names the layer that would read a batch of another shape or dtype; then nothing is copied.
    pub fn set_batch(&self, x: &impl Batch, y: &Tensor) -> Result<()> {
        self.copy_batch(x, y)
    }

    fn copy_batch(&self, x: &dyn BatchTensors, y: &Tensor) -> Result<()> {
        self.recorded.plan().check("set_batch", x, y)?;
        // Only the values of the batch are copied, not its autograd graph.
        let _off = no_grad();
        let (mut buffers, mut copied) = (self.inputs.iter(), Ok(()));
        x.each_tensor(&mut |_, x| {
            if let (Some(buffer), Ok(())) = (buffers.next(), &copied) {
                copied = ops::copy_(buffer, x);
            }
        });
        copied.and_then(|()| ops::copy_(&self.targets, y)).map_err(|mut error| {
            error.set_operation("set_batch");
            error
        })
    }

    /// Executes the step on the batch in the buffers.
    ///
    /// # Errors
    /// Those of [`RecordedStep::launch`].
    pub fn launch(&mut self) -> Result<()> {
        self.recorded.launch()
    }

    /// Whether the step is for batches of these shapes.
    fn fits(&self, x: &dyn BatchTensors) -> bool {
        have_shapes(x, self.inputs.iter().map(|buffer| buffer.shape()))
    }
}

/// A trainer: a model, a loss, an optimizer, and recorded training steps. It keeps one step for each compiled shape and
/// each [path](super::paths::path_of) of the model, up to a [limit](GraphTrainer::recordings). All steps share
/// parameters, gradients and optimizer state.
///
/// Model, loss and optimizer may be owned or borrowed: `&Sequential` is a model, as is `&M` for a model `M` of
/// [several inputs](super::MultiInput); `&Sgd` is an optimizer and `&MseLoss` a loss. Between launches,
/// [`model`](GraphTrainer::model) and [`optimizer`](GraphTrainer::optimizer) give access to them.
pub struct GraphTrainer<'f, M, L, O, X = Tensor> {
    model: Rc<M>,
    optimizer: Rc<O>,
    steps: StepCache<'f>,
    types: PhantomData<fn(X) -> L>,
}

impl<'f, M, L, O, X> GraphTrainer<'f, M, L, O, X>
where
    M: Model<X> + 'f,
    L: Loss + 'f,
    O: Optimizer + 'f,
    X: Batch + 'f,
{
    /// Creates a trainer without recordings. `max_scratch` is the maximum scratch of one matrix product in bytes,
    /// usually `8 << 20`.
    pub fn new(model: M, loss: L, optimizer: O, max_scratch: usize) -> Self {
        let (model, optimizer) = (Rc::new(model), Rc::new(optimizer));
        let steps = StepCache::new(model.clone(), Rc::new(Box::new(loss)), optimizer.clone(), max_scratch);
        GraphTrainer { model, optimizer, steps, types: PhantomData }
    }

    /// Sets the maximum number of recorded steps, 8 by default. The least recently used step is dropped first, and is
    /// recorded again when it is needed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `limit` is 0.
    pub fn recordings(mut self, limit: usize) -> Result<Self> {
        self.steps.set_limit(limit).map(|()| self)
    }

    /// Returns the number of kept recordings, and the hits and misses of steps and evaluations.
    pub fn cache(&self) -> CacheStats {
        self.steps.stats()
    }

    /// Sets the options for recording. Settings of [`before_update`](GraphTrainer::before_update) and
    /// [`allow_untrained_parameters`](GraphTrainer::allow_untrained_parameters) stay, unless the options set them.
    pub fn with_options(mut self, options: StepOptions<'f>) -> Self {
        self.steps.set_options(options);
        self
    }

    /// Permits parameters that require a gradient and that the optimizer does not update, as in a GAN.
    ///
    /// ```
    /// use pellucid_nn::graph::GraphTrainer;
    /// use pellucid_nn::{Linear, Module, loss::BceWithLogitsLoss, optim::{Sgd, SgdOptions}};
    /// // The generator learns to deceive the discriminator, which has an optimizer of its own.
    /// let (generator, discriminator) = (Linear::new(2, 4), Linear::new(4, 1));
    /// let sgd = Sgd::new(generator.parameters(), SgdOptions::default())?;
    /// let model = (generator, discriminator.clone());
    /// let mut trainer =
    ///     GraphTrainer::new(model, BceWithLogitsLoss::default(), sgd, 8 << 20).allow_untrained_parameters();
    /// trainer.compile(&[8, 2])?;
    /// # Ok::<(), pellucid_tensor::Error>(())
    /// ```
    pub fn allow_untrained_parameters(mut self) -> Self {
        self.steps.options.allow_untrained_parameters = true;
        self
    }

    /// Sets a function that changes the gradients before each update:
    ///
    /// ```
    /// use pellucid_nn::{graph::GraphTrainer, Linear, Module, loss::MseLoss, optim::{clip_grad_norm, Sgd, SgdOptions}};
    /// let model = Linear::new(3, 1);
    /// let sgd = Sgd::new(model.parameters(), SgdOptions::default())?;
    /// let mut trainer = GraphTrainer::new(model, MseLoss::default(), sgd, 8 << 20)
    ///     .before_update(|parameters| clip_grad_norm(parameters, 1.0).map(drop));
    /// trainer.compile(&[8, 3])?;
    /// # Ok::<(), pellucid_tensor::Error>(())
    /// ```
    pub fn before_update(mut self, f: impl Fn(&[Parameter]) -> Result<()> + 'f) -> Self {
        self.steps.options.before_update = Some(Rc::new(f));
        self
    }

    /// Returns the model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// Returns the optimizer.
    pub fn optimizer(&self) -> &O {
        &self.optimizer
    }

    /// Returns the step that was compiled or launched last; `None` before [`compile`](GraphTrainer::compile).
    pub fn current(&self) -> Option<&TrainingStep<'f>> {
        self.steps.kept.last().map(|kept| &kept.step)
    }

    /// Records a step for the shapes of this batch, on the path that the model is set to. The values are not used.
    /// Steps for other shapes are kept.
    ///
    /// # Errors
    /// Those of [`Sequential::compile`](crate::Sequential::compile).
    pub fn compile_for(&mut self, inputs: &X) -> Result<&mut TrainingStep<'f>> {
        let model = ModelWithBatch::with_buffers(self.model.clone(), inputs)?;
        self.steps.compile(model)
    }

    /// Copies a batch into the buffers and launches the step, without synchronizing. The loss before the update stays
    /// on the device in [`TrainingStep::loss`]. If the model was set to another path, the step of that path is
    /// launched, and recorded the first time.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`compile`](GraphTrainer::compile); those of [`TrainingStep::set_batch`] for
    /// shapes that were not compiled; those of recording and of [`TrainingStep::launch`].
    pub fn step(&mut self, x: &X, y: &Tensor) -> Result<()> {
        let model = &self.model;
        self.steps.step(x, y, &|| ModelWithBatch::with_buffers(model.clone(), x))
    }

    /// Runs a [`step`](GraphTrainer::step) and returns the loss of the same batch after the update, in evaluation mode,
    /// from a recorded evaluation ([`RecordedStep::evaluation`]).
    ///
    /// # Errors
    /// Those of [`step`](GraphTrainer::step).
    pub fn one_step(&mut self, x: &X, y: &Tensor) -> Result<f32> {
        self.step(x, y)?;
        self.steps.evaluate_buffers()
    }

    /// Returns the loss of a batch in evaluation mode, without training.
    ///
    /// # Errors
    /// Those of [`step`](GraphTrainer::step).
    pub fn evaluate(&mut self, x: &X, y: &Tensor) -> Result<f32> {
        let model = &self.model;
        self.steps.set_batch(x, y, &|| ModelWithBatch::with_buffers(model.clone(), x))?;
        self.steps.evaluate_buffers()
    }
}

impl<'f, M: Layer + 'f, L: Loss + 'f, O: Optimizer + 'f> GraphTrainer<'f, M, L, O> {
    /// Records a step for inputs of this shape, for example `[B, K]`, of the model's [input dtype](Layer::input_dtype).
    ///
    /// # Errors
    /// Those of [`Sequential::compile`](crate::Sequential::compile).
    pub fn compile(&mut self, input_shape: &[usize]) -> Result<&mut TrainingStep<'f>> {
        let inputs = ops::zeros(input_shape, self.model.input_dtype())?;
        self.compile_for(&inputs)
    }
}

/// The recorded steps of a trainer. It has no type parameters, so it is compiled once, in this crate.
struct StepCache<'f> {
    model: Rc<dyn ModuleParts + 'f>,
    loss: Rc<dyn StepLoss + 'f>,
    optimizer: Rc<dyn Optimizer + 'f>,
    max_scratch: usize,
    options: StepOptions<'f>,
    /// The steps, least recently used first.
    kept: Vec<KeptStep<'f>>,
    /// The shapes of all compiled batches.
    shapes: Vec<Vec<Shape>>,
    limit: usize,
    stats: CacheStats,
}

/// A step, the path that it was recorded for, and its evaluation over the same buffers, once recorded.
struct KeptStep<'f> {
    path: ModelPath,
    step: TrainingStep<'f>,
    evaluation: Option<RecordedStep<'f>>,
    /// The first parameter of the model, whose device tells whether the model was moved.
    parameter: Option<Parameter>,
}

/// Binds the trainer's model to buffers for a batch.
type BindModel<'a, 'f> = &'a dyn Fn() -> Result<Rc<dyn BoundModel + 'f>>;

impl<'f> StepCache<'f> {
    fn new(
        model: Rc<dyn ModuleParts + 'f>,
        loss: Rc<dyn StepLoss + 'f>,
        optimizer: Rc<dyn Optimizer + 'f>,
        max_scratch: usize,
    ) -> Self {
        StepCache {
            model,
            loss,
            optimizer,
            max_scratch,
            options: StepOptions::default(),
            kept: Vec::new(),
            shapes: Vec::new(),
            limit: 8,
            stats: CacheStats::default(),
        }
    }

    fn set_limit(&mut self, limit: usize) -> Result<()> {
        if limit == 0 {
            return Err(Error::invalid("recordings", "a trainer keeps at least 1 recorded step"));
        }
        self.limit = limit;
        Ok(())
    }

    fn set_options(&mut self, mut options: StepOptions<'f>) {
        options.before_update = options.before_update.or(self.options.before_update.take());
        options.allow_untrained_parameters |= self.options.allow_untrained_parameters;
        self.options = options;
    }

    fn stats(&self) -> CacheStats {
        CacheStats { held: self.kept.len(), ..self.stats }
    }

    /// Removes the steps that were recorded before the model moved to another device.
    fn remove_moved(&mut self) {
        let moved = |parameter: &Parameter, step: &TrainingStep<'f>| {
            step.inputs.first().is_some_and(|buffer| buffer.device() != parameter.device())
        };
        self.kept.retain(|kept| !kept.parameter.as_ref().is_some_and(|parameter| moved(parameter, &kept.step)));
    }

    fn compile(&mut self, model: Rc<dyn BoundModel + 'f>) -> Result<&mut TrainingStep<'f>> {
        self.remove_moved();
        let share = self.kept.last().map(|kept| kept.step.recorded.plan());
        let setup = TrainingSetup {
            model: model.clone(),
            loss: self.loss.clone(),
            optimizer: self.optimizer.clone(),
            max_scratch: self.max_scratch,
            options: self.options.clone(),
        };
        let step = TrainingStep::compile(setup, share)?;
        let (batch, path) = (model.batch(), current_path(&*self.model));
        // A step recorded earlier for the same shapes and path is replaced.
        self.kept.retain(|other| other.path != path || !other.step.fits(batch));
        if !self.is_known(batch) {
            self.shapes.push(step.inputs.iter().map(|buffer| buffer.shape().clone()).collect());
        }
        let parameter = self.model.parameters().into_iter().next().map(|(_, parameter)| parameter);
        self.kept.push(KeptStep { path, step, evaluation: None, parameter });
        self.kept.drain(..self.kept.len().saturating_sub(self.limit));
        Ok(&mut self.current()?.step)
    }

    /// Returns the step that was used last.
    fn current(&mut self) -> Result<&mut KeptStep<'f>> {
        self.kept.last_mut().ok_or_else(|| Error::invalid("step", "no step is recorded; call compile() first"))
    }

    fn step(&mut self, x: &dyn BatchTensors, y: &Tensor, bind: BindModel<'_, 'f>) -> Result<()> {
        self.set_batch(x, y, bind)?;
        self.current()?.step.launch()
    }

    /// Copies a batch into the buffers of the step for its shapes and the model's path, which becomes the current step.
    fn set_batch(&mut self, x: &dyn BatchTensors, y: &Tensor, bind: BindModel<'_, 'f>) -> Result<()> {
        self.select(x, bind)?;
        self.current()?.step.copy_batch(x, y)
    }

    fn evaluate_buffers(&mut self) -> Result<f32> {
        let stream = self.options.stream.clone();
        let KeptStep { step, evaluation, .. } = self.current()?;
        if evaluation.is_none() {
            *evaluation = Some(record_evaluation(step.computation.clone(), step.recorded.plan(), stream)?);
        }
        let evaluation = evaluation.as_mut().expect("the evaluation must have been recorded above");
        evaluation.launch()?;
        evaluation.loss.try_item()
    }

    /// Makes the step for this batch and the model's path the current one.
    fn select(&mut self, x: &dyn BatchTensors, bind: BindModel<'_, 'f>) -> Result<()> {
        self.current()?;
        self.remove_moved();
        let is_wanted = |kept: &KeptStep<'f>| is_on_path(&*self.model, &kept.path) && kept.step.fits(x);
        if let Some(at) = self.kept.iter().rposition(is_wanted) {
            self.stats.hits += 1;
            self.kept[at..].rotate_left(1);
            return Ok(());
        }
        // Another path is recorded for known shapes only. For unknown shapes, set_batch of the current step fails.
        if self.is_known(x) {
            self.stats.misses += 1;
            self.compile(bind()?)?;
        }
        Ok(())
    }

    /// Whether a step was compiled for batches of these shapes, on any path.
    fn is_known(&self, x: &dyn BatchTensors) -> bool {
        self.shapes.iter().any(|shapes| have_shapes(x, shapes.iter()))
    }
}

/// Whether the tensors of a batch have these shapes.
fn have_shapes<'a>(x: &dyn BatchTensors, mut shapes: impl Iterator<Item = &'a Shape>) -> bool {
    let mut same = true;
    x.each_tensor(&mut |_, x| same &= shapes.next() == Some(x.shape()));
    same && shapes.next().is_none()
}
