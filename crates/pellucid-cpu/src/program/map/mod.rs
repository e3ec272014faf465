//! `Map`: a program, applied element by element.
//!
//! | module | operands |
//! | --- | --- |
//! | `mod.rs` | any strides: axes are merged, inputs are transposed by panels, segments are evaluated tile by tile |
//! | `dense.rs` | every operand is contiguous or one value: a [`DensePtr`] |
//! | `small.rs` | contiguous or one value, with few elements: evaluated as one tile, with almost no setup |
//! | `rows.rs` | rows of any distance, for programs of one instruction |
//! | `batch.rs` | several sets of dense operands in one call |
//! | `epilogue.rs` | blocks of matrices, as the epilogue of a matrix product |

pub(crate) mod batch;
pub(crate) mod dense;
pub(crate) mod dense_operand;
pub(crate) mod epilogue;
mod rows;
pub(crate) mod small;

use self::dense_operand::DensePtr;
use crate::operand::Operand;
use crate::program::evaluate::{Evaluator, TileFrame};
use crate::program::kernel_schedule::KernelSchedule;
use crate::program::loader::{fill, scatter};
use crate::program::loops::{self, StreamLoop};
use crate::program::prepared::PreparedProgram;
use crate::program::shortcut;
use crate::program::slot::Granularity;
use crate::program::transpose::{MIN_TRANSPOSE, is_transposed, transpose_matrix};
use crate::strided::{self, AccessPattern, Cursor, StridedAxes, StridedAxis};
use pellucid_gemm::Threads;
use pellucid_ir::Result;
use pellucid_ir::kernel::{Map, Params};
use pellucid_runtime::list::List;
use pellucid_runtime::scratch;
use pellucid_runtime::threads::{GRAIN, SharedPtr, parallel_ranges};
use pellucid_simd::vector::prefetch_run;
use std::ops::Range;

/// The minimum row length for which each row is a separate segment. Contiguous rows can then be read in place.
const LONG: usize = 128;

/// The minimum row length for which each row is a separate segment although a tile of several rows is possible. For
/// shorter rows, copies of operands that are not contiguous cost less than one call of each loop for every row.
const LONG_FOR_TILES: usize = 768;

/// The rows and columns of a panel of transposed input. A panel fits L2.
const PANEL: (usize, usize) = (64, 1024);

/// The minimum size of all operands, in bytes, for which the operands of the next tile are prefetched. Smaller operands
/// stay in the second-level cache.
const PREFETCH_BYTES: usize = 1 << 20;

/// The minimum number of instructions for which the operands of the next tile are prefetched. A short program reads its
/// operands so fast that the processor prefetches them.
const PREFETCH_STEPS: usize = 8;

/// The number of elements in the unit of work that is distributed to threads.
pub(crate) const SPLIT_UNIT: usize = 1024;

/// Runs `outputs = program(inputs)`, element by element.
///
/// # Errors
/// Returns the error of lowering if the program is not supported.
pub(crate) fn run_map(kernel: &Map, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    let program = PreparedProgram::for_program(&kernel.program)?;
    let Some(shape) = outputs.first().map(|o| o.layout.shape()) else { return Ok(()) };
    let size = shape.size();
    if size == 0 {
        return Ok(());
    }
    let operands = || inputs.iter().chain(outputs);
    let dense = |o: &Operand<'_>| {
        let full = o.layout.shape() == shape;
        (o.layout.is_contiguous() && (full || o.layout.shape().size() == 1))
            .then(|| DensePtr { address: strided::base_address(o), once: !full })
    };
    let mut all_dense: List<DensePtr, 8> = List::new();
    if operands().all(|o| dense(o).map(|d| all_dense.push(d)).is_some()) {
        let (inputs, outputs) = all_dense.split_at(inputs.len());
        // SAFETY: the contract of `run_dense`. *Operands*: the family has checked dtypes and shapes, and every operand
        // is contiguous over `size` elements or is one element. *Aliasing*: outputs do not overlap each other, and an
        // output overlaps an input only if their addresses and layouts are equal; this is checked for every kernel.
        unsafe { dense::run_dense(program, &kernel.params, size, inputs, outputs) };
        return Ok(());
    }
    let mut bases: List<*mut u8, 8> = operands().map(strided::base_address).collect();
    let mut axes = strided::broadcast_axes(shape, operands(), |_| true);
    strided::reorder(&mut axes, inputs.len(), &mut bases);
    strided::merge(&mut axes);
    map_over_axes(program, &kernel.params, &axes, &bases, Threads::Pool);
    Ok(())
}

