//! Reductions of transposed inputs, which are contiguous along a reduced axis before the last one.
//!
//! The elements of a sequence are reduced in row-major order, in which such an input is read with a large stride.
//! Therefore the input is transposed first, panel by panel, as for maps.
//!
//! If the values are the elements of the input and a row consists of entire blocks of the canonical order, the blocks
//! are first combined to one value for each lane, for many rows at a time. Only these values are transposed.

use super::{PreparedReduction, RESULTS, SequenceReduction};
use crate::program::evaluate::Evaluator;
use crate::program::fold::{FoldKernel, RunningFold};
use crate::program::loops::{LANES, ROWS};
use crate::program::prepared::PreparedInput;
use crate::program::transpose::{MIN_TRANSPOSE, is_transposed, transpose_matrix};
use crate::strided::{self, Cursor, StridedAxes, StridedAxis};
use pellucid_ir::Result;
use pellucid_runtime::list::List;
use pellucid_runtime::scratch::{MAX_STACK_BYTES, padded};
use pellucid_runtime::threads::GRAIN;
use pellucid_runtime::workspace::parallel_ranges_with_workspace;
use std::ops::Range;

/// The largest number of rows of a panel. The number of elements of a panel is a multiple of 128, because a running
/// reduction requires this of every part but the last.
const PANEL_ROWS: usize = 128;

/// The number of rows whose elements fill a cache line of the input, for elements of four bytes.
const LINE_ROWS: usize = 16;

/// The bytes of adjacent rows of the input whose blocks are combined together. Their lanes fit the first-level cache.
const RUN_BYTES: usize = 1024;

/// The maximum size of the values of the lanes of such rows, in bytes. They fit the second-level cache.
const MAX_LANES_BYTES: usize = 256 << 10;

/// The last two reduced axes, whose panels are transposed.
struct TransposedPanels<'a> {
    /// The axis along which the transposed inputs are contiguous.
    row: &'a StridedAxis,
    /// The last axis.
    column: &'a StridedAxis,
    /// The other reduced axes.
    outer: &'a [StridedAxis],
    /// The number of rows of a panel.
    rows: usize,
    /// For each input: true if it is transposed.
    is_transposed: List<bool, 8>,
}

/// Returns the number of rows of panels with `columns` columns and rows of `row_bytes` bytes: fewer for longer rows,
/// but enough for a multiple of 128 elements and to read full cache lines.
fn panel_rows(columns: usize, row_bytes: usize) -> usize {
    let fewest = (PANEL_ROWS >> columns.trailing_zeros().min(7)).max(LINE_ROWS);
    let mut rows = PANEL_ROWS;
    while rows > fewest && rows * row_bytes > MAX_STACK_BYTES / 2 {
        rows /= 2;
    }
    rows
}

