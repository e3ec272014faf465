//! [`Trainer`]: a training run with validation, checkpoints and early stopping.
//!
//! | file | contents |
//! | --- | --- |
//! | `task` | [`TrainingTask`]: the steps and the state of a training procedure |
//! | `supervised` | [`Supervised`]: the task of a model and a loss |
//! | `predictions` | the outputs of the model of a trainer |
//! | `loader` | [`EpochLoader`]: the loaders of batches |
//! | `core` | the settings and the state of a run |
//! | `run` | the loop over epochs and steps, which is compiled once for all tasks |
//! | `validation` | validations after and within epochs, and the choice of the best one |
//! | `bound` | type erasure of the task and the loaders |
//! | `caught` | restoration of state after an error or a panic |
//! | `files` | the files of the best and the last epoch |
//! | `find_lr` | the learning-rate finder |
//! | `event` | [`Callback`]s and their events |
//! | `schedules` | learning rates by step or epoch |
//! | `state` | the progress, which a checkpoint contains |
//! | `meter` | means of losses over an epoch |
//! | `train_metrics` | metrics of the training batches |
//! | `scores` | [`Scores`]: named values |
//! | `snapshot` | state that a failed step or a validation does not change |
//! | `finite` | detection of non-finite losses |
//! | `signals` | Ctrl-C |
//! | `report` | terminal output |

mod bound;
mod caught;
mod core;
mod event;
mod files;
mod find_lr;
mod finite;
mod loader;
mod meter;
mod predictions;
mod report;
mod run;
mod schedules;
mod scores;
mod signals;
mod snapshot;
mod state;
mod supervised;
mod task;
mod train_metrics;
mod validation;

pub use core::EarlyStopping;
pub use event::{Callback, FitControl, StopReason, TrainingEvent};
pub use find_lr::{FindLrOptions, LrCurve};
pub use loader::{EpochBatchIter, EpochLoader, IntoBatch};
pub use schedules::ScheduleUnit;
pub use scores::Scores;
pub use supervised::Supervised;
pub use task::{BatchScores, NamedScalars, TrainingTask};

