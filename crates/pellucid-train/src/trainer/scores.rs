//! [`Scores`]: named values of an epoch or an evaluation.

use crate::text_table::decimal_text;
use std::fmt;
use std::ops::Index;

/// Named values, in order: losses, metrics, learning rates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores(pub(super) Vec<(String, f64)>);

impl Scores {
    /// Returns the value of a name, if it exists.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(score_name, _)| score_name == name).map(|(_, value)| *value)
    }

    /// Returns all names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// Returns the message for a name that does not exist, with all names.
    pub(super) fn missing(&self, name: &str) -> String {
        let names: Vec<String> = self.iter().map(|(name, _)| format!("`{name}`")).collect();
        format!("there is no value `{name}`; the values are {}", names.join(", "))
    }

    pub(super) fn push(&mut self, name: impl Into<String>, value: f64) {
        self.0.push((name.into(), value));
    }
}

/// Returns the value of a name.
///
/// # Panics
/// Panics if the name does not exist; the message lists the names.
impl Index<&str> for Scores {
    type Output = f64;

    #[track_caller]
    fn index(&self, name: &str) -> &f64 {
        match self.0.iter().find(|(score_name, _)| score_name == name) {
            Some((_, value)) => value,
            None => panic!("{}", self.missing(name)),
        }
    }
}

/// Prints the values with their names, as in `train_loss 0.1234, validation_loss 0.2345`.
impl fmt::Display for Scores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_values(f, self.iter())
    }
}

fn write_values<'a>(f: &mut fmt::Formatter<'_>, values: impl Iterator<Item = (&'a str, f64)>) -> fmt::Result {
    for (index, (name, value)) in values.enumerate() {
        write!(f, "{}{name} {}", if index > 0 { ", " } else { "" }, short_number(value))?;
    }
    Ok(())
}

/// Formats a number for a line: integers without decimals, others as in a table.
pub(super) fn short_number(value: f64) -> String {
    let is_integer = value.abs() < 1e9 && value.fract() == 0.0;
    if is_integer { format!("{value:.0}") } else { decimal_text(value) }
}

/// Named numbers of a step, as a progress bar shows them.
#[cfg_attr(not(feature = "progress"), allow(dead_code, reason = "only progress bars show steps"))]
pub(super) struct ShortList<'a>(pub(super) &'a [(&'static str, f64)]);

impl fmt::Display for ShortList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_values(f, self.0.iter().copied())
    }
}
