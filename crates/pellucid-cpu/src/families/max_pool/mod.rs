//! `Pool`: the largest element of every window, and where it is.
//!
//! Row by row of the output, a block of neighbouring outputs at a time, which stays in registers until it has met all its
//! taps. Every line that it meets is dealt out first, element i to phase i mod stride: the same tap of neighbouring windows
//! then lies side by side. Outputs whose windows reach into the padding, strides above three, and windows that a phase has no
//! room for, are met one by one.

#[cfg(test)]
mod tests;

use crate::family::CpuFamily;
use crate::number::{Number, Wide};
use crate::operand::{Array, Operand};
use crate::program;
use pellucid_ir::kernel::{Pool, Window};
use pellucid_ir::{DType, Error, Layout, Result, Shape};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{GRAIN, split};
use pellucid_simd::Isa;
use pellucid_simd::per_isa;
use std::ops::Range;

impl CpuFamily for Pool {
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (x, values, positions) = (&inputs[0], &outputs[0], &outputs[1]);
        let rank = x.shape().rank();
        let fits = rank >= 3
            && values.shape() == positions.shape()
            && values.shape().rank() == rank
            && values.shape()[..rank - 3] == x.shape()[..rank - 3]
            && values.dtype == x.dtype
            && positions.dtype == DType::I64
            && values.layout.is_contiguous()
            && positions.layout.is_contiguous();
        if !fits {
            let help = "values and positions are dense, and have the shape of the input but for the last three axes";
            return Err(Error::shapes("pool", [x.shape(), values.shape()], help));
        }
        if values.shape().size() == 0 || Windows::new(&self.window, x.shape(), values.shape()).is_some() {
            return Ok(());
        }
        Err(Error::invalid("pool", "a window is entirely in the padding, or is impossible"))
    }

    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (x, values, positions) = (&inputs[0], &outputs[0], &outputs[1]);
        if values.shape().size() == 0 {
            return Ok(());
        }
        let windows = Windows::new(&self.window, x.shape(), values.shape()).expect("the windows have been checked");
        let dense = Layout::contiguous(x.shape().clone());
        let room;
        let x = if x.layout.is_contiguous() {
            *x
        } else {
            room = CpuBuffer::scratch(x.shape().size() * x.dtype.size())?;
            let copy = Operand { base: room.ensure()?.as_ptr(), layout: &dense, dtype: x.dtype };
            program::copy(x, &copy)?;
            copy
        };
        match x.dtype {
            // Truth values are 0 and 1.
            DType::Bool => windows.run::<u8>(&x, values, positions),
            dtype => with_number!(dtype, T => windows.run::<T>(&x, values, positions)),
        }
        Ok(())
    }
}

/// Windows along one axis: for every output the taps that lie inside, and where the first tap is.
struct Axis {
    len: usize,
    outputs: usize,
    stride: usize,
    dilation: usize,
    before: usize,
    size: usize,
}

impl Axis {
    /// `None` if some window has no tap inside, or its numbers are no positions.
    fn new(window: &Window, a: usize, len: usize, outputs: usize) -> Option<Axis> {
        let (stride, dilation) = (window.stride[a], window.dilation[a]);
        let (before, size) = (window.before[a], window.size[a]);
        let reach = stride.checked_mul(outputs)?.checked_add(dilation.checked_mul(size)?)?;
        let sane = stride > 0 && dilation > 0 && reach.checked_add(before)? < isize::MAX as usize / 8;
        let axis = Axis { len, outputs, stride, dilation, before, size };
        (sane && (0..outputs).all(|o| !axis.taps(o).is_empty())).then_some(axis)
    }

    /// The taps of output o that lie inside.
    fn taps(&self, o: usize) -> Range<usize> {
        let start = self.before.saturating_sub(self.stride * o).div_ceil(self.dilation);
        let end = (self.len + self.before).saturating_sub(self.stride * o).div_ceil(self.dilation);
        start..end.min(self.size)
    }

    /// The outputs whose taps are all inside: a range within `0..outputs`, which is empty if the window is longer than the input.
    fn inside(&self) -> Range<usize> {
        let start = self.before.div_ceil(self.stride).min(self.outputs);
        let last = self.dilation * (self.size - 1);
        let end = (self.len + self.before).saturating_sub(last).div_ceil(self.stride).min(self.outputs);
        start..end.max(start)
    }

    /// Where tap t of output o lies, if it lies inside.
    fn at(&self, o: usize, t: usize) -> usize {
        self.stride * o + self.dilation * t - self.before
    }
}

