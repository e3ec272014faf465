//! The access of a plan to its slots, and its requirements on their buffers.

use super::{Launch, Plan};
use crate::error::{Error, Result};

/// The access to a slot, which decides how a launch holds the borrow word of the storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotAccess {
    /// No kernel uses the slot.
    #[default]
    Unused,
    /// Kernels only read the slot.
    Read,
    /// A kernel writes the slot.
    Write,
}

/// Returns the access of the launches of a plan to each of its `slots` slots.
pub fn slot_access<'a>(slots: usize, launches: impl IntoIterator<Item = &'a Launch>) -> Vec<SlotAccess> {
    let mut access = vec![SlotAccess::Unused; slots];
    for launch in launches {
        let reads = launch.inputs.iter().map(|input| (input, SlotAccess::Read));
        for (operand, needed) in reads.chain(launch.outputs.iter().map(|output| (output, SlotAccess::Write))) {
            if let Some(slot) = access.get_mut(operand.slot) {
                *slot = needed.max(*slot);
            }
        }
    }
    access
}

/// How the kernels of a plan use a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotUse {
    /// The minimum size of the buffer in bytes.
    pub bytes: usize,
    /// Whether a kernel uses the slot.
    pub is_used: bool,
    /// Whether the first kernel that uses the slot reads it. The buffer must then have been written before the launch.
    pub is_read_first: bool,
}

impl SlotUse {
    /// Returns the use of each slot of a plan.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an operand in a slot that does not exist.
    pub fn from_plan(plan: &Plan) -> Result<Vec<SlotUse>> {
        let mut uses: Vec<SlotUse> = plan.slots.iter().map(|&bytes| SlotUse { bytes, ..SlotUse::default() }).collect();
        for launch in &plan.launches {
            let state_outputs = launch.kernel.info().state_outputs;
            for (k, operand) in launch.operands().enumerate() {
                let reads = k < launch.inputs.len() + state_outputs && operand.layout.shape().size() > 0;
                let Some(slot) = uses.get_mut(operand.slot) else {
                    let reason =
                        format!("an operand is in slot {}, but the plan has {} slots", operand.slot, plan.slots.len());
                    return Err(Error::invalid(launch.kernel.name(), reason));
                };
                slot.is_read_first |= reads && !slot.is_used;
                slot.is_used = true;
            }
        }
        Ok(uses)
    }

    /// Returns an error if the plan cannot run on a buffer of `bytes` bytes, which has memory if `is_allocated`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    #[inline]
    pub fn check(&self, bytes: usize, is_allocated: bool) -> Result<()> {
        if bytes >= self.bytes && (is_allocated || !self.is_read_first) {
            Ok(())
        } else {
            Err(self.buffer_error(bytes))
        }
    }

    #[cold]
    fn buffer_error(&self, bytes: usize) -> Error {
        let reason = match bytes < self.bytes {
            true => format!("a slot needs a buffer of at least {} bytes, got {bytes} bytes", self.bytes),
            false => "an operand that the plan reads has never been written; write it before the launch".to_string(),
        };
        Error::invalid("launch", reason)
    }
}
