//! The status word of a device.
//!
//! Every shader first reads the status word and returns if it is not 0. The check of an index array is two dispatches:
//! the first finds the position of the first index out of bounds. If there is such an index, the second sets the status
//! word and stores the index. All later kernels then do nothing, until the host reads the status and resets it.
//!
//! The host reads the status after every submission with checks. Before that, it submits only the rest of the same
//! launch of a plan. So a failed check skips only kernels of the same `run` or the same launch of a plan, which returns
//! the error. The host also resets the status if it cannot read it.

use crate::device::GraphicsDevice;
use pellucid_ir::{Error, Result, lock};
use std::sync::Mutex;

/// The number of words of the status buffer.
const STATUS_WORDS: usize = 8;

/// The size of the status buffer in bytes.
const STATUS_BYTES: usize = 4 * STATUS_WORDS;

/// The word that is 0 while no check has failed, and the number of the failed operation otherwise.
pub(crate) const OPERATION: usize = 0;
/// The word with the flat position of the first index out of bounds in the array that is being checked, or
/// `0xffffffff`.
pub(crate) const POSITION: usize = 1;
/// The first of the two words of the index out of bounds.
pub(crate) const INDEX: usize = 2;
/// The word with the axis to which the index applies.
pub(crate) const AXIS: usize = 4;
/// The word with the length of the axis to which the index applies.
pub(crate) const LENGTH: usize = 5;

/// The word that counts the checks that passed since the last reset, modulo 2³².
pub(crate) const PASSED: usize = 6;

/// The contents of the status buffer after a reset.
const NO_FAILURE: [u32; STATUS_WORDS] = [0, u32::MAX, 0, 0, 0, 0, 0, 0];

/// The status buffer of a device, and the operations whose checks can fail.
pub(crate) struct StatusBuffer {
    pub(crate) buffer: wgpu::Buffer,
    pub(crate) operations: CheckedOperations,
}

impl StatusBuffer {
    /// Creates the buffer with the contents [`NO_FAILURE`].
    pub(crate) fn new(graphics: &GraphicsDevice) -> StatusBuffer {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
        let status = StatusBuffer {
            buffer: graphics.create_buffer("status", STATUS_BYTES, usage),
            operations: CheckedOperations::default(),
        };
        status.reset(graphics);
        status
    }

    /// Resets the status before the next submission. The graphics API reports errors to the error scopes of the caller.
    fn reset(&self, graphics: &GraphicsDevice) {
        graphics.queue.write_buffer(&self.buffer, 0, &NO_FAILURE.map(u32::to_ne_bytes).concat());
    }
}

/// Reads the status after submissions with checks.
pub(crate) struct StatusReader {
    /// The buffer to which the status is copied.
    copy: wgpu::Buffer,
    /// The number of checks that have passed since the last reset of the status, modulo 2³².
    passed: u32,
}

/// The failure of a submission with checks.
pub(crate) struct CheckFailure {
    /// The number of checks of the submission that passed before the one that failed, or `None` if the status could not
    /// be read.
    pub(crate) passed: Option<u32>,
    pub(crate) error: Error,
}

impl StatusReader {
    /// Creates the buffer for copies.
    pub(crate) fn new(graphics: &GraphicsDevice) -> StatusReader {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        StatusReader { copy: graphics.create_buffer("status copy", STATUS_BYTES, usage), passed: 0 }
    }

    /// Adds a copy of the status for [`confirm`](StatusReader::confirm). Until that call, no other
    /// call may submit work.
    pub(crate) fn copy(&self, encoder: &mut wgpu::CommandEncoder, status: &StatusBuffer) {
        encoder.copy_buffer_to_buffer(&status.buffer, 0, &self.copy, 0, STATUS_BYTES as u64);
    }

    /// Waits for the submission that copies the status, and evaluates it. `copied` is the result of the submission, and
    /// `checks` the number of checks since the last call.
    ///
    /// # Errors
    /// Returns the error of the submission, or of the first check that failed. The status is then reset: kernels after
    /// the failed check that were submitted before this call are skipped, and later ones run.
    pub(crate) fn confirm(
        &mut self,
        graphics: &GraphicsDevice,
        status: &StatusBuffer,
        checks: usize,
        copied: Result<wgpu::SubmissionIndex>,
    ) -> Result<(), CheckFailure> {
        let words = copied.and_then(|copied| graphics.read_staging(&self.copy, copied, read_words));
        let failure = match words.map(|words| (words[PASSED], status.operations.error(&words))) {
            Ok((_, None)) => {
                self.passed = self.passed.wrapping_add(checks as u32);
                return Ok(());
            }
            Ok((passed, Some(error))) => CheckFailure { passed: Some(passed.wrapping_sub(self.passed)), error },
            Err(error) => CheckFailure { passed: None, error },
        };
        self.passed = 0;
        let reset = graphics.scoped("reset", || status.reset(graphics));
        Err(reset.map_or_else(|error| CheckFailure { passed: None, error }, |()| failure))
    }
}

/// Returns the words of a copy of the status.
fn read_words(bytes: &[u8]) -> [u32; STATUS_WORDS] {
    let mut words = [0; STATUS_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
    words
}

/// The names of operations whose checks can fail, by their number minus 1.
#[derive(Debug, Default)]
pub(crate) struct CheckedOperations(Mutex<Vec<&'static str>>);

impl CheckedOperations {
    /// Returns the number of an operation.
    pub(crate) fn number(&self, op: &'static str) -> u32 {
        let mut operations = lock(&self.0);
        let existing = operations.iter().position(|&other| other == op);
        let index = existing.unwrap_or_else(|| {
            operations.push(op);
            operations.len() - 1
        });
        index as u32 + 1
    }

    /// Returns the error that the contents of a status buffer describe, if a check failed.
    fn error(&self, status: &[u32; STATUS_WORDS]) -> Option<Error> {
        let number = status[OPERATION].checked_sub(1)?;
        let op = lock(&self.0).get(number as usize).copied().unwrap_or_default();
        let index = (u64::from(status[INDEX + 1]) << 32 | u64::from(status[INDEX])) as i64;
        Some(Error::IndexOutOfBounds { op, index, axis: status[AXIS] as usize, len: status[LENGTH] as usize })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_describes_the_error_of_its_operation() {
        let operations = CheckedOperations::default();
        assert_eq!(["gather", "scatter", "gather"].map(|op| operations.number(op)), [1, 2, 1]);
        assert_eq!(operations.error(&NO_FAILURE), None);
        let status = [2, 9, -5i32 as u32, u32::MAX, 1, 3, 0, 0];
        let expected = Error::IndexOutOfBounds { op: "scatter", index: -5, axis: 1, len: 3 };
        assert_eq!(operations.error(&status), Some(expected));
    }
}
