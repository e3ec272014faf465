//! `HostFlag`: a host value that selects which kernels a captured step contains.

use super::host_dependencies::{RETIRED, count_flag_change};
use super::list;
use crate::execution_mode::is_capturing;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A host value that selects which kernels a step contains: training or evaluation, or a branch of a model.
///
/// A [captured](crate::capture) step that reads a flag is replayed while the flag has the value of its recording. For
/// another value the step is recorded once more, and both recordings are cached. A step that sets a flag before it
/// reads the flag does not depend on it.
///
/// ```
/// use pellucid::{Tensor, capture, engine::HostFlag};
/// let (doubled, x) = (HostFlag::new(1), Tensor::from([1.0f32, 2.0]));
/// let mut step = capture(|i| if doubled.get() == 1 { &i[0] * 2.0 } else { &i[0] + 1.0 }, &[&x])?;
/// assert_eq!(step.launch(&[&x])?.to_vec::<f32>(0), [2.0, 4.0]);
/// doubled.set(0);
/// assert_eq!(step.launch(&[&x])?.to_vec::<f32>(0), [2.0, 3.0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct HostFlag(Arc<AtomicUsize>);

impl HostFlag {
    /// Creates a flag with this value.
    pub fn new(value: usize) -> HostFlag {
        HostFlag(Arc::new(AtomicUsize::new(value)))
    }

    /// Returns the value. In a captured step, the recording then depends on it.
    pub fn get(&self) -> usize {
        let value = self.0.load(Ordering::Relaxed);
        self.note(Some(value));
        value
    }

    /// Sets the value.
    pub fn set(&self, value: usize) {
        self.replace(value);
    }

    /// Sets the value and returns the previous one, so that the caller can restore it. A captured step does not become
    /// dependent on the returned value.
    pub fn replace(&self, value: usize) -> usize {
        self.note(None);
        let before = self.0.swap(value, Ordering::Relaxed);
        if before != value {
            count_flag_change();
        }
        before
    }

    /// Sets a final value. A recording that has read another value never becomes valid again.
    pub(super) fn retire(&self) {
        self.set(RETIRED);
    }

    /// Returns true if no recording and no other handle refers to this flag.
    pub(super) fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Returns another handle to this flag. In contrast, a clone is an independent flag.
    #[doc(hidden)]
    pub fn handle(&self) -> HostFlag {
        HostFlag(self.0.clone())
    }

    fn note(&self, value: Option<usize>) {
        if is_capturing() {
            list::with_current(|r| r.note(&self.0, value));
        }
    }
}

impl Clone for HostFlag {
    /// Creates an independent flag with the same value.
    fn clone(&self) -> HostFlag {
        HostFlag::new(self.0.load(Ordering::Relaxed))
    }
}
