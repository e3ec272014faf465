//! [`DataLoader`]: batches of a data set, computed on worker threads.

mod compute;
mod epoch;
mod plan;
mod workers;

pub(crate) use compute::{catch_panic, compute_batch};
pub use epoch::EpochIter;
pub(crate) use workers::OrderedWorkers;

use crate::collate::{BatchToDevice, Collate};
use crate::dataset::{Dataset, samples_of};
use crate::progress::{BatchPosition, LoaderProgress, LoaderSizes, check_not_empty, positioned_loader};
use crate::random::{EpochSeed, draw_key};
use crate::sampler::{BatchSampler, RandomSampler, Sampler, SequentialSampler};
use epoch::{BatchFn, IdleQueue, LoaderPipeline};
use pellucid_derive::panicking_form;
use pellucid_tensor::{Device, Error, Result, lock, unwrap};
use plan::BatchOrder;
use std::fmt;
use std::sync::Arc;

/// The options of a [`DataLoader`].
#[derive(Clone, Copy, Debug)]
pub struct LoaderOptions {
    /// The number of samples in a batch. Default: 1.
    pub batch_size: usize,
    /// Whether the samples are in a new random order in each epoch. Default: false.
    pub shuffle: bool,
    /// The seed of the order and of the random numbers that samples draw. With `None`, a new loader draws a seed from
    /// the thread's generator, so [`manual_seed`](pellucid_tensor::manual_seed) determines the seed. A state dict
    /// contains the seed. Default: `None`.
    pub seed: Option<u64>,
    /// The number of worker threads. With 0, the calling thread computes the batches. Default: 0.
    pub workers: usize,
    /// The number of batches that each worker prepares ahead. Default: 2.
    pub prefetch_factor: usize,
    /// Whether the last batch is dropped if it is not full. All batches then have the same shape. Default: false.
    pub drop_last: bool,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        LoaderOptions { batch_size: 1, shuffle: false, seed: None, workers: 0, prefetch_factor: 2, drop_last: false }
    }
}

impl LoaderOptions {
    /// Returns the seed of a new loader.
    pub(crate) fn seed(&self) -> Result<u64> {
        self.seed.map_or_else(draw_key, Ok)
    }

    /// Returns an error if an option is out of its range.
    pub(crate) fn check(&self) -> Result<()> {
        let ranges = [
            ("batch_size", self.batch_size, 1..=usize::MAX),
            ("prefetch_factor", self.prefetch_factor, 1..=MAX_PREFETCHED),
            ("workers", self.workers, 0..=MAX_WORKERS),
        ];
        match ranges.into_iter().find(|(_, value, range)| !range.contains(value)) {
            None => Ok(()),
            Some((name, value, range)) => {
                let reason = match *range.end() {
                    usize::MAX => format!("{name} must be at least {}, got {value}", range.start()),
                    end => format!("{name} must be from {} to {end}, got {value}", range.start()),
                };
                Err(Error::invalid(OP, reason))
            }
        }
    }
}

/// A loader of batches of a data set. Worker threads compute and collate samples ahead of the training loop; the
/// batches arrive in order.
///
/// Every sample draws its random numbers from a separate generator, which depends on the seed, the epoch and the
/// position of the sample in the epoch. The batches are therefore bit-identical for any number of workers and after
/// [resuming](DataLoader::load_state_dict) an epoch.
///
/// ```
/// use pellucid::data::{DataLoader, LoaderOptions, TensorDataset};
/// use pellucid::{DType, Tensor};
///
/// let data = TensorDataset::new(&[Tensor::randn([100, 4], DType::F32), Tensor::arange(0i64, 100, 1)]);
/// let options = LoaderOptions { batch_size: 32, shuffle: true, workers: 2, ..Default::default() };
/// let mut loader = DataLoader::new(data, options);
/// for epoch in 0..3 {
///     for batch in loader.epoch() {
///         let [x, y] = batch?;
///         assert_eq!(x.shape().dims(), [y.size(), 4]);
///     }
/// }
/// assert_eq!(loader.len(), 4);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// The threads start with the first epoch. At the end of an epoch they start to compute the next one. They end when the
/// loader, or the iterator of an unfinished epoch, is dropped, which waits for the current sample of each thread.
///
/// If the computation of a sample fails or panics, the item of its batch is [`Error::Sample`], with the index of the
/// sample in the data set of the loader and its [location](Dataset::location). An error of [`Collate`] names the two
/// samples that differ. The iterator continues with the next batch.
pub struct DataLoader<B> {
    pipeline: Arc<LoaderPipeline<B>>,
    progress: LoaderProgress,
    /// The workers between two epochs, with the first batches of the next epoch.
    idle: IdleQueue<B>,
}

