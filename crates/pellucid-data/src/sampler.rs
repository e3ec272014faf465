//! Samplers: the order of the samples in an epoch.

use crate::dataset::read_labels;
use crate::random::{EpochSeed, vec_with_capacity};
use pellucid_derive::panicking_form;
use pellucid_tensor::{Error, Result, Tensor, unwrap};
use std::any::type_name;
use std::collections::BTreeMap;

/// The order of the samples in each epoch, as a function of the loader's seed and the epoch number.
pub trait Sampler: Send + Sync {
    /// Returns the number of samples of an epoch.
    fn len(&self) -> usize;

    /// Returns true if an epoch has no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the name of the sampler, by default the name of its type without path and type arguments. A loader only
    /// loads the state of a loader whose sampler has the same name.
    fn name(&self) -> &'static str {
        short_type_name::<Self>()
    }

    /// Returns a number that identifies the settings of the sampler, such as weights or labels; by default 0. A loader
    /// only loads the state of a loader whose sampler has the same number.
    fn settings(&self) -> u64 {
        0
    }

    /// Returns the [`len`](Sampler::len) sample indices of an epoch.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; the errors of the sampler.
    fn indices(&self, seed: EpochSeed) -> Result<Vec<usize>>;
}

/// A sampler of entire batches, for samples that must be in the same batch.
pub trait BatchSampler: Send + Sync {
    /// Returns the number of batches of an epoch.
    fn len(&self) -> usize;

    /// Returns true if an epoch has no batches.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the name of the sampler, by default the name of its type without path and type arguments. A loader only
    /// loads the state of a loader whose sampler has the same name.
    fn name(&self) -> &'static str {
        short_type_name::<Self>()
    }

    /// Returns a number that identifies the settings of the sampler, such as weights or labels; by default 0. A loader
    /// only loads the state of a loader whose sampler has the same number.
    fn settings(&self) -> u64 {
        0
    }

    /// Returns the sample indices of each batch of an epoch: [`len`](BatchSampler::len) lists.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; the errors of the sampler.
    fn batches(&self, seed: EpochSeed) -> Result<Vec<Vec<usize>>>;
}

/// Returns the name of a type without its path and its type arguments.
pub(crate) fn short_type_name<T: ?Sized>() -> &'static str {
    let plain = type_name::<T>().split('<').next().unwrap_or_default();
    plain.rsplit("::").next().unwrap_or_default()
}

/// Returns a hash of numbers, which is the same on all platforms and in all versions: FNV-1a over words of 64 bits.
pub(crate) fn hash(numbers: impl IntoIterator<Item = u64>) -> u64 {
    let step = |hash: u64, number: u64| (hash ^ number).wrapping_mul(0x0100_0000_01b3);
    numbers.into_iter().fold(0xcbf2_9ce4_8422_2325, step)
}

impl<S: Sampler + ?Sized> Sampler for Box<S> {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn settings(&self) -> u64 {
        (**self).settings()
    }

    fn indices(&self, seed: EpochSeed) -> Result<Vec<usize>> {
        (**self).indices(seed)
    }
}

/// Visits all samples of a data set in order.
#[derive(Clone, Copy, Debug)]
pub struct SequentialSampler {
    /// The number of samples.
    pub samples: usize,
}

impl SequentialSampler {
    /// Creates a sampler of the indices 0 to `samples` − 1.
    pub fn new(samples: usize) -> SequentialSampler {
        SequentialSampler { samples }
    }
}

impl Sampler for SequentialSampler {
    fn len(&self) -> usize {
        self.samples
    }

    fn indices(&self, _: EpochSeed) -> Result<Vec<usize>> {
        let mut order = vec_with_capacity(self.samples)?;
        order.extend(0..self.samples);
        Ok(order)
    }
}

/// Visits all samples of a data set in a random order, which differs in each epoch.
#[derive(Clone, Copy, Debug)]
pub struct RandomSampler {
    /// The number of samples.
    pub samples: usize,
}

