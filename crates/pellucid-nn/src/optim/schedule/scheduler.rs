//! [`Scheduler`]: the application of a schedule to an optimizer.

use super::restorable::Restorable;
use super::{CosineAnnealingWarmRestarts, Schedule, SchedulePoint};
use crate::optim::{Optimizer, ParamGroup};
use crate::state::{StateDict, StateLoad, Stateful, whole_number};
use pellucid_derive::panicking_form;
use pellucid_tensor::{DType, Error, Result, Tensor, unwrap};
use std::fmt;

/// A schedule with a current epoch, which sets an optimizer's learning rates, and momenta if the schedule changes them.
///
/// It keeps handles of the optimizer's groups; groups that are added later keep their rates. It stores rates in `f64`,
/// since rounding errors in `f32` would accumulate. A negative rate is rejected, as by
/// [`Optimizer::set_lr`], because the step would increase the loss. A rate that is below zero by rounding only, by at
/// most 10⁻⁹ of the initial rate, counts as 0.
#[doc(alias = "LRScheduler")]
pub struct Scheduler<S> {
    schedule: S,
    /// The optimizer's groups.
    groups: Vec<ParamGroup>,
    progress: Restorable<SchedulerProgress>,
}

/// The epoch of a scheduler, and the initial and current rates of all groups.
#[derive(Clone)]
struct SchedulerProgress {
    epoch: usize,
    base: Vec<f64>,
    lr: Vec<f64>,
}

impl<S: Schedule> Scheduler<S> {
    /// Creates a scheduler and sets the rates of epoch 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an option of the schedule outside its range ([`Schedule::check`]), if the
    /// schedule changes the momentum but the optimizer has none, and for an initial rate that is negative or not
    /// finite.
    #[panicking_form]
    pub fn try_new(schedule: S, optimizer: &(impl Optimizer + ?Sized)) -> Result<Scheduler<S>> {
        schedule.check()?;
        let groups = optimizer.groups().to_vec();
        if schedule.changes_momentum() && groups.iter().any(|group| group.momentum_tensor().is_none()) {
            let reason = "the schedule changes the momentum, but the optimizer has no momentum or was created with \
                          momentum 0; set cycle_momentum: false in the schedule, or create the optimizer with a momentum";
            return Err(Error::invalid("scheduler", reason));
        }
        let initial = |(index, group): (usize, &ParamGroup)| Ok(schedule.base(index, group.try_lr()?));
        let base: Vec<f64> = groups.iter().enumerate().map(initial).collect::<Result<_>>()?;
        let progress = Restorable::new(SchedulerProgress { epoch: 0, lr: base.clone(), base });
        let mut scheduler = Scheduler { schedule, groups, progress };
        scheduler.advance_to(0, Schedule::rate)?;
        Ok(scheduler)
    }