/// Runs a program over the index space `axes`. The operands are the inputs and then the outputs of the program.
pub(crate) fn map_over_axes(
    program: &PreparedProgram,
    params: &Params,
    axes: &[StridedAxis],
    bases: &[*mut u8],
    threads: Threads,
) {
    let inputs = program.inputs.len();
    if let Some((inner, outer)) = axes.split_last() {
        // An input that is contiguous along an axis other than the innermost is transposed first.
        let is_across = |a: &StridedAxis, k: usize| {
            let are_long = a.len >= MIN_TRANSPOSE && inner.len >= MIN_TRANSPOSE;
            are_long && is_transposed(program.inputs[k].size, a.strides[k], inner.strides[k])
        };
        let contiguous_axis = |k: usize| outer.iter().rposition(|a| is_across(a, k));
        if let Some(across) = (0..inputs).find_map(contiguous_axis) {
            return map_by_panels(program, params, axes, across, bases, threads);
        }
    }
    if rows::run_single_rows(program, params, axes, bases, threads) {
        return;
    }
    let long = axes.len() > 1 && axes.last().is_some_and(|a| a.len >= min_segment(program, axes));
    let (outer, inner) = axes.split_at(if long { axes.len() - 1 } else { 0 });
    map_segments(program, params, outer, inner, bases, threads);
}

/// Returns the minimum row length for which each row is a separate segment.
fn min_segment(program: &PreparedProgram, axes: &[StridedAxis]) -> usize {
    let inputs = program.inputs.len();
    let are_outputs_dense = || {
        let mut outputs = program.outputs.iter().enumerate();
        outputs.all(|(o, output)| strided::access_pattern(axes, inputs + o, output.size) == AccessPattern::Dense)
    };
    let is_tiled =
        program.steps.len() > 1 && are_outputs_dense() && row_value_cost(program, axes) <= MAX_ROW_VALUE_COST;
    if is_tiled { LONG_FOR_TILES } else { LONG }
}

/// The maximum [`row_value_cost`] of a program that computes several rows in a tile.
const MAX_ROW_VALUE_COST: usize = 2;

/// Returns the cost of the instructions whose results are constant in each row and differ between rows. A tile of
/// several rows computes them for every element.
fn row_value_cost(program: &PreparedProgram, axes: &[StridedAxis]) -> usize {
    let Some((inner, outer)) = axes.split_last() else { return 0 };
    let mut total = 0;
    // For every slot, whether its value differs between rows; `None` for values per element.
    let input = |k: usize| (inner.strides[k] == 0).then(|| outer.iter().any(|axis| axis.strides[k] != 0));
    let uniforms = program.uniforms.iter().map(|_| Some(false));
    let mut differs: List<Option<bool>, 32> = (0..program.inputs.len()).map(input).chain(uniforms).collect();
    for step in &program.steps {
        let result = step.args.iter().try_fold(false, |result, &arg| Some(result | differs[arg as usize]?));
        if result == Some(true) {
            total += shortcut::cost(step.fusable.map(|(opcode, _)| opcode));
        }
        differs.push(result);
    }
    total
}

