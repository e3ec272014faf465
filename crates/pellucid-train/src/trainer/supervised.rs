//! [`Supervised`]: the task of a model, a loss and an optimizer.

use super::finite::{FiniteLoss, first_non_finite_output};
use super::task::{BatchScores, NamedScalars, TrainingTask};
use pellucid_nn::graph::{Batch, BeforeUpdate, GraphTrainer, Model, StepOptions};
use pellucid_nn::loss::Loss;
use pellucid_nn::optim::{
    AveragedModel, ClipGradNormOptions, GradScaler, Optimizer, clip_grad_norm_with, clip_grad_value,
};
use pellucid_nn::{Checkpoint, Parameter, StateDict, in_evaluation_mode};
use pellucid_tensor::{Autocast, DType, Error, Generator, Result, Tensor, autocast, enable_grad, no_grad, ops};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The settings of a supervised step.
#[derive(Clone, Default)]
pub(super) struct StepSettings<'f> {
    /// The half-precision dtype of the forward pass, if precision is mixed.
    pub(super) half: Option<DType>,
    pub(super) accumulate: u64,
    pub(super) scaler: Option<Arc<GradScaler>>,
    /// The largest norm of all gradients together.
    pub(super) max_norm: Option<f64>,
    /// The largest magnitude of an element of a gradient.
    pub(super) max_value: Option<f64>,
    pub(super) before_update: Option<BeforeUpdate<'f>>,
    /// Whether steps run eagerly from the beginning.
    pub(super) eager: bool,
}

impl<'f> StepSettings<'f> {
    /// Returns the options of a captured step.
    fn step_options(&self) -> StepOptions<'f> {
        let settings = self.clone();
        let changes = self.max_norm.is_some() || self.max_value.is_some() || self.before_update.is_some();
        StepOptions {
            accumulate: self.accumulate,
            scaler: self.scaler.clone(),
            before_update: changes.then(|| -> BeforeUpdate<'f> { Arc::new(move |p| settings.change_gradients(p)) }),
            ..Default::default()
        }
    }

