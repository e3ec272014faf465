//! Reductions that process one sequence after another: the reduced axes are innermost in memory.

use super::arg::ArgCandidate;
use super::{PreparedReduction, RESULTS, SequenceReduction};
use crate::program::evaluate::{Evaluator, TileFrame};
use crate::program::fold::{CHUNK, FoldValues, RunningFold};
use crate::program::loader::fill;
use crate::program::slot::Granularity;
use crate::strided::{self, Cursor, StridedAxes, StridedAxis};
use pellucid_runtime::scratch::{self, padded};
use pellucid_runtime::threads::{self, GRAIN, SharedPtr, parallel_ranges};
use std::ops::Range;

/// The length below which several sequences are evaluated at a time, if their values are combined.
const SHORT_LEN: usize = 1024;

/// The length below which several sequences are evaluated at a time, if the index of their extremum is found.
const SHORT_ARG_LEN: usize = 128;

/// The maximum number of sequences in a tile.
const MAX_SEQUENCES: usize = 64;

/// The maximum number of partial results, if the parts of sequences are divided among the threads.
const MAX_PARTIALS: usize = if cfg!(test) { 128 } else { 32 << 10 };

/// Returns the number of values of a part of a sequence, for `count` sequences of `length` values: a chunk times a
/// power of two, so that the results of the parts are nodes of the tree over the chunks.
fn part_len(count: usize, length: usize) -> usize {
    let mut len = CHUNK;
    while count.saturating_mul(length.div_ceil(len)) > MAX_PARTIALS && len < length {
        len *= 2;
    }
    len
}

/// The state of the reduction of one sequence; it stays on the stack.
#[expect(clippy::large_enum_variant)]
pub(super) enum SequenceState {
    /// The accumulators of a combining reduction.
    Fold(RunningFold),
    /// The extremum so far.
    Arg(ArgCandidate),
}

