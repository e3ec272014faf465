//! `Pool`: max pooling, which returns the largest element of every window and its position, and its gradient.
//!
//! Outputs are computed row by row, in blocks of adjacent outputs whose maxima stay in registers for all taps of the
//! window. Every input line is first deinterleaved: element i goes to phase i mod stride, so that the same tap of
//! adjacent windows is contiguous. Outputs are computed one at a time if their window extends into the padding, if the
//! stride is above three, or if the window is adaptive or too long for the buffer of a phase.

mod gradient;
#[cfg(test)]
mod tests;

use crate::dense::DenseArray;
use crate::element::{ComputeScalar, StorageElement};
use crate::family::CpuFamily;
use crate::operand::Operand;
use pellucid_ir::kernel::{Pool, PoolPart, PoolWindows, Window, adaptive_window};
use pellucid_ir::{DType, Result, Shape};
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{GRAIN, parallel_ranges};
use pellucid_simd::{Isa, per_isa, up_to};
use std::ops::Range;

impl CpuFamily for Pool {
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        match self.part {
            PoolPart::Maximum => run_maximum(&self.windows, &inputs[0], &outputs[0], &outputs[1]),
            PoolPart::Gradient => gradient::compute_gradient(&inputs[0], &inputs[1], &outputs[0]),
        }
    }
}

/// Computes the maxima and their positions.
///
/// # Errors
/// Returns an error if memory cannot be allocated.
fn run_maximum(windows: &PoolWindows, x: &Operand<'_>, values: &Operand<'_>, positions: &Operand<'_>) -> Result<()> {
    if values.shape().size() == 0 {
        return Ok(());
    }
    let windows = WindowAxes::new(windows, x.shape(), values.shape());
    let dense = DenseArray::of_input(x, x.dtype)?;
    let x = &dense.operand();
    match x.dtype {
        // Booleans are stored as the bytes 0 and 1, so they are pooled as `u8`.
        DType::Bool => windows.run::<u8>(x, values, positions),
        dtype => with_storage_element!(dtype, T => windows.run::<T>(x, values, positions)),
    }
    Ok(())
}

/// The windows along one axis.
struct WindowAxis {
    /// The length of the input.
    len: usize,
    /// The number of outputs.
    outputs: usize,
    stride: usize,
    dilation: usize,
    /// The padding before the first element.
    before: usize,
    /// The number of taps of a window, or of the first adaptive window.
    size: usize,
    /// Whether windows are adaptive. Adaptive windows have no stride, dilation or padding.
    is_adaptive: bool,
}

impl WindowAxis {
    fn new(windows: &PoolWindows, a: usize, len: usize, outputs: usize) -> WindowAxis {
        match windows {
            PoolWindows::Sliding(Window { size, stride, dilation, before }) => WindowAxis {
                len,
                outputs,
                stride: stride[a],
                dilation: dilation[a],
                before: before[a],
                size: size[a],
                is_adaptive: false,
            },
            PoolWindows::Adaptive => {
                let size = adaptive_window(len, outputs, 0).len();
                WindowAxis { len, outputs, stride: 1, dilation: 1, before: 0, size, is_adaptive: true }
            }
        }
    }

    /// Returns the taps of output o that are inside the input.
    fn taps(&self, o: usize) -> Range<usize> {
        if self.is_adaptive {
            return 0..adaptive_window(self.len, self.outputs, o).len();
        }
        let start = self.before.saturating_sub(self.stride * o).div_ceil(self.dilation);
        let end = (self.len + self.before).saturating_sub(self.stride * o).div_ceil(self.dilation);
        start..end.min(self.size)
    }

    /// Returns the outputs whose taps are all inside the input, a range within `0..outputs`. It is empty if the window
    /// is longer than the input, and for adaptive windows, which have different numbers of taps.
    fn interior(&self) -> Range<usize> {
        if self.is_adaptive {
            return 0..0;
        }
        let start = self.before.div_ceil(self.stride).min(self.outputs);
        let last = self.dilation * (self.size - 1);
        let end = (self.len + self.before).saturating_sub(last).div_ceil(self.stride).min(self.outputs);
        start..end.max(start)
    }

    /// Returns the input position of tap t of output o, which must be inside the input.
    fn position(&self, o: usize, t: usize) -> usize {
        if self.is_adaptive {
            return adaptive_window(self.len, self.outputs, o).start + t;
        }
        self.stride * o + self.dilation * t - self.before
    }
}

