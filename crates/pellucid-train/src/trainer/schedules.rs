//! The schedules of a run.

use crate::metrics::Goal;
use pellucid_nn::Stateful;
use pellucid_nn::optim::Optimizer;
use pellucid_nn::optim::schedule::{PlateauMode, ReduceLrOnPlateau, ReduceLrOnPlateauOptions, Schedule, Scheduler};
use pellucid_tensor::{Error, Result};

/// The unit in which a schedule advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScheduleUnit {
    Step,
    Epoch,
}

/// The rule that sets the rates of an optimizer.
enum RateRule<'f> {
    /// A schedule that has not started.
    New(ScheduleUnit, Option<Box<dyn Schedule + 'f>>),
    /// A schedule that advances by steps or epochs.
    Timed(ScheduleUnit, Scheduler<Box<dyn Schedule + 'f>>),
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
        RunSchedule { optimizer: optimizer.map(str::to_string), rule: RateRule::New(unit, Some(Box::new(schedule))) }
    }

    pub(super) fn from_plateau(optimizer: Option<&str>, options: ReduceLrOnPlateauOptions) -> RunSchedule<'f> {
        RunSchedule { optimizer: optimizer.map(str::to_string), rule: RateRule::NewPlateau(options) }
    }

    /// Sets the initial rates, once. `goal` is the direction of the monitored value.
    pub(super) fn begin(&mut self, goal: Goal, optimizers: &[(&'static str, &dyn Optimizer)]) -> Result<()> {
        let optimizer = find(optimizers, self.optimizer.as_deref())?;
        match &mut self.rule {
            RateRule::New(unit, schedule) => {
                if let Some(schedule) = schedule.take() {
                    self.rule = RateRule::Timed(*unit, Scheduler::try_new(schedule, optimizer)?);
                }
            }
            RateRule::NewPlateau(options) => {
                let mode = match goal {
                    Goal::Minimize => PlateauMode::Min,
                    Goal::Maximize => PlateauMode::Max,
                };
                let options = ReduceLrOnPlateauOptions { mode, ..options.clone() };
                self.rule = RateRule::Plateau(ReduceLrOnPlateau::try_new(options, optimizer)?);
            }
            RateRule::Timed(..) | RateRule::Plateau(_) => {}
        }
        Ok(())
    }

    /// Advances the schedule after a step or an epoch.
    pub(super) fn advance(&mut self, unit: ScheduleUnit) -> Result<()> {
        match &mut self.rule {
            RateRule::Timed(own, scheduler) if *own == unit => scheduler.try_step(),
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

    /// Returns the schedule as a part of a checkpoint, if it has started.
    pub(super) fn as_stateful(&self) -> Option<&dyn Stateful> {
        match &self.rule {
            RateRule::Timed(_, scheduler) => Some(scheduler),
            RateRule::Plateau(plateau) => Some(plateau),
            RateRule::New(..) | RateRule::NewPlateau(_) => None,
        }
    }
}

/// Returns an error if schedules would overwrite each other's rates, or an optimizer is ambiguous.
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
        let reason =
            format!("the task has the optimizers {names}; select one with schedule_steps_of or schedule_epochs_of");
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
