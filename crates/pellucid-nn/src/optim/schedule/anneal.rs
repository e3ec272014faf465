//! Schedules that change the learning rate along a curve.

use super::checked_option::name_and_check;
use super::factor::{Factor, factor_schedules};
use super::{AnnealStrategy, PerGroup, Schedule, SchedulePoint};
use pellucid_tensor::OptionRange;
use pellucid_tensor::{Error, Result};
use std::f64::consts::PI;

/// Linear change from one factor to another over `total_iters` epochs.
#[doc(alias = "LinearLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearLr {
    /// The factor in epoch 0, in (0, 1]; default 1/3.
    pub start_factor: f64,
    /// The final factor, reached at epoch `total_iters`, in [0, 1]; default 1.
    pub end_factor: f64,
    /// The number of epochs, above 0; default 5.
    pub total_iters: usize,
}

impl Default for LinearLr {
    fn default() -> LinearLr {
        LinearLr { start_factor: 1.0 / 3.0, end_factor: 1.0, total_iters: 5 }
    }
}

impl Factor for LinearLr {
    fn factor(&self, epoch: usize) -> f64 {
        let (t, total) = (epoch.min(self.total_iters), self.total_iters);
        (self.start_factor * (total - t) as f64 + self.end_factor * t as f64) / total as f64
    }
}

/// Polynomial decay to 0 over `total_iters` epochs, (1 − t/T)^power.
#[doc(alias = "PolynomialLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolynomialLr {
    /// The number T of epochs, above 0; default 5.
    pub total_iters: usize,
    /// The exponent; default 1.
    pub power: f64,
}

impl Default for PolynomialLr {
    fn default() -> PolynomialLr {
        PolynomialLr { total_iters: 5, power: 1.0 }
    }
}

impl Factor for PolynomialLr {
    fn factor(&self, epoch: usize) -> f64 {
        // The numerator is exact: 1 − t/T would have a rounding error that grows as t approaches T.
        (self.total_iters.saturating_sub(epoch) as f64 / self.total_iters as f64).powf(self.power)
    }
}

/// Cosine annealing: half a cosine down to `eta_min` over `t_max` epochs, and back up over the next `t_max` epochs
/// (Loshchilov & Hutter 2017, without restarts).
#[doc(alias = "CosineAnnealingLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CosineAnnealingLr {
    /// The number T of epochs, above 0.
    pub t_max: usize,
    /// The rate after T epochs; default 0.
    pub eta_min: f64,
}

impl CosineAnnealingLr {
    /// Creates a schedule that anneals the rate to 0 over `t_max` epochs.
    pub fn new(t_max: usize) -> CosineAnnealingLr {
        CosineAnnealingLr { t_max, eta_min: 0.0 }
    }
}

impl Factor for CosineAnnealingLr {
    fn factor(&self, epoch: usize) -> f64 {
        half_cosine(epoch as f64, self.t_max as f64)
    }

    fn eta_min(&self) -> f64 {
        self.eta_min
    }
}

factor_schedules! {
    LinearLr { POSITIVE_FRACTION start_factor = 0.1, PROBABILITY end_factor = 1.0, COUNT total_iters = 5.0 }
    PolynomialLr { COUNT total_iters = 5.0, NONNEGATIVE power = 1.0 }
    CosineAnnealingLr { COUNT t_max = 100.0, NONNEGATIVE eta_min = 0.0 }
}

/// Returns ½(1 + cos π·t/T), which is 1 at 0 and 0 at T.
fn half_cosine(t: f64, period: f64) -> f64 {
    (1.0 + (PI * t / period).cos()) / 2.0
}

/// A linear warm-up over `warmup_steps` steps, then half a cosine down to `eta_min`, which is reached in step
/// `total_steps` and kept.
///
/// In step t = 0, 1, ..: η(t) = η₀·(t + 1)/w for t < w, then η_min + (η₀ − η_min)·½(1 + cos π·(t − w)/(T − w)), and
/// η_min for t ≥ T, where η₀ is the initial rate of the optimizer.
///
/// ```
/// use pellucid::nn::Parameter;
/// use pellucid::nn::optim::schedule::{CosineWithWarmupLr, Scheduler};
/// use pellucid::nn::optim::{AdamW, AdamWOptions, Optimizer};
/// use pellucid::Tensor;
/// let p = Parameter::new(Tensor::from([1.0f64]));
/// let optimizer = AdamW::new(vec![p], AdamWOptions { lr: 0.1, ..Default::default() });
/// let mut scheduler = Scheduler::new(CosineWithWarmupLr::new(10, 100), &optimizer);
/// assert_eq!(optimizer.lr(), 0.01);
/// scheduler.set_epoch(10);
/// assert_eq!(optimizer.lr(), 0.1);
/// scheduler.set_epoch(100);
/// assert_eq!(optimizer.lr(), 0.0);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "get_cosine_schedule_with_warmup")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CosineWithWarmupLr {
    /// The number w of warm-up steps, at most `total_steps`.
    pub warmup_steps: usize,
    /// The number T of steps until the lowest rate, above 0.
    pub total_steps: usize,
    /// The lowest rate; default 0.
    pub eta_min: f64,
}

impl CosineWithWarmupLr {
    /// Creates a schedule with a warm-up of `warmup_steps` steps, and annealing to 0, which is reached in step
    /// `total_steps`.
    pub fn new(warmup_steps: usize, total_steps: usize) -> CosineWithWarmupLr {
        CosineWithWarmupLr { warmup_steps, total_steps, eta_min: 0.0 }
    }
}

