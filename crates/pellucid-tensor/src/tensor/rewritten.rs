//! Histories that a captured step rewrites by writes in place. Its recording restores them.

use super::collect::{Collection, collect};
use super::graph::Edge;
use super::view_base::ViewBase;
use super::{Tensor, TensorInner};
use crate::engine;
use std::cell::RefCell;
use std::sync::{Arc, Weak};

/// The histories that a captured step rewrites.
#[derive(Default)]
pub(crate) struct RewrittenHistories {
    /// The base values that the step writes in place, with their history before the step.
    bases: Vec<(Arc<ViewBase>, Edge)>,
    /// The tensors whose history the step changes.
    tensors: Vec<Weak<TensorInner>>,
}

thread_local! {
    /// The histories that the step of this thread rewrites, while [`collect_rewritten_histories`] runs.
    static CURRENT: Collection<RewrittenHistories> = const { RefCell::new(None) };
}

/// Runs `f`, and returns its result with the histories that it rewrote in capture mode.
pub(crate) fn collect_rewritten_histories<R>(f: impl FnOnce() -> R) -> (R, RewrittenHistories) {
    collect(&CURRENT, RewrittenHistories::default(), f)
}

/// Calls `f` with the histories that the step of this thread has changed by writes in place. Returns `None` if the
/// thread captures no step.
fn with_current<R>(f: impl FnOnce(&mut RewrittenHistories) -> R) -> Option<R> {
    if !engine::is_capturing() {
        return None;
    }
    CURRENT.with_borrow_mut(|rewritten| rewritten.as_mut().map(f))
}

/// Records the history of a base value before a write in place, so that a captured step can restore it.
pub(crate) fn note_history(base: &Arc<ViewBase>, edge: &Edge) {
    with_current(|rewritten| {
        if !rewritten.bases.iter().any(|(rewritten_base, _)| Arc::ptr_eq(rewritten_base, base)) {
            rewritten.bases.push((base.clone(), edge.clone()));
        }
    });
}

/// Returns true if the captured step has written into this base. The recording then holds a handle to it.
pub(crate) fn is_rewritten(base: &Arc<ViewBase>) -> bool {
    with_current(|rewritten| rewritten.bases.iter().any(|(rewritten_base, _)| Arc::ptr_eq(rewritten_base, base)))
        == Some(true)
}

/// Records that a write in place changed the history of a tensor.
pub(super) fn note_history_change(tensor: &Tensor) {
    with_current(|rewritten| rewritten.tensors.push(tensor.downgrade()));
}

impl RewrittenHistories {
    /// Restores the history of written base values from before the step, because a graph does not outlive its
    /// recording.
    pub(crate) fn restore(&mut self) {
        for (base, edge) in self.bases.drain(..) {
            base.restore(edge);
        }
        for inner in std::mem::take(&mut self.tensors).iter().filter_map(Weak::upgrade) {
            Tensor::from_inner(inner).refresh_history();
        }
    }
}
