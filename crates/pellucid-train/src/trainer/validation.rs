//! The validations of a run, after and within epochs: losses and metrics, and the choice of the best one.

use super::bound::RunParts;
use super::caught::CaughtResult;
use super::core::{RunCore, STEP};
use super::event::{StopReason, TrainingEvent};
use super::meter::LossMeter;
use super::report::RunReport;
use super::scores::Scores;
use super::signals::TerminationSignals;
use super::snapshot::RandomSnapshot;
use super::state::RunProgress;
use super::train_metrics::{check_distinct, check_names};
use super::{Trainer, TrainingTask};
use crate::metrics::Goal;
use pellucid_derive::panicking_form;
use pellucid_nn::optim::ParamGroup;
use pellucid_tensor::{DType, Error, OptionRange, Result, unwrap};
use std::time::Instant;

/// The beginning of the epoch that is validated, and the signals that end a validation.
#[derive(Clone, Copy)]
pub(super) struct ValidationContext<'a> {
    /// The beginning of the epoch, or of the rest of a resumed epoch.
    pub(super) start: Instant,
    pub(super) signals: &'a TerminationSignals,
}

/// The result of the comparison of a validation's monitored value with earlier validations.
#[derive(Clone, Copy)]
pub(super) struct Improvement {
    pub(super) value: f64,
    pub(super) is_best: bool,
    /// Whether the value is better than the reference by more than `min_delta`.
    exceeds_min_delta: bool,
}

impl Improvement {
    /// Updates the best value and the counters of early stopping after a validation.
    pub(super) fn note(self, progress: &mut RunProgress) {
        progress.validated_step = progress.step;
        if self.is_best {
            (progress.best, progress.best_epoch) = (self.value, progress.epoch + 1);
        }
        if self.exceeds_min_delta {
            (progress.reference, progress.validations_without_improvement) = (self.value, 0);
        } else {
            progress.validations_without_improvement += 1;
        }
    }
}

/// Calls `f` while the model contains the averages of its weights, if averaging is enabled. The weights are restored
/// even after a panic.
pub(super) fn with_averages<R>(parts: &mut dyn RunParts, f: impl FnOnce(&mut dyn RunParts) -> Result<R>) -> Result<R> {
    parts.apply_averages()?;
    let result = CaughtResult::call(|| f(parts));
    result.resume_after(parts.restore_weights())
}