/// Runs a program panel by panel. Inputs that are contiguous along axis `across` are transposed into scratch, in which
/// they are contiguous along the innermost axis.
fn map_by_panels(
    program: &PreparedProgram,
    params: &Params,
    axes: &[StridedAxis],
    across: usize,
    bases: &[*mut u8],
    threads: Threads,
) {
    let (row, column) = (&axes[across], &axes[axes.len() - 1]);
    let others: StridedAxes = (0..axes.len() - 1).filter(|&a| a != across).map(|a| axes[a].clone()).collect();
    let is_transposed = |k: usize| is_transposed(program.inputs[k].size, row.strides[k], column.strides[k]);
    let (rows, columns) = (row.len.div_ceil(PANEL.0), column.len.div_ceil(PANEL.1));
    let panels = strided::element_count(&others) * rows * columns;
    let starts: List<SharedPtr<u8>, 8> = bases.iter().map(|&b| SharedPtr(b)).collect();
    let panel_bytes = |k: usize| PANEL.0 * PANEL.1 * program.inputs[k].size;
    let scratch_bytes: usize = (0..program.inputs.len()).filter(|&k| is_transposed(k)).map(panel_bytes).sum();
    for_each_range(threads, panels, 1, |range| {
        for panel in range {
            let (i, j) = (panel / columns % rows * PANEL.0, panel % columns * PANEL.1);
            let (height, width) = (PANEL.0.min(row.len - i), PANEL.1.min(column.len - j));
            let bases: List<*mut u8, 8> = starts.iter().map(SharedPtr::get).collect();
            let mut addresses = Cursor::at(&others, &bases, panel / columns / rows).positions;
            for (k, address) in addresses.iter_mut().enumerate() {
                *address = address.wrapping_offset(i as isize * row.strides[k] + j as isize * column.strides[k]);
            }
            let mut axes: [StridedAxis; 2] =
                [StridedAxis { len: height, ..row.clone() }, StridedAxis { len: width, ..column.clone() }];
            scratch::with_buffer(scratch_bytes, |mut scratch: *mut u8| {
                for k in (0..program.inputs.len()).filter(|&k| is_transposed(k)) {
                    let size = program.inputs[k].size;
                    let from = (addresses[k].cast_const(), [row.strides[k], column.strides[k]]);
                    let to_strides = [width * size, size].map(|stride| stride as isize);
                    // SAFETY: the contract of `transpose_matrix`. *Source*: the panel is part of the operand. *Target*
                    // and *Disjoint*: this part of the scratch holds a panel, is aligned, and belongs to this call.
                    unsafe { transpose_matrix(size, from, (scratch, to_strides), height, width) };
                    (axes[0].strides[k], axes[1].strides[k], addresses[k]) = (to_strides[0], to_strides[1], scratch);
                    scratch = scratch.wrapping_add(panel_bytes(k));
                }
                let mut axes: StridedAxes = axes.into_iter().collect();
                strided::merge(&mut axes);
                let long = axes.len() > 1 && width >= LONG;
                let (outer, inner) = axes.split_at(if long { axes.len() - 1 } else { 0 });
                map_segments(program, params, outer, inner, &addresses, threads);
            });
        }
    });
}

