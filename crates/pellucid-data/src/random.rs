//! Random numbers of epochs and samples, which depend on seeds and positions only.

use crate::cancel::is_cancelled;
use crate::sample_names::SampleNames;
use pellucid_tensor::{Error, Generator, Result, ops};
use std::cell::RefCell;

/// The loader's seed and an epoch number, which determine the order of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochSeed {
    /// The seed of the loader.
    pub seed: u64,
    /// The epoch number, from 0.
    pub epoch: usize,
}

impl EpochSeed {
    /// Returns the generator of this epoch.
    pub fn rng(self) -> SplitMix64 {
        SplitMix64 { state: mix(self.seed) ^ mix((self.epoch as u64).wrapping_add(0x5851_f42d_4c95_7f2d)) }
    }

    /// Returns a random permutation of 0..n (Fisher & Yates 1938, in Durstenfeld's form).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn permutation(self, n: usize) -> Result<Vec<usize>> {
        let mut order = vec_with_capacity(n)?;
        order.extend(0..n);
        self.rng().shuffle(&mut order);
        Ok(order)
    }

    /// Returns the generator key of the sample at this position in the epoch.
    fn sample_key(self, position: usize) -> u64 {
        mix(self.rng().state ^ mix(position as u64 ^ 0x2545_f491_4f6c_dd1d))
    }

    /// Returns the generator key of the batch that begins at this position. It differs from the keys of all samples.
    fn batch_key(self, first: usize) -> u64 {
        mix(self.sample_key(first))
    }
}

/// Returns an empty vector with memory for `n` elements.
pub(crate) fn vec_with_capacity<T>(n: usize) -> Result<Vec<T>> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(n).map_err(|_| Error::out_of_memory(n.saturating_mul(size_of::<T>())))?;
    Ok(vector)
}

/// A small generator of random integers for the order of samples (Steele, Lea & Flood 2014). It runs on the host;
/// random tensors are drawn from a [`Generator`].
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// Creates a generator with a seed. Different seeds give uncorrelated sequences.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64 { state: mix(seed) }
    }

    /// Returns 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// Returns a uniformly distributed integer in 0..n, with a bias below n/2⁶⁴.
    ///
    /// # Panics
    /// Panics if `n` is 0.
    #[track_caller]
    pub fn below(&mut self, n: usize) -> usize {
        assert!(n > 0, "below: the range 0..n must not be empty, got n = 0");
        // The high half of a 64×64-bit product.
        ((u128::from(self.next_u64()) * n as u128) >> 64) as usize
    }

    /// Returns a uniformly distributed multiple of 2⁻⁵³ in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a uniformly distributed number between two bounds.
    pub fn uniform_in(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// Draws from the standard normal distribution (Box & Muller 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Permutes the elements of a slice uniformly.
    pub fn shuffle<T>(&mut self, slice: &mut [T]) {
        for i in (1..slice.len()).rev() {
            slice.swap(i, self.below(i + 1));
        }
    }
}

/// 2⁶⁴ divided by the golden ratio, rounded to an odd number.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Computes the output function of SplitMix64, which mixes all bits.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(GOLDEN);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

thread_local! {
    /// The random numbers of the batch that this thread computes for a loader.
    static BATCH: RefCell<Option<BatchRandom>> = const { RefCell::new(None) };
}

/// The random numbers of a batch.
struct BatchRandom {
    seed: EpochSeed,
    /// The position of the first sample in the epoch.
    first: usize,
    /// The generator of each sample, after its first use.
    generators: Vec<Option<Generator>>,
    /// The host stream of each sample, after its first use. The last entry is the stream of the batch.
    streams: Vec<Option<SplitMix64>>,
    /// The index in the batch of the current sample.
    current: Option<usize>,
    /// The index in the batch of the sample whose computation failed.
    failed: Option<usize>,
    names: SampleNames,
    /// Whether the list of samples that is being collated is in batch order.
    is_in_order: bool,
}

