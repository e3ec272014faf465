//! Guarded phases: which rows need them, and how rows that need none are finished without reading elements.
//!
//! A phase is guarded by a mask with one value per row, which an earlier phase has computed. A row for which the mask
//! is true does not need the results of the phase. A phase runs on a block of rows if any of them needs it.
//!
//! If all outputs consist of values per row, and all phases without a guard compute only values per row, the rows are
//! screened first, up to [`MAX_SCREENED_ROWS`] at a time: the phases without a guard run on this group of rows. If no
//! row of the group needs a guarded phase, the group is finished. Otherwise it is computed block by block, and only
//! blocks with a row that needs a guarded phase read elements.

use super::{RowBlock, RowExecution};
use crate::program::execute::{TileExtent, execute};
use crate::program::kernel_schedule::{KernelSchedule, Phase};
use crate::program::prepared::PreparedProgram;
use crate::program::slot::{Granularity, ValueSlot};
use std::ops::Range;

/// The maximum number of rows that are screened at a time.
pub(super) const MAX_SCREENED_ROWS: usize = 256;

/// Returns true if rows can be screened: all outputs have one value per row, some phase has a guard, and all phases
/// without a guard compute values per row only.
pub(super) fn can_screen(program: &PreparedProgram, schedule: &KernelSchedule) -> bool {
    let is_per_row = |p: &Phase| {
        let head = &schedule.instrs[p.head.clone()];
        p.tiles.is_empty() && p.folds.is_empty() && head.iter().all(|i| i.granularity != Granularity::PerElement)
    };
    program.outputs.iter().all(|o| o.per_row)
        && schedule.phases.iter().any(|p| p.guard.is_some())
        && schedule.phases.iter().filter(|p| p.guard.is_none()).all(is_per_row)
}

impl RowExecution<'_> {
    /// Returns true if rows are screened before blocks of them are computed.
    pub(super) fn is_screened(&self) -> bool {
        self.screened > self.block
    }

    /// Runs the phases without a guard on rows, and reads only values per row. Returns false, without results, if a row
    /// needs another phase.
    ///
    /// # Safety
    /// The rows are within the operands and at most `screened`. `addresses` and `raw` are the addresses from
    /// [`RowExecution::place_slots`].
    pub(super) unsafe fn screen(&self, rows: Range<usize>, addresses: &mut [*mut u8], raw: *mut u8) -> bool {
        let block = RowBlock { first: rows.start, rows: rows.len(), starts: &[], transposed: &[] };
        let tile = &TileExtent { rows: rows.len(), scratch: raw, ..TileExtent::single_row(0) };
        // SAFETY: the rows are within the operands, and the cells of values per row hold `screened` values (the
        // contract of this method and of `place_slots`). The phases without a guard have no instruction on elements.
        unsafe {
            self.load_row_inputs(&block, addresses, raw);
            for phase in &self.schedule.phases {
                match phase.guard {
                    None => execute(&self.schedule.instrs[phase.head.clone()], addresses, tile),
                    Some(_) if self.can_skip(phase, rows.len(), addresses) => {}
                    Some(_) => return false,
                }
            }
            self.store_row_outputs(&block, addresses, raw);
        }
        true
    }

    /// Returns true if the phase has a guard and none of the `rows` rows needs the phase.
    ///
    /// # Safety
    /// `addresses` has the addresses of all values per row, and the phases before `phase` have been executed for these
    /// rows.
    #[inline]
    pub(super) unsafe fn can_skip(&self, phase: &Phase, rows: usize, addresses: &[*mut u8]) -> bool {
        // SAFETY: a mask has one byte per row, which an earlier phase has computed (the contract of this method).
        let mask = |slot: ValueSlot| unsafe { std::slice::from_raw_parts(addresses[slot as usize].cast_const(), rows) };
        phase.guard.is_some_and(|slot| !mask(slot).contains(&0))
    }

    /// Returns true if input `k` is loaded only when a guarded phase runs: rows are screened, only guarded phases read
    /// the input, and it is not staged.
    pub(super) fn is_guarded_input(&self, k: usize) -> bool {
        let reads = |p: &&Phase| p.reads.contains(&(k as ValueSlot));
        self.is_screened() && !self.staged[k] && self.schedule.phases.iter().filter(reads).all(|p| p.guard.is_some())
    }
}
