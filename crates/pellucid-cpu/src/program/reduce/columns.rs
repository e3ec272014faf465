//! Simultaneous reductions of many sequences, one per column: a kept axis is innermost in memory, so adjacent elements
//! belong to different sequences.

use super::arg::MatrixRows;
use super::{PreparedReduction, SequenceReduction};
use crate::program::evaluate::{Evaluator, TileFrame};
use crate::program::fold::{CHUNK, FoldKernel};
use crate::program::loops::{LANES, ROWS};
use crate::program::slot::Granularity;
use crate::strided::{self, Cursor, StridedAxes, StridedAxis};
use pellucid_ir::Result;
use pellucid_runtime::list::List;
use pellucid_runtime::scratch::{self, padded};
use pellucid_runtime::threads::{self, GRAIN, SharedPtr, parallel_ranges};
use pellucid_runtime::workspace::{parallel_ranges_with_workspace, with_workspace};
use std::ops::Range;

/// The maximum number of columns of a strip. Long row segments, which the hardware prefetcher needs, matter more than
/// lanes that fit L1 (64 bytes per column for `f32`).
const STRIP_COLUMNS: usize = 4096;

/// The maximum number of columns of a strip whose values are evaluated: enough to amortize the setup of a row, and few
/// enough for a block of rows to fit the second-level cache.
const EVALUATED_COLUMNS: usize = 1024;

/// The maximum number of columns for which one tile contains several rows.
const NARROW_COLUMNS: usize = 128;

/// The division of the columns into strips, and the evaluation of their values.
struct ColumnPlan<'a> {
    /// Computes the values.
    eval: Evaluator<'a>,
    /// The axes of the rows, which are evaluated one by one; empty if a tile contains several rows.
    rows: &'a [StridedAxis],
    /// The kept axes except the last.
    outer: &'a [StridedAxis],
    /// The number of columns.
    width: usize,
    /// The number of columns of a strip.
    strip: usize,
    /// The row stride in bytes, if the input is accumulated without copying.
    in_place: Option<isize>,
}

impl SequenceReduction<'_> {
    /// Reduces all columns, strip by strip, and stores the results.
    ///
    /// # Errors
    /// Returns an error if memory for the partial results of long columns cannot be allocated.
    pub(crate) fn reduce_columns(&self) -> Result<()> {
        let Some((column, outer)) = self.kept.split_last() else { return Ok(()) };
        let width = column.len;
        let narrow = width <= NARROW_COLUMNS;
        let mut inner: StridedAxes = if narrow { self.reduced.clone() } else { StridedAxes::new() };
        inner.push(column.clone());
        strided::merge(&mut inner);
        // If values are not widened, the evaluator writes them directly to the block of rows.
        let eval = Evaluator::new(self.program, self.params, &inner, |_| false, |_| self.widen.is_none());
        let slot = self.value_slot();
        let identity = slot < self.program.inputs.len() && eval.schedule.granularity[slot] == Granularity::PerElement;
        let plain = identity && self.program.inputs[slot].load.is_none() && self.widen.is_none();
        let dense = |k: usize| column.strides[k] == self.size as isize;
        let in_place = match &self.reduced[..] {
            [rows] if plain && dense(slot) => Some(rows.strides[slot]),
            _ => None,
        };
        let total = self.count * self.length * self.work_per_value();
        let threads = if total > 2 * GRAIN { threads::count() } else { 1 };
        let fair = if threads > 1 { width.div_ceil(threads * 2).next_multiple_of(64).max(64) } else { STRIP_COLUMNS };
        let longest = if in_place.is_some() { STRIP_COLUMNS } else { EVALUATED_COLUMNS };
        let strip = if narrow { width } else { longest.min(fair).min(width) };
        let strips = width.div_ceil(strip);
        let strip_count = strided::element_count(outer) * strips;
        let chunks = self.length.div_ceil(CHUNK);
        let rows = if narrow { &[][..] } else { &self.reduced[..] };
        let plan = ColumnPlan { eval, rows, outer, width, strip, in_place };
        let share = chunks > 1 && strip_count < threads * 2 && matches!(self.operation, PreparedReduction::Fold(_));
        let bytes = self.partial_bytes(strip) + self.store_scratch();
        if share {
            return with_workspace(bytes, |partial| {
                for index in 0..strip_count {
                    self.reduce_strip(&plan, index, partial, |work| parallel_ranges(chunks, 1, work));
                }
                Ok(())
            });
        }
        let grain = GRAIN.div_ceil((self.length * strip * self.work_per_value()).max(1));
        parallel_ranges_with_workspace(strip_count, grain, bytes, |range, partial| {
            range.for_each(|index| self.reduce_strip(&plan, index, partial, |work| work(0..chunks)));
        })
    }

    /// Returns the bytes of the partial results of `cols` columns: one result per column for each chunk.
    fn partial_bytes(&self, cols: usize) -> usize {
        padded(self.length.div_ceil(CHUNK) * cols * self.result_size())
    }

    /// Reduces one strip. `dispatch(work)` must call `work` on ranges that cover all chunks of the strip, in this
    /// thread or in several. `partial` is memory that only this call uses: for the partial results of a full strip, and
    /// for `store_results`.
    fn reduce_strip(
        &self,
        plan: &ColumnPlan<'_>,
        index: usize,
        partial: *mut u8,
        dispatch: impl FnOnce(&(dyn Fn(Range<usize>) + Sync)),
    ) {
        let strips = plan.width.div_ceil(plan.strip);
        let (outer_index, start) = (index / strips, index % strips * plan.strip);
        let cols = plan.strip.min(plan.width - start);
        let partial = SharedPtr(partial);
        let base = Cursor::at(plan.outer, &self.bases, outer_index);
        let bases = base.positions.iter().map(|&p| SharedPtr(p)).collect::<List<SharedPtr<u8>, 8>>();
        dispatch(&|range: Range<usize>| {
            let bases: List<*mut u8, 8> = bases.iter().map(|p| p.get()).collect();
            let strip = ColumnStrip { reduction: self, plan, bases: &bases, start, cols };
            match &self.operation {
                PreparedReduction::Fold(fold) => strip.reduce_chunks(fold, range, partial.get()),
                PreparedReduction::Arg(_) => strip.find_extrema(partial.get()),
            }
        });
        // SAFETY: `dispatch` has processed all chunks, so `partial` holds a row of `cols` results for each chunk (arg
        // reductions have one row). `combine_chunks` combines them into the first row. The scratch memory for
        // `store_results` follows the results of a full strip, and only this call writes the outputs of the strip.
        unsafe {
            if let PreparedReduction::Fold(fold) = &self.operation {
                fold.combine_chunks(partial.get(), self.length.div_ceil(CHUNK), cols);
            }
            let rest = partial.get().add(self.partial_bytes(plan.strip));
            self.store_results(partial.get(), outer_index * plan.width + start, cols, rest);
        }
    }
}

