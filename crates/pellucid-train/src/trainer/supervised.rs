//! [`Supervised`]: the task of a model, a loss and an optimizer.

use super::caught::CaughtResult;
use super::finite::{FiniteCheckedLoss, NonFiniteSearch};
use super::snapshot::{RandomSnapshot, StepSnapshot};
use super::task::{BatchScores, NamedScalars, TrainingTask};
use pellucid_nn::graph::{Batch, BeforeUpdate, GraphTrainer, Model, StepOptions, loss_part_name};
use pellucid_nn::loss::{BatchWeight, Loss};
use pellucid_nn::optim::{
    Average, AveragedModel, ClipGradNormOptions, Optimizer, clip_grad_norm_with, clip_grad_value,
};
use pellucid_nn::{Buffer, Checkpoint, Module, Parameter, StateDict, Visit, Visitor, hook, with_evaluation_mode};
use pellucid_tensor::{Autocast, DType, Error, Result, Tensor, autocast, no_grad};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The name of the loss in values and checkpoints.
const LOSS: &str = "loss";

/// The settings of a supervised step.
#[derive(Clone, Default)]
pub(super) struct StepSettings<'f> {
    /// The options of the step. Their function `before_update` is the user's; `step_options` adds clipping.
    pub(super) options: StepOptions<'f>,
    /// The half-precision dtype of the forward pass with mixed precision.
    pub(super) half: Option<DType>,
    /// The maximum norm of all gradients together.
    pub(super) max_norm: Option<f64>,
    /// The maximum magnitude of a gradient element.
    pub(super) max_value: Option<f64>,
}

impl<'f> StepSettings<'f> {
    /// Returns the options of a step that also clips the gradients.
    fn step_options(&self) -> StepOptions<'f> {
        let settings = self.clone();
        let changes = self.max_norm.is_some() || self.max_value.is_some() || self.options.before_update.is_some();
        let before_update = changes.then(|| -> BeforeUpdate<'f> { Arc::new(move |p| settings.change_gradients(p)) });
        StepOptions { before_update, ..self.options.clone() }
    }

    /// Applies the user's function to the gradients, then clips them.
    fn change_gradients(&self, parameters: &[Parameter]) -> Result<()> {
        if let Some(f) = &self.options.before_update {
            f(parameters)?;
        }
        if let Some(limit) = self.max_value {
            clip_grad_value(parameters, limit)?;
        }
        if let Some(limit) = self.max_norm {
            clip_grad_norm_with(parameters, limit, ClipGradNormOptions::default())?;
        }
        Ok(())
    }

    /// Enables mixed precision until the guard is dropped.
    fn precision(&self) -> Option<Autocast> {
        self.half.map(autocast)
    }
}

/// A batch, and the operations of the task on it. Functions that use this trait object are compiled once, in this
/// crate.
trait SupervisedStep<'f> {
    /// Runs the step, captured or eagerly.
    fn run(&mut self) -> Result<()>;

    /// Returns the loss of the last step.
    fn loss(&self) -> Result<Tensor>;

    /// Updates the parameters with the gradients that were accumulated so far. Returns false if there are none.
    fn update_early(&mut self) -> Result<bool>;

    /// Returns true if no accumulated gradients are pending.
    fn is_between_updates(&self) -> bool;

    /// Returns the output of the model and the loss of the batch, computed eagerly.
    fn evaluate(&self) -> Result<(Tensor, Tensor)>;

    /// Returns the output of the model and the loss of the batch, computed by a captured evaluation.
    fn evaluate_captured(&mut self) -> Result<(Tensor, Tensor)>;
    fn supports_capture(&self) -> bool;

    /// Returns the buffers of model and loss. The list is empty before lazy layers are built.
    fn buffers(&self) -> Vec<Buffer>;

    /// Sets the options of later steps.
    fn set_options(&mut self, options: StepOptions<'f>);
}

/// The state of a supervised task that does not depend on its types.
struct SupervisedState<'f> {
    settings: StepSettings<'f>,
    /// Whether the first step has run, which selects captured or eager steps.
    is_decided: bool,
    eager_reason: Option<String>,
    /// Whether evaluations run eagerly because one of them could not be captured.
    evaluates_eagerly: bool,
    averages: Option<AveragedModel>,
    /// Whether the model contains the averages.
    holds_averages: bool,
    /// The buffers and the random numbers before the last step.
    before_step: StepSnapshot,
}

