//! A schedule that depends on a metric.

use super::PerGroup;
use super::checked_option::CheckedOption;
use super::restorable::Restorable;
use super::scheduler::check_optimizer;
use crate::optim::{Hyperparameter, Optimizer};
use crate::state::{StateDict, StateLoad, Stateful, whole_number};
use pellucid_derive::panicking_form;
use pellucid_tensor::OptionRange;
use pellucid_tensor::{DType, Error, Result, Tensor, unwrap};

/// The direction in which a metric improves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlateauMode {
    /// Lower is better, as for a loss.
    #[default]
    Min,
    /// Higher is better, as for an accuracy.
    Max,
}

/// The smallest change that counts as an improvement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ThresholdMode {
    /// A fraction of the best value.
    Relative(f64),
    /// An absolute difference.
    Absolute(f64),
}

/// Options of [`ReduceLrOnPlateau`].
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceLrOnPlateauOptions {
    /// The direction of improvement; default `Min`.
    pub mode: PlateauMode,
    /// The factor of rates, below 1; default 0.1.
    pub factor: f64,
    /// The number of consecutive measurements without improvement before a reduction; default 10.
    pub patience: usize,
    /// The smallest improvement; default a fraction of 10⁻⁴.
    pub threshold: ThresholdMode,
    /// The number of measurements after a reduction that are ignored; default 0.
    pub cooldown: usize,
    /// The lowest rate; default 0.
    pub min_lr: PerGroup,
    /// The smallest reduction; smaller ones are omitted; default 10⁻⁸.
    pub eps: f64,
}

impl Default for ReduceLrOnPlateauOptions {
    fn default() -> ReduceLrOnPlateauOptions {
        ReduceLrOnPlateauOptions {
            mode: PlateauMode::Min,
            factor: 0.1,
            patience: 10,
            threshold: ThresholdMode::Relative(1e-4),
            cooldown: 0,
            min_lr: PerGroup::All(0.0),
            eps: 1e-8,
        }
    }
}

/// Reduces learning rates when a metric has stopped improving.
#[doc(alias = "ReduceLROnPlateau")]
#[derive(Clone, Debug)]
pub struct ReduceLrOnPlateau {
    options: ReduceLrOnPlateauOptions,
    /// The rates of the optimizer of the first step, which identify it.
    rates: Vec<Hyperparameter>,
    progress: Restorable<PlateauProgress>,
}

/// The best measurement, the number of consecutive ones without improvement, and the number that are still ignored.
#[derive(Clone, Copy, Debug)]
struct PlateauProgress {
    best: f64,
    bad: usize,
    cooling: usize,
}

impl ReduceLrOnPlateau {
    /// Creates a schedule without measurements.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a factor that is not in [0, 1), and for a threshold, a lowest rate or an eps
    /// that is negative or not finite.
    #[panicking_form]
    pub fn try_new(options: ReduceLrOnPlateauOptions) -> Result<ReduceLrOnPlateau> {
        let op = "reduce_on_plateau";
        OptionRange::FRACTION.check(op, "factor", options.factor, 0.1)?;
        let (ThresholdMode::Relative(threshold) | ThresholdMode::Absolute(threshold)) = options.threshold;
        OptionRange::NONNEGATIVE.check(op, "threshold", threshold, 1e-4)?;
        OptionRange::NONNEGATIVE.check(op, "eps", options.eps, 1e-8)?;
        options.min_lr.check_range(OptionRange::NONNEGATIVE, op, "min_lr", 0.0)?;
        let best = match options.mode {
            PlateauMode::Min => f64::INFINITY,
            PlateauMode::Max => f64::NEG_INFINITY,
        };
        let progress = Restorable::new(PlateauProgress { best, bad: 0, cooling: 0 });
        Ok(ReduceLrOnPlateau { options, rates: Vec::new(), progress })
    }

    /// Adds a measurement, an `f64` or `f32`, usually once per epoch, and reduces the rates if necessary.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an optimizer other than the one of the first step; the errors of
    /// [`Hyperparameter::try_get`] and [`Optimizer::try_set_lr`].
    #[panicking_form]
    pub fn try_step(&mut self, measured: impl Into<f64>, optimizer: &(impl Optimizer + ?Sized)) -> Result<()> {
        let measured = measured.into();
        if self.rates.is_empty() {
            self.rates =
                (0..optimizer.group_count()).map(|group| optimizer.group_lr_hyperparameter(group).clone()).collect();
        }
        check_optimizer(&self.rates, optimizer)?;
        let ReduceLrOnPlateau { options, progress, .. } = self;
        let progress = progress.get_mut();
        if options.is_better(measured, progress.best) {
            progress.best = measured;
            progress.bad = 0;
        } else {
            progress.bad += 1;
        }
        if progress.cooling > 0 {
            progress.cooling -= 1;
            progress.bad = 0;
        }
        if progress.bad > options.patience {
            for group in 0..optimizer.group_count() {
                let old = optimizer.group_lr_hyperparameter(group).try_get()?;
                let new = (old * options.factor).max(options.min_lr.of(group));
                if old - new > options.eps {
                    optimizer.try_set_group_lr(group, new)?;
                }
            }
            progress.cooling = options.cooldown;
            progress.bad = 0;
        }
        Ok(())
    }

    /// Returns the best measurement so far.
    pub fn best(&self) -> f64 {
        self.progress.get().best
    }

    /// Returns a snapshot: `best`, `bad` and `cooling`, in `f64`.
    pub fn state_dict(&self) -> StateDict {
        self.progress.get().values().into_iter().collect()
    }

    /// Loads a snapshot.
    ///
    /// # Errors
    /// [`Error::StateDict`] if it is not from this kind of schedule; [`Error::InvalidArgument`] if the best measurement
    /// is NaN or a count is not an integer. On error nothing is changed.
    pub fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        self.prepare_load(state)?.commit()
    }
}

impl ReduceLrOnPlateauOptions {
    fn is_better(&self, measured: f64, best: f64) -> bool {
        match (self.mode, self.threshold) {
            (PlateauMode::Min, ThresholdMode::Relative(share)) => measured < best * (1.0 - share),
            (PlateauMode::Min, ThresholdMode::Absolute(distance)) => measured < best - distance,
            (PlateauMode::Max, ThresholdMode::Relative(share)) => measured > best * (share + 1.0),
            (PlateauMode::Max, ThresholdMode::Absolute(distance)) => measured > best + distance,
        }
    }
}

impl PlateauProgress {
    fn values(&self) -> Vec<(String, Tensor)> {
        let named = [("best", self.best), ("bad", self.bad as f64), ("cooling", self.cooling as f64)];
        named.into_iter().map(|(name, x)| (name.to_string(), Tensor::scalar(x, DType::F64))).collect()
    }
}

/// The state of [`ReduceLrOnPlateau::state_dict`].
impl Stateful for ReduceLrOnPlateau {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        Ok(self.progress.get().values())
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        let op = "reduce_on_plateau";
        let load = StateLoad::new(&self.progress.get().values(), state)?;
        let best = state["best"].try_item::<f64>()?;
        if best.is_nan() {
            return Err(Error::invalid(op, "best must be a number, got NaN"));
        }
        let (bad, cooling) = (whole_number(op, state, "bad")?, whole_number(op, state, "cooling")?);
        Ok(load.then(move || {
            self.progress.set(PlateauProgress { best, bad, cooling });
            Ok(())
        }))
    }
}
