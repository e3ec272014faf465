//! The loop of a run over epochs and steps.

use super::bound::RunParts;
use super::caught::CaughtResult;
use super::core::{RunCore, STEP};
use super::event::{FitControl, StopReason, TrainingEvent};
use super::finite::is_non_finite_loss;
use super::meter::LossMeter;
use super::report::RunReport;
use super::schedules::{RunSchedule, ScheduleUnit, check_schedules};
use super::scores::Scores;
use super::signals::TerminationSignals;
use super::snapshot::RandomSnapshot;
use super::state::RunSettings;
use super::train_metrics::check_names;
use super::validation::{Improvement, ValidationContext, push_rates, store_rates, with_averages};
use crate::log::{History, Logger};
use pellucid_data::BatchPosition;
use pellucid_nn::{Checkpoint, StateDict};
use pellucid_tensor::{Error, Result};
use std::time::Instant;

/// The reason why the steps of an epoch have ended.
enum StepsEnd {
    /// All batches were used. The value is the reason of a stop that was requested before the last update was complete.
    Exhausted(Option<StopReason>),
    /// The run was stopped within the epoch, and its state is saved.
    Stopped(StopReason),
    /// The run has reached its maximum number of steps.
    Limit,
}

/// The reason why a run cannot continue after a step.
enum StepFailure {
    /// The loss is not finite.
    Loss,
    /// The loss is finite, and the gradients are not.
    Gradients(Error),
}

/// The maximum number of consecutive non-finite losses or skipped updates in a run with a gradient scaler. One more
/// ends the run.
const MAX_SKIPPED: usize = 100;

/// The maximum number of samples that an error lists.
const LISTED_SAMPLES: usize = 64;