impl SequenceReduction<'_> {
    /// Reduces all sequences and stores the results.
    pub(crate) fn reduce_rows(&self) {
        let per_sequence = self.length.saturating_mul(self.work_per_value()).max(16);
        let few = self.count * CHUNK * self.work_per_value() < GRAIN * 8
            && self.length > CHUNK
            && self.count.saturating_mul(per_sequence) > 2 * GRAIN;
        if few && threads::count() > 1 {
            return self.reduce_rows_by_parts(part_len(self.count, self.length));
        }
        let short_len = if matches!(self.operation, PreparedReduction::Fold(_)) { SHORT_LEN } else { SHORT_ARG_LEN };
        if self.length < short_len && self.length > 0 {
            let mut all: StridedAxes = self.kept.iter().chain(&self.reduced).cloned().collect();
            strided::merge(&mut all);
            let eval = self.evaluator(&all);
            // The tiles of a long program can be shorter than a short sequence.
            if self.length <= self.tile_len(&eval) {
                return parallel_ranges(self.count, GRAIN.div_ceil(per_sequence), |range| {
                    self.reduce_short(&eval, range);
                });
            }
        }
        let eval = self.evaluator(&self.reduced);
        parallel_ranges(self.count, GRAIN.div_ceil(per_sequence), |range| self.reduce_long(&eval, range));
    }

    /// Schedules the program for segments over these axes.
    fn evaluator<'a>(&'a self, axes: &'a [StridedAxis]) -> Evaluator<'a> {
        Evaluator::new(self.program, self.params, axes, |_| false, |_| self.program.steps.is_empty())
    }

    /// Returns the state before any value.
    pub(super) fn initial_state(&self) -> SequenceState {
        match self.operation {
            PreparedReduction::Fold(_) => SequenceState::Fold(RunningFold::new()),
            PreparedReduction::Arg(_) => SequenceState::Arg(ArgCandidate::NONE),
        }
    }

    /// Returns the bytes of the buffer for converted values, or 0 if the reduction reads the values of the evaluator.
    ///
    /// The buffer is needed if the values are widened, or if the program yields fewer than one value per element.
    pub(super) fn converted_bytes(&self, eval: &Evaluator<'_>) -> usize {
        if self.widen.is_some() || eval.schedule.granularity[self.value_slot()] != Granularity::PerElement {
            padded(CHUNK * 8)
        } else {
            0
        }
    }

    /// Returns the slot of the values to reduce.
    pub(crate) fn value_slot(&self) -> usize {
        self.program.outputs[0].slot as usize
    }

    /// Returns the `n` values of a tile in the type of the accumulator: the values of the evaluator, or a copy in
    /// `converted`.
    ///
    /// # Safety
    /// * Evaluated: `frame` holds the values of a tile of `n` elements, which `eval` has evaluated.
    /// * Buffer: unless the values of the evaluator are returned, `converted` is valid for writes of `n` values and
    ///   does not overlap the frame.
    pub(crate) unsafe fn accumulator_values(
        &self,
        eval: &Evaluator<'_>,
        frame: &TileFrame,
        n: usize,
        converted: *mut u8,
    ) -> *mut u8 {
        let slot = self.value_slot();
        let from = frame.addresses[slot];
        // SAFETY: by *Evaluated* of this method's contract, the slot holds `n` values, or one value unless it is per
        // element. Writes go to `converted` (*Buffer*) or to the eight bytes of `one`.
        unsafe {
            if eval.schedule.granularity[slot] != Granularity::PerElement {
                let mut one = 0u64;
                let place = (&raw mut one).cast::<u8>();
                match self.widen {
                    Some(widen) => widen.run(place, from, 1),
                    None => std::ptr::copy_nonoverlapping(from, place, self.size),
                }
                fill(converted, place, self.size, n);
                return converted;
            }
            match self.widen {
                Some(widen) => {
                    widen.run(converted, from, n);
                    converted
                }
                None => from,
            }
        }
    }

    /// Returns the maximum number of values in a tile. If there is a conversion buffer, this number of values fits it.
    fn tile_len(&self, eval: &Evaluator<'_>) -> usize {
        if self.converted_bytes(eval) > 0 { eval.tile_len.min(CHUNK) } else { eval.tile_len }
    }

    /// Reduces the sequences `range`, which are no longer than a tile, several at a time.
    fn reduce_short(&self, eval: &Evaluator<'_>, range: Range<usize>) {
        let scratch_bytes =
            padded(eval.scratch_bytes()) + self.converted_bytes(eval) + padded(RESULTS * 8) + self.store_scratch();
        let together = (self.tile_len(eval) / self.length).clamp(1, MAX_SEQUENCES);
        scratch::with_buffer(scratch_bytes, |scratch: *mut u8| {
            // SAFETY: the scratch memory holds, in this order, the frame, the conversion buffer, `RESULTS` results and
            // the scratch memory of `store_results`. The sequences are within the operands, and only this task writes
            // their results.
            unsafe {
                let mut frame = eval.frame(scratch);
                let converted = scratch.add(padded(eval.scratch_bytes()));
                let results = converted.add(self.converted_bytes(eval));
                let rest = results.add(padded(RESULTS * 8));
                eval.begin_segment(&mut frame, &self.bases);
                let mut first = range.start;
                while first < range.end {
                    let count = RESULTS.min(range.end - first);
                    let mut done = 0;
                    while done < count {
                        let sequences = together.min(count - done);
                        let n = sequences * self.length;
                        eval.run_tile(&mut frame, &self.bases, (first + done) * self.length, n);
                        let values = self.accumulator_values(eval, &frame, n, converted);
                        match &self.operation {
                            PreparedReduction::Fold(fold) => {
                                let into = results.add(done * fold.size);
                                fold.reduce_rows(into, FoldValues::plain(values), sequences, self.length);
                            }
                            PreparedReduction::Arg(_) => (0..sequences).for_each(|s| {
                                self.reduce_sequence(
                                    values.add(s * self.length * self.size),
                                    self.length,
                                    results,
                                    done + s,
                                );
                            }),
                        }
                        done += sequences;
                    }
                    self.store_results(results, first, count, rest);
                    first += count;
                }
            }
        });
    }

    /// Reduces `n` contiguous values to result `index`.
    ///
    /// # Safety
    /// * Source: `from` is valid for reads of `n` values in the type of the accumulator.
    /// * Results: `results` is valid for writes of result `index`, and aligned to 8 bytes.
    #[inline]
    unsafe fn reduce_sequence(&self, from: *const u8, n: usize, results: *mut u8, index: usize) {
        // SAFETY: the caller guarantees *Source* and *Results* (this method's contract).
        unsafe {
            match &self.operation {
                PreparedReduction::Fold(fold) => {
                    fold.reduce(results.add(index * fold.size), FoldValues::plain(from), n)
                }
                PreparedReduction::Arg(arg) => {
                    let mut best = ArgCandidate::NONE;
                    arg.push(&mut best, from, n, 0);
                    *results.cast::<i64>().add(index) = best.position.max(0);
                }
            }
        }
    }

    /// Reduces the sequences `range` one by one, each in one or more tiles.
    fn reduce_long(&self, eval: &Evaluator<'_>, range: Range<usize>) {
        let scratch_bytes =
            padded(eval.scratch_bytes()) + self.converted_bytes(eval) + padded(RESULTS * 8) + self.store_scratch();
        scratch::with_buffer(scratch_bytes, |scratch: *mut u8| {
            // SAFETY: the scratch memory holds, in this order, the frame, the conversion buffer, `RESULTS` results and
            // the scratch memory of `store_results`. The sequences are within the operands, and only this task writes
            // their results.
            unsafe {
                let mut frame = eval.frame(scratch);
                let converted = scratch.add(padded(eval.scratch_bytes()));
                let results = converted.add(self.converted_bytes(eval));
                let rest = results.add(padded(RESULTS * 8));
                self.for_each_sequence(range, results, rest, |addresses, s| {
                    eval.begin_segment(&mut frame, addresses);
                    if self.length <= self.tile_len(eval) {
                        if self.length > 0 {
                            eval.run_tile(&mut frame, addresses, 0, self.length);
                        }
                        let values = self.accumulator_values(eval, &frame, self.length, converted);
                        self.reduce_sequence(values, self.length, results, s);
                    } else {
                        let mut state = self.initial_state();
                        self.accumulate_range(eval, &mut frame, addresses, 0..self.length, converted, &mut state);
                        self.finish_sequence(state, results, s);
                    }
                });
            }
        });
    }

    /// Calls `reduce` for each of the sequences `range`, with the addresses of its inputs and the index of its result
    /// in `results`, and stores the results, [`RESULTS`] at a time.
    ///
    /// # Safety
    /// * Operands: the sequences are within the operands, and no other task writes their results.
    /// * Results: `results` holds `RESULTS` results, of which `reduce` initializes the one at its index. `rest` is the
    ///   scratch memory of `store_results`. Only this call uses both.
    pub(super) unsafe fn for_each_sequence(
        &self,
        range: Range<usize>,
        results: *mut u8,
        rest: *mut u8,
        mut reduce: impl FnMut(&[*mut u8], usize),
    ) {
        let mut cursor = Cursor::at(&self.kept, &self.bases, range.start);
        let mut first = range.start;
        while first < range.end {
            let count = RESULTS.min(range.end - first);
            for s in 0..count {
                reduce(&cursor.positions, s);
                cursor.advance();
            }
            // SAFETY: `reduce` has initialized the results; *Operands* and *Results* cover the outputs and the memory.
            unsafe { self.store_results(results, first, count, rest) };
            first += count;
        }
    }

    /// Accumulates elements `range` of a sequence into `state`.
    ///
    /// # Safety
    /// * Frame: `frame` belongs to `eval`, which has begun the segment of this sequence with `bases`.
    /// * Range: the elements `range` are within the sequence.
    /// * Buffer: `converted` has [`SequenceReduction::converted_bytes`] bytes and does not overlap the frame.
    pub(super) unsafe fn accumulate_range(
        &self,
        eval: &Evaluator<'_>,
        frame: &mut TileFrame,
        bases: &[*mut u8],
        range: Range<usize>,
        converted: *mut u8,
        state: &mut SequenceState,
    ) {
        let mut at = range.start;
        while at < range.end {
            let n = self.tile_len(eval).min(range.end - at);
            // SAFETY: `at + n` ≤ range.end, so *Frame* and *Range* are the contract of `Evaluator::tile`. By *Buffer*,
            // and because `n` ≤ `tile_len`, the converted values fit the buffer.
            unsafe {
                eval.run_tile(frame, bases, at, n);
                let values = self.accumulator_values(eval, frame, n, converted);
                match (&self.operation, &mut *state) {
                    (PreparedReduction::Fold(fold), SequenceState::Fold(running)) => {
                        running.push(fold, FoldValues::plain(values), n)
                    }
                    (PreparedReduction::Arg(arg), SequenceState::Arg(best)) => arg.push(best, values, n, at),
                    _ => {}
                }
            }
            at += n;
        }
    }

    /// Writes the result of a sequence to result `index`.
    ///
    /// # Safety
    /// `results` is valid for writes of result `index`, and aligned to 8 bytes.
    pub(super) unsafe fn finish_sequence(&self, state: SequenceState, results: *mut u8, index: usize) {
        // SAFETY: the caller guarantees that `results` is valid for writes of result `index` (this method's contract).
        unsafe {
            match (&self.operation, state) {
                (PreparedReduction::Fold(fold), SequenceState::Fold(mut running)) => {
                    running.finish(fold, results.add(index * fold.size))
                }
                (_, SequenceState::Arg(best)) => *results.cast::<i64>().add(index) = best.position.max(0),
                _ => {}
            }
        }
    }

    /// Reduces a few long sequences, whose parts of `part_len` values are divided among the threads. The results of the
    /// parts are nodes of the tree over the chunks, so the results are bit-identical to those of a single thread.
    fn reduce_rows_by_parts(&self, part_len: usize) {
        let eval =
            Evaluator::new(self.program, self.params, &self.reduced, |_| false, |_| self.program.steps.is_empty());
        let parts = self.length.div_ceil(part_len);
        let total = self.count * parts;
        let result_bytes = size_of::<ArgCandidate>();
        let bytes = padded(total * result_bytes) + padded(RESULTS * 8) + self.store_scratch();
        scratch::with_buffer(bytes, |partial: *mut u8| {
            let to = SharedPtr(partial);
            parallel_ranges(total, GRAIN.div_ceil(part_len.saturating_mul(self.work_per_value())), |range| {
                self.reduce_parts(&eval, range, (parts, part_len), to.get())
            });
            // SAFETY: all tasks have finished, so all `total` partial results are written. The scratch memory holds
            // them, then `RESULTS` results, then the scratch memory of `store_results`.
            unsafe {
                let results = partial.add(padded(total * result_bytes));
                let rest = results.add(padded(RESULTS * 8));
                for first in (0..self.count).step_by(RESULTS) {
                    let count = RESULTS.min(self.count - first);
                    for s in 0..count {
                        match &self.operation {
                            PreparedReduction::Fold(fold) => {
                                let partials = partial.add((first + s) * parts * fold.size);
                                fold.combine_chunks(partials, parts, 1);
                                std::ptr::copy_nonoverlapping(partials, results.add(s * fold.size), fold.size);
                            }
                            PreparedReduction::Arg(arg) => {
                                let partials = partial.cast::<ArgCandidate>().add((first + s) * parts);
                                let mut best = *partials;
                                (1..parts).for_each(|p| arg.combine(&mut best, *partials.add(p)));
                                *results.cast::<i64>().add(s) = best.position.max(0);
                            }
                        }
                    }
                    self.store_results(results, first, count, rest);
                }
            }
        });
    }

    /// Reduces the parts `range`, counted over all sequences, to partial results. Each sequence has `parts` parts of
    /// `part_len` values.
    fn reduce_parts(
        &self,
        eval: &Evaluator<'_>,
        range: Range<usize>,
        (parts, part_len): (usize, usize),
        partial: *mut u8,
    ) {
        scratch::with_buffer(padded(eval.scratch_bytes()) + self.converted_bytes(eval), |scratch: *mut u8| {
            // SAFETY: the scratch memory holds the frame and then the conversion buffer. `partial` has a result for
            // every part, and only this task writes the results of `range`.
            unsafe {
                let mut frame = eval.frame(scratch);
                let converted = scratch.add(padded(eval.scratch_bytes()));
                let mut sequence = usize::MAX;
                let mut cursor = Cursor::at(&self.kept, &self.bases, range.start / parts);
                for part in range {
                    if part / parts != sequence {
                        if sequence != usize::MAX {
                            cursor.advance();
                        }
                        sequence = part / parts;
                        eval.begin_segment(&mut frame, &cursor.positions);
                    }
                    let start = part % parts * part_len;
                    let mut state = self.initial_state();
                    self.accumulate_range(
                        eval,
                        &mut frame,
                        &cursor.positions,
                        start..self.length.min(start + part_len),
                        converted,
                        &mut state,
                    );
                    match state {
                        SequenceState::Arg(best) => *partial.cast::<ArgCandidate>().add(part) = best,
                        fold => self.finish_sequence(fold, partial, part),
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_partial_results_is_bounded() {
        for (count, length) in [(1, CHUNK + 1), (3, 70_000), (1, 1 << 50), (100, 1 << 40)] {
            let len = part_len(count, length);
            assert!(count * length.div_ceil(len) <= MAX_PARTIALS, "{count} × {length}");
            assert!((len / CHUNK).is_power_of_two() && len.is_multiple_of(CHUNK));
            assert!(len == CHUNK || count * length.div_ceil(len / 2) > MAX_PARTIALS, "parts must be small");
        }
    }
}
