//! Batches: a data set in small parts, shuffled in every epoch.

use pellucid_nn::{StateDict, StateLoad, Stateful};
use pellucid_tensor::{DType, Error, Result, Tensor, lock, ops, unwrap};
use std::sync::{Arc, Mutex};

/// Splits K tensors that share their first axis, the samples, into batches, which are copies. A batch is an array of K
/// tensors. K is the length of the list of [`new`](Batches::new); a type without it, `Batches`, has inputs and targets.
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
/// The order of the samples in an epoch depends only on the seed and the number of the epoch. A state dict therefore
/// consists of a few numbers, and a loader that loads it returns the same batches as one that was not stopped:
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
    progress: Arc<Mutex<BatchProgress>>,
}

/// The next batch of a [`Batches`], as an epoch and an index in the epoch.
///
/// An epoch ends when its iterator has returned `None` or is dropped, for example after a `break`. A position after the
/// last batch of an epoch therefore exists only in the body of the loop over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPosition {
    /// The number of the epoch, from 0.
    pub epoch: u64,
    /// The index of the batch in the epoch, from 0.
    pub batch: usize,
}

/// The state of a loader, which it shares with the iterator of the current epoch.
#[derive(Debug)]
struct BatchProgress {
    seed: Option<u64>,
    position: BatchPosition,
    /// The number of iterators so far.
    iterators: u64,
    /// The number of the iterator that advances the position; `None` between epochs and after a load.
    current: Option<u64>,
}

impl BatchProgress {
    fn end_epoch(&mut self) {
        self.position = BatchPosition { epoch: self.position.epoch + 1, batch: 0 };
        self.current = None;
    }
}

impl<const K: usize> Batches<K> {
    /// Creates batches of `size` samples (the last may be smaller) of tensors `[N, ..]`, in the order of the data set.
    /// The list contains tensors or references.
    ///
    /// # Panics
    /// Panics if [`try_new`](Batches::try_new) returns an error.
    #[track_caller]
    pub fn new<T: AsRef<Tensor>>(tensors: &[T; K], size: usize) -> Self {
        unwrap(Batches::try_new(tensors, size))
    }

    /// Returns the result of [`new`](Batches::new), or its error.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the tensors have different numbers of samples;
    /// [`Error::InvalidArgument`] if there is no tensor, or `size` is 0.
    pub fn try_new<T: AsRef<Tensor>>(tensors: &[T; K], size: usize) -> Result<Self> {
        Batches::of_tensors(tensors.each_ref().map(|t| t.as_ref().detach()), size)
    }

    fn of_tensors(tensors: [Tensor; K], size: usize) -> Result<Self> {
        let op = "batches";
        let Some(first) = tensors.first() else {
            return Err(Error::invalid(op, "the list of tensors must have at least one tensor"));
        };
        let samples = first.shape().first().copied();
        if samples.is_none() || tensors.iter().any(|t| t.shape().first().copied() != samples) {
            let lengths = tensors.iter().map(|t| t.shape().first().copied());
            let help = match lengths.min().flatten() {
                Some(least) => format!(
                    "all tensors must have the same number of samples, the length of the first axis; shorten the longer ones with \
                     narrow(0, 0, {least})"
                ),
                None => "every tensor must have an axis of samples, its first; unsqueeze(0) adds one".to_string(),
            };
            return Err(Error::shapes(op, tensors.iter().map(|t| t.shape()), help));
        }
        if size == 0 {
            return Err(Error::invalid(op, "a batch must have at least one sample, got size 0"));
        }
        let position = BatchPosition { epoch: 0, batch: 0 };
        let progress = BatchProgress { seed: None, position, iterators: 0, current: None };
        let progress = Arc::new(Mutex::new(progress));
        Ok(Batches { tensors, samples: samples.unwrap_or(0), size, drop_last: false, progress })
    }

    /// Shuffles the samples in every epoch, seeded by `seed`.
    #[doc(alias = "shuffle")]
    #[must_use]
    pub fn shuffled(self, seed: u64) -> Self {
        lock(&self.progress).seed = Some(seed);
        self
    }

    /// Drops a last batch that is not full. All batches then have the same shape, which a captured step needs.
    #[must_use]
    pub fn drop_last(self) -> Self {
        Batches { drop_last: true, ..self }
    }

    /// Returns the number of batches of an epoch.
    pub fn len(&self) -> usize {
        if self.drop_last { self.samples / self.size } else { self.samples.div_ceil(self.size) }
    }

    /// Returns true if an epoch has no batch, in which case [`epoch`](Batches::epoch) panics.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of samples of the data set.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Returns an iterator over the batches of the next epoch. A batch contains `[size, ..]` of every tensor. After
    /// [`load_state_dict`](Batches::load_state_dict), the first iterator returns the rest of the saved epoch, which is
    /// empty if all its batches had been returned.
    ///
    /// # Panics
    /// Panics if [`try_epoch`](Batches::try_epoch) returns an error.
    #[track_caller]
    pub fn epoch(&mut self) -> impl ExactSizeIterator<Item = [Tensor; K]> + use<K> {
        unwrap(self.try_epoch())
    }

