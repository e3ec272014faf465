//! [`Scheduler`]: the application of a schedule to an optimizer.

use super::{CosineAnnealingWarmRestarts, Schedule, SchedulePoint};
use crate::optim::Optimizer;
use crate::state::{self, StateDict};
use pellucid_tensor::{DType, Error, Result, Tensor, unwrap};

/// A schedule with a current epoch, which sets an optimizer's learning rates, and momenta if the schedule changes them.
///
/// It stores rates in `f64`, since rounding errors in `f32` would accumulate. A schedule may return a rate below zero,
/// for example by rounding; the optimizer then uses it, as in PyTorch.
#[doc(alias = "LRScheduler")]
pub struct Scheduler<S> {
    schedule: S,
    epoch: usize,
    base: Vec<f64>,
    lr: Vec<f64>,
}

impl<S: Schedule> Scheduler<S> {
    /// Creates a scheduler and sets the rates of epoch 0.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an option of the schedule outside of its range ([`Schedule::check`]), if the
    /// schedule changes the momentum but the optimizer has none, and for an initial rate that is not finite.
    pub fn new(schedule: S, optimizer: &(impl Optimizer + ?Sized)) -> Result<Scheduler<S>> {
        schedule.check()?;
        let groups = 0..optimizer.groups();
        if groups.clone().any(|g| schedule.momentum(g, 0).is_some() && optimizer.momentum(g).is_none()) {
            let reason =
                "the schedule changes the momentum, but the optimizer has no momentum or was created with momentum 0";
            return Err(Error::invalid("scheduler", reason));
        }
        let base: Vec<f64> = groups.map(|group| schedule.base(group, optimizer.group_lr(group))).collect();
        let mut scheduler = Scheduler { schedule, epoch: 0, lr: base.clone(), base };
        scheduler.advance_to(0, optimizer, |schedule, at| schedule.next(at))?;
        Ok(scheduler)
    }

    /// Creates a scheduler from a snapshot and sets the rates and momenta of its epoch. The optimizer's own snapshot
    /// may be loaded before or after.
    ///
    /// ```
    /// use pellucid_nn::Parameter;
    /// use pellucid_nn::optim::schedule::{OneCycleLr, Scheduler};
    /// use pellucid_nn::optim::{AdamW, AdamWOptions, Optimizer};
    /// use pellucid_tensor::Tensor;
    /// let made = || AdamW::new(vec![Parameter::new(Tensor::from([1.0f64]))], AdamWOptions::default());
    /// let optimizer = made()?;
    /// let mut scheduler = Scheduler::new(OneCycleLr::new(0.1, 10), &optimizer)?;
    /// scheduler.step(&optimizer);
    ///
    /// let other = made()?;
    /// let resumed = Scheduler::resume(OneCycleLr::new(0.1, 10), &other, &scheduler.state_dict())?;
    /// assert_eq!((resumed.epoch(), other.lr()), (1, optimizer.lr()));
    /// # Ok::<(), pellucid_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Scheduler::new`] and [`Scheduler::load_state_dict`].
    pub fn resume(schedule: S, optimizer: &(impl Optimizer + ?Sized), state: &StateDict) -> Result<Scheduler<S>> {
        let mut scheduler = Scheduler::new(schedule, optimizer)?;
        scheduler.load_state_dict(state)?;
        let rates = scheduler.lr.clone();
        scheduler.advance_to(scheduler.epoch, optimizer, |_, at| rates[at.group])?;
        Ok(scheduler)
    }

    /// Advances to the next epoch.
    ///
    /// # Panics
    /// If a rate is not finite, or if the optimizer's number of groups has changed.
    #[track_caller]
    pub fn step(&mut self, optimizer: &(impl Optimizer + ?Sized)) {
        unwrap(self.advance_to(self.epoch + 1, optimizer, |schedule, at| schedule.next(at)));
    }

    /// Moves to any epoch, by the closed form if there is one, else by [`Schedule::next`].
    ///
    /// # Panics
    /// Those of [`Scheduler::step`].
    #[track_caller]
    pub fn set_epoch(&mut self, epoch: usize, optimizer: &(impl Optimizer + ?Sized)) {
        let rate = |schedule: &S, at: SchedulePoint| schedule.closed(at).unwrap_or_else(|| schedule.next(at));
        unwrap(self.advance_to(epoch, optimizer, rate));
    }

