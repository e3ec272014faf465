//! A schedule that depends on a metric.

use super::PerGroup;
use super::checked_option::CheckedOption;
use super::restorable::Restorable;
use crate::optim::options::options;
use crate::optim::{Optimizer, ParamGroup};
use crate::state::{StateDict, StateLoad, Stateful, whole_number};
use pellucid_derive::panicking_form;
use pellucid_tensor::{DType, Error, OptionRange, Result, Tensor, unwrap};

/// The name of the operation in errors.
const OP: &str = "reduce_lr_on_plateau";

/// The direction in which a value such as a loss or a metric improves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Goal {
    /// Larger values are better, for example for an accuracy.
    Maximize,
    /// Smaller values are better, for example for a loss.
    #[default]
    Minimize,
}

impl Goal {
    /// Returns true if `value` is better than `other`. Equal values are not better. Every number is better than NaN.
    ///
    /// ```
    /// use pellucid::nn::optim::schedule::Goal;
    /// assert!(Goal::Minimize.is_better(0.1, 0.2) && !Goal::Maximize.is_better(0.2, 0.2));
    /// assert!(Goal::Minimize.is_better(0.1, f64::NAN) && !Goal::Minimize.is_better(f64::NAN, 0.1));
    /// ```
    pub fn is_better(self, value: f64, other: f64) -> bool {
        match self {
            _ if value.is_nan() || other.is_nan() => !value.is_nan() && other.is_nan(),
            Goal::Maximize => value > other,
            Goal::Minimize => value < other,
        }
    }
}

/// The amount by which a measurement must be better than the best one so far to count as an improvement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ThresholdMode {
    /// A fraction of the best value.
    Relative(f64),
    /// An absolute difference.
    Absolute(f64),
}

options! {
    /// Options of [`ReduceLrOnPlateau`].
    #[derive(Clone, Debug, PartialEq)]
    ReduceLrOnPlateauOptions {
        /// The direction of improvement.
        goal: Goal = Goal::Minimize;
        /// The factor of a reduction, below 1.
        factor: f64 = 0.1 => FRACTION;
        /// The number of consecutive measurements without improvement that are tolerated; one more causes a reduction.
        patience: usize = 10;
        /// The amount that an improvement must exceed.
        threshold: ThresholdMode = ThresholdMode::Relative(1e-4);
        /// The number of measurements after a reduction that do not count as measurements without improvement.
        cooldown: usize = 0;
        /// The lowest rate.
        min_lr: PerGroup = PerGroup::All(0.0);
        /// A reduction by at most this number is omitted.
        eps: f64 = 1e-8 => NONNEGATIVE;
    }
}

/// Reduces learning rates when a metric has stopped improving. It keeps handles of the optimizer's groups.
///
/// A reduction starts from the rate that a state dict of the optimizer contains (see [`ParamGroup`]), so training that
/// is saved and loaded continues with the same rates.
///
/// ```
/// use pellucid::nn::Parameter;
/// use pellucid::nn::optim::schedule::{ReduceLrOnPlateau, ReduceLrOnPlateauOptions};
/// use pellucid::nn::optim::{Optimizer, Sgd, SgdOptions};
/// use pellucid::Tensor;
/// let p = Parameter::new(Tensor::from([1.0f64]));
/// let optimizer = Sgd::new(vec![p], SgdOptions { lr: 0.5, ..Default::default() });
/// let options = ReduceLrOnPlateauOptions { patience: 1, ..Default::default() };
/// let mut plateau = ReduceLrOnPlateau::new(options, &optimizer);
/// [3.0, 2.0, 2.0, 2.0].map(|loss| plateau.step(loss));
/// assert_eq!((plateau.best(), optimizer.lr()), (2.0, 0.05));
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "ReduceLROnPlateau")]
#[derive(Clone, Debug)]
pub struct ReduceLrOnPlateau {
    options: ReduceLrOnPlateauOptions,
    groups: Vec<ParamGroup>,
    progress: Restorable<PlateauProgress>,
}

/// The best measurement, the number of consecutive measurements without improvement, and the number of remaining
/// measurements of the cooldown.
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
    /// The errors of [`ReduceLrOnPlateauOptions::check`].
    #[panicking_form]
    pub fn try_new(
        options: ReduceLrOnPlateauOptions,
        optimizer: &(impl Optimizer + ?Sized),
    ) -> Result<ReduceLrOnPlateau> {
        options.check()?;
        let best = match options.goal {
            Goal::Minimize => f64::INFINITY,
            Goal::Maximize => f64::NEG_INFINITY,
        };
        let progress = Restorable::new(PlateauProgress { best, bad: 0, cooling: 0 });
        Ok(ReduceLrOnPlateau { options, groups: optimizer.groups().to_vec(), progress })
    }

    /// Adds a measurement, an `f64` or `f32`, usually once per epoch, and reduces the rates if necessary.
    ///
    /// # Errors
    /// The errors of [`ParamGroup::try_lr`] and [`ParamGroup::try_set_lr`].
    #[panicking_form]
    pub fn try_step(&mut self, measured: impl Into<f64>) -> Result<()> {
        let measured = measured.into();
        let ReduceLrOnPlateau { options, groups, progress } = self;
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
            for (index, group) in groups.iter().enumerate() {
                let old = group.try_loaded_lr()?;
                let new = (old * options.factor).max(options.min_lr.value(index));
                if old - new > options.eps {
                    group.try_set_lr(new)?;
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
    /// Checks the options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a factor that is not in [0, 1), and for a threshold, a lowest rate or an eps
    /// that is negative or not finite.
    pub fn check(&self) -> Result<()> {
        self.check_ranges(OP)?;
        let (ThresholdMode::Relative(threshold) | ThresholdMode::Absolute(threshold)) = self.threshold;
        OptionRange::NONNEGATIVE.check(OP, "threshold", threshold, 1e-4)?;
        self.min_lr.check_range(OptionRange::NONNEGATIVE, OP, "min_lr", 0.0)
    }

    fn is_better(&self, measured: f64, best: f64) -> bool {
        match (self.goal, self.threshold) {
            (Goal::Minimize, ThresholdMode::Relative(share)) => measured < best * (1.0 - share),
            (Goal::Minimize, ThresholdMode::Absolute(distance)) => measured < best - distance,
            (Goal::Maximize, ThresholdMode::Relative(share)) => measured > best * (share + 1.0),
            (Goal::Maximize, ThresholdMode::Absolute(distance)) => measured > best + distance,
        }
    }
}

impl PlateauProgress {
    fn values(&self) -> Vec<(String, Tensor)> {
        let named = [("best", self.best), ("bad", self.bad as f64), ("cooling", self.cooling as f64)];
        named.into_iter().map(|(name, x)| (name.to_string(), Tensor::scalar(x, DType::F64))).collect()
    }
}

/// The state consists of the values of [`ReduceLrOnPlateau::state_dict`].
impl Stateful for ReduceLrOnPlateau {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        Ok(self.progress.get().values())
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        let load = StateLoad::new(&self.progress.get().values(), state)?;
        let best = state["best"].try_item::<f64>()?;
        if best.is_nan() {
            return Err(Error::invalid(OP, "`best` in the state dict must not be NaN"));
        }
        let (bad, cooling) = (whole_number(OP, state, "bad")?, whole_number(OP, state, "cooling")?);
        Ok(load.then(move || {
            self.progress.set(PlateauProgress { best, bad, cooling });
            Ok(())
        }))
    }
}
