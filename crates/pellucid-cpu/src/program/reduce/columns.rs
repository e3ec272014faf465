//! Reductions of many sequences at once, one a column: a kept axis is innermost in memory, and what
//! lies side by side belongs to different sequences.

use super::{Action, Job};
use crate::program::evaluate::{Evaluator, TileFrame};
use crate::program::fold::{CHUNK, FoldKernel};
use crate::program::loops::{LANES, ROWS};
use crate::program::schedule::Granularity;
use crate::program::strided::{self, Cursor, StridedAxes, StridedAxis};
use pellucid_runtime::list::List;
use pellucid_runtime::scratch::{self, padded};
use pellucid_runtime::threads::{self, GRAIN, SharedPtr, split};
use std::ops::Range;

/// Columns that are worked on together. Long parts of rows keep the prefetcher going, which is worth
/// more than lanes (64 bytes a column for `f32`) that fit L1.
const WIDE: usize = 4096;

/// With fewer columns, several rows are evaluated in one tile.
const NARROW: usize = 128;

/// How the columns are cut and evaluated.
struct Plan<'a> {
    eval: Evaluator<'a>,
    /// The axes over which rows are walked one by one; none if the evaluator takes several rows.
    rows: &'a [StridedAxis],
    /// Kept axes but the last.
    outer: &'a [StridedAxis],
    /// Columns in all, and in a strip.
    width: usize,
    strip: usize,
    /// Bytes from row to row, if values are accumulated where they lie.
    in_place: Option<isize>,
}

impl Job<'_> {
    /// Reduces strips of columns.
    pub(crate) fn columns(&self) {
        let Some((column, outer)) = self.kept.split_last() else { return };
        let width = column.len;
        let narrow = width <= NARROW;
        let mut inner: StridedAxes = if narrow { self.reduced.clone() } else { StridedAxes::new() };
        inner.push(column.clone());
        strided::merge(&mut inner);
        // Values that are not widened are written straight to a block of rows.
        let eval = Evaluator::new(self.program, self.params, &inner, |_| false, |_| self.widen.is_none());
        let slot = self.slot();
        let identity = slot < self.program.inputs.len() && eval.schedule.granularity[slot] == Granularity::PerElement;
        let plain = identity && self.program.inputs[slot].load.is_none() && self.widen.is_none();
        let dense = |k: usize| column.strides[k] == self.size as isize;
        let in_place = match &self.reduced[..] {
            [rows] if plain && dense(slot) => Some(rows.strides[slot]),
            _ => None,
        };
        let total = self.count * self.length * self.work();
        let threads = if total > 2 * GRAIN { threads::count() } else { 1 };
        let fair = if threads > 1 { width.div_ceil(threads * 2).next_multiple_of(64).max(64) } else { WIDE };
        let strip = if narrow { width } else { WIDE.min(fair).min(width) };
        let strips = width.div_ceil(strip);
        let units = strided::element_count(outer) * strips;
        let chunks = self.length.div_ceil(CHUNK);
        let rows = if narrow { &[][..] } else { &self.reduced[..] };
        let plan = Plan { eval, rows, outer, width, strip, in_place };
        let share = chunks > 1 && units < threads * 2 && matches!(self.action, Action::Fold(_));
        if share {
            for unit in 0..units {
                self.unit(&plan, unit, |partial, work| split(chunks, 1, |r| work(r, partial)));
            }
        } else {
            let grain = GRAIN.div_ceil((self.length * strip * self.work()).max(1));
            split(units, grain, |range| {
                range.for_each(|unit| self.unit(&plan, unit, |partial, work| work(0..chunks, partial)));
            });
        }
    }

    /// Reduces one strip; `deal` hands its chunks to whoever shall work on them.
    fn unit(
        &self,
        plan: &Plan<'_>,
        unit: usize,
        deal: impl FnOnce(SharedPtr<u8>, &(dyn Fn(Range<usize>, SharedPtr<u8>) + Sync)),
    ) {
        let strips = plan.width.div_ceil(plan.strip);
        let (outside, start) = (unit / strips, unit % strips * plan.strip);
        let cols = plan.strip.min(plan.width - start);
        let chunks = self.length.div_ceil(CHUNK);
        let result = self.result_size();
        let partial_bytes = padded(chunks * cols * result);
        scratch::with(partial_bytes + self.emit_scratch(), |partial: *mut u8| {
            let base = Cursor::new(plan.outer, &self.bases, outside);
            let bases = base.addresses.iter().map(|&p| SharedPtr(p)).collect::<List<SharedPtr<u8>, 8>>();
            let work = |range: Range<usize>, partial: SharedPtr<u8>| {
                let bases: List<*mut u8, 8> = bases.iter().map(|p| p.get()).collect();
                let strip = Strip { job: self, plan, bases: &bases, start, cols };
                match &self.action {
                    Action::Fold(fold) => strip.fold(fold, range, partial.get()),
                    Action::Arg(_) => strip.arg(partial.get()),
                }
            };
            deal(SharedPtr(partial), &work);
            // SAFETY: all partial results have been written; those of the first chunk become final.
            unsafe {
                if let Action::Fold(fold) = &self.action {
                    fold.combine_chunks(partial, chunks, cols);
                }
                self.emit(partial, outside * plan.width + start, cols, partial.add(partial_bytes));
            }
        });
    }
}

