//! Tracking of the storages that hold the buffers of a plan.
//!
//! While a step is recorded, a tracker stores the storage ids of each layer's output, intermediate results and input
//! gradient, and of every parameter gradient. The recording then contains the location of each storage.

use super::plan::{ArenaSlot, BufferRole, CapturePlan};
use crate::call::LayerCall;
use pellucid_tensor::{Captured, Placement, StorageId, Tensor, storages_written_since};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The storages of the latest recording, by the role of their buffer.
#[derive(Clone, Default)]
pub(super) struct BufferTracker(Arc<Mutex<HashMap<BufferRole, Vec<StorageId>>>>);

impl BufferTracker {
    fn seen(&self) -> MutexGuard<'_, HashMap<BufferRole, Vec<StorageId>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes all entries.
    pub(super) fn clear(&self) {
        self.seen().clear();
    }

    /// Stores the storage ids of one call of layer `layer` of the plan.
    pub(super) fn track_call(&self, layer: usize, call: &LayerCall<'_>) {
        let y = call.y.storage_id();
        self.seen().insert(BufferRole::Output(layer), vec![y]);
        let mut written = storages_written_since(call.before);
        written.retain(|id| *id != y);
        self.seen().insert(BufferRole::Work(layer), written);
        self.track_gradient(call.x, BufferRole::InputGradient(layer));
    }

    /// Stores the id of the storage that holds a buffer of the plan.
    pub(super) fn track(&self, role: BufferRole, tensor: &Tensor) {
        self.seen().insert(role, vec![tensor.storage_id()]);
    }

    /// Stores the id of the storage of the gradient of x during the backward pass.
    pub(super) fn track_gradient(&self, x: &Tensor, role: BufferRole) {
        if x.requires_grad() && !x.is_leaf() {
            let tracker = self.clone();
            x.register_hook(move |gradient| {
                tracker.track(role.clone(), gradient);
                None
            });
        }
    }

    /// Stores the location of each buffer in the plan.
    pub(super) fn store_locations(&self, plan: &mut CapturePlan, captured: Option<&Captured<'_>>) {
        let seen = self.seen();
        plan.set_locations(|role, buf| {
            if buf.pinned().is_some() {
                return ArenaSlot::Owned;
            }
            let Some((captured, ids)) = captured.zip(seen.get(&role)) else { return ArenaSlot::Planned };
            let mut slots: Vec<ArenaSlot> = ids.iter().map(|id| arena_slot(captured.placement(*id))).collect();
            if slots.len() > 1 && slots.iter().any(|slot| !matches!(slot, ArenaSlot::Elided { .. })) {
                slots.retain(|slot| !matches!(slot, ArenaSlot::Elided { .. }));
            }
            slots.dedup();
            match slots.len() {
                0 | 1 => slots.pop().unwrap_or_default(),
                _ if matches!(slots[0], ArenaSlot::Elided { .. }) => slots.swap_remove(0),
                _ => ArenaSlot::Parts(slots),
            }
        });
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
