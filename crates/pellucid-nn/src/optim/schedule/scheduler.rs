//! [`Scheduler`]: a schedule that moves on, and an optimizer that follows it.

use super::{At, Schedule};
use crate::optim::Optimizer;
use crate::state::{self, StateDict};
use pellucid_tensor::{DType, Error, Result, Tensor};

/// Moves a schedule on and sets an optimizer's learning rates, and momenta if the schedule has them.
///
/// It remembers rates at full width: what `f32` makes of them does not add up.
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
    /// [`Error::InvalidArgument`] if the schedule moves the momentum, and the optimizer has none.
    pub fn new(schedule: S, optimizer: &(impl Optimizer + ?Sized)) -> Result<Scheduler<S>> {
        let groups = 0..optimizer.groups();
        if groups.clone().any(|g| schedule.momentum(g, 0).is_some() && optimizer.momentum(g).is_none()) {
            let reason = "the schedule moves the momentum, but the optimizer has none, or was made with momentum 0";
            return Err(Error::invalid("scheduler", reason));
        }
        let base: Vec<f64> = groups.map(|group| schedule.base(group, optimizer.group_lr(group))).collect();
        let mut scheduler = Scheduler { schedule, epoch: 0, lr: base.clone(), base };
        scheduler.advance_to(0, optimizer, |schedule, at| schedule.next(at));
        Ok(scheduler)
    }

    /// Moves on to the next epoch.
    ///
    /// # Panics
    /// If a rate is negative or not finite; if the optimizer has other groups than in the beginning.
    #[track_caller]
    pub fn step(&mut self, optimizer: &(impl Optimizer + ?Sized)) {
        self.advance_to(self.epoch + 1, optimizer, |schedule, at| schedule.next(at));
    }

    /// Moves to any epoch, by the closed form where there is one, else by the next rate's.
    ///
    /// # Panics
    /// As [`Scheduler::step`].
    #[track_caller]
    pub fn jump(&mut self, epoch: usize, optimizer: &(impl Optimizer + ?Sized)) {
        self.advance_to(epoch, optimizer, |schedule, at| schedule.closed(at).unwrap_or_else(|| schedule.next(at)));
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

    /// Takes over a snapshot. The optimizer's rates are in its own.
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

    #[track_caller]
    fn advance_to(&mut self, epoch: usize, optimizer: &(impl Optimizer + ?Sized), rate: impl Fn(&S, At) -> f64) {
        let groups = optimizer.groups();
        assert!(groups == self.lr.len(), "scheduler: the optimizer has {groups} groups, and had {}", self.lr.len());
        self.epoch = epoch;
        for group in 0..groups {
            let at = At { epoch, group, base: self.base[group], lr: self.lr[group] };
            self.lr[group] = rate(&self.schedule, at);
            optimizer.set_group_lr(group, self.lr[group]);
            if let Some(momentum) = self.schedule.momentum(group, epoch) {
                optimizer.set_momentum(group, momentum);
            }
        }
    }
}
