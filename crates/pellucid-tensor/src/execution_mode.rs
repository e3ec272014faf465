//! The execution mode of a thread: how the engine processes a submitted kernel.

use std::cell::Cell;

/// How a submitted kernel is processed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExecutionMode {
    /// A kernel runs when it is submitted, unless its device defers its kernels.
    Eager,
    /// A kernel runs when it is submitted, on all devices.
    Immediate,
    /// Like `Immediate`, but checks every result for NaN.
    NanChecked,
    Lazy,
    Capture,
}

thread_local! {
    pub(crate) static MODE: Cell<ExecutionMode> = const { Cell::new(ExecutionMode::Eager) };
}

#[inline]
pub(crate) fn mode() -> ExecutionMode {
    MODE.get()
}

/// Returns true if kernels on the CPU run when they are submitted.
#[inline]
pub(crate) fn is_eager() -> bool {
    matches!(MODE.get(), ExecutionMode::Eager | ExecutionMode::Immediate | ExecutionMode::NanChecked)
}

/// Returns true while this thread records a captured step or runs [`trace`](crate::trace()). The results of operations
/// then have no values.
#[inline]
pub fn is_capturing() -> bool {
    MODE.get() == ExecutionMode::Capture
}

/// Guard that restores the previous execution mode.
pub(crate) struct ModeGuard(ExecutionMode);

impl ModeGuard {
    pub(crate) fn to(mode: ExecutionMode) -> ModeGuard {
        ModeGuard(MODE.replace(mode))
    }
}

impl Drop for ModeGuard {
    fn drop(&mut self) {
        MODE.set(self.0);
    }
}
