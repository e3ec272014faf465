//! [`Batches`]: mini-batches of tensors in memory, shuffled in every epoch.

use crate::collate::try_each;
use crate::dataset::{select_samples, shared_samples};
use crate::progress::{BatchPosition, EpochProgress, LoaderProgress, LoaderSizes, check_not_empty, positioned_loader};
use crate::random::EpochSeed;
use crate::sampler::{RandomSampler, SequentialSampler, batch_count, short_type_name};
use pellucid_tensor::{Error, Result, Tensor, ops, unwrap};

/// Splits K tensors along their first axis, the sample axis, into batches. A batch is an array of K tensors, which are
/// copies. K is the number of tensors that are passed to [`new`](Batches::new); the default, `Batches`, is 2: inputs
/// and targets.
///
/// ```
/// use pellucid::data::Batches;
/// use pellucid::Tensor;
///
/// let inputs = Tensor::arange(0.0f32, 10.0, 1.0).reshape([5, 2]);
/// let labels = Tensor::from([0i64, 1, 2, 3, 4]);
/// let mut batches = Batches::new(&[&inputs, &labels], 2).shuffled(7);
/// for epoch in 0..3 {
///     for [x, y] in batches.epoch() {
///         assert_eq!(x.shape().dims(), [y.size(), 2]);
///     }
/// }
/// assert_eq!(batches.len(), 3);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// The order of the samples in an epoch depends only on the seed and the epoch number. A state dict therefore contains
/// only a few numbers. A loader that loads it returns the same batches as an uninterrupted one:
///
/// ```
/// use pellucid::data::{BatchPosition, Batches};
/// use pellucid::Tensor;
///
/// let x = Tensor::arange(0i64, 10, 1);
/// let mut batches = Batches::new(&[&x], 3).shuffled(7);
/// let mut epoch = batches.epoch();
/// epoch.next();
/// let state = batches.state_dict();
/// let rest: Vec<Vec<i64>> = epoch.map(|[x]| x.to_vec()).collect();
///
/// let mut resumed = Batches::new(&[&x], 3).shuffled(0);
/// resumed.load_state_dict(&state)?;
/// assert_eq!(resumed.position(), BatchPosition { epoch: 0, batch: 1 });
/// assert_eq!(resumed.epoch().map(|[x]| x.to_vec()).collect::<Vec<Vec<i64>>>(), rest);
/// assert_eq!(resumed.position(), BatchPosition { epoch: 1, batch: 0 });
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "DataLoader")]
#[doc(alias = "TensorDataset")]
#[derive(Debug)]
pub struct Batches<const K: usize = 2> {
    tensors: [Tensor; K],
    samples: usize,
    size: usize,
    drop_last: bool,
    progress: LoaderProgress,
}

const OP: &str = "batches";

impl<const K: usize> Batches<K> {
    /// Creates batches of `size` samples of tensors `[N, ..]`, in the order of the data set. The last batch may be
    /// smaller. `tensors` contains tensors or references to tensors.
    ///
    /// # Panics
    /// Panics if [`try_new`](Batches::try_new) returns an error.
    #[track_caller]
    pub fn new<T: AsRef<Tensor>>(tensors: &[T; K], size: usize) -> Self {
        unwrap(Batches::try_new(tensors, size))
    }

    /// Creates batches as [`new`](Batches::new) does, and returns errors as values.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the tensors have different numbers of samples; [`Error::InvalidArgument`] if
    /// `tensors` is empty, or `size` is 0.
    pub fn try_new<T: AsRef<Tensor>>(tensors: &[T; K], size: usize) -> Result<Self> {
        Batches::from_tensors(tensors.each_ref().map(|t| t.as_ref().detach()), size)
    }

    fn from_tensors(tensors: [Tensor; K], size: usize) -> Result<Self> {
        let samples = shared_samples(OP, &tensors)?;
        if size == 0 {
            return Err(Error::invalid(OP, "a batch must have at least one sample, got size 0"));
        }
        Ok(Batches { tensors, samples, size, drop_last: false, progress: LoaderProgress::new(None) })
    }

    /// Shuffles the samples in every epoch, seeded by `seed`.
    #[doc(alias = "shuffle")]
    #[must_use]
    pub fn shuffled(self, seed: u64) -> Self {
        self.progress.set_seed(seed);
        self
    }

    /// Sets whether the last batch is dropped if it is not full; default false. If it is dropped, all batches have the
    /// same shape, and a captured step needs only one recording.
    #[must_use]
    pub fn drop_last(self, drop_last: bool) -> Self {
        Batches { drop_last, ..self }
    }

    /// Returns the number of batches of an epoch.
    pub fn len(&self) -> usize {
        batch_count(self.samples, self.size, self.drop_last)
    }

