//! [`StreamLoader`]: batches of records that are read in order.

use super::IterableDataset;
use crate::cancel::is_cancelled;
use crate::collate::{BatchToDevice, Collate};
use crate::loader::{LoaderOptions, OrderedWorkers, catch_panic, compute_batch};
use crate::progress::{BatchPosition, EpochProgress, LoaderProgress, LoaderSizes, positioned_loader};
use crate::random::{EpochSeed, for_sample, in_order, vec_with_capacity};
use crate::sample_names::SampleNames;
use pellucid_derive::panicking_form;
use pellucid_tensor::{Device, Error, Result, lock, unwrap};
use std::fmt;
use std::sync::{Arc, Mutex};

const OP: &str = "stream_loader";

/// The name of the record iterator in error messages.
const RECORDS: &str = "the iterator of the records";

/// The computation of a batch from its records.
type BatchTask<B> = Box<dyn FnOnce() -> Result<B> + Send>;

/// The batches of an epoch, in order. An item is `Err` if the source fails.
type TaskIter<B> = Box<dyn Iterator<Item = Result<BatchTask<B>>> + Send>;

/// Begins an epoch at a batch.
type BeginFn<B> = Arc<dyn Fn(EpochSeed, usize) -> Result<TaskIter<B>> + Send + Sync>;

/// A loader of batches of an [`IterableDataset`]. One thread reads the records in order.
/// [`workers`](LoaderOptions::workers) compute and collate samples ahead of the training loop; the batches arrive in
/// order. With 0 workers, the calling thread does both.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::data::{IterableDataset, LoaderOptions, StreamLoader, from_records};
///
/// let samples = from_records(|_epoch| Ok((0..10i64).map(Ok))).map(|n| Ok((Tensor::from([n as f32]), n % 2)));
/// let mut loader = StreamLoader::new(samples, LoaderOptions { batch_size: 5, workers: 1, ..Default::default() });
/// for batch in loader.epoch() {
///     let (x, parity) = batch?;
///     assert_eq!((x.shape().dims(), parity.shape().dims()), (&[5, 1][..], &[5][..]));
/// }
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// As in a [`DataLoader`](crate::DataLoader), every sample draws its random numbers from a separate generator, which
/// depends on the seed, the epoch and the position of its record. The batches are therefore bit-identical for any
/// number of workers. To [resume](StreamLoader::load_state_dict) inside an epoch, the loader reads the records of the
/// earlier batches again without computing samples from them.
///
/// The number of batches of an epoch is unknown before its end. An epoch without batches yields one item, an error. If
/// a sample fails or panics, the item of its batch is [`Error::Sample`], with the position of the record; the epoch
/// continues with the next batch. A panic of the iterator ends the epoch with an error.
///
/// The threads end when the iterator of the epoch is dropped, which waits for the current record and the current sample
/// of each thread.
pub struct StreamLoader<B> {
    options: LoaderOptions,
    begin: BeginFn<B>,
    progress: LoaderProgress,
    /// [`IterableDataset::settings`] of the data set.
    settings: u64,
}