    /// Fallible version of [`epoch`](Batches::epoch).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an epoch [has no batch](Batches::is_empty), because a loop over it would train
    /// nothing: the data set has no samples, or with [`drop_last`](Batches::drop_last) fewer than a batch;
    /// [`Error::OutOfMemory`] for the order of the samples.
    pub fn try_epoch(&mut self) -> Result<impl ExactSizeIterator<Item = [Tensor; K]> + use<K>> {
        if self.is_empty() {
            let help = match self.samples {
                0 => "; the data set is empty: check how it was loaded",
                _ => "; make the batches smaller, or do not drop the last batch",
            };
            let reason = format!("an epoch of {} samples in batches of {} has no batch{help}", self.samples, self.size);
            return Err(Error::invalid("batches", reason));
        }
        let mut progress = lock(&self.progress);
        if progress.current.is_some() {
            // The iterator of the previous epoch still exists.
            progress.end_epoch();
        }
        let BatchPosition { epoch, batch } = progress.position;
        let order = progress.seed.map(|seed| permutation(self.samples, seed, epoch)).transpose()?;
        progress.iterators += 1;
        progress.current = Some(progress.iterators);
        Ok(EpochBatches {
            tensors: self.tensors.clone(),
            order,
            samples: self.samples,
            size: self.size,
            next: batch,
            end: self.len(),
            number: progress.iterators,
            progress: self.progress.clone(),
        })
    }

    /// Returns the position of the next batch.
    pub fn position(&self) -> BatchPosition {
        lock(&self.progress).position
    }

    /// Returns a snapshot of the position in `i64`: `epoch`, `batch`, the `seed` if the samples are shuffled, and the
    /// `samples` and batch `size` that a loader of the snapshot must have.
    ///
    /// A batch counts as used when the iterator has returned it. Save after the step that trains on it.
    pub fn state_dict(&self) -> StateDict {
        self.values().into_iter().collect()
    }

    /// Continues at a snapshot, including its seed. The next call of [`epoch`](Batches::epoch) returns the rest of the
    /// saved epoch. An iterator that exists already stays as it is, and no longer changes the position.
    ///
    /// # Errors
    /// [`Error::StateDict`] if the state dict is not from a loader; [`Error::InvalidArgument`] if only one of the two
    /// loaders shuffles, the data set or the batches have another size, or the position does not exist. On error
    /// nothing is changed.
    pub fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        self.prepare_load(state)?.commit()
    }

    fn values(&self) -> Vec<(String, Tensor)> {
        let BatchProgress { seed, position, .. } = &*lock(&self.progress);
        let named = [
            ("epoch", position.epoch as i64),
            ("batch", position.batch as i64),
            ("samples", self.samples as i64),
            ("size", self.size as i64),
        ];
        let seed = seed.map(|seed| ("seed", seed as i64));
        let named = named.into_iter().chain(seed);
        named.map(|(name, number)| (name.to_string(), Tensor::scalar(number, DType::I64))).collect()
    }
}

/// A clone continues at the same position, with progress of its own.
impl<const K: usize> Clone for Batches<K> {
    fn clone(&self) -> Self {
        let BatchProgress { seed, position, .. } = *lock(&self.progress);
        let progress = Arc::new(Mutex::new(BatchProgress { seed, position, iterators: 0, current: None }));
        Batches { tensors: self.tensors.clone(), progress, ..*self }
    }
}

/// The state of [`Batches::state_dict`].
impl<const K: usize> Stateful for Batches<K> {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        Ok(self.values())
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        let invalid = |reason: String| Error::invalid("batches", reason);
        let (is_shuffled, was_shuffled) = (lock(&self.progress).seed.is_some(), state.contains_key("seed"));
        if state.contains_key("samples") && is_shuffled != was_shuffled {
            let [saved, own] = [was_shuffled, is_shuffled].map(|shuffled| if shuffled { "" } else { "not " });
            let reason = format!(
                "the state is of samples that are {saved}shuffled, but these are {own}shuffled; load it into batches \
                 with{} shuffled(seed)",
                if was_shuffled { "" } else { "out" }
            );
            return Err(invalid(reason));
        }
        // The tensors of `values` are new: the copies into them have no effect, and only the names and shapes matter.
        let load = StateLoad::new(&self.values(), state)?;
        let number = |name: &str| state[name].try_item::<i64>();
        let (samples, size) = (number("samples")?, number("size")?);
        if (samples, size) != (self.samples as i64, self.size as i64) {
            let own = (self.samples, self.size);
            return Err(invalid(format!(
                "the state is of {samples} samples in batches of {size}, but these are {} in batches of {}; load it \
                 into batches of the same data set and size",
                own.0, own.1
            )));
        }
        let (epoch, batch) = (number("epoch")?, number("batch")?);
        if epoch < 0 || batch < 0 || batch > self.len() as i64 {
            let reason = format!("batch {batch} of epoch {epoch} does not exist; an epoch has {} batches", self.len());
            return Err(invalid(reason));
        }
        let position = BatchPosition { epoch: epoch as u64, batch: batch as usize };
        let seed = if state.contains_key("seed") { Some(number("seed")? as u64) } else { None };
        Ok(load.then(move || {
            let mut progress = lock(&self.progress);
            (progress.seed, progress.position, progress.current) = (seed, position, None);
            Ok(())
        }))
    }
}