/// The windows along the last three axes.
struct WindowAxes([WindowAxis; 3]);

impl WindowAxes {
    /// Creates the windows of an input of shape `from` and outputs of shape `to`, which the rule of the family accepts.
    fn new(windows: &PoolWindows, from: &Shape, to: &Shape) -> WindowAxes {
        let lead = from.rank() - 3;
        WindowAxes([0, 1, 2].map(|a| WindowAxis::new(windows, a, from[lead + a], to[lead + a])))
    }

    /// Pools all planes. `x`, `values` and `positions` are contiguous.
    fn run<T: StorageElement>(&self, x: &Operand<'_>, values: &Operand<'_>, positions: &Operand<'_>) {
        let [z, y, c] = &self.0;
        let (input_plane, output_plane) = (z.len * y.len * c.len, z.outputs * y.outputs * c.outputs);
        let planes = values.shape().size() / output_plane;
        let (x, values, positions) = (x.first::<T>(), values.first::<T>(), positions.first::<i64>());
        let work = output_plane * z.size * y.size * c.size * size_of::<T>();
        let (kernel, input_size, rows) = (max_pool_kernel::<T>(c.stride), planes * input_plane, self.rows());
        parallel_ranges(planes, GRAIN / work.max(1) + 1, |range| {
            for p in range {
                // SAFETY: every operand is contiguous and has `planes` planes, and all its elements are in its buffer.
                // Plane p of an output is written by this task alone, and no thread writes the input.
                let (x, values, positions) = unsafe {
                    (
                        std::slice::from_raw_parts(x.get().add(p * input_plane), input_size - p * input_plane),
                        std::slice::from_raw_parts_mut(values.get().add(p * output_plane), output_plane),
                        std::slice::from_raw_parts_mut(positions.get().add(p * output_plane), output_plane),
                    )
                };
                self.pool_plane(kernel, &rows, x, values, positions);
            }
        });
    }

    /// Returns, for every row of an output plane, the index of the first input element of its windows, and the taps of
    /// a window that is inside the input along the last axis.
    fn rows(&self) -> List<(usize, WindowTaps), 32> {
        let [z, y, c] = &self.0;
        let steps = [z.dilation * y.len * c.len, y.dilation * c.len, c.dilation];
        let row = |oz, oy| {
            let (tz, ty) = (z.taps(oz), y.taps(oy));
            let first = (z.position(oz, tz.start) * y.len + y.position(oy, ty.start)) * c.len;
            (first, WindowTaps::new([tz.len(), ty.len(), c.size], steps))
        };
        (0..z.outputs).flat_map(|oz| (0..y.outputs).map(move |oy| row(oz, oy))).collect()
    }

    /// Pools the plane at the start of `x`. The slice `x` extends to the end of the input, because a block may read
    /// beyond the plane.
    fn pool_plane<T: StorageElement>(
        &self,
        kernel: MaxPoolKernel<T>,
        rows: &[(usize, WindowTaps)],
        x: &[T],
        values: &mut [T],
        positions: &mut [i64],
    ) {
        let [_, _, c] = &self.0;
        let interior = c.interior();
        for (row, &(first, ref taps)) in rows.iter().enumerate() {
            // The slices extend to the end of the plane: a block may write beyond its row, because the elements after
            // the row are overwritten later.
            let (values, positions) = (&mut values[row * c.outputs..], &mut positions[row * c.outputs..]);
            let mut o = interior.start;
            while o < interior.end {
                let (start, count) = (first + c.position(o, 0), interior.end - o);
                // SAFETY: the kernel is safe code, compiled for an instruction set of this processor.
                let done = unsafe { kernel(taps, x, start, &mut values[o..], &mut positions[o..], count) };
                if done == 0 {
                    for o in o..interior.end.min(o + BLOCK) {
                        (values[o], positions[o]) = taps.largest(x, first + c.position(o, 0));
                    }
                }
                o += done.max(BLOCK);
            }
            for o in (0..interior.start).chain(interior.end..c.outputs) {
                let inside = c.taps(o);
                let edge = WindowTaps::new([taps.counts[0], taps.counts[1], inside.len()], taps.steps);
                (values[o], positions[o]) = edge.largest(x, first + c.position(o, inside.start));
            }
        }
    }
}

/// The taps of a window that are inside the input.
#[derive(Clone, Copy)]
struct WindowTaps {
    /// The number of taps along each axis.
    counts: [usize; 3],
    /// The distance between adjacent taps along each axis, in elements of the plane.
    steps: [usize; 3],
    /// The distance from the first tap to the last.
    span: usize,
}

