//! `HostFlagReads`: the host flags that a recording depends on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The flags that a step reads, each with its value; `None` for a flag that the step sets before it reads it.
#[derive(Default)]
pub(crate) struct HostFlagReads(Vec<(Arc<AtomicUsize>, Option<usize>)>);

impl HostFlagReads {
    /// Records the first access to a flag: a read of `value`, or a write (`None`). Later accesses change nothing.
    pub(super) fn note(&mut self, flag: &Arc<AtomicUsize>, value: Option<usize>) {
        if !self.0.iter().any(|(own, _)| Arc::ptr_eq(own, flag)) {
            self.0.push((flag.clone(), value));
        }
    }

    /// Returns true if all flags have the values that the step has read.
    pub(crate) fn all_unchanged(&self) -> bool {
        self.0.iter().all(|(flag, value)| value.is_none_or(|value| flag.load(Ordering::Relaxed) == value))
    }
}
