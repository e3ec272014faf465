//! Observation of the planned buffers of a step: their values are written into pinned buffers, and the storages that
//! hold them are tracked, whose locations the recording contains.

use super::plan::{ArenaSlot, Buf, BufferRole, CapturePlan};
use crate::call::LayerCall;
use pellucid_tensor::{
    Captured, Placement, Result, StorageId, Tensor, lock, no_grad, ops, storages_written_since, unwrap,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// The pinned buffers of a plan, and the storages of the latest recording, by the role of their buffer.
#[derive(Clone)]
pub(super) struct BufferObserver {
    pinned: Arc<HashMap<BufferRole, Vec<Tensor>>>,
    /// The index of the call of each layer of the plan.
    calls: Arc<[Option<usize>]>,
    seen: Arc<Mutex<HashMap<BufferRole, Vec<StorageId>>>>,
}

impl BufferObserver {
    pub(super) fn of(plan: &CapturePlan) -> BufferObserver {
        let mut pinned: HashMap<BufferRole, Vec<Tensor>> = HashMap::new();
        for (role, buf) in plan.roles() {
            buf.pinned().into_iter().for_each(|tensor| pinned.entry(role.clone()).or_default().push(tensor.clone()));
        }
        let calls = plan.per_layer.iter().map(|layer| layer.call).collect();
        BufferObserver { pinned: Arc::new(pinned), calls, seen: Arc::default() }
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<BufferRole, Vec<StorageId>>> {
        lock(&self.seen)
    }

    /// Removes the storages of an earlier recording.
    pub(super) fn clear(&self) {
        self.seen().clear();
    }

    /// Writes a tensor into the pinned buffers of this role, other than `bound`, and tracks its storage.
    pub(super) fn observe(&self, role: BufferRole, tensor: &Tensor, bound: Option<StorageId>) -> Result<()> {
        let _off = no_grad();
        let pinned = self.pinned.get(&role).into_iter().flatten();
        pinned.filter(|buf| Some(buf.storage_id()) != bound).try_for_each(|buf| ops::copy_(buf, tensor))?;
        self.seen().insert(role, vec![tensor.storage_id()]);
        Ok(())
    }

    /// Observes the gradient of x in the backward pass.
    pub(super) fn observe_gradient(&self, role: BufferRole, x: &Tensor) {
        if x.requires_grad() && !x.is_leaf() {
            let observer = self.clone();
            x.register_hook(move |gradient| {
                unwrap(observer.observe(role.clone(), gradient, None));
                None
            });
        }
    }

    /// Observes the output, the intermediate results and the input gradient of a call.
    pub(super) fn observe_call(&self, call: &LayerCall<'_>) {
        let Some(layer) = self.calls.iter().position(|own| *own == Some(call.call)) else { return };
        let mut written = storages_written_since(call.before);
        written.retain(|id| *id != call.y.storage_id());
        self.seen().insert(BufferRole::Work(layer), written);
        unwrap(self.observe(BufferRole::Output(layer), call.y, None));
        self.observe_gradient(BufferRole::InputGradient(layer), call.x);
    }

    /// Returns the location of a buffer in a recording.
    pub(super) fn location(&self, role: &BufferRole, buf: &Buf, captured: Option<&Captured<'_>>) -> ArenaSlot {
        if buf.pinned().is_some() {
            return ArenaSlot::Owned;
        }
        let seen = self.seen();
        let Some((captured, ids)) = captured.zip(seen.get(role)) else { return ArenaSlot::Planned };
        let mut slots: Vec<ArenaSlot> = ids.iter().map(|id| arena_slot(captured.placement(*id))).collect();
        let is_stored = |slot: &ArenaSlot| !matches!(slot, ArenaSlot::Elided { .. });
        if slots.iter().any(is_stored) {
            slots.retain(is_stored);
        } else {
            slots.truncate(1);
        }
        slots.dedup();
        if slots.len() > 1 { ArenaSlot::Parts(slots) } else { slots.pop().unwrap_or_default() }
    }
}

fn arena_slot(placement: Placement) -> ArenaSlot {
    match placement {
        Placement::External | Placement::Buffer => ArenaSlot::Owned,
        Placement::Arena(allocation) => {
            ArenaSlot::At { offset: allocation.offset, first: allocation.first, last: allocation.last }
        }
        Placement::Elided(by) => ArenaSlot::Elided { by: by.to_string() },
        Placement::Unknown => ArenaSlot::Planned,
    }
}
