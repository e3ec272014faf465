//! The calls of operations on this thread. The kernels of a call compute its results together, so a result has values
//! only after the last of them.

use std::cell::Cell;

/// The lowest bit of [`CALL`]: set during a call.
const ACTIVE: u64 = 1;

thread_local! {
    /// Twice the number of the current or latest call, and [`ACTIVE`].
    static CALL: Cell<u64> = const { Cell::new(0) };
}

/// Guard of the call of an operation. Calls inside it are parts of this call.
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

/// Returns the number of the current call. A kernel outside operations is a call of its own.
pub(super) fn call_number() -> u64 {
    let call = CALL.get();
    if call & ACTIVE != 0 {
        return call >> 1;
    }
    CALL.set(call + 2);
    (call + 2) >> 1
}
