//! The calls of operations on this thread. The kernels of a call compute its results together, so a result has values
//! only after the last of them.

use std::cell::Cell;

#[derive(Clone, Copy)]
struct CallState {
    /// The number of the current or latest call.
    number: u64,
    is_active: bool,
}

thread_local! {
    static CALL: Cell<CallState> = const { Cell::new(CallState { number: 0, is_active: false }) };
}

/// Guard of the call of an operation. Calls inside it are parts of this call.
pub(crate) struct CallScope {
    is_outermost: bool,
}

impl CallScope {
    #[inline(always)]
    pub(crate) fn enter() -> CallScope {
        let CallState { number, is_active } = CALL.get();
        if !is_active {
            CALL.set(CallState { number: number + 1, is_active: true });
        }
        CallScope { is_outermost: !is_active }
    }
}

impl Drop for CallScope {
    #[inline(always)]
    fn drop(&mut self) {
        if self.is_outermost {
            CALL.set(CallState { is_active: false, ..CALL.get() });
        }
    }
}

/// Returns the number of the current call. A kernel outside operations is a call of its own.
pub(super) fn call_number() -> u64 {
    let CallState { number, is_active } = CALL.get();
    if is_active {
        return number;
    }
    CALL.set(CallState { number: number + 1, is_active });
    number + 1
}
