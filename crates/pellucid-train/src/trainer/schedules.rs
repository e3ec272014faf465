//! The schedules of a run.

use pellucid_nn::optim::Optimizer;
use pellucid_nn::optim::schedule::{Schedule, Scheduler};
use pellucid_tensor::{Error, Result};

/// The unit in which a schedule advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScheduleUnit {
    Step,
    Epoch,
}

/// A schedule of an optimizer of the task.
pub(super) struct RunSchedule<'f> {
    /// The name of the optimizer; `None` for the first one.
    pub(super) optimizer: Option<String>,
    unit: ScheduleUnit,
    /// The schedule, until the run begins.
    schedule: Option<Box<dyn Schedule + 'f>>,
    pub(super) scheduler: Option<Scheduler<Box<dyn Schedule + 'f>>>,
}

impl<'f> RunSchedule<'f> {
    pub(super) fn new(optimizer: Option<&str>, unit: ScheduleUnit, schedule: impl Schedule + 'f) -> RunSchedule<'f> {
        let optimizer = optimizer.map(str::to_string);
        RunSchedule { optimizer, unit, schedule: Some(Box::new(schedule)), scheduler: None }
    }

    /// Sets the rates of the beginning, once.
    pub(super) fn begin(&mut self, optimizers: &[(&'static str, &dyn Optimizer)]) -> Result<()> {
        let optimizer = find(optimizers, self.optimizer.as_deref())?;
        if let Some(schedule) = self.schedule.take() {
            self.scheduler = Some(Scheduler::try_new(schedule, optimizer)?);
        }
        Ok(())
    }

    /// Advances the schedule after a step or an epoch.
    pub(super) fn advance(&mut self, unit: ScheduleUnit, optimizers: &[(&'static str, &dyn Optimizer)]) -> Result<()> {
        match &mut self.scheduler {
            Some(scheduler) if self.unit == unit => scheduler.try_step(find(optimizers, self.optimizer.as_deref())?),
            _ => Ok(()),
        }
    }
}

/// Returns an error for schedules that would overwrite each other's rates, or whose optimizer is ambiguous.
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
        let names = optimizers.iter().map(|(own, _)| format!("`{own}`")).collect::<Vec<_>>().join(", ");
        let reason =
            format!("the task has the optimizers {names}; name one by schedule_steps_of or schedule_epochs_of");
        return Err(Error::invalid("schedule", reason));
    }
    Ok(())
}

fn find<'a>(optimizers: &[(&'static str, &'a dyn Optimizer)], name: Option<&str>) -> Result<&'a dyn Optimizer> {
    let found = match name {
        None => optimizers.first(),
        Some(name) => optimizers.iter().find(|(own, _)| *own == name),
    };
    found.map(|(_, optimizer)| *optimizer).ok_or_else(|| {
        let names = optimizers.iter().map(|(own, _)| format!("`{own}`")).collect::<Vec<_>>().join(", ");
        let name = name.map_or("first".to_string(), |name| format!("`{name}`"));
        Error::invalid("schedule", format!("the task has no {name} optimizer; its optimizers are {names}"))
    })
}
