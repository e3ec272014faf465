//! `HookList`: registered hooks, and the host flags that make a recording depend on them.

use super::host_flag::HostFlag;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Hooks in the order of registration.
///
/// A captured step that reads the list is replayed while the same hooks are registered. After a change it is recorded
/// again. If the change is undone, the earlier recording is valid again. The hooks are the same if the list has the
/// same length and all recorded hooks are still registered. So a recording depends on one flag for the length and one
/// flag for each hook.
#[doc(hidden)]
pub struct HookList<H> {
    hooks: Vec<ListedHook<H>>,
    /// The number of hooks. Most lists stay empty, so the flag is created by the first access that needs it.
    length: OnceLock<HostFlag>,
}

struct ListedHook<H> {
    id: u64,
    /// 1 until the hook is removed.
    registered: HostFlag,
    hook: H,
}

impl<H: Clone> HookList<H> {
    /// Creates a list without hooks.
    pub const fn new() -> HookList<H> {
        HookList { hooks: Vec::new(), length: OnceLock::new() }
    }

    /// Adds a hook and returns its id, which is unique in the process.
    pub fn add(&mut self, hook: H) -> u64 {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let registered = HostFlag::new(0);
        // A step that registers a hook does not depend on it.
        registered.set(1);
        self.hooks.push(ListedHook { id, registered, hook });
        self.length().set(self.hooks.len());
        id
    }

    /// Removes the hook with this id, if the list contains it.
    pub fn remove(&mut self, id: u64) {
        if let Some(at) = self.hooks.iter().position(|listed| listed.id == id) {
            self.hooks.remove(at).registered.retire();
            self.length().set(self.hooks.len());
        }
    }

    /// Returns the hooks. In a captured step, the recording becomes dependent on them.
    pub fn registered(&self) -> Vec<H> {
        if self.hooks.is_empty() && !super::is_capturing() {
            return Vec::new();
        }
        if super::is_capturing() {
            self.length().get();
            self.hooks.iter().for_each(|listed| _ = listed.registered.get());
        }
        self.hooks.iter().map(|listed| listed.hook.clone()).collect()
    }

    /// Returns true if the list is empty and no recording depends on it.
    pub fn is_unused(&self) -> bool {
        self.hooks.is_empty() && self.length.get().is_none_or(HostFlag::is_unshared)
    }

    fn length(&self) -> &HostFlag {
        self.length.get_or_init(|| HostFlag::new(self.hooks.len()))
    }
}

impl<H: Clone> Default for HookList<H> {
    fn default() -> HookList<H> {
        HookList::new()
    }
}
