//! Weights and checkpoints in files: the safetensors format.
//!
//! A file consists of a JSON header (names, dtypes, shapes, offsets) and the elements in little-endian order. Loading
//! executes no code. Saved and loaded tensors are equal bit for bit, for every dtype.
//!
//! | module | contents |
//! | --- | --- |
//! | `checkpoint` | [`save_checkpoint`] and [`load_checkpoint`]: training runs |
//! | `recognize` | recognition of other file formats, for error messages |
//! | `replace` | atomic replacement of files |

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod checkpoint;
mod recognize;
mod replace;

pub use checkpoint::{load_checkpoint, load_checkpoint_parts, save_checkpoint};
#[doc(hidden)]
pub use replace::replace_file;

use pellucid_nn::StateDict;
use pellucid_tensor::{DType, Error, Result, Tensor};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The header entry for the metadata of the file. No tensor can have this name.
const RESERVED_NAME: &str = "__metadata__";

/// Writes named tensors to a safetensors file. An existing file is replaced.
///
/// The bytes are written to a temporary file in the same directory, which is then renamed. The path therefore always
/// names the complete old or new file, even after the process was killed. The next call for the same path removes a
/// temporary file that a killed process left behind. A symbolic link is followed, and an existing file keeps its
/// permissions. If the path names something other than a regular file, such as a pipe, it is written directly.
///
/// The bytes are on the disk (`fsync`) before the file is renamed, and on Unix the directory is written to the disk
/// after that. If the power fails during a save, the path names the complete old or new file. If it fails after the
/// save has returned, the path names the new file. Both hold if the file system and the disk keep the guarantees of
/// `fsync`.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("pellucid-doc-{}.safetensors", std::process::id()));
/// use pellucid::prelude::*;
/// use pellucid::io;
/// let model = Linear::new(3, 2);
/// io::save(&path, &model.state_dict())?;
/// let other = Linear::new(3, 2);
/// other.load_state_dict(&io::load(&path)?)?;
/// assert_eq!(other.weight.to_vec::<f32>(), model.weight.to_vec::<f32>());
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// [`Error::File`] if the file cannot be written, or a tensor is called `__metadata__`, which the format reserves; the
/// errors of reading a tensor.
pub fn save(path: impl AsRef<Path>, tensors: &StateDict) -> Result<()> {
    write("save", path.as_ref(), tensors, None)
}

/// Returns the bytes of the safetensors file that [`save`] writes, for programs without files.
///
/// ```
/// use pellucid::nn::{Linear, Module};
/// use pellucid::io;
/// let (model, other) = (Linear::new(3, 2), Linear::new(3, 2));
/// other.load_state_dict(&io::from_bytes(&io::to_bytes(&model.state_dict())?)?)?;
/// assert_eq!(other.weight.to_vec::<f32>(), model.weight.to_vec::<f32>());
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] if a tensor is called `__metadata__`, which the format reserves; the errors of reading a
/// tensor.
pub fn to_bytes(tensors: &StateDict) -> Result<Vec<u8>> {
    serialize(tensors, None, |reason| Error::invalid("to_bytes", reason))
}

/// Writes named tensors, and optionally a metadata entry (key, value).
fn write(op: &'static str, path: &Path, tensors: &StateDict, description: Option<(&str, &str)>) -> Result<()> {
    let bytes = serialize(tensors, description, |reason| Error::file(op, path, reason))?;
    replace_file(path, &bytes).map_err(|error| Error::unwritable_file(op, path, &error))?;
    tracing::info!(op, path = %path.display(), tensors = tensors.len(), bytes = bytes.len(), "wrote a file");
    Ok(())
}

/// Returns the bytes of a safetensors file with these tensors, and with a metadata entry if `description` is given.
/// `to_error` converts a reason to an error.
fn serialize(
    tensors: &StateDict,
    description: Option<(&str, &str)>,
    to_error: impl Fn(String) -> Error,
) -> Result<Vec<u8>> {
    if tensors.contains_key(RESERVED_NAME) {
        return Err(to_error(format!("the format reserves the name `{RESERVED_NAME}`; rename the tensor")));
    }
    let mut parts = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let mut bytes = tensor.try_to_bytes()?;
        to_little_endian(&mut bytes, tensor.dtype());
        parts.push((name, format_dtype(tensor.dtype()), tensor.shape().to_vec(), bytes));
    }
    let views = parts.iter().map(|(name, dtype, shape, bytes)| {
        TensorView::new(*dtype, shape.clone(), bytes).map(|view| (name.as_str(), view))
    });
    let views: Vec<_> = views.collect::<Result<_, _>>().map_err(|e| to_error(e.to_string()))?;
    let description = description.map(|(name, text)| [(name.to_string(), text.to_string())].into_iter().collect());
    safetensors::serialize(views, description).map_err(|e| to_error(e.to_string()))
}