/// The iterator over the batches of an epoch, which advances the position of its loader.
struct EpochBatches<const K: usize> {
    tensors: [Tensor; K],
    /// The order of the samples, if it is shuffled.
    order: Option<Vec<i64>>,
    samples: usize,
    size: usize,
    next: usize,
    end: usize,
    number: u64,
    progress: Arc<Mutex<BatchProgress>>,
}

impl<const K: usize> EpochBatches<K> {
    /// Changes the progress of the loader, unless it belongs to a later iterator or was loaded.
    fn update(&self, change: impl FnOnce(&mut BatchProgress)) {
        let mut progress = lock(&self.progress);
        if progress.current == Some(self.number) {
            change(&mut progress);
        }
    }
}

impl<const K: usize> Iterator for EpochBatches<K> {
    type Item = [Tensor; K];

    fn next(&mut self) -> Option<[Tensor; K]> {
        if self.next == self.end {
            self.update(BatchProgress::end_epoch);
            return None;
        }
        let (start, end) = (self.next * self.size, self.samples.min((self.next + 1) * self.size));
        let part = |tensor: &Tensor| match &self.order {
            // A write into a batch must not change the data set.
            None => ops::narrow(tensor, 0, start, end - start).and_then(|part| ops::copy(&part)),
            Some(order) => ops::index_select(tensor, 0, &Tensor::new(&order[start..end], [end - start])),
        };
        // Samples come from a range or a permutation, so the indices are in bounds.
        let batch = self.tensors.each_ref().map(|tensor| unwrap(part(tensor)));
        self.next += 1;
        self.update(|progress| progress.position.batch = self.next);
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end - self.next, Some(self.end - self.next))
    }
}

impl<const K: usize> ExactSizeIterator for EpochBatches<K> {}

impl<const K: usize> Drop for EpochBatches<K> {
    fn drop(&mut self) {
        self.update(BatchProgress::end_epoch);
    }
}

/// Returns a permutation of 0..n that depends on the seed and the epoch (Fisher & Yates 1938, in Durstenfeld's form).
fn permutation(n: usize, seed: u64, epoch: u64) -> Result<Vec<i64>> {
    let mut state = mix(seed) ^ mix(epoch.wrapping_add(0x5851_f42d_4c95_7f2d));
    let mut order: Vec<i64> = Vec::new();
    order.try_reserve_exact(n).map_err(|_| Error::out_of_memory(n.saturating_mul(size_of::<i64>())))?;
    order.extend(0..n as i64);
    for i in (1..n).rev() {
        state = state.wrapping_add(GOLDEN);
        // The high half of a 64×64-bit product is uniform on 0..=i up to a bias below i/2⁶⁴.
        let j = (u128::from(mix(state)) * (i as u128 + 1)) >> 64;
        order.swap(i, j as usize);
    }
    Ok(order)
}

/// 2⁶⁴ divided by the golden ratio, rounded to an odd number.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Computes the output function of SplitMix64 (Steele, Lea & Flood 2014), which mixes all bits.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(GOLDEN);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_has_every_sample_once_in_a_new_order() {
        for n in [0, 1, 2, 17, 1000] {
            let orders: Vec<Vec<i64>> = (0..3).map(|epoch| permutation(n, 5, epoch).unwrap()).collect();
            for order in &orders {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..n as i64).collect::<Vec<_>>());
            }
            assert_eq!(orders[1], permutation(n, 5, 1).unwrap());
            if n > 2 {
                assert_ne!(orders[0], orders[1]);
                assert_ne!(orders[0], permutation(n, 6, 0).unwrap());
            }
        }
    }

    #[test]
    fn permutations_are_uniform() {
        // In 10,000 shuffles, each of 5 values is expected to be first about 2000 times, with standard deviation 40.
        let mut counts = [0i32; 5];
        (0..10_000).for_each(|epoch| counts[permutation(5, 1, epoch).unwrap()[0] as usize] += 1);
        assert!(counts.iter().all(|c| (c - 2000).abs() < 200), "each value must be first about 2000 times: {counts:?}");
    }
}
