//! Cyclical schedules, which lower the momentum while the rate rises and raise it while the rate falls.

use super::checked_option::{CheckedOption, name_and_check};
use super::{PerGroup, Schedule, SchedulePoint};
use pellucid_tensor::OptionRange;
use pellucid_tensor::Result;
use std::f64::consts::PI;

/// The curve between two rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnnealStrategy {
    /// Half a cosine.
    #[default]
    Cosine,
    /// A straight line.
    Linear,
}

impl AnnealStrategy {
    pub(super) fn between(self, start: f64, end: f64, done: f64) -> f64 {
        match self {
            AnnealStrategy::Cosine => end + (start - end) / 2.0 * ((PI * done).cos() + 1.0),
            AnnealStrategy::Linear => (end - start) * done + start,
        }
    }
}

/// The one-cycle schedule (Smith & Topin 2018): from `max_lr`/`div_factor` up to `max_lr`, then down to the initial
/// rate divided by `final_div_factor`; the momentum goes down and up. The optimizer's own rate is not used. After
/// `total_steps` epochs the rate stays constant.
#[doc(alias = "OneCycleLR")]
#[derive(Clone, Debug, PartialEq)]
pub struct OneCycleLr {
    /// The highest rate.
    pub max_lr: PerGroup,
    /// The number of epochs (or steps), above 0.
    pub total_steps: usize,
    /// The fraction of epochs in which the rate rises, in [0, 1]; default 0.3.
    pub pct_start: f64,
    /// The curve; default cosine.
    pub anneal_strategy: AnnealStrategy,
    /// Whether to change the momentum; default true.
    pub cycle_momentum: bool,
    /// The lowest momentum; default 0.85.
    pub base_momentum: f64,
    /// The highest momentum; default 0.95.
    pub max_momentum: f64,
    /// The ratio of the highest to the initial rate; default 25.
    pub div_factor: f64,
    /// The ratio of the initial to the final rate; default 10000.
    pub final_div_factor: f64,
    /// Whether the rate first falls to the initial rate, in as many epochs as it rises, and then to the final rate;
    /// default false.
    pub three_phase: bool,
}

impl OneCycleLr {
    /// Creates the default cycle with this highest rate and number of epochs.
    pub fn new(max_lr: impl Into<PerGroup>, total_steps: usize) -> OneCycleLr {
        OneCycleLr {
            max_lr: max_lr.into(),
            total_steps,
            pct_start: 0.3,
            anneal_strategy: AnnealStrategy::Cosine,
            cycle_momentum: true,
            base_momentum: 0.85,
            max_momentum: 0.95,
            div_factor: 25.0,
            final_div_factor: 1e4,
            three_phase: false,
        }
    }

    /// Returns the value in an epoch of a quantity that is `start`, `peak` and `end` at the ends of the phases.
    fn value(&self, epoch: usize, start: f64, peak: f64, end: f64) -> f64 {
        let total = self.total_steps as f64;
        let (rise, last) = (self.pct_start * total - 1.0, total - 1.0);
        let phases = if self.three_phase {
            vec![(rise, start, peak), (2.0 * self.pct_start * total - 2.0, peak, start), (last, start, end)]
        } else {
            vec![(rise, start, peak), (last, peak, end)]
        };
        let (t, mut from) = (epoch.min(self.total_steps.saturating_sub(1)) as f64, 0.0);
        for (i, &(to, a, b)) in phases.iter().enumerate() {
            if t <= to || i == phases.len() - 1 {
                // A phase without epochs ends when it starts.
                let done = if to == from { 1.0 } else { (t - from) / (to - from) };
                return self.anneal_strategy.between(a, b, done);
            }
            from = to;
        }
        unreachable!("the last phase must contain all later epochs")
    }
}

impl Schedule for OneCycleLr {
    name_and_check!(OneCycleLr {
        NONNEGATIVE max_lr = 0.1,
        COUNT total_steps = 1000.0,
        PROBABILITY pct_start = 0.3,
        FRACTION base_momentum = 0.85,
        FRACTION max_momentum = 0.95,
        POSITIVE div_factor = 25.0,
        POSITIVE final_div_factor = 1e4,
    });

    fn rate(&self, point: SchedulePoint) -> f64 {
        let peak = self.max_lr.value(point.group);
        let start = peak / self.div_factor;
        self.value(point.epoch, start, peak, start / self.final_div_factor)
    }

    fn base(&self, group: usize, _: f64) -> f64 {
        self.max_lr.value(group) / self.div_factor
    }

