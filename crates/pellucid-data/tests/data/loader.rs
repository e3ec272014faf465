//! `DataLoader`: equal batches for any number of workers, errors, resuming, the end of threads.

use pellucid::data::{
    BatchPosition, Batches, BucketBatchSampler, Collate, DataLoader, Dataset, DistributedSampler, EpochSeed,
    IterableDataset, LoaderOptions, RandomSampler, Sampler, SequentialSampler, StratifiedSampler, StreamLoader,
    TensorDataset, WeightedRandomSampler, from_fn, from_records, from_vec, pad_sequences, random_split, with_rng,
};
use pellucid::nn::{Checkpoint, StateDict};
use pellucid::{DType, Device, Error, Generator, Result, Tensor, autocast};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const SAMPLES: usize = 23;

/// Returns a data set whose samples draw random numbers before and after a map.
fn noisy() -> impl Dataset<Item = (Tensor, i64)> + Clone {
    from_fn(SAMPLES, |index| Ok(Tensor::rand([3], DType::F32) + index as f64))
        .map(|x| Ok((&x * Tensor::randn([3], DType::F32), x.shape()[0] as i64)))
}

fn options(workers: usize) -> LoaderOptions {
    LoaderOptions { batch_size: 4, shuffle: true, seed: Some(5), workers, ..Default::default() }
}

fn bytes(batch: Result<(Tensor, Tensor)>) -> (Vec<u8>, Vec<i64>) {
    let (x, y) = batch.unwrap();
    (x.to_bytes(), y.to_vec())
}

/// Without a seed, `manual_seed` determines the order, and the state of the loader contains the drawn seed.
#[test]
fn a_loader_without_a_seed_draws_it_from_the_generator_of_the_thread() {
    let loader = || DataLoader::new(noisy(), LoaderOptions { seed: None, ..options(0) });
    let all = |mut loader: DataLoader<(Tensor, Tensor)>| loader.epoch().map(bytes).collect::<Vec<_>>();
    let first = {
        let _random = Generator::new(7).scope();
        let loaders = [loader(), loader()];
        let states = loaders.each_ref().map(|loader| loader.state_dict()["seed"].item::<i64>());
        assert_ne!(states[0], states[1]);
        let [first, _] = loaders;
        first
    };
    let state = first.state_dict();
    let expected = all(first);
    let again = {
        let _random = Generator::new(7).scope();
        loader()
    };
    assert!(all(again) == expected, "the generator must determine the order");
    let resumed = loader();
    resumed.load_state_dict(&state).unwrap();
    assert!(all(resumed) == expected, "the state must determine the order");
}

