//! Schedules that change the learning rate along a curve.

use super::{AnnealStrategy, PerGroup, Schedule, SchedulePoint};
use pellucid_tensor::OptionRange;
use pellucid_tensor::Result;
use std::f64::consts::PI;

/// Linear change from one factor to another over `total` epochs.
#[doc(alias = "LinearLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearLr {
    /// The factor in epoch 0, in (0, 1]; PyTorch's default is 1/3.
    pub start_factor: f64,
    /// The factor from epoch `total` on, in [0, 1]; PyTorch's default is 1.
    pub end_factor: f64,
    /// The number of epochs, above 0; PyTorch's default is 5.
    pub total: usize,
}

impl Schedule for LinearLr {
    fn next(&self, point: SchedulePoint) -> f64 {
        let (change, total) = (self.end_factor - self.start_factor, self.total as f64);
        match point.epoch {
            0 => point.lr * self.start_factor,
            epoch if epoch > self.total => point.lr,
            epoch => point.lr * (1.0 + change / (total * self.start_factor + (epoch - 1) as f64 * change)),
        }
    }

    fn closed(&self, point: SchedulePoint) -> Option<f64> {
        let done = point.epoch.min(self.total) as f64 / self.total as f64;
        Some(point.base * (self.start_factor + (self.end_factor - self.start_factor) * done))
    }

    fn check(&self) -> Result<()> {
        OptionRange::POSITIVE_FRACTION.check("LinearLr", "start_factor", self.start_factor, 0.1)?;
        OptionRange::PROBABILITY.check("LinearLr", "end_factor", self.end_factor, 1.0)?;
        OptionRange::COUNT.check("LinearLr", "total", self.total as f64, 5.0)
    }
}

/// Polynomial decay to 0 over `total` epochs, (1 − t/T)^power.
#[doc(alias = "PolynomialLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolynomialLr {
    /// The number T of epochs, above 0; PyTorch's default is 5.
    pub total: usize,
    /// The power; PyTorch's default is 1.
    pub power: f64,
}

impl Schedule for PolynomialLr {
    fn next(&self, point: SchedulePoint) -> f64 {
        if point.epoch == 0 || point.epoch > self.total {
            return point.lr;
        }
        let rest = |epoch: usize| 1.0 - epoch as f64 / self.total as f64;
        point.lr * (rest(point.epoch) / rest(point.epoch - 1)).powf(self.power)
    }

    fn closed(&self, point: SchedulePoint) -> Option<f64> {
        Some(point.base * (1.0 - point.epoch.min(self.total) as f64 / self.total as f64).powf(self.power))
    }

    fn check(&self) -> Result<()> {
        OptionRange::COUNT.check("PolynomialLr", "total", self.total as f64, 5.0)
    }
}

/// Cosine annealing: half a cosine down to `floor` over `period` epochs, and back up over the next `period` epochs
/// (Loshchilov & Hutter 2017, without restarts).
#[doc(alias = "CosineAnnealingLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CosineAnnealingLr {
    /// The number T of epochs, above 0.
    pub period: usize,
    /// The rate after T epochs.
    pub floor: f64,
}

impl Schedule for CosineAnnealingLr {
    fn next(&self, point: SchedulePoint) -> f64 {
        let (t, period) = (point.epoch as f64, self.period as f64);
        if point.epoch == 0 {
            return point.lr;
        }
        // On the way up from the floor the quotient below would be 0/0.
        if point.epoch > self.period && (point.epoch - 1 - self.period).is_multiple_of(2 * self.period) {
            return point.lr + (point.base - self.floor) * (1.0 - (PI / period).cos()) / 2.0;
        }
        let height = |t: f64| 1.0 + (PI * t / period).cos();
        height(t) / height(t - 1.0) * (point.lr - self.floor) + self.floor
    }

    fn closed(&self, point: SchedulePoint) -> Option<f64> {
        let height = 1.0 + (PI * point.epoch as f64 / self.period as f64).cos();
        Some(self.floor + (point.base - self.floor) * height / 2.0)
    }

    fn check(&self) -> Result<()> {
        OptionRange::COUNT.check("CosineAnnealingLr", "period", self.period as f64, 100.0)
    }
}

