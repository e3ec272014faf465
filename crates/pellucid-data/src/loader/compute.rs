//! The computation of a batch, independent of the thread that computes it.

use super::OP;
use crate::random::{EpochSeed, with_batch};
use crate::sample_names::SampleNames;
use pellucid_tensor::{Error, Result, autocast_off, no_grad};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Computes the batch of the samples that start at position `first` of an epoch, independent of the modes of the
/// thread, such as `no_grad`, and of its random numbers. A panic becomes an error.
pub(crate) fn compute_batch<B>(
    seed: EpochSeed,
    first: usize,
    names: SampleNames,
    f: impl FnOnce() -> Result<B>,
) -> Result<B> {
    let (result, failed, names) = with_batch(seed, first, names, || {
        let _modes = (no_grad(), autocast_off());
        catch_unwind(AssertUnwindSafe(f))
    });
    let result = result.unwrap_or_else(|panic| {
        let subject = match failed {
            Some(_) => "the computation".to_string(),
            None => format!("the computation of the batch of {}", names.list()),
        };
        Err(panic_error(&subject, &*panic))
    });
    result.map_err(|error| match failed {
        Some(sample) => names.error(sample, error),
        None => error,
    })
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
