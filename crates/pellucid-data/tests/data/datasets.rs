//! Data sets that are derived from others.

use pellucid::data::{
    Dataset, SplitLength, TensorDataset, from_fn, from_vec, k_fold, random_split, stratified_k_fold, stratified_split,
};
use pellucid::{DType, Error, Result, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn all<D: Dataset>(data: &D) -> Vec<D::Item> {
    (0..data.len()).map(|index| data.get(index).unwrap()).collect()
}

#[test]
fn subsets_maps_and_concatenations_return_the_samples_of_their_sources() {
    let numbers = || from_fn(5, Ok);
    let odd = numbers().subset(vec![3, 1, 1]).unwrap();
    assert_eq!((all(&odd), odd.get_many(&[2, 0]).unwrap()), (vec![3, 1, 1], vec![1, 3]));
    let both = odd.concat(numbers().map(|n| Ok(10 * n)));
    assert_eq!(all(&both), [3, 1, 1, 0, 10, 20, 30, 40]);
    assert_eq!(both.get_batch(&[0, 7]).unwrap().to_vec::<i64>(), [3, 40]);
    let boxed: Box<dyn Dataset<Item = usize>> = Box::new(both);
    assert_eq!(boxed.get(4).unwrap(), 10);
    assert_eq!(all(&from_vec(vec!["a".to_string(), "b".to_string()])), ["a", "b"]);
}

#[test]
fn indices_out_of_bounds_are_errors() {
    let numbers = || from_fn(5, Ok);
    let out_of_bounds = |result: Result<usize>| matches!(result, Err(Error::IndexOutOfBounds { len: 5, .. }));
    assert!(out_of_bounds(numbers().get(5)));
    assert!(out_of_bounds(numbers().concat(from_fn(0, Ok)).get(5)));
    assert!(out_of_bounds(numbers().cached().unwrap().get(usize::MAX)));
    assert!(out_of_bounds(numbers().subset(vec![0, 5]).map(|_| 0)));
    assert!(out_of_bounds(from_vec(vec![1usize; 5]).get(5)));
    let tensors = TensorDataset::new(&[Tensor::arange(0i64, 5, 1)]);
    assert!(tensors.get(5).is_err() && tensors.get_batch(&[0, 5]).is_err() && tensors.get_many(&[5]).is_err());
}

#[test]
fn tensors_share_their_samples() {
    let (x, y) = (Tensor::rand([6, 2], DType::F32), Tensor::arange(0i64, 6, 1));
    let data = TensorDataset::new(&[&x, &y]);
    let rows = data.get_batch(&[4, 0, 4]).unwrap();
    assert_eq!(rows[1].to_vec::<i64>(), [4, 0, 4]);
    assert_eq!(rows[0].to_bytes(), x.i([4, 0, 4]).to_bytes());
    // A write into a sample or a batch does not change the data set.
    let before = x.to_bytes();
    data.get(2).unwrap()[0].copy_(&Tensor::zeros([2], DType::F32));
    data.get_batch(&[1, 2]).unwrap()[0].copy_(&Tensor::zeros([2, 2], DType::F32));
    assert_eq!(x.to_bytes(), before);
    let error = TensorDataset::try_new(&[&x, &Tensor::zeros([5], DType::F32)]).unwrap_err().to_string();
    assert!(error.contains("narrow(0, 0, 5)"), "{error}");
    assert!(TensorDataset::try_new(&[Tensor::from(1.0f32)]).unwrap_err().to_string().contains("unsqueeze(0)"));
}

#[test]
fn a_cache_computes_each_sample_once() {
    let computed = Arc::new(AtomicUsize::new(0));
    let counter = computed.clone();
    let data = from_fn(3, move |index| {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(index)
    });
    let cached = data.cached().unwrap();
    assert_eq!((all(&cached), all(&cached)), (vec![0, 1, 2], vec![0, 1, 2]));
    assert_eq!(computed.load(Ordering::Relaxed), 3);
}

#[test]
fn stratified_parts_have_the_share_of_each_class() {
    let labels: Vec<i64> = (0..300).map(|i| if i % 10 == 0 { 2 } else { i % 3 % 2 }).collect();
    let class = |class: i64, indices: &[usize]| indices.iter().filter(|&&index| labels[index] == class).count() as f64;
    let tensor = Tensor::from(labels.clone());
    let all: Vec<usize> = (0..300).collect();
    let check = |indices: &[usize]| {
        for c in 0..3 {
            let expected = class(c, &all) * indices.len() as f64 / 300.0;
            assert!((class(c, indices) - expected).abs() < 2.0, "class {c}: {} for {expected}", class(c, indices));
        }
    };
    let parts = stratified_split(from_fn(300, Ok), &tensor, [0.7, 0.2, 0.1], 5).unwrap();
    assert_eq!(parts.each_ref().map(|part| part.len()), [210, 60, 30]);
    parts.iter().for_each(|part| check(part.indices()));
    let mut joined: Vec<usize> = parts.iter().flat_map(|part| part.indices().to_vec()).collect();
    joined.sort_unstable();
    assert_eq!(joined, all);
    for [train, validation] in stratified_k_fold(from_fn(300, Ok), &tensor, 7, 5).unwrap() {
        check(train.indices());
        check(validation.indices());
    }
    let error = stratified_split(from_fn(299, Ok), &tensor, [0.5, 0.5], 0).err().unwrap();
    assert!(error.to_string().contains("a label for each of 299 samples"), "{error}");
}

/// Returns only the first of the wanted samples.
struct First;

impl Dataset for First {
    type Item = usize;

    fn len(&self) -> usize {
        8
    }

    fn get(&self, index: usize) -> Result<usize> {
        Ok(index)
    }

    fn get_many(&self, indices: &[usize]) -> Result<Vec<usize>> {
        Ok(indices[..1].to_vec())
    }
}

#[test]
fn a_data_set_returns_a_sample_for_each_index() {
    let count_error = |result: Result<Tensor>| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("a sample for each of 2 indices, got 1"), "{error}");
    };
    count_error(First.get_batch(&[3, 4]));
    count_error(First.subset(vec![0, 1]).unwrap().get_batch(&[0, 1]));
    assert!(First.map(Ok).get_many(&[3, 4]).is_err());
}

