//! Recorded writes in place.
//!
//! A recorded write replaces the history of the base value of its target ([`ViewBase`]). The inputs of the node of the
//! write are the base value before the write, unless all of it is overwritten, and the source. The node saves no
//! elements except the index of a write to selected elements. The gradient of the base value is the incoming gradient
//! with zeros in the written region; the gradient of the source is the incoming gradient in that region.

use super::anomaly::note_forward_location;
use crate::array::Array;
use crate::engine;
use crate::tensor::{Collection, Derivative, Edge, Tensor, ViewBase, collect, note_history};
use pellucid_ir::{Error, Layout, Result, Shape};
use smallvec::smallvec;
use std::cell::RefCell;
use std::sync::Arc;

/// A base that a recorded write has changed, with its history before the write.
pub(crate) type WrittenBase = (Arc<ViewBase>, Edge);

thread_local! {
    /// The recorded writes of this thread, while [`collect_writes`] runs.
    static WRITTEN: Collection<Vec<WrittenBase>> = const { RefCell::new(None) };
}

/// Runs `f`, and returns its result with every write that this thread recorded during the call.
pub(crate) fn collect_writes<R>(f: impl FnOnce() -> R) -> (R, Vec<WrittenBase>) {
    collect(&WRITTEN, Vec::new(), f)
}

/// Adds writes to the collection of this thread, if there is one.
pub(crate) fn add_writes(written: impl IntoIterator<Item = WrittenBase>) {
    // If the writes are not collected, their histories are dropped when this function returns, outside the borrow.
    if WRITTEN.with_borrow(Option::is_some) {
        WRITTEN.with_borrow_mut(|list| list.get_or_insert_default().extend(written));
    }
}

/// A write in place that will be recorded.
pub(crate) struct InPlaceWrite {
    base: Arc<ViewBase>,
    /// The written region of the base value.
    pub(crate) region: Layout,
    /// The shape of the base value.
    pub(crate) shape: Shape,
}

impl InPlaceWrite {
    /// Prepares a write through `target` into `view`, a part of the target's storage.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an operation that is not declared as a view returned memory of this tensor, if the
    /// tensor moved to another device or changed its dtype after views of it were created, or if it is a view that was
    /// created under `no_grad`.
    pub(crate) fn new(op: &'static str, target: &Tensor, view: &Array) -> Result<InPlaceWrite> {
        let base = target.view_base().clone();
        if base.is_opaque() {
            let reason = format!(
                "the target of shape {} shares its memory with the output of an operation that is not a view \
                 (Operation::is_view); write into a copy() of it, or under no_grad()",
                target.shape()
            );
            return Err(Error::invalid(op, reason));
        }
        if base.is_moved() {
            let reason = format!(
                "the target of shape {} has views, or is a view, and the base moved to another device or changed \
                 its dtype after they were created, so a write would not reach all of them; write into a copy() of \
                 it, or under no_grad()",
                target.shape()
            );
            return Err(Error::invalid(op, reason));
        }
        if base.is_untracked_view() && is_shared(target, view) {
            let reason = format!(
                "the target of shape {} is a view that was created under no_grad(), and the tensor whose memory it shares \
                 would get no gradient; create the view outside of no_grad(), or detach() it to separate its history",
                target.shape()
            );
            return Err(Error::invalid(op, reason));
        }
        let (region, shape) = (base.relative(view.layout()), base.shape());
        Ok(InPlaceWrite { base, region, shape })
    }

    /// Records the write after its kernel was submitted. The history of the base value becomes a node with
    /// `derivative`, whose inputs are the base value before the write (unless all of it is overwritten), the source,
    /// and an optional index.
    pub(crate) fn record<D: Derivative>(self, target: &Tensor, source: &Tensor, index: Option<Array>, derivative: D) {
        let InPlaceWrite { base, region, .. } = self;
        let covers_base = index.is_none() && region.shape().size() >= base.size();
        // The edge is read before the lock is taken: the read takes the same lock if the source is a view of the base.
        let source = source.edge();
        let old = {
            let mut edge = base.lock_edge();
            base.convert_to_base_value(&mut edge, target.device());
            note_history(&base, &edge);
            let before = if covers_base { Edge::None } else { edge.clone() };
            let edges = if index.is_some() { smallvec![before, source, Edge::None] } else { smallvec![before, source] };
            let node = base.node(edges, target.device(), index, derivative);
            note_forward_location(|| Some(node.clone()));
            base.count_write();
            std::mem::replace(&mut *edge, Edge::Node(node, 0))
        };
        if engine::mode() != engine::ExecutionMode::Capture {
            engine::count_requires_grad_change(target.array());
        }
        add_writes([(base, old)]);
    }
}

/// Returns true if the target's storage has handles other than the target, the written view and the operands of
/// recorded kernels.
fn is_shared(target: &Tensor, view: &Array) -> bool {
    let storage = target.array().storage();
    let write_handles = 1 + usize::from(!std::ptr::eq(view, target.array()));
    Arc::strong_count(storage) > write_handles + engine::recorded_operands(target.array())
}
