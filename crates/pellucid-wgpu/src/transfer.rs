//! Copies between host and device, and waits. Device copies have offsets and sizes in full words; the rest is handled
//! here.

use crate::buffer::{UnwrittenBuffers, WgpuBuffer};
use crate::gpu::Gpu;
use pellucid_ir::backend::Buffer;
use pellucid_ir::{Error, Result};
use std::ops::Range;

/// The size of a word, the unit of device copies.
const WORD: usize = 4;

/// Copies `bytes` to the start of a buffer. The bytes that follow keep their values.
pub(crate) fn upload(gpu: &Gpu, bytes: &[u8], to: &WgpuBuffer) -> Result<()> {
    if bytes.len() > to.bytes() {
        let reason = format!("{} bytes do not fit into a buffer of {} bytes", bytes.len(), to.bytes());
        return Err(Error::invalid("upload", reason));
    }
    let unwritten = UnwrittenBuffers::new([to]);
    write_start(gpu, bytes, to).inspect_err(|_| unwritten.discard())
}

/// Writes `bytes` to the start of a buffer, which is large enough.
fn write_start(gpu: &Gpu, bytes: &[u8], to: &WgpuBuffer) -> Result<()> {
    let is_first = !to.is_allocated();
    let memory = &to.ensure()?;
    let (words, rest) = bytes.split_at(bytes.len() / WORD * WORD);
    let mut last = [0; WORD];
    if !rest.is_empty() && !is_first && bytes.len() < to.bytes() {
        gpu.read(memory, words.len()..words.len() + WORD, |old| last.copy_from_slice(old))?;
    }
    last[..rest.len()].copy_from_slice(rest);
    if !words.is_empty() {
        gpu.write(memory, 0, words)?;
    }
    if !rest.is_empty() {
        gpu.write(memory, words.len(), &last)?;
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

    /// Reads a range of bytes of a buffer, whose bounds are multiples of 4, after all recorded dispatches. Waits for
    /// the result and passes it to `receive`.
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
