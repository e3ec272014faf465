//! [`SampleNames`]: the names of the samples of a batch in error messages.

use pellucid_tensor::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The function [`Dataset::location`](crate::Dataset::location) of the data set of a loader.
pub(crate) type LocationFn = Arc<dyn Fn(usize) -> Option<String> + Send + Sync>;

/// The samples of a batch, as errors name them.
#[derive(Clone)]
pub(crate) struct SampleNames {
    /// The indices in the data set of the loader.
    pub(crate) indices: Vec<usize>,
    pub(crate) location: LocationFn,
}

impl SampleNames {
    /// Returns the location of sample `i` of the batch. Returns `None` if the data set panics.
    fn location(&self, i: usize) -> Option<String> {
        catch_unwind(AssertUnwindSafe(|| (self.location)(self.indices[i]))).ok().flatten()
    }

    /// Returns the name of sample `i` of the batch.
    pub(crate) fn name(&self, i: usize) -> String {
        let index = self.indices[i];
        self.location(i).map_or_else(|| format!("sample {index}"), |location| format!("sample {index} ({location})"))
    }

    /// Returns the error of sample `i` of the batch.
    pub(crate) fn error(&self, i: usize, source: Error) -> Error {
        Error::Sample { index: self.indices[i], location: self.location(i), source: Box::new(source) }
    }

    /// Returns the indices of all samples of the batch.
    pub(crate) fn list(&self) -> String {
        const SHOWN: usize = 24;
        let shown = &self.indices[..self.indices.len().min(SHOWN)];
        let rest = self.indices.len() - shown.len();
        let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
        format!("samples {shown:?}{rest}")
    }
}
