//! A schedule that follows a measurement.

use super::PerGroup;
use crate::optim::Optimizer;
use crate::state::{self, StateDict};
use pellucid_tensor::{DType, Error, Result, Tensor};

/// Which measurements are good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Small ones, as of a loss.
    #[default]
    Min,
    /// Large ones, as of an accuracy.
    Max,
}

/// By how much a measurement has to be better to count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// By this share of the best one.
    Relative(f64),
    /// By this much.
    Absolute(f64),
}

/// Options of [`ReduceOnPlateau`].
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceOnPlateauOptions {
    /// Which measurements are good; small ones.
    pub mode: Mode,
    /// What rates are multiplied by, below 1; 0.1.
    pub factor: f64,
    /// How many measurements in a row may be no better than the best; 10.
    pub patience: usize,
    /// What counts as better; by a share of 10⁻⁴.
    pub threshold: Threshold,
    /// How many measurements after a reduction are not counted; 0.
    pub cooldown: usize,
    /// The least rate; 0.
    pub min_lr: PerGroup,
    /// A reduction by no more than this is none; 10⁻⁸.
    pub eps: f64,
}

impl Default for ReduceOnPlateauOptions {
    fn default() -> ReduceOnPlateauOptions {
        ReduceOnPlateauOptions {
            mode: Mode::Min,
            factor: 0.1,
            patience: 10,
            threshold: Threshold::Relative(1e-4),
            cooldown: 0,
            min_lr: PerGroup::All(0.0),
            eps: 1e-8,
        }
    }
}

/// Reduces learning rates when a measurement has stopped getting better.
#[derive(Clone, Debug)]
pub struct ReduceOnPlateau {
    options: ReduceOnPlateauOptions,
    best: f64,
    bad: usize,
    cooling: usize,
}

impl ReduceOnPlateau {
    /// Before any measurement.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a factor that is not in [0, 1).
    pub fn new(options: ReduceOnPlateauOptions) -> Result<ReduceOnPlateau> {
        if !(0.0..1.0).contains(&options.factor) {
            let reason = format!("factor must be in [0, 1), got {}", options.factor);
            return Err(Error::invalid("reduce_on_plateau", reason));
        }
        let best = match options.mode {
            Mode::Min => f64::INFINITY,
            Mode::Max => f64::NEG_INFINITY,
        };
        Ok(ReduceOnPlateau { options, best, bad: 0, cooling: 0 })
    }

    /// Takes a measurement into account: once an epoch, as a rule.
    ///
    /// # Panics
    /// As [`Optimizer::lr`] and [`Optimizer::set_lr`].
    #[track_caller]
    pub fn step(&mut self, measured: f64, optimizer: &(impl Optimizer + ?Sized)) {
        if self.is_better(measured) {
            self.best = measured;
            self.bad = 0;
        } else {
            self.bad += 1;
        }
        if self.cooling > 0 {
            self.cooling -= 1;
            self.bad = 0;
        }
        if self.bad > self.options.patience {
            for group in 0..optimizer.groups() {
                let old = optimizer.group_lr(group);
                let new = (old * self.options.factor).max(self.options.min_lr.of(group));
                if old - new > self.options.eps {
                    optimizer.set_group_lr(group, new);
                }
            }
            self.cooling = self.options.cooldown;
            self.bad = 0;
        }
    }

    /// The best measurement so far.
    pub fn best(&self) -> f64 {
        self.best
    }

    fn is_better(&self, measured: f64) -> bool {
        match (self.options.mode, self.options.threshold) {
            (Mode::Min, Threshold::Relative(share)) => measured < self.best * (1.0 - share),
            (Mode::Min, Threshold::Absolute(distance)) => measured < self.best - distance,
            (Mode::Max, Threshold::Relative(share)) => measured > self.best * (share + 1.0),
            (Mode::Max, Threshold::Absolute(distance)) => measured > self.best + distance,
        }
    }

    /// A snapshot: `best`, `bad` and `cooling`, in `f64`.
    pub fn state_dict(&self) -> StateDict {
        let named = [("best", self.best), ("bad", self.bad as f64), ("cooling", self.cooling as f64)];
        named.into_iter().map(|(name, x)| (name.to_string(), Tensor::scalar(x, DType::F64))).collect()
    }

    /// Takes over a snapshot.
    ///
    /// # Errors
    /// [`Error::StateDict`] if it is none of this schedule; nothing has changed then.
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let own: Vec<(String, Tensor)> = self.state_dict().into_iter().collect();
        state::load(&own, state)?;
        let number = |name: &str| state[name].try_item::<f64>();
        let (best, bad, cooling) = (number("best")?, number("bad")?, number("cooling")?);
        (self.best, self.bad, self.cooling) = (best, bad as usize, cooling as usize);
        Ok(())
    }
}