const OP: &str = "data_loader";

/// The maximum of [`LoaderOptions::prefetch_factor`]. Memory is allocated for all prepared batches.
const MAX_PREFETCHED: usize = 1 << 16;

/// The maximum number of worker threads.
const MAX_WORKERS: usize = 1024;

impl<B: Send + 'static> DataLoader<B> {
    /// Creates a loader whose batches are collated by [`Collate`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `batch_size` or `prefetch_factor` is 0, or an option exceeds its maximum;
    /// [`Error::ReadInCapture`] inside a captured step for a loader that draws its seed.
    #[panicking_form]
    pub fn try_new<D>(dataset: D, options: LoaderOptions) -> Result<DataLoader<B>>
    where
        D: Dataset<Item: Collate<Batch = B>> + 'static,
    {
        DataLoader::from_function(dataset, options, D::get_batch)
    }

    /// Creates a loader with a function that collates samples into a batch.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::data::{DataLoader, LoaderOptions, from_vec, pad_sequences};
    ///
    /// let sentences = from_vec(vec![Tensor::from([1i64, 2, 3]), Tensor::from([4i64, 5])]);
    /// let options = LoaderOptions { batch_size: 2, ..Default::default() };
    /// let mut loader = DataLoader::with_collate(sentences, options, |batch| pad_sequences(&batch, 0));
    /// for batch in loader.epoch() {
    ///     assert_eq!(batch?.lengths.to_vec::<i64>(), [3, 2]);
    /// }
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`try_new`](Self::try_new).
    #[panicking_form]
    pub fn try_with_collate<D, C>(dataset: D, options: LoaderOptions, collate: C) -> Result<DataLoader<B>>
    where
        D: Dataset + 'static,
        C: Fn(Vec<D::Item>) -> Result<B> + Send + Sync + 'static,
    {
        DataLoader::from_function(dataset, options, move |dataset, indices| collate(samples_of(dataset, indices)?))
    }

    /// Creates a loader whose batches are `batch(dataset, indices)`.
    fn from_function<D: Dataset + 'static>(
        dataset: D,
        options: LoaderOptions,
        batch: impl Fn(&D, &[usize]) -> Result<B> + Send + Sync + 'static,
    ) -> Result<DataLoader<B>> {
        options.check()?;
        let samples = dataset.len();
        let sampler: Box<dyn Sampler> = match options.shuffle {
            true => Box::new(RandomSampler::new(samples)),
            false => Box::new(SequentialSampler::new(samples)),
        };
        let order = Arc::new(BatchOrder::samples(sampler, &options));
        let dataset = Arc::new(dataset);
        let located = dataset.clone();
        let pipeline = LoaderPipeline {
            samples,
            order,
            options,
            batch: Arc::new(move |indices| batch(&dataset, indices)),
            location: Arc::new(move |index| located.location(index)),
        };
        Ok(DataLoader::from_pipeline(pipeline, LoaderProgress::new(Some(options.seed()?))))
    }

    fn from_pipeline(pipeline: LoaderPipeline<B>, progress: LoaderProgress) -> DataLoader<B> {
        DataLoader { pipeline: Arc::new(pipeline), progress, idle: Arc::default() }
    }

    /// Returns this loader with a different order of batches.
    fn in_order(self, order: BatchOrder) -> DataLoader<B> {
        let pipeline = LoaderPipeline { order: Arc::new(order), ..LoaderPipeline::clone(&self.pipeline) };
        DataLoader::from_pipeline(pipeline, self.progress)
    }

    /// Reads the samples in the order of a sampler.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the option [`shuffle`](LoaderOptions::shuffle) is set, because the sampler
    /// determines the order.
    #[panicking_form]
    pub fn try_sampler(self, sampler: impl Sampler + 'static) -> Result<Self> {
        self.check_unshuffled("a sampler")?;
        let order = BatchOrder::samples(Box::new(sampler), &self.pipeline.options);
        Ok(self.in_order(order))
    }

    /// Reads the batches of a batch sampler.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if one of the options [`batch_size`](LoaderOptions::batch_size),
    /// [`shuffle`](LoaderOptions::shuffle) and [`drop_last`](LoaderOptions::drop_last) is set, because the sampler
    /// determines the batches.
    #[panicking_form]
    pub fn try_batch_sampler(self, sampler: impl BatchSampler + 'static) -> Result<Self> {
        self.check_unshuffled("a batch sampler")?;
        let LoaderOptions { batch_size, drop_last, .. } = self.pipeline.options;
        if batch_size != 1 || drop_last {
            let reason = "the options `batch_size` and `drop_last` have no effect with a batch sampler; remove them, and \
                          set them in the sampler";
            return Err(Error::invalid(OP, reason));
        }
        Ok(self.in_order(BatchOrder::Batches(Box::new(sampler))))
    }

    fn check_unshuffled(&self, sampler: &str) -> Result<()> {
        match self.pipeline.options.shuffle {
            true => Err(Error::invalid(
                OP,
                format!("`shuffle` cannot be combined with {sampler}, which determines the order; remove one of them"),
            )),
            false => Ok(()),
        }
    }

    /// Copies every batch to a device. Workers copy ahead of the training loop, while the device computes.
    #[must_use]
    pub fn to(self, device: Device) -> Self
    where
        B: BatchToDevice,
    {
        let on_host = self.pipeline.batch.clone();
        let batch: BatchFn<B> = Arc::new(move |indices| on_host(indices)?.to_device(device));
        let pipeline = LoaderPipeline { batch, ..LoaderPipeline::clone(&self.pipeline) };
        DataLoader::from_pipeline(pipeline, self.progress)
    }
}

