//! The history of a tensor, which recorded writes in place replace.

use super::gradient_slot::GradientSlot;
use super::graph::{GraphNode, is_same_node};
use super::moved::MovedArrays;
use super::rewritten::note_history_change;
use super::view_base::ViewBase;
use super::{Creator, Tensor, TensorInner};
use crate::array::Array;
use pellucid_ir::lock;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

/// Rarely used fields, for tensors that have a gradient, were written or moved in place, or have copies on other
/// devices.
#[derive(Default)]
pub(super) struct TensorDetails {
    /// The gradient slot.
    pub(super) slot: OnceLock<Arc<GradientSlot>>,
    /// The history after recorded writes: the number of included writes, and the creator.
    rewritten: Mutex<(u64, Option<Creator>)>,
    /// The arrays after moves to other devices and conversions to other dtypes.
    pub(super) moved: MovedArrays,
    /// Copies of a free tensor on other devices.
    device_copies: Mutex<Vec<DeviceCopy>>,
}

/// A copy of a tensor on another device.
pub(super) struct DeviceCopy {
    /// The version of the tensor's storage at the time of the copy.
    pub(super) version: u64,
    /// The elements on the other device.
    pub(super) array: Array,
}

impl TensorDetails {
    /// Drops the copies on other devices.
    pub(super) fn drop_device_copies(&self) {
        let copies = std::mem::take(&mut *self.device_copies());
        drop(copies);
    }

    /// Locks the copies on other devices.
    pub(super) fn device_copies(&self) -> MutexGuard<'_, Vec<DeviceCopy>> {
        lock(&self.device_copies)
    }

    fn rewritten(&self) -> MutexGuard<'_, (u64, Option<Creator>)> {
        lock(&self.rewritten)
    }
}

impl Tensor {
    /// Calls `f` with the creator of this tensor, including recorded writes. Usually no reference count changes.
    #[inline(always)]
    pub(super) fn with_creator<R>(&self, f: impl FnOnce(Option<&Creator>) -> R) -> R {
        match self.0.view_base.get() {
            Some(base) if base.is_written() => f(self.rewritten(base).as_ref()),
            _ => f(self.0.creator.as_ref()),
        }
    }

    #[cold]
    fn rewritten(&self, base: &ViewBase) -> Option<Creator> {
        let inner = &self.0;
        if inner.requires_grad.load(Ordering::Relaxed) {
            // A view that became a leaf has a separate history.
            return inner.creator.clone();
        }
        let (edge, writes) = base.state();
        if u64::from(inner.known_writes.load(Ordering::Relaxed)) == writes {
            return inner.creator.clone();
        }
        let mut rewritten = inner.details().rewritten();
        let mut old = None;
        if rewritten.0 != writes {
            old = std::mem::replace(&mut *rewritten, (writes, base.history(&edge, self))).1;
            note_history_change(self);
        }
        let creator = rewritten.1.clone();
        drop(rewritten);
        drop(old);
        creator
    }

    /// Returns the state that this tensor shares with its views. A tensor without such a state becomes the base.
    pub(crate) fn view_base(&self) -> &Arc<ViewBase> {
        self.0.view_base.get_or_init(|| {
            self.0.is_base.store(true, Ordering::Relaxed);
            Arc::new(ViewBase::new(self))
        })
    }

    /// Returns true if the tensor was set to require a gradient while it was a leaf.
    pub(crate) fn is_required_leaf(&self) -> bool {
        self.0.requires_grad.load(Ordering::Relaxed)
    }

    /// Returns true if the tensor shares this base.
    pub(crate) fn has_base(&self, base: &Arc<ViewBase>) -> bool {
        self.0.view_base.get().is_some_and(|existing| Arc::ptr_eq(existing, base))
    }

    /// Returns true for the base tensor; all other tensors that share its [`ViewBase`] are views of it.
    pub(crate) fn is_base(&self) -> bool {
        self.0.is_base.load(Ordering::Relaxed)
    }

    /// Makes this new tensor a view of `other`, and shares its history.
    pub(crate) fn share_view_base(&self, other: &Tensor) {
        let base = other.view_base();
        // A count that does not fit in `u32` is stored as 0. The history is then derived from the history of the base
        // value, which includes all writes.
        self.0.known_writes.store(u32::try_from(base.writes()).unwrap_or(0), Ordering::Relaxed);
        let _ = self.0.view_base.set(base.clone());
    }

    /// Marks this new tensor, if it shares storage with `other`, as a view created under `no_grad`.
    #[inline]
    pub(crate) fn mark_untracked_view(&self, other: &Tensor) {
        if self.array().shares_storage(other.array()) {
            self.0.is_untracked_view.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true for a view that was created under `no_grad`.
    pub(crate) fn is_untracked_view(&self) -> bool {
        self.0.is_untracked_view.load(Ordering::Relaxed)
    }

    /// Returns true for a leaf that requires a gradient, and for a tensor that shares a base with such a leaf.
    pub(crate) fn is_part_of_tracked_leaf(&self) -> bool {
        (self.0.requires_grad.load(Ordering::Relaxed) && self.is_leaf())
            || self.0.view_base.get().is_some_and(|base| base.has_tracked_leaf())
    }

    /// Updates the view base after a `requires_grad` change of this leaf.
    pub(super) fn update_view_base(&self) {
        match self.0.view_base.get() {
            Some(base) if self.is_base() => base.set_leaf(self.edge()),
            Some(base) if self.is_required_leaf() => base.add_leaf_view(self),
            _ => {}
        }
    }

    /// Returns a weak handle.
    pub(crate) fn downgrade(&self) -> Weak<TensorInner> {
        Arc::downgrade(&self.0)
    }

    /// Returns the gradient slot of this tensor if it retains its gradient or `all` is set. Returns `None` if the
    /// tensor is no longer an output of `node`, because it was written in place.
    pub(crate) fn kept_slot(&self, node: &Arc<GraphNode>, all: bool) -> Option<&Arc<GradientSlot>> {
        let keeps = all || self.retains_grad();
        let is_output = || self.with_creator(|creator| creator.is_some_and(|(creator, _)| is_same_node(creator, node)));
        (keeps && is_output()).then(|| self.0.slot())
    }

    /// Updates the history if the tensor was written.
    pub(crate) fn refresh_history(&self) {
        self.with_creator(|_| ());
    }
}