impl<'f> SupervisedState<'f> {
    fn train_step(&mut self, step: &mut dyn SupervisedStep<'f>) -> Result<NamedScalars> {
        let _precision = self.settings.precision();
        match self.is_decided {
            true => self.before_step.renew()?,
            false => self.before_step = StepSnapshot::new(step.buffers())?,
        }
        let run = CaughtResult::call(|| match self.is_decided || self.settings.options.eager {
            true => step.run(),
            false => self.first_step(step),
        });
        let restored = match run.value() {
            Some(()) => Ok(()),
            None => self.before_step.restore(),
        };
        run.resume_after(restored)?;
        let loss = step.loss()?;
        if self.settings.options.scaler.is_some() {
            // If the loss is not finite, the scaler skips the update of the parameters, so the buffers must not change
            // either.
            self.before_step.restore_buffers_unless_finite(&loss)?;
        }
        if !std::mem::replace(&mut self.is_decided, true) {
            // The first step has built lazy layers.
            self.before_step = StepSnapshot::new(step.buffers())?;
        }
        if step.is_between_updates() {
            self.update_averages()?;
        }
        Ok(vec![(LOSS, loss)])
    }

    /// Runs the first step captured, or eagerly if it cannot be captured.
    fn first_step(&mut self, step: &mut dyn SupervisedStep<'f>) -> Result<()> {
        let reason = match capture_or_reason(step, |step| step.run()) {
            Ok(result) => return result,
            Err(reason) => reason,
        };
        // A failed capture may have drawn random numbers.
        self.before_step.restore()?;
        self.set_eager(step, true);
        let repeated = CaughtResult::call(|| step.run());
        match repeated.value() {
            Some(()) => self.eager_reason = Some(reason),
            // The eager step fails too, for example because of the shape of the batch. The next step counts as the
            // first step.
            None => self.set_eager(step, false),
        }
        repeated.resume_after(Ok(()))
    }

    /// Sets whether later steps run eagerly.
    fn set_eager(&mut self, step: &mut dyn SupervisedStep<'f>, is_eager: bool) {
        self.settings.options.eager = is_eager;
        step.set_options(self.settings.step_options());
    }

    fn end_epoch(&mut self, step: &mut dyn SupervisedStep<'f>) -> Result<()> {
        if step.update_early()? { self.update_averages() } else { Ok(()) }
    }

    /// Adds the weights to their averages, unless the scaler has skipped the last update. A scaler usually skips the
    /// first updates, and the averages would otherwise begin with untrained weights.
    fn update_averages(&self) -> Result<()> {
        match &self.averages {
            Some(averages) if self.skipped_updates()?.unwrap_or(0) == 0 => averages.update(),
            _ => Ok(()),
        }
    }

    /// Returns the number of consecutive updates that the scaler has skipped; `None` without a scaler.
    fn skipped_updates(&self) -> Result<Option<usize>> {
        self.settings.options.scaler.as_ref().map(|scaler| scaler.try_skipped_updates()).transpose()
    }

    /// Evaluates a batch: captured if the steps are captured, or eagerly if it cannot be captured.
    fn evaluate(&mut self, step: &mut dyn SupervisedStep<'f>, y: &Tensor) -> Result<BatchScores> {
        let _precision = self.settings.precision();
        let scores =
            |(output, loss)| BatchScores { losses: vec![(LOSS, loss)], predictions: Some((output, y.clone())) };
        let mut reason = None;
        if self.is_decided && !self.settings.options.eager && !self.evaluates_eagerly {
            let random = RandomSnapshot::new()?;
            reason = Some(match capture_or_reason(step, |step| step.evaluate_captured()) {
                Ok(result) => return result.map(scores),
                Err(reason) => reason,
            });
            random.restore()?;
        }
        let _off = no_grad();
        let result = with_evaluation_mode(|| step.evaluate())?;
        if let Some(reason) = reason {
            tracing::warn!(%reason, "evaluations run eagerly, since they cannot be captured");
            self.evaluates_eagerly = true;
        }
        Ok(scores(result))
    }

