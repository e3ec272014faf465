//! Compositions of schedules.

use super::{Schedule, SchedulePoint};
use pellucid_derive::panicking_form;
use pellucid_tensor::{Error, Result, unwrap};

/// Schedules in sequence: each starts at its milestone, in its own epoch 0.
#[doc(alias = "SequentialLR")]
pub struct SequentialLr {
    first: Box<dyn Schedule>,
    /// The later schedules with their first epochs, in ascending order.
    others: Vec<(usize, Box<dyn Schedule>)>,
}

impl SequentialLr {
    /// Creates a sequence: `first` starts at epoch 0, each other schedule at its own epoch.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the epochs do not ascend strictly.
    #[panicking_form]
    pub fn try_new(first: impl Schedule + 'static, others: Vec<(usize, Box<dyn Schedule>)>) -> Result<SequentialLr> {
        if !others.windows(2).all(|w| w[0].0 < w[1].0) {
            let reason = "each schedule must start at a later epoch than the schedule before it";
            return Err(Error::invalid("SequentialLr", reason));
        }
        Ok(SequentialLr { first: Box::new(first), others })
    }

    /// Returns the schedule of an epoch, the epoch counted from the start of that schedule, and whether another
    /// schedule preceded it.
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

    fn momentum(&self, group: usize, epoch: usize) -> Option<f64> {
        let (schedule, epoch, _) = self.holding(epoch);
        schedule.momentum(group, epoch)
    }

    fn check(&self) -> Result<()> {
        self.first.check()?;
        self.others.iter().try_for_each(|(_, schedule)| schedule.check())
    }
}

/// Several schedules combined: each changes the rate that the previous ones returned.
pub struct ChainedScheduler(Vec<Box<dyn Schedule>>);

impl ChainedScheduler {
    /// Creates a chain of these schedules, in this order.
    pub fn new(schedules: Vec<Box<dyn Schedule>>) -> ChainedScheduler {
        ChainedScheduler(schedules)
    }
}

impl Schedule for ChainedScheduler {
    fn name(&self) -> &'static str {
        "ChainedScheduler"
    }

    fn rate(&self, point: SchedulePoint) -> f64 {
        self.0.iter().fold(point.lr, |lr, schedule| {
            schedule.chained(SchedulePoint { lr, base: schedule.base(point.group, point.base), ..point })
        })
    }

    fn base(&self, group: usize, lr: f64) -> f64 {
        self.0.first().map_or(lr, |first| first.base(group, lr))
    }

    fn momentum(&self, group: usize, epoch: usize) -> Option<f64> {
        self.0.iter().rev().find_map(|schedule| schedule.momentum(group, epoch))
    }

    fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(|schedule| schedule.check())
    }
}
