//! `HostFlag`: a number of the host's on which the kernels of a step hang.

use super::{MODE, Mode, list};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number that the host sets between steps, and that decides which kernels a step has: training or evaluation, the way
/// through a model with several.
///
/// A [captured](crate::capture) step that has read one is launched as long as it has the value that it had then; at another
/// value the step is recorded once more, and both recordings are kept. A step that sets one before it reads it does not hang
/// on it.
///
/// ```
/// use pellucid_tensor::{HostFlag, Tensor, capture};
/// let (doubled, x) = (HostFlag::new(1), Tensor::from([1.0f32, 2.0]));
/// let mut step = capture(|i| if doubled.get() == 1 { &i[0] * 2.0 } else { &i[0] + 1.0 }, &[&x])?;
/// assert_eq!(step.launch(&[&x])?.to_vec::<f32>(0), [2.0, 4.0]);
/// doubled.set(0);
/// assert_eq!(step.launch(&[&x])?.to_vec::<f32>(0), [2.0, 3.0]);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct HostFlag(Arc<AtomicUsize>);

impl HostFlag {
    /// A switch with this value.
    pub fn new(value: usize) -> HostFlag {
        HostFlag(Arc::new(AtomicUsize::new(value)))
    }

    /// The value.
    pub fn get(&self) -> usize {
        let value = self.0.load(Ordering::Relaxed);
        self.note(Some(value));
        value
    }

    /// Sets the value.
    pub fn set(&self, value: usize) {
        self.replace(value);
    }

    /// Sets the value and returns the one before, on which a step that is recorded does not hang: it is there to be put back.
    pub fn replace(&self, value: usize) -> usize {
        self.note(None);
        self.0.swap(value, Ordering::Relaxed)
    }

    fn note(&self, value: Option<usize>) {
        if MODE.get() == Mode::Capture {
            list::with_current(|r| r.note(&self.0, value));
        }
    }
}

impl Clone for HostFlag {
    /// A switch with the same value, which is then set on its own.
    fn clone(&self) -> HostFlag {
        HostFlag::new(self.0.load(Ordering::Relaxed))
    }
}

/// The switches that a step has read, each with its value.
#[derive(Default)]
pub(crate) struct HostFlags(Vec<(Arc<AtomicUsize>, Option<usize>)>);

impl HostFlags {
    /// A switch is read, or set (`None`), for the first time or again.
    pub(super) fn note(&mut self, switch: &Arc<AtomicUsize>, value: Option<usize>) {
        if !self.0.iter().any(|(own, _)| Arc::ptr_eq(own, switch)) {
            self.0.push((switch.clone(), value));
        }
    }

    /// True if all have the values that the step has found.
    pub(super) fn all_unchanged(&self) -> bool {
        self.0.iter().all(|(switch, value)| value.is_none_or(|value| switch.load(Ordering::Relaxed) == value))
    }
}
