//! `HostDependencies`: the host flags and the tensors on other devices on which a recording depends.

use crate::array::Array;
use pellucid_ir::backend::Storage;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The process-wide count of changes of host flags.
static FLAG_CHANGES: AtomicUsize = AtomicUsize::new(0);

/// The value of a retired flag, which never changes again.
pub(super) const RETIRED: usize = usize::MAX;

/// Returns the process-wide count of changes of host flags. Flag values that are read later belong to this count or to
/// a later one.
#[inline]
fn flag_changes() -> usize {
    FLAG_CHANGES.load(Ordering::Acquire)
}

/// Counts a change of a host flag.
pub(super) fn count_flag_change() {
    FLAG_CHANGES.fetch_add(1, Ordering::Release);
}

/// The host state that a step reads while it is recorded. The recording is valid while this state is unchanged.
#[derive(Default)]
pub(crate) struct HostDependencies {
    /// Flags, each with its value; `None` for a flag that the step sets before it reads it.
    flags: Vec<(Arc<AtomicUsize>, Option<usize>)>,
    /// 1 plus the count of flag changes at which all flags had these values. While no flag in the process changes, a
    /// launch reads only the count.
    matched_at: AtomicUsize,
    /// Storages whose elements were copied to the device of the step, each with its version.
    sources: Vec<(Arc<Storage>, u64)>,
}

impl HostDependencies {
    /// Records the first access to a flag: a read of `value`, or a write (`None`). Later accesses change nothing.
    pub(super) fn note_flag(&mut self, flag: &Arc<AtomicUsize>, value: Option<usize>) {
        if !self.flags.iter().any(|(noted, _)| Arc::ptr_eq(noted, flag)) {
            self.flags.push((flag.clone(), value));
        }
    }

    /// Records that the elements of `source` were copied to the device of the step.
    pub(super) fn note_source(&mut self, source: &Array) {
        if !self.sources.iter().any(|(noted, _)| Arc::ptr_eq(noted, source.storage())) {
            self.sources.push((source.storage().clone(), source.storage().version()));
        }
    }

    /// Returns true if all flags have the values that the step has read, and no source was written since.
    pub(crate) fn all_unchanged(&self) -> bool {
        self.flags_match() && self.sources.iter().all(|(storage, version)| storage.version() == *version)
    }

    fn flags_match(&self) -> bool {
        let changes = flag_changes() + 1;
        if self.matched_at.load(Ordering::Relaxed) == changes {
            return true;
        }
        let is_same = |(flag, value): &(Arc<AtomicUsize>, Option<usize>)| {
            value.is_none_or(|value| flag.load(Ordering::Relaxed) == value)
        };
        let all_match = self.flags.iter().all(is_same);
        if all_match {
            self.matched_at.store(changes, Ordering::Relaxed);
        }
        all_match
    }

    /// Returns false if a flag can no longer have the value that the step has read, such as the flag of a removed hook.
    pub(crate) fn can_match_again(&self) -> bool {
        let is_left = |(flag, value): &(Arc<AtomicUsize>, Option<usize>)| {
            value.is_some_and(|value| value != RETIRED) && flag.load(Ordering::Relaxed) == RETIRED
        };
        !self.flags.iter().any(is_left)
    }
}