    /// Returns true if an epoch has no batches, in which case [`epoch`](Batches::epoch) panics.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of samples of the data set.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Returns an iterator over the batches of the next epoch. A batch contains a slice `[size, ..]` of every tensor.
    /// After [`load_state_dict`](Batches::load_state_dict), the first iterator returns the rest of the saved epoch,
    /// which is empty if all its batches had been returned.
    ///
    /// # Panics
    /// Panics if [`try_epoch`](Batches::try_epoch) or its iterator returns an error.
    #[track_caller]
    pub fn epoch(&mut self) -> impl ExactSizeIterator<Item = [Tensor; K]> + use<K> {
        unwrap(self.try_epoch()).map(unwrap)
    }

    /// Returns an iterator as [`epoch`](Batches::epoch) does, and returns errors as values. A batch for which there is
    /// not enough memory is an [`Error::OutOfMemory`], which ends the epoch.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an epoch [has no batch](Batches::is_empty), because a loop over it would train
    /// nothing: the data set has no samples, or with [`drop_last`](Batches::drop_last) fewer samples than one batch;
    /// [`Error::OutOfMemory`] if the order of the samples does not fit into memory.
    pub fn try_epoch(&mut self) -> Result<impl ExactSizeIterator<Item = Result<[Tensor; K]>> + use<K>> {
        check_not_empty(OP, self.sizes())?;
        let BatchPosition { epoch, batch } = self.progress.next_position();
        let order = self.progress.seed().map(|seed| EpochSeed { seed, epoch }.permutation(self.samples)).transpose()?;
        let (tensors, sizes, progress) = (self.tensors.clone(), self.sizes(), self.progress.begin_epoch());
        Ok(EpochBatches { tensors, order, sizes, next: batch, progress })
    }

    fn sizes(&self) -> LoaderSizes {
        let order = match self.progress.seed() {
            Some(_) => short_type_name::<RandomSampler>(),
            None => short_type_name::<SequentialSampler>(),
        };
        LoaderSizes {
            samples: self.samples,
            size: self.size,
            batches: self.len(),
            drop_last: self.drop_last,
            order,
            settings: 0,
        }
    }

    /// Returns the indices of the samples of a batch.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the epoch does not contain the batch; [`Error::OutOfMemory`] if the order of the
    /// samples does not fit into memory.
    pub fn sample_indices(&self, position: BatchPosition) -> Result<Vec<usize>> {
        samples_of_batch(position, self.sizes(), self.progress.seed())
    }
}

/// Returns the sample indices of a batch, shuffled if there is a seed.
fn samples_of_batch(position: BatchPosition, sizes: LoaderSizes, seed: Option<u64>) -> Result<Vec<usize>> {
    position.check(OP, sizes)?;
    let (BatchPosition { epoch, batch }, LoaderSizes { samples, size, .. }) = (position, sizes);
    let range = batch * size..samples.min((batch + 1) * size);
    Ok(match seed {
        Some(seed) => EpochSeed { seed, epoch }.permutation(samples)?[range].to_vec(),
        None => range.collect(),
    })
}

/// A clone continues at the same position. Afterwards, both advance independently.
impl<const K: usize> Clone for Batches<K> {
    fn clone(&self) -> Self {
        Batches { tensors: self.tensors.clone(), progress: self.progress.fork(), ..*self }
    }
}

positioned_loader!((OP) [const K: usize] Batches<K>);

/// The iterator over the batches of an epoch. It advances the position of its loader.
struct EpochBatches<const K: usize> {
    tensors: [Tensor; K],
    /// The order of the samples, if it is shuffled.
    order: Option<Vec<usize>>,
    sizes: LoaderSizes,
    next: usize,
    progress: EpochProgress,
}

impl<const K: usize> Iterator for EpochBatches<K> {
    type Item = Result<[Tensor; K]>;

    fn next(&mut self) -> Option<Result<[Tensor; K]>> {
        let LoaderSizes { samples, size, batches, .. } = self.sizes;
        if self.next == batches {
            self.progress.end();
            return None;
        }
        let (start, end) = (self.next * size, samples.min((self.next + 1) * size));
        let part = |tensor: &Tensor| match &self.order {
            // A write into a batch must not change the data set.
            None => ops::narrow(tensor, 0, start, end - start).and_then(|part| ops::copy(&part)),
            Some(order) => select_samples(tensor, &order[start..end]),
        };
        let batch = try_each(&self.tensors, part);
        if batch.is_err() {
            self.sizes.batches = self.next;
            return Some(batch);
        }
        self.next += 1;
        self.progress.advance_to(self.next);
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let rest = self.sizes.batches - self.next;
        (rest, Some(rest))
    }
}

impl<const K: usize> ExactSizeIterator for EpochBatches<K> {}

impl<const K: usize> Drop for EpochBatches<K> {
    fn drop(&mut self) {
        self.progress.end();
    }
}
