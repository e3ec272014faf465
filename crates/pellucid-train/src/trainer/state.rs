//! The progress and the settings of a run, which a checkpoint contains.

use pellucid_nn::{StateDict, StateLoad, Stateful};
use pellucid_tensor::{DType, Error, Result, Tensor};
use std::cell::RefCell;

/// The progress of a run between two steps.
#[derive(Clone, Debug)]
pub(super) struct RunProgress {
    /// The number of completed epochs.
    pub(super) epoch: usize,
    /// The number of completed steps.
    pub(super) step: usize,
    /// The sums over the batches of the current epoch of each loss. A mean loss is multiplied by the weight of its
    /// batch.
    pub(super) sums: Vec<(String, f64)>,
    /// The sum of the weights of the batches: the number of samples, unless the loss weights them.
    pub(super) weight: f64,
    /// The best monitored value; NaN before the first validation.
    pub(super) best: f64,
    /// The monitored value at the last improvement by more than `min_delta`, with which later values are compared; NaN
    /// before the first validation.
    pub(super) reference: f64,
    /// The epoch of the best value, counted from 1.
    pub(super) best_epoch: usize,
    /// The number of validations (of epochs if the run has no validation) since the monitored value improved.
    pub(super) validations_without_improvement: usize,
    /// The number of consecutive steps that the scaler skipped because of a non-finite loss.
    pub(super) skipped: usize,
    /// The number of completed steps at the last regular validation. The additional validation of a run that ends
    /// within an epoch is not counted.
    pub(super) validated_step: usize,
    /// True if the last row of the history is from the validation of a run that ended within an epoch. A run with more
    /// steps removes it.
    pub(super) has_partial_row: bool,
}

impl RunProgress {
    /// Returns true if a validation has followed the last step.
    pub(super) fn is_validated(&self) -> bool {
        self.has_partial_row || self.validated_step == self.step
    }
}

impl Default for RunProgress {
    fn default() -> RunProgress {
        RunProgress {
            epoch: 0,
            step: 0,
            sums: Vec::new(),
            weight: 0.0,
            best: f64::NAN,
            reference: f64::NAN,
            best_epoch: 0,
            validations_without_improvement: 0,
            skipped: 0,
            validated_step: 0,
            has_partial_row: false,
        }
    }
}

/// The name of [`validated_step`](RunProgress::validated_step).
const VALIDATED: &str = "validated";

/// The name of [`has_partial_row`](RunProgress::has_partial_row).
const PARTIAL_ROW: &str = "partial_row";

/// The prefix of the names of sums.
const SUM: &str = "sum_";

/// The number of digits of an index in the name of a sum.
const INDEX_DIGITS: usize = 4;

/// The prefix of the names of settings.
const SETTING: &str = "setting_";

/// The progress and the settings as a part of a checkpoint.
#[derive(Default)]
pub(super) struct RunState {
    pub(super) progress: RefCell<RunProgress>,
    pub(super) settings: RunSettings,
}

/// The settings that must be equal in the saved and the resumed run, by name: the optimizers, the schedules, the
/// monitored value, and the [settings of the task](super::TrainingTask::settings).
#[derive(Debug, Default)]
pub(super) struct RunSettings(pub(super) Vec<(String, String)>);

impl RunSettings {
    /// Returns an empty tensor for each setting, under a key that contains the name and the value of the setting.
    fn entries(&self) -> impl Iterator<Item = (String, Tensor)> {
        self.0.iter().map(|(name, value)| (format!("{SETTING}{name}={value}"), Tensor::zeros(0, DType::Bool)))
    }

    /// Returns an error if a saved setting has another value in this run. A setting that only the file or only this run
    /// has is not compared.
    fn check(&self, saved: &StateDict) -> Result<()> {
        for (name, saved_value) in saved.keys().filter_map(|entry| entry.strip_prefix(SETTING)?.split_once('=')) {
            if let Some((_, value)) = self.0.iter().find(|(other, value)| other == name && value != saved_value) {
                let reason = format!(
                    "the saved run has {name} `{saved_value}`, but this run has `{value}`; create the trainer as for the \
                     saved run, or begin a new run with the weights of the file"
                );
                return Err(Error::invalid("resume", reason));
            }
        }
        Ok(())
    }
}