    fn momentum(&self, _: usize, epoch: usize) -> Option<f64> {
        let value = || self.value(epoch, self.max_momentum, self.base_momentum, self.max_momentum);
        self.cycle_momentum.then(value)
    }
}

/// The change of the height of cycles, as a function of the cycle or of the epoch.
#[derive(Clone, Copy, Debug, Default)]
pub enum CyclicMode {
    /// All cycles have the same height.
    #[default]
    Triangular,
    /// Each cycle has half the height of the previous cycle.
    Triangular2,
    /// The height is multiplied by γ in every epoch.
    ExpRange(f64),
    /// A function of the number of the cycle, counted from 1.
    OfCycle(fn(f64) -> f64),
    /// A function of the epoch, counted from 0.
    OfEpoch(fn(f64) -> f64),
}

impl CheckedOption for CyclicMode {
    fn check_range(&self, range: OptionRange, schedule: &'static str, option: &str, usual: f64) -> Result<()> {
        match self {
            CyclicMode::ExpRange(gamma) => range.check(schedule, &format!("the factor of {option}"), *gamma, usual),
            _ => Ok(()),
        }
    }
}

/// The cyclical schedule (Smith 2017): up and down repeatedly; the momentum goes down and up. The optimizer's own rate
/// is not used.
#[doc(alias = "CyclicLR")]
#[derive(Clone, Debug)]
pub struct CyclicLr {
    /// The lowest rate.
    pub base_lr: PerGroup,
    /// The highest rate.
    pub max_lr: PerGroup,
    /// The number of epochs in which a cycle rises, above 0; default 2000.
    pub step_size_up: usize,
    /// The number of epochs in which a cycle falls; `None` means as many as `step_size_up`.
    pub step_size_down: Option<usize>,
    /// The scale of the cycles' height.
    pub mode: CyclicMode,
    /// Whether to change the momentum; default true.
    pub cycle_momentum: bool,
    /// The lowest momentum; default 0.8.
    pub base_momentum: f64,
    /// The highest momentum; default 0.9.
    pub max_momentum: f64,
}

impl CyclicLr {
    /// Creates cycles of constant height between two rates.
    pub fn new(base_lr: impl Into<PerGroup>, max_lr: impl Into<PerGroup>) -> CyclicLr {
        CyclicLr {
            base_lr: base_lr.into(),
            max_lr: max_lr.into(),
            step_size_up: 2000,
            step_size_down: None,
            mode: CyclicMode::Triangular,
            cycle_momentum: true,
            base_momentum: 0.8,
            max_momentum: 0.9,
        }
    }

    /// Returns the height in an epoch, as a fraction of the difference between the highest and the lowest rate; the
    /// mode may scale it to values above 1.
    fn height(&self, epoch: usize) -> f64 {
        let up = self.step_size_up as f64;
        let total = up + self.step_size_down.unwrap_or(self.step_size_up) as f64;
        let t = epoch as f64;
        let (cycle, peak) = ((1.0 + t / total).floor(), up / total);
        let x = 1.0 + t / total - cycle;
        let height = if x <= peak { x / peak } else { (x - 1.0) / (peak - 1.0) };
        height
            * match self.mode {
                CyclicMode::Triangular => 1.0,
                CyclicMode::Triangular2 => 0.5f64.powf(cycle - 1.0),
                CyclicMode::ExpRange(gamma) => gamma.powf(t),
                CyclicMode::OfCycle(scale) => scale(cycle),
                CyclicMode::OfEpoch(scale) => scale(t),
            }
    }
}

impl Schedule for CyclicLr {
    name_and_check!(CyclicLr {
        NONNEGATIVE base_lr = 0.01,
        NONNEGATIVE max_lr = 0.1,
        COUNT step_size_up = 2000.0,
        NONNEGATIVE mode = 0.99,
        FRACTION base_momentum = 0.8,
        FRACTION max_momentum = 0.9,
    });

    fn rate(&self, point: SchedulePoint) -> f64 {
        let (low, high) = (self.base_lr.value(point.group), self.max_lr.value(point.group));
        low + (high - low) * self.height(point.epoch)
    }

    fn base(&self, group: usize, _: f64) -> f64 {
        self.base_lr.value(group)
    }

    fn momentum(&self, _: usize, epoch: usize) -> Option<f64> {
        let down = (self.max_momentum - self.base_momentum) * self.height(epoch);
        self.cycle_momentum.then_some(self.max_momentum - down)
    }
}
