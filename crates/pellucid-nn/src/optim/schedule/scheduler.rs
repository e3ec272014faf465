//! [`Scheduler`]: a schedule that moves on, and an optimizer that follows it.

use super::{At, CosineWarmRestarts, Schedule};
use crate::optim::Optimizer;
use crate::state::{self, StateDict};
use pellucid_tensor::{DType, Error, Result, Tensor, ops, unwrap};

/// Moves a schedule on and sets an optimizer's learning rates, and momenta if the schedule has them.
///
/// It remembers rates at full width: what `f32` makes of them does not add up. A schedule may come to a rate below zero,
/// if only by rounding; the optimizer has it then, as in PyTorch.
pub struct Scheduler<S> {
    schedule: S,
    epoch: usize,
    base: Vec<f64>,
    lr: Vec<f64>,
}

impl<S: Schedule> Scheduler<S> {
    /// Begins: the optimizer has the rates of epoch 0 then.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an option of the schedule outside of its range ([`Schedule::check`]); if the schedule
    /// moves the momentum, and the optimizer has none; for a first rate that is not finite.
    pub fn new(schedule: S, optimizer: &(impl Optimizer + ?Sized)) -> Result<Scheduler<S>> {
        schedule.check()?;
        let groups = 0..optimizer.groups();
        if groups.clone().any(|g| schedule.momentum(g, 0).is_some() && optimizer.momentum(g).is_none()) {
            let reason = "the schedule moves the momentum, but the optimizer has none, or was made with momentum 0";
            return Err(Error::invalid("scheduler", reason));
        }
        let base: Vec<f64> = groups.map(|group| schedule.base(group, optimizer.group_lr(group))).collect();
        let mut scheduler = Scheduler { schedule, epoch: 0, lr: base.clone(), base };
        scheduler.advance_to(0, optimizer, |schedule, at| schedule.next(at))?;
        Ok(scheduler)
    }

    /// Goes on from a snapshot: the optimizer has its rates, and the momenta of its epoch, whether the optimizer's own
    /// snapshot was loaded before or comes after.
    ///
    /// ```
    /// use pellucid_nn::Parameter;
    /// use pellucid_nn::optim::schedule::{OneCycle, Scheduler};
    /// use pellucid_nn::optim::{AdamW, AdamWOptions, Optimizer};
    /// use pellucid_tensor::Tensor;
    /// let made = || AdamW::new(vec![Parameter::new(Tensor::from([1.0f64]))], AdamWOptions::default());
    /// let optimizer = made()?;
    /// let mut scheduler = Scheduler::new(OneCycle::new(0.1, 10), &optimizer)?;
    /// scheduler.step(&optimizer);
    ///
    /// let other = made()?;
    /// let resumed = Scheduler::resume(OneCycle::new(0.1, 10), &other, &scheduler.state_dict())?;
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

    /// Moves on to the next epoch.
    ///
    /// # Panics
    /// If a rate is not finite; if the optimizer has other groups than in the beginning.
    #[track_caller]
    pub fn step(&mut self, optimizer: &(impl Optimizer + ?Sized)) {
        unwrap(self.advance_to(self.epoch + 1, optimizer, |schedule, at| schedule.next(at)));
    }

    /// Moves to any epoch, by the closed form where there is one, else by the next rate's.
    ///
    /// # Panics
    /// As [`Scheduler::step`].
    #[track_caller]
    pub fn jump(&mut self, epoch: usize, optimizer: &(impl Optimizer + ?Sized)) {
        let rate = |schedule: &S, at: At| schedule.closed(at).unwrap_or_else(|| schedule.next(at));
        unwrap(self.advance_to(epoch, optimizer, rate));
    }

    /// The present epoch.
    pub fn epoch(&self) -> usize {
        self.epoch
    }

    /// The present learning rates, one a group.
    pub fn last_lr(&self) -> &[f64] {
        &self.lr
    }

    /// The schedule.
    pub fn schedule(&self) -> &S {
        &self.schedule
    }

    /// A snapshot: `epoch`, and `base.0`, `lr.0`, .. of every group, in `f64`.
    pub fn state_dict(&self) -> StateDict {
        let number = |x: f64| Tensor::scalar(x, DType::F64);
        let mut state = StateDict::from([("epoch".to_string(), number(self.epoch as f64))]);
        for (g, (base, lr)) in self.base.iter().zip(&self.lr).enumerate() {
            state.insert(format!("base.{g}"), number(*base));
            state.insert(format!("lr.{g}"), number(*lr));
        }
        state
    }

    /// Takes over a snapshot. The optimizer's rates are in its own, which is to be loaded after this was made: a schedule
    /// begins by setting the rates of epoch 0. [`Scheduler::resume`] goes on in any order.
    ///
    /// # Errors
    /// [`Error::StateDict`] if it is not of a scheduler over as many groups; nothing has changed then.
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let own: Vec<(String, Tensor)> = self.state_dict().into_iter().collect();
        state::load(&own, state)?;
        let number = |name: &str| state[name].try_item::<f64>();
        let numbers = |name: &str| (0..self.lr.len()).map(|g| number(&format!("{name}.{g}"))).collect::<Result<_>>();
        let (epoch, base, lr) = (number("epoch")?, numbers("base")?, numbers("lr")?);
        (self.epoch, self.base, self.lr) = (epoch as usize, base, lr);
        Ok(())
    }

    /// Nothing has changed if a rate is refused.
    fn advance_to(
        &mut self,
        epoch: usize,
        optimizer: &(impl Optimizer + ?Sized),
        rate: impl Fn(&S, At) -> f64,
    ) -> Result<()> {
        let (op, groups) = ("scheduler", optimizer.groups());
        if groups != self.lr.len() {
            let reason =
                format!("the optimizer has {groups} groups, and had {}; make another scheduler", self.lr.len());
            return Err(Error::invalid(op, reason));
        }
        let at = |group: usize| At { epoch, group, base: self.base[group], lr: self.lr[group] };
        let rates: Vec<f64> = (0..groups).map(|group| rate(&self.schedule, at(group))).collect();
        if let Some(lr) = rates.iter().find(|lr| !lr.is_finite()) {
            return Err(Error::invalid(
                op,
                format!("the rate of epoch {epoch} is {lr}; look at the schedule's options"),
            ));
        }
        for (group, &lr) in rates.iter().enumerate() {
            if let Some(momentum) = self.schedule.momentum(group, epoch) {
                optimizer.try_set_momentum(group, momentum)?;
            }
            ops::copy_(optimizer.group_lr_tensor(group), &Tensor::from(lr))?;
        }
        (self.epoch, self.lr) = (epoch, rates);
        Ok(())
    }
}

impl Scheduler<CosineWarmRestarts> {
    /// Moves to a point within an epoch, such as 3.25 after a quarter of the batches of epoch 3: by
    /// [`CosineWarmRestarts::lr`].
    ///
    /// # Panics
    /// As [`Scheduler::step`], and for an epoch below 0.
    #[track_caller]
    pub fn jump_within(&mut self, epoch: f64, optimizer: &(impl Optimizer + ?Sized)) {
        let rate = |schedule: &CosineWarmRestarts, at: At| schedule.lr(at.base, epoch);
        let whole =
            if epoch >= 0.0 { Ok(epoch as usize) } else { Err(Error::invalid("scheduler", "epochs begin at 0")) };
        unwrap(whole.and_then(|whole| self.advance_to(whole, optimizer, rate)));
    }
}
