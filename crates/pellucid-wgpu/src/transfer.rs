//! Copies between host and device, and waits. The graphics API copies full words; the functions of this module also
//! copy parts of words.

use crate::buffer::{UnwrittenBuffers, WgpuBuffer};
use crate::gpu::Gpu;
use pellucid_ir::backend::Buffer;
use pellucid_ir::{Error, Result};
use std::ops::Range;

/// The size in bytes of a word, the unit of copies of the graphics API.
const WORD: usize = 4;

/// Copies `bytes` to a buffer, starting at byte `offset`. The other bytes keep their values.
pub(crate) fn upload(gpu: &Gpu, bytes: &[u8], to: &WgpuBuffer, offset: usize) -> Result<()> {
    let end = end_of_copy("upload", to, offset, bytes.len())?;
    let unwritten = UnwrittenBuffers::new([to]);
    write_range(gpu, bytes, to, offset..end).inspect_err(|_| unwritten.discard())
}

/// Writes `bytes` to a range of a buffer.
fn write_range(gpu: &Gpu, bytes: &[u8], to: &WgpuBuffer, range: Range<usize>) -> Result<()> {
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
fn end_of_copy(op: &'static str, buffer: &WgpuBuffer, offset: usize, len: usize) -> Result<usize> {
    offset.checked_add(len).filter(|&end| end <= buffer.bytes()).ok_or_else(|| {
        let reason = format!("{len} bytes at offset {offset} exceed a buffer of {} bytes", buffer.bytes());
        Error::invalid(op, reason)
    })
}

/// Copies `into.len()` bytes of a buffer from byte `offset` to the host.
pub(crate) fn download(gpu: &Gpu, from: &WgpuBuffer, offset: usize, into: &mut [u8]) -> Result<()> {
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

impl Gpu {
    /// Writes bytes, a multiple of 4, at `offset` of a buffer, after all recorded dispatches.
    pub(crate) fn write(&self, to: &wgpu::Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
        self.flush()?;
        self.graphics.scoped("upload", || self.graphics.queue.write_buffer(to, offset as u64, bytes))
    }

    /// Reads the bytes in `range` of a buffer after all recorded dispatches. The bounds of the range must be multiples
    /// of 4. Waits for the result and passes it to `receive`.
    pub(crate) fn read(&self, from: &wgpu::Buffer, range: Range<usize>, receive: impl FnOnce(&[u8])) -> Result<()> {
        self.flush()?;
        let (staging, copied) = self.graphics.scoped("download", || {
            let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
            let staging = self.graphics.create_buffer("staging", range.len(), usage);
            let mut encoder = self.graphics.device.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(from, range.start as u64, &staging, 0, range.len() as u64);
            let copied = self.graphics.queue.submit([encoder.finish()]);
            (staging, copied)
        })?;
        self.graphics.read_staging(&staging, copied, receive)
    }

    /// Submits the recorded dispatches and waits until all work is done.
    pub(crate) fn wait(&self) -> Result<()> {
        self.flush()?;
        self.graphics.wait(wgpu::PollType::wait_indefinitely())
    }
}