    fn apply_averages(&mut self) -> Result<()> {
        match &mut self.averages {
            // Before the first update, the averages do not exist.
            Some(averages) if averages.count_tensor().try_item::<f64>()? > 0.0 => {
                averages.apply()?;
                self.holds_averages = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn restore_weights(&mut self) -> Result<()> {
        match &mut self.averages {
            Some(averages) if std::mem::take(&mut self.holds_averages) => averages.restore(),
            _ => Ok(()),
        }
    }

    /// Adds the parts of the state to a checkpoint.
    fn add_to<'a>(&'a self, mut checkpoint: Checkpoint<'a>) -> Checkpoint<'a> {
        if let Some(scaler) = &self.settings.options.scaler {
            checkpoint = checkpoint.scaler(scaler);
        }
        match &self.averages {
            Some(averages) => checkpoint.part("averages", averages),
            None => checkpoint,
        }
    }
}

/// Returns the result of a captured call, or the reason why it cannot be captured. A model may read values with a
/// method that panics. If a panic has a different cause, an eager call repeats it.
fn capture_or_reason<'f, R>(
    step: &mut dyn SupervisedStep<'f>,
    call: impl FnOnce(&mut dyn SupervisedStep<'f>) -> Result<R>,
) -> std::result::Result<Result<R>, String> {
    match catch_unwind(AssertUnwindSafe(|| call(step))) {
        Ok(Err(error)) if is_capture_error(&error, step) => Err(error.to_string()),
        Ok(result) => Ok(result),
        Err(panic) => Err(panic_message(&*panic).to_string()),
    }
}

/// Returns true if a step failed because it cannot be captured.
fn is_capture_error(error: &Error, step: &dyn SupervisedStep<'_>) -> bool {
    matches!(error.root(), Error::ReadInCapture { .. } | Error::CaptureChanged { .. }) || !step.supports_capture()
}

/// Returns the message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown panic payload")
}

/// The task of a [`Trainer`](super::Trainer) that minimizes the loss of a model on batches (inputs, targets).
///
/// Steps and evaluations are captured. If the first step cannot be captured, for example because the model reads values
/// of tensors, all steps and evaluations run eagerly. If only an evaluation cannot be captured, later evaluations run
/// eagerly, and a warning is logged.
pub struct Supervised<'f, M, O, X = Tensor> {
    trainer: GraphTrainer<'f, M, O, X>,
    loss: FiniteCheckedLoss<'f>,
    state: SupervisedState<'f>,
}

/// The modules that a task trains: the parts of the model, and those of the loss under the name that
/// [`loss_part_name`] returns.
struct ModelAndLoss<'a, 'f, M> {
    model: &'a M,
    loss: &'a FiniteCheckedLoss<'f>,
}

impl<M: Module> Module for ModelAndLoss<'_, '_, M> {}

impl<M: Module> Visit for ModelAndLoss<'_, '_, M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.model.visit(visitor);
        visitor.field(loss_part_name(self.model), self.loss);
    }
}

/// The parts of a task, with an optional batch.
struct StepParts<'a, 'f, M, O, X> {
    trainer: &'a mut GraphTrainer<'f, M, O, X>,
    loss: &'a FiniteCheckedLoss<'f>,
    batch: Option<&'a (X, Tensor)>,
}

impl<'f, M, O, X> StepParts<'_, 'f, M, O, X>
where
    M: Model<X> + 'f,
    O: Optimizer + 'f,
    X: Batch + 'static,
{
    fn modules(&self) -> ModelAndLoss<'_, 'f, M> {
        ModelAndLoss { model: self.trainer.model(), loss: self.loss }
    }

    fn batch(&self) -> Result<&(X, Tensor)> {
        self.batch.ok_or_else(no_batch)
    }
}

/// Returns the error of a step without a batch.
fn no_batch() -> Error {
    Error::invalid("step", "no batch was read before the step")
}