impl WindowTaps {
    fn new(counts: [usize; 3], steps: [usize; 3]) -> WindowTaps {
        let span = counts.iter().zip(steps).map(|(count, step)| (count - 1) * step).sum();
        WindowTaps { counts, steps, span }
    }

    /// Iterates over the lines of taps along the last axis, and returns the offset of each line from the first tap.
    fn line_offsets(&self) -> impl Iterator<Item = usize> {
        let &WindowTaps { counts: [z, y, _], steps, .. } = self;
        (0..z).flat_map(move |z| (0..y).map(move |y| z * steps[0] + y * steps[1]))
    }

    /// Returns the largest tap and its index in the plane. `first` is the index of the first tap.
    fn largest<T: StorageElement>(&self, x: &[T], first: usize) -> (T, i64) {
        let (mut best, mut position) = (x[first], first);
        let (count, step) = (self.counts[2], self.steps[2]);
        for line in self.line_offsets() {
            let start = first + line;
            (best, position) = match step {
                1 if count >= 16 => largest_by_chunks::<T, 16>(x, (best, position), start..start + count),
                1 if count >= 8 => largest_by_chunks::<T, 8>(x, (best, position), start..start + count),
                _ => first_largest(x, (best, position), (0..count).map(|c| start + c * step)),
            };
        }
        (best, position as i64)
    }
}

/// Computes [`first_largest`] of a range of at least N elements. Most chunks of N elements contain no larger element,
/// so they need no branch for each element. The last chunk may overlap the previous one, because equal elements do not
/// replace the maximum.
#[inline(always)]
fn largest_by_chunks<T: StorageElement, const N: usize>(
    x: &[T],
    earlier: (T, usize),
    taps: Range<usize>,
) -> (T, usize) {
    let last = taps.end - N;
    taps.step_by(N).map(|chunk| chunk.min(last)).fold(earlier, |best, chunk| {
        match x[chunk..chunk + N].iter().fold(false, |any, &new| any | is_larger(new.widen(), best.0.widen())) {
            true => first_largest(x, best, chunk..chunk + N),
            false => best,
        }
    })
}

/// Returns the largest element, with its index, among the earlier taps, whose maximum is `earlier`, and the elements at
/// the indices `taps`. Among equal elements, the first is returned.
#[inline(always)]
fn first_largest<T: StorageElement>(x: &[T], earlier: (T, usize), taps: impl Iterator<Item = usize>) -> (T, usize) {
    taps.fold(earlier, |best, tap| if is_larger(x[tap].widen(), best.0.widen()) { (x[tap], tap) } else { best })
}

/// Returns true if `new` replaces `old` as the maximum. Among equal elements the first is kept. NaN is larger than
/// every number.
#[inline(always)]
fn is_larger<T: ComputeScalar>(new: T, old: T) -> bool {
    (new > old) | (new.is_nan() & !old.is_nan())
}

/// A function that pools adjacent outputs; see [`max_pool_run`].
///
/// It is safe code and may be called if the processor has the instruction set that it was compiled for.
type MaxPoolKernel<T> = unsafe fn(&WindowTaps, &[T], usize, &mut [T], &mut [i64], usize) -> usize;

/// Returns the kernel for a stride. The stride is a constant of the kernel. For a stride above three, the kernel always
/// returns 0.
fn max_pool_kernel<T: StorageElement>(stride: usize) -> MaxPoolKernel<T> {
    let isa = Isa::best();
    match stride {
        1 => up_to!(T::WIDEST_ISA, isa, max_pool_run::<T, 1>),
        2 => up_to!(T::WIDEST_ISA, isa, max_pool_run::<T, 2>),
        3 => up_to!(T::WIDEST_ISA, isa, max_pool_run::<T, 3>),
        _ => |_, _, _, _, _, _| 0,
    }
}

/// The number of outputs of a block.
const BLOCK: usize = 16;
/// The number of elements of a phase.
const PHASE_LEN: usize = 2 * BLOCK;

