//! The progress of a run, which a checkpoint contains.

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
    /// The sums of the losses of the current epoch, weighted by the samples of the batches.
    pub(super) sums: Vec<(String, f64)>,
    /// The sum of the weights of the batches: the number of samples, unless the loss weights them.
    pub(super) weight: f64,
    /// The best monitored value; NaN before the first validation.
    pub(super) best: f64,
    /// The reference value for `min_delta`; NaN before the first validation.
    pub(super) reference: f64,
    /// The epoch of the best value, from 1.
    pub(super) best_epoch: usize,
    /// The number of epochs since the monitored value improved.
    pub(super) epochs_without_improvement: usize,
    /// The number of consecutive steps that the scaler skipped because of a non-finite loss.
    pub(super) skipped: usize,
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
            epochs_without_improvement: 0,
            skipped: 0,
        }
    }
}

/// The prefix of the names of sums.
const SUM: &str = "sum_";

/// The number of digits of the index in the name of a sum.
const INDEX_DIGITS: usize = 4;

/// The progress as a part of a checkpoint.
#[derive(Default)]
pub(super) struct RunState(pub(super) RefCell<RunProgress>);

impl RunState {
    fn counts(progress: &RunProgress) -> [(&'static str, usize); 5] {
        let RunProgress { epoch, step, best_epoch, epochs_without_improvement, skipped, .. } = *progress;
        [
            ("epoch", epoch),
            ("step", step),
            ("best_epoch", best_epoch),
            ("waited", epochs_without_improvement),
            ("skipped", skipped),
        ]
    }
}

impl Stateful for RunState {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        let progress = self.0.borrow();
        let counts = RunState::counts(&progress).into_iter();
        let counts = counts.map(|(name, count)| (name.to_string(), Tensor::scalar(count as i64, DType::I64)));
        let numbers = [("best", progress.best), ("reference", progress.reference), ("weight", progress.weight)];
        let numbers = numbers.into_iter().map(|(name, number)| (name.to_string(), Tensor::from(number)));
        let sums = progress.sums.iter().enumerate();
        let sums = sums.map(|(k, (name, sum))| (format!("{SUM}{k:0INDEX_DIGITS$}_{name}"), Tensor::from(*sum)));
        Ok(counts.chain(numbers).chain(sums).collect())
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        let (sums, fixed): (StateDict, StateDict) = state
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .partition(|(name, _)| name.starts_with(SUM));
        let defaults = RunState(RefCell::default()).state()?;
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
            epochs_without_improvement: count("waited")?,
            skipped: count("skipped")?,
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
            *self.0.borrow_mut() = loaded;
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
        state.0.borrow_mut().sums = names.map(|name| (name.to_string(), 1.5)).into();
        let saved: StateDict = state.state().unwrap().into_iter().collect();
        let loaded = RunState::default();
        loaded.prepare_load(&saved).unwrap().commit().unwrap();
        assert_eq!(loaded.0.borrow().sums, state.0.borrow().sums);
    }
}
