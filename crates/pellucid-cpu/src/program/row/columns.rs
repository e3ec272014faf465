//! Transposed tiles: blocks of adjacent rows in which the elements with the same index are contiguous in memory.
//!
//! Softmax over the first axis is an example: the elements of a row are far apart in memory, but elements of adjacent
//! rows with the same index are neighbours. A tile that stores them in this order is loaded and stored without
//! transposition, and a value per row is a vector.

use super::RowExecution;
use super::memory::must_stage;
use crate::program::execute::{LineStride, TileExtent};
use crate::program::fold::CHUNK;
use crate::program::kernel_schedule::{KernelSchedule, RowReduction};
use crate::program::prepared::{PreparedOutput, PreparedProgram};
use crate::program::slot::{Granularity, ValueSlot};
use crate::strided::{self, AccessPattern, StridedAxes, StridedAxis};
use pellucid_runtime::list::List;

/// The size of the buffers of a tile, in bytes. They fit the second-level cache. Tiles that fit the first-level cache
/// would be so narrow that their runs in memory are too short.
const TILE_BYTES: usize = 96 << 10;

/// The size of the values of a tile whose lines are used in the memory of the operands, in bytes. Wide tiles amortize
/// the loop calls for each line.
const LINE_TILE_BYTES: usize = 160 << 10;

/// The minimum number of rows of such a tile. In narrower tiles, which are copied, a loop processes several lines.
const MIN_LINE_WIDTH: usize = 64;

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
    /// The slots that are used in the memory of an operand whose lines are contiguous.
    pub(super) line_strides: List<LineStride, 4>,
}

impl<'a> TransposedBlocks<'a> {
    /// Returns the division, or `None` if tiles that store row after row are faster or the program does not support
    /// transposed tiles.
    ///
    /// `outer` are the axes that number the rows, and `inner` the axes of a row, with the strides of all operands.
    /// `bases` are the addresses of their first elements. `streams` is true if outputs are written with non-temporal
    /// stores.
    pub(super) fn new(
        program: &'a PreparedProgram,
        granularity: &dyn Fn(usize) -> Granularity,
        [outer, inner]: [&[StridedAxis]; 2],
        length: usize,
        bases: &[*mut u8],
        streams: bool,
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
        let width = tile_width(column.len, fits);
        let axes = inner.iter().chain([column]).cloned().collect();
        let mut blocks = TransposedBlocks { schedule, width, repeats: 1, axes, line_strides: List::new() };
        blocks.use_lines(program, bases, streams);
        if !blocks.line_strides.is_empty() && !blocks.are_entire() {
            let is_written = |o: &&PreparedOutput| blocks.uses_lines(o.slot);
            let written: usize = program.outputs.iter().filter(is_written).map(|o| o.size).sum();
            let value_bytes = schedule.buffer_width.saturating_sub(written).max(1);
            blocks.width = tile_width(column.len, fits.max(LINE_TILE_BYTES / (length * value_bytes)));
        }
        if blocks.width < MIN_LINE_WIDTH {
            (blocks.width, blocks.line_strides) = (width, List::new());
        }
        if blocks.line_strides.is_empty() {
            blocks.repeats = (WIDTHS.1 / blocks.width).clamp(1, length);
        }
        Some(blocks)
    }

    /// Determines which operands are used in place although a tile is not contiguous in them. Their lines must be
    /// contiguous and equally spaced, and their values neither converted nor copied; outputs must not be written with
    /// non-temporal stores.
    fn use_lines(&mut self, program: &PreparedProgram, bases: &[*mut u8], streams: bool) {
        let [element, column] = &self.axes[..] else { return };
        let inputs = program.inputs.len();
        let has_lines = |k: usize, size: usize| {
            let is_tile = self.are_entire() && strided::access_pattern(&self.axes, k, size) == AccessPattern::Dense;
            !is_tile && column.strides[k] == size as isize && element.strides[k] != 0
        };
        let is_used_input = |k: usize| {
            let input = &program.inputs[k];
            let is_stored = program.outputs.iter().any(|o| o.slot as usize == k);
            let is_direct = !input.per_row && input.load.is_none() && !is_stored;
            is_direct && has_lines(k, input.size) && !must_stage(program, self.schedule, bases, k)
        };
        let is_used_output = |o: usize| {
            let output = &program.outputs[o];
            let is_only = program.outputs.iter().filter(|other| other.slot == output.slot).count() == 1;
            let is_direct = is_only && !output.per_row && output.direct.is_some() && output.slot as usize >= inputs;
            is_direct && !streams && has_lines(inputs + o, output.size)
        };
        let used_inputs = (0..inputs).filter(|&k| is_used_input(k)).map(|k| (k as ValueSlot, k));
        let used_outputs = (0..program.outputs.len()).filter(|&o| is_used_output(o));
        let used_outputs = used_outputs.map(|o| (program.outputs[o].slot, inputs + o));
        let line = |(slot, k): (ValueSlot, usize)| LineStride { slot, stride: element.strides[k] };
        self.line_strides = used_inputs.chain(used_outputs).map(line).collect();
    }

    /// Returns true if a slot is used in the memory of an operand, line by line.
    pub(super) fn uses_lines(&self, slot: ValueSlot) -> bool {
        self.line_strides.iter().any(|line| line.slot == slot)
    }

    /// Returns true if every tile extends over the entire last axis that numbers the rows.
    pub(super) fn are_entire(&self) -> bool {
        self.axes.last().is_some_and(|column| column.len == self.width)
    }
}

/// Returns the width of tiles of at most about `fits` rows, so that all tiles of an axis of length `len` have about the
/// same width.
fn tile_width(len: usize, fits: usize) -> usize {
    let tiles = len.div_ceil(fits.min(WIDTHS.1));
    len.div_ceil(tiles).next_multiple_of(8).min(len)
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

    /// Reduces each row of a block of the extent `tile`; there are `rows` rows.
    ///
    /// # Safety
    /// `addresses` has the addresses of the values of the block, and of cells for the results.
    pub(super) unsafe fn reduce_block(
        &self,
        reduction: &RowReduction,
        addresses: &[*mut u8],
        rows: usize,
        tile: &TileExtent<'_>,
    ) {
        let (into, from) = (addresses[reduction.result as usize], reduction.values(addresses));
        let size = reduction.fold.size;
        // SAFETY: the values of the block are `rows · length` elements, in the order of the tile, and a cell holds the
        // results (this method's contract). A transposed tile has no factors, and 1 to `CHUNK` elements per row. If
        // its lines have several elements of a row, the lines are adjacent.
        unsafe {
            let Some(columns) = &self.columns else {
                return reduction.fold.reduce_rows(into, from, rows, self.length);
            };
            let line = tile.line_stride(reduction.operand, size, Granularity::PerElement, &columns.line_strides);
            let stride = if columns.repeats == 1 { line } else { (rows * size) as isize };
            reduction.fold.reduce_columns(into, from.values, stride, self.length, rows);
            self.repeat_values(into, rows * size);
        }
    }
}
