//! Records the kernels of a closure without running them, and restores the state that the closure changes.

use crate::array::Array;
use crate::engine::{DeferredGuard, ExecutionMode, Recording};
use crate::tensor::{EntryGradients, RecordedSlot, collect_recorded_slots, collect_rewritten_histories};
use pellucid_ir::backend::POISONED;
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// Records the kernels of `f` without running them, and returns its result, the recording, and the slots that `f` uses,
/// with their gradients before the step. `f` reads and changes private gradients, which no other thread sees. A slot
/// starts with its gradient in `entries`, or otherwise with its current one. The third value is an error if the step
/// could not be launched again because it sets an empty slot, empties a set slot, or replaces a gradient by another
/// view of its storage. Tensors that `f` creates have no values outside launches.
///
/// A panic of `f` with a typed error returns that error; other panics propagate.
pub(super) fn record_closure<R>(
    entries: EntryGradients,
    f: impl FnOnce() -> R,
) -> Result<(R, Recording, Result<EntryGradients>)> {
    let deferred = DeferredGuard::enter(ExecutionMode::Capture);
    let ((result, mut rewritten), slots) =
        collect_recorded_slots(entries, || collect_rewritten_histories(|| catch_unwind(AssertUnwindSafe(f))));
    let mut recording = deferred.take();
    let id = recording.id;
    let changed = record_gradient_copies(&mut recording, slots);
    rewritten.restore();
    drop(deferred);
    for array in recording.kernels.iter().flat_map(|k| &k.outputs) {
        if array.storage().pending() == id {
            array.storage().set_pending(POISONED);
        }
    }
    match result {
        Ok(value) => Ok((value, recording, changed)),
        Err(payload) => match payload.downcast::<Error>() {
            Ok(error) => Err(*error),
            Err(other) => resume_unwind(other),
        },
    }
}

/// Returns true if the arrays are different views of one storage.
fn is_moved(before: &Array, after: &Array) -> bool {
    before.shares_storage(after) && before.layout() != after.layout()
}

/// Returns the slots of a step with their gradients before it. If the step replaces a gradient, a copy at the end of
/// the step writes the new value into the previous gradient's storage.
fn record_gradient_copies(recording: &mut Recording, used: Vec<RecordedSlot>) -> Result<EntryGradients> {
    let mut slots = Vec::new();
    let mut rejected = None;
    for RecordedSlot { slot, entry, current: exit, is_cleared } in used {
        // The step created the leaf and dropped it, so its gradient cannot be read.
        if Arc::strong_count(&slot) == 1 {
            continue;
        }
        let change = match (&entry.gradient, &exit.gradient) {
            (None, None) => None,
            (None, Some(_)) if is_cleared => None,
            (None, Some(_)) => Some((
                "empty before the step and set after it",
                "call zero_grad() inside the step before backward(), or set a gradient before the step is captured",
            )),
            (Some(_), None) => Some((
                "set before the step and empty after it",
                "call zero_grad() before the step is captured, or do not call it at the end of the step",
            )),
            (Some(before), Some(after)) if is_moved(before.array(), after.array()) => {
                Some(("a different view of the same storage after the step", "set a copy() of the gradient"))
            }
            (Some(before), Some(after)) => {
                if !before.array().shares_storage(after.array()) {
                    recording.push(Kernel::Copy, &[after.array()], &[before.array()]);
                }
                None
            }
        };
        if let (Some((change, help)), None) = (change, &rejected) {
            let slot = format!("the gradient of a tensor of shape {}", slot.meta().shape);
            rejected = Some(Error::NotAFixedPoint { slot, change: change.into(), help: help.into() });
        }
        slots.push((slot, entry));
    }
    rejected.map_or(Ok(slots), Err)
}