    /// Returns the current epoch.
    pub fn epoch(&self) -> usize {
        self.epoch
    }

    /// Returns the current learning rates, one per group.
    #[doc(alias = "get_last_lr")]
    pub fn last_lr(&self) -> &[f64] {
        &self.lr
    }

    /// Returns the schedule.
    pub fn schedule(&self) -> &S {
        &self.schedule
    }

    /// Returns a snapshot: `epoch`, and `base.0`, `lr.0`, .. for every group, in `f64`.
    pub fn state_dict(&self) -> StateDict {
        let number = |x: f64| Tensor::scalar(x, DType::F64);
        let mut state = StateDict::from([("epoch".to_string(), number(self.epoch as f64))]);
        for (g, (base, lr)) in self.base.iter().zip(&self.lr).enumerate() {
            state.insert(format!("base.{g}"), number(*base));
            state.insert(format!("lr.{g}"), number(*lr));
        }
        state
    }

    /// Loads a snapshot. The optimizer's rates are in its own snapshot, which must be loaded after this scheduler was
    /// created, since `new` sets the rates of epoch 0. [`Scheduler::resume`] works in any order.
    ///
    /// # Errors
    /// [`Error::StateDict`] if it is not from a scheduler with as many groups; then nothing is changed.
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let own: Vec<(String, Tensor)> = self.state_dict().into_iter().collect();
        state::load(&own, state)?;
        let number = |name: &str| state[name].try_item::<f64>();
        let numbers = |name: &str| (0..self.lr.len()).map(|g| number(&format!("{name}.{g}"))).collect::<Result<_>>();
        let (epoch, base, lr) = (number("epoch")?, numbers("base")?, numbers("lr")?);
        (self.epoch, self.base, self.lr) = (epoch as usize, base, lr);
        Ok(())
    }

    /// Moves to an epoch; if a rate is an error, nothing is changed.
    fn advance_to(
        &mut self,
        epoch: usize,
        optimizer: &(impl Optimizer + ?Sized),
        rate: impl Fn(&S, SchedulePoint) -> f64,
    ) -> Result<()> {
        let (op, groups) = ("scheduler", optimizer.groups());
        if groups != self.lr.len() {
            let reason = format!(
                "the optimizer has {groups} groups now, but had {} when the scheduler was made; make another scheduler",
                self.lr.len()
            );
            return Err(Error::invalid(op, reason));
        }
        let at = |group: usize| SchedulePoint { epoch, group, base: self.base[group], lr: self.lr[group] };
        let rates: Vec<f64> = (0..groups).map(|group| rate(&self.schedule, at(group))).collect();
        if let Some(lr) = rates.iter().find(|lr| !lr.is_finite()) {
            return Err(Error::invalid(
                op,
                format!(
                    "the learning rate of epoch {epoch} is {lr}, but must be finite; check the options of the schedule"
                ),
            ));
        }
        for (group, &lr) in rates.iter().enumerate() {
            if let Some(momentum) = self.schedule.momentum(group, epoch) {
                optimizer.try_set_momentum(group, momentum)?;
            }
            optimizer.group_rate(group).set(lr)?;
        }
        (self.epoch, self.lr) = (epoch, rates);
        Ok(())
    }
}

impl Scheduler<CosineAnnealingWarmRestarts> {
    /// Moves to a fractional epoch, such as 3.25 after a quarter of the batches of epoch 3, by
    /// [`CosineAnnealingWarmRestarts::lr`].
    ///
    /// # Panics
    /// Those of [`Scheduler::step`], and for an epoch below 0.
    #[track_caller]
    pub fn set_epoch_within(&mut self, epoch: f64, optimizer: &(impl Optimizer + ?Sized)) {
        let rate = |schedule: &CosineAnnealingWarmRestarts, at: SchedulePoint| schedule.lr(at.base, epoch);
        let whole = if epoch >= 0.0 {
            Ok(epoch as usize)
        } else {
            Err(Error::invalid("scheduler", "the epoch must be at least 0"))
        };
        unwrap(whole.and_then(|whole| self.advance_to(whole, optimizer, rate)));
    }
}
