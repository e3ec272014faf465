//! Copies between host and device. Device copies have offsets and sizes in whole words; the rest is handled here.

use crate::buffer::WgpuBuffer;
use crate::device::Gpu;
use pellucid_ir::backend::Buffer;
use pellucid_ir::{Error, Result};

/// The size of a word, the unit of device copies.
const WORD: usize = 4;

/// Copies `bytes` to the start of a buffer. The bytes that follow keep their values.
pub(crate) fn upload(gpu: &Gpu, bytes: &[u8], to: &WgpuBuffer) -> Result<()> {
    if bytes.len() > to.bytes() {
        let reason = format!("{} bytes do not fit into a buffer of {} bytes", bytes.len(), to.bytes());
        return Err(Error::invalid("upload", reason));
    }
    let was_written = to.memory().is_some();
    let memory = to.ensure()?.raw();
    let (whole, rest) = bytes.split_at(bytes.len() / WORD * WORD);
    if !whole.is_empty() {
        gpu.write(memory, 0, whole)?;
    }
    if !rest.is_empty() {
        let mut word = [0; WORD];
        if was_written && bytes.len() < to.bytes() {
            gpu.read(memory, whole.len(), WORD, |old| word.copy_from_slice(old))?;
        }
        word[..rest.len()].copy_from_slice(rest);
        gpu.write(memory, whole.len(), &word)?;
    }
    Ok(())
}

/// Copies `into.len()` bytes of a buffer from byte `offset` to the host.
pub(crate) fn download(gpu: &Gpu, from: &WgpuBuffer, offset: usize, into: &mut [u8]) -> Result<()> {
    let end = offset.checked_add(into.len()).filter(|&end| end <= from.bytes()).ok_or_else(|| {
        let reason = format!("{} bytes at offset {offset} exceed a buffer of {} bytes", into.len(), from.bytes());
        Error::invalid("download", reason)
    })?;
    if into.is_empty() {
        return Ok(());
    }
    let no_value = || Error::invalid("download", "the buffer has no memory, because it has never been written");
    let memory = from.memory().ok_or_else(no_value)?.raw();
    let start = offset / WORD * WORD;
    gpu.read(memory, start, end.next_multiple_of(WORD) - start, |words| {
        into.copy_from_slice(&words[offset - start..end - start]);
    })
}