#[test]
fn batches_are_equal_for_any_number_of_workers() {
    let epochs = |workers, prefetch_factor| {
        let mut loader = DataLoader::new(noisy(), LoaderOptions { prefetch_factor, ..options(workers) });
        (0..3).map(|_| loader.epoch().map(bytes).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let expected = epochs(0, 1);
    assert!(expected.iter().all(|epoch| epoch.len() == 6));
    assert_ne!(expected[0], expected[1]);
    for (workers, prefetch_factor) in [(1, 1), (1, 3), (2, 2), (7, 1), (7, 4)] {
        assert_eq!(epochs(workers, prefetch_factor), expected, "{workers} workers");
    }
}

/// Random numbers during collation depend on the batch only, and differ from the random numbers of samples.
#[test]
fn collating_draws_from_the_generator_of_the_batch() {
    let draw = || Ok((with_rng(|rng| rng.next_u64())?, Tensor::rand([1], DType::F64).item::<f64>().to_bits()));
    let epoch = |workers| {
        let samples = from_fn(SAMPLES, move |_| draw());
        let collate = move |samples: Vec<(u64, u64)>| Ok((samples, draw()?));
        let mut loader = DataLoader::with_collate(samples, options(workers), collate);
        loader.epoch().map(|batch| batch.unwrap()).collect::<Vec<_>>()
    };
    let expected = epoch(0);
    assert_eq!(epoch(1), expected);
    assert_eq!(epoch(3), expected);
    let draws = expected.iter().flat_map(|(samples, batch)| samples.iter().chain([batch]));
    let mut numbers: Vec<u64> = draws.flat_map(|(host, tensor)| [*host, *tensor]).collect();
    numbers.sort_unstable();
    let count = numbers.len();
    numbers.dedup();
    assert_eq!(numbers.len(), count, "each draw must be of another stream");
}

/// The modes and random numbers of the calling thread do not affect the samples, and the samples do not affect them.
#[test]
fn samples_do_not_depend_on_the_thread_of_the_caller() {
    let _random = Generator::new(3).scope();
    let epoch = |workers| DataLoader::new(noisy(), options(workers)).epoch().map(bytes).collect::<Vec<_>>();
    let expected = epoch(2);
    let state = Generator::default().state().to_vec::<i64>();
    let _mode = autocast(DType::BF16);
    assert_eq!(epoch(0), expected);
    assert_eq!(Generator::default().state().to_vec::<i64>(), state);
    let weight = Tensor::from([1.0f32]).requires_grad_(true);
    let data = from_fn(2, move |_| Ok(&weight * 2.0));
    let batch = DataLoader::new(data, LoaderOptions::default()).epoch().next().unwrap().unwrap();
    assert!(!batch.requires_grad());
}

/// One call for all samples draws the same numbers as one call for each sample.
#[test]
fn maps_of_several_samples_equal_maps_of_one() {
    struct OneByOne<D>(D);
    impl<D: Dataset> Dataset for OneByOne<D> {
        type Item = D::Item;

        fn len(&self) -> usize {
            self.0.len()
        }

        fn get(&self, index: usize) -> Result<D::Item> {
            self.0.get(index)
        }
    }
    let all = DataLoader::new(noisy(), options(0)).epoch().map(bytes).collect::<Vec<_>>();
    let each = DataLoader::new(OneByOne(noisy()), options(0)).epoch().map(bytes).collect::<Vec<_>>();
    assert_eq!(all, each);
}

#[test]
fn a_loader_resumes_inside_an_epoch() {
    for (workers, after) in [(0, 0), (0, 4), (2, 1), (2, 6), (3, 5)] {
        let mut loader = DataLoader::new(noisy(), options(workers));
        loader.epoch().for_each(drop);
        let mut epoch = loader.epoch();
        (0..after).for_each(|_| drop(epoch.next().unwrap()));
        let state = loader.state_dict();
        let mut rest: Vec<_> = epoch.map(bytes).collect();
        rest.extend(loader.epoch().map(bytes));
        let mut resumed = DataLoader::new(noisy(), LoaderOptions { seed: Some(9), ..options(1) });
        // The workers have started the next epoch, which the load discards.
        resumed.epoch().for_each(drop);
        resumed.load_state_dict(&state).unwrap();
        assert_eq!(resumed.position(), BatchPosition { epoch: 1, batch: after });
        let mut actual: Vec<_> = resumed.epoch().map(bytes).collect();
        actual.extend(resumed.epoch().map(bytes));
        assert_eq!(actual, rest, "{workers} workers, after {after} batches");
    }
}

#[test]
fn a_loader_is_a_part_of_a_checkpoint() {
    let loader = DataLoader::new(noisy(), options(0));
    loader.load_state_dict(&loader.state_dict()).unwrap();
    assert!(Checkpoint::new().batches(&loader).load_state_dict(&StateDict::new()).is_err());
    let other = DataLoader::new(noisy(), LoaderOptions { batch_size: 5, ..options(0) });
    let error = other.load_state_dict(&loader.state_dict()).unwrap_err().to_string();
    assert!(error.contains("saved with `size` = 4, but this loader has `size` = 5"), "{error}");
    let other = DataLoader::new(noisy(), LoaderOptions { drop_last: true, ..options(0) });
    let error = other.load_state_dict(&loader.state_dict()).unwrap_err().to_string();
    assert!(error.contains("saved with `drop_last` = 0, but this loader has `drop_last` = 1"), "{error}");
}

/// The rest of an epoch in another order would repeat some samples and omit others.
#[test]
fn a_loader_does_not_continue_in_another_order() {
    let options = |shuffle| LoaderOptions { batch_size: 4, shuffle, seed: Some(1), ..Default::default() };
    let data = || from_vec((0..12i64).collect());
    let shuffled = || DataLoader::new(data(), options(true));
    let in_order = || DataLoader::new(data(), options(false));
    let stratified = || in_order().sampler(StratifiedSampler::new(&Tensor::zeros(12, DType::I64)));
    let bucketed =
        |size| DataLoader::new(data(), LoaderOptions::default()).batch_sampler(BucketBatchSampler::new(&[1; 12], size));
    for (name, saved, other) in [
        ("RandomSampler", shuffled(), in_order()),
        ("SequentialSampler", in_order(), stratified()),
        ("StratifiedSampler", stratified(), shuffled()),
        ("`batches` = 3", bucketed(4), bucketed(6)),
    ] {
        saved.load_state_dict(&saved.state_dict()).unwrap();
        let error = other.load_state_dict(&saved.state_dict()).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains(name), "{name}: {error}");
    }
    // Shuffled `Batches` of the same seed have the same order. Without a seed, samples could draw other numbers.
    let batches = Batches::new(&[&Tensor::arange(0i64, 12, 1)], 4);
    let mut loader = shuffled();
    loader.load_state_dict(&batches.clone().shuffled(5).state_dict()).unwrap();
    let order: Vec<i64> = loader.epoch().flat_map(|batch| batch.unwrap().to_vec::<i64>()).collect();
    assert_eq!(order, batches.clone().shuffled(5).epoch().flat_map(|[x]| x.to_vec::<i64>()).collect::<Vec<_>>());
    let error = in_order().load_state_dict(&batches.state_dict()).unwrap_err();
    assert!(matches!(&error, Error::StateDict { missing, .. } if missing == &["seed"]), "{error}");
}

/// Samplers of one type with other weights, labels or ranks have another order.
#[test]
fn a_loader_does_not_continue_with_other_settings_of_its_sampler() {
    let loader = |sampler: Box<dyn Sampler>| {
        DataLoader::new(from_vec((0..12i64).collect()), LoaderOptions { batch_size: 4, ..Default::default() })
            .sampler(sampler)
    };
    let weighted = |first: f64| [&[first], &[1.0; 11][..]].concat();
    let labels = |first: i64| Tensor::arange(0i64, 12, 1).gt(first).to_dtype(DType::I64);
    let ranked = |rank| Box::new(DistributedSampler::new(RandomSampler::new(24), rank, 2));
    let samplers: [Box<dyn Fn() -> Box<dyn Sampler>>; 8] = [
        Box::new(|| Box::new(WeightedRandomSampler::with_replacement(&weighted(2.0), 12))),
        Box::new(|| Box::new(WeightedRandomSampler::with_replacement(&weighted(3.0), 12))),
        Box::new(|| Box::new(WeightedRandomSampler::without_replacement(&weighted(2.0), 12))),
        Box::new(|| Box::new(StratifiedSampler::new(&labels(3)))),
        Box::new(|| Box::new(StratifiedSampler::new(&labels(4)))),
        Box::new(|| ranked(0)),
        Box::new(|| ranked(1)),
        Box::new(|| Box::new(DistributedSampler::new(SequentialSampler::new(24), 0, 2))),
    ];
    for (i, saved) in samplers.iter().enumerate() {
        for (j, other) in samplers.iter().enumerate() {
            let loaded = loader(other()).load_state_dict(&loader(saved()).state_dict());
            assert_eq!(loaded.is_ok(), i == j, "samplers {i} and {j}: {loaded:?}");
        }
    }
    let error = loader(ranked(1)).load_state_dict(&loader(ranked(0)).state_dict()).unwrap_err();
    assert!(error.to_string().contains("has the same type but different settings"), "{error}");
}

#[test]
fn errors_and_panics_name_the_sample_and_do_not_end_the_epoch() {
    for workers in [0, 1, 3] {
        let data = from_fn(10, |index| match index {
            3 => Err(Error::invalid("read", "the record is damaged")),
            7 => panic!("index {index} is unlucky"),
            _ => Ok(index as f32),
        });
        let options = LoaderOptions { batch_size: 2, workers, ..Default::default() };
        let mut loader = DataLoader::new(data, options);
        for _ in 0..2 {
            let batches: Vec<Result<Tensor>> = loader.epoch().collect();
            let texts: Vec<String> = batches.iter().filter_map(|b| b.as_ref().err().map(Error::to_string)).collect();
            assert_eq!(texts.len(), 2, "{texts:?}");
            assert_eq!(texts[0], "sample 3: read: the record is damaged");
            assert!(texts[1].starts_with("sample 7: ") && texts[1].contains("index 7 is unlucky"), "{texts:?}");
            assert!(matches!(batches[1], Err(Error::Sample { index: 3, .. })));
            assert_eq!(batches[4].as_ref().unwrap().to_vec::<f32>(), [8.0, 9.0]);
        }
    }
}

/// A data set that counts its existing clones.
#[derive(Clone)]
struct Counted(#[allow(dead_code, reason = "its count is read")] Arc<()>);

impl Dataset for Counted {
    type Item = f32;

    fn len(&self) -> usize {
        100
    }

    fn get(&self, _: usize) -> Result<f32> {
        std::thread::sleep(Duration::from_micros(100));
        Ok(0.0)
    }
}

#[test]
fn threads_end_with_the_iterator_or_the_loader() {
    let alive = Arc::new(());
    let options = LoaderOptions { batch_size: 5, workers: 3, ..Default::default() };
    let mut loader = DataLoader::new(Counted(alive.clone()), options);
    assert_eq!(loader.epoch().take(2).count(), 2);
    assert_eq!(loader.position(), BatchPosition { epoch: 1, batch: 0 });
    assert_eq!(loader.epoch().count(), 20);
    let batches_after = loader.epoch();
    drop(loader);
    assert!(Arc::strong_count(&alive) > 1);
    assert_eq!(batches_after.count(), 20);
    assert_eq!(Arc::strong_count(&alive), 1, "a thread still owns the data set");
}

/// The workers begin with the next epoch before its iterator exists.
#[test]
fn workers_continue_with_the_next_epoch() {
    let read = Arc::new(AtomicUsize::new(0));
    let counter = read.clone();
    let data = from_fn(8, move |index| {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(index)
    });
    let options = LoaderOptions { batch_size: 2, workers: 2, prefetch_factor: 1, ..Default::default() };
    let mut loader = DataLoader::new(data, options);
    assert_eq!(loader.epoch().count(), 4);
    // Two batches of the next epoch are computed ahead.
    while read.load(Ordering::SeqCst) < 12 {
        std::thread::yield_now();
    }
    assert_eq!(loader.epoch().count(), 4);
    drop(loader);
    assert!(read.load(Ordering::SeqCst) <= 20);
}

/// The drop of an iterator waits for one sample of each worker, not for a batch.
#[test]
fn workers_end_between_two_samples() {
    let slow = Arc::new(AtomicUsize::new(0));
    let counter = slow.clone();
    // The samples after the first batch are slow.
    let sample = move |n: usize| {
        if n >= 5000 {
            counter.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(n)
    };
    let options = LoaderOptions { batch_size: 5000, workers: 2, ..Default::default() };
    let data = || from_fn(20_000, Ok).map(sample.clone());
    let records = || from_records(|_epoch| Ok((0..20_000usize).map(Ok))).map(sample.clone());
    // An epoch begins in its turn: its workers could otherwise compute all samples before the count begins.
    for is_stream in [false, true] {
        slow.store(0, Ordering::SeqCst);
        let mut epoch: Box<dyn Iterator<Item = Result<Tensor>>> = match is_stream {
            false => Box::new(DataLoader::new(data(), options).epoch()),
            true => Box::new(StreamLoader::new(records(), options).epoch()),
        };
        epoch.next().unwrap().unwrap();
        while slow.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        drop(epoch);
        let count = slow.load(Ordering::SeqCst);
        assert!(count < 4000, "the workers have computed {count} samples of batches of 5000");
    }
}

#[test]
fn batches_have_the_requested_sizes_and_devices() {
    let data = TensorDataset::new(&[Tensor::arange(0i64, 10, 1)]);
    let sizes = |options: LoaderOptions| -> Vec<usize> {
        let mut loader = DataLoader::new(data.clone(), options).to(Device::cpu());
        assert_eq!((loader.len(), loader.samples()), (loader.epoch().len(), 10));
        loader.epoch().map(|batch| batch.unwrap()[0].size()).collect()
    };
    assert_eq!(sizes(LoaderOptions { batch_size: 4, ..Default::default() }), [4, 4, 2]);
    assert_eq!(sizes(LoaderOptions { batch_size: 4, drop_last: true, ..Default::default() }), [4, 4]);
    assert_eq!(sizes(LoaderOptions { batch_size: usize::MAX, ..Default::default() }), [10]);
    let batches = BucketBatchSampler::new(&[1, 5, 2, 9, 3, 1, 1, 2, 4, 8], 3);
    let mut loader = DataLoader::new(data.clone(), LoaderOptions::default()).batch_sampler(batches);
    assert_eq!(loader.epoch().map(|batch| batch.unwrap()[0].size()).sum::<usize>(), 10);
    let unshuffled = LoaderOptions { shuffle: false, ..options(2) };
    let mut loader = DataLoader::new(data, unshuffled).sampler(RandomSampler::new(7));
    assert_eq!(loader.epoch().map(|batch| batch.unwrap()[0].size()).collect::<Vec<_>>(), [4, 3]);
}

#[test]
fn invalid_options_and_orders_are_errors() {
    let data = || TensorDataset::new(&[Tensor::arange(0i64, 4, 1)]);
    for (options, text) in [
        (LoaderOptions { batch_size: 0, ..Default::default() }, "batch_size must be at least 1"),
        (LoaderOptions { prefetch_factor: 0, ..Default::default() }, "prefetch_factor must be from 1"),
        (LoaderOptions { prefetch_factor: usize::MAX, ..Default::default() }, "prefetch_factor must be from 1"),
        (LoaderOptions { workers: usize::MAX, ..Default::default() }, "workers must be from 0"),
    ] {
        let error = DataLoader::try_new(data(), options).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    // A sampler determines the order, so `shuffle` would be ignored.
    let shuffled = DataLoader::new(data(), LoaderOptions { shuffle: true, ..Default::default() });
    let error = shuffled.try_sampler(RandomSampler::new(4)).unwrap_err().to_string();
    assert!(error.contains("`shuffle` cannot be combined with a sampler"), "{error}");
    for options in [
        LoaderOptions { shuffle: true, ..Default::default() },
        LoaderOptions { batch_size: 2, ..Default::default() },
        LoaderOptions { drop_last: true, ..Default::default() },
    ] {
        let batches = BucketBatchSampler::new(&[1, 5, 2, 9], 3);
        let error = DataLoader::new(data(), options).try_batch_sampler(batches).unwrap_err().to_string();
        assert!(error.contains("a batch sampler"), "{error}");
    }
    let mut beyond = DataLoader::new(data(), LoaderOptions::default()).sampler(RandomSampler::new(5));
    let error = beyond.try_epoch().map(drop).unwrap_err().to_string();
    assert!(error.contains("index 4 for a data set of 4 samples"), "{error}");
    let mut empty = DataLoader::new(data(), LoaderOptions { batch_size: 5, drop_last: true, ..Default::default() });
    assert!(empty.is_empty());
    assert!(empty.try_epoch().map(drop).unwrap_err().to_string().contains("has no batch"));
    // The sizes of the samples differ.
    let data = from_fn(2, |index| Ok(Tensor::zeros([index + 1], DType::F32)));
    let mut loader = DataLoader::new(data, LoaderOptions { batch_size: 2, ..Default::default() });
    let error = loader.epoch().next().unwrap().unwrap_err().to_string();
    assert!(error.contains("the samples of a batch must have the same shape"), "{error}");
}

#[test]
fn samples_of_every_kind_are_collated() {
    #[derive(Collate)]
    struct Sample {
        image: Tensor,
        class: usize,
        name: String,
        point: ([f32; 2], Vec<i64>, bool),
    }
    let sample = |index: usize| Sample {
        image: Tensor::full([2, 2], index as f64, DType::F32),
        class: index,
        name: format!("sample {index}"),
        point: ([index as f32, 0.5], vec![1, 2, 3], index == 1),
    };
    let data = from_fn(2, move |index| Ok(sample(index)));
    let options = LoaderOptions { batch_size: 2, ..Default::default() };
    let batch: SampleBatch = DataLoader::new(data, options).to(Device::cpu()).epoch().next().unwrap().unwrap();
    assert_eq!(batch.image.shape().dims(), [2, 2, 2]);
    assert_eq!((batch.class.to_vec::<i64>(), batch.class.dtype()), (vec![0, 1], DType::I64));
    assert_eq!(batch.name, ["sample 0", "sample 1"]);
    assert_eq!(batch.point.0.to_vec::<f32>(), [0.0, 0.5, 1.0, 0.5]);
    assert_eq!((batch.point.1.shape().dims(), batch.point.2.to_vec::<bool>()), (&[2, 3][..], vec![false, true]));
    assert!(Vec::<f32>::collate(vec![vec![1.0], vec![]]).is_err());
    assert!(Tensor::collate(vec![]).is_err());
    assert!(Tensor::collate(vec![Tensor::from([1.0f32]), Tensor::from([1i64])]).is_err());
}

#[test]
fn sequences_are_padded() {
    let rows = [
        Tensor::ones([2, 3], DType::F32).requires_grad_(true),
        Tensor::ones([0, 3], DType::F32),
        Tensor::ones([4, 3], DType::F32),
    ];
    let padded = pad_sequences(&rows, -1.0).unwrap();
    assert_eq!(padded.values.shape().dims(), [3, 4, 3]);
    assert_eq!(padded.lengths.to_vec::<i64>(), [2, 0, 4]);
    let expected = ones_where(&padded.mask);
    assert_eq!(padded.values.to_vec::<f32>(), expected);
    assert!(!padded.values.requires_grad());
    let other = |shape: [usize; 2], dtype| vec![rows[0].clone(), Tensor::ones(shape, dtype)];
    for wrong in [vec![], vec![Tensor::from(1.0f32)], other([2, 4], DType::F32), other([2, 3], DType::F64)] {
        let error = pad_sequences(&wrong, 0.0).unwrap_err().to_string();
        assert!(error.starts_with("pad_sequences"), "{error}");
    }
}

/// Returns 1 where the mask `[N, L]` is true and -1 elsewhere, for 3 features.
fn ones_where(mask: &Tensor) -> Vec<f32> {
    mask.to_vec::<bool>().into_iter().flat_map(|is_set| [if is_set { 1.0 } else { -1.0 }; 3]).collect()
}

#[test]
fn a_panic_of_a_sampler_is_an_error() {
    struct Broken;
    impl Sampler for Broken {
        fn len(&self) -> usize {
            4
        }
        fn indices(&self, _: EpochSeed) -> Result<Vec<usize>> {
            panic!("no order")
        }
    }
    let samples = from_fn(4, |index| Ok(Tensor::from(index as f64)));
    let mut loader = DataLoader::new(samples, LoaderOptions::default()).sampler(Broken);
    let error = loader.try_epoch().map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("the sampler panicked: no order"), "{error}");
}

/// A sampler that fails for epoch 1 until `failures` calls for it have failed.
struct FailsInEpoch1 {
    kind: &'static str,
    failures: usize,
    calls: Arc<AtomicUsize>,
}

impl Sampler for FailsInEpoch1 {
    fn len(&self) -> usize {
        4
    }
    fn indices(&self, seed: EpochSeed) -> Result<Vec<usize>> {
        let order = vec![3, 1, 0, 2];
        if seed.epoch != 1 || self.calls.fetch_add(1, Ordering::Relaxed) >= self.failures {
            return Ok(order);
        }
        match self.kind {
            "panic" => panic!("no order"),
            "error" => Err(Error::InvalidArgument { op: "sampler", reason: "no order".into() }),
            "length" => Ok(order[1..].to_vec()),
            _ => Ok(vec![9; 4]),
        }
    }
}

#[test]
fn a_sampler_that_fails_in_a_later_epoch_is_an_error_of_the_call_that_begins_it() {
    for kind in ["panic", "error", "length", "index"] {
        let mut expected = None;
        for (workers, prefetch_factor) in [(0, 2), (1, 1), (2, 1), (2, 5)] {
            let calls = Arc::new(AtomicUsize::new(0));
            // The third call of `try_epoch` for the epoch succeeds. Workers compute its plan once ahead of the first.
            let failures = if workers == 0 { 2 } else { 3 };
            let options = LoaderOptions { batch_size: 2, workers, prefetch_factor, ..Default::default() };
            let sampler = FailsInEpoch1 { kind, failures, calls: calls.clone() };
            let mut loader = DataLoader::with_collate(from_fn(4, Ok), options, Ok).sampler(sampler);
            let read = |loader: &mut DataLoader<Vec<usize>>| loader.try_epoch()?.collect::<Result<Vec<_>>>();
            assert_eq!(read(&mut loader).unwrap(), [[3, 1], [0, 2]], "{kind}, {workers} workers");
            for _ in 0..2 {
                let error = loader.try_epoch().map(|_| ()).unwrap_err().to_string();
                assert_eq!(&error, expected.get_or_insert(error.clone()), "{kind}, {workers} workers");
            }
            assert_eq!(calls.load(Ordering::Relaxed), failures, "{kind}, {workers} workers");
            for epoch in 1..4 {
                assert_eq!(loader.position(), BatchPosition { epoch, batch: 0 });
                assert_eq!(read(&mut loader).unwrap(), [[3, 1], [0, 2]], "{kind}, {workers} workers, epoch {epoch}");
            }
        }
    }
}

/// An error of a collation names the samples that differ by their indices in the data set of the loader.
#[test]
fn an_error_of_a_collation_names_the_samples() {
    // Sample 5 has another shape, and sample 8 another dtype.
    let data = from_fn(12, |index| {
        let dtype = if index == 8 { DType::F64 } else { DType::F32 };
        Ok((Tensor::zeros([if index == 5 { 3 } else { 2 }], dtype), vec![0i64; if index == 11 { 1 } else { 4 }]))
    });
    let texts = |loader: &mut DataLoader<(Tensor, Tensor)>| -> Vec<String> {
        loader.epoch().filter_map(|batch| batch.err().map(|error| error.to_string())).collect()
    };
    for workers in [0, 2] {
        let options = LoaderOptions { batch_size: 3, workers, ..Default::default() };
        let errors = texts(&mut DataLoader::new(data.clone(), options));
        assert_eq!(errors.len(), 3, "{errors:?}");
        for (error, [first, other]) in errors.iter().zip([[3, 5], [6, 8], [9, 11]]) {
            assert!(error.contains(&format!("sample {first} and sample {other} differ: ")), "{error}");
        }
        // The indices of a subset are followed by those of its data set.
        let subset = data.clone().subset(vec![1, 0, 5]).unwrap();
        let errors = texts(&mut DataLoader::new(subset, options));
        let [first, other] =
            [(0, 1), (2, 5)].map(|(i, k)| format!("sample {i} (sample {k} of the underlying data set)"));
        assert!(errors[0].contains(&format!("{first} and {other} differ")), "{errors:?}");
        // A list that the program has reordered has no indices of the data set.
        let reversed =
            |samples: Vec<(Tensor, Vec<i64>)>| Tensor::collate(samples.into_iter().map(|(x, _)| x).rev().collect());
        let mut loader = DataLoader::with_collate(data.clone(), options, reversed);
        let error = loader.epoch().nth(1).unwrap().unwrap_err().to_string();
        assert!(error.contains("samples 0 and 1 of the batch differ"), "{error}");
        let error = loader.epoch().nth(2).unwrap().unwrap_err();
        assert!(matches!(&error, Error::DTypeMismatch { help, .. } if help.starts_with("samples 0 and 1")), "{error}");
    }
    let records = from_records(|_epoch| Ok((0..6usize).map(Ok))).map(|n| Ok(vec![0i64; if n == 4 { 1 } else { 2 }]));
    let options = LoaderOptions { batch_size: 3, workers: 1, ..Default::default() };
    let error = StreamLoader::new(records, options).epoch().nth(1).unwrap().unwrap_err().to_string();
    assert!(error.contains("sample 3 and sample 4 differ"), "{error}");
    let error = pad_sequences(&[Tensor::from([1i64]), Tensor::from([1i64]), Tensor::from([1.0f32])], 0).unwrap_err();
    assert!(error.to_string().contains("sequence 2: "), "{error}");
}

/// The error of a sample has its index in the data set of the loader, and in those from which that one is derived.
#[test]
fn errors_locate_samples_of_derived_data_sets() {
    let failing = |bad: usize| {
        from_fn(10, move |index| match index == bad {
            true => Err(Error::invalid("read", "the record is damaged")),
            false => Ok(index),
        })
    };
    let error_of = |loader: &mut DataLoader<Tensor>| loader.epoch().find_map(Result::err).unwrap();
    for workers in [0, 1] {
        let options = LoaderOptions { batch_size: 2, workers, ..Default::default() };
        let subset = failing(7).subset(vec![1, 4, 7]).unwrap().map(Ok);
        let error = error_of(&mut DataLoader::new(subset, options));
        let Error::Sample { index: 2, location: Some(location), .. } = &error else { panic!("{error}") };
        assert_eq!(location, "sample 7 of the underlying data set");
        let text = "sample 2 (sample 7 of the underlying data set): read: the record is damaged";
        assert_eq!(error.to_string(), text);

        let boxed: Box<dyn Dataset<Item = usize>> = Box::new(failing(99).concat(failing(3)).cached().unwrap());
        let nested = boxed.subset(vec![12, 13]).unwrap().subset(vec![1]).unwrap();
        let error = error_of(&mut DataLoader::new(nested, options)).to_string();
        let chain = "sample 0 (sample 1 of the underlying data set, sample 13 of the underlying data set, sample 3 of the \
                     second data set): read: the record is damaged";
        assert_eq!(error, chain);
        let [part, _] = random_split(failing(5), [10usize, 0], 1).unwrap();
        let index = part.indices().iter().position(|&index| index == 5).unwrap();
        let error = error_of(&mut DataLoader::new(part, options)).to_string();
        assert!(error.starts_with(&format!("sample {index} (sample 5 of the underlying data set): ")), "{error}");
    }
    assert_eq!(failing(0).concat(failing(0)).location(10).unwrap(), "sample 0 of the second data set");
    assert_eq!(failing(0).concat(failing(0)).location(9).unwrap(), "sample 9 of the first data set");
}

#[test]
fn a_panic_of_a_collation_names_the_samples() {
    for workers in [0, 2] {
        let options = LoaderOptions { batch_size: 2, workers, ..Default::default() };
        let mut loader = DataLoader::with_collate(from_fn(6, Ok), options, |samples: Vec<usize>| {
            assert_ne!(samples[0], 2, "no batch");
            Ok(samples)
        });
        let batches: Vec<_> = loader.epoch().collect();
        assert_eq!((batches[0].as_ref().unwrap(), batches[2].as_ref().unwrap()), (&vec![0, 1], &vec![4, 5]));
        let error = batches[1].as_ref().unwrap_err().to_string();
        assert!(error.contains("the batch of samples [2, 3] panicked: ") && error.contains("no batch"), "{error}");
    }
}
