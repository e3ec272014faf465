//! `Map`: a program, element by element.

pub(crate) mod batch;
pub(crate) mod dense;
pub(crate) mod epilogue;
pub(crate) mod small;

use self::dense::Dense;
use crate::operand::Operand;
use crate::program::evaluate::Evaluator;
use crate::program::loader::{fill, scatter};
use crate::program::loops::{self, StreamLoop};
use crate::program::lower::Prepared;
use crate::program::schedule::{Granularity, KernelSchedule};
use crate::program::strided::{self, AccessPattern, Axes, Axis, Cursor};
use crate::program::transpose::turn;
use pellucid_gemm::Threads;
use pellucid_ir::Result;
use pellucid_ir::kernel::{Map, Params};
use pellucid_runtime::list::List;
use pellucid_runtime::scratch;
use pellucid_runtime::threads::{GRAIN, SharedPtr, split};
use std::ops::Range;

/// Rows at least this long are worth walking one by one, used where they lie.
const LONG: usize = 128;

/// Axes at least this long are worth a transposition.
const TURN: usize = 8;

/// Rows and columns of a panel of transposed input: together they stay in L2.
const PANEL: (usize, usize) = (64, 1024);

/// Elements are dealt out to threads in units of so many.
pub(crate) const UNIT: usize = 1024;

/// Runs `outputs = program(inputs)`, element by element.
pub(crate) fn run_map(kernel: &Map, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    let program = Prepared::of(&kernel.program)?;
    let Some(shape) = outputs.first().map(|o| o.layout.shape()) else { return Ok(()) };
    let size = shape.size();
    if size == 0 {
        return Ok(());
    }
    let operands = || inputs.iter().chain(outputs);
    let dense = |o: &Operand<'_>| {
        let full = o.layout.shape() == shape;
        (o.layout.is_contiguous() && (full || o.layout.shape().size() == 1))
            .then(|| Dense { at: strided::start(o), once: !full })
    };
    let mut places: List<Dense, 8> = List::new();
    if operands().all(|o| dense(o).map(|d| places.push(d)).is_some()) {
        let (inputs, outputs) = places.split_at(inputs.len());
        // SAFETY: the operands are dense over `size` elements, and overlap only where an input and an
        // output are the same view.
        unsafe { dense::run(program, &kernel.params, size, inputs, outputs) };
        return Ok(());
    }
    let mut bases: List<*mut u8, 8> = operands().map(strided::start).collect();
    let mut axes = strided::axes(shape, operands(), |_| true);
    strided::reorder(&mut axes, inputs.len(), &mut bases);
    strided::merge(&mut axes);
    run(program, &kernel.params, &axes, &bases, Threads::Pool);
    Ok(())
}

/// Runs a program over the index space `axes`, whose operands are its inputs and then its outputs.
pub(crate) fn run(program: &Prepared, params: &Params, axes: &[Axis], bases: &[*mut u8], threads: Threads) {
    let inputs = program.inputs.len();
    if let Some((inner, outer)) = axes.split_last() {
        // An input that is dense along another axis than the innermost is turned first.
        let across = |k: usize| {
            let (size, step) = (program.inputs[k].size as isize, inner.steps[k]);
            let turned = step != size && step != 0 && inner.len >= TURN;
            outer.iter().rposition(|a| turned && a.steps[k] == size && a.len >= TURN)
        };
        if let Some(across) = (0..inputs).find_map(across) {
            return run_turned(program, params, axes, across, bases, threads);
        }
    }
    let long = axes.len() > 1 && axes.last().is_some_and(|a| a.len >= LONG);
    let (outer, inner) = axes.split_at(if long { axes.len() - 1 } else { 0 });
    run_segments(program, params, outer, inner, bases, threads);
}