impl<'f, M, O, X> SupervisedStep<'f> for StepParts<'_, 'f, M, O, X>
where
    M: Model<X> + 'f,
    O: Optimizer + 'f,
    X: Batch + 'static,
{
    fn run(&mut self) -> Result<()> {
        match self.batch {
            Some((x, y)) => self.trainer.step(x, y),
            None => self.batch().map(drop),
        }
    }

    fn loss(&self) -> Result<Tensor> {
        self.trainer.loss_tensor().cloned()
    }

    fn update_early(&mut self) -> Result<bool> {
        self.trainer.update_early()
    }

    fn is_between_updates(&self) -> bool {
        self.trainer.steps_since_update() == 0
    }

    fn evaluate(&self) -> Result<(Tensor, Tensor)> {
        let (x, y) = self.batch()?;
        let output = self.trainer.model().compute(x)?;
        let loss = self.loss.try_forward(&output, y)?;
        Ok((output, loss))
    }

    fn evaluate_captured(&mut self) -> Result<(Tensor, Tensor)> {
        let (x, y) = self.batch.ok_or_else(no_batch)?;
        let (loss, output) = self.trainer.evaluate_with_logits(x, y)?;
        Ok((output.clone(), loss.clone()))
    }

    fn supports_capture(&self) -> bool {
        self.modules().supports_capture().is_ok()
    }

    fn buffers(&self) -> Vec<Buffer> {
        self.modules().try_buffers().unwrap_or_default()
    }

    fn set_options(&mut self, options: StepOptions<'f>) {
        self.trainer.set_options(options);
    }
}

impl<'f, M, O, X> Supervised<'f, M, O, X>
where
    M: Model<X> + 'f,
    O: Optimizer + 'f,
    X: Batch + 'static,
{
    pub(super) fn new(model: M, loss: impl Loss + 'f, optimizer: O) -> Self {
        let loss = FiniteCheckedLoss::new(loss);
        let state = SupervisedState {
            settings: StepSettings::default(),
            is_decided: false,
            eager_reason: None,
            evaluates_eagerly: false,
            averages: None,
            holds_averages: false,
            before_step: StepSnapshot::default(),
        };
        let trainer = GraphTrainer::new(model, loss.clone(), optimizer);
        Supervised { trainer, loss, state }
    }

    /// Changes the settings and drops earlier recordings.
    pub(super) fn with_settings(mut self, change: &mut dyn FnMut(&mut StepSettings<'f>)) -> Self {
        change(&mut self.state.settings);
        // The scaler detects non-finite gradients and skips their updates.
        self.loss.set_checked(self.state.settings.options.scaler.is_none());
        let trainer = self.trainer.with_options(self.state.settings.step_options());
        Supervised { trainer, ..self }
    }

    /// Enables the averaging of the weights.
    pub(super) fn set_average(&mut self, average: Average) -> Result<()> {
        self.state.averages = Some(AveragedModel::try_new(&self.modules(), average)?);
        Ok(())
    }

    fn modules(&self) -> ModelAndLoss<'_, 'f, M> {
        ModelAndLoss { model: self.trainer.model(), loss: &self.loss }
    }

    /// Returns the model.
    pub fn model(&self) -> &M {
        self.trainer.model()
    }

    /// Returns the model, and drops the rest of the task.
    pub fn into_model(self) -> M {
        self.trainer.into_model()
    }

    /// Returns the optimizer.
    pub fn optimizer(&self) -> &O {
        self.trainer.optimizer()
    }

    /// Copies the averaged weights into model and loss, if averaging is enabled.
    pub(super) fn use_averages(&mut self) -> Result<()> {
        self.state.apply_averages()?;
        let averages = self.modules().try_state_dict();
        self.state.restore_weights()?;
        self.load_weights(&averages?)
    }

    /// Copies weights of model and loss, as [`weights`](TrainingTask::weights) returns them.
    pub(super) fn load_weights(&self, weights: &StateDict) -> Result<()> {
        self.modules().load_state_dict(weights)
    }

    /// Returns the averaged weights, if [averaging](super::Trainer::ema) is enabled.
    pub fn averages(&self) -> Option<&AveragedModel> {
        self.state.averages.as_ref()
    }

    /// Returns the outputs of the model for the inputs `x`, in evaluation mode.
    ///
    /// # Errors
    /// The errors of the model.
    pub fn predict(&self, x: &X) -> Result<Tensor> {
        let (_off, _precision) = (no_grad(), self.state.settings.precision());
        with_evaluation_mode(|| self.model().compute(x))
    }

    /// Calls `f` with the state and the parts of a step.
    fn with_parts<R>(
        &mut self,
        batch: Option<&(X, Tensor)>,
        f: impl FnOnce(&mut SupervisedState<'f>, &mut dyn SupervisedStep<'f>) -> R,
    ) -> R {
        f(&mut self.state, &mut StepParts { trainer: &mut self.trainer, loss: &self.loss, batch })
    }
}

impl<M, O, X> fmt::Debug for Supervised<'_, M, O, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervised").field("trainer", &self.trainer).finish_non_exhaustive()
    }
}

