//! Hooks: user functions that a backward pass calls with a gradient, and that may replace it.

use super::Tensor;
use std::sync::{Arc, Mutex, Weak};

type Hook = Arc<dyn Fn(&Tensor) -> Option<Tensor> + Send + Sync>;

/// The hooks of one tensor, in the order of registration.
#[derive(Default)]
pub(crate) struct Hooks(Mutex<Vec<(u64, Hook)>>);

/// A handle that can remove a registered hook. Dropping the handle does not remove it.
pub struct HookHandle {
    hooks: Weak<Hooks>,
    id: u64,
}

impl HookHandle {
    /// Removes the hook. It does nothing if the tensor was dropped.
    pub fn remove(self) {
        if let Some(hooks) = self.hooks.upgrade() {
            hooks.lock().retain(|(id, _)| *id != self.id);
        }
    }
}

impl Hooks {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(u64, Hook)>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn add(self: &Arc<Hooks>, hook: Hook) -> HookHandle {
        let mut hooks = self.lock();
        let id = hooks.last().map_or(0, |(id, _)| id + 1);
        hooks.push((id, hook));
        HookHandle { hooks: Arc::downgrade(self), id }
    }

    /// Returns true if no hook is registered.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Applies every hook to the gradient, in order.
    pub(crate) fn run(&self, gradient: Tensor) -> Tensor {
        let hooks = self.lock().clone();
        hooks.iter().fold(gradient, |g, (_, hook)| hook(&g).unwrap_or(g))
    }
}
