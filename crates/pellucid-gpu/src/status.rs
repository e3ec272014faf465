//! The status word of a device.
//!
//! Every shader first reads the status word and returns if it is not 0. The check of an index array is two dispatches:
//! the first finds the position of the first index out of bounds. If there is such an index, the second sets the status
//! word and stores the index. All later kernels then do nothing, until the host reads the status and resets it.
//!
//! The host reads the status after every submission with checks. Before that, it submits only the rest of the same
//! launch of a plan. So a failed check skips only kernels of the same `run` or the same launch of a plan, which returns
//! the error. The host also resets the status if it cannot read it.

use pellucid_ir::{Error, lock};
use std::sync::Mutex;

/// The number of words of the status buffer.
pub const STATUS_WORDS: usize = 8;

/// The word that is 0 while no check has failed, and the number of the failed operation otherwise.
pub const OPERATION: usize = 0;
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

/// The word that no kernel writes. It is always 0.
pub const UNUSED_WORD: usize = 7;

/// The contents of the status buffer after a reset.
pub const NO_FAILURE: [u32; STATUS_WORDS] = [0, u32::MAX, 0, 0, 0, 0, 0, 0];

/// Returns the words of a copy of the status.
pub fn status_words(bytes: &[u8]) -> [u32; STATUS_WORDS] {
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
    pub(crate) fn error(&self, status: &[u32; STATUS_WORDS]) -> Option<Error> {
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
