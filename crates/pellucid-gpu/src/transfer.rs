//! Copies between host and device. A compute API copies full words; the functions of this module also copy parts of
//! words.

use crate::api::ComputeApi;
use crate::buffer::{GpuBuffer, UnwrittenBuffers, WORD};
use crate::gpu::Gpu;
use pellucid_ir::backend::Buffer;
use pellucid_ir::{Error, Result};
use std::ops::Range;

/// Copies `bytes` to a buffer, starting at byte `offset`. The other bytes keep their values.
pub(crate) fn upload<A: ComputeApi>(gpu: &Gpu<A>, bytes: &[u8], to: &GpuBuffer<A>, offset: usize) -> Result<()> {
    let end = end_of_copy("upload", to, offset, bytes.len())?;
    let unwritten = UnwrittenBuffers::new([to]);
    write_range(gpu, bytes, to, offset..end).inspect_err(|_| unwritten.discard())
}

/// Writes `bytes` to a range of a buffer.
fn write_range<A: ComputeApi>(gpu: &Gpu<A>, bytes: &[u8], to: &GpuBuffer<A>, range: Range<usize>) -> Result<()> {
    let Range { start: offset, end } = range;
    let is_first = !to.is_allocated();
    let memory = &to.ensure()?;
    let (head, rest) = bytes.split_at((offset.next_multiple_of(WORD) - offset).min(bytes.len()));
    let (words, tail) = rest.split_at(rest.len() / WORD * WORD);
    // A word that the bytes fill in part keeps its other bytes.
    let write_part = |start: usize, part: &[u8]| {
        let (word, mut contents) = (start / WORD * WORD, [0; WORD]);
        if !is_first && (start > word || end < to.bytes()) {
            gpu.read(memory, word..word + WORD, |old| contents.copy_from_slice(old))?;
        }
        contents[start - word..][..part.len()].copy_from_slice(part);
        gpu.write(memory, word, &contents)
    };
    if !head.is_empty() {
        write_part(offset, head)?;
    }
    if !words.is_empty() {
        gpu.write(memory, offset + head.len(), words)?;
    }
    if !tail.is_empty() {
        write_part(end - tail.len(), tail)?;
    }
    Ok(())
}

/// Returns the end of `len` bytes at `offset` in a buffer.
fn end_of_copy<A: ComputeApi>(op: &'static str, buffer: &GpuBuffer<A>, offset: usize, len: usize) -> Result<usize> {
    offset.checked_add(len).filter(|&end| end <= buffer.bytes()).ok_or_else(|| {
        let reason = format!("{len} bytes at offset {offset} exceed a buffer of {} bytes", buffer.bytes());
        Error::invalid(op, reason)
    })
}

/// Copies `into.len()` bytes of a buffer from byte `offset` to the host.
pub(crate) fn download<A: ComputeApi>(gpu: &Gpu<A>, from: &GpuBuffer<A>, offset: usize, into: &mut [u8]) -> Result<()> {
    let end = end_of_copy("download", from, offset, into.len())?;
    if into.is_empty() {
        return Ok(());
    }
    let no_value = || Error::invalid("download", "the buffer has no memory, because it has never been written");
    let memory = &from.memory().ok_or_else(no_value)?;
    let start = offset / WORD * WORD;
    gpu.read(memory, start..end.next_multiple_of(WORD), |words| {
        into.copy_from_slice(&words[offset - start..end - start]);
    })
}