/// Cosine annealing with warm restarts (SGDR: Loshchilov & Hutter 2017): half a cosine to `floor`, repeatedly; each
/// period is `multiple` times as long as the previous one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CosineAnnealingWarmRestarts {
    /// The number of epochs before the first restart, above 0.
    pub first: usize,
    /// The ratio of successive periods, at least 1; PyTorch's default is 1.
    pub multiple: usize,
    /// The lowest rate.
    pub floor: f64,
}

impl CosineAnnealingWarmRestarts {
    /// Returns the rate at a fractional epoch for an initial rate.
    ///
    /// ```
    /// use pellucid::nn::optim::schedule::CosineAnnealingWarmRestarts;
    /// let schedule = CosineAnnealingWarmRestarts { first: 10, multiple: 2, floor: 0.0 };
    /// assert!((schedule.lr(0.1, 2.5) - 0.1 * 0.853_553).abs() < 1e-6);
    /// assert_eq!(schedule.lr(0.1, 10.0), 0.1);
    /// ```
    pub fn lr(&self, base: f64, epoch: f64) -> f64 {
        let (mut t, mut period) = (epoch, self.first.max(1) as f64);
        if self.multiple <= 1 {
            t %= period;
        }
        while t >= period {
            t -= period;
            period *= self.multiple as f64;
        }
        let height = 1.0 + (PI * t / period).cos();
        self.floor + (base - self.floor) * height / 2.0
    }
}

impl Schedule for CosineAnnealingWarmRestarts {
    fn next(&self, point: SchedulePoint) -> f64 {
        self.lr(point.base, point.epoch as f64)
    }

    fn closed(&self, point: SchedulePoint) -> Option<f64> {
        Some(self.next(point))
    }

    fn check(&self) -> Result<()> {
        OptionRange::COUNT.check("CosineAnnealingWarmRestarts", "first", self.first as f64, 10.0)?;
        OptionRange::COUNT.check("CosineAnnealingWarmRestarts", "multiple", self.multiple as f64, 1.0)
    }
}

/// Annealing to a constant rate over `epochs` epochs, for averages of weights (SWA: Izmailov et al. 2018; see
/// [`AveragedModel`](crate::optim::AveragedModel)). It starts from the current rate.
///
/// ```
/// use pellucid::nn::Parameter;
/// use pellucid::nn::optim::schedule::{AnnealStrategy, Scheduler, SwaLr};
/// use pellucid::nn::optim::{Optimizer, Sgd, SgdOptions};
/// use pellucid::Tensor;
/// let p = Parameter::new(Tensor::from([1.0f64]));
/// let optimizer = Sgd::new(vec![p], SgdOptions { lr: 0.5, ..Default::default() });
/// let schedule = SwaLr { epochs: 2, anneal: AnnealStrategy::Linear, ..SwaLr::new(0.1) };
/// let mut scheduler = Scheduler::new(schedule, &optimizer);
/// scheduler.step(&optimizer);
/// assert!((optimizer.lr() - 0.3).abs() < 1e-12);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "SWALR")]
#[derive(Clone, Debug, PartialEq)]
pub struct SwaLr {
    /// The final rate.
    pub swa_lr: PerGroup,
    /// The number of epochs of annealing; default 10.
    pub epochs: usize,
    /// The curve; default half a cosine.
    pub anneal: AnnealStrategy,
}

impl SwaLr {
    /// Creates a schedule that anneals to this rate over ten epochs.
    pub fn new(swa_lr: impl Into<PerGroup>) -> SwaLr {
        SwaLr { swa_lr: swa_lr.into(), epochs: 10, anneal: AnnealStrategy::default() }
    }
}

impl Schedule for SwaLr {
    fn next(&self, point: SchedulePoint) -> f64 {
        let end = self.swa_lr.of(point.group);
        // If `epochs` is 0, the final rate is reached immediately.
        let epoch = if self.epochs == 0 { point.epoch.max(1) } else { point.epoch } as f64;
        let share = |epoch: f64| self.anneal.between(0.0, 1.0, (epoch / self.epochs.max(1) as f64).clamp(0.0, 1.0));
        let (before, now) = (share(epoch - 1.0), share(epoch));
        // The initial rate, recovered from the previous rate.
        let start = if before == 1.0 { end } else { (point.lr - before * end) / (1.0 - before) };
        end * now + start * (1.0 - now)
    }

    fn check(&self) -> Result<()> {
        self.swa_lr.check("SwaLr", "swa_lr", 0.05)
    }
}
