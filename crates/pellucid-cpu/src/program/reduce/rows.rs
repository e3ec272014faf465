//! Reductions whose sequences are walked one after the other.

use super::arg::Best;
use super::{Action, Job, RESULTS};
use crate::program::evaluate::{Evaluator, TileFrame};
use crate::program::fold::{CHUNK, FoldValues, RunningFold};
use crate::program::loader::fill;
use crate::program::schedule::Granularity;
use crate::program::strided::{self, Cursor, StridedAxes};
use pellucid_runtime::scratch::{self, padded};
use pellucid_runtime::threads::{self, GRAIN, SharedPtr, split};
use std::ops::Range;

/// Sequences shorter than this are evaluated several at a time.
const SHORT: usize = 128;

/// So many of them at most.
const TURNED: usize = 64;

/// What has been found of one sequence; it stays on the stack.
#[expect(clippy::large_enum_variant)]
enum State {
    Fold(RunningFold),
    Arg(Best),
}

impl Job<'_> {
    /// Reduces sequence after sequence.
    pub(crate) fn rows(&self) {
        let chunks = self.length.div_ceil(CHUNK);
        let per_sequence = (self.length * self.work()).max(16);
        let few = self.count * CHUNK * self.work() < GRAIN * 8 && chunks > 1 && self.count * per_sequence > 2 * GRAIN;
        if few && threads::count() > 1 {
            return self.rows_by_chunks(chunks);
        }
        if self.length < SHORT && self.length > 0 {
            let mut all: StridedAxes = self.kept.iter().chain(&self.reduced).cloned().collect();
            strided::merge(&mut all);
            let eval = Evaluator::new(self.program, self.params, &all, |_| false, |_| self.program.steps.is_empty());
            split(self.count, GRAIN.div_ceil(per_sequence), |range| self.short(&eval, range));
        } else {
            let eval =
                Evaluator::new(self.program, self.params, &self.reduced, |_| false, |_| self.program.steps.is_empty());
            split(self.count, GRAIN.div_ceil(per_sequence), |range| self.long(&eval, range));
        }
    }

    fn state(&self) -> State {
        match self.action {
            Action::Fold(_) => State::Fold(RunningFold::new()),
            Action::Arg(_) => State::Arg(Best::NONE),
        }
    }

    /// Bytes that a tile of values takes once more when it is widened.
    fn aside(&self, eval: &Evaluator<'_>) -> usize {
        if self.widen.is_some() || eval.schedule.granularity[self.slot()] != Granularity::PerElement {
            padded(CHUNK * 8)
        } else {
            0
        }
    }

    pub(crate) fn slot(&self) -> usize {
        self.program.outputs[0].slot as usize
    }

    /// The values of a tile in the accumulator's type: where they are, or in `aside`.
    pub(crate) unsafe fn values(&self, eval: &Evaluator<'_>, frame: &TileFrame, n: usize, aside: *mut u8) -> *mut u8 {
        let slot = self.slot();
        let from = frame.addresses[slot];
        // SAFETY: `n` values, or one that stands for all; `aside` has room for `n`.
        unsafe {
            if eval.schedule.granularity[slot] != Granularity::PerElement {
                let mut one = 0u64;
                let place = (&raw mut one).cast::<u8>();
                match self.widen {
                    Some(widen) => widen.run(place, from, 1),
                    None => std::ptr::copy_nonoverlapping(from, place, self.size),
                }
                fill(aside, place, self.size, n);
                return aside;
            }
            match self.widen {
                Some(widen) => {
                    widen.run(aside, from, n);
                    aside
                }
                None => from,
            }
        }
    }

    /// The most values to evaluate at once, when they may have to be copied aside.
    fn step(&self, eval: &Evaluator<'_>) -> usize {
        if self.aside(eval) > 0 { eval.tile_len.min(CHUNK) } else { eval.tile_len }
    }

    /// Sequences that are shorter than a tile.
    fn short(&self, eval: &Evaluator<'_>, range: Range<usize>) {
        let turned = padded(TURNED * self.length * 8);
        let scratch_bytes =
            padded(eval.scratch_bytes()) + self.aside(eval) + padded(RESULTS * 8) + self.emit_scratch() + turned;
        let together = (self.step(eval) / self.length).clamp(1, TURNED);
        scratch::with(scratch_bytes, |scratch: *mut u8| {
            // SAFETY: the parts of the scratch have the sizes asked for.
            unsafe {
                let mut frame = eval.frame(scratch);
                let aside = scratch.add(padded(eval.scratch_bytes()));
                let results = aside.add(self.aside(eval));
                let turned = results.add(padded(RESULTS * 8));
                let rest = turned.add(padded(TURNED * self.length * 8));
                eval.begin_segment(&mut frame, &self.bases);
                let mut first = range.start;
                while first < range.end {
                    let count = RESULTS.min(range.end - first);
                    let mut done = 0;
                    while done < count {
                        let sequences = together.min(count - done);
                        let n = sequences * self.length;
                        eval.run_tile(&mut frame, &self.bases, (first + done) * self.length, n);
                        let values = self.values(eval, &frame, n, aside);
                        match &self.action {
                            Action::Fold(fold) => {
                                let values = FoldValues::plain(values);
                                fold.reduce_rows(results.add(done * fold.size), values, sequences, self.length, turned);
                            }
                            Action::Arg(_) => (0..sequences).for_each(|s| {
                                self.one(values.add(s * self.length * self.size), self.length, results, done + s);
                            }),
                        }
                        done += sequences;
                    }
                    self.emit(results, first, count, rest);
                    first += count;
                }
            }
        });
    }

    /// Reduces `n` contiguous values to result number `at`.
    #[inline]
    unsafe fn one(&self, from: *const u8, n: usize, results: *mut u8, at: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.action {
                Action::Fold(fold) => fold.reduce(results.add(at * fold.size), FoldValues::plain(from), n),
                Action::Arg(arg) => {
                    let mut best = Best::NONE;
                    arg.push(&mut best, from, n, 0);
                    *results.cast::<i64>().add(at) = best.at.max(0);
                }
            }
        }
    }

    /// Sequences of a tile or more, each on its own.
    fn long(&self, eval: &Evaluator<'_>, range: Range<usize>) {
        let scratch_bytes = padded(eval.scratch_bytes()) + self.aside(eval) + padded(RESULTS * 8) + self.emit_scratch();
        scratch::with(scratch_bytes, |scratch: *mut u8| {
            // SAFETY: the parts of the scratch have the sizes asked for.
            unsafe {
                let mut frame = eval.frame(scratch);
                let aside = scratch.add(padded(eval.scratch_bytes()));
                let results = aside.add(self.aside(eval));
                let rest = results.add(padded(RESULTS * 8));
                let mut cursor = Cursor::new(&self.kept, &self.bases, range.start);
                let mut first = range.start;
                while first < range.end {
                    let count = RESULTS.min(range.end - first);
                    for s in 0..count {
                        eval.begin_segment(&mut frame, &cursor.addresses);
                        if self.length <= self.step(eval) {
                            if self.length > 0 {
                                eval.run_tile(&mut frame, &cursor.addresses, 0, self.length);
                            }
                            let values = self.values(eval, &frame, self.length, aside);
                            self.one(values, self.length, results, s);
                        } else {
                            let mut state = self.state();
                            self.walk(eval, &mut frame, &cursor.addresses, 0..self.length, aside, &mut state);
                            self.end(state, results, s);
                        }
                        cursor.advance();
                    }
                    self.emit(results, first, count, rest);
                    first += count;
                }
            }
        });
    }

    /// Takes elements `range` of a sequence into `state`.
    unsafe fn walk(
        &self,
        eval: &Evaluator<'_>,
        frame: &mut TileFrame,
        bases: &[*mut u8],
        range: Range<usize>,
        aside: *mut u8,
        state: &mut State,
    ) {
        let mut at = range.start;
        while at < range.end {
            let n = self.step(eval).min(range.end - at);
            // SAFETY: the caller's promise.
            unsafe {
                eval.run_tile(frame, bases, at, n);
                let values = self.values(eval, frame, n, aside);
                match (&self.action, &mut *state) {
                    (Action::Fold(fold), State::Fold(running)) => running.push(fold, FoldValues::plain(values), n),
                    (Action::Arg(arg), State::Arg(best)) => arg.push(best, values, n, at),
                    _ => {}
                }
            }
            at += n;
        }
    }

    unsafe fn end(&self, state: State, results: *mut u8, at: usize) {
        // SAFETY: the caller has room for result number `at`.
        unsafe {
            match (&self.action, state) {
                (Action::Fold(fold), State::Fold(mut running)) => running.finish(fold, results.add(at * fold.size)),
                (_, State::Arg(best)) => *results.cast::<i64>().add(at) = best.at.max(0),
                _ => {}
            }
        }
    }

    /// A few long sequences, whose chunks several threads share. The tree over the chunks is the
    /// one that a single thread builds as it goes.
    fn rows_by_chunks(&self, chunks: usize) {
        let eval =
            Evaluator::new(self.program, self.params, &self.reduced, |_| false, |_| self.program.steps.is_empty());
        let total = self.count * chunks;
        let place = size_of::<Best>();
        let bytes = padded(total * place) + padded(RESULTS * 8) + self.emit_scratch();
        scratch::with(bytes, |partial: *mut u8| {
            let to = SharedPtr(partial);
            split(total, GRAIN.div_ceil(CHUNK * self.work()), |range| self.chunks(&eval, range, chunks, to.get()));
            // SAFETY: every partial result has been written by the task that it belongs to.
            unsafe {
                let results = partial.add(padded(total * place));
                let rest = results.add(padded(RESULTS * 8));
                for first in (0..self.count).step_by(RESULTS) {
                    let count = RESULTS.min(self.count - first);
                    for s in 0..count {
                        match &self.action {
                            Action::Fold(fold) => {
                                let own = partial.add((first + s) * chunks * fold.size);
                                fold.combine_chunks(own, chunks, 1);
                                std::ptr::copy_nonoverlapping(own, results.add(s * fold.size), fold.size);
                            }
                            Action::Arg(arg) => {
                                let own = partial.cast::<Best>().add((first + s) * chunks);
                                let mut best = *own;
                                (1..chunks).for_each(|c| arg.join(&mut best, *own.add(c)));
                                *results.cast::<i64>().add(s) = best.at.max(0);
                            }
                        }
                    }
                    self.emit(results, first, count, rest);
                }
            }
        });
    }

    /// Reduces chunks `range`, counted over all sequences, to partial results.
    fn chunks(&self, eval: &Evaluator<'_>, range: Range<usize>, chunks: usize, partial: *mut u8) {
        scratch::with(padded(eval.scratch_bytes()) + self.aside(eval), |scratch: *mut u8| {
            // SAFETY: the scratch has the size asked for; partial results of `range` are this task's.
            unsafe {
                let mut frame = eval.frame(scratch);
                let aside = scratch.add(padded(eval.scratch_bytes()));
                let mut sequence = usize::MAX;
                let mut cursor = Cursor::new(&self.kept, &self.bases, range.start / chunks);
                for number in range {
                    if number / chunks != sequence {
                        if sequence != usize::MAX {
                            cursor.advance();
                        }
                        sequence = number / chunks;
                        eval.begin_segment(&mut frame, &cursor.addresses);
                    }
                    let start = number % chunks * CHUNK;
                    let mut state = self.state();
                    self.walk(
                        eval,
                        &mut frame,
                        &cursor.addresses,
                        start..self.length.min(start + CHUNK),
                        aside,
                        &mut state,
                    );
                    match state {
                        State::Arg(best) => *partial.cast::<Best>().add(number) = best,
                        fold => self.end(fold, partial, number),
                    }
                }
            }
        });
    }
}
