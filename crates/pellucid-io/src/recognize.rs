//! Recognition of other file formats by their first bytes.

/// Returns the format of a file and how to convert it to safetensors, or `None` for an unknown format.
pub(super) fn recognize(bytes: &[u8]) -> Option<String> {
    // The file is a damaged safetensors file whose header starts correctly.
    if bytes.get(8) == Some(&b'{') && bytes[4..8] == [0; 4] {
        return None;
    }
    let magic = MAGIC.iter().find(|(at, magic, ..)| bytes.get(*at..).is_some_and(|rest| rest.starts_with(magic)));
    let (format, help) = match magic {
        Some((_, [b'P', b'K', ..], ..)) => classify_zip(bytes),
        Some((_, _, format, help)) => (*format, *help),
        None if is_pickle(bytes) => ("a Python pickle, as older versions of torch.save write", TORCH),
        None if is_onnx(bytes) => ("an ONNX model", ONNX),
        None => classify_text(bytes)?,
    };
    Some(format!("this is {format}, not a safetensors file; {help}"))
}

/// Explains how to convert state dicts and entire models of PyTorch. PyTorch loads an entire model only without
/// `weights_only`, and safetensors rejects tensors that share memory or are not contiguous.
const TORCH: &str = "this Python code converts its state dict to safetensors: import torch, safetensors.torch; \
                     m = torch.load(path, map_location='cpu', weights_only=False); \
                     d = m.state_dict() if hasattr(m, 'state_dict') else m; \
                     safetensors.torch.save_file({k: v.clone(memory_format=torch.contiguous_format) for k, v in \
                     d.items()}, new_path) (weights_only=False runs code from the file: use True for an untrusted \
                     file, which must then contain a state dict, not an entire model)";
const NUMPY: &str = "in Python, safetensors.numpy.save_file({\"name\": numpy.load(path)}, new_path) converts it to \
                     safetensors";
const NPZ: &str = "in Python, safetensors.numpy.save_file(dict(numpy.load(path)), new_path) converts its arrays to \
                   safetensors";
const ONNX: &str = "in Python, safetensors.numpy.save_file({t.name: onnx.numpy_helper.to_array(t) for t in \
                    onnx.load(path).graph.initializer}, new_path) converts its weights to safetensors";
const UNPACK: &str = "unpack it first";
const CONVERT: &str = "read its arrays in Python and write them with safetensors.numpy.save_file";
const PUBLISHED: &str = "most publishers of such models also provide safetensors files";