/// Reads all tensors of a safetensors file.
///
/// For a model in several files, load each file and [extend](Extend::extend) one dictionary with the others.
/// [`rename_keys`](pellucid_nn::rename_keys) and [`concatenate_entries`](pellucid_nn::concatenate_entries) adapt the
/// names and tensors of files of other frameworks.
///
/// # Errors
/// [`Error::File`] for a file that cannot be read, is malformed, or contains a dtype that Pellucid does not support.
/// For a file of another format (PyTorch, NumPy, GGUF, ONNX, pickle, JSON, archives, ..) the error names the format and
/// how to convert it.
pub fn load(path: impl AsRef<Path>) -> Result<StateDict> {
    read("load", path.as_ref(), |_| Ok(()))
}

/// Reads all tensors from the bytes of a safetensors file, as [`load`] does.
///
/// # Errors
/// [`Error::InvalidArgument`] for the reasons for which [`load`] rejects a file.
pub fn from_bytes(bytes: &[u8]) -> Result<StateDict> {
    parse(bytes, |_| Ok(())).map_err(|reason| Error::invalid("from_bytes", reason))
}

/// The metadata of a file: strings by key.
type Description<'a> = BTreeMap<&'a str, &'a str>;

/// Reads all tensors of a file. `check` returns a reason to reject the metadata of the file.
fn read(
    op: &'static str,
    path: &Path,
    check: fn(&Description<'_>) -> std::result::Result<(), String>,
) -> Result<StateDict> {
    let to_error = |reason: String| Error::file(op, path, reason);
    let failed = |error: std::io::Error| Error::unreadable_file(op, path, &error);
    let kind = fs::metadata(path).map_err(failed)?;
    // A device or a pipe may have no end, and its length is unknown.
    if !kind.is_file() && !kind.is_dir() {
        return Err(to_error("the path is a device or a pipe: copy its contents to a file, and load the file".into()));
    }
    let bytes = fs::read(path).map_err(failed)?;
    let tensors = parse(&bytes, check).map_err(to_error)?;
    tracing::info!(op, path = %path.display(), tensors = tensors.len(), bytes = bytes.len(), "read a file");
    Ok(tensors)
}

/// Parses the tensors of a file. The error describes the defect.
fn parse(
    bytes: &[u8],
    check: fn(&Description<'_>) -> std::result::Result<(), String>,
) -> std::result::Result<StateDict, String> {
    let describe = |error: SafeTensorError| match bytes {
        [] => "the file is empty: copy or save it again".to_string(),
        _ => recognize::recognize(bytes).unwrap_or_else(|| match error {
            SafeTensorError::HeaderTooLarge | SafeTensorError::HeaderTooSmall => {
                "not a safetensors file, and not of another known format; save the tensors with io::save() or with \
                 save_file() of the Python package safetensors"
                    .to_string()
            }
            SafeTensorError::InvalidHeaderLength => "a truncated safetensors file: copy it again".to_string(),
            SafeTensorError::MetadataIncompleteBuffer => {
                "a damaged safetensors file: the length of the file differs from the length in its header, usually \
                 because the file is truncated; copy it again"
                    .to_string()
            }
            error => format!("a damaged safetensors file: {error}"),
        }),
    };
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(describe)?;
    check(&header.metadata().iter().flatten().map(|(name, text)| (name.as_str(), text.as_str())).collect())?;
    let file = SafeTensors::deserialize(bytes).map_err(describe)?;
    let mut tensors = StateDict::new();
    for (name, view) in file.iter() {
        let dtype = own_dtype(view.dtype())
            .ok_or_else(|| format!("the tensor {name} has dtype {:?}: {}", view.dtype(), remedy_for(view.dtype())))?;
        let mut data = Cow::Borrowed(view.data());
        // Some writers store `true` as a byte other than 1.
        if dtype == DType::Bool && data.iter().any(|&byte| byte > 1) {
            data.to_mut().iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        if cfg!(target_endian = "big") {
            to_little_endian(data.to_mut(), dtype);
        }
        let tensor = Tensor::try_from_bytes(&data, dtype, view.shape()).map_err(|e| format!("{name}: {e}"))?;
        tensors.insert(name.to_string(), tensor);
    }
    Ok(tensors)
}

/// Converts from native to little-endian byte order, or back.
fn to_little_endian(bytes: &mut [u8], dtype: DType) {
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
    }
}

fn format_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}

/// Returns why a dtype cannot be loaded, and a remedy. Pellucid has no complex numbers, no floats of 8 bits or fewer,
/// and no unsigned integers of more than 8 bits.
fn remedy_for(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::U16 | Dtype::U32 | Dtype::U64 => {
            "unsigned integers of more than 8 bits are not supported; convert the tensor in Python with \
             x.to(torch.int64) and save the file again"
        }
        Dtype::C64 => {
            "complex numbers are not supported; convert the tensor in Python with torch.view_as_real(x).contiguous() \
             and save the file again"
        }
        _ => {
            "floats of 8 bits or fewer are not supported; convert the tensor in Python with x.to(torch.bfloat16), \
             multiply it by its scales if the file has some, and save the file again"
        }
    }
}

fn own_dtype(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|&d| format_dtype(d) == dtype)
}
