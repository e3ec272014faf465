//! `StreamLoader`: equal batches for any number of workers, errors, resuming, the records of files.

use pellucid::data::{EpochSeed, IterableDataset, LoaderOptions, StreamLoader, TextLines, from_records};
use pellucid::nn::{Checkpoint, StateDict};
use pellucid::{DType, Device, Error, Result, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const RECORDS: usize = 23;

/// Returns records in an order that differs in each epoch, and samples that draw random numbers.
fn noisy() -> impl IterableDataset<Item = (Tensor, i64)> {
    from_records(|_seed| Ok((0..RECORDS as i64).map(Ok)))
        .shuffle_buffer(8)
        .map(|n| Ok((Tensor::rand([3], DType::F32) + n as f64, n)))
}

fn options(workers: usize) -> LoaderOptions {
    LoaderOptions { batch_size: 4, seed: Some(5), workers, ..Default::default() }
}

fn bytes(batch: Result<(Tensor, Tensor)>) -> (Vec<u8>, Vec<i64>) {
    let (x, n) = batch.unwrap();
    (x.to_bytes(), n.to_vec())
}

fn records<R>(data: &impl IterableDataset<Record = R>) -> Result<Vec<R>> {
    data.records(EpochSeed { seed: 0, epoch: 0 })?.collect()
}

#[test]
fn batches_are_equal_for_any_number_of_workers() {
    let epochs = |workers, prefetch_factor| {
        let mut loader = StreamLoader::new(noisy(), LoaderOptions { prefetch_factor, ..options(workers) });
        (0..3).map(|_| loader.epoch().map(bytes).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let expected = epochs(0, 1);
    for epoch in &expected {
        let mut numbers: Vec<i64> = epoch.iter().flat_map(|(_, numbers)| numbers.clone()).collect();
        assert_ne!(numbers, (0..RECORDS as i64).collect::<Vec<_>>());
        numbers.sort_unstable();
        assert_eq!(numbers, (0..RECORDS as i64).collect::<Vec<_>>());
    }
    assert_ne!(expected[0], expected[1]);
    for (workers, prefetch_factor) in [(1, 1), (1, 3), (2, 2), (7, 1), (7, 4)] {
        assert_eq!(epochs(workers, prefetch_factor), expected, "{workers} workers");
    }
}

#[test]
fn a_loader_resumes_inside_an_epoch() {
    for (workers, taken) in [(0, 0), (0, 2), (2, 5), (2, 6), (1, 1)] {
        let mut uninterrupted = StreamLoader::new(noisy(), options(0));
        let expected: Vec<_> = (0..2).map(|_| uninterrupted.epoch().map(bytes).collect::<Vec<_>>()).collect();
        let mut loader = StreamLoader::new(noisy(), options(workers));
        let mut iterator = loader.epoch();
        let before: Vec<_> = iterator.by_ref().take(taken).map(bytes).collect();
        let mut resumed = StreamLoader::new(noisy(), LoaderOptions { seed: Some(99), ..options(workers) });
        resumed.load_state_dict(&loader.state_dict()).unwrap();
        assert_eq!(resumed.position(), loader.position());
        let after: Vec<_> = resumed.epoch().map(bytes).collect();
        assert_eq!([before, after].concat(), expected[0], "{taken} batches before the snapshot");
        assert_eq!(resumed.epoch().map(bytes).collect::<Vec<_>>(), expected[1]);
    }
    let state = StreamLoader::new(noisy(), options(0)).state_dict();
    let other = StreamLoader::new(noisy(), LoaderOptions { batch_size: 5, ..options(0) });
    assert!(Checkpoint::new().batches(&other).load_state_dict(&StateDict::new()).is_err());
    let error = other.load_state_dict(&state).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { op: "stream_loader", .. }), "{error}");
}

#[test]
fn a_source_that_ends_before_the_saved_position_is_an_error() {
    let stream = |records: i64, workers| {
        StreamLoader::new(from_records(move |_seed| Ok((0..records).map(Ok))), options(workers))
    };
    for workers in [0, 2] {
        let mut loader = stream(RECORDS as i64, workers);
        let mut iterator = loader.epoch();
        assert_eq!(iterator.by_ref().take(4).count(), 4);
        let state = loader.state_dict();
        let mut shorter = stream(12, workers);
        shorter.load_state_dict(&state).unwrap();
        let batches: Vec<Result<Tensor>> = shorter.epoch().collect();
        let error = batches[0].as_ref().unwrap_err().to_string();
        assert!(batches.len() == 1 && error.contains("only 12 records"), "{error}");
        // The fourth batch may be smaller.
        let mut smaller = stream(13, workers);
        smaller.load_state_dict(&state).unwrap();
        assert_eq!(smaller.epoch().count(), 0);
    }
}

#[test]
fn errors_and_panics_name_the_record_and_do_not_end_the_epoch() {
    for workers in [0, 1, 3] {
        let data = from_records(|_seed| {
            Ok((0..12i64).map(|n| match n {
                5 => Err(Error::InvalidArgument { op: "source", reason: "the record is damaged".into() }),
                _ => Ok(n),
            }))
        });
        let data = data.map(|n| {
            assert!(n != 9, "the sample {n} is bad");
            Ok(n)
        });
        let mut loader = StreamLoader::new(data, options(workers));
        let batches: Vec<Result<Tensor>> = loader.epoch().collect();
        assert_eq!(batches.len(), 3);
        assert_eq!(batches[0].as_ref().unwrap().to_vec::<i64>(), [0, 1, 2, 3]);
        for (batch, position, text) in [(1, 5, "the record is damaged"), (2, 9, "the sample 9 is bad")] {
            let error = batches[batch].as_ref().unwrap_err();
            assert!(matches!(error, Error::Sample { index, .. } if *index == position), "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}

#[test]
fn a_panic_of_the_iterator_ends_the_epoch_with_an_error() {
    for workers in [0, 2] {
        let data = from_records(|_seed| {
            Ok((0..20i64).map(|n| {
                assert!(n < 10, "the connection is lost");
                Ok(n)
            }))
        });
        let mut loader = StreamLoader::new(data, options(workers));
        let batches: Vec<Result<Tensor>> = loader.epoch().collect();
        assert_eq!(batches.len(), 3, "{workers} workers");
        let error = batches[2].as_ref().unwrap_err().to_string();
        assert!(error.contains("the connection is lost"), "{error}");
        assert_eq!(loader.epoch().filter(|batch| batch.is_ok()).count(), 2);
    }
    let data = from_records(|_seed| -> Result<std::iter::Empty<Result<i64>>> { panic!("there is no source") });
    let error = StreamLoader::new(data, options(1)).try_epoch().err().unwrap().to_string();
    assert!(error.contains("there is no source"), "{error}");
}

#[test]
fn epochs_without_batches_and_invalid_options_are_errors() {
    let count = |n: i64| from_records(move |_seed| Ok((0..n).map(Ok)));
    for workers in [0, 2] {
        for (n, drop_last) in [(0, false), (3, true)] {
            let mut loader = StreamLoader::new(count(n), LoaderOptions { drop_last, ..options(workers) });
            let batches: Vec<Result<Tensor>> = loader.epoch().collect();
            assert_eq!(batches.len(), 1);
            let error = batches[0].as_ref().unwrap_err().to_string();
            assert!(error.contains("no batch"), "{error}");
        }
        let mut loader = StreamLoader::new(count(11), LoaderOptions { drop_last: true, ..options(workers) });
        assert_eq!(loader.epoch().map(|batch| batch.unwrap().size()).collect::<Vec<_>>(), [4, 4]);
    }
    for options in [
        LoaderOptions { shuffle: true, ..options(0) },
        LoaderOptions { batch_size: 0, ..options(0) },
        LoaderOptions { prefetch_factor: 0, ..options(0) },
        LoaderOptions { workers: usize::MAX, ..options(0) },
    ] {
        assert!(StreamLoader::<Tensor>::try_new(count(3), options).is_err(), "{options:?}");
    }
    assert!(matches!(count(3).try_shuffle_buffer(0), Err(Error::InvalidArgument { .. })));
    assert!(matches!(count(3).try_shard(2, 2), Err(Error::InvalidArgument { .. })));
}

/// The order of the records depends on the size of the buffer, the shard and the length, also of a nested data set.
#[test]
fn a_loader_does_not_continue_with_other_settings_of_its_stream() {
    let count = || from_records(|_seed| Ok((0..12i64).map(Ok)));
    let loaders: [Box<dyn Fn() -> StreamLoader<Tensor>>; 6] = [
        Box::new(move || StreamLoader::new(count(), options(0))),
        Box::new(move || StreamLoader::new(count().shuffle_buffer(3), options(0))),
        Box::new(move || StreamLoader::new(count().shuffle_buffer(4).map(|n| Ok(n + 1)), options(2))),
        Box::new(move || StreamLoader::new(count().shard(0, 2).shuffle_buffer(4), options(0))),
        Box::new(move || StreamLoader::new(count().shard(1, 2).shuffle_buffer(4), options(0))),
        Box::new(move || StreamLoader::new(count().take(4), options(0))),
    ];
    for (i, saved) in loaders.iter().enumerate() {
        for (j, other) in loaders.iter().enumerate() {
            let loaded = other().load_state_dict(&saved().state_dict());
            assert_eq!(loaded.is_ok(), i == j, "streams {i} and {j}: {loaded:?}");
        }
    }
}

#[test]
fn records_are_selected_and_reordered() {
    let count = || from_records(|_seed| Ok((0..).map(Ok::<i64, Error>)));
    assert_eq!(records(&count().take(3)).unwrap(), [0, 1, 2]);
    assert!(records(&count().take(0)).unwrap().is_empty());
    assert_eq!(records(&count().shard(1, 3).take(3)).unwrap(), [1, 4, 7]);
    assert_eq!(records(&count().take(8).shard(0, 3)).unwrap(), [0, 3, 6]);
    assert_eq!(records(&count().take(4).shuffle_buffer(1)).unwrap(), [0, 1, 2, 3]);
    // Each record is one of the next 10, and every order of a buffer of 3 records is drawn equally often.
    let shuffled = records(&count().take(100).shuffle_buffer(10)).unwrap();
    assert!(shuffled.iter().enumerate().all(|(i, &n)| n < i as i64 + 10));
    let mut counts = std::collections::BTreeMap::new();
    for epoch in 0..6000 {
        let order = count().take(3).shuffle_buffer(3).records(EpochSeed { seed: 7, epoch }).unwrap();
        *counts.entry(order.map(|n| n.unwrap()).collect::<Vec<_>>()).or_insert(0i32) += 1;
    }
    assert_eq!(counts.len(), 6);
    // The standard deviation is 29.
    assert!(counts.values().all(|n| (n - 1000).abs() < 150), "{counts:?}");
}

/// An infinite source is read only up to the capacity of the queues, and the threads end with the iterator.
#[test]
fn threads_end_with_the_iterator() {
    let read = Arc::new(AtomicUsize::new(0));
    let counted = read.clone();
    let data = from_records(move |_seed| {
        let counted = counted.clone();
        Ok(std::iter::repeat_with(move || Ok(counted.fetch_add(1, Ordering::Relaxed) as i64)))
    });
    let mut loader = StreamLoader::new(data, options(2));
    let batches: Vec<Result<Tensor>> = loader.epoch().take(10).collect();
    assert_eq!(batches.len(), 10);
    // The 10 batches of the loop, 2 for each of the 3 threads, and the batches in progress.
    assert!(read.load(Ordering::Relaxed) <= 4 * (10 + 6 + 3));
    drop(loader);
    assert_eq!(Arc::strong_count(&read), 1, "a thread still reads");
}

#[test]
fn batches_are_copied_to_a_device() {
    let mut loader = StreamLoader::new(noisy(), options(1)).to(Device::cpu());
    let expected: Vec<_> = StreamLoader::new(noisy(), options(0)).epoch().map(bytes).collect();
    assert_eq!(loader.epoch().map(bytes).collect::<Vec<_>>(), expected);
}

#[test]
fn lines_of_files_are_records() {
    let folder = std::env::temp_dir().join(format!("pellucid-stream-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let paths = [
        write("a.txt", b"\xef\xbb\xbfone\r\ntwo\n\nfour"),
        write("empty.txt", b""),
        write("b.txt", b"five\nsi\xffx\nseven\n"),
        folder.join("absent.txt"),
        write("c.txt", b"eight\n"),
    ];
    let lines = TextLines::new(&paths);
    let lines_read: Vec<_> = lines.records(EpochSeed { seed: 0, epoch: 0 }).unwrap().collect();
    let texts: Vec<&str> = lines_read.iter().filter_map(|line| line.as_deref().ok()).collect();
    assert_eq!(texts, ["one", "two", "", "four", "five", "seven", "eight"]);
    let errors: Vec<String> = lines_read.iter().filter_map(|line| line.as_ref().err()).map(|e| e.to_string()).collect();
    assert!(errors[0].contains("b.txt") && errors[0].contains("line 2"), "{}", errors[0]);
    assert!(errors[1].contains("absent.txt"), "{}", errors[1]);
    assert_eq!(errors.len(), 2);
    std::fs::remove_dir_all(folder).unwrap();
}
