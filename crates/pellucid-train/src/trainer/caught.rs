//! [`CaughtResult`]: restores state after an error or a panic.

use pellucid_tensor::Result;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

/// The result of a call, or its panic, which is resumed after the caller has restored the state.
#[must_use = "`resume_after` continues the panic"]
pub(super) struct CaughtResult<R>(thread::Result<Result<R>>);

impl<R> CaughtResult<R> {
    /// Calls `f` and catches a panic.
    pub(super) fn call(f: impl FnOnce() -> Result<R>) -> CaughtResult<R> {
        CaughtResult(catch_unwind(AssertUnwindSafe(f)))
    }

    /// Returns the value; `None` after an error or a panic.
    pub(super) fn value(&self) -> Option<&R> {
        self.0.as_ref().ok()?.as_ref().ok()
    }

    /// Resumes the panic, or returns the result. If the call and the restoration both failed, returns the error of the
    /// call.
    pub(super) fn resume_after(self, restored: Result<()>) -> Result<R> {
        let value = self.0.unwrap_or_else(|panic| resume_unwind(panic))?;
        restored.map(|()| value)
    }
}