/// Runs a program panel by panel; inputs that are dense along axis `across` are turned into scratch,
/// to be dense along the innermost axis.
fn run_turned(program: &Prepared, params: &Params, axes: &[Axis], across: usize, bases: &[*mut u8], threads: Threads) {
    let (row, column) = (&axes[across], &axes[axes.len() - 1]);
    let others: Axes = (0..axes.len() - 1).filter(|&a| a != across).map(|a| axes[a].clone()).collect();
    let turned = |k: usize| {
        let size = program.inputs[k].size as isize;
        row.steps[k] == size && column.steps[k] != size && column.steps[k] != 0
    };
    let (rows, columns) = (row.len.div_ceil(PANEL.0), column.len.div_ceil(PANEL.1));
    let panels = strided::count(&others) * rows * columns;
    let starts: List<SharedPtr<u8>, 8> = bases.iter().map(|&b| SharedPtr(b)).collect();
    let panel_bytes = |k: usize| PANEL.0 * PANEL.1 * program.inputs[k].size;
    let scratch_bytes: usize = (0..program.inputs.len()).filter(|&k| turned(k)).map(panel_bytes).sum();
    shared(threads, panels, 1, |range| {
        for panel in range {
            let (i, j) = (panel / columns % rows * PANEL.0, panel % columns * PANEL.1);
            let (height, width) = (PANEL.0.min(row.len - i), PANEL.1.min(column.len - j));
            let own: List<*mut u8, 8> = starts.iter().map(SharedPtr::get).collect();
            let mut at = Cursor::new(&others, &own, panel / columns / rows).at;
            for (k, at) in at.iter_mut().enumerate() {
                *at = at.wrapping_offset(i as isize * row.steps[k] + j as isize * column.steps[k]);
            }
            let mut axes: [Axis; 2] = [Axis { len: height, ..row.clone() }, Axis { len: width, ..column.clone() }];
            scratch::with(scratch_bytes, |mut scratch: *mut u8| {
                for k in (0..program.inputs.len()).filter(|&k| turned(k)) {
                    let size = program.inputs[k].size;
                    let (from, to_row) = (at[k], (width * size) as isize);
                    // SAFETY: the panel lies within the operand, and the scratch has room for it.
                    unsafe { turn(size, from, column.steps[k], scratch, to_row, height, width) };
                    (axes[0].steps[k], axes[1].steps[k], at[k]) = (to_row, size as isize, scratch);
                    scratch = scratch.wrapping_add(panel_bytes(k));
                }
                let mut axes: Axes = axes.into_iter().collect();
                strided::merge(&mut axes);
                let long = axes.len() > 1 && width >= LONG;
                let (outer, inner) = axes.split_at(if long { axes.len() - 1 } else { 0 });
                run_segments(program, params, outer, inner, &at, threads);
            });
        }
    });
}

/// Runs a program over the index space `outer ++ inner`, whose operands are the program's inputs
/// and then its outputs, in segments of `inner`.
fn run_segments(
    program: &Prepared,
    params: &Params,
    outer: &[Axis],
    inner: &[Axis],
    bases: &[*mut u8],
    threads: Threads,
) {
    let (inputs, out) = bases.split_at(program.inputs.len());
    // An output in the memory of an input may be written before the input is read for the last
    // time; then the input is copied aside, tile by tile.
    let written = |o: usize| program.outputs[o].direct.unwrap_or(program.steps.len() + 1);
    let staged = |k: usize| (0..out.len()).any(|o| out[o] == inputs[k] && program.inputs[k].last_read > written(o));
    let lie = |o: usize| match strided::lie(inner, inputs.len() + o, program.outputs[o].size) {
        // One element, which every lie describes.
        AccessPattern::Once => AccessPattern::Dense,
        other => other,
    };
    let lies: List<AccessPattern, 4> = (0..out.len()).map(lie).collect();
    let length = strided::count(inner);
    let total = length * strided::count(outer);
    let widest = program.outputs.iter().map(|o| o.size).max().unwrap_or(0);
    let stream = loops::streaming(total * widest, || out.iter().any(|to| inputs.contains(to)));
    let direct = program.outputs.iter().zip(&lies).all(|(o, &lie)| o.direct.is_some() && lie == AccessPattern::Dense);
    let aligned = (program.outputs.iter().zip(&lies).zip(out))
        .all(|((o, &lie), &to)| lie == AccessPattern::Dense && to.addr().is_multiple_of(o.size));
    let streams = |linked: &KernelSchedule| program.outputs.iter().all(|o| linked.streams[o.slot as usize]);
    let own = |linked: &KernelSchedule| direct && (stream.is_none() || aligned && streams(linked));
    let mut eval = Evaluator::new(program, params, inner, staged, own);
    eval.stream = stream.is_some() && aligned;
    let job = Job { eval, outer, lies, bases, length, stream };
    let bytes: usize = program.inputs.iter().map(|i| i.size).chain(program.outputs.iter().map(|o| o.size)).sum();
    let grain = GRAIN / (bytes + 2 * program.steps.len()).max(1);
    let piece = |r: Range<usize>| job.range(r.start * UNIT..total.min(r.end * UNIT));
    shared(threads, total.div_ceil(UNIT), grain.div_ceil(UNIT), piece);
}

