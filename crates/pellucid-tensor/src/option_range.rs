//! Ranges of numeric options. An error names the option, its range, its value, and an example value.

use pellucid_ir::{Error, Result};

/// The range of a numeric option.
#[derive(Clone, Copy, Debug)]
pub struct OptionRange {
    text: &'static str,
    contains: fn(f64) -> bool,
}

impl OptionRange {
    /// Finite numbers of at least 0.
    pub const NONNEGATIVE: OptionRange =
        OptionRange { text: "finite and not negative", contains: |x| x.is_finite() && x >= 0.0 };
    /// Finite numbers above 0.
    pub const POSITIVE: OptionRange =
        OptionRange { text: "finite and above 0", contains: |x| x.is_finite() && x > 0.0 };
    /// Numbers above 0, ∞ included.
    pub const ABOVE_ZERO: OptionRange = OptionRange { text: "above 0", contains: |x| x > 0.0 };
    /// Finite numbers above 1.
    pub const ABOVE_ONE: OptionRange =
        OptionRange { text: "finite and above 1", contains: |x| x.is_finite() && x > 1.0 };
    /// Numbers in (0, 1).
    pub const INNER_FRACTION: OptionRange = OptionRange { text: "in (0, 1)", contains: |x| x > 0.0 && x < 1.0 };
    /// Finite numbers of at most 0.
    pub const NONPOSITIVE: OptionRange =
        OptionRange { text: "finite and not positive", contains: |x| x.is_finite() && x <= 0.0 };
    /// Finite numbers of at least 1.
    pub const AT_LEAST_ONE: OptionRange =
        OptionRange { text: "finite and at least 1", contains: |x| x.is_finite() && x >= 1.0 };
    /// Counts of at least 1.
    pub const COUNT: OptionRange = OptionRange { text: "at least 1", contains: |x| x >= 1.0 };
    /// Numbers in [0, 1).
    pub const FRACTION: OptionRange = OptionRange { text: "in [0, 1)", contains: |x| (0.0..1.0).contains(&x) };
    /// Finite numbers.
    pub const FINITE: OptionRange = OptionRange { text: "finite", contains: f64::is_finite };
    /// Numbers other than 0 and NaN.
    pub const NONZERO: OptionRange = OptionRange { text: "a nonzero number", contains: |x| x != 0.0 && !x.is_nan() };
    /// Numbers in [0, 1].
    pub const PROBABILITY: OptionRange = OptionRange { text: "in [0, 1]", contains: |x| (0.0..=1.0).contains(&x) };
    /// Numbers in (0, 1].
    pub const POSITIVE_FRACTION: OptionRange = OptionRange { text: "in (0, 1]", contains: |x| x > 0.0 && x <= 1.0 };

    /// Returns an error of operation `op` if the value of an option is outside the range. The error names `usual` as an
    /// example.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    pub fn check<T: Into<f64>>(self, op: &'static str, option: &str, value: T, usual: T) -> Result<()> {
        let (value, usual) = (value.into(), usual.into());
        if (self.contains)(value) {
            return Ok(());
        }
        Err(Error::invalid(op, format!("{option} must be {}, got {value}; try {usual}", self.text)))
    }

    /// Returns an error of operation `op` unless both bounds are inside the range and `min` ≤ `max`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    pub fn check_interval(self, op: &'static str, option: &str, [min, max]: [f64; 2], usual: [f64; 2]) -> Result<()> {
        self.check(op, &format!("the lower bound of {option}"), min, usual[0])?;
        self.check(op, &format!("the upper bound of {option}"), max, usual[1])?;
        if min <= max {
            return Ok(());
        }
        let [low, high] = usual;
        let reason = format!(
            "the lower bound of {option} must be at most the upper one, got {min} and {max}; try {low} and {high}"
        );
        Err(Error::invalid(op, reason))
    }
}
