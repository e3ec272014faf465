//! Which values of a recording are those that a plan lists.
//!
//! While a step is recorded, the memory of each layer's output, of its input's gradient and of every parameter's gradient
//! is written down; the recording then says where that lies.

use super::plan::{CapturePlan, Place, Role};
use crate::hook::{self, HookGuard};
use crate::module::Module;
use pellucid_tensor::{Captured, Placement, Result, StorageId, Tensor};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the latest recording has shown.
#[derive(Clone, Default)]
pub(super) struct Trail(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// How often the layer of a name was called.
    calls: HashMap<String, usize>,
    found: HashMap<Role, StorageId>,
}

impl Trail {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins anew, and follows the layers of the plan while the guards live.
    pub(super) fn follow<'m>(&self, model: &'m (impl Module + ?Sized), plan: &[String]) -> Result<Vec<HookGuard<'m>>> {
        *self.seen() = Seen::default();
        let follow = |path: &String| {
            let (trail, name) = (self.clone(), path.clone());
            hook::on_forward(model, path, move |x, y| {
                let call = trail.call(&name);
                trail.found(Role::Output(name.clone(), call), y);
                let (trail, role) = (trail.clone(), Role::InputGradient(name.clone(), call));
                trail.gradient(x, role);
                None
            })
        };
        plan.iter().map(follow).collect()
    }

    fn call(&self, path: &str) -> usize {
        let mut seen = self.seen();
        let calls = seen.calls.entry(path.to_string()).or_default();
        *calls += 1;
        *calls - 1
    }

    /// The value that stands for an entry of the plan.
    pub(super) fn found(&self, role: Role, tensor: &Tensor) {
        self.seen().found.insert(role, tensor.storage_id());
    }

    /// The same of a gradient, when the backward pass finds it.
    pub(super) fn gradient(&self, x: &Tensor, role: Role) {
        if x.requires_grad() && !x.is_leaf() {
            let trail = self.clone();
            x.register_hook(move |gradient| {
                trail.found(role.clone(), gradient);
                None
            });
        }
    }

    /// Where the recording has the entries of the plan.
    pub(super) fn settle(&self, plan: &mut CapturePlan, captured: Option<&Captured<'_>>) {
        let seen = self.seen();
        plan.settle(|role, buf| {
            if buf.pinned().is_some() {
                return Place::Owned;
            }
            let placement = captured.zip(seen.found.get(&role)).map(|(captured, id)| captured.placement(*id));
            match placement {
                Some(Placement::Outside | Placement::Buffer) => Place::Owned,
                Some(Placement::Arena(place)) => {
                    Place::At { offset: place.offset, first: place.first, last: place.last }
                }
                Some(Placement::Elided(by)) => Place::Elided { by: by.to_string() },
                Some(Placement::Unknown) | None => Place::Planned,
            }
        });
    }
}