    /// Clips the gradients, after the function of the user has changed them.
    fn change_gradients(&self, parameters: &[Parameter]) -> Result<()> {
        if let Some(f) = &self.before_update {
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

/// The task of a [`Trainer`](super::Trainer) that minimises the loss of a model on batches (inputs, targets).
///
/// Steps and evaluations are captured. If the first step cannot be captured, for example because the model reads
/// values of tensors, it and all later ones run eagerly.
pub struct Supervised<'f, M, L, O, X = Tensor> {
    captured: GraphTrainer<'f, M, FiniteLoss<Arc<L>>, O, X>,
    loss: FiniteLoss<Arc<L>>,
    pub(super) settings: StepSettings<'f>,
    /// Whether a step has run, which decides between captured and eager steps.
    is_decided: bool,
    eager_reason: Option<String>,
    /// The number of steps since the last update.
    accumulated: u64,
    averages: Option<AveragedModel>,
    /// Whether the model contains the averages.
    holds_averages: bool,
}

impl<'f, M, L, O, X> Supervised<'f, M, L, O, X>
where
    M: Model<X> + 'f,
    L: Loss + 'f,
    O: Optimizer + 'f,
    X: Batch + 'static,
{
    pub(super) fn new(model: M, loss: L, optimizer: O) -> Self {
        let loss = FiniteLoss::new(Arc::new(loss));
        let settings = StepSettings { accumulate: 1, ..Default::default() };
        Supervised {
            captured: GraphTrainer::new(model, loss.clone(), optimizer).with_options(settings.step_options()),
            loss,
            settings,
            is_decided: false,
            eager_reason: None,
            accumulated: 0,
            averages: None,
            holds_averages: false,
        }
    }

    /// Changes the settings. Earlier recordings are dropped.
    pub(super) fn with_settings(mut self, change: impl FnOnce(&mut StepSettings<'f>)) -> Self {
        change(&mut self.settings);
        // The scaler recognises losses that are not finite, and skips their updates.
        self.loss.set_checked(self.settings.scaler.is_none());
        let captured = self.captured.with_options(self.settings.step_options());
        Supervised { captured, ..self }
    }

    pub(super) fn set_averages(&mut self, averages: AveragedModel) {
        self.averages = Some(averages);
    }

    /// Returns the model.
    pub fn model(&self) -> &M {
        self.captured.model()
    }

    /// Returns the optimizer.
    pub fn optimizer(&self) -> &O {
        self.captured.optimizer()
    }

    /// Returns the averaged weights, if the trainer [averages](super::Trainer::ema) them.
    pub fn averages(&self) -> Option<&AveragedModel> {
        self.averages.as_ref()
    }

    /// Returns the outputs of the model for inputs, in evaluation mode.
    ///
    /// # Errors
    /// The errors of the model.
    pub fn predict(&self, x: &X) -> Result<Tensor> {
        let (_off, _precision) = (no_grad(), self.settings.precision());
        in_evaluation_mode(|| self.model().run(x))
    }

    /// Runs the first step captured, or eagerly if it cannot be captured.
    fn first_step(&mut self, (x, y): &(X, Tensor)) -> Result<NamedScalars> {
        if self.settings.eager {
            return self.eager_step(x, y);
        }
        // A capture that failed may have drawn random numbers.
        let generator = Generator::default();
        let states = generator.states().into_iter().map(|(device, state)| Ok((device, ops::copy(&state)?)));
        let states = states.collect::<Result<Vec<_>>>()?;
        let captured = {
            let _precision = self.settings.precision();
            // A model may read values by a method that panics. The eager step repeats a panic of another cause.
            catch_unwind(AssertUnwindSafe(|| self.captured.step(x, y)))
        };
        let reason = match captured {
            Ok(Ok(())) => return self.captured_loss(),
            Ok(Err(error)) if !self.is_of_capture(&error) => return Err(error),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic_message(&*panic).to_string(),
        };
        generator.set_states(&states)?;
        let scalars = self.eager_step(x, y)?;
        self.settings.eager = true;
        self.eager_reason = Some(reason);
        Ok(scalars)
    }

    /// Returns whether a step failed only because it was captured.
    fn is_of_capture(&self, error: &Error) -> bool {
        matches!(error.root(), Error::ReadInCapture { .. } | Error::CaptureChanged { .. })
            || self.model().supports_capture().is_err()
    }

    fn captured_loss(&self) -> Result<NamedScalars> {
        Ok(vec![("loss", self.captured.loss_tensor()?.clone())])
    }

    /// Computes loss, gradients and update operation by operation.
    fn eager_step(&mut self, x: &X, y: &Tensor) -> Result<NamedScalars> {
        let _on = enable_grad();
        let (optimizer, k) = (self.captured.optimizer(), self.settings.accumulate);
        self.fill_optimizer()?;
        if self.accumulated == 0 {
            optimizer.zero_grad();
        }
        let loss = {
            let _precision = self.settings.precision();
            self.loss.try_forward(&self.model().run(x)?, y)?
        };
        let share = if k > 1 { ops::div(&loss, k as f64)? } else { loss.clone() };
        match &self.settings.scaler {
            Some(scaler) => scaler.try_scale(&share)?.try_backward()?,
            None => share.try_backward()?,
        }
        if self.accumulated + 1 == k {
            self.eager_update()?;
        }
        Ok(vec![("loss", loss.detach())])
    }

    /// Adds the parameters of the model and the loss to an optimizer without parameters.
    fn fill_optimizer(&self) -> Result<()> {
        let optimizer = self.optimizer();
        if !optimizer.parameters().is_empty() {
            return Ok(());
        }
        let own = self.loss.trainable().into_iter().map(|(name, p)| (format!("loss.{name}"), p));
        let all = self.model().try_named_parameters()?.into_iter().chain(own);
        optimizer.fill(all.filter(|(_, p)| p.requires_grad()).collect())
    }

    /// Notes that the parameters were updated.
    fn count_update(&mut self) -> Result<()> {
        self.accumulated = 0;
        self.averages.as_ref().map_or(Ok(()), AveragedModel::update)
    }

    fn eager_update(&self) -> Result<()> {
        let (optimizer, settings) = (self.captured.optimizer(), &self.settings);
        let Some(scaler) = &settings.scaler else {
            settings.change_gradients(optimizer.parameters())?;
            return optimizer.try_step();
        };
        let _unscaled = scaler.unscale(optimizer)?;
        settings.change_gradients(optimizer.parameters())?;
        scaler.step(optimizer)?;
        scaler.update()
    }
}

impl<'f, M, L, O, X> TrainingTask for Supervised<'f, M, L, O, X>
where
    M: Model<X> + 'f,
    L: Loss + 'f,
    O: Optimizer + 'f,
    X: Batch + 'static,
{
    type Batch = (X, Tensor);

    fn train_step(&mut self, batch: &(X, Tensor)) -> Result<NamedScalars> {
        let scalars = if !self.is_decided {
            let scalars = self.first_step(batch)?;
            self.is_decided = true;
            scalars
        } else if self.settings.eager {
            self.eager_step(&batch.0, &batch.1)?
        } else {
            let _precision = self.settings.precision();
            self.captured.step(&batch.0, &batch.1)?;
            self.captured_loss()?
        };
        self.accumulated += 1;
        if self.accumulated == self.settings.accumulate {
            self.count_update()?;
        }
        Ok(scalars)
    }

    fn end_epoch(&mut self) -> Result<()> {
        if self.accumulated == 0 {
            return Ok(());
        }
        match self.settings.eager {
            true => self.eager_update()?,
            false => _ = self.captured.update_early()?,
        }
        self.count_update()
    }

    fn is_between_updates(&self) -> bool {
        self.accumulated == 0
    }

    fn skips_updates(&self) -> bool {
        self.settings.scaler.is_some()
    }

    fn prepare_load(&mut self) -> Result<()> {
        self.fill_optimizer()
    }

    fn evaluate_step(&mut self, (x, y): &(X, Tensor)) -> Result<BatchScores> {
        let (_off, _precision) = (no_grad(), self.settings.precision());
        if self.settings.eager || !self.is_decided {
            let output = in_evaluation_mode(|| self.model().run(x))?;
            let loss = in_evaluation_mode(|| self.loss.try_forward(&output, y))?;
            return Ok(BatchScores { losses: vec![("loss", loss)], predictions: Some((output, y.clone())) });
        }
        let (loss, output) = self.captured.evaluate_with_logits(x, y)?;
        let predictions = Some((output.clone(), y.clone()));
        Ok(BatchScores { losses: vec![("loss", loss.clone())], predictions })
    }

    fn batch_size(&self, (_, y): &(X, Tensor)) -> usize {
        y.shape().first().copied().unwrap_or(1)
    }

    fn checkpoint(&self) -> Checkpoint<'_> {
        let optimizer: &dyn Optimizer = self.optimizer();
        let mut checkpoint = Checkpoint::new().model(self.model()).optimizer(optimizer);
        if let Some(scaler) = &self.settings.scaler {
            checkpoint = checkpoint.scaler(scaler);
        }
        match &self.averages {
            Some(averages) => checkpoint.part("averages", averages),
            None => checkpoint,
        }
    }

    fn weights(&self) -> Result<StateDict> {
        self.model().try_state_dict()
    }

    fn optimizers(&self) -> Vec<(&'static str, &dyn Optimizer)> {
        vec![("optimizer", self.optimizer() as &dyn Optimizer)]
    }

    fn eager_reason(&self) -> Option<&str> {
        self.eager_reason.as_deref()
    }

    fn apply_averages(&mut self) -> Result<()> {
        match &mut self.averages {
            // Before the first update there are no averages.
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

    fn first_non_finite(&mut self, (x, y): &(X, Tensor)) -> Option<String> {
        first_non_finite_output(self.model(), &self.loss, x, y, || self.settings.precision())
    }
}

/// Returns the text of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without text")
}
