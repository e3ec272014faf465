//! The schedules of a run.

use super::{Trainer, TrainingTask};
use crate::metrics::Goal;
use pellucid_derive::panicking_form;
use pellucid_nn::Stateful;
use pellucid_nn::optim::Optimizer;
use pellucid_nn::optim::schedule::{ReduceLrOnPlateau, ReduceLrOnPlateauOptions, Schedule, Scheduler};
use pellucid_tensor::{Error, Result, unwrap};
use std::sync::Arc;

/// The unit in which a [schedule](Trainer::schedule) advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleUnit {
    /// After each step; the schedule counts steps of the run instead of epochs. A step is a batch: with
    /// [`accumulate(k)`](Trainer::accumulate), an update consists of k steps.
    Step,
    /// After each epoch.
    Epoch,
}

/// The rule that sets the rates of an optimizer.
enum RateRule<'f> {
    /// A schedule that has not started. It is shared, so that it is not lost if it cannot start.
    New(ScheduleUnit, Arc<dyn Schedule + 'f>),
    /// A schedule that advances by steps or epochs.
    Timed(ScheduleUnit, Scheduler<Arc<dyn Schedule + 'f>>),
    /// The options of a plateau schedule that has not started.
    NewPlateau(ReduceLrOnPlateauOptions),
    /// A plateau schedule, which depends on the monitored value.
    Plateau(ReduceLrOnPlateau),
}

/// A schedule of an optimizer of the task.
pub(super) struct RunSchedule<'f> {
    /// The name of the optimizer; `None` for the first optimizer.
    optimizer: Option<String>,
    rule: RateRule<'f>,
}

impl<'f> RunSchedule<'f> {
    pub(super) fn new(optimizer: Option<&str>, unit: ScheduleUnit, schedule: impl Schedule + 'f) -> RunSchedule<'f> {
        RunSchedule { optimizer: optimizer.map(str::to_string), rule: RateRule::New(unit, Arc::new(schedule)) }
    }

    pub(super) fn from_plateau(optimizer: Option<&str>, options: ReduceLrOnPlateauOptions) -> RunSchedule<'f> {
        RunSchedule { optimizer: optimizer.map(str::to_string), rule: RateRule::NewPlateau(options) }
    }