impl<B: Send + 'static> StreamLoader<B> {
    /// Creates a loader whose batches are collated by [`Collate`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an option is out of its range, or
    /// [`shuffle`](LoaderOptions::shuffle) is set: records have no indices, so
    /// [`shuffle_buffer`](IterableDataset::shuffle_buffer) shuffles them.
    #[panicking_form]
    pub fn try_new<D>(dataset: D, options: LoaderOptions) -> Result<StreamLoader<B>>
    where
        D: IterableDataset<Item: Collate<Batch = B>> + 'static,
    {
        StreamLoader::try_with_collate(dataset, options, |samples| in_order(|| D::Item::collate(samples)))
    }

    /// Creates a loader with a function that collates samples into a batch.
    ///
    /// # Errors
    /// The errors of [`try_new`](Self::try_new).
    #[panicking_form]
    pub fn try_with_collate<D, C>(dataset: D, options: LoaderOptions, collate: C) -> Result<StreamLoader<B>>
    where
        D: IterableDataset + 'static,
        C: Fn(Vec<D::Item>) -> Result<B> + Send + Sync + 'static,
    {
        options.check()?;
        if options.shuffle {
            let reason = "the records of a stream have no indices to shuffle; call shuffle_buffer(n) on the data set";
            return Err(Error::invalid(OP, reason));
        }
        let settings = dataset.settings();
        let computation = Arc::new((dataset, collate));
        let begin = move |seed: EpochSeed, batch: usize| -> Result<TaskIter<B>> {
            let LoaderOptions { batch_size, drop_last, .. } = options;
            let first = batch.saturating_mul(batch_size);
            let mut records = catch_panic("the source", || computation.0.records(seed))?;
            let (mut first, mut skip, computation) = (first, batch, computation.clone());
            Ok(Box::new(std::iter::from_fn(move || {
                let skipped = skip_batches(&mut records, std::mem::take(&mut skip), batch_size);
                let batch = match skipped.and_then(|()| read_records(&mut records, batch_size)) {
                    Ok(batch) => batch,
                    Err(error) => return Some(Err(error)),
                };
                if batch.is_empty() || (drop_last && batch.len() < batch_size) {
                    return None;
                }
                let start = first;
                first += batch.len();
                let names = SampleNames { indices: (start..first).collect(), location: Arc::new(|_| None) };
                let computation = computation.clone();
                let compute = move || {
                    let (dataset, collate) = &*computation;
                    let samples = batch.into_iter().enumerate();
                    let samples = samples.map(|(i, record)| for_sample(i, || dataset.sample(record?)));
                    collate(samples.collect::<Result<_>>()?)
                };
                let task: BatchTask<B> = Box::new(move || compute_batch(seed, start, names, compute));
                Some(Ok(task))
            })))
        };
        let progress = LoaderProgress::new(Some(options.seed()?));
        Ok(StreamLoader { options, begin: Arc::new(begin), progress, settings })
    }

    /// Copies every batch to a device. Workers copy ahead of the training loop, while the device computes.
    #[must_use]
    pub fn to(self, device: Device) -> Self
    where
        B: BatchToDevice,
    {
        let StreamLoader { options, begin: on_host, progress, settings } = self;
        let begin = move |seed: EpochSeed, batch: usize| -> Result<TaskIter<B>> {
            let copied = move |task: BatchTask<B>| -> BatchTask<B> { Box::new(move || task()?.to_device(device)) };
            Ok(Box::new(on_host(seed, batch)?.map(move |task| task.map(copied))))
        };
        StreamLoader { options, begin: Arc::new(begin), progress, settings }
    }

    /// Returns an iterator over the batches of the next epoch. After
    /// [`load_state_dict`](StreamLoader::load_state_dict), the first iterator returns the rest of the saved epoch.
    ///
    /// # Errors
    /// The errors of [`records`](IterableDataset::records).
    #[panicking_form]
    pub fn try_epoch(&mut self) -> Result<StreamIter<B>> {
        let BatchPosition { epoch, batch } = self.progress.next_position();
        let seed = EpochSeed { seed: self.progress.seed().unwrap_or(0), epoch };
        let tasks = (self.begin)(seed, batch)?;
        let source = match self.options.workers {
            0 => StreamSource::Caller(tasks),
            _ => StreamSource::Workers(StreamQueue::start(tasks, &self.options)?),
        };
        Ok(StreamIter { source: Some(source), next: batch, progress: self.progress.begin_epoch() })
    }
}

impl<B> StreamLoader<B> {
    /// Returns the positions of the samples of a batch in the epoch. The last batch may have fewer samples.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a position exceeds the range of `usize`.
    pub fn sample_indices(&self, position: BatchPosition) -> Result<Vec<usize>> {
        let size = self.options.batch_size;
        let end = position.batch.checked_add(1).and_then(|batches| batches.checked_mul(size));
        let end = end.ok_or_else(|| Error::invalid(OP, format!("batch {} does not exist", position.batch)))?;
        Ok((end - size..end).collect())
    }

    /// Returns 0 samples and `i64::MAX` batches: the length of a stream is unknown.
    fn sizes(&self) -> LoaderSizes {
        let LoaderOptions { batch_size, drop_last, .. } = self.options;
        LoaderSizes {
            samples: 0,
            size: batch_size,
            batches: i64::MAX as usize,
            drop_last,
            order: "stream",
            settings: self.settings,
        }
    }
}

positioned_loader!((OP) [B] StreamLoader<B>);

impl<B> fmt::Debug for StreamLoader<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LoaderOptions { batch_size, workers, .. } = self.options;
        let mut fields = f.debug_struct("StreamLoader");
        fields.field("batch_size", &batch_size).field("workers", &workers);
        fields.field("position", &self.position()).finish_non_exhaustive()
    }
}