impl Schedule for CosineWithWarmupLr {
    fn name(&self) -> &'static str {
        "CosineWithWarmupLr"
    }

    fn rate(&self, point: SchedulePoint) -> f64 {
        let (step, warmup) = (point.epoch, self.warmup_steps);
        if step < warmup {
            return point.base * (step + 1) as f64 / warmup as f64;
        }
        if step >= self.total_steps {
            return self.eta_min;
        }
        let height = half_cosine((step - warmup) as f64, (self.total_steps - warmup) as f64);
        self.eta_min + (point.base - self.eta_min) * height
    }

    fn check(&self) -> Result<()> {
        let op = self.name();
        OptionRange::COUNT.check(op, "total_steps", self.total_steps as f64, 1000.0)?;
        OptionRange::NONNEGATIVE.check(op, "eta_min", self.eta_min, 0.0)?;
        if self.warmup_steps > self.total_steps {
            let Self { warmup_steps: w, total_steps: t, .. } = self;
            let reason = format!("warmup_steps must be at most total_steps, got {w} warm-up steps of {t} steps");
            return Err(Error::invalid(op, reason));
        }
        Ok(())
    }
}

/// Cosine annealing with warm restarts (SGDR: Loshchilov & Hutter 2017): half a cosine to `eta_min`, repeatedly; each
/// period is `t_mult` times as long as the previous one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CosineAnnealingWarmRestarts {
    /// The number of epochs before the first restart, above 0.
    pub t_0: usize,
    /// The ratio of successive periods, at least 1; default 1.
    pub t_mult: usize,
    /// The lowest rate; default 0.
    pub eta_min: f64,
}

impl CosineAnnealingWarmRestarts {
    /// Creates a schedule that anneals the rate to 0 and restarts every `t_0` epochs.
    pub fn new(t_0: usize) -> CosineAnnealingWarmRestarts {
        CosineAnnealingWarmRestarts { t_0, t_mult: 1, eta_min: 0.0 }
    }

    /// Returns the rate at a fractional epoch for an initial rate; NaN if `t_0` or `t_mult` is 0.
    ///
    /// ```
    /// use pellucid::nn::optim::schedule::CosineAnnealingWarmRestarts;
    /// let schedule = CosineAnnealingWarmRestarts { t_mult: 2, ..CosineAnnealingWarmRestarts::new(10) };
    /// assert!((schedule.lr(0.1, 2.5) - 0.1 * 0.853_553).abs() < 1e-6);
    /// assert_eq!(schedule.lr(0.1, 10.0), 0.1);
    /// ```
    pub fn lr(&self, base: f64, epoch: f64) -> f64 {
        if self.t_0 == 0 || self.t_mult == 0 {
            return f64::NAN;
        }
        let (mut t, mut period) = (epoch, self.t_0 as f64);
        if self.t_mult == 1 {
            t %= period;
        }
        while t >= period {
            t -= period;
            period *= self.t_mult as f64;
        }
        self.eta_min + (base - self.eta_min) * half_cosine(t, period)
    }
}

impl Schedule for CosineAnnealingWarmRestarts {
    name_and_check!(CosineAnnealingWarmRestarts { COUNT t_0 = 10.0, COUNT t_mult = 1.0, NONNEGATIVE eta_min = 0.0 });

    fn rate(&self, point: SchedulePoint) -> f64 {
        self.lr(point.base, point.epoch as f64)
    }
}

/// Annealing to a constant rate over `anneal_epochs` epochs, for averages of weights (SWA: Izmailov et al. 2018; see
/// [`AveragedModel`](crate::optim::AveragedModel)). It starts from the current rate.
///
/// ```
/// use pellucid::nn::Parameter;
/// use pellucid::nn::optim::schedule::{AnnealStrategy, Scheduler, SwaLr};
/// use pellucid::nn::optim::{Optimizer, Sgd, SgdOptions};
/// use pellucid::Tensor;
/// let p = Parameter::new(Tensor::from([1.0f64]));
/// let optimizer = Sgd::new(vec![p], SgdOptions { lr: 0.5, ..Default::default() });
/// let schedule = SwaLr { anneal_epochs: 2, anneal_strategy: AnnealStrategy::Linear, ..SwaLr::new(0.1) };
/// let mut scheduler = Scheduler::new(schedule, &optimizer);
/// scheduler.step();
/// assert!((optimizer.lr() - 0.3).abs() < 1e-12);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "SWALR")]
#[derive(Clone, Debug, PartialEq)]
pub struct SwaLr {
    /// The final rate.
    pub swa_lr: PerGroup,
    /// The number of epochs of annealing; default 10.
    pub anneal_epochs: usize,
    /// The curve; default half a cosine.
    pub anneal_strategy: AnnealStrategy,
}

impl SwaLr {
    /// Creates a schedule that anneals to this rate over ten epochs.
    pub fn new(swa_lr: impl Into<PerGroup>) -> SwaLr {
        SwaLr { swa_lr: swa_lr.into(), anneal_epochs: 10, anneal_strategy: AnnealStrategy::default() }
    }
}

impl Schedule for SwaLr {
    name_and_check!(SwaLr { NONNEGATIVE swa_lr = 0.05 });

    fn rate(&self, point: SchedulePoint) -> f64 {
        let end = self.swa_lr.value(point.group);
        // If `anneal_epochs` is 0, the final rate is reached immediately.
        let epoch = if self.anneal_epochs == 0 { point.epoch.max(1) } else { point.epoch } as f64;
        let progress = |epoch: f64| {
            self.anneal_strategy.between(0.0, 1.0, (epoch / self.anneal_epochs.max(1) as f64).clamp(0.0, 1.0))
        };
        let (before, now) = (progress(epoch - 1.0), progress(epoch));
        // The initial rate, recovered from the previous rate.
        let start = if before == 1.0 { end } else { (point.lr - before * end) / (1.0 - before) };
        end * now + start * (1.0 - now)
    }
}