/// Entries of (offset, magic bytes, format, how to obtain a safetensors file).
const MAGIC: [(usize, &[u8], &str, &str); 21] = [
    (0, b"PK\x03\x04", "", ""),
    (0, b"PK\x05\x06", "", ""),
    (0, b"\x93NUMPY", "a NumPy array (.npy)", NUMPY),
    (0, b"GGUF", "a GGUF model", PUBLISHED),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes", CONVERT),
    (4, b"TFL3", "a TensorFlow Lite model", CONVERT),
    (0, b"\x1f\x8b", "a gzip archive", UNPACK),
    (0, b"\xfd7zXZ\0", "an xz archive", UNPACK),
    (0, b"BZh", "a bzip2 archive", UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "a zstd archive", UNPACK),
    (0, b"\x04\x22\x4d\x18", "an lz4 archive", UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (257, b"ustar", "a tar archive", UNPACK),
    (0, b"PAR1", "a Parquet table", CONVERT),
    (0, b"ARROW1", "an Arrow table", CONVERT),
    (0, b"MATLAB 5.0", "a MATLAB file", CONVERT),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image", "load the file that contains the weights"),
    (0, b"\xff\xd8\xff", "a JPEG image", "load the file that contains the weights"),
    (0, b"\0\0\x08\x01", "an IDX label file", "data::Mnist reads digits from such files"),
    (0, b"\0\0\x08\x03", "an IDX image file", "data::Mnist reads digits from such files"),
    (0, b"\x7fELF", "a program", "load the file that contains the weights"),
];

/// Classifies a zip archive by its entry names, which are stored before each entry and at the end.
fn classify_zip(bytes: &[u8]) -> (&'static str, &'static str) {
    const SPAN: usize = 1 << 16;
    let ends = [&bytes[..bytes.len().min(SPAN)], &bytes[bytes.len().saturating_sub(SPAN)..]];
    let has = |name: &[u8]| ends.iter().any(|part| part.windows(name.len()).any(|window| window == name));
    if has(b"data.pkl") {
        ("a PyTorch checkpoint (.pt, .pth, .bin)", TORCH)
    } else if has(b".npy") {
        ("an archive of NumPy arrays (.npz)", NPZ)
    } else if has(b"model.weights.h5") {
        ("a Keras model", CONVERT)
    } else {
        ("a zip archive", UNPACK)
    }
}

/// Returns true for a pickle of protocol 2 or later, or one of protocol 0 that starts with a dictionary.
fn is_pickle(bytes: &[u8]) -> bool {
    matches!(bytes, [0x80, 2..=5, ..])
        && matches!(bytes.get(2), Some(b'\x8a' | b'}' | b']' | b'c' | b'(' | b'\x95' | b'X'))
        || bytes.starts_with(b"(dp0\n")
}

/// Returns true for the beginning of an ONNX `ModelProto` message: the field of its version, then another field.
fn is_onnx(bytes: &[u8]) -> bool {
    matches!(bytes, [0x08, 1..=32, 0x12 | 0x1a | 0x22 | 0x28 | 0x32 | 0x3a | 0x42 | 0x72, ..])
}

/// Classifies a text by its beginning.
fn classify_text(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    let start = &bytes[..bytes.len().min(512)];
    // The last character may be truncated.
    let start = match std::str::from_utf8(start) {
        Ok(start) => start,
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&start[..error.valid_up_to()]).ok()?,
        Err(_) => return None,
    };
    let start = start.trim_start_matches('\u{feff}').trim_start();
    if start.is_empty() || start.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')) {
        return None;
    }
    let lower = start.to_ascii_lowercase();
    Some(if start.starts_with("version https://git-lfs") {
        ("a pointer of Git LFS", "`git lfs pull` downloads the file itself")
    } else if lower.starts_with("<!doctype html") || lower.starts_with("<html") {
        ("an HTML page", "the download returned a page instead of the file")
    } else if start.starts_with('{') && bytes.windows(12).any(|window| window == b"\"weight_map\"") {
        (
            "the JSON index of a model in several files",
            "load each of the files that it names; extend one state dict with the others",
        )
    } else if start.starts_with(['{', '[']) {
        ("JSON", "load the file that contains the weights, usually with the extension .safetensors")
    } else {
        ("a text file", "load the file that contains the weights, usually with the extension .safetensors")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_recognized_by_their_first_bytes() {
        let zipped = |name: &str| [b"PK\x03\x04".as_slice(), &[0; 26], name.as_bytes(), &[0; 9]].concat();
        let tar = [&[0u8; 257][..], b"ustar\0"].concat();
        let cases: [(&[u8], &str); 27] = [
            (&zipped("archive/data.pkl"), "a PyTorch checkpoint"),
            (&zipped("weight.npy"), "an archive of NumPy arrays"),
            (&zipped("photo.jpg"), "a zip archive"),
            (b"PK\x05\x06\0\0", "a zip archive"),
            (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "a Python pickle"),
            (b"\x80\x04\x95\x10\0\0", "a Python pickle"),
            (b"\x80\x02}q\0.", "a Python pickle"),
            (b"(dp0\n", "a Python pickle"),
            (b"\x93NUMPY\x01\0v\0{'descr'", "a NumPy array"),
            (b"GGUF\x03\0\0\0", "a GGUF model"),
            (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
            (b"\x1f\x8b\x08\0", "a gzip archive"),
            (b"BZh91AY", "a bzip2 archive"),
            (b"\x28\xb5\x2f\xfd\0", "a zstd archive"),
            (&tar, "a tar archive"),
            (b"\x08\x07\x12\x07pytorch", "an ONNX model"),
            (b"\x08\x08:\xc2\x01", "an ONNX model"),
            (b"{\"a\": [1]}", "JSON"),
            (b" [1, 2]", "JSON"),
            (b"{\"metadata\": {}, \"weight_map\": {}}", "the JSON index"),
            (b"<!DOCTYPE html><p>", "an HTML page"),
            (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
            ("gewöhnlicher Text".as_bytes(), "a text"),
            (b"\x89PNG\r\n\x1a\n", "a PNG image"),
            (b"\0\0\x08\x03\0\0\xea\x60", "an IDX image file"),
            (b"ARROW1\0\0", "an Arrow table"),
            (b"\x1c\0\0\0TFL3", "a TensorFlow Lite model"),
        ];
        for (bytes, format) in cases {
            let found = recognize(bytes).unwrap_or_else(|| panic!("{format} must be recognized"));
            assert!(found.starts_with(&format!("this is {format}")) && found.contains("not a safetensors"), "{found}");
        }
        for bytes in
            [&b""[..], b"\0", b"\x08\0\0\0\0\0\0\0{}      ", b"\xff\xfe\xfd\xfc", b"\x02\x03\x01\0abc", b"   \n"]
        {
            assert_eq!(recognize(bytes), None, "{bytes:?} must not be recognized as a format");
        }
    }
}
