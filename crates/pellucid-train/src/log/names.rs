//! Names and formatting of logged values.

use pellucid_tensor::{Error, Result};

/// Checks the names of the values of one row. `reserved` is the name under which the row number is logged.
///
/// # Errors
/// [`Error::InvalidArgument`] for the reserved name and for a repeated name.
pub(super) fn check_names(op: &'static str, reserved: &str, values: &[(&str, f64)]) -> Result<()> {
    for (index, (name, _)) in values.iter().enumerate() {
        if *name == reserved {
            let reason = format!("the name `{reserved}` is reserved for the row number; rename the value");
            return Err(Error::invalid(op, reason));
        }
        if values[..index].iter().any(|(earlier, _)| earlier == name) {
            return Err(Error::invalid(op, format!("the name `{name}` occurs twice in one row; rename one value")));
        }
    }
    Ok(())
}

/// Formats a number such that parsing the string returns the same number: `3`, `0.1`, `1e-7`, `NaN`, `inf`.
pub(super) fn number_text(value: f64) -> String {
    // `Display` writes all digits of large integers, and `Debug` writes `3.0`.
    if value.fract() == 0.0 && value.abs() < 1e15 { value.to_string() } else { format!("{value:?}") }
}