/// Runs `f` with the generator of the sample at `index` of the list that [`get_many`](crate::Dataset::get_many)
/// receives. Several calls for one sample, for example by nested data sets, continue the random stream of the sample. A
/// nested call inside `f`, and a call outside a loader, only run `f`.
///
/// An implementation of `get_many` calls this function for each sample whose computation may draw random numbers or
/// fail. On a worker thread whose batches are no longer needed, the call returns an error.
///
/// ```
/// use pellucid::data::{Dataset, for_sample};
/// use pellucid::{DType, Result, Tensor};
///
/// /// Samples of a file that is read in pieces.
/// struct Noisy(Vec<f32>);
///
/// impl Dataset for Noisy {
///     type Item = Tensor;
///
///     fn len(&self) -> usize {
///         self.0.len()
///     }
///
///     fn get(&self, index: usize) -> Result<Tensor> {
///         Ok(Tensor::rand([2], DType::F32) + f64::from(self.0[index]))
///     }
///
///     fn get_many(&self, indices: &[usize]) -> Result<Vec<Tensor>> {
///         // All samples could be read here together.
///         indices.iter().enumerate().map(|(i, &index)| for_sample(i, || self.get(index))).collect()
///     }
/// }
/// # assert_eq!(Noisy(vec![1.0, 2.0]).get_many(&[1, 0])?.len(), 2);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of `f`; [`Error::InvalidArgument`] on a worker thread whose batches are no longer needed.
pub fn for_sample<R>(index: usize, f: impl FnOnce() -> Result<R>) -> Result<R> {
    if is_cancelled() {
        return Err(Error::invalid("data_loader", "the batch is no longer needed: its iterator was dropped"));
    }
    let entered = BATCH.with_borrow_mut(|batch| {
        let batch = batch.as_mut().filter(|batch| batch.current.is_none())?;
        let key = batch.seed.sample_key(batch.first + index);
        let generator = batch.generators.get_mut(index)?.get_or_insert_with(|| Generator::new(key));
        batch.current = Some(index);
        Some(generator.clone())
    });
    let Some(generator) = entered else { return f() };
    let _scope = generator.scope();
    let mut guard = SampleGuard { has_succeeded: false };
    let result = f();
    guard.has_succeeded = result.is_ok();
    result
}

/// Draws random numbers on the host: calls `f` with a generator. For transforms of samples, this is faster than drawing
/// a tensor of a few elements.
///
/// Inside a loader, the numbers depend only on the seed, the epoch and the position of the sample, or of the batch
/// while it is collated. Elsewhere they depend on the generator of the thread, and therefore on [`manual_seed`].
///
/// ```
/// use pellucid::data::{DataLoader, Dataset, LoaderOptions, from_vec, with_rng};
///
/// let words = from_vec(vec![vec![1i64, 2, 3]; 8]);
/// let noisy = words.map(|mut word| {
///     with_rng(|rng| rng.shuffle(&mut word))?;
///     Ok(word)
/// });
/// let batches = |workers| {
///     let options = LoaderOptions { batch_size: 4, workers, seed: Some(0), ..Default::default() };
///     let mut loader = DataLoader::new(noisy.clone(), options);
///     loader.epoch().map(|batch| batch.unwrap().to_vec()).collect::<Vec<Vec<i64>>>()
/// };
/// assert_eq!(batches(0), batches(2));
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// [`manual_seed`]: pellucid_tensor::manual_seed
///
/// # Errors
/// [`Error::ReadInCapture`](pellucid_tensor::Error::ReadInCapture) outside a loader while a step is captured.
pub fn with_rng<R>(f: impl FnOnce(&mut SplitMix64) -> R) -> Result<R> {
    // `f` gets a copy, because it may call `with_rng` again.
    let stream_state = BATCH.with_borrow(|batch| {
        let batch = batch.as_ref()?;
        let stream = batch.current.unwrap_or(batch.generators.len());
        let start = || SplitMix64 {
            state: match batch.current {
                Some(sample) => !batch.seed.sample_key(batch.first + sample),
                None => !batch.seed.batch_key(batch.first),
            },
        };
        Some((stream, batch.streams.get(stream).cloned().flatten().unwrap_or_else(start)))
    });
    let Some((stream, mut rng)) = stream_state else {
        return Ok(f(&mut SplitMix64::new(draw_key()?)));
    };
    let result = f(&mut rng);
    BATCH.with_borrow_mut(|batch| {
        if let Some(stored) = batch.as_mut().and_then(|batch| batch.streams.get_mut(stream)) {
            *stored = Some(rng);
        }
    });
    Ok(result)
}