/// The windows along the three axes.
struct Windows([Axis; 3]);

impl Windows {
    /// The windows of results of shape `to` in inputs of shape `from`, or `None` if one is entirely in the padding or its
    /// numbers are no positions.
    fn new(window: &Window, from: &Shape, to: &Shape) -> Option<Windows> {
        let lead = from.rank() - 3;
        let axis = |a: usize| Axis::new(window, a, from[lead + a], to[lead + a]);
        Some(Windows([axis(0)?, axis(1)?, axis(2)?]))
    }

    fn run<T: Number>(&self, x: &Operand<'_>, values: &Operand<'_>, positions: &Operand<'_>) {
        let [z, y, c] = &self.0;
        let (whole, plane) = (z.len * y.len * c.len, z.outputs * y.outputs * c.outputs);
        let planes = values.shape().size() / plane;
        let (x, values, positions) = (x.first::<T>(), values.first::<T>(), positions.first::<i64>());
        let work = plane * z.size * y.size * c.size * size_of::<T>();
        let (meet, all, rows) = (meet::<T>(c.stride), planes * whole, self.rows());
        split(planes, GRAIN / work.max(1) + 1, |range| {
            for p in range {
                // SAFETY: every operand is dense and has so many planes; each plane of a result is one task's.
                let (x, values, positions) = unsafe {
                    (
                        std::slice::from_raw_parts(x.get().add(p * whole), all - p * whole),
                        std::slice::from_raw_parts_mut(values.get().add(p * plane), plane),
                        std::slice::from_raw_parts_mut(positions.get().add(p * plane), plane),
                    )
                };
                self.plane(meet, &rows, x, values, positions);
            }
        });
    }

    /// For every row of a plane of outputs: where the lines that it meets begin, and the taps of a whole window.
    fn rows(&self) -> List<(usize, Taps), 32> {
        let [z, y, c] = &self.0;
        let steps = [z.dilation * y.len * c.len, y.dilation * c.len, c.dilation];
        let row = |oz, oy| {
            let (tz, ty) = (z.taps(oz), y.taps(oy));
            let first = (z.at(oz, tz.start) * y.len + y.at(oy, ty.start)) * c.len;
            (first, Taps::new([tz.len(), ty.len(), c.size], steps))
        };
        (0..z.outputs).flat_map(|oz| (0..y.outputs).map(move |oy| row(oz, oy))).collect()
    }

    /// Meets the plane that `x` starts with.
    fn plane<T: Number>(
        &self,
        meet: Meet<T>,
        rows: &[(usize, Taps)],
        x: &[T],
        values: &mut [T],
        positions: &mut [i64],
    ) {
        let [_, _, c] = &self.0;
        let inside = c.inside();
        for (row, &(first, ref line)) in rows.iter().enumerate() {
            // All that is behind the row is still to come.
            let (values, positions) = (&mut values[row * c.outputs..], &mut positions[row * c.outputs..]);
            let mut o = inside.start;
            while o < inside.end {
                let at = first + c.at(o, 0);
                // SAFETY: the isa is this machine's.
                if !unsafe { meet(line, x, at, &mut values[o..], &mut positions[o..]) } {
                    for o in o..inside.end.min(o + BLOCK) {
                        (values[o], positions[o]) = line.largest(x, first + c.at(o, 0));
                    }
                }
                o += BLOCK;
            }
            for o in (0..inside.start).chain(inside.end..c.outputs) {
                let taps = c.taps(o);
                let edge = Taps::new([line.counts[0], line.counts[1], taps.len()], line.steps);
                (values[o], positions[o]) = edge.largest(x, first + c.at(o, taps.start));
            }
        }
    }
}

/// The taps of a window that lie inside: how many along each axis, and how far apart in the plane.
#[derive(Clone, Copy)]
struct Taps {
    counts: [usize; 3],
    steps: [usize; 3],
    /// How far the last tap lies from the first.
    reach: usize,
}

impl Taps {
    fn new(counts: [usize; 3], steps: [usize; 3]) -> Taps {
        let reach = counts.iter().zip(steps).map(|(count, step)| (count - 1) * step).sum();
        Taps { counts, steps, reach }
    }

    /// Where the taps lie, from the first of them: line by line, and in a line.
    fn lines(&self) -> impl Iterator<Item = usize> {
        let &Taps { counts: [z, y, _], steps, .. } = self;
        (0..z).flat_map(move |z| (0..y).map(move |y| z * steps[0] + y * steps[1]))
    }

