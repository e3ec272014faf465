//! The computation of a batch, independent of the thread that computes it.

use super::OP;
use crate::random::{EpochSeed, with_batch};
use pellucid_tensor::{Error, Result, autocast_off, no_grad};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The samples of a batch.
#[derive(Clone, Copy)]
pub(crate) struct BatchRange {
    pub(crate) seed: EpochSeed,
    /// The position of the first sample in the epoch.
    pub(crate) first: usize,
    /// The number of samples.
    pub(crate) len: usize,
}

/// Computes a batch, independent of the modes and the random numbers of the thread. A panic becomes an error.
/// `index(i)` is the index of sample i of the batch in error messages.
pub(crate) fn compute_batch<B>(
    range: BatchRange,
    index: impl FnOnce(usize) -> usize,
    f: impl FnOnce() -> Result<B>,
) -> Result<B> {
    let (result, failed) = with_batch(range.seed, range.first, range.len, || {
        let _modes = (no_grad(), autocast_off());
        catch_panic("the computation", f)
    });
    result.map_err(|error| match failed {
        Some(sample) => Error::Sample { index: index(sample), source: Box::new(error) },
        None => error,
    })
}

/// Runs `f`. A panic of `subject` becomes an error with its message.
pub(crate) fn catch_panic<R>(subject: &str, f: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(f))
        .unwrap_or_else(|panic| Err(Error::invalid(OP, format!("{subject} panicked: {}", panic_message(&*panic)))))
}

/// Returns the message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown panic payload")
}
