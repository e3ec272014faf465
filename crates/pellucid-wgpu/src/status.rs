//! The status word of a device.
//!
//! Every shader first reads the status word and returns if it is not 0. The check of an index array is two dispatches:
//! the first finds the position of the first index out of bounds, the second one sets the status word, and stores the
//! index, if there is one. All later kernels then do nothing, until the host reads the status and resets it.

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

#[cfg(test)]
mod tests {
    use super::*;

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
