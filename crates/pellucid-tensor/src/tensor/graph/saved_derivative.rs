//! `Derivative`: the backward computation of an operation, in one allocation with its saved values and the graph node.

use super::gradients::{InputGradients, NeedsInputGrad, OutputGradients};
use super::saved::{SavedTensors, SavedValue};
use pellucid_ir::Result;
use std::sync::{RwLock, TryLockError, TryLockResult};

/// The values that a node saves, until a backward pass frees them.
pub(crate) trait SavedValueSlot {
    /// Calls `run` with the saved values, and then frees them unless `keep` is set. Returns false if they were already
    /// freed. For a node that saves no values, it always returns true.
    ///
    /// It never blocks, because this thread's own pass may hold the lock in an outer call. If another pass is freeing
    /// the values, returns false. If another pass reads them, they are not freed.
    fn with_values(&self, keep: bool, run: &mut dyn FnMut(&[SavedValue])) -> bool;
}

/// `None` for a node that saves no value: without a lock, several passes can run it at the same time.
impl<S: AsRef<[SavedValue]>> SavedValueSlot for Option<RwLock<Option<S>>> {
    fn with_values(&self, keep: bool, run: &mut dyn FnMut(&[SavedValue])) -> bool {
        let Some(lock) = self else {
            run(&[]);
            return true;
        };
        if !keep && let Some(mut saved) = try_guard(lock.try_write()) {
            let Some(values) = &*saved else { return false };
            run(values.as_ref());
            *saved = None;
            return true;
        }
        let Some(saved) = try_guard(lock.try_read()) else { return false };
        let Some(values) = &*saved else { return false };
        run(values.as_ref());
        true
    }
}

/// Returns the guard, or `None` if the lock is held. Poisoning is ignored: a panic during `run` changes no saved value.
fn try_guard<G>(guard: TryLockResult<G>) -> Option<G> {
    match guard {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The backward computation of an operation, which a node stores.
pub(crate) trait Derivative: Send + Sync + 'static {
    /// Returns the operation's name.
    fn name(&self) -> &'static str;

    /// See [`Operation::backward`](crate::Operation::backward).
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients>;
}

/// A derivative with the values that the operation saved.
pub(crate) trait SavedDerivative: Send + Sync {
    fn derivative(&self) -> &dyn Derivative;

    fn saved(&self) -> &dyn SavedValueSlot;
}

/// A derivative with its saved values. `S` is an array or a list of them.
pub(crate) struct SavedDerivativeOf<S, D> {
    saved: Option<RwLock<Option<S>>>,
    derivative: D,
}

impl<S: AsRef<[SavedValue]>, D> SavedDerivativeOf<S, D> {
    #[inline(always)]
    pub(crate) fn new(saved: S, derivative: D) -> SavedDerivativeOf<S, D> {
        let saved = (!saved.as_ref().is_empty()).then(|| RwLock::new(Some(saved)));
        SavedDerivativeOf { saved, derivative }
    }
}

impl<S: AsRef<[SavedValue]> + Send + Sync, D: Derivative> SavedDerivative for SavedDerivativeOf<S, D> {
    fn derivative(&self) -> &dyn Derivative {
        &self.derivative
    }

    fn saved(&self) -> &dyn SavedValueSlot {
        &self.saved
    }
}
