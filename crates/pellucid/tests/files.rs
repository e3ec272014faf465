//! Files: saved tensors are loaded unchanged, and malformed files are errors.

mod scratch;

use pellucid::io;
use pellucid::nn::StateDict;
use pellucid::prelude::*;
use pellucid::{bf16, f16};
use scratch::{Scratch, names};
use std::fs;
use std::path::{Path, PathBuf};

fn reason(result: Result<StateDict>) -> String {
    match result {
        Err(Error::File { reason, .. }) => reason,
        other => panic!("expected Error::File, got {other:?}"),
    }
}

#[test]
fn every_dtype_round_trips_bit_for_bit() {
    let scratch = Scratch::new("dtypes");
    let nan = f32::from_bits(0x7fc1_2345);
    let tensors: StateDict = [
        ("bool", Tensor::from([true, false, true])),
        ("u8", Tensor::from([0u8, 255])),
        ("i8", Tensor::from([-128i8, 127])),
        ("i16", Tensor::from([i16::MIN, i16::MAX])),
        ("i32", Tensor::from([[i32::MIN], [i32::MAX]])),
        ("i64", Tensor::from([i64::MIN, i64::MAX])),
        ("f16", Tensor::from([f16::MAX, f16::NEG_INFINITY])),
        ("bf16", Tensor::from([bf16::MIN_POSITIVE, bf16::NAN])),
        ("f32", Tensor::from([[[-0.0f32, nan], [f32::MIN_POSITIVE / 2.0, f32::INFINITY]]])),
        ("f64", Tensor::from([std::f64::consts::PI])),
        ("scalar", Tensor::from(1.5f32)),
        ("none", Tensor::zeros([3, 0, 2], DType::F32)),
        ("a name.with, \"signs\" and ünïcode", Tensor::from([1.0f32])),
        ("view", Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]).t()),
    ]
    .map(|(name, tensor)| (name.to_string(), tensor))
    .into();
    let path = scratch.0.join("all.safetensors");
    io::save(&path, &tensors).unwrap();
    let loaded = io::load(&path).unwrap();
    assert_eq!(loaded.keys().collect::<Vec<_>>(), tensors.keys().collect::<Vec<_>>());
    for (name, tensor) in &tensors {
        let back = &loaded[name];
        assert_eq!((back.shape(), back.dtype()), (tensor.shape(), tensor.dtype()), "{name}: shape or dtype differs");
        assert_eq!(back.to_bytes(), tensor.to_bytes(), "{name}: the elements differ");
    }
    // Saving again writes the same file and leaves no temporary file.
    let bytes = fs::read(&path).unwrap();
    assert_eq!(io::to_bytes(&loaded).unwrap(), bytes);
    let in_memory = io::from_bytes(&bytes).unwrap();
    assert!(in_memory.iter().all(|(name, tensor)| tensor.to_bytes() == tensors[name].to_bytes()));
    io::save(&path, &loaded).unwrap();
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    assert!(io::load(scratch.file("no tensor", b"\x02\0\0\0\0\0\0\0{}")).unwrap().is_empty());
}

#[test]
fn a_failed_save_keeps_the_old_file() {
    let scratch = Scratch::new("rejected");
    let tensors: StateDict = [("a".to_string(), Tensor::from([1.0f32]))].into();
    let missing = scratch.0.join("no such directory").join("a.safetensors");
    let text = io::save(&missing, &tensors).unwrap_err().to_string();
    assert!(text.starts_with("save: ") && text.ends_with("the directory does not exist: create it"), "{text}");
    // The path is a directory.
    assert!(matches!(io::save(&scratch.0, &tensors), Err(Error::File { .. })));
    assert!(matches!(io::save(Path::new("/"), &tensors), Err(Error::File { .. })));
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0);
    assert!(scratch.0.is_dir());
}

/// Concatenates the length of the header, the header, and the data.
fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