impl RandomSampler {
    /// Creates a sampler of the indices 0 to `samples` − 1.
    pub fn new(samples: usize) -> RandomSampler {
        RandomSampler { samples }
    }
}

impl Sampler for RandomSampler {
    fn len(&self) -> usize {
        self.samples
    }

    fn indices(&self, seed: EpochSeed) -> Result<Vec<usize>> {
        seed.permutation(self.samples)
    }
}

/// Draws samples with probabilities proportional to weights, for example to balance classes.
///
/// ```
/// use pellucid::data::{EpochSeed, Sampler, WeightedRandomSampler};
/// let sampler = WeightedRandomSampler::with_replacement(&[0.0, 1.0, 3.0], 1000);
/// let indices = sampler.indices(EpochSeed { seed: 0, epoch: 0 })?;
/// assert!(!indices.contains(&0));
/// assert!((700..800).contains(&indices.iter().filter(|&&index| index == 2).count()));
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct WeightedRandomSampler {
    weights: Vec<f64>,
    count: usize,
    has_replacement: bool,
    /// A hash of the weights and of `has_replacement`.
    settings: u64,
}

impl WeightedRandomSampler {
    /// Draws `count` samples in each epoch. A sample may be drawn several times.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a weight is negative or not finite, or all are 0.
    #[panicking_form]
    pub fn try_with_replacement(weights: &[f64], count: usize) -> Result<WeightedRandomSampler> {
        WeightedRandomSampler::checked(weights, count, true)
    }

    /// Draws `count` different samples in each epoch (Efraimidis & Spirakis 2006).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a weight is negative or not finite, or fewer than `count` are positive.
    #[panicking_form]
    pub fn try_without_replacement(weights: &[f64], count: usize) -> Result<WeightedRandomSampler> {
        WeightedRandomSampler::checked(weights, count, false)
    }

    fn checked(weights: &[f64], count: usize, has_replacement: bool) -> Result<WeightedRandomSampler> {
        let op = "weighted_random_sampler";
        if let Some(weight) = weights.iter().find(|weight| !(weight.is_finite() && **weight >= 0.0)) {
            return Err(Error::invalid(op, format!("the weights must be finite and not negative, got {weight}")));
        }
        let positive = weights.iter().filter(|weight| **weight > 0.0).count();
        let needed = if has_replacement { count.min(1) } else { count };
        if positive < needed {
            let reason = format!("{count} samples require {needed} positive weights, but {positive} are positive");
            return Err(Error::invalid(op, reason));
        }
        let settings = hash(weights.iter().map(|weight| weight.to_bits()).chain([u64::from(has_replacement)]));
        Ok(WeightedRandomSampler { weights: weights.to_vec(), count, has_replacement, settings })
    }
}

impl Sampler for WeightedRandomSampler {
    fn len(&self) -> usize {
        self.count
    }

    fn settings(&self) -> u64 {
        self.settings
    }

    fn indices(&self, seed: EpochSeed) -> Result<Vec<usize>> {
        let mut rng = seed.rng();
        let mut indices = vec_with_capacity(self.count)?;
        if self.has_replacement {
            // Division by the largest weight keeps the sums finite.
            let largest = self.weights.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
            let mut cumulative = vec_with_capacity(self.weights.len())?;
            cumulative.extend(self.weights.iter().scan(0.0, |sum, weight| {
                *sum += weight / largest;
                Some(*sum)
            }));
            let total = cumulative.last().copied().unwrap_or(0.0);
            // The product may be rounded up to the total.
            let last = self.weights.iter().rposition(|weight| *weight > 0.0).unwrap_or(0);
            let draw = || {
                let target = rng.uniform() * total;
                cumulative.partition_point(|&sum| sum <= target).min(last)
            };
            indices.extend(std::iter::repeat_with(draw).take(self.count));
            return Ok(indices);
        }
        // Selects the samples with the largest keys u^(1/w), where w is the weight and u a uniform random number, by
        // comparing the logarithms of the keys.
        let mut keys: Vec<(f64, usize)> = vec_with_capacity(self.weights.len())?;
        for (index, &weight) in self.weights.iter().enumerate() {
            let logarithm = (1.0 - rng.uniform()).ln();
            if weight > 0.0 {
                keys.push((logarithm / weight, index));
            }
        }
        keys.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        indices.extend(keys[..self.count].iter().map(|(_, index)| index));
        Ok(indices)
    }
}

