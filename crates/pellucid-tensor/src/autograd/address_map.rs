//! A map from the addresses of graph nodes to values.

use crate::engine::AddressHasher;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

/// A map from addresses to values: a list for the first few entries, then a hash table. The backward pass of a chain of
/// operations has one entry at a time.
#[derive(Default)]
pub(crate) struct AddressMap<V> {
    few: SmallVec<[(usize, V); 8]>,
    many: HashMap<usize, V, BuildHasherDefault<AddressHasher>>,
}

impl<V: Copy> AddressMap<V> {
    const INLINE_ENTRIES: usize = 8;

    pub(crate) fn get(&self, address: usize) -> Option<V> {
        let recent = self.few.iter().rev().find(|(a, _)| *a == address).map(|(_, v)| *v);
        recent.or_else(|| if self.many.is_empty() { None } else { self.many.get(&address).copied() })
    }

    pub(crate) fn insert(&mut self, address: usize, value: V) {
        if let Some(entry) = self.few.iter_mut().find(|(a, _)| *a == address) {
            entry.1 = value;
        } else if self.few.len() < Self::INLINE_ENTRIES && !self.many.contains_key(&address) {
            self.few.push((address, value));
        } else {
            self.many.insert(address, value);
        }
    }

    pub(crate) fn remove(&mut self, address: usize) {
        match self.few.iter().position(|(a, _)| *a == address) {
            Some(at) => drop(self.few.swap_remove(at)),
            None => drop(self.many.remove(&address)),
        }
    }
}