impl<B> DataLoader<B> {
    /// Returns the number of batches of an epoch.
    pub fn len(&self) -> usize {
        self.sizes().batches
    }

    /// Returns true if an epoch has no batches, in which case [`epoch`](DataLoader::epoch) panics.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of samples of the data set.
    pub fn samples(&self) -> usize {
        self.pipeline.samples
    }

    fn sizes(&self) -> LoaderSizes {
        self.pipeline.order.sizes(self.pipeline.samples)
    }

    /// Returns the indices of the samples of a batch.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the epoch does not contain the batch; the errors of the sampler.
    pub fn sample_indices(&self, position: BatchPosition) -> Result<Vec<usize>> {
        position.check(OP, self.sizes())?;
        let seed = EpochSeed { seed: self.progress.seed().unwrap_or(0), epoch: position.epoch };
        let plan = self.pipeline.order.plan(seed, self.pipeline.samples)?;
        Ok(plan.batch(position.batch).1.to_vec())
    }
}

impl<B: Send + 'static> DataLoader<B> {
    /// Returns an iterator over the batches of the next epoch. After
    /// [`load_state_dict`](DataLoader::load_state_dict), the first iterator returns the rest of the saved epoch.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an epoch has no batches, or the sampler returns invalid indices;
    /// [`Error::OutOfMemory`] if the order of the samples does not fit into memory.
    #[panicking_form]
    pub fn try_epoch(&mut self) -> Result<EpochIter<B>> {
        check_not_empty(OP, self.sizes())?;
        let idle = lock(&self.idle).take();
        EpochIter::begin(&self.pipeline, &self.progress, &self.idle, idle)
    }
}

impl<B> fmt::Debug for DataLoader<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LoaderSizes { samples, size, batches, .. } = self.sizes();
        let mut fields = f.debug_struct("DataLoader");
        fields.field("samples", &samples).field("batch_size", &size).field("batches", &batches);
        fields
            .field("workers", &self.pipeline.options.workers)
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}

positioned_loader!((OP) [B] DataLoader<B>);