#[test]
fn absurd_lengths_are_errors() {
    assert!(matches!(from_fn(usize::MAX / 8, Ok).cached().err(), Some(Error::OutOfMemory { .. })));
    let both = from_fn(usize::MAX, Ok).concat(from_fn(2, Ok));
    assert_eq!((both.len(), both.get(7).unwrap()), (usize::MAX, 7));
}

#[test]
fn folds_have_each_sample_in_one_validation() {
    for (samples, folds) in [(10, 5), (11, 3), (4, 4), (7, 2)] {
        let parts = k_fold(from_fn(samples, Ok), folds, 1).unwrap();
        let mut validated: Vec<usize> = parts.iter().flat_map(|[_, part]| part.indices().to_vec()).collect();
        validated.sort_unstable();
        assert!(validated.into_iter().eq(0..samples));
        for [train, validation] in &parts {
            let mut all = [train.indices(), validation.indices()].concat();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..samples));
            assert!(validation.len().abs_diff(samples / folds) <= 1);
        }
    }
    for folds in [0, 1, 5] {
        assert!(k_fold(from_fn(4, Ok), folds, 0).is_err());
    }
}

#[test]
fn random_splits_have_all_samples_once() {
    let data = || from_fn(103, Ok);
    for sizes in [[0.8, 0.1, 0.1], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [1.0 / 3.0; 3]] {
        let parts = random_split(data(), sizes, 1).unwrap();
        let mut indices: Vec<usize> = parts.iter().flat_map(|part| part.indices().to_vec()).collect();
        indices.sort_unstable();
        assert!(indices.into_iter().eq(0..103), "{sizes:?}");
        let exact = parts.iter().zip(sizes).all(|(part, size)| (part.len() as f64 - 103.0 * size).abs() <= 1.0);
        assert!(exact, "{sizes:?}");
    }
    // Fractions whose sum is not exactly 1 lose no sample, and do not panic.
    for (samples, sizes) in [
        (10_000_000, [0.333_333_4; 3]),
        (10_000_000, [0.333_333, 0.333_333, 0.333_333_5]),
        (10_000_000, [0.0, 0.5, 0.499_999_5]),
        (10, [0.7, 0.2, 0.1]),
        (1, [0.0, 0.0, 0.999_999_5]),
        (3, [1.0 / 3.0; 3]),
    ] {
        let counts = f64::counts(&sizes, samples).unwrap();
        assert_eq!(counts.iter().sum::<usize>(), samples, "{sizes:?}");
        let exact = counts.iter().zip(sizes).all(|(&n, size)| (n as f64 - samples as f64 * size).abs() <= 6.0);
        assert!(exact, "{sizes:?}: {counts:?}");
        assert!(counts.iter().zip(sizes).all(|(&n, size)| size > 0.0 || n == 0));
    }
    assert_eq!(f64::counts(&[0.7, 0.2, 0.1], 10).unwrap(), [7, 2, 1]);
    let parts = random_split(from_fn(3_000_000, Ok), [0.333_333_4; 3], 1).unwrap();
    assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), 3_000_000);
    let [a, b] = random_split(data(), [100, 3], 1).unwrap();
    assert_eq!((a.len(), b.len()), (100, 3));
    assert_eq!(all(&a), a.indices());
    let [again, _] = random_split(data(), [100, 3], 1).unwrap();
    let [other, _] = random_split(data(), [100, 3], 2).unwrap();
    assert!(again.indices() == a.indices() && other.indices() != a.indices());
    assert!(random_split(data(), [100, 4], 0).is_err());
    assert!(random_split(data(), [usize::MAX, 104], 0).is_err());
    for wrong in [[0.5, 0.6], [-0.5, 1.5], [f64::NAN, 1.0]] {
        assert!(random_split(data(), wrong, 0).is_err());
    }
}

#[test]
fn an_index_error_states_the_range() {
    let error = TensorDataset::new(&[Tensor::ones([2, 1], DType::F32)]).get(7).unwrap_err().to_string();
    assert!(error.ends_with("indices must be in 0..2"), "{error}");
}
