//! The validation of a run: losses and metrics of an epoch, and the choice of the best epoch.

use super::bound::RunParts;
use super::caught::CaughtResult;
use super::core::{RunCore, STEP};
use super::meter::LossMeter;
use super::scores::Scores;
use super::signals::TerminationSignals;
use super::state::RunProgress;
use super::train_metrics::{check_distinct, check_names};
use crate::metrics::Goal;
use pellucid_nn::optim::ParamGroup;
use pellucid_tensor::{DType, Error, Result};
use std::time::Instant;

/// How the monitored value of an epoch compares with earlier epochs.
#[derive(Clone, Copy)]
pub(super) struct Improvement {
    pub(super) value: f64,
    pub(super) is_best: bool,
    /// Whether the value is better than the reference by more than `min_delta`.
    exceeds_min_delta: bool,
}

impl Improvement {
    /// Updates the best value and the counters of early stopping at the end of an epoch.
    pub(super) fn note(self, progress: &mut RunProgress) {
        if self.is_best {
            (progress.best, progress.best_epoch) = (self.value, progress.epoch + 1);
        }
        if self.exceeds_min_delta {
            (progress.reference, progress.epochs_without_improvement) = (self.value, 0);
        } else {
            progress.epochs_without_improvement += 1;
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

    /// Returns the values of an epoch in their order: those of the training and of the validation, the learning rates
    /// and the time.
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

    /// Returns the values of an epoch after its validation, and how they compare with earlier epochs; `None` after a
    /// signal.
    pub(super) fn validated_scores(
        &mut self,
        parts: &mut dyn RunParts,
        start: Instant,
        signals: &TerminationSignals,
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

    /// Returns the monitored value of an epoch with its name. A custom task need not have a loss with the default name;
    /// then it is its first loss of the validation, or of the training if the validation has none.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no value of the name that the program has set.
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
        // The first epoch is always the best so far.
        let is_best = progress.best_epoch == 0 || goal.is_better(value, progress.best);
        Ok(Improvement { value, is_best, exceeds_min_delta: goal.is_better(value, least) })
    }

    /// Returns the reason for early stopping as a message.
    pub(super) fn stagnation(&self, scores: &Scores, is_validated: bool) -> String {
        let name = self.monitored_score(scores, is_validated).map_or("loss", |(name, _)| name);
        let progress = self.state.progress.borrow();
        match progress.best.is_nan() {
            true => format!("`{name}` is NaN in all epochs"),
            false => format!(
                "no improvement of `{name}` since epoch {}",
                progress.epoch - progress.epochs_without_improvement
            ),
        }
    }
}

/// Returns the means of the losses. They are NaN if the loss ignores all targets.
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
