//! The iterator over the batches of an epoch, and the batches that workers compute ahead of it.

use super::compute::compute_batch;
use super::plan::{BatchOrder, EpochPlan};
use super::workers::OrderedWorkers;
use super::{LoaderOptions, OP};
use crate::progress::{BatchPosition, EpochProgress, LoaderProgress};
use crate::random::EpochSeed;
use crate::sample_names::{LocationFn, SampleNames};
use pellucid_tensor::{Error, Result, lock};
use std::fmt;
use std::sync::{Arc, Mutex};

/// The computation of a batch from the indices of its samples.
pub(super) type BatchFn<B> = Arc<dyn Fn(&[usize]) -> Result<B> + Send + Sync>;

/// The computation of the batches of a loader.
pub(super) struct LoaderPipeline<B> {
    /// The number of samples of the data set.
    pub(super) samples: usize,
    pub(super) order: Arc<BatchOrder>,
    pub(super) options: LoaderOptions,
    pub(super) batch: BatchFn<B>,
    pub(super) location: LocationFn,
}

// `B` need not be `Clone`.
impl<B> Clone for LoaderPipeline<B> {
    fn clone(&self) -> Self {
        let LoaderPipeline { samples, order, options, batch, location } = self;
        LoaderPipeline {
            samples: *samples,
            order: order.clone(),
            options: *options,
            batch: batch.clone(),
            location: location.clone(),
        }
    }
}

impl<B> LoaderPipeline<B> {
    fn plan(&self, seed: EpochSeed) -> Result<EpochPlan> {
        self.order.plan(seed, self.samples)
    }

    fn compute(&self, plan: &EpochPlan, batch: usize) -> Result<B> {
        let (first, indices) = plan.batch(batch);
        let names = SampleNames { indices: indices.to_vec(), location: self.location.clone() };
        compute_batch(plan.seed, first, names, || (self.batch)(indices))
    }
}

/// The job of a worker: a batch to compute.
struct BatchJob {
    plan: Arc<EpochPlan>,
    batch: usize,
}

/// The queue of batches that workers compute ahead, in the order of the epochs.
pub(super) struct BatchQueue<B> {
    workers: OrderedWorkers<BatchJob, Result<B>>,
    seed: u64,
    /// The oldest batch in the queue.
    front: BatchPosition,
    /// The index of the next batch to submit, in the epoch of `plan`.
    back: usize,
    plan: Arc<EpochPlan>,
    /// Whether the plan of the epoch after `plan` has failed. The call that begins that epoch computes the plan again
    /// and returns the error.
    has_failed: bool,
    /// The number of batches of an epoch.
    batches: usize,
}

impl<B: Send + 'static> BatchQueue<B> {
    /// Starts the workers, beginning with the batch `front`.
    fn start(pipeline: &Arc<LoaderPipeline<B>>, plan: EpochPlan, front: BatchPosition, batches: usize) -> Result<Self> {
        let LoaderOptions { workers, prefetch_factor, .. } = pipeline.options;
        let shared = pipeline.clone();
        let process = move |job: BatchJob| shared.compute(&job.plan, job.batch);
        let workers = OrderedWorkers::start(workers, prefetch_factor, process)?;
        let (seed, back, plan) = (plan.seed.seed, front.batch, Arc::new(plan));
        Ok(BatchQueue { workers, seed, front, back, plan, has_failed: false, batches })
    }

    /// Submits batches until the queue is full or the plan of an epoch fails.
    fn fill(&mut self, pipeline: &LoaderPipeline<B>) {
        while self.workers.pending() < self.workers.capacity() {
            if self.back == self.batches {
                if self.has_failed {
                    return;
                }
                let EpochSeed { seed, epoch } = self.plan.seed;
                let Ok(plan) = pipeline.plan(EpochSeed { seed, epoch: epoch + 1 }) else {
                    self.has_failed = true;
                    return;
                };
                (self.plan, self.back) = (Arc::new(plan), 0);
            }
            self.workers.submit(BatchJob { plan: self.plan.clone(), batch: self.back });
            self.back += 1;
        }
    }

    /// Returns the oldest batch, and submits the next ones.
    fn next(&mut self, pipeline: &LoaderPipeline<B>) -> Result<B> {
        self.fill(pipeline);
        let batch = self.workers.receive();
        self.front.batch += 1;
        if self.front.batch == self.batches {
            self.front = BatchPosition { epoch: self.front.epoch + 1, batch: 0 };
        }
        self.fill(pipeline);
        batch.unwrap_or_else(|| Err(Error::invalid(OP, "a worker thread has ended without a result")))
    }
}