use crate::log::{History, Logger};
use crate::metrics::{Goal, Metric};
use bound::BoundRun;
use caught::CaughtResult;
use core::RunCore;
use pellucid_derive::panicking_form;
use pellucid_nn::graph::{Batch, BeforeUpdate, Model};
use pellucid_nn::loss::Loss;
use pellucid_nn::optim::{Average, GradScaler, GradScalerOptions, Optimizer};
use pellucid_nn::{Parameter, Stateful};
use pellucid_tensor::{DType, Error, OptionRange, Result, unwrap};
use snapshot::RandomSnapshot;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A training run: epochs of steps and validations, with metrics, schedules, checkpoints and early stopping.
///
/// ```
/// use pellucid::data::TensorDataset;
/// use pellucid::nn::loss::CrossEntropyLoss;
/// use pellucid::prelude::*;
/// use pellucid::train::Trainer;
/// # let folder = std::env::temp_dir().join(format!("pellucid-doc-trainer-{}", std::process::id()));
///
/// // The label of a point is the side of a line on which it is.
/// manual_seed(0);
/// let x = Tensor::randn([400, 2], DType::F32);
/// let y = x.sum(1).gt(0.0).to_dtype(DType::I64);
/// let mut train = Batches::new(&[&x.narrow(0, 0, 300), &y.narrow(0, 0, 300)], 20).shuffled(0);
/// let mut validation = Batches::new(&[&x.narrow(0, 300, 100), &y.narrow(0, 300, 100)], 50);
///
/// let model = sequential![Linear::new(2, 8), Relu, Linear::new(8, 2)];
/// let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 0.02, ..Default::default() });
/// let mut trainer = Trainer::new(&model, CrossEntropyLoss::default(), optimizer).epochs(5).checkpoints(&folder);
/// let history = trainer.fit(&mut train, Some(&mut validation))?;
/// assert!(history.column("validation_loss").unwrap()[4] < 0.2);
///
/// // The directory contains the weights of the best epoch, and the state from which a run continues.
/// trainer.load_best()?;
/// let scores = trainer.evaluate(&mut validation)?;
/// assert!(scores["loss"] < 0.2);
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), Error>(())
/// ```
///
/// A trainer of a model and a loss runs captured steps. If the model cannot be captured, for example because it reads
/// values of tensors, the steps run eagerly, and a line on standard error states the reason.
///
/// # Values
/// [`fit`](Trainer::fit) returns a [`History`] with a row for each epoch, and for each validation
/// [within an epoch](Trainer::validate_every): `step`, `train_loss`, `lr` and `seconds`;
/// with validation also `validation_loss` and the metrics, for example `validation_accuracy`, and with
/// [training metrics](Trainer::train_metric) for example `train_accuracy`. Losses are means over
/// samples and do not depend on the batch size: batches are weighted by [`Loss::batch_weight`], for example by the
/// class weights of labels that are not ignored. A sum ([`Reduction::Sum`](pellucid_nn::loss::Reduction::Sum)) is
/// divided by the number of samples. The training loss of an epoch is the mean over its steps, computed before each
/// update.
///
/// # Resuming
/// With [`checkpoints`](Trainer::checkpoints), `last.safetensors` contains the state of the run after each epoch, and
/// after an interrupt. A program that is restarted with [`resume`](Trainer::resume) continues from this state,
/// bit-identical to an uninterrupted run. It must create model, loss, optimizer, loaders and trainer in the same way.
/// If the optimizer, a schedule, the number of [accumulated](Trainer::accumulate) steps, the
/// [monitored](Trainer::monitor) value, the sampler, the batch size or `drop_last` differs from the saved run, resuming
/// returns an error that names both values. Options with which a run may continue are not compared, such as the number
/// of epochs, weight decay and clipping.
///
/// # Errors of a step
/// A failed step returns [`Error::Step`] with the step, the epoch, the batch and its size. A loss that is NaN or
/// infinite stops the run before the update (with `f16`, the update is skipped, and the run stops after more than 100
/// consecutive skips); the error lists the samples of the batch and names the first non-finite tensor. On the CPU this
/// is checked in every step, on other devices when the loss is logged. If a step of a model and a loss fails,
/// parameters, running statistics and random numbers are unchanged.
#[doc(alias = "Learner")]
#[doc(alias = "fit")]
pub struct Trainer<'f, T> {
    task: T,
    run: Box<RunCore<'f>>,
}

