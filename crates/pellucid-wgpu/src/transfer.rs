//! Copies between host and device, and waits. Device copies have offsets and sizes in whole words; the rest is handled
//! here.

use crate::buffer::WgpuBuffer;
use crate::device::{Gpu, lock};
use crate::status::{NO_FAILURE, PASSED, STATUS_BYTES, STATUS_WORDS};
use crate::submission::Recorded;
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
    let is_first = !to.is_allocated();
    let memory = &to.ensure()?;
    let (whole, rest) = bytes.split_at(bytes.len() / WORD * WORD);
    let mut last = [0; WORD];
    if !rest.is_empty() && !is_first && bytes.len() < to.bytes() {
        gpu.read(memory, whole.len()..whole.len() + WORD, |old| last.copy_from_slice(old))?;
    }
    last[..rest.len()].copy_from_slice(rest);
    if !whole.is_empty() {
        gpu.write(memory, 0, whole)?;
    }
    if !rest.is_empty() {
        gpu.write(memory, whole.len(), &last)?;
    }
    to.set_epoch(0);
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
    let mut computed = Ok(());
    gpu.read(memory, start..end.next_multiple_of(WORD), |words| {
        computed = gpu.check_computed("download", from);
        if computed.is_ok() {
            into.copy_from_slice(&words[offset - start..end - start]);
        }
    })?;
    computed
}

/// A copy to the host that has been submitted.
struct StartedRead {
    staging: wgpu::Buffer,
    /// The epoch of the copy.
    epoch: u64,
    /// The epoch of the last reset before the copy.
    last_reset: u64,
}

impl Gpu {
    /// Writes bytes, a multiple of 4, at `offset` of a buffer, after all recorded dispatches.
    pub(crate) fn write(&self, to: &wgpu::Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
        self.flush()?;
        self.scoped("upload", || self.queue().write_buffer(to, offset as u64, bytes))
    }

    /// Reads a range of bytes of a buffer, whose bounds are multiples of 4, after all recorded dispatches. Waits for the
    /// result and passes it to `receive`. If there are unconfirmed checks, reads the status in the same submission.
    ///
    /// # Errors
    /// The error of the first check that failed, if one failed. The status is then reset.
    pub(crate) fn read(&self, from: &wgpu::Buffer, range: Range<usize>, receive: impl FnOnce(&[u8])) -> Result<()> {
        let bytes = range.len();
        let read = self.begin_read(&mut lock(&self.recorded), Some((from, range)))?;
        // Other threads may record and submit meanwhile.
        self.poll()?;
        let view = self.mapped(&read)?;
        let (values, status) = view.split_at(bytes);
        self.confirm(&mut lock(&self.recorded), status, &read)?;
        receive(values);
        Ok(())
    }

    /// Waits until the results of all recorded checks are known. No other thread records, submits or reads meanwhile, so
    /// none can find the failure of a check that the caller has recorded.
    ///
    /// # Errors
    /// The error of the first check that failed, if one failed. The status is then reset.
    pub(crate) fn confirm_checks(&self, recorded: &mut Recorded) -> Result<()> {
        if !recorded.history.has_unconfirmed() {
            return Ok(());
        }
        let read = self.begin_read(recorded, None)?;
        self.poll()?;
        self.confirm(recorded, &self.mapped(&read)?, &read)
    }

    /// Submits the recorded dispatches and a copy of a range of a buffer, and of the status if there are unconfirmed
    /// checks.
    fn begin_read(&self, recorded: &mut Recorded, from: Option<(&wgpu::Buffer, Range<usize>)>) -> Result<StartedRead> {
        self.submit(recorded)?;
        let (epoch, last_reset) = (recorded.history.epoch(), recorded.history.last_reset());
        let bytes = from.as_ref().map_or(0, |(_, range)| range.len());
        let status_bytes = if recorded.history.has_unconfirmed() { STATUS_BYTES } else { 0 };
        let staging = self.scoped("download", || {
            let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
            let staging = self.create_buffer("staging", bytes + status_bytes, usage);
            let mut encoder = self.device().create_command_encoder(&Default::default());
            if let Some((buffer, range)) = from {
                encoder.copy_buffer_to_buffer(buffer, range.start as u64, &staging, 0, bytes as u64);
            }
            if status_bytes > 0 {
                encoder.copy_buffer_to_buffer(self.status(), 0, &staging, bytes as u64, STATUS_BYTES as u64);
            }
            self.queue().submit([encoder.finish()]);
            staging.map_async(wgpu::MapMode::Read, .., |_| {});
            staging
        })?;
        Ok(StartedRead { staging, epoch, last_reset })
    }

    /// Returns the contents of a staging buffer after a wait.
    fn mapped(&self, read: &StartedRead) -> Result<wgpu::BufferView> {
        let failed = |error: wgpu::MapRangeError| Error::DeviceUnavailable {
            device: self.name().into(),
            reason: error.to_string(),
        };
        read.staging.get_mapped_range(..).map_err(failed)
    }

    /// Evaluates the status after a read; it is empty if all checks were confirmed. After a failed check the status is
    /// reset, unless another thread has reset it since the read began.
    fn confirm(&self, recorded: &mut Recorded, status: &[u8], read: &StartedRead) -> Result<()> {
        if status.is_empty() {
            return Ok(());
        }
        let mut words = [0; STATUS_WORDS];
        for (word, bytes) in words.iter_mut().zip(status.chunks_exact(WORD)) {
            *word = bytes.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        }
        let error = self.check_error(&words);
        if recorded.history.last_reset() == read.last_reset {
            if error.is_some() {
                // The kernels that are recorded now belong to those that are skipped.
                self.submit(recorded)?;
                let reset = NO_FAILURE.map(u32::to_ne_bytes).concat();
                self.scoped("reset", || self.queue().write_buffer(self.status(), 0, &reset))?;
                recorded.history.fail(words[PASSED]);
            } else {
                recorded.history.confirm(read.epoch);
            }
        }
        error.map_or(Ok(()), Err)
    }

    /// Submits the recorded dispatches and waits until all work is done.
    ///
    /// # Errors
    /// If a check has failed, or the device fails.
    pub(crate) fn wait(&self) -> Result<()> {
        let mut recorded = lock(&self.recorded);
        self.confirm_checks(&mut recorded)?;
        self.submit(&mut recorded)?;
        drop(recorded);
        self.poll()
    }

    /// Waits until all submitted work is done.
    fn poll(&self) -> Result<()> {
        let polled = self.device().poll(wgpu::PollType::wait_indefinitely());
        polled.map_err(|error| Error::DeviceUnavailable { device: self.name().into(), reason: error.to_string() })?;
        self.check_failure()
    }

    /// Returns an error if the kernel that computes a buffer is known to have been skipped.
    pub(crate) fn check_computed(&self, op: &'static str, buffer: &WgpuBuffer) -> Result<()> {
        match lock(&self.recorded).history.is_skipped(buffer.epoch()) {
            true => Err(Error::NotComputed { op }),
            false => Ok(()),
        }
    }
}
