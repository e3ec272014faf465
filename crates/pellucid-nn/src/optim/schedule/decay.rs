//! Schedules that multiply the rate by factors.

use super::checked_option::name_and_check;
use super::factor::{Factor, factor_schedules};
use super::{Schedule, SchedulePoint};
use std::fmt;

/// A function from the index of a group and an epoch to a factor.
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
    fn name(&self) -> &'static str {
        "LambdaLr"
    }

    fn rate(&self, point: SchedulePoint) -> f64 {
        point.base * (self.0)(point.group, point.epoch)
    }
}

/// The previous rate times a function of the epoch.
#[doc(alias = "MultiplicativeLR")]
pub struct MultiplicativeLr(GroupFactor);

impl MultiplicativeLr {
    /// Creates a schedule with one function for all groups. The function is called for epoch 0 only if the schedule
    /// follows another one, as in [`SequentialLr`](super::SequentialLr).
    pub fn new(factor: impl Fn(usize) -> f64 + Send + Sync + 'static) -> MultiplicativeLr {
        MultiplicativeLr(Box::new(move |_, epoch| factor(epoch)))
    }

    /// Creates a schedule with a function of group and epoch.
    pub fn per_group(factor: impl Fn(usize, usize) -> f64 + Send + Sync + 'static) -> MultiplicativeLr {
        MultiplicativeLr(Box::new(factor))
    }
}

impl Schedule for MultiplicativeLr {
    fn name(&self) -> &'static str {
        "MultiplicativeLr"
    }

    fn rate(&self, point: SchedulePoint) -> f64 {
        if point.epoch == 0 { point.lr } else { self.begin(point) }
    }

    fn begin(&self, point: SchedulePoint) -> f64 {
        point.lr * (self.0)(point.group, point.epoch)
    }
}

/// Step decay: multiplies the rate by γ every `step_size` epochs.
#[doc(alias = "StepLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepLr {
    /// The number of epochs from one decay to the next, above 0.
    pub step_size: usize,
    /// The factor γ; default 0.1.
    pub gamma: f64,
}

impl StepLr {
    /// Creates a schedule that decays the rate every `step_size` epochs.
    pub fn new(step_size: usize) -> StepLr {
        StepLr { step_size, gamma: 0.1 }
    }
}

impl Factor for StepLr {
    fn factor(&self, epoch: usize) -> f64 {
        self.gamma.powf((epoch / self.step_size) as f64)
    }
}

/// Step decay at milestones: multiplies the rate by γ at each milestone. A milestone that is listed twice counts twice.
#[doc(alias = "MultiStepLR")]
#[derive(Clone, Debug, PartialEq)]
pub struct MultiStepLr {
    /// The epochs of the decays.
    pub milestones: Vec<usize>,
    /// The factor γ; default 0.1.
    pub gamma: f64,
}

impl MultiStepLr {
    /// Creates a schedule that decays the rate at each of these epochs.
    pub fn new(milestones: Vec<usize>) -> MultiStepLr {
        MultiStepLr { milestones, gamma: 0.1 }
    }
}

impl Factor for MultiStepLr {
    fn factor(&self, epoch: usize) -> f64 {
        self.gamma.powf(self.milestones.iter().filter(|&&milestone| milestone <= epoch).count() as f64)
    }
}

/// Exponential decay: multiplies the rate by γ in every epoch.
#[doc(alias = "ExponentialLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExponentialLr {
    /// The factor γ.
    pub gamma: f64,
}

impl ExponentialLr {
    /// Creates a schedule that multiplies the rate by this factor in every epoch.
    pub fn new(gamma: f64) -> ExponentialLr {
        ExponentialLr { gamma }
    }
}

impl Factor for ExponentialLr {
    fn factor(&self, epoch: usize) -> f64 {
        self.gamma.powf(epoch as f64)
    }
}

/// A constant factor before epoch `total_iters`, and the full rate afterwards.
#[doc(alias = "ConstantLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConstantLr {
    /// The factor in (0, 1]; default 1/3.
    pub factor: f64,
    /// The first epoch with the full rate; default 5.
    pub total_iters: usize,
}

impl Default for ConstantLr {
    fn default() -> ConstantLr {
        ConstantLr { factor: 1.0 / 3.0, total_iters: 5 }
    }
}

impl Factor for ConstantLr {
    fn factor(&self, epoch: usize) -> f64 {
        if epoch < self.total_iters { self.factor } else { 1.0 }
    }
}

/// Linear warm-up from 1/`warmup_steps` of the rate in epoch 0 to the full rate, which is then kept.
#[doc(alias = "get_constant_schedule_with_warmup")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmupLr {
    /// The number of epochs of the warm-up, above 0; the last one has the full rate.
    pub warmup_steps: usize,
}

impl WarmupLr {
    /// Creates a schedule with a warm-up of `warmup_steps` epochs.
    pub fn new(warmup_steps: usize) -> WarmupLr {
        WarmupLr { warmup_steps }
    }
}

impl Factor for WarmupLr {
    fn factor(&self, epoch: usize) -> f64 {
        ((epoch + 1) as f64 / self.warmup_steps as f64).min(1.0)
    }
}

factor_schedules! {
    StepLr { COUNT step_size = 30.0, NONNEGATIVE gamma = 0.1 }
    MultiStepLr { NONNEGATIVE gamma = 0.1 }
    ExponentialLr { NONNEGATIVE gamma = 0.9 }
    ConstantLr { POSITIVE_FRACTION factor = 0.1 }
    WarmupLr { COUNT warmup_steps = 100.0 }
}

/// The Noam schedule of the Transformer (Vaswani et al. 2017, section 5.3): the initial rate times
/// d^(−½)·min(t^(−½), t·w^(−3/2)) in step t = 1, 2, .., which is `epoch` + 1. The paper's initial rate
/// is 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoamLr {
    /// The width d of the model, above 0.
    pub d_model: usize,
    /// The number w of warm-up steps, above 0.
    pub warmup_steps: usize,
}

impl NoamLr {
    /// Creates the schedule for a model of width `d_model`.
    pub fn new(d_model: usize, warmup_steps: usize) -> NoamLr {
        NoamLr { d_model, warmup_steps }
    }
}

impl Schedule for NoamLr {
    name_and_check!(NoamLr { COUNT d_model = 512.0, COUNT warmup_steps = 4000.0 });

    fn rate(&self, point: SchedulePoint) -> f64 {
        let (t, w) = ((point.epoch + 1) as f64, self.warmup_steps as f64);
        point.base * (self.d_model as f64).powf(-0.5) * t.powf(-0.5).min(t * w.powf(-1.5))
    }
}

impl fmt::Debug for LambdaLr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LambdaLr").finish_non_exhaustive()
    }
}

impl fmt::Debug for MultiplicativeLr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiplicativeLr").finish_non_exhaustive()
    }
}