per_isa! {
    /// Pools `count` adjacent outputs, block by block, until a block does not fit: see [`max_pool_block`]. `first` is
    /// the index of the first tap of the first output. Returns the number of outputs of the computed blocks, of which
    /// the last may extend beyond `count`.
    ///
    /// # Safety
    /// The processor has the instruction set. There is no other requirement.
    fn max_pool_run[T: StorageElement, const S: usize][T, S](
        taps: &WindowTaps, x: &[T], first: usize, values: &mut [T], positions: &mut [i64], count: usize
    ) -> usize {
        // Elements are widened once, not in every comparison.
        let mut phases = [StridePhase([x[first].widen(); PHASE_LEN]); S];
        for done in (0..count).step_by(BLOCK) {
            let to = (&mut values[done..], &mut positions[done..]);
            if !max_pool_block::<T, S>(taps, x, first + done * S, to, &mut phases) {
                return done;
            }
        }
        count.next_multiple_of(BLOCK)
    }
}

/// Computes the largest taps of a block of outputs and their positions.
///
/// `first` is the index of the first tap of the first output. The maxima are selected without branches, which would be
/// unpredictable. The function writes [`BLOCK`] outputs, or as many as the slices hold. The caller must overwrite the
/// outputs that are beyond the end of the row. Returns false, without a write, if a phase or `x` is too short.
#[inline(always)]
fn max_pool_block<T: StorageElement, const S: usize>(
    taps: &WindowTaps,
    x: &[T],
    first: usize,
    (values, positions): (&mut [T], &mut [i64]),
    phases: &mut [StridePhase<T::Compute>; S],
) -> bool {
    let &WindowTaps { counts, steps, span } = taps;
    let last = (counts[2] - 1) * steps[2];
    let phase_len = if last < S { BLOCK } else { PHASE_LEN };
    let end = first + span - last + S * phase_len;
    let fits = BLOCK + last / S <= phase_len && end <= x.len() && span <= i32::MAX as usize;
    if !fits {
        return false;
    }
    // The largest tap so far, and its offset from the first tap.
    let (mut best, mut offset) = ([x[first].widen(); BLOCK], [0i32; BLOCK]);
    for (l, line) in taps.line_offsets().enumerate() {
        deinterleave(&x[first + line..][..S * phase_len], phases);
        if l == 0 {
            best.copy_from_slice(&phases[0].0[..BLOCK]);
        }
        // The first tap is compared with no other one.
        for tap in (usize::from(l == 0)..counts[2]).map(|c| c * steps[2]) {
            let tap_offset = (line + tap) as i32;
            let Some(new) = phases[tap % S].0[tap / S..].first_chunk::<BLOCK>() else { return false };
            for i in 0..BLOCK {
                let better = is_larger(new[i], best[i]);
                best[i] = if better { new[i] } else { best[i] };
                offset[i] = if better { tap_offset } else { offset[i] };
            }
        }
    }
    let mut found = [0; BLOCK];
    for (o, (found, offset)) in found.iter_mut().zip(offset).enumerate() {
        *found = (first + o * S) as i64 + i64::from(offset);
    }
    let mut largest = [x[first]; BLOCK];
    largest.iter_mut().zip(best).for_each(|(to, best)| *to = T::narrow(best));
    match (values.first_chunk_mut(), positions.first_chunk_mut()) {
        (Some(values), Some(positions)) => (*values, *positions) = (largest, found),
        _ => {
            let found = largest.into_iter().zip(found);
            for ((value, position), found) in values.iter_mut().zip(positions).zip(found) {
                (*value, *position) = found;
            }
        }
    }
    true
}

/// The elements of a line whose indices are equal modulo the stride.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct StridePhase<T>([T; PHASE_LEN]);

/// Copies element i of a line to phase i mod S, widened. The compiler vectorizes this form, with one `zip` for each
/// phase.
#[inline(always)]
fn deinterleave<T: StorageElement, const S: usize>(line: &[T], phases: &mut [StridePhase<T::Compute>; S]) {
    let strides = line.as_chunks::<S>().0.iter();
    match phases.as_mut_slice() {
        [StridePhase(a)] => strides.zip(a).for_each(|(x, a)| *a = x[0].widen()),
        [StridePhase(a), StridePhase(b)] => {
            strides.zip(a).zip(b).for_each(|((x, a), b)| (*a, *b) = (x[0].widen(), x[1].widen()))
        }
        [StridePhase(a), StridePhase(b), StridePhase(c)] => {
            for (((x, a), b), c) in strides.zip(a).zip(b).zip(c) {
                (*a, *b, *c) = (x[0].widen(), x[1].widen(), x[2].widen());
            }
        }
        _ => unreachable!("a kernel must have a stride of at most three"),
    }
}
