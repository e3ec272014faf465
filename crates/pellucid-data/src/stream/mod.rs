//! Data sets that are read in order: files that do not fit in memory, generators, network connections.

mod lines;
mod loader;

pub use lines::TextLines;
pub use loader::{StreamIter, StreamLoader};

use crate::random::{EpochSeed, SplitMix64};
use crate::sampler::{check_rank, hash};
use pellucid_derive::panicking_form;
use pellucid_tensor::{OptionRange, Result, unwrap};

/// The records of an epoch, in order.
pub type RecordIter<R> = Box<dyn Iterator<Item = Result<R>> + Send>;

/// A data set without indices, whose samples are read in order: the lines of large files, the results of a simulation.
/// A [`StreamLoader`] returns its batches.
///
/// One thread reads the records of an epoch, for example lines of text, in order. The workers of the loader compute
/// samples from them, for example tensors: [`map`](IterableDataset::map) and [`sample`](IterableDataset::sample) run
/// there. [`from_records`] creates a data set from a function that returns an iterator.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::data::{IterableDataset, LoaderOptions, StreamLoader, from_records};
///
/// // The records are numbers, and the samples are tensors.
/// let numbers = from_records(|_epoch| Ok((0..10i64).map(Ok)));
/// let samples = numbers.shuffle_buffer(4).map(|n| Ok(Tensor::from([n, n * n])));
/// let mut loader = StreamLoader::new(samples, LoaderOptions { batch_size: 4, workers: 2, ..Default::default() });
/// let sizes: Vec<usize> = loader.epoch().map(|batch| batch.unwrap().shape()[0]).collect();
/// assert_eq!(sizes, [4, 4, 2]);
/// ```
pub trait IterableDataset: Send + Sync {
    /// The type of the records that the reading thread reads.
    type Record: Send + 'static;

    /// The type of the samples that workers compute from records.
    type Item: 'static;

    /// Begins to read an epoch. Equal seeds must return equal records, so that a loader can resume.
    ///
    /// # Errors
    /// The errors of the source, such as [`Error::File`](pellucid_tensor::Error::File).
    fn records(&self, seed: EpochSeed) -> Result<RecordIter<Self::Record>>;

    /// Computes a sample.
    ///
    /// # Errors
    /// An error for an invalid record.
    fn sample(&self, record: Self::Record) -> Result<Self::Item>;

    /// Returns a number that identifies the order of the records, such as the size of a shuffle buffer; by default 0. A
    /// loader loads only the state of a loader whose data set has the same number.
    fn settings(&self) -> u64 {
        0
    }

    /// Returns a data set whose samples are `f(sample)`, computed by the workers. The random numbers of `f` depend only
    /// on the seed, the epoch and the position of the record.
    fn map<T: 'static, F: Fn(Self::Item) -> Result<T> + Send + Sync>(self, f: F) -> MapRecords<Self, F>
    where
        Self: Sized,
    {
        MapRecords { records: self, f }
    }

    /// Returns a data set in an approximately random order: each record is drawn uniformly from a buffer of the next
    /// `n` records. With n = 1 the order does not change.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if `n` is 0.
    #[panicking_form]
    fn try_shuffle_buffer(self, n: usize) -> Result<ShuffledRecords<Self>>
    where
        Self: Sized,
    {
        OptionRange::COUNT.check("shuffle_buffer", "n", n as f64, 1000.0)?;
        Ok(ShuffledRecords { records: self, n })
    }

    /// Returns a data set of every `world`-th record, starting with record `rank`: the shard of process `rank` of
    /// `world` processes that train together. Call it before [`shuffle_buffer`](IterableDataset::shuffle_buffer).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if `rank` is not less than `world`.
    #[panicking_form]
    fn try_shard(self, rank: usize, world: usize) -> Result<RecordShard<Self>>
    where
        Self: Sized,
    {
        check_rank("shard", rank, world)?;
        Ok(RecordShard { records: self, rank, world })
    }

    /// Returns a data set of the first `n` records of each epoch. Use it to bound an infinite source.
    fn take(self, n: usize) -> FirstRecords<Self>
    where
        Self: Sized,
    {
        FirstRecords { records: self, n }
    }
}

/// A data set of the records of an iterator; see [`from_records`].
#[derive(Clone, Debug)]
pub struct FnRecords<F> {
    f: F,
}

