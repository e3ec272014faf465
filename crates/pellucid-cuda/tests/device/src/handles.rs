//! Tables of handles. A handle is a number that is never used again, so a stale one is always recognised.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The next handle of all tables: a handle of the wrong kind is recognised too. Small numbers have a meaning in CUDA.
static NEXT: AtomicUsize = AtomicUsize::new(0x4000_0000);

/// Objects by their handles, in the order of their creation.
pub(crate) struct HandleTable<T>(BTreeMap<usize, T>);

impl<T> Default for HandleTable<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> HandleTable<T> {
    /// Adds an object and returns its handle.
    pub(crate) fn insert(&mut self, object: T) -> usize {
        let handle = NEXT.fetch_add(16, Ordering::Relaxed);
        self.0.insert(handle, object);
        handle
    }

    /// Adds an object with a given handle.
    pub(crate) fn insert_at(&mut self, handle: usize, object: T) {
        self.0.insert(handle, object);
    }

    /// Returns the object of a handle, if it exists.
    pub(crate) fn get(&self, handle: usize) -> Option<&T> {
        self.0.get(&handle)
    }

    /// Returns the object of a handle, if it exists.
    pub(crate) fn get_mut(&mut self, handle: usize) -> Option<&mut T> {
        self.0.get_mut(&handle)
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, handle: usize) -> Option<T> {
        self.0.remove(&handle)
    }

    /// Returns the count of objects.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns all handles, in the order of creation.
    pub(crate) fn handles(&self) -> Vec<usize> {
        self.0.keys().copied().collect()
    }

    /// Returns all objects with their handles.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.0.iter().map(|(handle, object)| (*handle, object))
    }

    /// Returns all objects.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut()
    }

    /// Removes all objects.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
