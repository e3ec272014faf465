//! The evaluation of the [status](crate::status) by the host.
//!
//! The host reads the status after every submission with checks, before any other submission. So a failed check skips
//! only kernels of the same `run` or the same launch of a plan, which returns the error.

use crate::device::Gpu;
use crate::status::{NO_FAILURE, PASSED, STATUS_BYTES, STATUS_WORDS};
use crate::submission::Recorded;
use pellucid_ir::{Error, Result};

/// A failed check of a submission.
pub(crate) struct CheckFailure {
    /// The number of checks of the submission that passed before it.
    pub(crate) passed: usize,
    pub(crate) error: Error,
}

impl Gpu {
    /// Adds a copy of the status for [`Gpu::confirm_checks`]. The caller locks [`Recorded`] until it has called that.
    pub(crate) fn copy_status(&self, encoder: &mut wgpu::CommandEncoder, recorded: &Recorded) {
        encoder.copy_buffer_to_buffer(self.status(), 0, &recorded.status_copy, 0, STATUS_BYTES as u64);
    }

    /// Waits for the submission that copies the status, and evaluates it. `checks` is the number of checks since the
    /// last call.
    ///
    /// # Errors
    /// The error of the first check that failed. The status is then reset: all kernels that were submitted before this
    /// call are skipped, and later ones run.
    pub(crate) fn confirm_checks(
        &self,
        recorded: &mut Recorded,
        checks: usize,
        copied: wgpu::SubmissionIndex,
    ) -> Result<(), CheckFailure> {
        let broken = |error| CheckFailure { passed: 0, error };
        let status = self.map(&recorded.status_copy, copied, read_words).map_err(broken)?;
        let Some(error) = self.check_error(&status) else {
            recorded.passed_checks = recorded.passed_checks.wrapping_add(checks as u32);
            return Ok(());
        };
        let passed = status[PASSED].wrapping_sub(recorded.passed_checks) as usize;
        recorded.passed_checks = 0;
        let reset = NO_FAILURE.map(u32::to_ne_bytes).concat();
        self.scoped("reset", || self.queue().write_buffer(self.status(), 0, &reset)).map_err(broken)?;
        Err(CheckFailure { passed, error })
    }
}

/// Returns the words of a copy of the status.
fn read_words(bytes: &[u8]) -> [u32; STATUS_WORDS] {
    let mut words = [0; STATUS_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = bytes.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    }
    words
}