impl RunCore<'_> {
    /// Returns the losses and the metrics of the model; `None` after a signal.
    pub(super) fn evaluate(
        &mut self,
        parts: &mut dyn RunParts,
        signals: Option<&TerminationSignals>,
    ) -> Result<Option<Scores>> {
        check_names("metric", &self.metrics)?;
        self.metrics.iter_mut().for_each(|metric| metric.reset());
        parts.begin_validation()?;
        let scores = CaughtResult::call(|| self.evaluate_batches(parts, signals));
        scores.resume_after(parts.end_validation())
    }

    fn evaluate_batches(
        &mut self,
        parts: &mut dyn RunParts,
        signals: Option<&TerminationSignals>,
    ) -> Result<Option<Scores>> {
        let (mut meter, mut sums, mut batch) = (LossMeter::default(), RunProgress::default(), 0);
        while let Some(samples) = parts.next_validation() {
            batch += 1;
            let batch_error =
                |samples: usize| move |error: Error| Error::Evaluation { batch, samples, source: Box::new(error) };
            let samples = samples.map_err(batch_error(0))?;
            let scores = parts.evaluate_step().map_err(batch_error(samples))?;
            self.check_metric_names(scores.losses.iter().map(|(name, _)| *name))?;
            let weight = parts.batch_weight().map_err(batch_error(samples))?;
            meter.add(&mut sums, &scores.losses, (&weight, samples), false)?;
            if let Some((output, target)) = &scores.predictions {
                let updated = self.metrics.iter_mut().try_for_each(|metric| metric.update(output, target));
                updated.map_err(batch_error(samples))?;
            }
            if signals.is_some_and(TerminationSignals::arrived) {
                return Ok(None);
            }
        }
        meter.read(&mut sums)?;
        let mut scores = means(&sums);
        for metric in &self.metrics {
            scores.push(metric.name(), metric.compute()?);
        }
        Ok(Some(scores))
    }

    /// Returns an error if a metric of an evaluation has the name of a loss: a history has one column for each name.
    fn check_metric_names<'l>(&self, losses: impl Iterator<Item = &'l str> + Clone) -> Result<()> {
        check_distinct("metric", self.metrics.iter().map(|metric| metric.name()), losses)
    }

    /// Checks the names of the values of an epoch before the first step: the metrics differ from the losses, and the
    /// monitored value exists.
    pub(super) fn check_value_names(&self, parts: &dyn RunParts, losses: &[&'static str]) -> Result<()> {
        self.check_metric_names(losses.iter().copied())?;
        check_distinct("train_metric", self.train_metrics.names(), losses.iter().copied())?;
        let unknown = |metrics: &mut dyn Iterator<Item = String>| {
            let losses = losses.iter().map(|loss| loss.to_string());
            Scores(losses.chain(metrics).map(|name| (name, f64::NAN)).collect())
        };
        let train = unknown(&mut self.train_metrics.names());
        let validation = parts.is_validated().then(|| unknown(&mut self.metrics.iter().map(|metric| metric.name())));
        let scores = self.epoch_scores(parts, &train, validation.as_ref(), f64::NAN);
        self.monitored_score(&scores, parts.is_validated()).map(drop)
    }

    /// Returns the values of an epoch in the order of the history: the step, the training values, the validation
    /// values, the learning rates and the time.
    fn epoch_scores(&self, parts: &dyn RunParts, train: &Scores, validation: Option<&Scores>, seconds: f64) -> Scores {
        let mut scores = Scores::default();
        scores.push(STEP, self.step() as f64);
        for (prefix, values) in [("train_", Some(train)), ("validation_", validation)] {
            values
                .into_iter()
                .flat_map(Scores::iter)
                .for_each(|(name, value)| scores.push(format!("{prefix}{name}"), value));
        }
        push_rates(parts, &mut scores);
        scores.push("seconds", seconds);
        scores
    }

    /// Returns true if a multiple of `validate_every` steps was completed since the last validation.
    pub(super) fn is_validation_due(&self) -> bool {
        let progress = self.state.progress.borrow();
        self.validate_every.is_some_and(|steps| progress.step / steps > progress.validated_step / steps)
    }

    /// Validates within an epoch. Returns the reason if the run ends. After an error or a signal, the next call of
    /// `fit`, or a resumed run, begins with this validation.
    pub(super) fn validate_within_epoch(
        &mut self,
        parts: &mut dyn RunParts,
        context: ValidationContext<'_>,
        report: &RunReport,
    ) -> Result<Option<StopReason>> {
        let ([_, loader], random) = (parts.batches_state()?, RandomSnapshot::new()?);
        let validated = CaughtResult::call(|| self.validate_epoch(parts, context));
        let restored = match validated.value() {
            Some(Some(_)) => Ok(()),
            _ => parts.load_validation_state(&loader),
        };
        // The next step draws the same numbers as without a validation.
        let (scores, improvement) = match validated.resume_after(restored.and(random.restore())) {
            Ok(Some(validated)) => validated,
            Ok(None) => return Ok(Some(StopReason::Interrupted)),
            Err(error) => {
                // The error of the validation is returned, even if this save fails too.
                let _ = self.save_last(parts);
                return Err(error);
            }
        };
        improvement.note(&mut self.state.progress.borrow_mut());
        let epoch = self.epoch() + 1;
        self.log_epoch(epoch, &scores)?;
        report.end_epoch(epoch, self.epochs, &scores);
        self.emit(TrainingEvent::Validated { epoch, scores: &scores })?;
        store_rates(parts, true)?;
        Ok(match (self.is_stop_requested, self.is_stuck()) {
            (true, _) => Some(StopReason::Requested),
            (false, true) => {
                self.report_stagnation(&scores, parts.is_validated(), report);
                Some(StopReason::NotImproving)
            }
            (false, false) => None,
        })
    }

    /// Ends a run within an epoch: validates and logs, unless the last step was validated. The progress and the best
    /// value are unchanged, so that a run with more steps continues the epoch and equals an uninterrupted run.
    pub(super) fn end_partial_epoch(
        &mut self,
        parts: &mut dyn RunParts,
        context: ValidationContext<'_>,
        report: &RunReport,
    ) -> Result<StopReason> {
        if self.state.progress.borrow().validated_step == self.step() {
            return Ok(StopReason::Completed);
        }
        // The loaders and the random numbers are restored: the validation at the end of the epoch reads the same
        // batches, and the next step draws the same numbers.
        let (loaders, random) = (parts.batches_state()?, RandomSnapshot::new()?);
        let validated = CaughtResult::call(|| self.validated_scores(parts, context));
        let restored = parts.load_batches_state(&loaders).and(random.restore());
        let Some((scores, _)) = validated.resume_after(restored)? else {
            return Ok(self.report_stop(StopReason::Interrupted, report));
        };
        let epoch = self.epoch() + 1;
        self.log_epoch(epoch, &scores)?;
        self.state.progress.borrow_mut().has_partial_row = true;
        report.end_epoch(epoch, self.epochs, &scores);
        self.emit(TrainingEvent::EpochEnded { epoch, scores: &scores })?;
        self.save_last(parts)?;
        Ok(StopReason::Completed)
    }

    /// Validates, and writes the weights if they are the best so far. Returns `None` after a signal.
    pub(super) fn validate_epoch(
        &mut self,
        parts: &mut dyn RunParts,
        context: ValidationContext<'_>,
    ) -> Result<Option<(Scores, Improvement)>> {
        let validated = self.validated_scores(parts, context)?;
        if validated.as_ref().is_some_and(|(_, improvement)| improvement.is_best) {
            self.save_best(parts)?;
        }
        Ok(validated)
    }

    /// Returns the values of an epoch after a validation, and their comparison with earlier validations; `None` after a
    /// signal.
    pub(super) fn validated_scores(
        &mut self,
        parts: &mut dyn RunParts,
        ValidationContext { start, signals }: ValidationContext<'_>,
    ) -> Result<Option<(Scores, Improvement)>> {
        let mut train = means(&self.state.progress.borrow());
        train.0.extend(self.train_metrics.scores()?.0);
        let validation = match parts.is_validated() {
            true => match with_averages(parts, |parts| self.evaluate(parts, Some(signals)))? {
                Some(scores) => Some(scores),
                None => return Ok(None),
            },
            false => None,
        };
        let scores = self.epoch_scores(parts, &train, validation.as_ref(), start.elapsed().as_secs_f64());
        let improvement = self.compare(&scores, parts.is_validated())?;
        Ok(Some((scores, improvement)))
    }

    /// Returns the name of the monitored value, and its direction.
    pub(super) fn monitored(&self, is_validated: bool) -> (&str, Goal) {
        match &self.monitor {
            Some((name, goal)) => (name, *goal),
            None if is_validated => ("validation_loss", Goal::Minimize),
            None => ("train_loss", Goal::Minimize),
        }
    }

    /// Returns the monitored value of an epoch with its name. If a custom task has no loss with the default name, the
    /// value is its first validation loss, or its first training loss if the validation has none.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if no value has the name that the program has set.
    fn monitored_score<'s>(&self, scores: &'s Scores, is_validated: bool) -> Result<(&'s str, f64)> {
        let (name, _) = self.monitored(is_validated);
        if let Some(named) = scores.iter().find(|(score_name, _)| *score_name == name) {
            return Ok(named);
        }
        if self.monitor.is_some() {
            return Err(Error::invalid("monitor", scores.missing(name)));
        }
        let is_validation_loss = |name: &str| {
            let name = name.strip_prefix("validation_");
            name.is_some_and(|name| self.metrics.iter().all(|metric| metric.name() != name))
        };
        let first = scores.iter().find(|(name, _)| is_validation_loss(name)).or_else(|| scores.iter().nth(1));
        Ok(first.unwrap_or(("loss", f64::NAN)))
    }

    /// Compares the monitored value with its earlier values.
    fn compare(&self, scores: &Scores, is_validated: bool) -> Result<Improvement> {
        let (_, goal) = self.monitored(is_validated);
        let (_, value) = self.monitored_score(scores, is_validated)?;
        let min_delta = self.early_stopping.map_or(0.0, |options| options.min_delta);
        let progress = self.state.progress.borrow();
        let least = match goal {
            Goal::Maximize => progress.reference + min_delta,
            Goal::Minimize => progress.reference - min_delta,
        };
        // The first compared value is always the best so far.
        let is_best = progress.best_epoch == 0 || goal.is_better(value, progress.best);
        Ok(Improvement { value, is_best, exceeds_min_delta: goal.is_better(value, least) })
    }

    /// Prints the reason for early stopping.
    pub(super) fn report_stagnation(&self, scores: &Scores, is_validated: bool, report: &RunReport) {
        let name = self.monitored_score(scores, is_validated).map_or("loss", |(name, _)| name);
        let progress = self.state.progress.borrow();
        let count = progress.validations_without_improvement;
        match (progress.best.is_nan(), self.validate_every) {
            (true, _) => report.line(format_args!("stopped: `{name}` is NaN in all epochs")),
            (false, None) => {
                let epoch = progress.epoch - count;
                report.line(format_args!("stopped: no improvement of `{name}` since epoch {epoch}"));
            }
            (false, Some(_)) => {
                report.line(format_args!("stopped: no improvement of `{name}` in {count} validations"));
            }
        }
    }
}

