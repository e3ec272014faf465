//! Divisions of a data set into disjoint parts: at random, or with the same share of each class in every part.

use crate::dataset::{Dataset, Subset};
use crate::random::{EpochSeed, vec_with_capacity};
use crate::sampler::{Sampler, StratifiedSampler};
use pellucid_tensor::{Error, Result, Tensor};
use std::sync::Arc;

/// The size of a part of a split: a fraction (`f64`) or a number of samples (`usize`).
pub trait SplitLength: Copy {
    /// Returns the sample counts of the parts of a data set of `samples` samples.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the sizes of the parts do not sum to the size of the data set.
    fn counts(parts: &[Self], samples: usize) -> Result<Vec<usize>>;
}

impl SplitLength for usize {
    fn counts(parts: &[usize], samples: usize) -> Result<Vec<usize>> {
        let sum = parts.iter().try_fold(0usize, |sum, &part| sum.checked_add(part));
        if sum != Some(samples) {
            let reason = format!("the counts {parts:?} must sum to the {samples} samples of the data set");
            return Err(Error::invalid("random_split", reason));
        }
        Ok(parts.to_vec())
    }
}

/// Each part has at least ⌊fraction · N⌋ samples. The remaining samples are distributed one by one to the parts with a
/// fraction above 0, from the first part on. If the sum of the fractions differs from 1 by at most 10⁻⁶, the fractions
/// are divided by the sum, so that every sample is in one part.
impl SplitLength for f64 {
    fn counts(parts: &[f64], samples: usize) -> Result<Vec<usize>> {
        let sum: f64 = parts.iter().sum();
        if parts.iter().any(|part| !(0.0..=1.0).contains(part)) || (sum - 1.0).abs() > 1e-6 {
            let reason = format!("the fractions {parts:?} must be in [0, 1] and sum to 1");
            return Err(Error::invalid("random_split", reason));
        }
        // A sum that differs from 1 only by rounding, such as 0.7 + 0.2 + 0.1, does not change the fractions.
        let is_rounded = (sum - 1.0).abs() <= parts.len() as f64 * f64::EPSILON;
        let fraction = |part: &f64| if is_rounded { *part } else { part / sum };
        let mut counts: Vec<usize> =
            parts.iter().map(|part| (fraction(part) * samples as f64).floor() as usize).collect();
        let indices: Vec<usize> = (0..parts.len()).filter(|&index| parts[index] > 0.0).collect();
        let total: usize = counts.iter().sum();
        for index in indices.iter().cycle().take(samples.saturating_sub(total)) {
            counts[*index] += 1;
        }
        // Products that were rounded up can exceed the number of samples.
        for _ in samples..total {
            let largest = (0..counts.len()).rev().max_by_key(|&index| counts[index]);
            largest.into_iter().for_each(|index| counts[index] -= 1);
        }
        Ok(counts)
    }
}

/// Splits a data set at random into disjoint parts. The sizes are fractions that sum to 1, or sample counts. The split
/// depends only on the seed and the number of samples.
///
/// ```
/// use pellucid::data::{Dataset, from_fn, random_split};
/// let [train, validation] = random_split(from_fn(101, Ok), [0.8, 0.2], 0)?;
/// assert_eq!((train.len(), validation.len()), (81, 20));
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] if the sizes do not sum to the entire data set; [`Error::OutOfMemory`].
pub fn random_split<D: Dataset, S: SplitLength, const N: usize>(
    dataset: D,
    sizes: [S; N],
    seed: u64,
) -> Result<[Subset<Arc<D>>; N]> {
    let order = random_order(dataset.len(), seed)?;
    subsets(dataset, &order, sizes)
}

/// Splits a data set as [`random_split`] does, with about the same share of each class in every part. `labels` are the
/// classes of the samples, integers `[N]`. The split depends only on the seed and the labels.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::data::{from_fn, stratified_split};
/// let labels = Tensor::from([0i64, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
/// let [train, validation] = stratified_split(from_fn(10, Ok), &labels, [0.5, 0.5], 0)?;
/// assert_eq!(train.indices().iter().filter(|&&index| index >= 8).count(), 1);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of [`random_split`]; [`Error::ShapeMismatch`] if there is not one label for each sample;
/// [`Error::DTypeMismatch`] if the labels are not integers.
#[doc(alias = "train_test_split")]
pub fn stratified_split<D: Dataset, S: SplitLength, const N: usize>(
    dataset: D,
    labels: &Tensor,
    sizes: [S; N],
    seed: u64,
) -> Result<[Subset<Arc<D>>; N]> {
    let order = stratified_order("stratified_split", dataset.len(), labels, seed)?;
    subsets(dataset, &order, sizes)
}