/// Runs a program over the index space `outer ++ inner` in segments of `inner`. The operands are the inputs and then
/// the outputs of the program.
fn map_segments(
    program: &PreparedProgram,
    params: &Params,
    outer: &[StridedAxis],
    inner: &[StridedAxis],
    bases: &[*mut u8],
    threads: Threads,
) {
    let (inputs, out) = bases.split_at(program.inputs.len());
    // An output in the memory of an input may be written before the last read of the input. The input is then staged:
    // copied to a buffer, tile by tile.
    let written = |o: usize| program.outputs[o].direct.unwrap_or(program.steps.len() + 1);
    let staged = |k: usize| (0..out.len()).any(|o| out[o] == inputs[k] && program.inputs[k].last_read > written(o));
    let pattern = |o: usize| match strided::access_pattern(inner, inputs.len() + o, program.outputs[o].size) {
        // An output is uniform only in a segment of one element, which is dense too.
        AccessPattern::Uniform => AccessPattern::Dense,
        other => other,
    };
    let patterns: List<AccessPattern, 4> = (0..out.len()).map(pattern).collect();
    let length = strided::element_count(inner);
    let total = length * strided::element_count(outer);
    let widest = program.outputs.iter().map(|o| o.size).max().unwrap_or(0);
    let stream = loops::streaming(total * widest, || out.iter().any(|to| inputs.contains(to)));
    let direct = (program.outputs.iter().zip(&patterns))
        .all(|(o, &pattern)| o.direct.is_some() && pattern == AccessPattern::Dense);
    let aligned = (program.outputs.iter().zip(&patterns).zip(out))
        .all(|((o, &pattern), &to)| pattern == AccessPattern::Dense && to.addr().is_multiple_of(o.size));
    let is_streamed = |schedule: &KernelSchedule| program.outputs.iter().all(|o| schedule.is_streamed[o.slot as usize]);
    let own = |schedule: &KernelSchedule| direct && (stream.is_none() || aligned && is_streamed(schedule));
    let mut eval = Evaluator::new(program, params, inner, staged, own);
    eval.stream = stream.is_some() && aligned;
    eval.gather_repeated_inputs_once();
    // If the evaluator reads all inputs in place, it has no buffers. `own` is then true, so all per-element outputs are
    // written in place too.
    let in_place = eval.reads_in_place()
        && (program.outputs.iter()).all(|o| eval.schedule.granularity[o.slot as usize] == Granularity::PerElement);
    let is_constant = |k: usize| outer.iter().all(|axis| axis.strides[k] == 0);
    let has_varying = |k: usize| eval.schedule.granularity[k] == Granularity::Uniform && !is_constant(k);
    let prepares_once = in_place || !(0..inputs.len()).any(has_varying);
    let bytes: usize = program.inputs.iter().map(|i| i.size).chain(program.outputs.iter().map(|o| o.size)).sum();
    let prefetches = stream.is_none() && program.steps.len() >= PREFETCH_STEPS && total * bytes > PREFETCH_BYTES;
    let map = SegmentedMap { eval, outer, patterns, bases, length, stream, in_place, prepares_once, prefetches };
    let grain = GRAIN / (bytes + 2 * program.steps.len()).max(1);
    let run_units = |r: Range<usize>| map.run_range(r.start * SPLIT_UNIT..total.min(r.end * SPLIT_UNIT));
    for_each_range(threads, total.div_ceil(SPLIT_UNIT), grain.div_ceil(SPLIT_UNIT), run_units);
}

/// Calls `work` for ranges that cover `0..total`: once on this thread, or from the pool as [`parallel_ranges`] does.
#[inline]
fn for_each_range(threads: Threads, total: usize, grain: usize, work: impl Fn(Range<usize>) + Sync) {
    match threads {
        Threads::One => work(0..total),
        Threads::Pool => parallel_ranges(total, grain, work),
    }
}

/// A map over an index space that is evaluated in segments.
struct SegmentedMap<'a> {
    eval: Evaluator<'a>,
    /// The outer axes, which number the segments.
    outer: &'a [StridedAxis],
    /// The access pattern of every output in a segment.
    patterns: List<AccessPattern, 4>,
    /// The address of the first element of every input and output.
    bases: &'a [*mut u8],
    /// The number of elements of a segment.
    length: usize,
    /// The copy with non-temporal stores, if the outputs are too large for the caches.
    stream: Option<StreamLoop>,
    /// Whether all operands are used in place.
    in_place: bool,
    /// Whether only the first segment needs preparation: all operands are used in place, or all values that are
    /// constant in a segment are the same in every segment.
    prepares_once: bool,
    /// Whether the operands of the next tile are prefetched.
    prefetches: bool,
}

// SAFETY: threads evaluate disjoint ranges of elements, and write disjoint memory of every output. If an input has the
// address and layout of an output, each thread reads only its own range of it. No other memory is written.
unsafe impl Sync for SegmentedMap<'_> {}

