//! `HostDependencies`: the host flags, and the tensors of other devices, that a recording depends on.

use crate::array::Array;
use pellucid_ir::backend::Storage;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a step reads on the host while it is recorded. The recording is valid as long as it does not change.
#[derive(Default)]
pub(crate) struct HostDependencies {
    /// Flags, each with its value; `None` for a flag that the step sets before it reads it.
    flags: Vec<(Arc<AtomicUsize>, Option<usize>)>,
    /// Storages whose elements were copied to the device of the step, each with its version.
    sources: Vec<(Arc<Storage>, u64)>,
}

impl HostDependencies {
    /// Records the first access to a flag: a read of `value`, or a write (`None`). Later accesses change nothing.
    pub(super) fn note_flag(&mut self, flag: &Arc<AtomicUsize>, value: Option<usize>) {
        if !self.flags.iter().any(|(own, _)| Arc::ptr_eq(own, flag)) {
            self.flags.push((flag.clone(), value));
        }
    }

    /// Records that the elements of `source` were copied to the device of the step.
    pub(super) fn note_source(&mut self, source: &Array) {
        if !self.sources.iter().any(|(own, _)| Arc::ptr_eq(own, source.storage())) {
            self.sources.push((source.storage().clone(), source.storage().version()));
        }
    }

    /// Returns true if all flags have the values that the step has read, and no source was written since.
    pub(crate) fn all_unchanged(&self) -> bool {
        self.flags.iter().all(|(flag, value)| value.is_none_or(|value| flag.load(Ordering::Relaxed) == value))
            && self.sources.iter().all(|(storage, version)| storage.version() == *version)
    }
}
