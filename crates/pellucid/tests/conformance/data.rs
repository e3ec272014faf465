//! Loads the reference data from a directory of safetensors files, which an environment variable names, or from the
//! compressed archive in the repository.

use crate::index::{self, Operation};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use pellucid::{DType, Tensor};
use safetensors::tensor::{TensorView, serialize};
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The environment variable that names a directory with `index.json` and the files that it lists.
const DIRECTORY: &str = "PELLUCID_OPINFO";
/// The key of the index in the metadata of an archive.
const INDEX: &str = "index";

/// An operation and the tensors of its samples, by their names in its file.
pub(crate) struct Case {
    pub(crate) operation: Operation,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

fn archive() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/data/opinfo.safetensors.gz")
}

/// Returns all operations of the test data.
pub(crate) fn load() -> Vec<Case> {
    match env::var_os(DIRECTORY) {
        Some(directory) => from_directory(Path::new(&directory)),
        None => from_archive(),
    }
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn from_directory(directory: &Path) -> Vec<Case> {
    let index = String::from_utf8(read(&directory.join("index.json"))).expect("index.json must be UTF-8");
    let case = |operation: Operation| {
        let bytes = read(&directory.join(&operation.file));
        let file =
            SafeTensors::deserialize(&bytes).expect("the file of the test data must be in the safetensors format");
        let tensors = file.iter().map(|(name, view)| (name.to_string(), tensor(&view))).collect();
        Case { operation, tensors }
    };
    index::parse(&index).into_iter().map(case).collect()
}

fn from_archive() -> Vec<Case> {
    let mut bytes = Vec::new();
    GzDecoder::new(&read(&archive())[..])
        .read_to_end(&mut bytes)
        .expect("the archive of the test data must be a gzip file");
    let (_, header) =
        SafeTensors::read_metadata(&bytes).expect("the file of the test data must be in the safetensors format");
    let index =
        &header.metadata().as_ref().expect("the safetensors header of the archive must contain metadata")[INDEX];
    let mut tensors: HashMap<String, BTreeMap<String, Tensor>> = HashMap::new();
    for (name, view) in
        SafeTensors::deserialize(&bytes).expect("the file of the test data must be in the safetensors format").iter()
    {
        let (file, name) =
            name.split_once('/').expect("a name in the archive must be a file and a tensor, separated by a slash");
        tensors.entry(file.to_string()).or_default().insert(name.to_string(), tensor(&view));
    }
    let case = |operation: Operation| {
        let tensors = tensors.remove(&operation.file).unwrap_or_default();
        Case { operation, tensors }
    };
    index::parse(index).into_iter().map(case).collect()
}

fn tensor(view: &TensorView<'_>) -> Tensor {
    let dtype = match view.dtype() {
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::U8,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        other => panic!("the dtype {other:?} of safetensors is not supported"),
    };
    Tensor::from_bytes(view.data(), dtype, view.shape())
}

/// Writes the archive from the directory that the environment variable names:
/// `PELLUCID_OPINFO=DIRECTORY cargo test -p pellucid --test conformance -- --ignored pack`.
#[test]
#[ignore = "writes the archive in the repository"]
fn pack() {
    let directory = PathBuf::from(env::var_os(DIRECTORY).expect("PELLUCID_OPINFO must name the directory of the data"));
    let index = String::from_utf8(read(&directory.join("index.json"))).expect("index.json must be UTF-8");
    let files: Vec<(String, Vec<u8>)> =
        index::parse(&index).into_iter().map(|o| (o.file.clone(), read(&directory.join(&o.file)))).collect();
    let mut views = Vec::new();
    for (file, bytes) in &files {
        let parsed =
            SafeTensors::deserialize(bytes).expect("the file of the test data must be in the safetensors format");
        views.extend(parsed.tensors().into_iter().map(|(name, view)| (format!("{file}/{name}"), view)));
    }
    let metadata = [(INDEX.to_string(), index)].into_iter().collect();
    let bytes = serialize(views, Some(metadata)).expect("serializing the tensors must succeed");
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&bytes).expect("a write to memory must succeed");
    fs::write(archive(), encoder.finish().expect("a write to memory must succeed"))
        .expect("writing the archive must succeed");
}