impl RunState {
    fn counts(progress: &RunProgress) -> [(&'static str, usize); 7] {
        let RunProgress { epoch, step, best_epoch, validations_without_improvement, skipped, validated_step, .. } =
            *progress;
        [
            ("epoch", epoch),
            ("step", step),
            ("best_epoch", best_epoch),
            ("waited", validations_without_improvement),
            ("skipped", skipped),
            (VALIDATED, validated_step),
            (PARTIAL_ROW, usize::from(progress.has_partial_row)),
        ]
    }
}

impl Stateful for RunState {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        let progress = self.progress.borrow();
        let counts = RunState::counts(&progress).into_iter();
        let counts = counts.map(|(name, count)| (name.to_string(), Tensor::scalar(count as i64, DType::I64)));
        let numbers = [("best", progress.best), ("reference", progress.reference), ("weight", progress.weight)];
        let numbers = numbers.into_iter().map(|(name, number)| (name.to_string(), Tensor::from(number)));
        let sums = progress.sums.iter().enumerate();
        let sums = sums.map(|(k, (name, sum))| (format!("{SUM}{k:0INDEX_DIGITS$}_{name}"), Tensor::from(*sum)));
        Ok(counts.chain(numbers).chain(sums).chain(self.settings.entries()).collect())
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        let (settings, progress): (StateDict, StateDict) =
            state.clone().into_iter().partition(|(name, _)| name.starts_with(SETTING));
        self.settings.check(&settings)?;
        let (sums, mut fixed): (StateDict, StateDict) =
            progress.into_iter().partition(|(name, _)| name.starts_with(SUM));
        // A state of an earlier version has no validations within an epoch.
        for name in [VALIDATED, PARTIAL_ROW] {
            fixed.entry(name.to_string()).or_insert_with(|| Tensor::scalar(0, DType::I64));
        }
        let defaults = RunState::default().state()?;
        let load = StateLoad::new(&defaults, &fixed)?;
        let count = |name: &str| {
            let count = fixed[name].try_item::<i64>()?;
            usize::try_from(count)
                .map_err(|_| Error::invalid("load_checkpoint", format!("`{name}` must be at least 0, got {count}")))
        };
        let mut loaded = RunProgress {
            epoch: count("epoch")?,
            step: count("step")?,
            best_epoch: count("best_epoch")?,
            validations_without_improvement: count("waited")?,
            skipped: count("skipped")?,
            validated_step: count(VALIDATED)?,
            has_partial_row: count(PARTIAL_ROW)? > 0,
            best: fixed["best"].try_item()?,
            reference: fixed["reference"].try_item()?,
            weight: fixed["weight"].try_item()?,
            sums: Vec::with_capacity(sums.len()),
        };
        // A state dict is sorted by name, so the indices in the names determine the order of the sums.
        for (name, sum) in &sums {
            let name = name.get(SUM.len() + INDEX_DIGITS + 1..).unwrap_or_default();
            loaded.sums.push((name.to_string(), sum.try_item()?));
        }
        Ok(load.then(move || {
            *self.progress.borrow_mut() = loaded;
            Ok(())
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_keep_their_order() {
        let names = ["loss", "adversarial", "reconstruction", "0"];
        let state = RunState::default();
        state.progress.borrow_mut().sums = names.map(|name| (name.to_string(), 1.5)).into();
        let saved: StateDict = state.state().unwrap().into_iter().collect();
        let loaded = RunState::default();
        loaded.prepare_load(&saved).unwrap().commit().unwrap();
        assert_eq!(loaded.progress.borrow().sums, state.progress.borrow().sums);
    }

    /// A setting that only the file or only the run has is ignored.
    #[test]
    fn only_different_values_of_a_setting_are_rejected() {
        let run = |settings: &[(&str, &str)]| {
            let settings = settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            RunState { settings: RunSettings(settings), ..RunState::default() }
        };
        let saved = |settings| -> StateDict { run(settings).state().unwrap().into_iter().collect() };
        let current = run(&[("optimizer", "adamw"), ("accumulate", "2")]);
        for accepted in [&[][..], &[("accumulate", "2")], &[("optimizer", "adamw"), ("other", "1")]] {
            current.prepare_load(&saved(accepted)).unwrap().commit().unwrap();
        }
        let rejected = current.prepare_load(&saved(&[("optimizer", "adam")])).map(drop).unwrap_err();
        let text = rejected.to_string();
        assert!(matches!(rejected, Error::InvalidArgument { .. }), "{text}");
        assert!(text.contains("has optimizer `adam`, but this run has `adamw`"), "{text}");
    }
}
