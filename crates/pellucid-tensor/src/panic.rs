//! How a refused call becomes a panic: at the caller's line, with the error's text.

use pellucid_ir::{Error, Result};
use std::panic;

/// The value, or a panic at the caller's line whose message is the error's text.
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
    if crate::engine::mode() == crate::engine::Mode::Capture {
        // `capture` returns the typed error; nothing has to be printed on the way.
        panic::resume_unwind(Box::new(error));
    }
    panic!("{error}")
}
