//! The batches of an epoch, as lists of indices.

use super::LoaderOptions;
use super::compute::catch_panic;
use crate::progress::LoaderSizes;
use crate::random::EpochSeed;
use crate::sampler::{BatchSampler, Sampler, batch_count};
use pellucid_tensor::{Error, Result};

/// The samples of each batch in each epoch.
pub(super) enum BatchOrder {
    /// Batches of consecutive samples of a sampler.
    Samples { sampler: Box<dyn Sampler>, size: usize, drop_last: bool },
    /// The batches of a batch sampler.
    Batches(Box<dyn BatchSampler>),
}

/// The batches of one epoch.
pub(super) struct EpochPlan {
    pub(super) seed: EpochSeed,
    indices: Vec<usize>,
    bounds: BatchBounds,
}

/// The division of a list of indices into batches.
enum BatchBounds {
    /// Batches of this size; the last may be smaller.
    Equal(usize),
    /// The end of each batch.
    Ends(Vec<usize>),
}

impl EpochPlan {
    /// Returns the position of the first sample of a batch in the epoch, and the indices of its samples.
    pub(super) fn batch(&self, batch: usize) -> (usize, &[usize]) {
        let (start, end) = match &self.bounds {
            BatchBounds::Equal(size) => (batch * size, self.indices.len().min((batch + 1) * size)),
            BatchBounds::Ends(ends) => (batch.checked_sub(1).map_or(0, |before| ends[before]), ends[batch]),
        };
        (start, &self.indices[start..end])
    }
}

impl BatchOrder {
    /// Returns batches of consecutive samples of a sampler.
    pub(super) fn samples(sampler: Box<dyn Sampler>, options: &LoaderOptions) -> BatchOrder {
        BatchOrder::Samples { sampler, size: options.batch_size, drop_last: options.drop_last }
    }

    /// Returns the sizes of an epoch of a data set of `samples` samples. For batches of different sizes, `size` is 0.
    pub(super) fn sizes(&self, samples: usize) -> LoaderSizes {
        match self {
            &BatchOrder::Samples { ref sampler, size, drop_last } => {
                let batches = batch_count(sampler.len(), size, drop_last);
                LoaderSizes { samples, size, batches, drop_last, order: sampler.name(), settings: sampler.settings() }
            }
            BatchOrder::Batches(sampler) => LoaderSizes {
                samples,
                size: 0,
                batches: sampler.len(),
                drop_last: false,
                order: sampler.name(),
                settings: sampler.settings(),
            },
        }
    }

    /// Returns the batches of an epoch of a data set of `samples` samples.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a sampler returns indices out of bounds, an empty batch, or a number of indices
    /// that differs from its `len`; the errors of the sampler.
    pub(super) fn plan(&self, seed: EpochSeed, samples: usize) -> Result<EpochPlan> {
        let invalid = |reason: String| Err(Error::invalid("data_loader", reason));
        let plan = match self {
            BatchOrder::Samples { sampler, size, .. } => {
                let indices = catch_panic("the sampler", || sampler.indices(seed))?;
                if indices.len() != sampler.len() {
                    let (actual, stated) = (indices.len(), sampler.len());
                    return invalid(format!("the sampler has returned {actual} indices, but its len() is {stated}"));
                }
                EpochPlan { seed, indices, bounds: BatchBounds::Equal(*size) }
            }
            BatchOrder::Batches(sampler) => {
                let batches = catch_panic("the batch sampler", || sampler.batches(seed))?;
                if batches.len() != sampler.len() {
                    let (actual, stated) = (batches.len(), sampler.len());
                    return invalid(format!(
                        "the batch sampler has returned {actual} batches, but its len() is {stated}"
                    ));
                }
                if let Some(empty) = batches.iter().position(Vec::is_empty) {
                    return invalid(format!("batch {empty} of the batch sampler is empty"));
                }
                let ends = batches.iter().scan(0, |end, batch| {
                    *end += batch.len();
                    Some(*end)
                });
                EpochPlan { seed, bounds: BatchBounds::Ends(ends.collect()), indices: batches.concat() }
            }
        };
        match plan.indices.iter().find(|&&index| index >= samples) {
            Some(index) => {
                invalid(format!("the sampler has returned index {index} for a data set of {samples} samples"))
            }
            None => Ok(plan),
        }
    }
}