/// Runs `work` over `0..total` on this thread, or as [`split`] does.
#[inline]
fn shared(threads: Threads, total: usize, grain: usize, work: impl Fn(Range<usize>) + Sync) {
    match threads {
        Threads::One => work(0..total),
        Threads::Pool => split(total, grain, work),
    }
}

struct Job<'a> {
    eval: Evaluator<'a>,
    outer: &'a [Axis],
    /// How the outputs lie in a segment.
    lies: List<AccessPattern, 4>,
    bases: &'a [*mut u8],
    /// Elements of a segment.
    length: usize,
    /// For outputs too large to be kept in any cache.
    stream: Option<StreamLoop>,
}

// SAFETY: threads work on disjoint ranges of elements, which lie in disjoint memory of each output
// and, in place, of the input that is the same view.
unsafe impl Sync for Job<'_> {}

impl Job<'_> {
    fn range(&self, range: Range<usize>) {
        let (mut done, mut within) = (range.start, range.start % self.length);
        let mut cursor = Cursor::new(self.outer, self.bases, range.start / self.length);
        scratch::with(self.eval.scratch(), |scratch: *mut u8| {
            // SAFETY: `scratch` has the size asked for; the cursor stays within the operands.
            unsafe {
                let mut frame = self.eval.frame(scratch);
                while done < range.end {
                    let end = self.length.min(within + range.end - done);
                    self.eval.begin(&mut frame, &cursor.at);
                    done += end - within;
                    while within < end {
                        let n = self.eval.tile.min(end - within);
                        self.tile(&mut frame, &cursor.at, within, n);
                        within += n;
                    }
                    within = 0;
                    cursor.advance();
                }
            }
        });
        if self.stream.is_some() {
            loops::store_fence();
        }
    }

    unsafe fn tile(&self, frame: &mut crate::program::evaluate::Frame, bases: &[*mut u8], start: usize, n: usize) {
        let program = self.eval.program;
        let out = &bases[program.inputs.len()..];
        let is_tile = |slot: usize| self.eval.linked.class[slot] == Granularity::PerElement;
        // SAFETY: elements `start..start + n` lie within the segment of every operand.
        unsafe {
            for ((output, &base), &lie) in program.outputs.iter().zip(out).zip(&self.lies) {
                let slot = output.slot as usize;
                let direct = output.direct.is_some() && lie == AccessPattern::Dense && is_tile(slot);
                if direct && (self.stream.is_none() || self.eval.stream && self.eval.linked.streams[slot]) {
                    frame.at[slot] = base.add(start * output.size);
                }
            }
            self.eval.tile(frame, bases, start, n);
            for (o, (output, &base)) in program.outputs.iter().zip(out).enumerate() {
                let mut from = frame.at[output.slot as usize];
                let dense = self.lies[o] == AccessPattern::Dense;
                let to = if dense { base.add(start * output.size) } else { frame.raw };
                if !is_tile(output.slot as usize) {
                    let mut one = 0u64;
                    if let Some(store) = output.store {
                        store.run((&raw mut one).cast(), from, 1);
                        from = (&raw mut one).cast();
                    }
                    fill(to, from, output.size, n);
                } else if let Some(store) = output.store {
                    store.run(to, from, n);
                } else if !dense {
                    scatter(from, output.size, self.eval.inner, program.inputs.len() + o, base, start, n);
                    continue;
                } else if from != to {
                    match self.stream {
                        Some(stream) => stream(to, from, n * output.size),
                        None => std::ptr::copy(from, to, n * output.size),
                    }
                }
                if !dense {
                    scatter(to, output.size, self.eval.inner, program.inputs.len() + o, base, start, n);
                }
            }
        }
    }
}