impl SegmentedMap<'_> {
    /// Evaluates a range of elements of the entire index space.
    fn run_range(&self, range: Range<usize>) {
        let (mut done, mut within) = (range.start, range.start % self.length);
        let mut cursor = Cursor::at(self.outer, self.bases, range.start / self.length);
        scratch::with_buffer(self.eval.scratch_bytes(), |scratch: *mut u8| {
            // SAFETY: `scratch` is aligned to 64 bytes and has `scratch_bytes` bytes, which is the contract of `frame`
            // and implies *Frame* of `begin_segment`. The cursor is at a segment of the operands (*Operands* of
            // `begin_segment`, *Outputs* of `run_tile`), and `within + n` is at most the length of the segment (*Range*
            // of `run_tile`).
            unsafe {
                let mut frame = self.eval.frame(scratch);
                let mut is_prepared = false;
                while done < range.end {
                    let end = self.length.min(within + range.end - done);
                    if !is_prepared {
                        self.eval.begin_segment(&mut frame, &cursor.positions);
                        is_prepared = self.prepares_once;
                    }
                    done += end - within;
                    if self.in_place {
                        self.run_in_place(&mut frame, &cursor.positions, within, end - within);
                        within = end;
                    }
                    while within < end {
                        let n = self.eval.tile_len.min(end - within);
                        if self.prefetches {
                            self.prefetch_tile(&cursor.positions, within + n, n.min(end - within - n));
                        }
                        self.run_tile(&mut frame, &cursor.positions, within, n);
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

    /// Prefetches elements `start..start + n` of all contiguous operands of a segment.
    fn prefetch_tile(&self, bases: &[*mut u8], start: usize, n: usize) {
        let outputs = self.eval.program.outputs.iter().zip(&self.patterns).map(|(output, &p)| (output.size, p));
        for (&base, (size, pattern)) in bases.iter().zip(self.eval.input_patterns().chain(outputs)) {
            if pattern == AccessPattern::Dense {
                prefetch_run(base.wrapping_add(start * size).cast_const(), n * size);
            }
        }
    }

    /// Evaluates elements `start..start + n` of a segment if all operands are used in place.
    ///
    /// # Safety
    /// *Frame* and *Operands* of [`Evaluator::run_in_place`] hold, and *Range* and *Outputs* of
    /// [`SegmentedMap::run_tile`].
    #[inline]
    unsafe fn run_in_place(&self, frame: &mut TileFrame, bases: &[*mut u8], start: usize, n: usize) {
        let outputs = &self.eval.program.outputs;
        for (output, &base) in outputs.iter().zip(&bases[self.eval.program.inputs.len()..]) {
            frame.addresses[output.slot as usize] = base.wrapping_add(start * output.size);
        }
        // SAFETY: by this function's contract. *Results*: elements `start..start + n` of every output are valid for
        // writes (*Range*, *Outputs*); no input is staged, so none is read after an output in its memory was written.
        unsafe { self.eval.run_in_place(frame, bases, start, n) };
    }

    /// Evaluates elements `start..start + n` of a segment and stores the results.
    ///
    /// # Safety
    /// - *Segment*, *Range*: the clauses of these names of [`Evaluator::run_tile`] hold.
    /// - *Outputs*: after the inputs, `bases` has the address of the first element of every output in the segment. The
    ///   elements of the outputs are valid for writes, and an output overlaps an input only if their addresses and
    ///   layouts are equal.
    unsafe fn run_tile(&self, frame: &mut TileFrame, bases: &[*mut u8], start: usize, n: usize) {
        let program = self.eval.program;
        let out = &bases[program.inputs.len()..];
        let is_tile = |slot: usize| self.eval.schedule.granularity[slot] == Granularity::PerElement;
        // SAFETY: by this function's contract, elements `start..start + n` of every output are valid for writes
        // (*Range*, *Outputs*). *Results* of `Evaluator::run_tile`: an input in the memory of an output is staged if it
        // is read after the output is written, and results are streamed only if all outputs are aligned. `frame.raw`
        // holds `n` values of any type.
        unsafe {
            for ((output, &base), &pattern) in program.outputs.iter().zip(out).zip(&self.patterns) {
                let slot = output.slot as usize;
                let direct = output.direct.is_some() && pattern == AccessPattern::Dense && is_tile(slot);
                if direct && (self.stream.is_none() || self.eval.stream && self.eval.schedule.is_streamed[slot]) {
                    frame.addresses[slot] = base.add(start * output.size);
                }
            }
            self.eval.run_tile(frame, bases, start, n);
            for (o, (output, &base)) in program.outputs.iter().zip(out).enumerate() {
                let mut from = frame.addresses[output.slot as usize];
                let dense = self.patterns[o] == AccessPattern::Dense;
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
                        Some(stream) => stream(to, from, n * output.size, []),
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