/// Returns a data set from a function that returns the record iterator of an epoch. The samples are the records.
///
/// ```
/// use pellucid::data::{IterableDataset, from_records};
///
/// // A random walk that differs in each epoch.
/// let walk = from_records(|epoch| {
///     let mut rng = epoch.rng();
///     let steps = std::iter::repeat_with(move || rng.normal());
///     Ok(steps.scan(0.0, |position, step| {
///         *position += step;
///         Some(Ok(*position))
///     }))
/// });
/// let walk = walk.take(100);
/// # let seed = pellucid::data::EpochSeed { seed: 0, epoch: 0 };
/// # assert_eq!(walk.records(seed)?.count(), 100);
/// # Ok::<(), pellucid::Error>(())
/// ```
pub fn from_records<R, I, F>(f: F) -> FnRecords<F>
where
    R: Send + 'static,
    I: Iterator<Item = Result<R>> + Send + 'static,
    F: Fn(EpochSeed) -> Result<I> + Send + Sync,
{
    FnRecords { f }
}

impl<R, I, F> IterableDataset for FnRecords<F>
where
    R: Send + 'static,
    I: Iterator<Item = Result<R>> + Send + 'static,
    F: Fn(EpochSeed) -> Result<I> + Send + Sync,
{
    type Record = R;
    type Item = R;

    fn records(&self, seed: EpochSeed) -> Result<RecordIter<R>> {
        Ok(Box::new((self.f)(seed)?))
    }

    fn sample(&self, record: R) -> Result<R> {
        Ok(record)
    }
}

/// A data set that applies a function to each sample; see [`IterableDataset::map`].
#[derive(Clone, Debug)]
pub struct MapRecords<D, F> {
    records: D,
    f: F,
}

impl<D: IterableDataset, T: 'static, F: Fn(D::Item) -> Result<T> + Send + Sync> IterableDataset for MapRecords<D, F> {
    type Record = D::Record;
    type Item = T;

    fn records(&self, seed: EpochSeed) -> Result<RecordIter<D::Record>> {
        self.records.records(seed)
    }

    fn sample(&self, record: D::Record) -> Result<T> {
        (self.f)(self.records.sample(record)?)
    }

    fn settings(&self) -> u64 {
        self.records.settings()
    }
}

/// Defines a data set that selects or reorders the records of a data set, which still computes the samples.
macro_rules! reordered_records {
    ($(#[$doc:meta] $name:ident { $($field:ident),+ }, |$dataset:ident, $records:ident, $seed:ident| $body:expr;)+) => {$(
        #[$doc]
        #[derive(Clone, Debug)]
        pub struct $name<D> {
            records: D,
            $($field: usize,)+
        }

        impl<D: IterableDataset> IterableDataset for $name<D> {
            type Record = D::Record;
            type Item = D::Item;

            fn records(&self, $seed: EpochSeed) -> Result<RecordIter<D::Record>> {
                let ($dataset, $records) = (self, self.records.records($seed)?);
                $body
            }

            fn sample(&self, record: D::Record) -> Result<D::Item> {
                self.records.sample(record)
            }

            fn settings(&self) -> u64 {
                let name = stringify!($name).bytes().map(u64::from);
                hash(name.chain([self.records.settings(), $(self.$field as u64),+]))
            }
        }
    )+};
}

reordered_records! {
    /// Records in an approximately random order; see [`IterableDataset::shuffle_buffer`].
    ShuffledRecords { n }, |dataset, records, seed| {
        Ok(Box::new(ShuffleBuffer { records, buffer: Vec::new(), n: dataset.n, rng: seed.rng() }))
    };
    /// Every n-th record; see [`IterableDataset::shard`].
    RecordShard { rank, world }, |dataset, records, _seed| {
        Ok(Box::new(records.skip(dataset.rank).step_by(dataset.world)))
    };
    /// The first records; see [`IterableDataset::take`].
    FirstRecords { n }, |dataset, records, _seed| Ok(Box::new(records.take(dataset.n)));
}

/// An iterator that returns a random record of a buffer, and replaces it with the next record of the source.
struct ShuffleBuffer<R> {
    records: RecordIter<R>,
    buffer: Vec<R>,
    n: usize,
    rng: SplitMix64,
}

impl<R> Iterator for ShuffleBuffer<R> {
    type Item = Result<R>;

    fn next(&mut self) -> Option<Result<R>> {
        while self.buffer.len() < self.n {
            match self.records.next() {
                Some(Ok(record)) => self.buffer.push(record),
                Some(Err(error)) => return Some(Err(error)),
                None => break,
            }
        }
        match self.buffer.len() {
            0 => None,
            len => Some(Ok(self.buffer.swap_remove(self.rng.below(len)))),
        }
    }
}