/// Splits a data set at random into `folds` folds of nearly equal size. Returns a pair for each fold: the other samples
/// for training, and the fold for validation. The split depends only on the seed and the number of samples.
///
/// ```
/// use pellucid::data::{Dataset, from_fn, k_fold};
/// for [train, validation] in k_fold(from_fn(103, Ok), 5, 0)? {
///     assert_eq!(train.len() + validation.len(), 103);
///     assert!(validation.len() == 20 || validation.len() == 21);
/// }
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] for fewer than 2 folds or more folds than samples; [`Error::OutOfMemory`].
#[doc(alias = "KFold")]
pub fn k_fold<D: Dataset>(dataset: D, folds: usize, seed: u64) -> Result<Vec<[Subset<Arc<D>>; 2]>> {
    let order = random_order(dataset.len(), seed)?;
    fold_subsets("k_fold", dataset, &order, folds)
}

/// Splits a data set into folds as [`k_fold`] does, with about the same share of each class in every fold. `labels` are
/// the classes of the samples, integers `[N]`.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::data::{from_fn, stratified_k_fold};
/// let labels = Tensor::from([0i64, 0, 0, 0, 0, 0, 1, 1, 1]);
/// for [_, validation] in stratified_k_fold(from_fn(9, Ok), &labels, 3, 0)? {
///     assert_eq!(validation.indices().iter().filter(|&&index| index >= 6).count(), 1);
/// }
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of [`k_fold`]; [`Error::ShapeMismatch`] if there is not one label for each sample;
/// [`Error::DTypeMismatch`] if the labels are not integers.
#[doc(alias = "StratifiedKFold")]
pub fn stratified_k_fold<D: Dataset>(
    dataset: D,
    labels: &Tensor,
    folds: usize,
    seed: u64,
) -> Result<Vec<[Subset<Arc<D>>; 2]>> {
    let order = stratified_order("stratified_k_fold", dataset.len(), labels, seed)?;
    fold_subsets("stratified_k_fold", dataset, &order, folds)
}

/// Returns a random order of the samples.
fn random_order(samples: usize, seed: u64) -> Result<Vec<usize>> {
    EpochSeed { seed, epoch: 0 }.permutation(samples)
}

/// Returns a random order of the samples in which the samples of each class are evenly distributed.
fn stratified_order(op: &'static str, samples: usize, labels: &Tensor, seed: u64) -> Result<Vec<usize>> {
    let sampler = StratifiedSampler::try_new(labels)?;
    if sampler.len() != samples {
        return Err(Error::shapes(
            op,
            [labels.shape()],
            format!("there must be a label for each of {samples} samples"),
        ));
    }
    sampler.indices(EpochSeed { seed, epoch: 0 })
}

/// Splits `order` into consecutive subsets of the data set, with the given sizes.
fn subsets<D: Dataset, S: SplitLength, const N: usize>(
    dataset: D,
    order: &[usize],
    sizes: [S; N],
) -> Result<[Subset<Arc<D>>; N]> {
    let dataset = Arc::new(dataset);
    let parts = parts_of(order, &sizes)?.into_iter();
    let parts: Vec<_> = parts.map(|indices| Subset::from_valid(dataset.clone(), indices)).collect();
    Ok(parts.try_into().unwrap_or_else(|_| unreachable!("N sizes give N parts")))
}

/// Returns the training and the validation subset of each fold of an order.
fn fold_subsets<D: Dataset>(
    op: &'static str,
    dataset: D,
    order: &[usize],
    folds: usize,
) -> Result<Vec<[Subset<Arc<D>>; 2]>> {
    let samples = order.len();
    if folds < 2 || folds > samples {
        let reason = format!("`folds` must be from 2 to the number of samples, {samples}, got {folds}");
        return Err(Error::invalid(op, reason));
    }
    let dataset = Arc::new(dataset);
    // The first `samples % folds` folds have one more sample.
    let start = |fold: usize| fold * (samples / folds) + fold.min(samples % folds);
    let part = |indices: &[&[usize]]| {
        let mut list = vec_with_capacity(indices.iter().map(|part| part.len()).sum())?;
        indices.iter().for_each(|part| list.extend_from_slice(part));
        Ok(Subset::from_valid(dataset.clone(), list))
    };
    let fold = |fold: usize| {
        let (start, end) = (start(fold), start(fold + 1));
        Ok([part(&[&order[..start], &order[end..]])?, part(&[&order[start..end]])?])
    };
    (0..folds).map(fold).collect()
}

/// Returns the indices of the parts of a random split.
pub(crate) fn split_indices<S: SplitLength>(samples: usize, sizes: &[S], seed: u64) -> Result<Vec<Vec<usize>>> {
    parts_of(&random_order(samples, seed)?, sizes)
}

/// Divides an order of the samples into parts of successive samples.
fn parts_of<S: SplitLength>(order: &[usize], sizes: &[S]) -> Result<Vec<Vec<usize>>> {
    let samples = order.len();
    let counts = S::counts(sizes, samples)?;
    if counts.len() != sizes.len() || counts.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)) != Some(samples) {
        let parts = sizes.len();
        let reason = format!("SplitLength::counts() must return {parts} counts with the sum {samples}, got {counts:?}");
        return Err(Error::invalid("random_split", reason));
    }
    let mut rest = order;
    let parts = counts.iter().map(|&count| {
        let (part, others) = rest.split_at(count);
        rest = others;
        let mut indices = vec_with_capacity(count)?;
        indices.extend_from_slice(part);
        Ok(indices)
    });
    parts.collect()
}
