//! Transposed tiles: blocks of adjacent rows in which the elements with the same index are contiguous in memory.
//!
//! Softmax over the first axis is an example: the elements of a row are far apart in memory, but elements of adjacent
//! rows with the same index are neighbours. A tile that stores them in this order is loaded and stored without
//! transposition, and a value per row is a vector.

use super::RowExecution;
use crate::program::fold::CHUNK;
use crate::program::kernel_schedule::{KernelSchedule, RowReduction};
use crate::program::prepared::PreparedProgram;
use crate::program::slot::Granularity;
use crate::strided::{StridedAxes, StridedAxis};

/// The size of the buffers of a tile, in bytes. They fit the second-level cache. Tiles that fit the first-level cache
/// would be so narrow that their runs in memory are too short.
const TILE_BYTES: usize = 96 << 10;

/// The minimum and the maximum number of rows of a tile: a full vector, and enough rows to amortize a loop call.
const WIDTHS: (usize, usize) = (16, 512);

/// The division of rows into transposed tiles.
pub(super) struct TransposedBlocks<'a> {
    /// The schedule for transposed tiles.
    pub(super) schedule: &'a KernelSchedule,
    /// The number of rows of a tile.
    pub(super) width: usize,
    /// The number of adjacent elements of a row that a loop processes together. Each value per row is repeated as many
    /// times.
    pub(super) repeats: usize,
    /// The axes of the elements in the order of a tile: the axes of a row, then the last axis that numbers the rows.
    pub(super) axes: StridedAxes,
}

impl<'a> TransposedBlocks<'a> {
    /// Returns the division, or `None` if tiles that store row after row are faster or the program does not support
    /// transposed tiles.
    ///
    /// `outer` are the axes that number the rows, and `inner` the axes of a row, with the strides of all operands.
    pub(super) fn new(
        program: &'a PreparedProgram,
        granularity: &dyn Fn(usize) -> Granularity,
        outer: &[StridedAxis],
        inner: &[StridedAxis],
        length: usize,
    ) -> Option<TransposedBlocks<'a>> {
        let (column, element) = (outer.last()?, inner.last()?);
        let per_row = program.inputs.iter().map(|i| i.per_row).chain(program.outputs.iter().map(|o| o.per_row));
        let total_stride = |axis: &StridedAxis| -> usize {
            let strides = axis.strides.iter().zip(per_row.clone()).filter(|(_, per_row)| !per_row);
            strides.map(|(stride, _)| stride.unsigned_abs()).sum()
        };
        let stride = total_stride(column);
        if column.len < WIDTHS.0 || !(1..=CHUNK).contains(&length) || stride == 0 || stride >= total_stride(element) {
            return None;
        }
        let schedule = program.schedule_transposed(granularity);
        let fits = TILE_BYTES / (length * schedule.buffer_width.max(1));
        let is_element = |slot: u16| schedule.granularity[slot as usize] == Granularity::PerElement;
        let outputs_are_elements = program.outputs.iter().all(|o| o.per_row || is_element(o.slot));
        if fits < WIDTHS.0 || !outputs_are_elements || !schedule.supports_transposed() {
            return None;
        }
        // A tile of the entire axis is often contiguous in memory and then not copied, so such a tile may be up to
        // twice as large.
        let fits = if column.len <= 2 * fits { fits.max(column.len) } else { fits };
        // All tiles of the axis have about the same width.
        let tiles = column.len.div_ceil(fits.min(WIDTHS.1));
        let width = column.len.div_ceil(tiles).next_multiple_of(8).min(column.len);
        let repeats = (WIDTHS.1 / width).clamp(1, length);
        let axes = inner.iter().chain([column]).cloned().collect();
        Some(TransposedBlocks { schedule, width, repeats, axes })
    }

    /// Returns true if every tile extends over the entire last axis that numbers the rows.
    pub(super) fn are_entire(&self) -> bool {
        self.axes.last().is_some_and(|column| column.len == self.width)
    }
}

impl RowExecution<'_> {
    /// Repeats the values per row of a transposed tile, `bytes` bytes at `values`, to the length of its lines.
    ///
    /// # Safety
    /// `values` is the cell of a slot, in which the values are initialized.
    pub(super) unsafe fn repeat_values(&self, values: *mut u8, bytes: usize) {
        let repeats = self.columns.as_ref().map_or(1, |columns| columns.repeats);
        for copy in 1..repeats {
            // SAFETY: a cell has memory for the values of a line (`cell_bytes`), which is `repeats` copies of the
            // values per row of a tile.
            unsafe { std::ptr::copy_nonoverlapping(values, values.add(copy * bytes), bytes) };
        }
    }

    /// Reduces each of the `rows` rows of a block.
    ///
    /// # Safety
    /// `addresses` has the addresses of the values of the block, and of cells for the results.
    pub(super) unsafe fn reduce_block(&self, reduction: &RowReduction, addresses: &[*mut u8], rows: usize) {
        let (into, from) = (addresses[reduction.result as usize], reduction.values(addresses));
        // SAFETY: the values of the block are `rows · length` elements, in the order of the tile, and a cell holds the
        // results (this method's contract). A transposed tile has no factors, and 1 to `CHUNK` elements per row.
        unsafe {
            if self.columns.is_none() {
                return reduction.fold.reduce_rows(into, from, rows, self.length);
            }
            reduction.fold.reduce_columns(into, from.values, self.length, rows);
            self.repeat_values(into, rows * reduction.fold.size);
        }
    }
}