/// Reads and discards the records of the batches that a resumed epoch skips. The last batch may be smaller.
///
/// # Errors
/// [`Error::InvalidArgument`] if the iterator panics, or if the source has fewer batches.
fn skip_batches<R>(records: &mut impl Iterator<Item = Result<R>>, batches: usize, size: usize) -> Result<()> {
    let is_needed = |_: &Result<R>| !is_cancelled();
    let count = catch_panic(RECORDS, || Ok(records.take(batches.saturating_mul(size)).take_while(is_needed).count()))?;
    if count.div_ceil(size) < batches {
        let reason = format!(
            "the saved position is batch {batches} of the epoch, but the source has only {count} records, {} batches; \
             resume with the source of the saved run",
            count.div_ceil(size)
        );
        return Err(Error::invalid(OP, reason));
    }
    Ok(())
}

/// Reads the records of a batch. Each record may be an error.
///
/// # Errors
/// [`Error::InvalidArgument`] if the iterator panics; [`Error::OutOfMemory`].
fn read_records<R>(records: &mut impl Iterator<Item = Result<R>>, n: usize) -> Result<Vec<Result<R>>> {
    catch_panic(RECORDS, || {
        let mut batch = vec_with_capacity(n.min(1 << 16))?;
        batch.extend(records.take(n).take_while(|_| !is_cancelled()));
        Ok(batch)
    })
}

/// The queue of batches that workers compute ahead.
struct StreamQueue<B> {
    /// One thread, which reads the records of a batch for each job. `None` is the end of the epoch.
    reader: OrderedWorkers<(), Option<Result<BatchTask<B>>>>,
    workers: OrderedWorkers<Result<BatchTask<B>>, Result<B>>,
    /// Whether the source has ended or failed.
    is_exhausted: bool,
}

impl<B: Send + 'static> StreamQueue<B> {
    fn start(tasks: TaskIter<B>, options: &LoaderOptions) -> Result<StreamQueue<B>> {
        let tasks = Mutex::new(tasks.fuse());
        let reader = OrderedWorkers::start(1, options.prefetch_factor, move |()| lock(&tasks).next())?;
        let compute = |task: Result<BatchTask<B>>| task?();
        let workers = OrderedWorkers::start(options.workers, options.prefetch_factor, compute)?;
        Ok(StreamQueue { reader, workers, is_exhausted: false })
    }

    /// Moves batches from the reader to the workers until their queues are full. Waits for the reader only if no batch
    /// is being computed.
    fn fill(&mut self, may_wait: bool) {
        while !self.is_exhausted && self.workers.pending() < self.workers.capacity() {
            while self.reader.pending() < self.reader.capacity() {
                self.reader.submit(());
            }
            let task = match self.workers.pending() {
                0 if may_wait => self.reader.receive(),
                _ => match self.reader.receive_ready() {
                    Some(task) => Some(task),
                    None => return,
                },
            };
            match task.flatten() {
                Some(task) => {
                    // After an error of the source, the state of its iterator is undefined.
                    self.is_exhausted = task.is_err();
                    self.workers.submit(task);
                }
                None => self.is_exhausted = true,
            }
        }
    }

    fn next(&mut self) -> Option<Result<B>> {
        self.fill(true);
        let batch = self.workers.receive();
        self.fill(false);
        batch
    }
}

/// The source of the batches of an epoch.
enum StreamSource<B> {
    /// The calling thread reads the records and computes the batches.
    Caller(TaskIter<B>),
    Workers(StreamQueue<B>),
}

/// An iterator over the batches of an epoch of a [`StreamLoader`], which advances the position of the loader.
pub struct StreamIter<B: Send + 'static> {
    /// `None` after the last batch.
    source: Option<StreamSource<B>>,
    next: usize,
    progress: EpochProgress,
}

impl<B: Send> fmt::Debug for StreamIter<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamIter").field("next", &self.next).finish_non_exhaustive()
    }
}

impl<B: Send + 'static> Iterator for StreamIter<B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        let batch = match self.source.as_mut()? {
            StreamSource::Caller(tasks) => match tasks.next() {
                Some(Ok(task)) => Some(task()),
                Some(Err(error)) => {
                    self.source = None;
                    Some(Err(error))
                }
                None => None,
            },
            StreamSource::Workers(queue) => queue.next(),
        };
        if batch.is_some() {
            self.next += 1;
            self.progress.advance_to(self.next);
            return batch;
        }
        self.source = None;
        self.progress.end();
        // A loop over an empty epoch would train nothing.
        (self.next == 0).then(|| {
            let reason = "the epoch has no batches: the source has no records, or too few for one batch with drop_last";
            Err(Error::invalid(OP, reason))
        })
    }
}

impl<B: Send + 'static> Drop for StreamIter<B> {
    fn drop(&mut self) {
        self.progress.end();
    }
}
