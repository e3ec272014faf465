//! Hooks: user functions that a backward pass calls with a gradient. They may replace the gradient.

use super::Tensor;
use crate::engine::HookList;
use pellucid_ir::lock;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

pub(crate) type GradientHook = Arc<dyn Fn(&Tensor) -> Option<Tensor> + Send + Sync>;

/// The hooks of one tensor, in the order of registration.
#[derive(Default)]
pub(crate) struct Hooks(Mutex<HookList<GradientHook>>);

/// A handle that can remove a registered hook. Dropping the handle does not remove it.
pub struct HookHandle {
    hooks: Weak<Hooks>,
    id: u64,
}

impl fmt::Debug for HookHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookHandle").field("id", &self.id).finish_non_exhaustive()
    }
}

impl HookHandle {
    /// Removes the hook. It does nothing if the tensor or its graph was dropped, which drops the hook.
    pub fn remove(self) {
        if let Some(hooks) = self.hooks.upgrade() {
            hooks.lock().remove(self.id);
        }
    }
}

impl Hooks {
    fn lock(&self) -> MutexGuard<'_, HookList<GradientHook>> {
        lock(&self.0)
    }

    pub(crate) fn add(self: &Arc<Hooks>, hook: GradientHook) -> HookHandle {
        HookHandle { hooks: Arc::downgrade(self), id: self.lock().add(hook) }
    }

    /// Returns the hooks. In a captured step, the recording then depends on them.
    pub(crate) fn registered(&self) -> Vec<GradientHook> {
        self.lock().registered()
    }
}