/// The shard of another sampler's samples for one of several processes. All shards have the same size: the first
/// samples are repeated at the end if necessary.
///
/// ```
/// use pellucid::data::{DistributedSampler, EpochSeed, Sampler, SequentialSampler};
/// let of_rank = |rank| DistributedSampler::new(SequentialSampler::new(5), rank, 2);
/// let seed = EpochSeed { seed: 0, epoch: 0 };
/// assert_eq!(of_rank(0).indices(seed)?, [0, 2, 4]);
/// assert_eq!(of_rank(1).indices(seed)?, [1, 3, 0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DistributedSampler<S> {
    sampler: S,
    rank: usize,
    world: usize,
}

impl<S: Sampler> DistributedSampler<S> {
    /// Creates the sampler of process `rank` of `world` processes. All processes must use the same loader seed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `rank` is not less than `world`.
    #[panicking_form]
    pub fn try_new(sampler: S, rank: usize, world: usize) -> Result<DistributedSampler<S>> {
        check_rank("distributed_sampler", rank, world)?;
        Ok(DistributedSampler { sampler, rank, world })
    }
}

impl<S: Sampler> Sampler for DistributedSampler<S> {
    fn len(&self) -> usize {
        self.sampler.len().div_ceil(self.world)
    }

    fn settings(&self) -> u64 {
        let name = self.sampler.name().bytes().map(u64::from);
        hash(name.chain([self.sampler.settings(), self.rank as u64, self.world as u64]))
    }

    fn indices(&self, seed: EpochSeed) -> Result<Vec<usize>> {
        let all = self.sampler.indices(seed)?;
        let mut indices = vec_with_capacity(self.len())?;
        indices.extend((0..self.len()).map(|i| all[(self.rank + i * self.world) % all.len()]));
        Ok(indices)
    }
}

/// Visits all samples in a random order in which each class is spread evenly, so that all batches have nearly the same
/// class counts.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::data::{EpochSeed, Sampler, StratifiedSampler};
/// let labels = Tensor::from([0i64, 0, 0, 0, 0, 0, 1, 1]);
/// let order = StratifiedSampler::new(&labels).indices(EpochSeed { seed: 0, epoch: 0 })?;
/// let ones = |half: &[usize]| half.iter().filter(|&&index| index >= 6).count();
/// assert_eq!((ones(&order[..4]), ones(&order[4..])), (1, 1));
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct StratifiedSampler {
    /// The indices of the samples of each class.
    classes: Vec<Vec<usize>>,
    /// A hash of the classes.
    settings: u64,
}

impl StratifiedSampler {
    /// Creates a sampler from the class labels of the samples: integers `[N]`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if `labels` does not have one axis; [`Error::DTypeMismatch`] if its dtype is not an
    /// integer dtype.
    #[panicking_form]
    pub fn try_new(labels: &Tensor) -> Result<StratifiedSampler> {
        let mut classes: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
        for (index, class) in read_labels("stratified_sampler", labels)?.into_iter().enumerate() {
            classes.entry(class).or_default().push(index);
        }
        let classes: Vec<Vec<usize>> = classes.into_values().collect();
        // The hash includes the class sizes, which mark the boundaries between the classes.
        let numbers = classes.iter().flat_map(|class| [class.len()].into_iter().chain(class.iter().copied()));
        let settings = hash(numbers.map(|number| number as u64));
        Ok(StratifiedSampler { classes, settings })
    }
}