impl<'f, T: TrainingTask> Trainer<'f, T> {
    /// Also validates within an epoch, every `steps` steps of the run. With [`accumulate`](Trainer::accumulate), the
    /// validation follows the first update at or after this step. After the last step of an epoch, only the validation
    /// of the epoch runs. If the number of batches is unknown, as for a [`StreamLoader`](pellucid_data::StreamLoader),
    /// a validation within the epoch may run as well.
    ///
    /// Each validation adds a row to the [history](crate::History::epochs) and to the logs, with the training values of
    /// the epoch so far. It may end the run by [early stopping](Trainer::early_stopping). With
    /// [`checkpoints`](Trainer::checkpoints), it writes `last.safetensors`, and `best.safetensors` if its value is the
    /// best so far. [Schedules](Trainer::schedule) by epochs, including
    /// [`reduce_lr_on_plateau`](Trainer::reduce_lr_on_plateau), advance only at the end of an epoch. Steps draw the
    /// same random numbers as without these validations.
    ///
    /// ```
    /// use pellucid::prelude::*;
    ///
    /// let (x, y) = (Tensor::randn([40, 3], DType::F32), Tensor::randn([40, 1], DType::F32));
    /// let (mut train, mut validation) = (Batches::new(&[&x, &y], 5), Batches::new(&[&x, &y], 20));
    /// let model = Linear::new(3, 1);
    /// let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() });
    /// let mut trainer = Trainer::new(model, MseLoss::default(), sgd).epochs(2).validate_every(3).quiet(true);
    /// let history = trainer.fit(&mut train, Some(&mut validation))?;
    /// assert_eq!(history.column("step").unwrap(), [3.0, 6.0, 8.0, 9.0, 12.0, 15.0, 16.0]);
    /// assert_eq!(history.epochs(), [1, 1, 1, 2, 2, 2, 2]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `steps` is 0.
    #[doc(alias = "val_check_interval")]
    #[doc(alias = "eval_steps")]
    #[panicking_form]
    pub fn try_validate_every(mut self, steps: usize) -> Result<Self> {
        OptionRange::COUNT.check("validate_every", "steps", steps as f64, 1000.0)?;
        self.run.validate_every = Some(steps);
        Ok(self)
    }
}

