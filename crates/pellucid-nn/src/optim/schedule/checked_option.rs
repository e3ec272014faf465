//! Checks of the options of schedules.

use super::PerGroup;
use pellucid_tensor::OptionRange;
use pellucid_tensor::Result;

/// An option whose numbers must be in a range.
pub(super) trait CheckedOption {
    /// Returns an error that names the schedule, the option and an example value if a number is outside the range.
    fn check_range(&self, range: OptionRange, schedule: &'static str, option: &str, usual: f64) -> Result<()>;
}

impl CheckedOption for f64 {
    fn check_range(&self, range: OptionRange, schedule: &'static str, option: &str, usual: f64) -> Result<()> {
        range.check(schedule, option, *self, usual)
    }
}

impl CheckedOption for usize {
    fn check_range(&self, range: OptionRange, schedule: &'static str, option: &str, usual: f64) -> Result<()> {
        range.check(schedule, option, *self as f64, usual)
    }
}

impl CheckedOption for PerGroup {
    fn check_range(&self, range: OptionRange, schedule: &'static str, option: &str, usual: f64) -> Result<()> {
        let values = match self {
            PerGroup::All(value) => std::slice::from_ref(value),
            PerGroup::Each(values) => values,
        };
        OptionRange::COUNT.check(schedule, &format!("the number of values of {option}"), values.len() as f64, 1.0)?;
        values.iter().try_for_each(|value| range.check(schedule, option, *value, usual))
    }
}

/// Implements `name` and `check` of [`Schedule`](super::Schedule). Each check is the name of an [`OptionRange`], the
/// option and an example value.
macro_rules! name_and_check {
    ($schedule:ident { $($range:ident $option:ident = $usual:literal),+ $(,)? }) => {
        fn name(&self) -> &'static str {
            stringify!($schedule)
        }

        fn check(&self) -> pellucid_tensor::Result<()> {
            $($crate::optim::schedule::checked_option::CheckedOption::check_range(
                &self.$option,
                pellucid_tensor::OptionRange::$range,
                stringify!($schedule),
                stringify!($option),
                $usual,
            )?;)+
            Ok(())
        }
    };
}
pub(super) use name_and_check;
