//! Linear warm-up followed by cosine annealing.

use super::{Schedule, SchedulePoint};
use crate::optim::Optimizer;
use pellucid_derive::panicking_form;
use pellucid_tensor::OptionRange;
use pellucid_tensor::{Result, unwrap};
use std::f64::consts::PI;

/// A linear warm-up, then cosine decay (Loshchilov & Hutter 2017, SGDR, without restarts).
///
/// In step t = 0, 1, ..: η(t) = peak·(t + 1)/w for t < w, then floor + (peak − floor)·½(1 + cos π·(t − w)/(T − w)), and
/// floor for t ≥ T.
///
/// ```
/// use pellucid::nn::optim::CosineSchedule;
/// let schedule = CosineSchedule::new(0.1, 100).warmup(10);
/// assert_eq!(schedule.lr(0), 0.01);
/// assert_eq!(schedule.lr(10), 0.1);
/// assert!((schedule.lr(55) - 0.05).abs() < 1e-12);
/// assert_eq!(schedule.lr(100), 0.0);
/// ```
#[doc(alias = "get_cosine_schedule_with_warmup")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CosineSchedule {
    peak: f64,
    floor: f64,
    warmup: usize,
    total: usize,
}

impl CosineSchedule {
    /// Creates a schedule from `peak` down to 0 in `total` steps.
    pub fn new(peak: f64, total: usize) -> CosineSchedule {
        CosineSchedule { peak, floor: 0.0, warmup: 0, total }
    }

    /// Sets the number of warm-up steps. A number above `total` counts as `total`.
    pub fn warmup(self, steps: usize) -> CosineSchedule {
        CosineSchedule { warmup: steps.min(self.total), ..self }
    }

    /// Sets the final rate, 0 by default.
    pub fn floor(self, floor: f64) -> CosineSchedule {
        CosineSchedule { floor, ..self }
    }

    /// Returns the learning rate of step `step`, counted from 0.
    pub fn lr(&self, step: usize) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / self.warmup as f64;
        }
        if step >= self.total {
            return self.floor;
        }
        let done = (step - self.warmup) as f64 / (self.total - self.warmup) as f64;
        self.floor + (self.peak - self.floor) * 0.5 * (1.0 + (PI * done).cos())
    }

    /// Sets the optimizer's learning rate for step `step`; call it between launches if the step is captured.
    ///
    /// # Errors
    /// The errors of [`Optimizer::try_set_lr`].
    #[panicking_form]
    pub fn try_set(&self, optimizer: &(impl Optimizer + ?Sized), step: usize) -> Result<()> {
        optimizer.try_set_lr(self.lr(step))
    }
}

impl Schedule for CosineSchedule {
    fn next(&self, point: SchedulePoint) -> f64 {
        self.lr(point.epoch)
    }

    fn closed(&self, point: SchedulePoint) -> Option<f64> {
        Some(self.lr(point.epoch))
    }

    fn check(&self) -> Result<()> {
        OptionRange::COUNT.check("CosineSchedule", "total", self.total as f64, 1000.0)
    }
}
