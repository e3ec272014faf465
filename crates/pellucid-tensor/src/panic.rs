//! Panics for failed calls, at the caller's line and with the error's text.

use pellucid_ir::{Error, Result};
use std::panic;

/// Returns the value, or panics at the caller's line with the error's text.
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
    if crate::engine::mode() == crate::engine::ExecutionMode::Capture {
        // `capture` catches this panic and returns the typed error, so nothing is printed.
        panic::resume_unwind(Box::new(error));
    }
    panic!("{error}")
}