    /// Sets the initial rates, once. `goal` is the direction of the monitored value.
    pub(super) fn begin(&mut self, goal: Goal, optimizers: &[(&'static str, &dyn Optimizer)]) -> Result<()> {
        let optimizer = find(optimizers, self.optimizer.as_deref())?;
        match &mut self.rule {
            RateRule::New(unit, schedule) => {
                self.rule = RateRule::Timed(*unit, Scheduler::try_new(schedule.clone(), optimizer)?);
            }
            RateRule::NewPlateau(options) => {
                let options = ReduceLrOnPlateauOptions { goal, ..options.clone() };
                self.rule = RateRule::Plateau(ReduceLrOnPlateau::try_new(options, optimizer)?);
            }
            RateRule::Timed(..) | RateRule::Plateau(_) => {}
        }
        Ok(())
    }

    /// Advances the schedule after a step or an epoch.
    pub(super) fn advance(&mut self, unit: ScheduleUnit) -> Result<()> {
        match &mut self.rule {
            RateRule::Timed(schedule_unit, scheduler) if *schedule_unit == unit => scheduler.try_step(),
            _ => Ok(()),
        }
    }

    /// Adds the monitored value of an epoch.
    pub(super) fn measure(&mut self, value: f64) -> Result<()> {
        match &mut self.rule {
            RateRule::Plateau(plateau) => plateau.try_step(value),
            _ => Ok(()),
        }
    }

    /// Returns the name of the schedule, its unit, and the name of its optimizer, which is omitted for the first
    /// optimizer.
    pub(super) fn description(&self) -> String {
        let (name, unit) = match &self.rule {
            RateRule::New(unit, schedule) => (schedule.name(), *unit),
            RateRule::Timed(unit, scheduler) => (scheduler.schedule().name(), *unit),
            RateRule::NewPlateau(_) | RateRule::Plateau(_) => ("ReduceLrOnPlateau", ScheduleUnit::Epoch),
        };
        let unit = match unit {
            ScheduleUnit::Step => "steps",
            ScheduleUnit::Epoch => "epochs",
        };
        let optimizer = self.optimizer.as_ref().map(|optimizer| format!(" of {optimizer}")).unwrap_or_default();
        format!("{name} by {unit}{optimizer}")
    }

    /// Returns the schedule as a part of a checkpoint, if it has started.
    pub(super) fn as_stateful(&self) -> Option<&dyn Stateful> {
        match &self.rule {
            RateRule::Timed(_, scheduler) => Some(scheduler),
            RateRule::Plateau(plateau) => Some(plateau),
            RateRule::New(..) | RateRule::NewPlateau(_) => None,
        }
    }
}

/// Returns an error if schedules would overwrite each other's rates, or if a schedule does not name its optimizer
/// although the task has several.
pub(super) fn check_schedules(
    schedules: &[RunSchedule<'_>],
    optimizers: &[(&'static str, &dyn Optimizer)],
) -> Result<()> {
    let Some((first, _)) = optimizers.first() else { return Ok(()) };
    let names: Vec<&str> = schedules.iter().map(|schedule| schedule.optimizer.as_deref().unwrap_or(first)).collect();
    if let Some(name) = names.iter().enumerate().find_map(|(k, name)| names[..k].contains(name).then_some(name)) {
        let reason = format!(
            "the optimizer `{name}` has two schedules, which would overwrite each other's rates; combine them in a \
             ChainedScheduler"
        );
        return Err(Error::invalid("schedule", reason));
    }
    if optimizers.len() > 1 && schedules.iter().any(|schedule| schedule.optimizer.is_none()) {
        let names = optimizers.iter().map(|(other_name, _)| format!("`{other_name}`")).collect::<Vec<_>>().join(", ");
        let reason = format!("the task has the optimizers {names}; select one with schedule_of");
        return Err(Error::invalid("schedule", reason));
    }
    Ok(())
}

fn find<'a>(optimizers: &[(&'static str, &'a dyn Optimizer)], name: Option<&str>) -> Result<&'a dyn Optimizer> {
    let optimizer_entry = match name {
        None => optimizers.first(),
        Some(name) => optimizers.iter().find(|(other_name, _)| *other_name == name),
    };
    optimizer_entry.map(|(_, optimizer)| *optimizer).ok_or_else(|| {
        let names = optimizers.iter().map(|(other_name, _)| format!("`{other_name}`")).collect::<Vec<_>>().join(", ");
        let name = name.map_or("first".to_string(), |name| format!("`{name}`"));
        Error::invalid("schedule", format!("the task has no {name} optimizer; its optimizers are {names}"))
    })
}

impl<'f, T: TrainingTask> Trainer<'f, T> {
    /// Sets the learning rates of the optimizer by a schedule, which advances after each step or each epoch:
    ///
    /// ```
    /// use pellucid::prelude::*;
    ///
    /// let (x, y) = (Tensor::randn([32, 3], DType::F32), Tensor::randn([32, 1], DType::F32));
    /// let model = Linear::new(3, 1);
    /// let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.5, ..Default::default() });
    /// let decay = nn::optim::schedule::ExponentialLr { gamma: 0.5 };
    /// let mut trainer = Trainer::new(model, MseLoss::default(), sgd).epochs(2).quiet(true);
    /// trainer = trainer.schedule(decay, ScheduleUnit::Epoch);
    /// let history = trainer.fit(&mut Batches::new(&[&x, &y], 8), None)?;
    /// assert_eq!(history.column("lr").unwrap(), [0.5, 0.25]);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn schedule(self, schedule: impl Schedule + 'f, unit: ScheduleUnit) -> Self {
        self.with_schedule(RunSchedule::new(None, unit, schedule))
    }

    /// Sets the learning rates of one of several [optimizers](TrainingTask::optimizers), as
    /// [`schedule`](Trainer::schedule) does.
    pub fn schedule_of(self, optimizer: &str, schedule: impl Schedule + 'f, unit: ScheduleUnit) -> Self {
        self.with_schedule(RunSchedule::new(Some(optimizer), unit, schedule))
    }

    /// Multiplies the learning rate by a factor after epochs in which the [monitored](Trainer::monitor) value has not
    /// improved ([`ReduceLrOnPlateau`]). The direction of the monitored value replaces the option `goal`. The state of
    /// the run contains the state of the schedule.
    ///
    /// ```
    /// use pellucid::nn::optim::schedule::ReduceLrOnPlateauOptions;
    /// use pellucid::prelude::*;
    ///
    /// let (x, y) = (Tensor::randn([32, 3], DType::F32), Tensor::randn([32, 1], DType::F32));
    /// let model = Linear::new(3, 1);
    /// let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.5, ..Default::default() });
    /// let mut trainer = Trainer::new(model, MseLoss::default(), sgd).epochs(40).quiet(true);
    /// trainer = trainer.reduce_lr_on_plateau(ReduceLrOnPlateauOptions { patience: 2, ..Default::default() });
    /// let history = trainer.fit(&mut Batches::new(&[&x, &y], 8), None)?;
    /// assert!(history.last("lr").unwrap() < 0.5);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for invalid options.
    #[panicking_form]
    pub fn try_reduce_lr_on_plateau(self, options: ReduceLrOnPlateauOptions) -> Result<Self> {
        self.with_plateau(None, options)
    }

    /// Reduces the learning rate of one of several [optimizers](TrainingTask::optimizers), as
    /// [`reduce_lr_on_plateau`](Trainer::reduce_lr_on_plateau) does.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for invalid options.
    #[panicking_form]
    pub fn try_reduce_lr_on_plateau_of(self, optimizer: &str, options: ReduceLrOnPlateauOptions) -> Result<Self> {
        self.with_plateau(Some(optimizer), options)
    }

    fn with_plateau(self, optimizer: Option<&str>, options: ReduceLrOnPlateauOptions) -> Result<Self> {
        // This call only checks the options. The schedule is created when the direction of the value is known.
        options.check()?;
        Ok(self.with_schedule(RunSchedule::from_plateau(optimizer, options)))
    }

    fn with_schedule(mut self, schedule: RunSchedule<'f>) -> Self {
        self.run.schedules.push(schedule);
        self
    }
}