    /// The largest tap of the window whose first tap lies at `first`, and where it is.
    fn largest<T: Number>(&self, x: &[T], first: usize) -> (T, i64) {
        let (mut best, mut place) = (x[first], first);
        for line in self.lines() {
            for at in (0..self.counts[2]).map(|c| first + line + c * self.steps[2]) {
                if beats(x[at], best) {
                    (best, place) = (x[at], at);
                }
            }
        }
        (best, place as i64)
    }
}

/// The first of equals is the largest, and NaN is before all.
#[inline(always)]
fn beats<T: Number>(new: T, old: T) -> bool {
    let (new, old) = (new.widen(), old.widen());
    (new > old) | (new.is_nan() & !old.is_nan())
}

/// A block of neighbouring outputs meets all its taps, the first of which is at the place given: see [`meet_block`].
type Meet<T> = unsafe fn(&Taps, &[T], usize, &mut [T], &mut [i64]) -> bool;

/// The loop for a stride, which the compiler must know.
fn meet<T: Number>(stride: usize) -> Meet<T> {
    let isa = Isa::best();
    match stride {
        1 => meet_block::<T, 1>(isa),
        2 => meet_block::<T, 2>(isa),
        3 => meet_block::<T, 3>(isa),
        _ => |_, _, _, _, _| false,
    }
}

/// Outputs that are met together, and what a phase has room for.
const BLOCK: usize = 16;
const ROOM: usize = 2 * BLOCK;

per_isa! {
    /// Finds the largest taps of a block of outputs and where they are, without a branch: which of two numbers is larger is
    /// anybody's guess. If there is room, it also writes what comes behind a shorter block, of which it knows nothing: it must be
    /// written later. False if a phase, or `x`, is too short.
    fn meet_block[T: Number, const S: usize][T, S](
        taps: &Taps, x: &[T], first: usize, values: &mut [T], positions: &mut [i64]
    ) -> bool {
        let &Taps { counts, steps: [_, _, step], reach } = taps;
        let last = (counts[2] - 1) * step;
        let dealt = if last < S { BLOCK } else { ROOM };
        let fits = BLOCK + last / S <= dealt && first + reach - last + S * dealt <= x.len() && reach <= i32::MAX as usize;
        if !fits {
            return false;
        }
        let mut phases = [Phase([x[first]; ROOM]); S];
        // −1: nothing met so far.
        let (mut best, mut place) = ([x[first]; BLOCK], [-1i32; BLOCK]);
        for line in taps.lines() {
            deal(&x[first + line..][..S * dealt], &mut phases);
            for tap in (0..counts[2]).map(|c| c * step) {
                let at = (line + tap) as i32;
                let Some(new) = phases[tap % S].0[tap / S..].first_chunk::<BLOCK>() else { return false };
                for i in 0..BLOCK {
                    let better = (place[i] < 0) | beats(new[i], best[i]);
                    best[i] = if better { new[i] } else { best[i] };
                    place[i] = if better { at } else { place[i] };
                }
            }
        }
        let mut found = [0; BLOCK];
        for (o, (found, place)) in found.iter_mut().zip(place).enumerate() {
            *found = (first + o * S) as i64 + i64::from(place);
        }
        match (values.first_chunk_mut(), positions.first_chunk_mut()) {
            (Some(values), Some(positions)) => (*values, *positions) = (best, found),
            _ => {
                let found = best.into_iter().zip(found);
                for ((value, position), found) in values.iter_mut().zip(positions).zip(found) {
                    (*value, *position) = found;
                }
            }
        }
        true
    }
}

/// The elements of a line whose position leaves one remainder by the stride.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Phase<T>([T; ROOM]);

/// Deals elements out to the phases: element i to phase i mod S. As many zips as phases, which vectorise.
#[inline(always)]
fn deal<T: Number, const S: usize>(line: &[T], phases: &mut [Phase<T>; S]) {
    let strides = line.as_chunks::<S>().0.iter();
    match phases.as_mut_slice() {
        [Phase(a)] => strides.zip(a).for_each(|(x, a)| *a = x[0]),
        [Phase(a), Phase(b)] => strides.zip(a).zip(b).for_each(|((x, a), b)| (*a, *b) = (x[0], x[1])),
        [Phase(a), Phase(b), Phase(c)] => {
            strides.zip(a).zip(b).zip(c).for_each(|(((x, a), b), c)| (*a, *b, *c) = (x[0], x[1], x[2]));
        }
        _ => unreachable!("strides of three are the longest"),
    }
}
