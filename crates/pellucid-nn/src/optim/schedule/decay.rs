//! Schedules that multiply the rate by factors.

use super::{Schedule, SchedulePoint};
use pellucid_tensor::OptionRange;
use pellucid_tensor::Result;

/// A function of group and epoch.
type GroupFactor = Box<dyn Fn(usize, usize) -> f64 + Send + Sync>;

/// The initial rate times a function of the epoch.
#[doc(alias = "LambdaLR")]
pub struct LambdaLr(GroupFactor);

impl LambdaLr {
    /// Creates a schedule with one function for all groups.
    pub fn new(factor: impl Fn(usize) -> f64 + Send + Sync + 'static) -> LambdaLr {
        LambdaLr(Box::new(move |_, epoch| factor(epoch)))
    }

    /// Creates a schedule with a function of group and epoch.
    pub fn per_group(factor: impl Fn(usize, usize) -> f64 + Send + Sync + 'static) -> LambdaLr {
        LambdaLr(Box::new(factor))
    }
}

impl Schedule for LambdaLr {
    fn next(&self, point: SchedulePoint) -> f64 {
        point.base * (self.0)(point.group, point.epoch)
    }

    fn closed(&self, point: SchedulePoint) -> Option<f64> {
        Some(self.next(point))
    }
}

/// The previous rate times a function of the epoch.
#[doc(alias = "MultiplicativeLR")]
pub struct MultiplicativeLr(GroupFactor);

impl MultiplicativeLr {
    /// Creates a schedule with one function for all groups; it is not called for epoch 0.
    pub fn new(factor: impl Fn(usize) -> f64 + Send + Sync + 'static) -> MultiplicativeLr {
        MultiplicativeLr(Box::new(move |_, epoch| factor(epoch)))
    }

    /// Creates a schedule with a function of group and epoch.
    pub fn per_group(factor: impl Fn(usize, usize) -> f64 + Send + Sync + 'static) -> MultiplicativeLr {
        MultiplicativeLr(Box::new(factor))
    }
}

impl Schedule for MultiplicativeLr {
    fn next(&self, point: SchedulePoint) -> f64 {
        if point.epoch == 0 { point.lr } else { self.begin(point) }
    }

    fn begin(&self, point: SchedulePoint) -> f64 {
        point.lr * (self.0)(point.group, point.epoch)
    }
}

/// Step decay: a factor γ every `step_size` epochs.
#[doc(alias = "StepLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepLr {
    /// The epochs from one decay to the next, above 0.
    pub step_size: usize,
    /// The factor γ.
    pub gamma: f64,
}

impl Schedule for StepLr {
    fn next(&self, point: SchedulePoint) -> f64 {
        let is_due = point.epoch > 0 && point.epoch.is_multiple_of(self.step_size);
        if is_due { point.lr * self.gamma } else { point.lr }
    }

    fn closed(&self, point: SchedulePoint) -> Option<f64> {
        Some(point.base * self.gamma.powf((point.epoch / self.step_size) as f64))
    }

    fn check(&self) -> Result<()> {
        OptionRange::COUNT.check("StepLr", "step_size", self.step_size as f64, 30.0)?;
        OptionRange::NONNEGATIVE.check("StepLr", "gamma", self.gamma, 0.1)
    }
}

/// Step decay at milestones: a factor γ at each; a milestone that is listed twice counts twice.
#[doc(alias = "MultiStepLR")]
#[derive(Clone, Debug, PartialEq)]
pub struct MultiStepLr {
    /// The epochs of the decays.
    pub milestones: Vec<usize>,
    /// The factor γ.
    pub gamma: f64,
}

impl MultiStepLr {
    fn factor(&self, reached: impl Fn(usize) -> bool) -> f64 {
        self.gamma.powf(self.milestones.iter().filter(|&&m| reached(m)).count() as f64)
    }
}

impl Schedule for MultiStepLr {
    fn next(&self, point: SchedulePoint) -> f64 {
        point.lr * self.factor(|m| m == point.epoch)
    }

    fn closed(&self, point: SchedulePoint) -> Option<f64> {
        Some(point.base * self.factor(|m| m <= point.epoch))
    }

    fn check(&self) -> Result<()> {
        OptionRange::NONNEGATIVE.check("MultiStepLr", "gamma", self.gamma, 0.1)
    }
}

/// Exponential decay: a factor γ in every epoch.
#[doc(alias = "ExponentialLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExponentialLr {
    /// The factor γ.
    pub gamma: f64,
}

impl Schedule for ExponentialLr {
    fn next(&self, point: SchedulePoint) -> f64 {
        if point.epoch == 0 { point.lr } else { point.lr * self.gamma }
    }

    fn closed(&self, point: SchedulePoint) -> Option<f64> {
        Some(point.base * self.gamma.powf(point.epoch as f64))
    }

    fn check(&self) -> Result<()> {
        OptionRange::NONNEGATIVE.check("ExponentialLr", "gamma", self.gamma, 0.9)
    }
}

/// A constant factor before epoch `total`, and the full rate afterwards.
#[doc(alias = "ConstantLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConstantLr {
    /// The factor in (0, 1]; PyTorch's default is 1/3.
    pub factor: f64,
    /// The first epoch with the full rate; PyTorch's default is 5.
    pub total: usize,
}

impl Schedule for ConstantLr {
    fn next(&self, point: SchedulePoint) -> f64 {
        match point.epoch {
            0 => point.lr * self.factor,
            epoch if epoch == self.total => point.lr * (1.0 / self.factor),
            _ => point.lr,
        }
    }

    fn closed(&self, point: SchedulePoint) -> Option<f64> {
        Some(if point.epoch >= self.total { point.base } else { point.base * self.factor })
    }

    fn check(&self) -> Result<()> {
        OptionRange::POSITIVE_FRACTION.check("ConstantLr", "factor", self.factor, 0.1)
    }
}

/// Linear warm-up from 1/`steps` of the rate in epoch 0 to the full rate, which stays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmupLr {
    /// The number of epochs until the full rate.
    pub steps: usize,
}

impl Schedule for WarmupLr {
    fn next(&self, point: SchedulePoint) -> f64 {
        let factor = |epoch: usize| ((epoch + 1) as f64 / self.steps.max(1) as f64).min(1.0);
        if point.epoch == 0 { point.lr * factor(0) } else { point.lr * (factor(point.epoch) / factor(point.epoch - 1)) }
    }

    fn closed(&self, point: SchedulePoint) -> Option<f64> {
        Some(point.base * ((point.epoch + 1) as f64 / self.steps.max(1) as f64).min(1.0))
    }
}

/// The Noam schedule of the Transformer (Vaswani et al. 2017, section 5.3): the initial rate times
/// d^(−½)·min(t^(−½), t·w^(−3/2)) in step t = 1, 2, .., which is `epoch` + 1. The paper's initial rate
/// is 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoamLr {
    /// The model's width d.
    pub width: usize,
    /// The number w of warm-up steps.
    pub warmup: usize,
}

impl Schedule for NoamLr {
    fn next(&self, point: SchedulePoint) -> f64 {
        let (t, w) = ((point.epoch + 1) as f64, self.warmup.max(1) as f64);
        point.base * (self.width as f64).powf(-0.5) * t.powf(-0.5).min(t * w.powf(-1.5))
    }

    fn closed(&self, point: SchedulePoint) -> Option<f64> {
        Some(self.next(point))
    }
}
