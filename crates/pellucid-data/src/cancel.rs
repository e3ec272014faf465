//! The cancellation of worker threads between two samples.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    /// The flag that cancels the work of this thread; empty on a thread that is not a worker.
    static CANCELLED: OnceCell<Arc<AtomicBool>> = const { OnceCell::new() };
}

/// Makes `flag` cancel the work of this thread.
pub(crate) fn set_cancel_flag(flag: Arc<AtomicBool>) {
    CANCELLED.with(|cancelled| drop(cancelled.set(flag)));
}

/// Returns true on a worker thread whose results are no longer needed.
pub(crate) fn is_cancelled() -> bool {
    CANCELLED.with(|cancelled| cancelled.get().is_some_and(|flag| flag.load(Ordering::Relaxed)))
}