/// The source of the batches of an epoch.
enum BatchSource<B> {
    /// The calling thread computes the batches.
    Caller(EpochPlan),
    Workers(BatchQueue<B>),
}

/// The workers of a loader between two epochs.
pub(super) type IdleQueue<B> = Arc<Mutex<Option<BatchQueue<B>>>>;

/// An iterator over the batches of an epoch of a [`DataLoader`](crate::DataLoader), which advances the position of the
/// loader.
pub struct EpochIter<B: Send + 'static> {
    pipeline: Arc<LoaderPipeline<B>>,
    /// `None` after the last batch.
    source: Option<BatchSource<B>>,
    next: usize,
    /// The number of batches of the epoch.
    end: usize,
    progress: EpochProgress,
    idle: IdleQueue<B>,
}

impl<B: Send> fmt::Debug for EpochIter<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EpochIter").field("next", &self.next).field("end", &self.end).finish_non_exhaustive()
    }
}

impl<B: Send + 'static> EpochIter<B> {
    /// Begins the next epoch. `queue` contains the workers of the previous epoch.
    pub(super) fn begin(
        pipeline: &Arc<LoaderPipeline<B>>,
        progress: &LoaderProgress,
        idle: &IdleQueue<B>,
        queue: Option<BatchQueue<B>>,
    ) -> Result<EpochIter<B>> {
        let (position, seed) = (progress.next_position(), progress.seed().unwrap_or(0));
        let end = pipeline.order.sizes(pipeline.samples).batches;
        // A queue without pending batches has failed to plan this epoch.
        let is_usable =
            |queue: &BatchQueue<B>| (queue.front, queue.seed) == (position, seed) && queue.workers.pending() > 0;
        let prepared = queue.filter(is_usable);
        let source = match prepared {
            Some(queue) => BatchSource::Workers(queue),
            None => {
                let plan = pipeline.plan(EpochSeed { seed, epoch: position.epoch })?;
                match pipeline.options.workers {
                    0 => BatchSource::Caller(plan),
                    _ => BatchSource::Workers(BatchQueue::start(pipeline, plan, position, end)?),
                }
            }
        };
        let progress = progress.begin_epoch();
        Ok(EpochIter {
            pipeline: pipeline.clone(),
            source: Some(source),
            next: position.batch,
            end,
            progress,
            idle: idle.clone(),
        })
    }

    /// Stores the workers of a completed epoch for the next epoch.
    fn keep_workers(&mut self) {
        if let Some(BatchSource::Workers(queue)) = self.source.take() {
            *lock(&self.idle) = Some(queue);
        }
    }
}

impl<B: Send + 'static> Iterator for EpochIter<B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        if self.next == self.end {
            self.progress.end();
            self.keep_workers();
            return None;
        }
        let batch = match self.source.as_mut()? {
            BatchSource::Caller(plan) => self.pipeline.compute(plan, self.next),
            BatchSource::Workers(queue) => queue.next(&self.pipeline),
        };
        self.next += 1;
        self.progress.advance_to(self.next);
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end - self.next, Some(self.end - self.next))
    }
}

impl<B: Send + 'static> ExactSizeIterator for EpochIter<B> {}

impl<B: Send + 'static> Drop for EpochIter<B> {
    fn drop(&mut self) {
        self.progress.end();
        if self.next == self.end {
            self.keep_workers();
        }
    }
}
