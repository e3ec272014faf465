//! The memory of tensors that have moved to another device.
//!
//! A tensor keeps its arrays on its previous devices, because references to them may exist. Such a handle to a storage
//! is *idle*. The memory of a storage is released when all its handles are idle. At a move, a graph, a view, a captured
//! step or a deferred kernel may still use it. The storage then waits in a list, which later calls examine.

use pellucid_ir::backend::{POISONED, Storage};
use pellucid_ir::lock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Storages that have idle handles and are still used through other handles.
static WAITING: Mutex<WaitingStorages> = Mutex::new(WaitingStorages { storages: Vec::new(), limit: 0 });

/// The number of waiting storages.
static COUNT: AtomicUsize = AtomicUsize::new(0);

struct WaitingStorages {
    storages: Vec<Weak<Storage>>,
    /// The length at which the list is examined. It is twice the length after the last examination, so a new entry
    /// costs amortized constant time.
    limit: usize,
}

impl WaitingStorages {
    fn lock() -> MutexGuard<'static, WaitingStorages> {
        lock(&WAITING)
    }

    /// Releases the memory of each storage whose handles are all idle, and removes these storages from the list.
    fn release(&mut self) {
        self.storages.retain(|waiting| waiting.upgrade().is_some_and(|storage| !release_if_idle(&storage, 1)));
        self.limit = 2 * self.storages.len();
        COUNT.store(self.storages.len(), Ordering::Release);
    }
}

/// Marks a handle to the storage as idle.
pub(crate) fn add_idle_handle(storage: &Arc<Storage>) {
    storage.add_idle();
    if release_if_idle(storage, 0) {
        return;
    }
    let mut waiting = WaitingStorages::lock();
    waiting.storages.push(Arc::downgrade(storage));
    COUNT.store(waiting.storages.len(), Ordering::Release);
    if waiting.storages.len() > waiting.limit {
        waiting.release();
    }
}

/// Returns true if all handles to the storage are idle. No kernel or reader can then use it.
pub(crate) fn is_idle(storage: &Arc<Storage>) -> bool {
    Arc::strong_count(storage) == storage.idle() as usize
}

/// Releases the memory of each waiting storage whose handles are now all idle.
#[inline]
pub(crate) fn release_idle_memory() {
    if COUNT.load(Ordering::Acquire) > 0 {
        WaitingStorages::lock().release();
    }
}

/// Releases the memory of a storage if all handles except `caller_handles` of the caller are idle. A later read of the
/// storage is an error.
fn release_if_idle(storage: &Arc<Storage>, caller_handles: usize) -> bool {
    let is_idle = Arc::strong_count(storage) == storage.idle() as usize + caller_handles;
    if is_idle {
        storage.with_write(|storage| {
            storage.set_pending(POISONED);
            storage.discard();
        });
    }
    is_idle
}