    /// Creates a scheduler from a snapshot and sets the rates and momenta of its epoch. The optimizer's own snapshot
    /// may be loaded before or after.
    ///
    /// ```
    /// use pellucid::nn::Parameter;
    /// use pellucid::nn::optim::schedule::{OneCycleLr, Scheduler};
    /// use pellucid::nn::optim::{AdamW, AdamWOptions, Optimizer};
    /// use pellucid::Tensor;
    /// let new_optimizer = || AdamW::new(vec![Parameter::new(Tensor::from([1.0f64]))], AdamWOptions::default());
    /// let optimizer = new_optimizer();
    /// let mut scheduler = Scheduler::new(OneCycleLr::new(0.1, 10), &optimizer);
    /// scheduler.step();
    ///
    /// let other = new_optimizer();
    /// let resumed = Scheduler::resume(OneCycleLr::new(0.1, 10), &other, &scheduler.state_dict());
    /// assert_eq!((resumed.epoch(), other.lr()), (1, optimizer.lr()));
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Scheduler::new`] and [`Scheduler::load_state_dict`].
    #[panicking_form]
    pub fn try_resume(schedule: S, optimizer: &(impl Optimizer + ?Sized), state: &StateDict) -> Result<Scheduler<S>> {
        let mut scheduler = Scheduler::try_new(schedule, optimizer)?;
        scheduler.load_state_dict(state)?;
        let SchedulerProgress { epoch, lr, .. } = scheduler.progress.get();
        scheduler.advance_to(epoch, |_, point| lr[point.group])?;
        Ok(scheduler)
    }

    /// Advances to the next epoch.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a rate is negative, not finite or outside the range of its dtype, or a momentum is
    /// outside [0, 1); then nothing is changed.
    #[panicking_form]
    pub fn try_step(&mut self) -> Result<()> {
        let epoch = self.epoch() + 1;
        self.advance_to(epoch, Schedule::rate)
    }

    /// Moves to any epoch. The rates equal the rates after `epoch` calls of [`Scheduler::step`] on a new scheduler,
    /// unless the schedule depends on the previous rate ([`MultiplicativeLr`](super::MultiplicativeLr),
    /// [`SwaLr`](super::SwaLr), [`ChainedScheduler`](super::ChainedScheduler)).
    ///
    /// # Errors
    /// The errors of [`Scheduler::try_step`].
    #[panicking_form]
    pub fn try_set_epoch(&mut self, epoch: usize) -> Result<()> {
        self.advance_to(epoch, Schedule::rate)
    }

    /// Returns the current epoch.
    pub fn epoch(&self) -> usize {
        self.progress.get().epoch
    }

    /// Returns the current learning rates, one per group.
    #[doc(alias = "get_last_lr")]
    pub fn last_lr(&self) -> Vec<f64> {
        self.progress.get().lr
    }

    /// Returns the schedule.
    pub fn schedule(&self) -> &S {
        &self.schedule
    }

    /// Returns a snapshot: `epoch`, and `base.0`, `lr.0`, .. for every group, in `f64`; and an empty entry that names
    /// the schedule, such as `schedule.StepLr`.
    pub fn state_dict(&self) -> StateDict {
        self.values().into_iter().collect()
    }

    /// Returns the state by name.
    fn values(&self) -> Vec<(String, Tensor)> {
        let mut values = self.progress.get().values();
        values.push((self.kind(), Tensor::zeros(0, DType::Bool)));
        values
    }

    /// Returns the name of the entry for the schedule.
    fn kind(&self) -> String {
        format!("{KIND}{}", self.schedule.name())
    }

    /// Checks a snapshot. A snapshot without an entry for the schedule is accepted for every schedule.
    fn prepare(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        let (kinds, state): (StateDict, StateDict) = state
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .partition(|(name, _)| name.starts_with(KIND));
        let kind = self.kind();
        if let Some(saved) = kinds.into_keys().find(|saved| *saved != kind) {
            let reason = format!(
                "the state belongs to a {}, but this scheduler has a {}; use the schedule that was saved, or remove the \
                 entry `{saved}`",
                saved.trim_start_matches(KIND),
                self.schedule.name()
            );
            return Err(Error::invalid("scheduler", reason));
        }
        self.progress.prepare_load(&state)
    }

    /// Loads a snapshot. The optimizer's rates are in its own snapshot, which must be loaded after this scheduler was
    /// created, since `new` sets the rates of epoch 0. [`Scheduler::resume`] works in any order.
    ///
    /// # Errors
    /// [`Error::StateDict`] if the snapshot is not from a scheduler with the same number of groups;
    /// [`Error::InvalidArgument`] if its scheduler had another type of schedule, the epoch is not an integer, or a rate
    /// is negative or not finite. On error nothing is changed.
    pub fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        self.prepare(state)?.commit()
    }

    /// Moves to an epoch; if a rate or a momentum is invalid, nothing is changed.
    fn advance_to(&mut self, epoch: usize, rate: impl Fn(&S, SchedulePoint) -> f64) -> Result<()> {
        let progress = self.progress.get_mut();
        let point_of =
            |group: usize| SchedulePoint { epoch, group, base: progress.base[group], lr: progress.lr[group] };
        let rate = |group: usize| without_rounding_error(rate(&self.schedule, point_of(group)), progress.base[group]);
        let rates: Vec<f64> = (0..self.groups.len()).map(rate).collect();
        if let Some(lr) = rates.iter().find(|lr| !is_rate(**lr)) {
            let reason = format!(
                "the learning rate of epoch {epoch} is {lr}, but must be finite and at least 0; check the schedule and its \
                 options"
            );
            return Err(Error::invalid("scheduler", reason));
        }
        for (index, (group, &lr)) in self.groups.iter().zip(&rates).enumerate() {
            group.check_lr("scheduler", lr)?;
            if let Some(momentum) = self.schedule.momentum(index, epoch) {
                group.checked_momentum("scheduler", momentum)?;
            }
        }
        for (index, (group, &lr)) in self.groups.iter().zip(&rates).enumerate() {
            if let Some(momentum) = self.schedule.momentum(index, epoch) {
                group.try_set_momentum(momentum)?;
            }
            group.try_set_lr(lr)?;
        }
        (progress.epoch, progress.lr) = (epoch, rates);
        Ok(())
    }
}

/// The start of the name of the entry for the schedule.
const KIND: &str = "schedule.";

/// Returns true for a learning rate that an optimizer accepts.
fn is_rate(lr: f64) -> bool {
    lr.is_finite() && lr >= 0.0
}

/// Returns 0 for a rate that is below 0 by the rounding errors of a schedule, otherwise the rate.
fn without_rounding_error(lr: f64, base: f64) -> f64 {
    const RELATIVE_ERROR: f64 = 1e-9;
    if lr < 0.0 && lr >= -RELATIVE_ERROR * base { 0.0 } else { lr }
}

impl SchedulerProgress {
    fn values(&self) -> Vec<(String, Tensor)> {
        let number = |x: f64| Tensor::scalar(x, DType::F64);
        let mut values = vec![("epoch".to_string(), number(self.epoch as f64))];
        for (g, (base, lr)) in self.base.iter().zip(&self.lr).enumerate() {
            values.push((format!("base.{g}"), number(*base)));
            values.push((format!("lr.{g}"), number(*lr)));
        }
        values
    }
}

impl Restorable<SchedulerProgress> {
    /// Checks a snapshot, which must have as many groups as the scheduler.
    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        let current = self.get();
        // The tensors of `values` are new: the copies into them have no effect, and only the names and shapes matter.
        let load = StateLoad::new(&current.values(), state)?;
        let rate = |name: String| match state[&name].try_item::<f64>()? {
            rate if is_rate(rate) => Ok(rate),
            rate => Err(Error::invalid("scheduler", format!("{name} must be finite and at least 0, got {rate}"))),
        };
        let rates = |name: &str| (0..current.lr.len()).map(|g| rate(format!("{name}.{g}"))).collect::<Result<_>>();
        let epoch = whole_number("scheduler", state, "epoch")?;
        let progress = SchedulerProgress { epoch, base: rates("base")?, lr: rates("lr")? };
        Ok(load.then(move || {
            self.set(progress);
            Ok(())
        }))
    }
}

/// The state consists of the values of [`Scheduler::state_dict`].
impl<S: Schedule> Stateful for Scheduler<S> {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        Ok(self.values())
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        self.prepare(state)
    }
}

impl Scheduler<CosineAnnealingWarmRestarts> {
    /// Moves to a fractional epoch, such as 3.25 after a quarter of the batches of epoch 3, by
    /// [`CosineAnnealingWarmRestarts::lr`].
    ///
    /// # Errors
    /// The errors of [`Scheduler::try_step`]; [`Error::InvalidArgument`] for an epoch below 0.
    #[panicking_form]
    pub fn try_set_epoch_within(&mut self, epoch: f64) -> Result<()> {
        let rate = |schedule: &CosineAnnealingWarmRestarts, point: SchedulePoint| schedule.lr(point.base, epoch);
        if epoch.is_nan() || epoch < 0.0 {
            return Err(Error::invalid("scheduler", format!("the epoch must be at least 0, got {epoch}")));
        }
        self.advance_to(epoch as usize, rate)
    }
}

impl<S: Schedule> fmt::Debug for Scheduler<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SchedulerProgress { epoch, lr, .. } = self.progress.get();
        let name = self.schedule.name();
        f.debug_struct("Scheduler").field("schedule", &name).field("epoch", &epoch).field("last_lr", &lr).finish()
    }
}
