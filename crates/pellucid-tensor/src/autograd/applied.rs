//! What a node is made of: an operation's derivative, and the values that it saved, in one allocation with the node.

use super::operation::{Derivative, SavedValue};
use std::sync::{RwLock, TryLockError, TryLockResult};

/// A derivative with the values that the operation saved, until they are used, as a node holds it.
pub(crate) trait SavedDerivative: Send + Sync {
    fn derivative(&self) -> &dyn Derivative;

    /// Calls `run` with the saved values, and frees them afterwards unless they are to be kept; false
    /// if they are freed already.
    ///
    /// Never waits, because whoever has access may be this thread's own pass, further up: where another pass
    /// is freeing the values there are none, and where one reads them this one does not free.
    fn with_saved(&self, keep: bool, run: &mut dyn FnMut(&[SavedValue])) -> bool;
}

/// A derivative with its saved values, in an array of as many: a node is no larger than it must be.
pub(crate) struct SavedDerivativeOf<S, D> {
    saved: RwLock<Option<S>>,
    derivative: D,
}

impl<S, D> SavedDerivativeOf<S, D> {
    #[inline(always)]
    pub(crate) fn new(saved: S, derivative: D) -> SavedDerivativeOf<S, D> {
        SavedDerivativeOf { saved: RwLock::new(Some(saved)), derivative }
    }
}

impl<S: AsRef<[SavedValue]> + Send + Sync, D: Derivative> SavedDerivative for SavedDerivativeOf<S, D> {
    fn derivative(&self) -> &dyn Derivative {
        &self.derivative
    }

    fn with_saved(&self, keep: bool, run: &mut dyn FnMut(&[SavedValue])) -> bool {
        if !keep && let Some(mut saved) = free(self.saved.try_write()) {
            let Some(values) = &*saved else { return false };
            run(values.as_ref());
            *saved = None;
            return true;
        }
        let Some(saved) = free(self.saved.try_read()) else { return false };
        let Some(values) = &*saved else { return false };
        run(values.as_ref());
        true
    }
}

/// The guard, unless somebody is in the way. (Whoever panicked with it has changed nothing.)
fn free<G>(guard: TryLockResult<G>) -> Option<G> {
    match guard {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