/// A strip of columns with the addresses of its operands.
struct ColumnStrip<'a> {
    /// The reduction.
    reduction: &'a SequenceReduction<'a>,
    /// The division into strips.
    plan: &'a ColumnPlan<'a>,
    /// The addresses of the operands at column 0.
    bases: &'a [*mut u8],
    /// The first column.
    start: usize,
    /// The number of columns.
    cols: usize,
}

impl ColumnStrip<'_> {
    /// Returns the bytes of a block of rows, or 0 if the input is accumulated without copying.
    fn block_bytes(&self) -> usize {
        if self.plan.in_place.is_some() { 0 } else { padded(ROWS * self.cols * self.reduction.size) }
    }

    /// Calls `work(frame, block, extra)` with a frame, memory for a block of rows, and `lanes` more bytes of scratch
    /// memory.
    fn with_scratch(&self, lanes: usize, work: impl FnOnce(&mut TileFrame, *mut u8, *mut u8)) {
        let eval = &self.plan.eval;
        let bytes = padded(eval.scratch_bytes()) + self.block_bytes() + padded(lanes);
        scratch::with_buffer(bytes, |scratch: *mut u8| {
            // SAFETY: the scratch memory holds the frame, then the block, then the `lanes` bytes.
            unsafe {
                let mut frame = eval.frame(scratch);
                let block = scratch.add(padded(eval.scratch_bytes()));
                work(&mut frame, block, block.add(self.block_bytes()));
            }
        });
    }

    /// Reduces the chunks `range` to rows of `cols` partial results, one row per chunk.
    fn reduce_chunks(&self, fold: &FoldKernel, range: Range<usize>, partial: *mut u8) {
        let (cols, length) = (self.cols, self.reduction.length);
        let at_once = fold.reduces_columns_at_once(length, cols);
        let lanes_bytes = if at_once { 0 } else { padded(LANES * cols * fold.size) };
        self.with_scratch(lanes_bytes + lanes_bytes / 2, |frame, block, lanes| {
            if at_once {
                // SAFETY: the sequences are one block. Its rows hold `cols` values each, and `partial` has as many
                // results.
                unsafe {
                    self.for_each_block(frame, block, 0..length, |from, stride, _, rows| {
                        (fold.loops.reduce_columns)(partial, from, stride, cols, rows);
                    });
                }
                return;
            }
            for chunk in range {
                // SAFETY: `lanes` holds 16 values per column, rounded up to 8 bytes, and 8 more values per column
                // follow. `partial` has a row of `cols` results for every chunk. The rows of a block hold `cols` values
                // each, and the chunk is within the sequences.
                unsafe {
                    fold.fill_identity(lanes, LANES * cols);
                    self.for_each_block(
                        frame,
                        block,
                        chunk * CHUNK..length.min((chunk + 1) * CHUNK),
                        |from, stride, _, rows| {
                            (fold.loops.accumulate_rows)(lanes, from, stride, cols, rows);
                        },
                    );
                    fold.combine_lanes(partial.add(chunk * cols * fold.size), lanes, lanes.add(lanes_bytes), cols);
                }
            }
        });
    }

    /// Writes the row index of the extremum of each column to `positions`.
    fn find_extrema(&self, positions: *mut u8) {
        let PreparedReduction::Arg(arg) = &self.reduction.operation else { return };
        self.with_scratch(self.cols * 8, |frame, block, best| {
            // SAFETY: `best` and `positions` hold 8 bytes per column, and the rows of a block hold `cols` values each.
            // All are aligned to the element size and disjoint. The first block begins at row 0.
            unsafe {
                self.for_each_block(frame, block, 0..self.reduction.length, |from, stride, first, count| {
                    let rows = MatrixRows { from, stride, cols: self.cols, first, count };
                    arg.push_rows(best, positions.cast(), rows);
                });
            }
        });
    }

    /// Calls `accumulate(rows, stride, first, count)` for all blocks of up to 128 rows of `range`.
    ///
    /// # Safety
    /// * Frame: `frame` belongs to the evaluator of the plan.
    /// * Block: `block` has [`ColumnStrip::block_bytes`] bytes and does not overlap the frame.
    /// * Range: the rows `range` are within the sequences.
    unsafe fn for_each_block(
        &self,
        frame: &mut TileFrame,
        block: *mut u8,
        range: Range<usize>,
        mut accumulate: impl FnMut(*const u8, isize, usize, usize),
    ) {
        let (reduction, plan) = (self.reduction, self.plan);
        let row_bytes = self.cols * reduction.size;
        let mut cursor = Cursor::at(plan.rows, self.bases, if plan.rows.is_empty() { 0 } else { range.start });
        if plan.rows.is_empty() {
            // SAFETY: by this method's contract, `self.bases` are the addresses of the operands for the axes of the
            // evaluator (*Frame*).
            unsafe { plan.eval.begin_segment(frame, self.bases) };
        }
        let mut first = range.start;
        while first < range.end {
            let rows = ROWS.min(range.end - first);
            // SAFETY: by this method's contract, rows `first..first + rows` are within the operands (*Range*), and
            // columns `start..start + cols` within the rows. `rows` ≤ 128 rows fit the block (*Block*). The evaluator
            // has begun the segment.
            unsafe {
                if let Some(stride) = plan.in_place {
                    let from = self.bases[reduction.value_slot()]
                        .offset(first as isize * stride)
                        .add(self.start * reduction.size);
                    accumulate(from, stride, first, rows);
                } else {
                    if plan.rows.is_empty() {
                        let tile_rows = (plan.eval.tile_len.min(CHUNK) / self.cols).max(1);
                        for r in (0..rows).step_by(tile_rows) {
                            let n = tile_rows.min(rows - r) * self.cols;
                            self.evaluate(frame, self.bases, (first + r) * self.cols, n, block.add(r * row_bytes));
                        }
                    } else {
                        for r in 0..rows {
                            plan.eval.begin_segment(frame, &cursor.positions);
                            for c in (0..self.cols).step_by(plan.eval.tile_len.min(self.cols)) {
                                let n = plan.eval.tile_len.min(self.cols - c);
                                let to = block.add(r * row_bytes + c * reduction.size);
                                self.evaluate(frame, &cursor.positions, self.start + c, n, to);
                            }
                            cursor.advance();
                        }
                    }
                    accumulate(block, row_bytes as isize, first, rows);
                }
            }
            first += rows;
        }
    }

    /// Evaluates `n` values, starting at element `start` of the segment, and writes them to `to` in the type of the
    /// accumulator.
    ///
    /// # Safety
    /// * Frame: `frame` belongs to the evaluator of the plan, which has begun the segment with `bases`.
    /// * Range: elements `start..start + n` are within the segment, and `n` is at most a tile.
    /// * Destination: `to` is valid for writes of `n` values and does not overlap the inputs.
    unsafe fn evaluate(&self, frame: &mut TileFrame, bases: &[*mut u8], start: usize, n: usize, to: *mut u8) {
        let (reduction, eval) = (self.reduction, &self.plan.eval);
        let slot = reduction.value_slot();
        // SAFETY: *Frame*, *Range* and *Destination* (this method's contract) imply the contracts of `Evaluator::tile`
        // and of `accumulator_values`, whose values are `n` values outside `to`, or `to` itself.
        unsafe {
            // The last instruction, or the load of an input, writes directly to the block if possible.
            let is_input = slot < reduction.program.inputs.len();
            let writes = reduction.widen.is_none() && (is_input || reduction.program.outputs[0].direct.is_some());
            if writes && eval.schedule.granularity[slot] == Granularity::PerElement {
                frame.addresses[slot] = to;
            }
            eval.run_tile(frame, bases, start, n);
            let from = reduction.accumulator_values(eval, frame, n, to);
            if from != to {
                std::ptr::copy_nonoverlapping(from, to, n * reduction.size);
            }
        }
    }
}