impl<'f, M, O, X> Trainer<'f, Supervised<'f, M, O, X>>
where
    M: Model<X> + 'f,
    O: Optimizer + 'f,
    X: Batch + 'static,
{
    /// Creates a trainer from a model, a loss and an optimizer, which may be owned, borrowed, boxed or shared (`Arc`).
    /// The batches are pairs (inputs, targets). A model with several inputs implements [`Model`] for a tuple or an
    /// array of tensors:
    ///
    /// ```
    /// use pellucid::nn::{graph::Model, loss::MseLoss};
    /// use pellucid::prelude::*;
    /// use pellucid::train::Trainer;
    ///
    /// #[derive(Module)]
    /// struct Bilinear(Linear, Linear);
    ///
    /// impl Model<(Tensor, Tensor)> for Bilinear {
    ///     fn compute(&self, (a, b): &(Tensor, Tensor)) -> Result<Tensor> {
    ///         ops::mul(&self.0.try_forward(a)?, &self.1.try_forward(b)?)
    ///     }
    /// }
    ///
    /// let model = Bilinear(Linear::new(2, 1), Linear::new(3, 1));
    /// let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() });
    /// let tensors = [2, 3, 1].map(|n| Tensor::randn([16, n], DType::F32));
    /// let mut trainer = Trainer::new(model, MseLoss::default(), sgd).epochs(1).quiet(true);
    /// trainer.fit(&mut Batches::<3>::new(&tensors, 4), None)?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn new(model: M, loss: impl Loss + 'f, optimizer: O) -> Self {
        Trainer::from_task(Supervised::new(model, loss, optimizer))
    }

    fn with_settings(self, mut change: impl FnMut(&mut supervised::StepSettings<'f>)) -> Self {
        Trainer { task: self.task.with_settings(&mut change), ..self }
    }

    /// Updates the parameters once per `steps` steps, with the mean of the gradients. The last update of an epoch may
    /// use fewer steps, with the mean of their gradients.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `steps` is 0.
    #[panicking_form]
    pub fn try_accumulate(self, steps: usize) -> Result<Self> {
        OptionRange::COUNT.check("accumulate", "steps", steps as f64, 8.0)?;
        Ok(self.with_settings(|settings| settings.options.accumulate = steps))
    }

    /// Scales the gradients before each update so that their norm, over all parameters, is at most `max_norm`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `max_norm` is not above 0.
    #[panicking_form]
    pub fn try_clip_grad_norm(self, max_norm: f64) -> Result<Self> {
        OptionRange::ABOVE_ZERO.check("clip_grad_norm", "max_norm", max_norm, 1.0)?;
        Ok(self.with_settings(|settings| settings.max_norm = Some(max_norm)))
    }

    /// Clamps the elements of gradients before each update to \[−`max_value`, `max_value`\].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `max_value` is not above 0.
    #[panicking_form]
    pub fn try_clip_grad_value(self, max_value: f64) -> Result<Self> {
        OptionRange::ABOVE_ZERO.check("clip_grad_value", "max_value", max_value, 1.0)?;
        Ok(self.with_settings(|settings| settings.max_value = Some(max_value)))
    }

    /// Sets a function that changes the gradients before each update. It runs before clipping.
    pub fn before_update(self, f: impl Fn(&[Parameter]) -> Result<()> + Send + Sync + 'f) -> Self {
        let f: BeforeUpdate<'f> = Arc::new(f);
        self.with_settings(|settings| settings.options.before_update = Some(f.clone()))
    }

    /// Computes forward passes in half precision where it is safe ([`autocast`](pellucid_tensor::autocast)). With
    /// `f16`, losses are scaled by a [`GradScaler`], so that small gradients are not rounded to 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `half` is neither `bf16` nor `f16`.
    #[panicking_form]
    pub fn try_mixed_precision(self, half: DType) -> Result<Self> {
        if !matches!(half, DType::F16 | DType::BF16) {
            return Err(Error::invalid("mixed_precision", format!("`half` must be bf16 or f16, got {half}")));
        }
        let scaler = match half {
            DType::F16 => Some(Arc::new(GradScaler::try_new(GradScalerOptions::default())?)),
            _ => None,
        };
        Ok(self.with_settings(|settings| (settings.half, settings.options.scaler) = (Some(half), scaler.clone())))
    }

    /// Sets whether model and loss may have parameters that require a gradient but that the optimizer does not update.
    /// The default is false: the first step returns [`Error::UntrainedParameters`] for such parameters.
    pub fn allow_untrained_parameters(self, allow: bool) -> Self {
        self.with_settings(|settings| settings.options.allow_untrained_parameters = allow)
    }

    /// Sets whether all steps run eagerly, operation by operation, for example to debug a model; default false.
    pub fn eager(self, eager: bool) -> Self {
        self.with_settings(|settings| settings.options.eager = eager)
    }

    /// Computes an exponential moving average of the weights of model and loss with this decay. The validations of
    /// [`fit`](Trainer::fit) use the averages, and `best.safetensors` contains them. The model keeps the trained
    /// weights, which [`evaluate`](Trainer::evaluate) and [`predict`](Trainer::predict) use. Running statistics of
    /// normalizations are not averaged.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a decay outside [0, 1]; an error for a model whose parameters do not exist yet.
    #[panicking_form]
    pub fn try_ema(mut self, decay: f64) -> Result<Self> {
        self.task.set_average(Average::Exponential(decay))?;
        Ok(self)
    }

    /// Copies the [averages](Trainer::ema) of the weights into model and loss. Does nothing without averages or before
    /// the first step.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before the `fit` that [resumes](Trainer::resume) a run;
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    pub fn use_averages(&mut self) -> Result<()> {
        self.run.files.check_loaded("use_averages")?;
        self.task.use_averages()
    }

    /// Copies the weights of the best epoch from `best.safetensors` into model and loss. A program without a trainer
    /// loads the file into the model with [`load_state_dict`](pellucid_nn::Module::load_state_dict). If the loss has
    /// parameters, it first removes them with [`rename_keys`](pellucid_nn::rename_keys): `rename_keys(&best, |name|
    /// (!name.starts_with("loss.")).then(|| name.into()))`. If the model itself has a part `loss`, the names of the
    /// weights of the loss begin with `loss_1.` instead.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without [`checkpoints`](Trainer::checkpoints); [`Error::File`] for a file that does
    /// not exist or cannot be read; [`Error::StateDict`] for weights of another model. On error nothing is changed.
    pub fn load_best(&mut self) -> Result<()> {
        let Some(path) = self.run.files.best() else {
            return Err(Error::invalid("load_best", "the run writes no files; set their directory with checkpoints()"));
        };
        self.task.load_weights(&pellucid_io::load(path)?)
    }

    /// Returns the model.
    pub fn model(&self) -> &M {
        self.task.model()
    }

    /// Returns the model that was passed to [`new`](Trainer::new), and drops the trainer.
    pub fn into_model(self) -> M {
        self.task.into_model()
    }

    /// Returns the optimizer.
    pub fn optimizer(&self) -> &O {
        self.task.optimizer()
    }
}

