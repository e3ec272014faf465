//! The mapping of storages to slots.

use super::address_hasher::AddressHasher;
use pellucid_ir::backend::Storage;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

/// Maps storages to the slots of a plan, in the order of their first use.
#[derive(Default)]
pub(crate) struct StorageNumbers {
    indices: HashMap<*const (), usize, BuildHasherDefault<AddressHasher>>,
    storages: Vec<Arc<Storage>>,
}

impl StorageNumbers {
    /// Returns the slot of a storage, and true if the storage was not in the map before.
    pub(crate) fn slot(&mut self, storage: &Arc<Storage>) -> (usize, bool) {
        match self.indices.entry(Arc::as_ptr(storage).cast()) {
            Entry::Occupied(known) => (*known.get(), false),
            Entry::Vacant(free) => {
                self.storages.push(storage.clone());
                (*free.insert(self.storages.len() - 1), true)
            }
        }
    }

    /// Returns the storages in the order of their slots.
    pub(crate) fn into_storages(self) -> Vec<Arc<Storage>> {
        self.storages
    }
}
