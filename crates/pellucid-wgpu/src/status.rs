//! The status word of a device.
//!
//! Every shader first reads the status word and returns if it is not 0. The check of an index array is two dispatches:
//! the first finds the position of the first index out of bounds, the second one sets the status word, and stores the
//! index, if there is one. All later kernels then do nothing, until the host reads the status and resets it.
//!
//! The host reads the status when it waits: in a download, in `synchronize`, and in `run` of a kernel with checks. It
//! then knows which kernels were skipped from the number of checks that passed: every buffer stores its *epoch*, the
//! number of checks that were recorded before the kernel that wrote it.

use pellucid_ir::Error;

/// The number of words of the status buffer.
pub(crate) const STATUS_WORDS: usize = 8;

/// The size of the status buffer in bytes.
pub(crate) const STATUS_BYTES: usize = 4 * STATUS_WORDS;

/// The word that is 0 while no check has failed, else the number of the operation that failed.
pub(crate) const OPERATION: usize = 0;
/// The word with the flat position of the first index out of bounds in the array that is being checked, or
/// `0xffffffff`.
pub(crate) const POSITION: usize = 1;
/// The two words of the index out of bounds.
pub(crate) const INDEX: usize = 2;
/// The word with the axis to which the index applies.
pub(crate) const AXIS: usize = 4;
/// The word with the length of that axis.
pub(crate) const LENGTH: usize = 5;

/// The word that counts the checks that passed since the last reset, modulo 2³².
pub(crate) const PASSED: usize = 6;

/// The contents of the status buffer after a reset.
pub(crate) const NO_FAILURE: [u32; STATUS_WORDS] = [0, u32::MAX, 0, 0, 0, 0, 0, 0];

/// The names of operations whose checks can fail, by their number minus 1.
#[derive(Debug, Default)]
pub(crate) struct CheckedOperations(Vec<&'static str>);

impl CheckedOperations {
    /// Returns the number of an operation.
    pub(crate) fn number(&mut self, op: &'static str) -> u32 {
        let known = self.0.iter().position(|&known| known == op);
        let at = known.unwrap_or_else(|| {
            self.0.push(op);
            self.0.len() - 1
        });
        at as u32 + 1
    }

    /// Returns the error that the contents of a status buffer describe, if a check failed.
    pub(crate) fn error(&self, status: &[u32; STATUS_WORDS]) -> Option<Error> {
        let number = status[OPERATION].checked_sub(1)?;
        let op = self.0.get(number as usize).copied().unwrap_or_default();
        let index = (u64::from(status[INDEX + 1]) << 32 | u64::from(status[INDEX])) as i64;
        Some(Error::IndexOutOfBounds { op, index, axis: status[AXIS] as usize, len: status[LENGTH] as usize })
    }
}

/// The checks of a device in the order in which they were recorded.
///
/// The epoch is the number of recorded checks, plus one for each reset of the status. If the check with epoch f is the
/// first that fails, and the status is reset in epoch r, the kernels recorded in the epochs f..=r were skipped.
#[derive(Debug, Default)]
pub(crate) struct CheckHistory {
    epoch: u64,
    /// The epoch of the last reset.
    reset: u64,
    /// The checks up to this epoch are known to have passed, or their failure was returned.
    confirmed: u64,
    /// The first and the last epoch of skipped kernels, for each failure, in ascending order.
    skipped: Vec<(u64, u64)>,
}

impl CheckHistory {
    /// Counts recorded checks and returns the epoch of the kernels that follow.
    pub(crate) fn advance(&mut self, checks: u32) -> u64 {
        self.epoch += u64::from(checks);
        self.epoch
    }

    /// Returns the epoch of the kernels that are recorded now.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the epoch of the last reset.
    pub(crate) fn last_reset(&self) -> u64 {
        self.reset
    }

    /// Returns whether the results of recorded checks are unknown.
    pub(crate) fn has_unconfirmed(&self) -> bool {
        self.confirmed < self.epoch
    }

    /// Registers that all checks up to `epoch` have passed.
    pub(crate) fn confirm(&mut self, epoch: u64) {
        self.confirmed = self.confirmed.max(epoch);
    }

    /// Registers that `passed` checks since the last reset, modulo 2³², have passed and that the next one failed. The
    /// caller resets the status.
    pub(crate) fn fail(&mut self, passed: u32) {
        // At least the confirmed checks have passed.
        let known = (self.confirmed - self.reset) as u32;
        let first = self.confirmed + u64::from(passed.wrapping_sub(known)) + 1;
        self.skipped.push((first, self.epoch));
        self.epoch += 1;
        (self.reset, self.confirmed) = (self.epoch, self.epoch);
    }

    /// Returns the first epoch of the kernels that the last failure skipped.
    pub(crate) fn last_failure(&self) -> Option<u64> {
        self.skipped.last().map(|&(first, _)| first)
    }

    /// Returns whether the kernels of an epoch are known to have been skipped.
    pub(crate) fn is_skipped(&self, epoch: u64) -> bool {
        let after = self.skipped.partition_point(|&(first, _)| first <= epoch);
        after.checked_sub(1).is_some_and(|k| epoch <= self.skipped[k].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_from_the_failed_check_to_the_reset_were_skipped() {
        let mut history = CheckHistory::default();
        assert!(!history.has_unconfirmed());
        let epochs: Vec<u64> = (0..5).map(|_| history.advance(1)).collect();
        history.confirm(epochs[1]);
        assert!(history.has_unconfirmed());
        history.fail(3);
        let skipped: Vec<bool> = epochs.iter().map(|&epoch| history.is_skipped(epoch)).collect();
        assert_eq!(skipped, [false, false, false, true, true]);
        assert!(!history.has_unconfirmed() && !history.is_skipped(0));
        assert!(!history.is_skipped(history.epoch()), "kernels after the reset run");
        let second = [history.advance(2), history.advance(1)];
        history.fail(2);
        assert_eq!(second.map(|epoch| history.is_skipped(epoch)), [false, true]);
        assert!(!history.is_skipped(history.epoch()) && history.is_skipped(epochs[4]));
    }

    #[test]
    fn the_count_of_passed_checks_wraps() {
        let mut history = CheckHistory::default();
        let last = (0..5).fold(0, |_, _| history.advance(u32::MAX));
        history.confirm(last);
        let next = history.advance(2);
        history.fail((last + 1) as u32);
        assert!(history.is_skipped(next) && !history.is_skipped(last) && !history.is_skipped(next - 1));
    }

    #[test]
    fn a_status_describes_the_error_of_its_operation() {
        let mut operations = CheckedOperations::default();
        assert_eq!(["gather", "scatter", "gather"].map(|op| operations.number(op)), [1, 2, 1]);
        assert_eq!(operations.error(&NO_FAILURE), None);
        let status = [2, 9, -5i32 as u32, u32::MAX, 1, 3, 0, 0];
        let expected = Error::IndexOutOfBounds { op: "scatter", index: -5, axis: 1, len: 3 };
        assert_eq!(operations.error(&status), Some(expected));
    }
}
