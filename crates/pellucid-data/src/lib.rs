//! Data sets, samplers and loaders.
//!
//! A [`Dataset`] returns samples by index. A [`DataLoader`] shuffles them, reads them on worker threads, and collates
//! them into batches:
//!
//! ```
//! use pellucid::data::{DataLoader, Dataset, LoaderOptions, from_fn, random_split};
//! use pellucid::{DType, Result, Tensor};
//!
//! // A sample is a pair of an image and its class.
//! let data = from_fn(100, |index| Ok((Tensor::rand([3, 8, 8], DType::F32), (index % 10) as i64)));
//! let [train, test] = random_split(data, [0.9, 0.1], 0)?;
//! let options = LoaderOptions { batch_size: 32, shuffle: true, workers: 2, ..Default::default() };
//! let mut loader = DataLoader::new(train, options);
//! for batch in loader.epoch() {
//!     let (images, labels) = batch?;
//!     assert_eq!(images.shape().dims()[1..], [3, 8, 8]);
//!     assert_eq!(labels.shape().dims()[0], images.shape().dims()[0]);
//! }
//! assert_eq!(test.len(), 10);
//! # Ok::<(), pellucid::Error>(())
//! ```
//!
//! Every sample draws its random numbers from a generator that depends only on the seed of the loader, the epoch and
//! the position of the sample in the epoch. The batches are therefore bit-identical for any number of workers.
//!
//! | module | contents |
//! | --- | --- |
//! | `dataset` | [`Dataset`], and data sets that are derived from others: subsets, concatenations, maps, caches |
//! | `collate` | [`Collate`]: collation of samples into a batch; padding of sequences |
//! | `sampler` | [`Sampler`] and [`BatchSampler`]: the order of the samples in an epoch |
//! | `split` | [`random_split`], [`stratified_split`] and [`k_fold`]: disjoint parts of a data set |
//! | `random` | the random numbers of an epoch and of a sample |
//! | `sample_names` | the names of the samples of a batch in error messages |
//! | `cancel` | the cancellation of worker threads between two samples |
//! | `loader` | [`DataLoader`]: batches from worker threads |
//! | `stream` | [`IterableDataset`] and [`StreamLoader`]: records that are read in order |
//! | `progress` | the position in an epoch, which a checkpoint contains |
//! | `batches` | [`Batches`]: batches of tensors in memory |
//! | `table` | [`Table`]: named columns of numbers and strings; CSV files (feature `csv`) and JSON files (feature `json`) |
//! | `preprocessing` | scalers, imputers and encoders, which are fitted on training data and saved with the model |
//! | `image` | `Image`, `ImageFolder`: PNG and JPEG files (feature `image`) |
//! | `transforms` | augmentation of images (feature `image`) |
//! | `mix` | [`MixUp`] and [`CutMix`] of batches |
//! | `cifar` | [`Cifar10`] and [`Cifar100`] |
//! | `text` | text files, characters as tokens, windows of tokens |
//! | `bundled` | iris, wine and digits (feature `bundled`) |
//! | `digits` | the type of labelled digits |
//! | `idx` | the file format of MNIST (feature `mnist`) |
//! | `mnist` | the digits of MNIST (feature `mnist`) |
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod batches;
#[cfg(feature = "bundled")]
mod bundled;
mod cancel;
mod cifar;
mod collate;
mod dataset;
#[cfg(any(feature = "bundled", feature = "mnist"))]
mod digits;
#[cfg(feature = "mnist")]
mod idx;
#[cfg(feature = "image")]
mod image;
mod loader;
mod mix;
#[cfg(feature = "mnist")]
mod mnist;
mod preprocessing;
mod progress;
mod random;
mod sample_names;
mod sampler;
mod split;
mod stream;
mod table;
mod text;
#[cfg(feature = "image")]
pub mod transforms;

pub use batches::Batches;
#[cfg(feature = "bundled")]
pub use bundled::{digits, iris, wine};
pub use cifar::{Cifar10, Cifar100, CifarImages};
pub use collate::{BatchToDevice, Collate, PaddedSequences, pad_sequences};
pub use dataset::{
    CachedDataset, ConcatDataset, Dataset, FnDataset, MapDataset, Subset, TensorDataset, VecDataset, from_fn, from_vec,
};
#[cfg(any(feature = "bundled", feature = "mnist"))]
pub use digits::Digits;
#[cfg(feature = "image")]
pub use image::{DecodeOptions, Image, ImageFolder};
pub use loader::{DataLoader, EpochIter, LoaderOptions};
pub use mix::{CutMix, MixUp};
#[cfg(feature = "mnist")]
pub use mnist::Mnist;
pub use pellucid_derive::Collate;
pub use preprocessing::{Imputer, LabelEncoder, MinMaxScaler, OneHotEncoder, StandardScaler, UnknownCategory};
pub use progress::BatchPosition;
pub use random::{EpochSeed, SplitMix64, for_sample, with_rng};
pub use sampler::{
    BatchSampler, BucketBatchSampler, DistributedSampler, RandomSampler, Sampler, SequentialSampler, StratifiedSampler,
    WeightedRandomSampler,
};
pub use split::{SplitLength, k_fold, random_split, stratified_k_fold, stratified_split};
pub use stream::{
    FirstRecords, FnRecords, IterableDataset, MapRecords, RecordIter, RecordShard, ShuffledRecords, StreamIter,
    StreamLoader, TextLines, from_records,
};
#[cfg(feature = "csv")]
pub use table::CsvOptions;
pub use table::{Categories, Column, ColumnType, FillValue, Table, TableTensorOptions};
#[cfg(feature = "json")]
pub use table::{JsonValue, read_json_lines};
pub use text::{CharTokenizer, TokenWindows, read_text};

/// Items to which the generated code of derive macros refers.
#[doc(hidden)]
pub mod derive {
    pub use pellucid_tensor::{Device, Error};
}