impl Sampler for StratifiedSampler {
    fn len(&self) -> usize {
        self.classes.iter().map(Vec::len).sum()
    }

    fn settings(&self) -> u64 {
        self.settings
    }

    fn indices(&self, seed: EpochSeed) -> Result<Vec<usize>> {
        let mut rng = seed.rng();
        let mut placed: Vec<(f64, usize)> = vec_with_capacity(self.len())?;
        for class in &self.classes {
            let mut class = class.clone();
            rng.shuffle(&mut class);
            // Sample i of the n samples of a class has the position (i + u)/n in the epoch, with one random u per
            // class.
            let (offset, n) = (rng.uniform(), class.len() as f64);
            placed.extend(class.into_iter().enumerate().map(|(i, index)| ((i as f64 + offset) / n, index)));
        }
        placed.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        Ok(placed.into_iter().map(|(_, index)| index).collect())
    }
}

/// Batches of sequences with similar lengths, which need little padding. The samples are shuffled, groups of
/// [`GROUP`](Self::GROUP) batches are sorted by length, and the batches are shuffled.
#[derive(Clone, Debug)]
pub struct BucketBatchSampler {
    lengths: Vec<usize>,
    batch_size: usize,
    drop_last: bool,
    /// A hash of the lengths.
    settings: u64,
}

impl BucketBatchSampler {
    /// The number of batches whose samples are sorted together.
    pub const GROUP: usize = 50;

    /// Creates a sampler of batches of `batch_size` samples with these lengths. One batch, at any position, may be
    /// smaller.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `batch_size` is 0.
    #[panicking_form]
    pub fn try_new(lengths: &[usize], batch_size: usize) -> Result<BucketBatchSampler> {
        if batch_size == 0 {
            return Err(Error::invalid("bucket_batch_sampler", "a batch must have at least one sample, got size 0"));
        }
        let settings = hash(lengths.iter().map(|&length| length as u64));
        Ok(BucketBatchSampler { lengths: lengths.to_vec(), batch_size, drop_last: false, settings })
    }

    /// Sets whether samples that do not fill a batch are dropped; default false.
    #[must_use]
    pub fn drop_last(self, drop_last: bool) -> Self {
        BucketBatchSampler { drop_last, ..self }
    }
}

impl BatchSampler for BucketBatchSampler {
    fn len(&self) -> usize {
        batch_count(self.lengths.len(), self.batch_size, self.drop_last)
    }

    fn settings(&self) -> u64 {
        hash([self.settings, self.batch_size as u64, u64::from(self.drop_last)])
    }

    fn batches(&self, seed: EpochSeed) -> Result<Vec<Vec<usize>>> {
        let mut order = seed.permutation(self.lengths.len())?;
        if self.drop_last {
            order.truncate(self.len() * self.batch_size);
        }
        let mut batches = vec_with_capacity(self.len())?;
        for group in order.chunks_mut(self.batch_size.saturating_mul(Self::GROUP)) {
            group.sort_by_key(|&index| self.lengths[index]);
            batches.extend(group.chunks(self.batch_size).map(<[usize]>::to_vec));
        }
        let mut rng = EpochSeed { seed: !seed.seed, ..seed }.rng();
        rng.shuffle(&mut batches);
        Ok(batches)
    }
}

/// Returns an error if there is no process of this rank.
pub(crate) fn check_rank(op: &'static str, rank: usize, world: usize) -> Result<()> {
    if rank < world {
        return Ok(());
    }
    let reason = format!("the rank must be less than the number of processes, got rank {rank} of {world}");
    Err(Error::invalid(op, reason))
}

/// Returns the number of batches of an epoch.
pub(crate) fn batch_count(samples: usize, size: usize, drop_last: bool) -> usize {
    if drop_last { samples / size } else { samples.div_ceil(size) }
}
