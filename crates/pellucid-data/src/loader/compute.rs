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
    index: impl Fn(usize) -> usize,
    f: impl FnOnce() -> Result<B>,
) -> Result<B> {
    let (result, failed) = with_batch(range.seed, range.first, range.len, || {
        let _modes = (no_grad(), autocast_off());
        catch_unwind(AssertUnwindSafe(f))
    });
    let result = result.unwrap_or_else(|panic| {
        let subject = match failed {
            Some(_) => "the computation".to_string(),
            None => format!("the computation of the batch of {}", list_samples(range.len, &index)),
        };
        Err(panic_error(&subject, &*panic))
    });
    result.map_err(|error| match failed {
        Some(sample) => Error::Sample { index: index(sample), source: Box::new(error) },
        None => error,
    })
}

/// Returns the indices of the samples of a batch for an error message.
fn list_samples(len: usize, index: impl Fn(usize) -> usize) -> String {
    const SHOWN: usize = 24;
    let shown: Vec<usize> = (0..len.min(SHOWN)).map(index).collect();
    let rest = if len > SHOWN { format!(" and {} more", len - SHOWN) } else { String::new() };
    format!("samples {shown:?}{rest}")
}

/// Runs `f`. A panic of `subject` becomes an error with its message.
pub(crate) fn catch_panic<R>(subject: &str, f: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| Err(panic_error(subject, &*panic)))
}

/// Returns the error for a panic, with its message.
fn panic_error(subject: &str, panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown panic payload");
    Error::invalid(OP, format!("{subject} panicked: {text}"))
}
