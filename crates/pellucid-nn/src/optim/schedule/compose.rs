//! Compositions of schedules.

use super::{Schedule, SchedulePoint};
use pellucid_tensor::{Error, Result};

/// Schedules in sequence: each starts at its milestone, which is its own epoch 0.
#[doc(alias = "SequentialLR")]
#[derive(Debug)]
pub struct SequentialLr {
    first: Box<dyn Schedule>,
    /// The later schedules with their first epochs.
    others: Vec<(usize, Box<dyn Schedule>)>,
}

impl SequentialLr {
    /// Creates a sequence that begins with this schedule; [`SequentialLr::then`] adds later schedules.
    pub fn new(first: impl Schedule + 'static) -> SequentialLr {
        SequentialLr { first: Box::new(first), others: Vec::new() }
    }

    /// Adds a schedule that starts at epoch `milestone`, its own epoch 0. The milestones must be above 0 and ascend,
    /// which a [`Scheduler`](super::Scheduler) checks.
    ///
    /// ```
    /// use pellucid::nn::optim::schedule::{CosineAnnealingLr, Schedule, SequentialLr, StepLr, WarmupLr};
    /// let schedule = SequentialLr::new(WarmupLr::new(5)).then(5, CosineAnnealingLr::new(20));
    /// let schedule = schedule.then(25, StepLr::new(10));
    /// assert!(schedule.check().is_ok() && schedule.then(25, StepLr::new(10)).check().is_err());
    /// ```
    #[must_use]
    pub fn then(mut self, milestone: usize, schedule: impl Schedule + 'static) -> SequentialLr {
        self.others.push((milestone, Box::new(schedule)));
        self
    }

    /// Returns the schedule of an epoch, the epoch counted from the start of that schedule, and whether the schedule
    /// takes over from another one in this epoch.
    fn holding(&self, epoch: usize) -> (&dyn Schedule, usize, bool) {
        match self.others.iter().rev().find(|(from, _)| *from <= epoch) {
            Some((from, schedule)) => (schedule, epoch - from, *from == epoch && epoch > 0),
            None => (&*self.first, epoch, false),
        }
    }

    fn at(&self, point: SchedulePoint) -> (&dyn Schedule, SchedulePoint, bool) {
        let (schedule, epoch, begins) = self.holding(point.epoch);
        (schedule, SchedulePoint { epoch, base: schedule.base(point.group, point.base), ..point }, begins)
    }
}

impl Schedule for SequentialLr {
    fn name(&self) -> &'static str {
        "SequentialLr"
    }

    fn rate(&self, point: SchedulePoint) -> f64 {
        let (schedule, point, begins) = self.at(point);
        if begins { schedule.begin(point) } else { schedule.rate(point) }
    }

    fn chained(&self, point: SchedulePoint) -> f64 {
        let (schedule, point, begins) = self.at(point);
        if begins { schedule.begin(point) } else { schedule.chained(point) }
    }

    fn begin(&self, point: SchedulePoint) -> f64 {
        let (first, point, _) = self.at(point);
        first.begin(point)
    }

    fn momentum(&self, group: usize, epoch: usize) -> Option<f64> {
        let (schedule, epoch, _) = self.holding(epoch);
        schedule.momentum(group, epoch)
    }

    fn changes_momentum(&self) -> bool {
        self.first.changes_momentum() || self.others.iter().any(|(_, schedule)| schedule.changes_momentum())
    }

    fn check(&self) -> Result<()> {
        let mut start = 0;
        for &(milestone, _) in &self.others {
            if milestone <= start {
                let reason = format!(
                    "each schedule must start at a later epoch than the schedule before it, which starts at epoch \
                     {start}; got the milestone {milestone}"
                );
                return Err(Error::invalid(self.name(), reason));
            }
            start = milestone;
        }
        self.first.check()?;
        self.others.iter().try_for_each(|(_, schedule)| schedule.check())
    }
}

/// Several schedules combined: each changes the rate that the previous schedule returned.
#[derive(Debug)]
pub struct ChainedScheduler(Vec<Box<dyn Schedule>>);

impl ChainedScheduler {
    /// Creates a chain that begins with this schedule; [`ChainedScheduler::and`] adds further schedules.
    pub fn new(first: impl Schedule + 'static) -> ChainedScheduler {
        ChainedScheduler(vec![Box::new(first)])
    }

    /// Adds a schedule.
    #[must_use]
    pub fn and(mut self, schedule: impl Schedule + 'static) -> ChainedScheduler {
        self.0.push(Box::new(schedule));
        self
    }
}

/// Returns the previous rate after each of the schedules has changed it.
fn chained_rate(schedules: &[Box<dyn Schedule>], point: SchedulePoint) -> f64 {
    schedules.iter().fold(point.lr, |lr, schedule| {
        schedule.chained(SchedulePoint { lr, base: schedule.base(point.group, point.base), ..point })
    })
}

impl Schedule for ChainedScheduler {
    fn name(&self) -> &'static str {
        "ChainedScheduler"
    }

    fn rate(&self, point: SchedulePoint) -> f64 {
        chained_rate(&self.0, point)
    }

    /// Returns the rate at which the first schedule begins, changed by the later schedules.
    fn begin(&self, point: SchedulePoint) -> f64 {
        let Some((first, others)) = self.0.split_first() else { return point.lr };
        let base = first.base(point.group, point.base);
        chained_rate(others, SchedulePoint { lr: first.begin(SchedulePoint { base, ..point }), ..point })
    }

    fn base(&self, group: usize, lr: f64) -> f64 {
        self.0.first().map_or(lr, |first| first.base(group, lr))
    }

    fn momentum(&self, group: usize, epoch: usize) -> Option<f64> {
        self.0.iter().rev().find_map(|schedule| schedule.momentum(group, epoch))
    }

    fn changes_momentum(&self) -> bool {
        self.0.iter().any(|schedule| schedule.changes_momentum())
    }

    fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(|schedule| schedule.check())
    }
}