impl<'f, T: TrainingTask> Trainer<'f, T> {
    /// Creates a trainer from a custom [task](TrainingTask).
    pub fn from_task(task: T) -> Self {
        Trainer { task, run: RunCore::boxed() }
    }

    /// Sets the number of epochs. The default is 1, or no limit if [`steps`](Trainer::steps) is set.
    pub fn epochs(mut self, epochs: usize) -> Self {
        self.run.epochs = Some(epochs);
        self
    }

    /// Sets the maximum number of steps. The run may end within an epoch, with a validation. A run with more steps then
    /// continues the epoch, and equals an uninterrupted run.
    ///
    /// The validation at the end of such a run does not determine the best epoch, unless
    /// [`validate_every`](Trainer::validate_every) also requires a validation at this step: `best.safetensors` is not
    /// written, and `last.safetensors` contains the weights. With [`accumulate`](Trainer::accumulate), the run ends at
    /// the first update at or after this number of steps.
    pub fn steps(mut self, steps: usize) -> Self {
        self.run.max_steps = Some(steps);
        self
    }

    /// Adds a metric, which is computed in every validation and [evaluation](Trainer::evaluate):
    ///
    /// ```
    /// use pellucid::prelude::*;
    /// use pellucid::train::metrics::Accuracy;
    ///
    /// let x = Tensor::randn([64, 2], DType::F32);
    /// let mut batches = Batches::new(&[&x, &x.sum(1).gt(0.0).to_dtype(DType::I64)], 16);
    /// let model = Linear::new(2, 2);
    /// let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 1.0, ..Default::default() });
    /// let mut trainer = Trainer::new(model, CrossEntropyLoss::default(), sgd).epochs(20).quiet(true);
    /// trainer = trainer.metric(Accuracy::new());
    /// trainer.fit(&mut batches.clone(), Some(&mut batches))?;
    /// assert!(trainer.history().last("validation_accuracy").unwrap() > 0.9);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn metric(mut self, metric: impl Metric + 'f) -> Self {
        self.run.metrics.push(Box::new(metric));
        self
    }

    /// Adds a training metric, such as `train_accuracy`, which is computed over the batches of an epoch from the
    /// outputs of the training steps. The model is in training mode and changes from step to step, so the metric is
    /// often worse than a [`metric`](Trainer::metric) of the trained model.
    ///
    /// A captured step remains captured, because it returns its outputs. Each step waits for the device and copies the
    /// outputs to the host; a run without training metrics does not. With [`checkpoints`](Trainer::checkpoints), the
    /// files contain the values of an incomplete epoch. A [custom metric](Metric) must then define
    /// [`state`](Metric::state), and a [custom task](TrainingTask) must always define
    /// [`train_predictions`](TrainingTask::train_predictions).
    ///
    /// ```
    /// use pellucid::prelude::*;
    /// use pellucid::train::metrics::Accuracy;
    ///
    /// let x = Tensor::randn([64, 2], DType::F32);
    /// let mut batches = Batches::new(&[&x, &x.sum(1).gt(0.0).to_dtype(DType::I64)], 16);
    /// let model = Linear::new(2, 2);
    /// let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 1.0, ..Default::default() });
    /// let mut trainer = Trainer::new(model, CrossEntropyLoss::default(), sgd).epochs(20).quiet(true);
    /// trainer = trainer.train_metric(Accuracy::new());
    /// trainer.fit(&mut batches, None)?;
    /// assert!(trainer.history().last("train_accuracy").unwrap() > 0.9);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn train_metric(mut self, metric: impl Metric + 'f) -> Self {
        self.run.train_metrics.push(metric);
        self
    }

    /// Adds a callback, which observes the run and may end it. For a closure, use [`on_event`](Trainer::on_event).
    pub fn callback(mut self, callback: impl Callback + 'f) -> Self {
        self.run.callbacks.push(Box::new(callback));
        self
    }

    /// Adds a closure as a [callback](Trainer::callback). The types of its arguments are inferred.
    pub fn on_event(self, f: impl FnMut(&TrainingEvent<'_>, &mut FitControl) -> Result<()> + Send + 'f) -> Self {
        self.callback(f)
    }

    /// Adds a logger, which receives losses and learning rates of steps as `loss` and `lr`, and the values of epochs,
    /// such as `train_loss` and `validation_loss`.
    pub fn logger(mut self, logger: impl Logger + 'f) -> Self {
        self.run.loggers.push(Box::new(logger));
        self
    }

    /// Adds a logger that `open` creates when the run begins. Its argument is the number of earlier steps, so that a
    /// resumed log can drop the records of later steps:
    ///
    /// ```
    /// # let folder = std::env::temp_dir().join(format!("pellucid-doc-logger-{}", std::process::id()));
    /// use pellucid::nn::loss::MseLoss;
    /// use pellucid::prelude::*;
    /// use pellucid::train::CsvLogger;
    ///
    /// let (x, y) = (Tensor::randn([32, 3], DType::F32), Tensor::zeros([32, 1], DType::F32));
    /// let model = Linear::new(3, 1);
    /// let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() });
    /// let mut trainer = Trainer::new(model, MseLoss::default(), sgd).epochs(2).quiet(true);
    /// trainer = trainer.checkpoints(&folder).resume_if_exists(&folder).log_every(1);
    /// let file = folder.join("log.csv");
    /// trainer = trainer.logger_from(move |step| CsvLogger::resume(file, step));
    /// trainer.fit(&mut Batches::new(&[&x, &y], 8), None)?;
    /// assert!(std::fs::read_to_string(folder.join("log.csv")).unwrap().starts_with("step,loss,lr,train_loss"));
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// # Ok::<(), Error>(())
    /// ```
    pub fn logger_from<G: Logger + 'f>(mut self, open: impl FnOnce(usize) -> Result<G> + Send + 'f) -> Self {
        self.run.opened_loggers.push(Box::new(|step| Ok(Box::new(open(step)?))));
        self
    }

    /// Sets the number of steps between two logged losses. Default: 50.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `steps` is 0.
    #[panicking_form]
    pub fn try_log_every(mut self, steps: usize) -> Result<Self> {
        OptionRange::COUNT.check("log_every", "steps", steps as f64, 100.0)?;
        self.run.log_every = steps;
        Ok(self)
    }

    /// Sets the value that determines the best epoch, and its direction. By default, `validation_loss` is minimized, or
    /// `train_loss` without validation; for a [custom task](TrainingTask) its first loss, for example
    /// `validation_negative_elbo`.
    pub fn monitor(mut self, name: &str, goal: Goal) -> Self {
        self.run.monitor = Some((name.to_string(), goal));
        self
    }

    /// Ends the run when the [monitored](Trainer::monitor) value no longer improves.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a patience of 0, and for a `min_delta` that is negative or not finite.
    #[panicking_form]
    pub fn try_early_stopping(mut self, options: EarlyStopping) -> Result<Self> {
        let EarlyStopping { patience, min_delta } = options;
        OptionRange::COUNT.check("early_stopping", "patience", patience as f64, 3.0)?;
        OptionRange::NONNEGATIVE.check("early_stopping", "min_delta", min_delta, 0.0)?;
        self.run.early_stopping = Some(options);
        Ok(self)
    }

    /// Writes checkpoint files into a directory, which is created if necessary. `last.safetensors` contains the state
    /// of the run after each epoch. `best.safetensors` contains the weights of the best complete epoch, or of the best
    /// [validation within an epoch](Trainer::validate_every). The names of the weights of the loss begin with `loss.`,
    /// or with `loss_1.` if the model itself has a part `loss`. Each file is replaced atomically: after a kill at any
    /// moment, the old or the new file exists.
    pub fn checkpoints(mut self, folder: impl AsRef<Path>) -> Self {
        self.run.files.folder = Some(folder.as_ref().to_path_buf());
        self
    }

    /// Also writes `last.safetensors` every `steps` steps.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `steps` is 0.
    #[panicking_form]
    pub fn try_checkpoint_every(mut self, steps: usize) -> Result<Self> {
        OptionRange::COUNT.check("checkpoint_every", "steps", steps as f64, 1000.0)?;
        self.run.files.every = Some(steps);
        Ok(self)
    }

    /// Resumes a run from its file `last.safetensors`, or from the directory that contains this file.
    /// [`fit`](Trainer::fit) loads the file, and returns an error if it is missing or does not match.
    pub fn resume(mut self, path: impl AsRef<Path>) -> Self {
        self.run.files.resume = Some((path.as_ref().to_path_buf(), true));
        self
    }

    /// Resumes a run as [`resume`](Trainer::resume) does, or begins a new run if the file does not exist. A program
    /// that calls this method may be killed and restarted at any time.
    pub fn resume_if_exists(mut self, path: impl AsRef<Path>) -> Self {
        self.run.files.resume = Some((path.as_ref().to_path_buf(), false));
        self
    }

    /// Adds a part to the state of the run in `last.safetensors`, such as an input scaler. Reserved names are the parts
    /// of the task (`model`, `loss`, `optimizer`; `scaler` and `averages` if they are enabled), `batches`,
    /// `validation_batches`, `run`, `train_metrics`, `history`, `schedule_0` and so on; with
    /// [`checkpoints`](Trainer::checkpoints), [`fit`](Trainer::fit) returns an error for them.
    pub fn part(mut self, name: &str, part: impl Stateful + Send + 'f) -> Self {
        self.run.parts.push((name.to_string(), Box::new(part)));
        self
    }

    /// Sets whether the run writes nothing to standard error; default false.
    pub fn quiet(mut self, quiet: bool) -> Self {
        self.run.is_quiet = quiet;
        self
    }

    /// Trains for all epochs, and validates after each epoch and [within epochs](Trainer::validate_every). Returns the
    /// values of the epochs and validations.
    ///
    /// A second call continues the run: after [`epochs`](Trainer::epochs) with a larger number, it trains the remaining
    /// epochs.
    ///
    /// With the feature `signals`, Ctrl-C and a termination signal end the run after the current step: its state is
    /// saved, and `fit` returns with the [reason](Trainer::stop_reason) `Interrupted`. A second signal ends the process
    /// immediately.
    ///
    /// # Errors
    /// [`Error::Step`] for a failed batch or step; [`Error::Evaluation`] for a failed validation, after which the state
    /// is saved, so that the run resumes with this validation; [`Error::File`] for files that cannot be read or
    /// written, and for a directory that another run uses; [`Error::Checkpoint`] for a resumed state that does not
    /// match, and for a [part](Trainer::part) with a reserved name; [`Error::InvalidArgument`] for options out of
    /// range, for [`validate_every`](Trainer::validate_every) without validation batches, for a metric with the name of
    /// a loss, and for a monitored value that does not exist (the error lists the names of all values). Names are
    /// checked before the first step if the task knows its [losses](TrainingTask::loss_names). The errors of callbacks
    /// and loggers.
    pub fn fit(
        &mut self,
        train: &mut dyn EpochLoader<T::Batch>,
        validation: Option<&mut dyn EpochLoader<T::Batch>>,
    ) -> Result<History> {
        self.run.fit(&mut BoundRun::new(&mut self.task, train, validation))
    }

    /// Returns the mean losses and the metrics of the batches in evaluation mode, for example `loss` and `accuracy`.
    /// The evaluation uses the weights of the model. After a run with [`ema`](Trainer::ema), the model contains the
    /// averages only if [`use_averages`](Trainer::use_averages) has copied them. The call reads an entire epoch of the
    /// loader, which then returns to its earlier position. If the model draws random numbers in evaluation mode, as a
    /// VAE does, the random state is restored, so an evaluation between two calls of `fit` does not change the run.
    ///
    /// # Errors
    /// [`Error::Evaluation`] for a failed batch or metric; [`Error::InvalidArgument`] for two metrics with the same
    /// name, for a metric with the name of a loss, and before the `fit` that [resumes](Trainer::resume) a run.
    pub fn evaluate(&mut self, batches: &mut dyn EpochLoader<T::Batch>) -> Result<Scores> {
        self.run.files.check_loaded("evaluate")?;
        let _random = self.run.enter_random();
        let random = RandomSnapshot::new()?;
        let mut parts = BoundRun::evaluation(&mut self.task, batches);
        let scores = CaughtResult::call(|| self.run.evaluate(&mut parts, None));
        // The result is `None` only after a signal, and this evaluation does not watch for signals.
        Ok(scores.resume_after(random.restore())?.unwrap_or_default())
    }

    /// Returns the task.
    pub fn task(&self) -> &T {
        &self.task
    }

    /// Returns the values of the epochs and validations so far.
    pub fn history(&self) -> &History {
        &self.run.history
    }

    /// Returns the reason why the last run ended; `None` before a run and after an error.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.run.stop_reason
    }

    /// Returns the number of completed steps.
    pub fn step(&self) -> usize {
        self.run.step()
    }

    /// Returns the number of completed epochs.
    pub fn epoch(&self) -> usize {
        self.run.epoch()
    }
}

impl<T> fmt::Debug for Trainer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (epoch, step) = (self.run.epoch(), self.run.step());
        f.debug_struct("Trainer").field("epoch", &epoch).field("step", &step).finish_non_exhaustive()
    }
}
