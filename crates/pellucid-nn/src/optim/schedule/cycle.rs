//! Schedules that rise and fall, and move the momentum the other way.

use super::{At, PerGroup, Schedule, above_zero};
use pellucid_tensor::Result;
use std::f64::consts::PI;

/// The curve between two rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Anneal {
    /// Half a cosine.
    #[default]
    Cosine,
    /// A line.
    Linear,
}

impl Anneal {
    pub(super) fn between(self, start: f64, end: f64, done: f64) -> f64 {
        match self {
            Anneal::Cosine => end + (start - end) / 2.0 * ((PI * done).cos() + 1.0),
            Anneal::Linear => (end - start) * done + start,
        }
    }
}

/// One cycle (Smith & Topin 2018): from `max_lr`/`div_factor` up to `max_lr`, and down to a
/// `final_div_factor`-th of where it began; the momentum goes down and up. It does not use the
/// optimizer's own rate. After the last of `total` epochs nothing moves any more.
#[derive(Clone, Debug, PartialEq)]
pub struct OneCycle {
    /// The highest rate.
    pub max_lr: PerGroup,
    /// The number of epochs (or steps), above 0.
    pub total: usize,
    /// The share of them in which the rate rises, in [0, 1]; 0.3.
    pub pct_start: f64,
    /// The curve; a cosine.
    pub anneal: Anneal,
    /// Whether the momentum is moved; true.
    pub cycle_momentum: bool,
    /// The lowest momentum; 0.85.
    pub base_momentum: f64,
    /// The highest momentum; 0.95.
    pub max_momentum: f64,
    /// 25
    pub div_factor: f64,
    /// 10000
    pub final_div_factor: f64,
    /// Goes down to where it began in as many epochs as it rose in, and then to the end; false.
    pub three_phase: bool,
}

impl OneCycle {
    /// The usual cycle with this highest rate in so many epochs.
    pub fn new(max_lr: impl Into<PerGroup>, total: usize) -> OneCycle {
        OneCycle {
            max_lr: max_lr.into(),
            total,
            pct_start: 0.3,
            anneal: Anneal::Cosine,
            cycle_momentum: true,
            base_momentum: 0.85,
            max_momentum: 0.95,
            div_factor: 25.0,
            final_div_factor: 1e4,
            three_phase: false,
        }
    }

    /// The value in an epoch of what is `start`, `peak` and `end` at the ends of the phases.
    fn value(&self, epoch: usize, start: f64, peak: f64, end: f64) -> f64 {
        let total = self.total as f64;
        let (rise, last) = (self.pct_start * total - 1.0, total - 1.0);
        let phases = if self.three_phase {
            vec![(rise, start, peak), (2.0 * self.pct_start * total - 2.0, peak, start), (last, start, end)]
        } else {
            vec![(rise, start, peak), (last, peak, end)]
        };
        let (t, mut from) = (epoch.min(self.total.saturating_sub(1)) as f64, 0.0);
        for (i, &(to, a, b)) in phases.iter().enumerate() {
            if t <= to || i == phases.len() - 1 {
                // A phase without epochs is over when it begins.
                let done = if to == from { 1.0 } else { (t - from) / (to - from) };
                return self.anneal.between(a, b, done);
            }
            from = to;
        }
        unreachable!("the last phase takes every epoch")
    }
}

impl Schedule for OneCycle {
    fn next(&self, at: At) -> f64 {
        let peak = self.max_lr.of(at.group);
        let start = peak / self.div_factor;
        self.value(at.epoch, start, peak, start / self.final_div_factor)
    }

    fn closed(&self, at: At) -> Option<f64> {
        Some(self.next(at))
    }

    fn base(&self, group: usize, _: f64) -> f64 {
        self.max_lr.of(group) / self.div_factor
    }

    fn momentum(&self, _: usize, epoch: usize) -> Option<f64> {
        let value = || self.value(epoch, self.max_momentum, self.base_momentum, self.max_momentum);
        self.cycle_momentum.then(value)
    }

    fn check(&self) -> Result<()> {
        self.max_lr.check("OneCycle", "max_lr")?;
        above_zero("OneCycle", "total", self.total)
    }
}

/// How the height of a cycle follows from its number, or from the epoch.
#[derive(Clone, Copy, Debug, Default)]
pub enum CyclicScale {
    /// All cycles alike.
    #[default]
    Triangular,
    /// Each half as high as the one before.
    Triangular2,
    /// Times γ in every epoch.
    ExpRange(f64),
    /// A function of the cycle, from 1.
    OfCycle(fn(f64) -> f64),
    /// A function of the epoch, from 0.
    OfEpoch(fn(f64) -> f64),
}

/// Up and down again and again (Smith 2017); the momentum goes down and up. It does not use the
/// optimizer's own rate.
#[derive(Clone, Debug)]
pub struct Cyclic {
    /// The lowest rate.
    pub base_lr: PerGroup,
    /// The highest rate.
    pub max_lr: PerGroup,
    /// The epochs in which a cycle rises, above 0; 2000.
    pub up: usize,
    /// The epochs in which it falls; as many if none are given.
    pub down: Option<usize>,
    /// The height of the cycles.
    pub scale: CyclicScale,
    /// Whether the momentum is moved; true.
    pub cycle_momentum: bool,
    /// The lowest momentum; 0.8.
    pub base_momentum: f64,
    /// The highest momentum; 0.9.
    pub max_momentum: f64,
}

impl Cyclic {
    /// Cycles of the same height between two rates.
    pub fn new(base_lr: impl Into<PerGroup>, max_lr: impl Into<PerGroup>) -> Cyclic {
        Cyclic {
            base_lr: base_lr.into(),
            max_lr: max_lr.into(),
            up: 2000,
            down: None,
            scale: CyclicScale::Triangular,
            cycle_momentum: true,
            base_momentum: 0.8,
            max_momentum: 0.9,
        }
    }

    /// How far up it is in an epoch, in [0, 1].
    fn height(&self, epoch: usize) -> f64 {
        let up = self.up as f64;
        let total = up + self.down.unwrap_or(self.up) as f64;
        let t = epoch as f64;
        let (cycle, peak) = ((1.0 + t / total).floor(), up / total);
        let x = 1.0 + t / total - cycle;
        let height = if x <= peak { x / peak } else { (x - 1.0) / (peak - 1.0) };
        height
            * match self.scale {
                CyclicScale::Triangular => 1.0,
                CyclicScale::Triangular2 => 0.5f64.powf(cycle - 1.0),
                CyclicScale::ExpRange(gamma) => gamma.powf(t),
                CyclicScale::OfCycle(scale) => scale(cycle),
                CyclicScale::OfEpoch(scale) => scale(t),
            }
    }
}

impl Schedule for Cyclic {
    fn next(&self, at: At) -> f64 {
        let (low, high) = (self.base_lr.of(at.group), self.max_lr.of(at.group));
        low + (high - low) * self.height(at.epoch)
    }

    fn closed(&self, at: At) -> Option<f64> {
        Some(self.next(at))
    }

    fn base(&self, group: usize, _: f64) -> f64 {
        self.base_lr.of(group)
    }

    fn momentum(&self, _: usize, epoch: usize) -> Option<f64> {
        let down = (self.max_momentum - self.base_momentum) * self.height(epoch);
        self.cycle_momentum.then_some(self.max_momentum - down)
    }

    fn check(&self) -> Result<()> {
        self.base_lr.check("Cyclic", "base_lr")?;
        self.max_lr.check("Cyclic", "max_lr")?;
        above_zero("Cyclic", "up", self.up)
    }
}