/// Some columns, and where their operands begin.
struct Strip<'a> {
    job: &'a Job<'a>,
    plan: &'a Plan<'a>,
    bases: &'a [*mut u8],
    /// The first column, and how many there are.
    start: usize,
    cols: usize,
}

impl Strip<'_> {
    /// Bytes of a block of rows of the strip.
    fn block_bytes(&self) -> usize {
        if self.plan.in_place.is_some() { 0 } else { padded(ROWS * self.cols * self.job.size) }
    }

    /// Runs `work` with a frame, room for a block, and `lanes` bytes more.
    fn run(&self, lanes: usize, work: impl FnOnce(&mut TileFrame, *mut u8, *mut u8)) {
        let eval = &self.plan.eval;
        let bytes = padded(eval.scratch_bytes()) + self.block_bytes() + padded(lanes);
        scratch::with(bytes, |scratch: *mut u8| {
            // SAFETY: the parts of the scratch have the sizes asked for.
            unsafe {
                let mut frame = eval.frame(scratch);
                let block = scratch.add(padded(eval.scratch_bytes()));
                work(&mut frame, block, block.add(self.block_bytes()));
            }
        });
    }

    /// Reduces chunks `range` to rows of `cols` partial results.
    fn fold(&self, fold: &FoldKernel, range: Range<usize>, partial: *mut u8) {
        let (cols, length) = (self.cols, self.job.length);
        self.run(LANES * cols * fold.size + 8, |frame, block, lanes| {
            for chunk in range {
                // SAFETY: the lanes, the block and this chunk's partial results have room.
                unsafe {
                    fold.fill_identity(lanes, LANES * cols);
                    self.blocks(
                        frame,
                        block,
                        chunk * CHUNK..length.min((chunk + 1) * CHUNK),
                        |from, stride, _, rows| {
                            (fold.loops.accumulate_rows)(lanes, from, stride, cols, rows);
                        },
                    );
                    (fold.loops.finish_rows)(partial.add(chunk * cols * fold.size), lanes, cols);
                }
            }
        });
    }

    /// Finds the positions of the columns' extrema.
    fn arg(&self, positions: *mut u8) {
        let Action::Arg(arg) = &self.job.action else { return };
        self.run(self.cols * 8, |frame, block, best| {
            // SAFETY: best values and positions have room for every column.
            unsafe {
                self.blocks(frame, block, 0..self.job.length, |from, stride, first, rows| {
                    arg.push_rows(best, positions.cast(), from, stride, self.cols, rows, first);
                });
            }
        });
    }

    /// Calls `take(rows, stride, first, count)` for all blocks of up to 128 rows of `range`.
    unsafe fn blocks(
        &self,
        frame: &mut TileFrame,
        block: *mut u8,
        range: Range<usize>,
        mut take: impl FnMut(*const u8, isize, usize, usize),
    ) {
        let (job, plan) = (self.job, self.plan);
        let row_bytes = self.cols * job.size;
        let mut cursor = Cursor::new(plan.rows, self.bases, if plan.rows.is_empty() { 0 } else { range.start });
        if plan.rows.is_empty() {
            // SAFETY: the bases are those of the evaluator's axes.
            unsafe { plan.eval.begin_segment(frame, self.bases) };
        }
        let mut first = range.start;
        while first < range.end {
            let rows = ROWS.min(range.end - first);
            // SAFETY: rows `first..first + rows` lie within the operands; the block has room.
            unsafe {
                if let Some(stride) = plan.in_place {
                    let from = self.bases[job.slot()].offset(first as isize * stride).add(self.start * job.size);
                    take(from, stride, first, rows);
                } else {
                    if plan.rows.is_empty() {
                        let together = (plan.eval.tile_len.min(CHUNK) / self.cols).max(1);
                        for r in (0..rows).step_by(together) {
                            let n = together.min(rows - r) * self.cols;
                            self.evaluate(frame, self.bases, (first + r) * self.cols, n, block.add(r * row_bytes));
                        }
                    } else {
                        for r in 0..rows {
                            plan.eval.begin_segment(frame, &cursor.addresses);
                            for c in (0..self.cols).step_by(plan.eval.tile_len.min(self.cols)) {
                                let n = plan.eval.tile_len.min(self.cols - c);
                                let to = block.add(r * row_bytes + c * job.size);
                                self.evaluate(frame, &cursor.addresses, self.start + c, n, to);
                            }
                            cursor.advance();
                        }
                    }
                    take(block, row_bytes as isize, first, rows);
                }
            }
            first += rows;
        }
    }

    /// Evaluates `n` values from `start` on to `to`, in the accumulator's type.
    unsafe fn evaluate(&self, frame: &mut TileFrame, bases: &[*mut u8], start: usize, n: usize, to: *mut u8) {
        let (job, eval) = (self.job, &self.plan.eval);
        let slot = job.slot();
        // SAFETY: the caller's promise.
        unsafe {
            // The last instruction writes to the block itself where it can.
            let writes = job.widen.is_none() && job.program.outputs[0].direct.is_some();
            if writes && eval.schedule.granularity[slot] == Granularity::PerElement {
                frame.addresses[slot] = to;
            }
            eval.run_tile(frame, bases, start, n);
            let from = job.values(eval, frame, n, to);
            if from != to {
                std::ptr::copy_nonoverlapping(from, to, n * job.size);
            }
        }
    }
}
