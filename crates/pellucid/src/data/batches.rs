//! Batches: a data set in small parts, shuffled in every epoch.

use pellucid_tensor::{Error, Result, Tensor, ops, unwrap};

/// Splits tensors that share their first axis, the samples, into batches.
///
/// ```
/// use pellucid::data::Batches;
/// use pellucid::Tensor;
///
/// let inputs = Tensor::arange(0.0f32, 10.0, 1.0).reshape([5, 2]);
/// let labels = Tensor::from([0i64, 1, 2, 3, 4]);
/// let mut batches = Batches::new(&[&inputs, &labels], 2)?.shuffled(7);
/// for epoch in 0..3 {
///     for batch in batches.epoch() {
///         let [x, y] = &batch[..] else { unreachable!() };
///         assert_eq!(x.shape().dims(), [y.size(), 2]);
///     }
/// }
/// assert_eq!(batches.len(), 3);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// The order of the samples in an epoch depends only on the seed and the number of the epoch.
#[doc(alias = "DataLoader")]
#[doc(alias = "TensorDataset")]
#[derive(Clone, Debug)]
pub struct Batches {
    tensors: Vec<Tensor>,
    samples: usize,
    size: usize,
    seed: Option<u64>,
    drop_last: bool,
    epochs: u64,
}

impl Batches {
    /// Creates batches of `size` samples (the last may be smaller) of tensors `[N, ..]`, in the order of the data set.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the tensors have different numbers of samples;
    /// [`Error::InvalidArgument`] if there is no tensor, or `size` is 0.
    pub fn new(tensors: &[&Tensor], size: usize) -> Result<Batches> {
        let op = "batches";
        let Some(first) = tensors.first() else {
            return Err(Error::invalid(op, "the list of tensors must have at least one tensor"));
        };
        let samples = first.shape().first().copied();
        if samples.is_none() || tensors.iter().any(|t| t.shape().first().copied() != samples) {
            let help =
                "the first axis of every tensor must be the samples, and all tensors must have equally many samples";
            return Err(Error::shapes(op, tensors.iter().map(|t| t.shape()), help));
        }
        if size == 0 {
            return Err(Error::invalid(op, "a batch must have at least one sample, got size 0"));
        }
        let tensors = tensors.iter().map(|t| t.detach()).collect();
        Ok(Batches { tensors, samples: samples.unwrap_or(0), size, seed: None, drop_last: false, epochs: 0 })
    }

    /// Shuffles the samples in every epoch, seeded by `seed`.
    #[doc(alias = "shuffle")]
    #[must_use]
    pub fn shuffled(self, seed: u64) -> Batches {
        Batches { seed: Some(seed), ..self }
    }

    /// Drops a last batch that is not full. All batches then have the same shape, as a captured step needs.
    #[must_use]
    pub fn drop_last(self) -> Batches {
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

    /// Returns an iterator over the batches of the next epoch. A batch contains `[size, ..]` of every tensor.
    ///
    /// # Panics
    /// With the error of [`try_epoch`](Batches::try_epoch).
    #[track_caller]
    pub fn epoch(&mut self) -> impl ExactSizeIterator<Item = Vec<Tensor>> + use<> {
        unwrap(self.try_epoch())
    }

    /// Fallible version of [`epoch`](Batches::epoch).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an epoch [has no batch](Batches::is_empty), because a loop over it would train
    /// nothing: the data set has no samples, or with [`drop_last`](Batches::drop_last) fewer than a batch.
    pub fn try_epoch(&mut self) -> Result<impl ExactSizeIterator<Item = Vec<Tensor>> + use<>> {
        if self.is_empty() {
            let help = if self.samples == 0 { "" } else { "; make the batches smaller, or do not drop the last batch" };
            let reason = format!("an epoch of {} samples in batches of {} has no batch{help}", self.samples, self.size);
            return Err(Error::invalid("batches", reason));
        }
        let order = self.seed.map(|seed| permutation(self.samples, seed, self.epochs));
        self.epochs += 1;
        let Batches { tensors, samples, size, .. } = self.clone();
        Ok((0..self.len()).map(move |k| {
            let (start, end) = (k * size, samples.min((k + 1) * size));
            let part = |tensor: &Tensor| match &order {
                // Without shuffling, a batch is a view of the data set.
                None => ops::narrow(tensor, 0, start, end - start),
                Some(order) => ops::index_select(tensor, 0, &Tensor::new(&order[start..end], [end - start])),
            };
            // Samples come from a range or a permutation, so the indices are in bounds.
            tensors.iter().map(|tensor| unwrap(part(tensor))).collect()
        }))
    }
}

/// Returns a permutation of 0..n that depends on the seed and the epoch (Fisher & Yates 1938, in Durstenfeld's form).
fn permutation(n: usize, seed: u64, epoch: u64) -> Vec<i64> {
    let mut state = mix(seed) ^ mix(epoch.wrapping_add(0x5851_f42d_4c95_7f2d));
    let mut order: Vec<i64> = (0..n as i64).collect();
    for i in (1..n).rev() {
        state = state.wrapping_add(GOLDEN);
        // The high half of a 64×64-bit product is uniform on 0..=i up to a bias below i/2⁶⁴.
        let j = (u128::from(mix(state)) * (i as u128 + 1)) >> 64;
        order.swap(i, j as usize);
    }
    order
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
            let orders: Vec<Vec<i64>> = (0..3).map(|epoch| permutation(n, 5, epoch)).collect();
            for order in &orders {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..n as i64).collect::<Vec<_>>());
            }
            assert_eq!(orders[1], permutation(n, 5, 1));
            if n > 2 {
                assert_ne!(orders[0], orders[1]);
                assert_ne!(orders[0], permutation(n, 6, 0));
            }
        }
    }

    #[test]
    fn permutations_are_uniform() {
        // In 10,000 shuffles, each of 5 values is expected to be first about 2000 times, with standard deviation 40.
        let mut counts = [0i32; 5];
        (0..10_000).for_each(|epoch| counts[permutation(5, 1, epoch)[0] as usize] += 1);
        assert!(counts.iter().all(|c| (c - 2000).abs() < 200), "each value must be first about 2000 times: {counts:?}");
    }
}