impl<'f, M, O, X> TrainingTask for Supervised<'f, M, O, X>
where
    M: Model<X> + 'f,
    O: Optimizer + 'f,
    X: Batch + 'static,
{
    type Batch = (X, Tensor);

    fn train_step(&mut self, batch: &(X, Tensor)) -> Result<NamedScalars> {
        self.with_parts(Some(batch), |state, step| state.train_step(step))
    }

    fn train_predictions(&self, (_, y): &(X, Tensor)) -> Result<Option<(Tensor, Tensor)>> {
        Ok(Some((self.trainer.logits()?.clone(), y.clone())))
    }

    fn begin_fit(&mut self) -> Result<()> {
        // If only some modules are in evaluation mode, such as frozen normalizations, they remain in it.
        if self.model().is_eval() {
            self.model().train();
        }
        Ok(())
    }

    fn end_epoch(&mut self) -> Result<()> {
        self.with_parts(None, |state, step| state.end_epoch(step))
    }

    fn is_between_updates(&self) -> bool {
        self.trainer.steps_since_update() == 0
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("accumulate", self.state.settings.options.accumulate.to_string())]
    }

    fn skipped_updates(&self) -> Result<Option<usize>> {
        self.state.skipped_updates()
    }

    fn prepare_load(&mut self) -> Result<()> {
        self.trainer.fill_optimizer().map(drop)
    }

    fn loss_names(&self) -> Option<&[&'static str]> {
        Some(&[LOSS])
    }

    fn evaluate_step(&mut self, batch: &(X, Tensor)) -> Result<BatchScores> {
        self.with_parts(Some(batch), |state, step| state.evaluate(step, &batch.1))
    }

    fn batch_size(&self, (_, y): &(X, Tensor)) -> usize {
        y.shape().first().copied().unwrap_or(1)
    }

    fn batch_weight(&self, (_, y): &(X, Tensor)) -> Result<BatchWeight> {
        self.loss.batch_weight(y)
    }

    fn checkpoint(&self) -> Checkpoint<'_> {
        let optimizer: &dyn Optimizer = self.optimizer();
        self.state.add_to(Checkpoint::new().model(self.model()).named_model(LOSS, &self.loss).optimizer(optimizer))
    }

    fn weights(&self) -> Result<StateDict> {
        self.modules().try_state_dict()
    }

    fn optimizers(&self) -> Vec<(&'static str, &dyn Optimizer)> {
        vec![("optimizer", self.optimizer() as &dyn Optimizer)]
    }

    fn eager_reason(&self) -> Option<&str> {
        self.state.eager_reason.as_deref()
    }

    fn apply_averages(&mut self) -> Result<()> {
        self.state.apply_averages()
    }

    fn restore_weights(&mut self) -> Result<()> {
        self.state.restore_weights()
    }

    fn first_non_finite(&mut self, (x, y): &(X, Tensor)) -> Option<String> {
        let before = StepSnapshot::new(self.modules().try_buffers().ok()?).ok()?;
        let model = self.trainer.model();
        let search = NonFiniteSearch {
            inputs: x.named(),
            targets: y.clone(),
            parameters: self.modules().try_named_parameters().ok()?,
            modules: model.named_modules(),
            observe: &|name, observe| hook::on_call(model, name, observe).ok(),
            output: &|| {
                let _precision = self.state.settings.precision();
                model.compute(x)
            },
            loss: &|output| self.loss.unchecked().try_forward(output, y),
        };
        let found = CaughtResult::call(|| Ok(search.first()));
        found.resume_after(before.restore()).ok()?
    }
}
