//! The autograd state that a captured step uses or changes, which its recording restores.

use super::collect::{Collection, collect};
use super::graph::{Edge, GradientSlot};
use super::in_place::ViewBase;
use crate::engine;
use crate::tensor::{Tensor, TensorInner};
use std::cell::RefCell;
use std::sync::{Arc, Weak};

/// A gradient slot that a captured step uses, with its gradient before the step.
pub(crate) struct TouchedSlot {
    pub(crate) slot: Arc<GradientSlot>,
    pub(crate) entry: Option<Tensor>,
    /// The user set the gradient before the step.
    pub(crate) is_preset: bool,
    /// The step overwrites the slot before it reads it.
    pub(crate) cleared: bool,
}

/// The gradients and histories of a captured step, from before their first change.
#[derive(Default)]
pub(crate) struct StepState {
    pub(crate) touched: Vec<TouchedSlot>,
    /// The base values that a captured step writes in place, with their history before the step.
    rewritten_bases: Vec<(Arc<ViewBase>, Edge)>,
    /// The tensors whose history the step changes.
    rewritten_tensors: Vec<Weak<TensorInner>>,
}

thread_local! {
    /// The state of the step that this thread records, while [`collect_step_state`] runs.
    static CURRENT: Collection<StepState> = const { RefCell::new(None) };
}

/// Runs `f`, and returns its result with the autograd state that it used or changed in capture mode.
pub(crate) fn collect_step_state<R>(f: impl FnOnce() -> R) -> (R, StepState) {
    collect(&CURRENT, f)
}

/// Calls `f` with the state of the step that this thread captures, if it captures one.
fn with_current<R>(f: impl FnOnce(&mut StepState) -> R) -> Option<R> {
    if !engine::is_capturing() {
        return None;
    }
    CURRENT.with_borrow_mut(|state| state.as_mut().map(f))
}

/// Records the gradient slot before its first read or change in a captured step. `clears` is true if it is overwritten
/// without being read.
pub(super) fn note_slot_access(slot: &Arc<GradientSlot>, clears: bool) {
    with_current(|state| {
        if !state.touched.iter().any(|t| Arc::ptr_eq(&t.slot, slot)) {
            let (entry, is_preset) = (slot.get_untracked(), slot.is_preset());
            state.touched.push(TouchedSlot { slot: slot.clone(), entry, is_preset, cleared: clears });
        }
    });
}

/// Records the history of a base value before a write in place, so that a captured step can restore it.
pub(super) fn note_history(base: &Arc<ViewBase>, edge: &Edge) {
    with_current(|state| {
        if !state.rewritten_bases.iter().any(|(known, _)| Arc::ptr_eq(known, base)) {
            state.rewritten_bases.push((base.clone(), edge.clone()));
        }
    });
}

/// True if the captured step has written into this base. Then the recording holds a handle of it.
pub(super) fn is_rewritten(base: &Arc<ViewBase>) -> bool {
    with_current(|state| state.rewritten_bases.iter().any(|(known, _)| Arc::ptr_eq(known, base))) == Some(true)
}

/// Records that a write in place changed the history of a tensor.
pub(crate) fn note_history_change(tensor: &Tensor) {
    with_current(|state| state.rewritten_tensors.push(tensor.downgrade()));
}

impl StepState {
    /// Restores the history that written base values had before the step, because a graph does not outlive its
    /// recording.
    pub(crate) fn restore_histories(&mut self) {
        for (base, edge) in self.rewritten_bases.drain(..) {
            base.restore(edge);
        }
        for inner in std::mem::take(&mut self.rewritten_tensors).iter().filter_map(Weak::upgrade) {
            Tensor::from_inner(inner).refresh_history();
        }
    }
}