#[test]
fn malformed_safetensors_are_rejected() {
    let scratch = Scratch::new("malformed");
    let one =
        |shape: &str, offsets: &str| format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#);
    let well = safetensors(&one("[2]", "[0,8]"), &[0; 8]);
    let cases = [
        ("empty", vec![]),
        ("short", vec![8, 0, 0]),
        ("header of 0", vec![0; 8]),
        ("header of 2^63", [&(1u64 << 63).to_le_bytes()[..], b"{}"].concat()),
        ("header of 2^64 - 8", [&(u64::MAX - 7).to_le_bytes()[..], b"{}"].concat()),
        ("not utf-8", [&4u64.to_le_bytes()[..], b"{\xff\xfe}"].concat()),
        ("not json", safetensors("hello", &[])),
        ("deep", safetensors(&"[".repeat(100_000), &[])),
        ("unknown dtype", safetensors(r#"{"a":{"dtype":"Q7","shape":[1],"data_offsets":[0,1]}}"#, &[0])),
        ("no such dtype here", safetensors(r#"{"a":{"dtype":"U16","shape":[1],"data_offsets":[0,2]}}"#, &[0; 2])),
        ("negative", safetensors(&one("[-1]", "[0,4]"), &[0; 4])),
        ("overflow to 0", safetensors(&one("[4294967296,4294967296]", "[0,0]"), &[])),
        ("four tebibytes", safetensors(&one("[1048576,1048576]", "[0,4398046511104]"), &[0; 4])),
        ("reversed", safetensors(&one("[1]", "[4,0]"), &[0; 4])),
        ("a hole", safetensors(&one("[1]", "[1,5]"), &[0; 5])),
        ("not the shape's size", safetensors(&one("[3]", "[0,8]"), &[0; 8])),
        ("one offset", safetensors(&one("[1]", "[0]"), &[0; 4])),
        ("no shape", safetensors(r#"{"a":{"dtype":"F32","data_offsets":[0,4]}}"#, &[0; 4])),
        ("truncated", well[..well.len() - 1].to_vec()),
    ];
    for (name, bytes) in cases {
        let why = reason(io::load(scratch.file("case", &bytes)));
        assert!(!why.is_empty(), "{name}: the error must have a reason");
    }
    for (dtype, bytes, remedy) in [
        ("F8_E4M3", 1, "x.to(torch.bfloat16)"),
        ("F8_E5M2", 1, "x.to(torch.bfloat16)"),
        ("U32", 4, "x.to(torch.int64)"),
    ] {
        let header = format!(r#"{{"a":{{"dtype":"{dtype}","shape":[1],"data_offsets":[0,{bytes}]}}}}"#);
        let why = reason(io::load(scratch.file("case", &safetensors(&header, &vec![0; bytes]))));
        assert!(why.contains(&format!("the tensor a has dtype {dtype}")) && why.contains(remedy), "{why}");
    }
    assert_eq!(io::load(scratch.file("well", &well)).unwrap()["a"].to_vec::<f32>(), [0.0, 0.0]);
    for length in [well.len() - 1, 20] {
        let why = reason(io::load(scratch.file("case", &well[..length])));
        assert!(why.contains("truncated") && why.contains("copy it again"), "{length}: {why}");
    }
    let error = io::load(scratch.0.join("missing")).unwrap_err();
    assert_eq!(error.operation(), Some("load"));
    let text = error.to_string();
    assert!(text.starts_with("load: ") && text.ends_with("missing: the file does not exist: check the path"), "{text}");
    let current = std::env::current_dir().unwrap().display().to_string();
    let text = reason(io::load("no such file.safetensors"));
    assert_eq!(text, format!("the file does not exist: check the path; the current directory is {current}"));
    #[cfg(unix)]
    assert!(reason(io::load("/dev/zero")).contains("device or a pipe"));
    assert!(reason(io::load(&scratch.0)).contains("directory: add a file name"));
    assert!(reason(io::load(scratch.file("case", b""))).contains("empty"));
    // Some writers store `true` as a byte other than 1.
    let bools = safetensors(r#"{"a":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]}}"#, &[2, 0, 255, 1]);
    let loaded = io::load(scratch.file("bools", &bools)).unwrap();
    assert_eq!(loaded["a"].to_vec::<bool>(), [true, false, true, true]);
    assert_eq!(loaded["a"].to_bytes(), [1, 0, 1, 1]);
}

#[test]
fn files_of_other_formats_are_recognized() {
    let scratch = Scratch::new("formats");
    let zip = [b"PK\x03\x04".as_slice(), &[0; 26], b"archive/data.pkl", &[0; 100]].concat();
    for (bytes, what, way) in [
        (zip.as_slice(), "PyTorch", "save_file"),
        // Entire models, which PyTorch does not load with `weights_only=True`.
        (zip.as_slice(), "weights_only=False", "m.state_dict() if hasattr(m, 'state_dict') else m"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "pickle", "torch.load"),
        (b"\x93NUMPY\x01\0v\0{'descr': '<f4'}", "NumPy", "numpy.load"),
        (b"GGUF\x03\0\0\0", "GGUF", "safetensors"),
        (b"\x08\x07\x12\x07pytorch", "ONNX", "initializer"),
        (b"{\"weight_map\": {}}", "index", "load each"),
        (b"\x1f\x8b\x08\0", "gzip", "unpack"),
    ] {
        let why = reason(io::load(scratch.file("case", bytes)));
        assert!(why.contains(what) && why.contains(way) && why.contains("not a safetensors file"), "{why}");
        assert!(!why.contains("header"), "{why}");
    }
    // The error for bytes of an unknown format differs from the error for a damaged file.
    assert!(reason(io::load(scratch.file("case", &[0xff; 64]))).contains("and not of another known format"));
    assert!(reason(io::load(scratch.file("case", &safetensors("{\"a\"", &[])))).contains("damaged"));
}

/// Malformed files with an index of the expected results; see `PELLUCID_MALFORMED`.
#[test]
fn a_corpus_of_malformed_files_is_rejected() {
    let Some(directory) = std::env::var_os("PELLUCID_MALFORMED").map(PathBuf::from) else { return };
    let index = fs::read_to_string(directory.join("index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    for entry in index.as_array().unwrap() {
        let text = |key: &str| entry[key].as_str().unwrap();
        let result = io::load(directory.join(text("file")));
        let is_accepted = match (text("format"), text("want")) {
            ("safetensors", "accept") => true,
            ("safetensors", "policy") => result.is_ok(),
            _ => false,
        };
        match result {
            Ok(_) => assert!(is_accepted, "the malformed file {} was loaded without an error", text("file")),
            Err(Error::File { reason, .. }) => {
                assert!(!is_accepted, "the valid file {} was rejected: {reason}", text("file"))
            }
            Err(other) => panic!("{}: expected Error::File, got: {other}", text("file")),
        }
    }
}

fn saved(value: f32, size: usize) -> StateDict {
    [("a".to_string(), Tensor::full([size], value, DType::F32))].into()
}

#[cfg(unix)]
#[test]
fn links_and_permissions_are_preserved() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let scratch = Scratch::new("links");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let inner = scratch.0.join("inner");
    fs::create_dir(&inner).unwrap();
    let target = inner.join("weights");
    io::save(&target, &saved(1.0, 3)).unwrap();
    let fresh = mode(&target);
    for own in [0o600, 0o640, 0o666, 0o755, 0o400] {
        fs::set_permissions(&target, fs::Permissions::from_mode(own)).unwrap();
        io::save(&target, &saved(own as f32, 3)).unwrap();
        assert_eq!((mode(&target), io::load(&target).unwrap()["a"].to_vec::<f32>()[0]), (own, own as f32));
    }
    // A save follows a chain of relative links, each of which is relative to its own directory.
    symlink("inner/second", scratch.0.join("first")).unwrap();
    symlink("weights", inner.join("second")).unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).unwrap();
    io::save(scratch.0.join("first"), &saved(2.0, 3)).unwrap();
    assert!(fs::symlink_metadata(scratch.0.join("first")).unwrap().is_symlink());
    assert!(fs::symlink_metadata(inner.join("second")).unwrap().is_symlink());
    assert_eq!((mode(&target), io::load(&target).unwrap()["a"].to_vec::<f32>()[0]), (0o600, 2.0));
    assert_eq!(
        (names(&scratch.0), names(&inner)),
        (vec!["first".into(), "inner".into()], vec!["second".into(), "weights".into()])
    );
    // Saving to a link to a missing file creates the target; a circular link is rejected.
    symlink("inner/new", scratch.0.join("third")).unwrap();
    io::save(scratch.0.join("third"), &saved(3.0, 3)).unwrap();
    assert_eq!((io::load(inner.join("new")).unwrap().len(), mode(&inner.join("new"))), (1, fresh));
    symlink("circle", scratch.0.join("circle")).unwrap();
    assert!(matches!(io::save(scratch.0.join("circle"), &saved(4.0, 3)), Err(Error::File { .. })));
    // A file that is not regular is not replaced.
    io::save("/dev/null", &saved(5.0, 3)).unwrap();
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}

#[test]
fn temporary_files_of_dead_writers_are_removed() {
    let scratch = Scratch::new("stale");
    let path = scratch.0.join("a.safetensors");
    let own = format!(".a.safetensors.{}-0.tmp", std::process::id());
    for stale in [".a.safetensors.1-0.tmp", ".a.safetensors.99999999-7.tmp", &own] {
        scratch.file(stale, b"half");
    }
    // Temporary files of other targets and files with similar names are kept.
    let others = [".b.safetensors.1-0.tmp", ".a.safetensors.tmp", ".a.safetensors.1-x.tmp", "a.safetensors.1-0.tmp"];
    others.iter().for_each(|name| _ = scratch.file(name, b"mine"));
    // A temporary file whose writer is alive and holds the lock is kept.
    let alive = fs::File::create(scratch.0.join(".a.safetensors.2-0.tmp")).unwrap();
    alive.lock().unwrap();
    io::save(&path, &saved(1.0, 3)).unwrap();
    let mut expected: Vec<String> = others.iter().map(|name| name.to_string()).collect();
    expected.extend(["a.safetensors".to_string(), ".a.safetensors.2-0.tmp".to_string()]);
    expected.sort();
    assert_eq!(names(&scratch.0), expected);
    drop(alive);
    io::save(&path, &saved(1.0, 3)).unwrap();
    assert!(!names(&scratch.0).contains(&".a.safetensors.2-0.tmp".to_string()));
}

/// Threads that save to one path interfere neither with each other nor with readers.
#[test]
fn several_writers_of_one_file() {
    let scratch = Scratch::new("writers");
    let path = scratch.0.join("a.safetensors");
    io::save(&path, &saved(0.0, 500)).unwrap();
    std::thread::scope(|scope| {
        for writer in 1..4 {
            let path = &path;
            scope.spawn(move || (0..15).for_each(|_| io::save(path, &saved(writer as f32, 500)).unwrap()));
        }
        for _ in 0..50 {
            let values = io::load(&path).unwrap()["a"].to_vec::<f32>();
            assert!(values.len() == 500 && values.iter().all(|v| *v == values[0]));
        }
    });
    assert_eq!(names(&scratch.0), ["a.safetensors"]);
}

const SAVE_LOOP: &str = "PELLUCID_TEST_SAVE_LOOP";

/// The process that `a_killed_save_leaves_a_complete_file` kills. As a test of its own, it does nothing.
#[test]
fn saves_until_it_is_killed() {
    let Some(path) = std::env::var_os(SAVE_LOOP) else { return };
    // The parent ends this process much earlier.
    (0..1_000_000).for_each(|k| io::save(&path, &saved(k as f32, 100_000)).unwrap());
}

#[test]
fn a_killed_save_leaves_a_complete_file() {
    let scratch = Scratch::new("killed");
    let path = scratch.0.join("a.safetensors");
    let mut left_behind = 0;
    for round in 0..10 {
        io::save(&path, &saved(-1.0, 3)).unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "saves_until_it_is_killed", "--test-threads=1"])
            .env(SAVE_LOOP, &path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while io::load(&path).unwrap()["a"].size() == 3 {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_micros(300 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        left_behind += names(&scratch.0).len() - 1;
        let values = io::load(&path).unwrap()["a"].to_vec::<f32>();
        assert!(values.len() == 100_000 && values.iter().all(|v| *v == values[0]));
    }
    io::save(&path, &saved(1.0, 3)).unwrap();
    assert_eq!(
        names(&scratch.0),
        ["a.safetensors"],
        "a save must remove the {left_behind} temporary files of killed processes"
    );
}

#[test]
fn batches_cover_the_data_set() {
    let x = Tensor::arange(0i64, 10, 1);
    let y = x.mul(10).reshape([10, 1]);
    let mut batches = Batches::new(&[&x, &y], 4);
    let plain: Vec<Vec<i64>> = batches.epoch().map(|[x, _]| x.to_vec()).collect();
    assert_eq!(plain, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
    // A write into a batch does not change the data set.
    let [first, _] = batches.epoch().next().unwrap();
    first.set(.., 7i64);
    assert_eq!((first.to_vec::<i64>(), x.to_vec::<i64>()), (vec![7; 4], (0..10).collect()));

    let mut shuffled = Batches::new(&[&x, &y], 4).shuffled(3);
    let mut again = shuffled.clone();
    for _ in 0..2 {
        let mut seen = Vec::new();
        for ([a, b], [twin, _]) in shuffled.epoch().zip(again.epoch()) {
            let (a, b) = (a.to_vec::<i64>(), b.to_vec::<i64>());
            assert!(a.iter().zip(&b).all(|(a, b)| a * 10 == *b));
            assert_eq!(a, twin.to_vec::<i64>());
            seen.extend(a);
        }
        assert_ne!(seen, (0..10).collect::<Vec<_>>());
        seen.sort_unstable();
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
    }

    // An epoch ends when its iterator is dropped at any position. An older iterator does not affect a later epoch.
    let position = |batches: &Batches| (batches.position().epoch, batches.position().batch);
    let mut broken = shuffled.clone();
    assert_eq!(position(&broken), (2, 0));
    assert_eq!(broken.epoch().take(2).count(), 2);
    assert_eq!(position(&broken), (3, 0));
    let mut first = broken.epoch();
    first.next();
    let mut second = broken.epoch();
    assert_eq!(position(&broken), (4, 0));
    second.next();
    drop(first);
    assert_eq!((position(&broken), second.len()), ((4, 1), 2));
    let rejected = batches.load_state_dict(&shuffled.state_dict()).unwrap_err().to_string();
    assert!(rejected.contains("has the order of `RandomSampler`"), "{rejected}");
    // A loaded position applies to the next epoch, even if an older iterator exists.
    shuffled.load_state_dict(&broken.state_dict()).unwrap();
    broken.load_state_dict(&shuffled.state_dict()).unwrap();
    let rest: Vec<Vec<i64>> = second.map(|[x, _]| x.to_vec()).collect();
    for batches in [&mut broken, &mut shuffled] {
        assert_eq!((position(batches), batches.clone().epoch().len()), ((4, 1), 2));
        assert_eq!(batches.epoch().map(|[x, _]| x.to_vec()).collect::<Vec<Vec<i64>>>(), rest);
        assert_eq!(position(batches), (5, 0));
    }

    // An epoch without batches would train nothing.
    let short = Batches::new(&[&x], 11).drop_last(true);
    assert!(short.is_empty() && matches!(short.clone().try_epoch().err(), Some(Error::InvalidArgument { .. })));
    assert!(std::panic::catch_unwind(move || drop({ short }.epoch())).is_err());
    let none = Tensor::zeros([0, 3], DType::F32);
    let why = Batches::new(&[&none], 4).try_epoch().err().unwrap().to_string();
    assert!(why.contains("0 samples"), "{why}");

    let mut even = Batches::new(&[&x], 4).drop_last(true);
    assert_eq!((even.len(), even.epoch().count()), (2, 2));
    for (other, help) in [(Tensor::from([1i64]), "narrow(0, 0, 1)"), (Tensor::from(1i64), "unsqueeze(0)")] {
        match Batches::try_new(&[&x, &other], 4) {
            Err(error @ Error::ShapeMismatch { .. }) => assert!(error.to_string().contains(help), "{error}"),
            result => panic!("{result:?}"),
        }
    }
    assert!(matches!(Batches::try_new(&[&x], 0), Err(Error::InvalidArgument { .. })));
    assert!(matches!(Batches::try_new(&[] as &[&Tensor; 0], 1), Err(Error::InvalidArgument { .. })));
}

#[cfg(feature = "data")]
mod mnist {
    use super::*;
    use pellucid::data::Mnist;

    const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/mnist10k");

    #[test]
    fn the_digits_of_this_repository_are_read() {
        let mnist = Mnist::load(DATA).unwrap();
        assert_eq!(mnist.train.images.shape().dims(), [8000, 28, 28]);
        assert_eq!(mnist.test.labels.shape().dims(), [2000]);
        assert_eq!((mnist.train.images.dtype(), mnist.train.labels.dtype()), (DType::F32, DType::I64));
        assert_eq!(mnist.test.images.max(..).item::<f32>(), 1.0);
        assert_eq!(mnist.test.images.min(..).item::<f32>(), 0.0);
        assert_eq!(mnist.train.labels.max(..).item::<i64>(), 9);
    }

    /// Returns the bytes of an IDX file.
    fn idx(dims: &[u32], data: &[u8]) -> Vec<u8> {
        let lengths = dims.iter().flat_map(|d| d.to_be_bytes());
        [0, 0, 8, dims.len() as u8].into_iter().chain(lengths).chain(data.iter().copied()).collect()
    }

    #[test]
    fn malformed_digits_are_rejected() {
        let scratch = Scratch::new("idx");
        let write = |images: &[u8], labels: &[u8]| {
            for part in ["train", "t10k"] {
                scratch.file(&format!("{part}-images-idx3-ubyte"), images);
                scratch.file(&format!("{part}-labels-idx1-ubyte"), labels);
            }
            Mnist::load(&scratch.0)
        };
        let (image, label) = (idx(&[1, 28, 28], &[7; 784]), idx(&[1], &[9]));
        assert_eq!(write(&image, &label).unwrap().test.labels.item::<i64>(), 9);
        for (images, labels) in [
            (idx(&[2, 28, 28], &[7; 2 * 784]), label.clone()),
            (idx(&[1, 28, 27], &[7; 28 * 27]), label.clone()),
            (idx(&[1, 28, 28], &[7; 783]), label.clone()),
            (idx(&[u32::MAX, 28, 28], &[7; 784]), label.clone()),
            (idx(&[1, 784], &[7; 784]), label.clone()),
            (image.clone(), idx(&[1], &[10])),
            (image.clone(), vec![]),
            (vec![0x1f, 0x8b, 8, 0, 0], label.clone()),
        ] {
            assert!(matches!(write(&images, &labels), Err(Error::File { .. })));
        }
        assert!(matches!(Mnist::load(scratch.0.join("missing")), Err(Error::File { .. })));
    }
}

#[test]
fn the_reserved_name_is_rejected_before_the_old_file_changes() {
    let path = std::env::temp_dir().join(format!("pellucid-reserved-{}.safetensors", std::process::id()));
    let mut state = StateDict::from([("w".to_string(), Tensor::from([1.0f32]))]);
    io::save(&path, &state).unwrap();
    state.insert("__metadata__".to_string(), Tensor::from([1.0f32]));
    let error = io::save(&path, &state).unwrap_err().to_string();
    assert!(error.contains("__metadata__") && error.contains("rename"), "{error}");
    assert_eq!(io::load(&path).unwrap().len(), 1);
    fs::remove_file(&path).unwrap();
}
