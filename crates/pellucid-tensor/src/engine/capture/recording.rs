//! Recording: a closure runs with every kernel written down, and leaves everything as it was.

use super::super::list::{Deferred, Touched};
use super::super::{Mode, Recorded, Recording};
use crate::array::Array;
use crate::autograd::Slot;
use crate::tensor::Tensor;
use pellucid_ir::backend::POISONED;
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// The gradient slots that a step touches, as it found them.
pub(in crate::engine) type Slots = Vec<(Arc<Slot>, Option<Tensor>)>;

/// What `f` returns and records, without a kernel run: gradient slots are as they were before, or the third
/// value says why the step would not leave them so; what `f` made has no values outside of launches.
///
/// A panic of `f` with a typed error is that error; any other goes on.
pub(in crate::engine) fn recorded<R>(f: impl FnOnce() -> R) -> Result<(R, Recording, Result<Slots>)> {
    let deferred = Deferred::enter(Mode::Capture);
    let result = catch_unwind(AssertUnwindSafe(f));
    let mut recording = deferred.take();
    let own = recording.id;
    let changed = restore(&mut recording);
    recording.restore_histories();
    drop(deferred);
    for array in recording.kernels.iter().flat_map(|k| &k.outputs) {
        if array.storage().pending() == own {
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

/// True if the arrays are different parts of one storage.
fn is_moved(before: &Array, after: &Array) -> bool {
    before.shares_storage(after) && before.layout() != after.layout()
}

/// Puts every gradient slot back as the step found it, and makes the step leave it so: a gradient that
/// was there receives the new one.
fn restore(recording: &mut Recording) -> Result<Slots> {
    let mut slots = Vec::new();
    let mut refused = None;
    for Touched { slot, entry, is_preset, cleared } in std::mem::take(&mut recording.touched) {
        // The leaf was made by the step and is gone: nobody can reach its gradient.
        if Arc::strong_count(&slot) == 1 {
            continue;
        }
        let exit = slot.get_untracked();
        slot.set_untracked(entry.clone(), is_preset);
        let change = match (&entry, &exit) {
            (None, None) => None,
            (None, Some(_)) if cleared => None,
            (None, Some(_)) => Some((
                "empty before, set after",
                "call zero_grad() inside the step, before backward; or give the tensor a gradient to accumulate into first",
            )),
            (Some(_), None) => {
                Some(("set before, empty after", "call zero_grad() before the step is captured, or not at its end"))
            }
            (Some(before), Some(after)) if is_moved(before.array(), after.array()) => {
                Some(("stored elsewhere in the same memory after", "set a copy() of the gradient"))
            }
            (Some(before), Some(after)) => {
                if !before.array().shares_storage(after.array()) {
                    let (inputs, outputs) = (vec![after.array().clone()], vec![before.array().clone()]);
                    recording.kernels.push(Recorded { kernel: Kernel::Copy, inputs, outputs });
                }
                None
            }
        };
        if let (Some((change, help)), None) = (change, &refused) {
            let slot = format!("the gradient of a tensor of shape {}", slot.meta.shape);
            refused = Some(Error::NotAFixedPoint { slot, change: change.into(), help: help.into() });
        }
        slots.push((slot, entry));
    }
    refused.map_or(Ok(slots), Err)
}
