//! The calls of operations on this thread. An operation may call others, and errors name the outermost one. The kernels
//! of a call compute its results together, so a result has values only after the last of them.

use std::cell::Cell;

/// The lowest bit of [`CALL`]: set during a call.
const ACTIVE: u64 = 1;

thread_local! {
    /// Twice the number of the current or latest call, plus [`ACTIVE`] during a call.
    static CALL: Cell<u64> = const { Cell::new(0) };
    /// The name of the outermost operation in progress.
    static OUTERMOST: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Guard for a call of an operation. Nested calls are parts of this call.
pub(crate) struct CallScope {
    is_outermost: bool,
}

impl CallScope {
    #[inline(always)]
    pub(crate) fn enter() -> CallScope {
        let call = CALL.get();
        let is_outermost = call & ACTIVE == 0;
        if is_outermost {
            CALL.set((call + 2) | ACTIVE);
        }
        CallScope { is_outermost }
    }
}

impl Drop for CallScope {
    #[inline(always)]
    fn drop(&mut self) {
        if self.is_outermost {
            CALL.set(CALL.get() & !ACTIVE);
        }
    }
}

/// Returns the number of the current call. A kernel outside operations counts as a separate call.
pub(super) fn call_number() -> u64 {
    let call = CALL.get();
    if call & ACTIVE != 0 {
        return call >> 1;
    }
    CALL.set(call + 2);
    (call + 2) >> 1
}

/// Guard for a call of a named operation. `#[operation]` creates it.
pub(crate) struct OperationScope {
    is_outermost: bool,
    _call: CallScope,
}

impl OperationScope {
    /// Enters a call of the operation `op`. A nested call keeps the name of the outermost operation.
    #[inline(always)]
    pub(crate) fn enter(op: &'static str) -> OperationScope {
        let is_outermost = OUTERMOST.get().is_none();
        if is_outermost {
            OUTERMOST.set(Some(op));
        }
        OperationScope { is_outermost, _call: CallScope::enter() }
    }
}

impl Drop for OperationScope {
    #[inline(always)]
    fn drop(&mut self) {
        if self.is_outermost {
            OUTERMOST.set(None);
        }
    }
}

/// Returns the name of the outermost operation in progress.
pub(super) fn called_operation() -> Option<&'static str> {
    OUTERMOST.get()
}

/// Returns the name of the outermost operation in progress, or `op` outside operations.
#[inline]
pub(crate) fn outermost_operation(op: &'static str) -> &'static str {
    OUTERMOST.get().unwrap_or(op)
}
