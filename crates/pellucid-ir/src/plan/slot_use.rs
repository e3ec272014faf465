//! What the kernels of a plan require of the buffers of its slots.

use super::Plan;
use crate::error::{Error, Result};

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
                    return Err(Error::invalid(launch.kernel.name(), "an operand is in a slot that does not exist"));
                };
                slot.is_read_first |= reads && !slot.is_used;
                slot.is_used = true;
            }
        }
        Ok(uses)
    }

    /// Returns an error if a launch of a plan with these slots has fewer storages.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    #[inline]
    pub fn check_number(uses: &[SlotUse], storages: usize) -> Result<()> {
        if storages >= uses.len() { Ok(()) } else { Err(too_few(uses.len(), storages)) }
    }

    /// Returns an error if the plan cannot run on a buffer of `bytes` bytes, which has memory if `is_allocated`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    #[inline]
    pub fn check(&self, bytes: usize, is_allocated: bool) -> Result<()> {
        if bytes >= self.bytes && (is_allocated || !self.is_read_first) { Ok(()) } else { Err(self.unfit(bytes)) }
    }

    #[cold]
    fn unfit(&self, bytes: usize) -> Error {
        let reason = match bytes < self.bytes {
            true => format!("a slot must have {} bytes, got a buffer of {bytes} bytes", self.bytes),
            false => "an operand that the plan reads has no memory, because it has never been written".to_string(),
        };
        Error::invalid("launch", reason)
    }
}

#[cold]
fn too_few(slots: usize, storages: usize) -> Error {
    Error::invalid("launch", format!("the plan has {slots} slots, got {storages}"))
}
