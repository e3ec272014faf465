//! The scratch memory of a task: a cell for the values per row of each slot, and buffers for elements. Inputs whose
//! memory is overwritten too early are copied to such buffers.

use super::RowExecution;
use crate::program::execute::{TileExtent, execute};
use crate::program::kernel_schedule::KernelSchedule;
use crate::program::prepared::PreparedProgram;
use crate::program::slot::Granularity;
use pellucid_runtime::list::List;
use pellucid_runtime::scratch::padded;

/// Returns true if input `k` must be copied to a buffer: an output with the same memory is written before the last read
/// of `k`.
pub(super) fn must_stage(program: &PreparedProgram, schedule: &KernelSchedule, bases: &[*mut u8], k: usize) -> bool {
    let slot = k as u16;
    let aliases = |o: usize| bases[program.inputs.len() + o] == bases[k];
    let stored = program.outputs.iter().any(|o| o.slot == slot);
    let last_phase = schedule.phases.iter().rposition(|p| p.reads.contains(&slot)).unwrap_or(0);
    let last_read = schedule.instrs.iter().rposition(|c| c.operands().contains(&slot)).unwrap_or(0);
    let folded = schedule.folds.iter().any(|f| f.operands().any(|s| s == slot));
    (0..program.outputs.len()).filter(|&o| aliases(o)).any(|o| {
        let output = &program.outputs[o];
        let result = output.slot as usize;
        let written = schedule.instrs.iter().position(|c| c.result == output.slot).unwrap_or(usize::MAX);
        let same_phase_fold = folded && schedule.phase.get(result).is_some_and(|&p| p <= last_phase);
        program.inputs[k].per_row
            || stored
            || written < last_read
            || schedule.phase[result] < last_phase
            || same_phase_fold
    })
}

impl RowExecution<'_> {
    /// Returns the bytes of the memory for the values per row of a slot.
    fn cell_bytes(&self) -> usize {
        let repeated = self.columns.as_ref().map_or(0, |columns| columns.width * columns.repeats);
        padded(self.screened.max(repeated) * 8)
    }

    /// Returns the bytes of scratch memory for [`RowExecution::place_slots`].
    pub(super) fn scratch_bytes(&self) -> usize {
        let cell = self.cell_bytes();
        let slots = self.schedule.granularity.len();
        let has_row_buffer =
            |&slot: &usize| self.schedule.granularity[slot] == Granularity::PerElement && self.keeps_row(slot);
        let row_buffers =
            if self.phased { (0..slots).filter(has_row_buffer).count() * padded(self.length * 8) } else { 0 };
        slots * cell + (self.tile * 8).max(cell) + padded(self.tile * self.schedule.buffer_width) + row_buffers
    }

    /// Lays out the memory of all slots in `scratch`, and computes the uniform values. Returns the address of every
    /// slot and of a buffer for unconverted elements.
    ///
    /// # Safety
    /// `scratch` is 64-byte aligned and valid for [`RowExecution::scratch_bytes`] bytes.
    pub(super) unsafe fn place_slots(&self, scratch: *mut u8) -> (List<*mut u8, 32>, *mut u8) {
        let slots = self.schedule.granularity.len();
        let cell = self.cell_bytes();
        let raw = scratch.wrapping_add(slots * cell);
        let buffers = raw.wrapping_add((self.tile * 8).max(cell));
        let mut row_buffer = buffers.wrapping_add(padded(self.tile * self.schedule.buffer_width));
        let mut slot_address = |slot: usize| match self.schedule.granularity[slot] {
            Granularity::PerElement if self.phased && self.keeps_row(slot) => {
                let address = row_buffer;
                row_buffer = row_buffer.wrapping_add(padded(self.length * 8));
                address
            }
            Granularity::PerElement => buffers.wrapping_add(self.schedule.buffer_offset[slot] * self.tile),
            _ => scratch.wrapping_add(slot * cell),
        };
        let addresses: List<*mut u8, 32> = (0..slots).map(&mut slot_address).collect();
        let first = self.program.inputs.len();
        for (address, value) in addresses[first..].iter().zip(&self.uniforms) {
            // SAFETY: a uniform has a cell of at least eight bytes in the scratch memory.
            unsafe { address.cast::<u64>().write(*value) };
        }
        // SAFETY: the operands and results of these instructions are uniform, and each has a cell in the scratch
        // memory.
        unsafe { execute(&self.schedule.instrs[..self.schedule.uniform], &addresses, &TileExtent::single_row(1)) };
        (addresses, raw)
    }

    /// Returns true if the buffer of a slot holds an entire row even if rows are divided into tiles.
    pub(super) fn keeps_row(&self, slot: usize) -> bool {
        self.schedule.is_live_across_phases[slot] && slot >= self.program.inputs.len()
            || self.staged.get(slot).copied().unwrap_or(false)
    }
}
