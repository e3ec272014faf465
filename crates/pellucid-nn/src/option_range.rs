//! Ranges of numeric options. An error names the option, its range, its value, and an example value.

use pellucid_tensor::{Error, Result};

/// The range of a numeric option.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OptionRange {
    text: &'static str,
    contains: fn(f64) -> bool,
}

impl OptionRange {
    pub(crate) const NONNEGATIVE: OptionRange =
        OptionRange { text: "finite and not negative", contains: |x| x.is_finite() && x >= 0.0 };
    pub(crate) const POSITIVE: OptionRange =
        OptionRange { text: "finite and above 0", contains: |x| x.is_finite() && x > 0.0 };
    pub(crate) const ABOVE_ONE: OptionRange =
        OptionRange { text: "finite and above 1", contains: |x| x.is_finite() && x > 1.0 };
    pub(crate) const INNER_FRACTION: OptionRange = OptionRange { text: "in (0, 1)", contains: |x| x > 0.0 && x < 1.0 };
    pub(crate) const NONPOSITIVE: OptionRange =
        OptionRange { text: "finite and not positive", contains: |x| x.is_finite() && x <= 0.0 };
    pub(crate) const AT_LEAST_ONE: OptionRange =
        OptionRange { text: "finite and at least 1", contains: |x| x.is_finite() && x >= 1.0 };
    pub(crate) const COUNT: OptionRange = OptionRange { text: "at least 1", contains: |x| x >= 1.0 };
    pub(crate) const FRACTION: OptionRange = OptionRange { text: "in [0, 1)", contains: |x| (0.0..1.0).contains(&x) };
    pub(crate) const PROBABILITY: OptionRange =
        OptionRange { text: "in [0, 1]", contains: |x| (0.0..=1.0).contains(&x) };
    pub(crate) const POSITIVE_FRACTION: OptionRange =
        OptionRange { text: "in (0, 1]", contains: |x| x > 0.0 && x <= 1.0 };

    /// Returns an error of operation `op` if the value of an option is outside the range.
    pub(crate) fn check<T: Into<f64>>(self, op: &'static str, option: &str, value: T, usual: T) -> Result<()> {
        let (value, usual) = (value.into(), usual.into());
        if (self.contains)(value) {
            return Ok(());
        }
        Err(Error::invalid(op, format!("{option} must be {}, got {value}; for example {usual}", self.text)))
    }
}