/// Draws a key from the generator of the thread.
///
/// # Errors
/// [`Error::ReadInCapture`] while a step is captured.
pub(crate) fn draw_key() -> Result<u64> {
    ops::randint(0, 1 << 53, [1])?.try_item::<i64>().map(|key| key as u64)
}

/// Ends the computation of a sample when it is dropped, even after a panic.
struct SampleGuard {
    has_succeeded: bool,
}

impl Drop for SampleGuard {
    fn drop(&mut self) {
        BATCH.with_borrow_mut(|batch| {
            if let Some(batch) = batch {
                let sample = batch.current.take();
                if !self.has_succeeded {
                    batch.failed = sample;
                }
            }
        });
    }
}

/// Runs `f`, which computes the samples of an epoch that start at position `first`. Returns the result, the index of
/// the failed sample in the batch if it is known, and the sample names.
pub(crate) fn with_batch<R>(
    seed: EpochSeed,
    first: usize,
    names: SampleNames,
    f: impl FnOnce() -> R,
) -> (R, Option<usize>, SampleNames) {
    let len = names.indices.len();
    let batch = BatchRandom {
        seed,
        first,
        generators: std::iter::repeat_with(|| None).take(len).collect(),
        streams: vec![None; len + 1],
        current: None,
        failed: None,
        names,
        is_in_order: false,
    };
    // A data set may read from another loader on the same thread.
    let outer = BATCH.replace(Some(batch));
    // The generator for draws outside of a sample, for example during collation.
    let scope = Generator::new(seed.batch_key(first)).scope();
    let result = f();
    drop(scope);
    let BatchRandom { failed, names, .. } = BATCH.replace(outer).expect("each batch must restore the outer one");
    (result, failed, names)
}

/// Runs `f`, which collates the samples of a batch in their order.
pub(crate) fn in_order<R>(f: impl FnOnce() -> R) -> R {
    let set = |is_in_order| {
        BATCH.with_borrow_mut(|batch| batch.as_mut().map(|b| std::mem::replace(&mut b.is_in_order, is_in_order)))
    };
    let before = set(true);
    let result = f();
    let _ = before.and_then(set);
    result
}

/// Returns the names of two samples of a list of `len` samples that is being collated: their names in the data set of
/// the loader if the list is its batch, otherwise their indices in the list.
pub(crate) fn name_pair([i, k]: [usize; 2], len: usize) -> String {
    let names = BATCH.with_borrow(|batch| {
        let is_batch =
            |batch: &&BatchRandom| batch.is_in_order && batch.current.is_none() && batch.names.indices.len() == len;
        batch.as_ref().filter(is_batch).map(|batch| batch.names.clone())
    });
    match names {
        Some(names) => format!("{} and {}", names.name(i), names.name(k)),
        None => format!("samples {i} and {k} of the batch"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_has_every_sample_once_in_a_new_order() {
        for n in [0, 1, 2, 17, 1000] {
            let order = |seed, epoch| EpochSeed { seed, epoch }.permutation(n).unwrap();
            let orders: Vec<Vec<usize>> = (0..3).map(|epoch| order(5, epoch)).collect();
            for order in &orders {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..n).collect::<Vec<_>>());
            }
            assert_eq!(orders[1], order(5, 1));
            if n > 2 {
                assert_ne!(orders[0], orders[1]);
                assert_ne!(orders[0], order(6, 0));
            }
        }
    }

    #[test]
    fn permutations_are_uniform() {
        // In 10,000 shuffles, each of 5 values is expected to be first about 2000 times, with standard deviation 40.
        let mut counts = [0i32; 5];
        (0..10_000).for_each(|epoch| counts[EpochSeed { seed: 1, epoch }.permutation(5).unwrap()[0]] += 1);
        assert!(counts.iter().all(|c| (c - 2000).abs() < 200), "each value must be first about 2000 times: {counts:?}");
    }

    #[test]
    fn uniform_numbers_are_below_one_with_the_right_mean() {
        let mut rng = EpochSeed { seed: 3, epoch: 0 }.rng();
        let numbers: Vec<f64> = (0..10_000).map(|_| rng.uniform()).collect();
        assert!(numbers.iter().all(|u| (0.0..1.0).contains(u)));
        let mean = numbers.iter().sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 0.015, "the mean of 10,000 numbers must be near 0.5, got {mean}");
    }
}
