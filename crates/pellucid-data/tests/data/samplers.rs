//! The order of the samples.

use pellucid::data::{
    BatchSampler, BucketBatchSampler, DistributedSampler, EpochSeed, RandomSampler, Sampler, SequentialSampler,
    StratifiedSampler, WeightedRandomSampler,
};
use pellucid::{DType, Tensor};

fn epoch(epoch: usize) -> EpochSeed {
    EpochSeed { seed: 3, epoch }
}

fn sorted(mut indices: Vec<usize>) -> Vec<usize> {
    indices.sort_unstable();
    indices
}

#[test]
fn weighted_samples_have_the_probabilities_of_their_weights() {
    // The counts of 30,000 draws have standard deviations of at most 87.
    let weights = [0.0, 2.0, 1.0, 3.0, 0.0];
    let sampler = WeightedRandomSampler::with_replacement(&weights, 30_000);
    let mut counts = [0i64; 5];
    sampler.indices(epoch(0)).unwrap().into_iter().for_each(|index| counts[index] += 1);
    for (count, weight) in counts.into_iter().zip(weights) {
        assert!((count - (5000.0 * weight) as i64).abs() < 400, "{counts:?}");
    }
    // Without replacement, the first of two samples has probability w / Σw.
    let sampler = WeightedRandomSampler::without_replacement(&weights, 2);
    let mut first = [0i64; 5];
    for epoch_number in 0..6000 {
        let indices = sampler.indices(epoch(epoch_number)).unwrap();
        assert!(indices.len() == 2 && indices[0] != indices[1]);
        first[indices[0]] += 1;
    }
    for (count, weight) in first.into_iter().zip(weights) {
        assert!((count - (1000.0 * weight) as i64).abs() < 200, "{first:?}");
    }
    for extreme in [[f64::MAX, f64::MAX], [5e-324, 5e-324]] {
        let indices = WeightedRandomSampler::with_replacement(&extreme, 100).indices(epoch(0)).unwrap();
        assert!(indices.contains(&0) && indices.contains(&1), "{extreme:?}");
    }
}

#[test]
fn invalid_weights_are_errors() {
    for wrong in [&[-1.0, 2.0][..], &[f64::NAN, 1.0], &[f64::INFINITY, 1.0], &[0.0, 0.0], &[]] {
        assert!(WeightedRandomSampler::try_with_replacement(wrong, 3).is_err(), "{wrong:?}");
    }
    assert!(WeightedRandomSampler::try_without_replacement(&[1.0, 0.0, 2.0], 3).is_err());
    assert!(WeightedRandomSampler::with_replacement(&[], 0).indices(epoch(0)).unwrap().is_empty());
}

#[test]
fn processes_read_disjoint_parts_of_equal_length() {
    for (samples, world) in [(12, 4), (13, 4), (3, 5), (0, 2), (1, 1)] {
        let rank_indices = |rank| {
            let sampler = DistributedSampler::new(RandomSampler::new(samples), rank, world);
            let indices = sampler.indices(epoch(1)).unwrap();
            assert_eq!(indices.len(), sampler.len());
            indices
        };
        let all: Vec<usize> = (0..world).flat_map(rank_indices).collect();
        assert_eq!(all.len(), samples.div_ceil(world) * world);
        let mut distinct = sorted(all);
        distinct.dedup();
        assert!(distinct.into_iter().eq(0..samples));
    }
    assert!(DistributedSampler::try_new(SequentialSampler::new(3), 2, 2).is_err());
    assert!(DistributedSampler::try_new(SequentialSampler::new(3), 0, 0).is_err());
}

#[test]
fn stratified_batches_have_the_shares_of_the_classes() {
    // 90 of class 0, 30 of class -7, 15 of class 9.
    let labels: Vec<i64> = (0..135)
        .map(|i| {
            if i % 9 < 6 {
                0
            } else if i % 9 < 8 {
                -7
            } else {
                9
            }
        })
        .collect();
    let sampler = StratifiedSampler::new(&Tensor::from(labels.clone()));
    let order = sampler.indices(epoch(0)).unwrap();
    assert_ne!(order, sampler.indices(epoch(1)).unwrap());
    for batch in order.chunks(27) {
        for (class, expected) in [(0, 18), (-7, 6), (9, 3)] {
            let count = batch.iter().filter(|&&index| labels[index] == class).count() as i64;
            assert!((count - expected).abs() <= 1, "class {class}: {count} of 27");
        }
    }
    assert!(sorted(order).into_iter().eq(0..135));
    assert!(StratifiedSampler::try_new(&Tensor::zeros([3], DType::F32)).is_err());
    assert!(StratifiedSampler::try_new(&Tensor::zeros([3, 1], DType::I64)).is_err());
}

#[test]
fn buckets_contain_sequences_of_similar_lengths() {
    let lengths: Vec<usize> = (0..1000).map(|i| (i * 7919) % 100).collect();
    let sampler = BucketBatchSampler::new(&lengths, 16);
    let batches = sampler.batches(epoch(0)).unwrap();
    assert_eq!(batches.len(), sampler.len());
    let padding = |batch: &Vec<usize>| {
        let longest = batch.iter().map(|&index| lengths[index]).max().unwrap();
        batch.iter().map(|&index| longest - lengths[index]).sum::<usize>()
    };
    let padded: usize = batches.iter().map(padding).sum();
    // In a random order, nearly half of the elements are padding: about 45,000.
    assert!(padded < 3000, "{padded} elements are padding");
    let firsts: Vec<usize> = batches.iter().map(|batch| lengths[batch[0]]).collect();
    assert!(!firsts.is_sorted(), "the order of the batches is random");
    assert!(sorted(batches.concat()).into_iter().eq(0..1000));
    let full = BucketBatchSampler::new(&lengths, 16).drop_last(true);
    assert!(full.batches(epoch(0)).unwrap().iter().all(|batch| batch.len() == 16));
    assert_eq!(full.len(), 62);
    assert!(BucketBatchSampler::try_new(&lengths, 0).is_err());
}
