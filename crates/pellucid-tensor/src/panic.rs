//! How a refused call becomes a panic: at the caller's line, with the typed error as the payload.

use pellucid_ir::{Error, Result};
use std::panic::{self, PanicHookInfo};
use std::sync::Once;

/// The value, or a panic at the caller's line whose payload is the [`Error`] and whose message is
/// the error's text.
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
        // `capture` returns the error; nothing has to be printed on the way.
        panic::resume_unwind(Box::new(error));
    }
    static HOOK: Once = Once::new();
    // The standard hook prints only strings. Ours prints an `Error` too, and leaves every other
    // payload to the hook that was there.
    if !std::thread::panicking() {
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| match info.payload().downcast_ref::<Error>() {
                Some(error) => print(info, error),
                None => before(info),
            }));
        });
    }
    panic::panic_any(error)
}

fn print(info: &PanicHookInfo<'_>, error: &Error) {
    let thread = std::thread::current();
    let place = info.location().map(|l| l.to_string()).unwrap_or_default();
    eprintln!("\nthread '{}' panicked at {place}:\n{error}", thread.name().unwrap_or("<unnamed>"));
}
