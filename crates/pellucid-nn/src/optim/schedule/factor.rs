//! Schedules that multiply the initial rate by a factor that depends on the epoch.

use super::SchedulePoint;

/// A schedule η(t) = η_min + (η₀ − η_min)·f(t), where η₀ is the initial rate. `rate` and `chained` of
/// [`Schedule`](super::Schedule) are computed from the factor f.
pub(super) trait Factor {
    /// Returns f(t) in epoch t.
    fn factor(&self, epoch: usize) -> f64;

    /// Returns η_min.
    fn eta_min(&self) -> f64 {
        0.0
    }

    fn rate(&self, point: SchedulePoint) -> f64 {
        let low = self.eta_min();
        low + (point.base - low) * self.factor(point.epoch)
    }

    /// Returns the previous rate, changed by f(t)/f(t − 1). In epoch 0, f(−1) is 1.
    fn chained(&self, point: SchedulePoint) -> f64 {
        let (now, low) = (self.factor(point.epoch), self.eta_min());
        match point.epoch.checked_sub(1).map_or(1.0, |before| self.factor(before)) {
            before if before == now => point.lr,
            // f(t − 1) is 0, so the quotient would be infinite; the rate rises from η_min.
            0.0 => point.lr + (point.base - low) * now,
            before => low + (point.lr - low) * (now / before),
        }
    }
}

/// Implements [`Schedule`](super::Schedule) for types that implement [`Factor`]. `name_and_check!` implements the
/// checks of the options.
macro_rules! factor_schedules {
    ($($schedule:ident { $($check:tt)+ })+) => {$(
        impl $crate::optim::schedule::Schedule for $schedule {
            $crate::optim::schedule::checked_option::name_and_check!($schedule { $($check)+ });

            fn rate(&self, point: $crate::optim::schedule::SchedulePoint) -> f64 {
                $crate::optim::schedule::factor::Factor::rate(self, point)
            }

            fn chained(&self, point: $crate::optim::schedule::SchedulePoint) -> f64 {
                $crate::optim::schedule::factor::Factor::chained(self, point)
            }
        }
    )+};
}
pub(super) use factor_schedules;
