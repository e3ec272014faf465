//! Panics for failed calls, at the caller's line and with the error message.

use crate::execution_mode::is_capturing;
use pellucid_ir::{Error, Result};
use std::panic;

/// Returns the value, or panics at the caller's line with the error message.
#[track_caller]
pub fn unwrap<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => fail(error),
    }
}

#[cold]
#[track_caller]
fn fail(error: Error) -> ! {
    if is_capturing() {
        // `capture` catches this panic and returns the typed error, so nothing is printed.
        panic::resume_unwind(Box::new(error));
    }
    panic!("{error}")
}
