//! The storages of gradients that have several owners, and copies of such gradients.

use super::address_map::AddressMap;
use crate::engine;
use crate::ops::primitive::copy::copy;
use crate::tensor::Tensor;
use pellucid_ir::Result;
use pellucid_ir::backend::Storage;
use smallvec::SmallVec;
use std::sync::{Arc, Weak};

/// The storages of gradients that have other owners: the caller of the pass, hooks, slots, saved values.
///
/// A storage may be freed during the pass. The weak handle keeps its address from being reused, so a new storage is
/// never mistaken for an inserted one. Otherwise its gradient would be copied, and the additional node would change the
/// order of a later pass over the recorded graph.
#[derive(Default)]
pub(crate) struct SharedStorages {
    addresses: AddressMap<()>,
    handles: SmallVec<[Weak<Storage>; 4]>,
}

impl SharedStorages {
    fn contains(&self, tensor: &Tensor) -> bool {
        self.addresses.get(storage_address(tensor)).is_some()
    }

    /// Inserts the storage of `tensor`. Returns false if it was already present.
    pub(crate) fn insert(&mut self, tensor: &Tensor) -> bool {
        if self.contains(tensor) {
            return false;
        }
        self.addresses.insert(storage_address(tensor), ());
        self.handles.push(Arc::downgrade(tensor.array().storage()));
        true
    }
}

/// Returns a gradient with unique storage; aliased or broadcast gradients are copied.
///
/// Gradient clipping scales the gradient of each leaf in place, so no two gradients may share a storage. However, the
/// backward pass of a sum returns the same gradient for all terms, and the caller, a hook or a slot may hold it too. An
/// immediate kernel keeps no handle to its operands, so counting handles detects a shared storage. Recorded kernels and
/// graphs hold handles to their operands. Therefore, deferred and captured steps, and gradients with a history, look up
/// the storage in `shared`. This lookup does not detect a tensor that a user's operation returns and also keeps.
#[inline]
pub(crate) fn with_unique_storage(gradient: Tensor, shared: &mut SharedStorages) -> Result<Tensor> {
    let is_own = match engine::is_immediate(gradient.device()) {
        true if !gradient.requires_grad() => gradient.is_unique(),
        _ if gradient.is_leaf() && gradient.requires_grad() => false,
        _ => shared.insert(&gradient) && !gradient.array().layout().may_repeat(),
    };
    if is_own { Ok(gradient) } else { copy(&gradient) }
}

/// Returns the address of the tensor's storage.
fn storage_address(tensor: &Tensor) -> usize {
    Arc::as_ptr(tensor.array().storage()).addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_storage_is_never_mistaken_for_a_freed_one() {
        let mut shared = SharedStorages::default();
        for round in 0..100 {
            let gradient = Tensor::from([1.0f32]);
            assert!(shared.insert(&gradient), "round {round}: a new storage must not be present");
            assert!(!shared.insert(&gradient), "round {round}: an inserted storage must be present");
        }
    }
}