impl SequenceReduction<'_> {
    /// Returns the panels of the reduction if it combines values, an input is transposed, both axes are long, and every
    /// part but the last can have a multiple of 128 elements.
    fn transposed_panels(&self) -> Option<TransposedPanels<'_>> {
        let [outer @ .., row, column] = &self.reduced[..] else { return None };
        let is_transposed =
            |(k, input): (usize, &PreparedInput)| is_transposed(input.size, row.strides[k], column.strides[k]);
        let is_transposed: List<bool, 8> = self.program.inputs.iter().enumerate().map(is_transposed).collect();
        let is_long = row.len >= MIN_TRANSPOSE && column.len >= MIN_TRANSPOSE;
        // Every part but the last must have a multiple of 128 elements.
        let is_divisible = outer.is_empty() || (row.len * column.len).is_multiple_of(128);
        let is_fold = matches!(self.operation, PreparedReduction::Fold(_));
        let applies = is_long && is_divisible && is_fold && is_transposed.contains(&true);
        let row_bytes: usize =
            self.program.inputs.iter().zip(&is_transposed).map(|(i, &t)| if t { i.size * column.len } else { 0 }).sum();
        let rows = panel_rows(column.len, row_bytes).min(row.len);
        applies.then_some(TransposedPanels { row, column, outer, rows, is_transposed })
    }

    /// Reduces all sequences by transposed panels and returns true. Returns false without a result if
    /// [`transposed_panels`](Self::transposed_panels) returns `None`.
    ///
    /// # Errors
    /// Returns an error if memory for the panels of long rows cannot be allocated.
    pub(crate) fn reduce_transposed(&self) -> Result<bool> {
        let Some(panels) = self.transposed_panels() else { return Ok(false) };
        if let PreparedReduction::Fold(fold) = &self.operation
            && self.has_entire_blocks(&panels)
        {
            self.reduce_lanes(fold, &panels)?;
            return Ok(true);
        }
        let strides = |along_row: bool| {
            let input_stride = |(k, is_transposed): (usize, &bool)| match (is_transposed, along_row) {
                (true, true) => (panels.column.len * self.program.inputs[k].size) as isize,
                (true, false) => self.program.inputs[k].size as isize,
                (false, true) => panels.row.strides[k],
                (false, false) => panels.column.strides[k],
            };
            panels.is_transposed.iter().enumerate().map(input_stride).chain([0]).collect()
        };
        let mut axes: StridedAxes = [
            StridedAxis { len: panels.rows, strides: strides(true) },
            StridedAxis { len: panels.column.len, strides: strides(false) },
        ]
        .into_iter()
        .collect();
        strided::merge(&mut axes);
        let eval = Evaluator::new(self.program, self.params, &axes, |_| false, |_| self.program.steps.is_empty());
        let grain = GRAIN.div_ceil((self.length * self.work_per_value()).max(16));
        let panels_bytes: usize = (0..self.program.inputs.len()).map(|k| self.panel_bytes(&panels, k)).sum();
        let scratch_bytes = padded(eval.scratch_bytes())
            + self.converted_bytes(&eval)
            + panels_bytes
            + padded(RESULTS * 8)
            + self.store_scratch();
        parallel_ranges_with_workspace(self.count, grain, scratch_bytes, |range, scratch| {
            // SAFETY: the scratch memory belongs to this call, and the tasks have different sequences.
            unsafe { self.reduce_panels(&eval, &panels, panels_bytes, range, scratch) }
        })?;
        Ok(true)
    }

    /// Returns true if the values are the elements of one input, and every row of a panel consists of entire blocks.
    fn has_entire_blocks(&self, panels: &TransposedPanels<'_>) -> bool {
        let [input] = &self.program.inputs[..] else { return false };
        let is_plain = self.value_slot() == 0 && input.load.is_none() && self.widen.is_none();
        let lanes_bytes = panels.column.len / ROWS * LANES * RUN_BYTES;
        is_plain
            && panels.row.strides[0] == input.size as isize
            && panels.column.len.is_multiple_of(ROWS)
            && lanes_bytes <= MAX_LANES_BYTES
    }

    /// Reduces all sequences: combines the blocks of several rows at a time, whose elements are adjacent, to lanes, and
    /// accumulates the transposed lanes.
    ///
    /// # Errors
    /// Returns an error if memory for the lanes cannot be allocated.
    fn reduce_lanes(&self, fold: &FoldKernel, panels: &TransposedPanels<'_>) -> Result<()> {
        let (size, stride) = (fold.size, panels.column.strides[0]);
        let group = (RUN_BYTES / size).min(panels.row.len);
        let blocks = panels.column.len / ROWS;
        let block_lanes = padded(LANES * group * size);
        let bytes = block_lanes * (1 + blocks) + padded(RESULTS * 8) + self.store_scratch();
        let grain = GRAIN.div_ceil((self.length * size).max(16));
        parallel_ranges_with_workspace(self.count, grain, bytes, |range, scratch| {
            // SAFETY: the scratch memory holds the lanes of one block and of all blocks, for each row of a group, then
            // `RESULTS` results and the scratch memory of `store_results`. The rows of a group and the blocks of a row
            // are within the input, and no other task writes the results of these sequences. `accumulate_rows` writes
            // lanes that are contiguous along the rows; their transpose is the list of all blocks of a row.
            unsafe {
                let lanes = scratch.add(block_lanes);
                let results = lanes.add(block_lanes * blocks);
                self.for_each_sequence(range, results, results.add(padded(RESULTS * 8)), |addresses, s| {
                    let mut running = RunningFold::new();
                    let mut part = Cursor::at(panels.outer, addresses, 0);
                    for _ in 0..strided::element_count(panels.outer) {
                        for start in (0..panels.row.len).step_by(group) {
                            let rows = group.min(panels.row.len - start);
                            let from = part.positions[0].add(start * size);
                            for block in 0..blocks {
                                let from = from.offset((block * ROWS) as isize * stride);
                                fold.fill_identity(scratch, LANES * rows);
                                (fold.loops.accumulate_rows)(scratch, from, stride, rows, ROWS);
                                let to = lanes.add(block * LANES * size);
                                let [from_strides, to_strides] =
                                    [[1, rows], [blocks * LANES, 1]].map(|axes| axes.map(|n| (n * size) as isize));
                                let from = (scratch.cast_const(), from_strides);
                                transpose_matrix(size, from, (to, to_strides), rows, LANES);
                            }
                            running.push_lanes(fold, lanes, rows * blocks);
                        }
                        part.advance();
                    }
                    running.finish(fold, results.add(s * size));
                });
            }
        })
    }

    /// Returns the bytes of the panel of input `k`.
    fn panel_bytes(&self, panels: &TransposedPanels<'_>, k: usize) -> usize {
        if panels.is_transposed[k] { padded(panels.rows * panels.column.len * self.program.inputs[k].size) } else { 0 }
    }

    /// Reduces the sequences `range`.
    ///
    /// # Safety
    /// The sequences are within the operands, and no other task writes their results. `scratch` is aligned to 64 bytes
    /// and holds, in this order, the frame of `eval`, the conversion buffer, `panels_bytes` bytes for the panels of the
    /// transposed inputs, `RESULTS` results and the scratch memory of `store_results`, which only this call uses.
    unsafe fn reduce_panels(
        &self,
        eval: &Evaluator<'_>,
        panels: &TransposedPanels<'_>,
        panels_bytes: usize,
        range: Range<usize>,
        scratch: *mut u8,
    ) {
        // SAFETY: the scratch memory has these parts, and the sequences exist (this method's contract).
        unsafe {
            let mut frame = eval.frame(scratch);
            let converted = scratch.add(padded(eval.scratch_bytes()));
            let buffers = converted.add(self.converted_bytes(eval));
            let results = buffers.add(panels_bytes);
            let rest = results.add(padded(RESULTS * 8));
            self.for_each_sequence(range, results, rest, |addresses, s| {
                let mut state = self.initial_state();
                let mut part = Cursor::at(panels.outer, addresses, 0);
                for _ in 0..strided::element_count(panels.outer) {
                    for start in (0..panels.row.len).step_by(panels.rows) {
                        let rows = panels.rows.min(panels.row.len - start);
                        let addresses = self.load_panel(panels, &part.positions, start, rows, buffers);
                        eval.begin_segment(&mut frame, &addresses);
                        let values = 0..rows * panels.column.len;
                        self.accumulate_range(eval, &mut frame, &addresses, values, converted, &mut state);
                    }
                    part.advance();
                }
                self.finish_sequence(state, results, s);
            });
        }
    }

    /// Transposes rows `start..start + rows` of the transposed inputs, and returns the address of the first of these
    /// rows for every input.
    ///
    /// # Safety
    /// * Rows: `positions` has the address of row 0 for every input, and the rows exist.
    /// * Buffers: `buffers` is aligned to 64 bytes, and holds a padded panel of each transposed input.
    unsafe fn load_panel(
        &self,
        panels: &TransposedPanels<'_>,
        positions: &[*mut u8],
        start: usize,
        rows: usize,
        mut buffers: *mut u8,
    ) -> List<*mut u8, 8> {
        let columns = panels.column.len;
        let mut addresses = List::new();
        for (k, input) in self.program.inputs.iter().enumerate() {
            let from = positions[k].wrapping_offset(start as isize * panels.row.strides[k]);
            if !panels.is_transposed[k] {
                addresses.push(from);
                continue;
            }
            let strides = [panels.row.strides[k], panels.column.strides[k]];
            let to_strides = [columns * input.size, input.size].map(|stride| stride as isize);
            // SAFETY: the contract of `transpose_matrix`. *Source*: the rows exist (*Rows*). *Target* and *Disjoint*:
            // the buffer holds the panel, is aligned, and is not part of an operand (*Buffers*).
            unsafe { transpose_matrix(input.size, (from, strides), (buffers, to_strides), rows, columns) };
            addresses.push(buffers);
            buffers = buffers.wrapping_add(self.panel_bytes(panels, k));
        }
        addresses
    }
}
