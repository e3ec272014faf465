//! Learning rate schedules.
//!
//! A [`Schedule`] computes learning rates as a function of the epoch (or of the step, if it advances in every step). A
//! [`Scheduler`] advances the epoch and sets the rates of all groups of an optimizer, each from its own initial rate.
//! Rates are host numbers that are written into the optimizer's 0-d tensors: advance a scheduler between the launches
//! of a captured step, not inside it.
//!
//! ```
//! use pellucid::nn::optim::schedule::{CosineAnnealingLr, LinearLr, Scheduler, SequentialLr};
//! use pellucid::nn::optim::{Optimizer, Sgd, SgdOptions};
//! use pellucid::nn::Parameter;
//! use pellucid::Tensor;
//!
//! let p = Parameter::new(Tensor::from([1.0f64]));
//! let optimizer = Sgd::new(vec![p], SgdOptions { lr: 1.0, ..Default::default() });
//! let warmup = LinearLr { start_factor: 0.25, total_iters: 3, ..Default::default() };
//! let schedule = SequentialLr::new(warmup).then(3, CosineAnnealingLr::new(10));
//! let mut scheduler = Scheduler::new(schedule, &optimizer);
//! let rates: Vec<f64> = (0..5).map(|_| {
//!     let lr = optimizer.lr();
//!     scheduler.step();
//!     lr
//! }).collect();
//! assert_eq!(rates[..4], [0.25, 0.5, 0.75, 1.0]);
//! assert!(rates[4] < 1.0);
//! # Ok::<(), pellucid::Error>(())
//! ```
//!
//! The fields of a schedule are its options. `new` has the options without a default as arguments; a schedule whose
//! options all have defaults implements [`Default`].

use crate::delegate::delegate;
use pellucid_tensor::Result;
use std::fmt;
use std::sync::Arc;

mod anneal;
mod checked_option;
mod compose;
mod cycle;
mod decay;
mod factor;
mod plateau;
mod restorable;
mod scheduler;

pub use anneal::{CosineAnnealingLr, CosineAnnealingWarmRestarts, CosineWithWarmupLr, LinearLr, PolynomialLr, SwaLr};
pub use compose::{ChainedScheduler, SequentialLr};
pub use cycle::{AnnealStrategy, CyclicLr, CyclicMode, OneCycleLr};
pub use decay::{ConstantLr, ExponentialLr, LambdaLr, MultiStepLr, MultiplicativeLr, NoamLr, StepLr, WarmupLr};
pub use plateau::{Goal, ReduceLrOnPlateau, ReduceLrOnPlateauOptions, ThresholdMode};
pub use scheduler::Scheduler;

/// The arguments of a schedule: the epoch, the group, and the rates of the group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SchedulePoint {
    /// The epoch that starts, counted from 0.
    pub epoch: usize,
    /// The index of the group.
    pub group: usize,
    /// The group's initial learning rate.
    pub base: f64,
    /// The group's learning rate in the previous epoch; in epoch 0, the initial one.
    pub lr: f64,
}

/// A stateless learning rate schedule. Names, options and values are PyTorch's, where PyTorch has the schedule.
///
/// [`LambdaLr`] computes the rate by a function of your own.
pub trait Schedule: Send + Sync {
    /// Returns the name of the schedule in state dicts and errors, such as `StepLr`.
    fn name(&self) -> &'static str;

    /// Returns the learning rate of epoch `point.epoch`, if possible from the epoch and the initial rate alone.
    fn rate(&self, point: SchedulePoint) -> f64;

    /// Returns the learning rate of epoch `point.epoch` if other schedules have also changed the previous rate, as in a
    /// [`ChainedScheduler`]. A multiplicative schedule multiplies `point.lr`.
    fn chained(&self, point: SchedulePoint) -> f64 {
        self.rate(point)
    }

    /// Returns the learning rate in this schedule's epoch 0 if it starts after another schedule.
    fn begin(&self, point: SchedulePoint) -> f64 {
        self.rate(point)
    }

    /// Returns a group's initial learning rate: by default `lr`, the optimizer's own. Some schedules define another
    /// rate.
    fn base(&self, _group: usize, lr: f64) -> f64 {
        lr
    }

    /// Returns the momentum in an epoch, for schedules that change it.
    fn momentum(&self, _group: usize, _epoch: usize) -> Option<f64> {
        None
    }

    /// Returns true if the schedule changes the momentum, which the optimizer must then have. By default, this is so if
    /// [`momentum`](Schedule::momentum) returns a value for epoch 0 of the first group.
    fn changes_momentum(&self) -> bool {
        self.momentum(0, 0).is_some()
    }

    /// Checks the schedule's options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for an option outside its documented range.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// Prints the name.
impl fmt::Debug for dyn Schedule + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Implements `Schedule` for pointers.
macro_rules! pointers {
    ($($(#[$doc:meta])* $pointer:ty;)*) => {$(
        $(#[$doc])*
        #[deny(clippy::missing_trait_methods)]
        impl<S: Schedule + ?Sized> Schedule for $pointer {
            delegate! {
                [**self]
                fn name(self: &Self) -> &'static str;
                fn rate(self: &Self, point: SchedulePoint) -> f64;
                fn chained(self: &Self, point: SchedulePoint) -> f64;
                fn begin(self: &Self, point: SchedulePoint) -> f64;
                fn base(self: &Self, group: usize, lr: f64) -> f64;
                fn momentum(self: &Self, group: usize, epoch: usize) -> Option<f64>;
                fn changes_momentum(self: &Self) -> bool;
                fn check(self: &Self) -> Result<()>;
            }
        }
    )*};
}
pointers! {
    /// A schedule of a type that is chosen at run time: `Box<dyn Schedule>`.
    Box<S>;
    /// A borrowed schedule.
    &S;
    /// A shared schedule.
    Arc<S>;
}

/// One number for all groups, or one for each.
#[derive(Clone, Debug, PartialEq)]
pub enum PerGroup {
    /// The same number for all groups.
    All(f64),
    /// One number per group; the last one is used for all later groups.
    Each(Vec<f64>),
}

impl PerGroup {
    /// Returns the number of a group.
    ///
    /// # Panics
    /// Panics if the list is empty.
    #[track_caller]
    pub fn value(&self, group: usize) -> f64 {
        match self {
            PerGroup::All(value) => *value,
            PerGroup::Each(values) => {
                let last = values.len().checked_sub(1).expect("a list of numbers per group must not be empty");
                values[group.min(last)]
            }
        }
    }
}

impl From<f64> for PerGroup {
    fn from(value: f64) -> PerGroup {
        PerGroup::All(value)
    }
}

impl From<Vec<f64>> for PerGroup {
    fn from(values: Vec<f64>) -> PerGroup {
        PerGroup::Each(values)
    }
}
