//! The IDX format of MNIST: `00 00 type rank`, the lengths of the axes as big-endian `u32`, and the elements in
//! row-major order, usually compressed with gzip (LeCun, Cortes & Burges 1998).
//!
//! Files are untrusted: memory is allocated for the bytes that a file contains, not for the lengths that it claims.

use flate2::read::MultiGzDecoder;
use pellucid_tensor::{Error, Result};
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

/// The maximum size in bytes of all elements of a file: four times the largest file of the MNIST family.
const LIMIT: usize = 256 << 20;

/// An array of unsigned bytes.
#[derive(Debug, PartialEq)]
pub(crate) struct Idx {
    pub(crate) dims: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// Reads an IDX file of unsigned bytes with `rank` axes, gzip-compressed or not.
pub(crate) fn read(path: &Path, rank: usize) -> Result<Idx> {
    let op = "mnist";
    let open = || -> std::io::Result<_> {
        let mut file = File::open(path)?;
        let mut magic = Vec::new();
        (&mut file).take(2).read_to_end(&mut magic)?;
        file.rewind()?;
        Ok((file, magic == [0x1f, 0x8b]))
    };
    let (file, packed) = open().map_err(|error| Error::unreadable_file(op, path, &error))?;
    let file = BufReader::new(file);
    let parsed = if packed { parse(MultiGzDecoder::new(file), rank) } else { parse(file, rank) };
    parsed.map_err(|reason| Error::file(op, path, reason))
}

/// Parses an IDX array from a stream. The error message describes the defect of the file.
pub(crate) fn parse(mut stream: impl Read, rank: usize) -> std::result::Result<Idx, String> {
    let mut magic = [0; 4];
    stream.read_exact(&mut magic).map_err(|e| format!("no IDX header: {e}"))?;
    let [0, 0, kind, axes] = magic else {
        return Err(format!("not an IDX file: it starts with {magic:02x?}, not 00 00"));
    };
    if kind != 0x08 {
        return Err(format!("the file has elements of type {kind:#04x}; only unsigned bytes (0x08) are supported"));
    }
    if usize::from(axes) != rank {
        return Err(format!("the array of the file has {axes} axes, expected {rank}"));
    }
    let mut dims = Vec::with_capacity(rank);
    for axis in 0..rank {
        let mut len = [0; 4];
        stream.read_exact(&mut len).map_err(|e| format!("the header ends before the length of axis {axis}: {e}"))?;
        dims.push(u32::from_be_bytes(len) as usize);
    }
    let size = dims.iter().try_fold(1usize, |size, &d| size.checked_mul(d)).filter(|&size| size <= LIMIT);
    let size = size.ok_or_else(|| format!("the header declares more than {LIMIT} elements, {dims:?}"))?;
    // The vector grows with the bytes that are read. Reading one byte beyond the expected size detects surplus data.
    let mut bytes = Vec::new();
    stream
        .take(size as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| format!("the file is damaged after {} elements: {e}", bytes.len()))?;
    if bytes.len() != size {
        let actual = if bytes.len() > size { "more".to_string() } else { format!("{} elements", bytes.len()) };
        return Err(format!("the header declares {size} elements, {dims:?}, but the file contains {actual}"));
    }
    Ok(Idx { dims, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    fn parse_error(bytes: &[u8]) -> String {
        parse(bytes, 2).unwrap_err()
    }

    #[test]
    fn well_formed_bytes_are_read() {
        let bytes = [0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6];
        let idx = Idx { dims: vec![2, 3], bytes: vec![1, 2, 3, 4, 5, 6] };
        assert_eq!(parse(&bytes[..], 2).unwrap(), idx);
        let empty = [0, 0, 8, 2, 0, 0, 0, 0, 0, 0, 0, 3];
        assert!(parse(&empty[..], 2).unwrap().bytes.is_empty());
    }

    #[test]
    fn malformed_bytes_are_rejected_with_a_reason() {
        for (bytes, reason) in [
            (&b""[..], "no IDX header"),
            (&[0, 0, 8], "no IDX header"),
            (b"PK\x03\x04", "not an IDX file"),
            (&[0, 0, 13, 2], "type 0x0d"),
            (&[0, 0, 8, 3], "has 3 axes"),
            (&[0, 0, 8, 2, 0, 0, 0, 2, 0, 0], "length of axis 1"),
            (&[0, 0, 8, 2, 255, 255, 255, 255, 255, 255, 255, 255], "declares more than"),
            (&[0, 0, 8, 2, 15, 0, 0, 0, 0, 0, 0, 1, 7], "the file contains 1 elements"),
            (&[0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 1, 7, 7], "the file contains more"),
        ] {
            let actual = parse_error(bytes);
            assert!(actual.contains(reason), "{actual:?} does not contain {reason:?}");
        }
    }

    #[test]
    fn a_damaged_archive_is_rejected() {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&[0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6]).unwrap();
        let packed = packed.finish().unwrap();
        let cut = &packed[..packed.len() - 9];
        assert!(parse(MultiGzDecoder::new(&packed[..]), 2).is_ok());
        assert!(parse(MultiGzDecoder::new(cut), 2).is_err());
        let mut flipped = packed.clone();
        *flipped.last_mut().unwrap() ^= 1;
        assert!(parse(MultiGzDecoder::new(&flipped[..]), 2).is_err());
    }
}