/// Returns the means of the losses. They are NaN if the loss ignores all targets of the epoch.
fn means(progress: &RunProgress) -> Scores {
    Scores(progress.sums.iter().map(|(name, sum)| (name.clone(), sum / progress.weight)).collect())
}

/// Returns the learning rate of a group. A checkpoint stores it in `f32`. The result is the shortest decimal number
/// that rounds to this `f32`, so it is equal in a resumed run.
fn rate(group: &ParamGroup) -> f64 {
    let rate = group.lr();
    (rate as f32).to_string().parse().unwrap_or(rate)
}

/// Rounds the learning rates, which the program sets in `f64`, to the values that a checkpoint restores. A callback or
/// a schedule that multiplies them then has the same results in a resumed run. Unless `waits` is true, rates on a
/// device other than the CPU are not read.
pub(super) fn store_rates(parts: &dyn RunParts, waits: bool) -> Result<()> {
    for (_, optimizer) in parts.optimizers() {
        for group in optimizer.groups() {
            let tensor = group.lr_tensor();
            if tensor.dtype() != DType::F32 || !waits && !tensor.device().is_cpu() {
                continue;
            }
            let stored = rate(group);
            if stored != group.lr() {
                group.try_set_lr(stored)?;
            }
        }
    }
    Ok(())
}

/// Adds the learning rates: `lr` for the first group, `lr_1` for the second. With several optimizers, the names begin
/// with `lr_` and the name of the optimizer.
pub(super) fn push_rates(parts: &dyn RunParts, scores: &mut Scores) {
    let optimizers = parts.optimizers();
    for (name, optimizer) in &optimizers {
        let prefix = if optimizers.len() == 1 { "lr".to_string() } else { format!("lr_{name}") };
        for (index, group) in optimizer.groups().iter().enumerate() {
            let name = if index == 0 { prefix.clone() } else { format!("{prefix}_{index}") };
            scores.push(name, rate(group));
        }
    }
}
