//! [`TrainMetrics`]: metrics of the training batches, accumulated over an epoch.

use super::caught::CaughtResult;
use super::scores::Scores;
use super::task::NamedScalars;
use crate::metrics::Metric;
use pellucid_nn::{StateDict, StateLoad, Stateful};
use pellucid_tensor::{Error, Result, Tensor};
use std::cell::RefCell;

/// The training metrics of an epoch, and their values as a part of a checkpoint.
#[derive(Default)]
pub(super) struct TrainMetrics<'f> {
    metrics: Vec<Box<dyn Metric + 'f>>,
    /// The metric states of a loaded file, until [`apply_loaded`](TrainMetrics::apply_loaded). A load cannot write to
    /// the metrics directly: metrics in a cell would make the lifetime of the run invariant.
    loaded: RefCell<Vec<Vec<f64>>>,
}

impl<'f> TrainMetrics<'f> {
    pub(super) fn push(&mut self, metric: impl Metric + 'f) {
        self.metrics.push(Box::new(metric));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.metrics.is_empty()
    }

    /// Adds the outputs and the targets of a step to all metrics. If one of several metrics fails or panics, all
    /// metrics with a savepoint are rolled back; those without a savepoint are updated last.
    pub(super) fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
        if let [metric] = &mut self.metrics[..] {
            return metric.update(output, target);
        }
        let savepoints: Vec<_> = self.metrics.iter().map(|metric| metric.savepoint()).collect();
        let updated = CaughtResult::call(|| {
            [true, false].into_iter().try_for_each(|is_first| {
                let metrics = self.metrics.iter_mut().zip(&savepoints);
                let mut metrics = metrics.filter(|(_, savepoint)| savepoint.is_some() == is_first);
                metrics.try_for_each(|(metric, _)| metric.update(output, target))
            })
        });
        if updated.value().is_some() {
            return updated.resume_after(Ok(()));
        }
        let mut metrics = self.metrics.iter_mut().zip(&savepoints);
        let restored = metrics.try_for_each(|(metric, savepoint)| match savepoint {
            Some(savepoint) => metric.roll_back(savepoint),
            None => Ok(()),
        });
        updated.resume_after(restored)
    }

    pub(super) fn reset(&mut self) {
        self.metrics.iter_mut().for_each(|metric| metric.reset());
    }

    /// Restores the metrics from a loaded file, if there is one.
    pub(super) fn apply_loaded(&mut self) -> Result<()> {
        let loaded = self.loaded.take();
        self.metrics.iter_mut().zip(&loaded).try_for_each(|(metric, numbers)| metric.load_state(numbers))
    }

    /// Returns the names of the metrics.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.metrics.iter().map(|metric| metric.name())
    }

    /// Returns the values over the steps since the last reset.
    pub(super) fn scores(&self) -> Result<Scores> {
        self.metrics.iter().map(|metric| Ok((metric.name(), metric.compute()?))).collect::<Result<_>>().map(Scores)
    }

    /// Returns an error if two losses, or a loss and a metric, have the same name: a history has one column for each
    /// name.
    pub(super) fn check_losses(&self, losses: &NamedScalars) -> Result<()> {
        let names: Vec<&str> = losses.iter().map(|(name, _)| *name).collect();
        if let Some(name) = names.iter().enumerate().find_map(|(k, name)| names[..k].contains(name).then_some(name)) {
            return Err(Error::invalid("train_step", format!("two losses have the name `{name}`")));
        }
        check_distinct("train_metric", self.names(), names.into_iter())
    }

    /// Returns an error for equal names, and, if the state of the run is saved, for a metric that cannot be saved.
    pub(super) fn check(&self, is_saved: bool) -> Result<()> {
        check_names("train_metric", &self.metrics)?;
        match self.metrics.iter().find(|metric| is_saved && metric.state().is_none()) {
            Some(metric) => Err(unsaved(&**metric)),
            None => Ok(()),
        }
    }
}

/// Returns an error if two metrics have the same name.
pub(super) fn check_names(op: &'static str, metrics: &[Box<dyn Metric + '_>]) -> Result<()> {
    let names: Vec<String> = metrics.iter().map(|metric| metric.name()).collect();
    match names.iter().enumerate().find(|(k, name)| names[..*k].contains(name)) {
        Some((_, name)) => {
            let reason = format!("two metrics have the name `{name}`; rename one with `metric.named(..)`");
            Err(Error::invalid(op, reason))
        }
        None => Ok(()),
    }
}

/// Returns an error if a metric has the name of a loss: a history has one column for each name.
pub(super) fn check_distinct<'l>(
    op: &'static str,
    metrics: impl Iterator<Item = String>,
    losses: impl Iterator<Item = &'l str> + Clone,
) -> Result<()> {
    match { metrics }.find(|name| losses.clone().any(|loss| loss == name)) {
        Some(name) => {
            let reason = format!("a metric and a loss have the name `{name}`; rename the metric with `named(..)`");
            Err(Error::invalid(op, reason))
        }
        None => Ok(()),
    }
}

/// Returns the error for a metric without a state.
fn unsaved(metric: &(dyn Metric + '_)) -> Error {
    let reason = format!(
        "the checkpoint files of a run contain its training metrics, but the metric `{}` has no state; define state() \
         and load_state()",
        metric.name()
    );
    Error::invalid("train_metric", reason)
}

impl Stateful for TrainMetrics<'_> {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        let states = self.metrics.iter().map(|metric| {
            let numbers = metric.state().ok_or_else(|| unsaved(&**metric))?;
            let len = numbers.len();
            Ok((metric.name(), Tensor::try_new(numbers, [len])?))
        });
        states.collect()
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        // The lengths of the lists depend on the samples, so the names alone are compared.
        let names: Vec<String> = self.metrics.iter().map(|metric| metric.name()).collect();
        let own = |name: &String| (name.clone(), state.get(name).cloned().unwrap_or_else(|| Tensor::from(0.0)));
        let _ = StateLoad::new(&names.iter().map(own).collect::<Vec<_>>(), state)?;
        let numbers = names.iter().map(|name| state[name].try_to_vec::<f64>()).collect::<Result<Vec<_>>>()?;
        Ok(StateLoad::default().then(move || {
            self.loaded.replace(numbers);
            Ok(())
        }))
    }
}