impl RunCore<'_> {
    pub(super) fn step(&self) -> usize {
        self.state.progress.borrow().step
    }

    pub(super) fn epoch(&self) -> usize {
        self.state.progress.borrow().epoch
    }

    pub(super) fn fit(&mut self, parts: &mut dyn RunParts) -> Result<History> {
        (self.stop_reason, self.is_stop_requested) = (None, false);
        let _random = self.enter_random();
        self.check_settings(parts)?;
        let _lock = self.files.open_directory()?;
        let signals = TerminationSignals::watch()?;
        let ended = CaughtResult::call(|| self.run_epochs(parts, &signals));
        let reason = ended.resume_after(self.loggers.flush())?;
        self.stop_reason = Some(reason);
        Ok(self.history.clone())
    }

    /// Begins the run, and trains until it ends.
    fn run_epochs(&mut self, parts: &mut dyn RunParts, signals: &TerminationSignals) -> Result<StopReason> {
        let mut report = RunReport::new(self.is_quiet);
        self.begin(parts, &report)?;
        let reason = loop {
            if self.is_complete() {
                break StopReason::Completed;
            }
            if self.is_stop_requested {
                break StopReason::Requested;
            }
            // The run that is resumed may already have stopped early.
            if self.is_stuck() {
                break StopReason::NotImproving;
            }
            if let Some(reason) = self.run_epoch(parts, signals, &mut report)? {
                break reason;
            }
        };
        self.emit(TrainingEvent::FitEnded { reason })?;
        Ok(reason)
    }

    /// Sets the initial learning rates, loads the state of a resumed run, and opens the loggers.
    fn begin(&mut self, parts: &mut dyn RunParts, report: &RunReport) -> Result<()> {
        let optimizers = parts.optimizers();
        let (_, goal) = self.monitored(parts.is_validated());
        self.schedules.iter_mut().try_for_each(|schedule| schedule.begin(goal, &optimizers))?;
        self.state.settings = self.settings(parts);
        if let Some(directory) = self.files.replaced_directory() {
            report.line(format_args!("replaces the files of an earlier run in {}", directory.display()));
        }
        if let Some(path) = self.files.resumed_file() {
            parts.prepare_load()?;
            let names = self.schedule_names();
            let checkpoint = self.full_checkpoint(parts.checkpoint(), &names);
            pellucid_io::load_checkpoint(&path, checkpoint).map_err(resume_error)?;
            self.files.copy_best(&path)?;
            self.train_metrics.apply_loaded()?;
            let (epoch, step) = (self.epoch(), self.step());
            report.line(format_args!("resumed {} after epoch {epoch}, step {step}", path.display()));
        }
        self.files.resume = None;
        parts.begin_fit()?;
        if self.state.progress.borrow().has_partial_row && !self.is_complete() {
            self.history.remove_last();
            self.state.progress.borrow_mut().has_partial_row = false;
        }
        store_rates(parts, true)?;
        let step = self.step();
        for open in self.opened_loggers.drain(..) {
            self.loggers.push(open(step)?);
        }
        self.emit(TrainingEvent::FitBegan { step })
    }

    fn is_complete(&self) -> bool {
        let progress = self.state.progress.borrow();
        let epochs = self.epochs.or(if self.max_steps.is_some() { None } else { Some(1) });
        epochs.is_some_and(|epochs| progress.epoch >= epochs)
            || self.max_steps.is_some_and(|steps| progress.step >= steps) && progress.is_validated()
    }

    /// Returns true if early stopping ends the run.
    pub(super) fn is_stuck(&self) -> bool {
        let count = self.state.progress.borrow().validations_without_improvement;
        self.early_stopping.is_some_and(|options| count >= options.patience)
    }

    /// Runs an epoch, or the rest of an epoch. Returns the reason if the run ends.
    fn run_epoch(
        &mut self,
        parts: &mut dyn RunParts,
        signals: &TerminationSignals,
        report: &mut RunReport,
    ) -> Result<Option<StopReason>> {
        let context = ValidationContext { start: Instant::now(), signals };
        let epoch = self.epoch() + 1;
        let _span = tracing::info_span!("epoch", epoch).entered();
        // A resumed epoch does not emit the event again: a callback that changes the run would change it twice.
        if parts.position().batch == 0 {
            self.emit(TrainingEvent::EpochBegan { epoch })?;
            store_rates(parts, true)?;
        }
        let mut meter = LossMeter::new(parts.skipped_updates()?.is_some());
        parts.begin_batches()?;
        report.begin_epoch(epoch, parts.batch_count(), parts.position().batch);
        let mut at_end = None;
        let end = CaughtResult::call(|| self.run_steps(parts, context, report, &mut meter, &mut at_end));
        report.end_steps();
        if end.value().is_none() {
            let _ = meter.read(&mut self.state.progress.borrow_mut());
        }
        // After a stop or an error, another call of `fit` continues after the last batch, even if that batch failed.
        let paused = match end.value() {
            Some(StepsEnd::Exhausted(_)) => Ok(()),
            _ => parts.pause_batches(),
        };
        let stopped = match end.resume_after(paused)? {
            StepsEnd::Stopped(reason) => return Ok(Some(self.report_stop(reason, report))),
            StepsEnd::Limit => {
                self.save_last(parts)?;
                return self.end_partial_epoch(parts, context, report).map(Some);
            }
            StepsEnd::Exhausted(stopped) => stopped,
        };
        // A loader of known length remains in the epoch after its last batch, so its state can be read now.
        let at_end = match at_end {
            Some(state) => state,
            None => parts.batches_state()?,
        };
        parts.end_batches();
        let mut random = None;
        let validated = CaughtResult::call(|| {
            parts.end_epoch()?;
            random = Some(RandomSnapshot::new()?);
            match stopped {
                None => self.validate_epoch(parts, context),
                Some(_) => Ok(None),
            }
        });
        // The steps of the epoch are not lost: the next call of `fit`, or a resumed run, begins with the validation.
        let restored = match validated.value() {
            Some(Some(_)) => Ok(()),
            _ => parts.load_batches_state(&at_end).and(random.as_ref().map_or(Ok(()), RandomSnapshot::restore)),
        };
        match validated.resume_after(restored) {
            Ok(Some((scores, improvement))) => {
                let stopped = self.end_epoch(parts, &scores, improvement)?;
                report.end_epoch(epoch, self.epochs, &scores);
                if stopped == Some(StopReason::NotImproving) {
                    self.report_stagnation(&scores, parts.is_validated(), report);
                }
                Ok(stopped)
            }
            Ok(None) => {
                self.save_last(parts)?;
                Ok(Some(self.report_stop(stopped.unwrap_or(StopReason::Interrupted), report)))
            }
            Err(error) => {
                // If the last update failed, its gradients are lost, so the state is not saved: a run that resumes from
                // an earlier file repeats the steps.
                if random.is_some() {
                    // The error of the validation is returned, even if this save fails too.
                    let _ = self.save_last(parts);
                }
                Err(error)
            }
        }
    }

    pub(super) fn report_stop(&self, reason: StopReason, report: &RunReport) -> StopReason {
        let verb = if reason == StopReason::Interrupted { "interrupted" } else { "stopped" };
        report.line(format_args!("{verb} after step {}", self.step()));
        reason
    }

    /// Trains on the batches of an epoch until the epoch or the run ends. Sets `at_end` to the state of a loader of
    /// unknown length after its last batch.
    fn run_steps(
        &mut self,
        parts: &mut dyn RunParts,
        context: ValidationContext<'_>,
        report: &RunReport,
        meter: &mut LossMeter,
        at_end: &mut Option<[StateDict; 2]>,
    ) -> Result<StepsEnd> {
        let mut position = parts.position();
        let (mut ends, count) = (None, parts.batch_count());
        // An earlier call may have ended before the validation of its last step.
        if position.batch > 0
            && let Some(reason) = self.end_step(parts, context, report, meter, None)?
        {
            return Ok(StepsEnd::Stopped(reason));
        }
        // An earlier run may have reached the maximum number of steps with its last step.
        let is_over = |step: usize| self.max_steps.is_some_and(|steps| step >= steps);
        if position.batch > 0 && count != Some(position.batch) && is_over(self.step()) && parts.is_between_updates() {
            return Ok(StepsEnd::Limit);
        }
        while count != Some(position.batch) {
            if count.is_none() {
                *at_end = Some(parts.batches_state()?);
            }
            let Some(samples) = parts.next_batch() else { break };
            let samples = samples.map_err(|error| self.step_error(self.step() + 1, position, 0, error))?;
            let was_captured = parts.eager_reason().is_none();
            self.run_step(samples, position, parts, meter, report)?;
            if was_captured && let Some(reason) = parts.eager_reason() {
                report.line(format_args!("the steps run eagerly, since they cannot be captured: {reason}"));
            }
            position = parts.position();
            if context.signals.arrived() {
                ends = Some(StopReason::Interrupted);
            } else if self.is_stop_requested {
                ends = Some(StopReason::Requested);
            }
            let step = self.step();
            // With gradient accumulation, a file that is due is written after the next update.
            self.is_save_due |= self.files.every.is_some_and(|every| step.is_multiple_of(every));
            if let Some(reason) = self.end_step(parts, context, report, meter, ends)? {
                return Ok(StepsEnd::Stopped(reason));
            }
            // With gradient accumulation, the run ends at an update. An earlier update with fewer steps would make a
            // run with more steps differ from an uninterrupted run.
            if self.max_steps.is_some_and(|steps| step >= steps) && parts.is_between_updates() {
                let is_last_batch = parts.batch_count() == Some(position.batch);
                self.check_sums(meter, position, parts)?;
                return Ok(if is_last_batch { StepsEnd::Exhausted(None) } else { StepsEnd::Limit });
            }
        }
        self.check_sums(meter, position, parts)?;
        Ok(StepsEnd::Exhausted(ends))
    }

    /// Validates if a validation is due, and saves the state if a save is due, unless gradients are being accumulated.
    /// `ends` is the reason if the run ends after this step. Returns the reason if the state is saved and the run ends.
    fn end_step(
        &mut self,
        parts: &mut dyn RunParts,
        context: ValidationContext<'_>,
        report: &RunReport,
        meter: &mut LossMeter,
        mut ends: Option<StopReason>,
    ) -> Result<Option<StopReason>> {
        if !parts.is_between_updates() {
            return Ok(None);
        }
        let position = parts.position();
        // The validation of the epoch follows its last batch.
        let is_last_batch = parts.batch_count() == Some(position.batch);
        if ends.is_none() && !is_last_batch && self.is_validation_due() {
            self.check_sums(meter, position, parts)?;
            ends = self.validate_within_epoch(parts, context, report)?;
            self.is_save_due = true;
        }
        if ends.is_none() && !self.is_save_due {
            return Ok(None);
        }
        meter.read(&mut self.state.progress.borrow_mut())?;
        self.is_save_due = false;
        self.save_last(parts)?;
        // A callback may have requested the end of the run in the `Saved` event.
        Ok(ends.or(self.is_stop_requested.then_some(StopReason::Requested)))
    }

    /// Trains on a batch, advances the schedules, and logs the step.
    fn run_step(
        &mut self,
        samples: usize,
        position: BatchPosition,
        parts: &mut dyn RunParts,
        meter: &mut LossMeter,
        report: &RunReport,
    ) -> Result<()> {
        let step = self.step() + 1;
        let scalars = match parts.train_step() {
            Ok(scalars) => scalars,
            Err(error) if is_non_finite_loss(&error) => return Err(self.not_finite(step, samples, position, parts)),
            Err(error) => return Err(self.step_error(step, position, samples, error)),
        };
        self.state.progress.borrow_mut().step = step;
        let is_logged = step.is_multiple_of(self.log_every);
        let mut rates = Scores::default();
        if is_logged && !self.loggers.is_empty() {
            push_rates(parts, &mut rates);
        }
        // The schedules advance with the number of steps, even if a logger or a callback fails.
        self.schedules.iter_mut().try_for_each(|schedule| schedule.advance(ScheduleUnit::Step))?;
        let step_error = |run: &Self, error| run.step_error(step, position, samples, error);
        if self.state.progress.borrow().sums.is_empty() {
            self.train_metrics.check_losses(&scalars).map_err(|error| step_error(self, error))?;
        }
        let weight = parts.batch_weight()?;
        let values = meter.add(&mut self.state.progress.borrow_mut(), &scalars, (&weight, samples), is_logged)?;
        let values = values.to_vec();
        if let Some((_, loss)) = values.first()
            && let Some(reason) = self.failure(*loss, parts)?
        {
            return Err(match reason {
                StepFailure::Loss => self.not_finite(step, samples, position, parts),
                StepFailure::Gradients(error) => step_error(self, error),
            });
        }
        if !self.train_metrics.is_empty() && meter.is_counted(&scalars)? {
            self.add_train_predictions(parts).map_err(|error| step_error(self, error))?;
        }
        report.step(&values, &self.train_metrics);
        if is_logged {
            self.log_step(step, &values, &rates)?;
        }
        self.emit(TrainingEvent::StepEnded { step, scalars: &values })?;
        if !self.callbacks.is_empty() {
            store_rates(parts, false)?;
        }
        Ok(())
    }

    /// Updates the number of consecutive non-finite losses, and returns the reason if the run cannot continue.
    fn failure(&mut self, loss: f64, parts: &dyn RunParts) -> Result<Option<StepFailure>> {
        let losses = {
            let progress = &mut *self.state.progress.borrow_mut();
            progress.skipped = if loss.is_finite() { 0 } else { progress.skipped + 1 };
            progress.skipped
        };
        Ok(match parts.skipped_updates()? {
            None => (losses > 0).then_some(StepFailure::Loss),
            Some(updates) if losses.max(updates) <= MAX_SKIPPED => None,
            Some(_) if losses > 0 => Some(StepFailure::Loss),
            Some(updates) => {
                let reason = format!(
                    "the last {updates} updates were skipped, because gradients are not finite although the loss is \
                     finite; check functions without a finite derivative, such as the square root at 0, or train in \
                     f32 or bf16"
                );
                Some(StepFailure::Gradients(Error::invalid("fit", reason)))
            }
        })
    }

    /// Adds the outputs of the last step to the training metrics.
    fn add_train_predictions(&mut self, parts: &dyn RunParts) -> Result<()> {
        let Some((output, target)) = parts.train_predictions()? else {
            let reason = "the task does not define train_predictions(); define it, or train without training metrics";
            return Err(Error::invalid("train_metric", reason));
        };
        self.train_metrics.update(&output, &target)
    }

    /// Logs the losses of a step and its learning rates.
    fn log_step(&mut self, step: usize, losses: &[(&'static str, f64)], rates: &Scores) -> Result<()> {
        let values: Vec<(&str, f64)> = losses.iter().copied().chain(rates.iter()).collect();
        self.loggers.scalars(step, &values)
    }

    /// Reads the sums from the device, and returns an error if a sum is not finite.
    fn check_sums(&mut self, meter: &mut LossMeter, position: BatchPosition, parts: &dyn RunParts) -> Result<()> {
        let all_finite = meter.read(&mut self.state.progress.borrow_mut())?;
        if all_finite || parts.skipped_updates()?.is_some() {
            return Ok(());
        }
        let reason = "a loss of this epoch is not finite; lower the learning rate, or clip the gradients";
        Err(self.step_error(self.step(), position, 0, Error::invalid("fit", reason)))
    }

    /// Ends an epoch: history, schedules, files. Returns the reason if the run ends.
    fn end_epoch(
        &mut self,
        parts: &mut dyn RunParts,
        scores: &Scores,
        improvement: Improvement,
    ) -> Result<Option<StopReason>> {
        {
            let progress = &mut *self.state.progress.borrow_mut();
            improvement.note(progress);
            progress.epoch += 1;
            progress.sums.clear();
            progress.weight = 0.0;
        }
        self.train_metrics.reset();
        // The schedules advance with the number of epochs, even if a logger or a callback fails.
        self.schedules.iter_mut().try_for_each(|schedule| schedule.advance(ScheduleUnit::Epoch))?;
        self.schedules.iter_mut().try_for_each(|schedule| schedule.measure(improvement.value))?;
        let (epoch, step) = (self.epoch(), self.step());
        self.log_epoch(epoch, scores)?;
        tracing::info!(epoch, step, %scores, "completed an epoch");
        // The state is saved after the event, so it contains the changes of callbacks.
        self.emit(TrainingEvent::EpochEnded { epoch, scores })?;
        store_rates(parts, true)?;
        self.save_last(parts)?;
        Ok(match (self.is_stop_requested, self.is_stuck()) {
            (true, _) => Some(StopReason::Requested),
            (false, true) => Some(StopReason::NotImproving),
            (false, false) => None,
        })
    }

    /// Adds the values of an epoch, or of a validation in it, to the history and the logs.
    pub(super) fn log_epoch(&mut self, epoch: usize, scores: &Scores) -> Result<()> {
        let values: Vec<(&str, f64)> = scores.iter().collect();
        self.history.push_in_epoch(epoch, &values)?;
        let logged: Vec<(&str, f64)> = values.into_iter().filter(|(name, _)| *name != STEP).collect();
        let step = self.step();
        self.loggers.scalars(step, &logged)
    }

    /// Returns an error for contradictory settings.
    fn check_settings(&self, parts: &dyn RunParts) -> Result<()> {
        check_schedules(&self.schedules, &parts.optimizers())?;
        if self.validate_every.is_some() && !parts.is_validated() {
            let reason = "there are no validation batches; pass them to fit(), or remove validate_every()";
            return Err(Error::invalid("validate_every", reason));
        }
        if self.files.last().is_some() {
            self.check_part_names()?;
            self.full_checkpoint(parts.checkpoint(), &self.schedule_names()).check_names()?;
        }
        check_names("metric", &self.metrics)?;
        self.train_metrics.check(self.files.last().is_some())?;
        parts.loss_names().map_or(Ok(()), |losses| self.check_value_names(parts, losses))
    }

    /// Adds the parts of the run to the checkpoint of the task and the loaders.
    fn full_checkpoint<'a>(&'a self, parts: Checkpoint<'a>, schedule_names: &'a [String]) -> Checkpoint<'a> {
        let mut checkpoint = parts.part("run", &self.state).part("history", &self.history);
        if !self.train_metrics.is_empty() {
            checkpoint = checkpoint.part("train_metrics", &self.train_metrics);
        }
        for (name, part) in &self.parts {
            checkpoint = checkpoint.part(name, &**part);
        }
        for (name, schedule) in schedule_names.iter().zip(&self.schedules) {
            if let Some(part) = schedule.as_stateful() {
                checkpoint = checkpoint.part(name, part);
            }
        }
        checkpoint.step(self.step())
    }

    /// Returns the settings that a resumed run must share.
    fn settings(&self, parts: &dyn RunParts) -> RunSettings {
        let optimizers = parts.optimizers().into_iter().map(|(name, optimizer)| {
            let key = if name == "optimizer" { name.to_string() } else { format!("optimizer {name}") };
            (key, optimizer.name().to_string())
        });
        let schedules = self.schedule_names().into_iter().zip(self.schedules.iter().map(RunSchedule::description));
        let of_task = parts.settings().into_iter().map(|(name, value)| (name.to_string(), value));
        let (name, goal) = self.monitored(parts.is_validated());
        let monitor = ("monitor".to_string(), format!("{name}, {goal:?}"));
        RunSettings(optimizers.chain(schedules).chain(of_task).chain([monitor]).collect())
    }

    fn schedule_names(&self) -> Vec<String> {
        (0..self.schedules.len()).map(|index| format!("schedule_{index}")).collect()
    }

    /// Writes the state of the run.
    pub(super) fn save_last(&mut self, parts: &dyn RunParts) -> Result<()> {
        let Some(path) = self.files.last() else { return Ok(()) };
        let names = self.schedule_names();
        pellucid_io::save_checkpoint(&path, self.full_checkpoint(parts.checkpoint(), &names))?;
        self.files.has_written = true;
        self.emit(TrainingEvent::Saved { path: &path })
    }

    /// Writes the weights of the best validation.
    pub(super) fn save_best(&mut self, parts: &mut dyn RunParts) -> Result<()> {
        let Some(path) = self.files.best() else { return Ok(()) };
        with_averages(parts, |parts| parts.weights().and_then(|weights| pellucid_io::save(&path, &weights)))?;
        self.emit(TrainingEvent::Saved { path: &path })
    }

    /// Calls all callbacks, and stores whether a callback ends the run.
    pub(super) fn emit(&mut self, event: TrainingEvent<'_>) -> Result<()> {
        let mut control = FitControl { stops: self.is_stop_requested };
        self.callbacks.iter_mut().try_for_each(|callback| callback.on_event(&event, &mut control))?;
        self.is_stop_requested = control.stops;
        Ok(())
    }

    fn step_error(&self, step: usize, position: BatchPosition, samples: usize, source: Error) -> Error {
        Error::Step { step, epoch: self.epoch() + 1, batch: position.batch + 1, samples, source: Box::new(source) }
    }

    /// Returns the error for a non-finite loss of a step.
    fn not_finite(&mut self, step: usize, samples: usize, position: BatchPosition, parts: &mut dyn RunParts) -> Error {
        if parts.batch_weight().is_ok_and(|weight| weight.is_zero()) {
            let reason = "the loss ignores all targets of the batch (`ignore_index`, or classes of weight 0), so that its \
                          mean is 0/0; remove samples whose targets are all ignored, or use larger batches";
            return self.step_error(step, position, samples, Error::invalid("fit", reason));
        }
        let origin = match parts.first_non_finite() {
            Some(name) => format!("the first non-finite tensor is {name}"),
            None => "its origin is unknown".to_string(),
        };
        let indices = match parts.sample_indices(position) {
            Ok(mut indices) => {
                // The last batch of a stream may have fewer samples.
                indices.truncate(samples.max(1));
                let others = indices.len().saturating_sub(LISTED_SAMPLES);
                indices.truncate(LISTED_SAMPLES);
                let others = if others > 0 { format!(" and {others} others") } else { String::new() };
                format!("; the samples are {indices:?}{others}")
            }
            Err(_) => String::new(),
        };
        let reason = format!(
            "the loss is not finite: {origin}{indices}; lower the learning rate, clip the gradients, or check the samples"
        );
        self.step_error(step, position, samples, Error::invalid("fit", reason))
    }
}

/// Adds advice to the error for a part that only the saved run or only this run has: the trainer method that creates
/// it.
fn resume_error(error: Error) -> Error {
    let Error::Checkpoint { path, part, source } = error else { return error };
    let method = match part.as_str() {
        "train_metrics" => "train_metric()",
        "averages" => "ema()",
        "validation_batches" => "the validation batches of fit()",
        "scaler" => "mixed_precision()",
        name if name.starts_with("schedule_") => "schedule()",
        _ => return Error::Checkpoint { path, part, source },
    };
    let source = match *source {
        Error::InvalidArgument { op, reason } => {
            let reason = format!("{reason}; use {method} if and only if the saved run used it");
            Box::new(Error::InvalidArgument { op, reason })
        }
        other => Box::new(other),
    };
    Error::Checkpoint { path, part, source }
}
