//! The operation that was called. An operation may call others, and errors name the outermost one. A kernel stores this
//! name, so an error of a deferred kernel has it too.

use crate::engine::CallScope;
use std::cell::Cell;

thread_local! {
    static OUTERMOST: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Guard of the call of an operation. `#[operation]` creates it.
pub(crate) struct OperationScope {
    is_outermost: bool,
    _call: CallScope,
}

impl OperationScope {
    /// Enters the operation `op`, unless it is a part of another one.
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

/// Returns the name of the operation that was called, or `op` outside operations.
#[inline]
pub(crate) fn outermost_operation(op: &'static str) -> &'static str {
    OUTERMOST.get().unwrap_or(op)
}
