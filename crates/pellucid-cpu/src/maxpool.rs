//! `Pool`: the largest element of every window, and where it is.
//!
//! Row by row of the output, a block of neighbouring outputs at a time, which stays in registers until it has met all its
//! taps. Every line that it meets is dealt out first, element i to phase i mod stride: the same tap of neighbouring windows
//! then lies side by side. Outputs whose windows reach into the padding, strides above three, and windows that a phase has no
//! room for, are met one by one.

use crate::buffer::CpuBuffer;
use crate::list::List;
use crate::number::{Number, Wide};
use crate::operand::{Array, Operand};
use crate::simd::Level;
use crate::threads::{GRAIN, split};
use crate::tile;
use pellucid_ir::kernel::{Pool, Window};
use pellucid_ir::{DType, Error, Layout, Result};
use std::ops::Range;

/// Finds the largest elements: `x` to `values` and `positions`.
pub(crate) fn pool(kernel: &Pool, x: &Operand<'_>, values: &Operand<'_>, positions: &Operand<'_>) -> Result<()> {
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
    let dims = [0, 1, 2].map(|a| x.shape()[rank - 3 + a]);
    let outs = [0, 1, 2].map(|a| values.shape()[rank - 3 + a]);
    if values.shape().size() == 0 {
        return Ok(());
    }
    let axis = |a: usize| Axis::new(&kernel.window, a, dims[a], outs[a]);
    let (Some(z), Some(y), Some(c)) = (axis(0), axis(1), axis(2)) else {
        return Err(Error::invalid("pool", "a window lies wholly in the padding, or is impossible"));
    };
    let dense = Layout::contiguous(x.shape().clone());
    let room;
    let x = if x.layout.is_contiguous() {
        *x
    } else {
        room = CpuBuffer::scratch(x.shape().size() * x.dtype.size())?;
        let copy = Operand { base: room.ensure()?.as_ptr(), layout: &dense, dtype: x.dtype };
        tile::copy(x, &copy)?;
        copy
    };
    let windows = Windows([z, y, c]);
    match x.dtype {
        // Truth values are 0 and 1.
        DType::Bool => windows.run::<u8>(&x, values, positions),
        dtype => with_number!(dtype, T => windows.run::<T>(&x, values, positions)),
    }
    Ok(())
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
                // SAFETY: the level is this machine's.
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
    let level = Level::detect();
    match stride {
        1 => meet_block::<T, 1>(level),
        2 => meet_block::<T, 2>(level),
        3 => meet_block::<T, 3>(level),
        _ => |_, _, _, _, _| false,
    }
}

/// Outputs that are met together, and what a phase has room for.
const BLOCK: usize = 16;
const ROOM: usize = 2 * BLOCK;

per_level! {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Choices, Lie, numbers};
    use crate::with_threads;
    use pellucid_ir::kernel::Kernel;

    fn run(window: Window, x: &testing::Array, out: &[usize]) -> Result<(Vec<f64>, Vec<i64>)> {
        let values = testing::Array::new(out, x.dtype, Lie::Plain);
        let positions = testing::Array::new(out, DType::I64, Lie::Plain);
        testing::run(Kernel::Pool(Pool { window }), &[x], &[&values, &positions])?;
        Ok((values.reals(), positions.values::<i64>()))
    }

    /// Straight from the definition: of every window the first NaN, or else the first of the largest.
    fn naive(window: Window, x: &[f64], shape: [usize; 4], out: [usize; 3]) -> (Vec<f64>, Vec<i64>) {
        let plane: usize = shape[1..].iter().product();
        let range = |end: [usize; 3]| {
            let [a, b, c] = end;
            (0..a * b * c).map(move |i| [i / (b * c), i / c % b, i % c])
        };
        let place = |n: usize, o: [usize; 3]| {
            let taps = range(window.size).filter_map(move |t| {
                let at = |a: usize| (o[a] * window.stride[a] + t[a] * window.dilation[a]).checked_sub(window.before[a]);
                let [z, y, c] = [at(0)?, at(1)?, at(2)?];
                (z < shape[1] && y < shape[2] && c < shape[3]).then_some((z * shape[2] + y) * shape[3] + c)
            });
            let value = |&i: &usize| x[n * plane + i];
            let order = |i: &usize| (value(i).is_nan(), if value(i).is_nan() { 0.0 } else { value(i) });
            taps.reduce(|best, i| if order(&i) > order(&best) { i } else { best }).unwrap()
        };
        (0..shape[0])
            .flat_map(|n| range(out).map(move |o| (n, o)))
            .map(|(n, o)| (n, place(n, o)))
            .map(|(n, at)| (x[n * plane + at], at as i64))
            .unzip()
    }

    #[test]
    fn it_is_the_first_largest_of_every_window() {
        let window = Window { size: [2, 3, 2], stride: [1, 2, 3], dilation: [1, 1, 2], before: [1, 1, 0] };
        let (shape, out) = ([3, 3, 5, 7], [3, 3, 2]);
        let x = numbers(shape.iter().product(), 3, 5);
        let expected = naive(window, &x, shape, out);
        for (lie, dtype) in Lie::ALL.into_iter().cycle().zip(DType::ALL.into_iter().skip(2)) {
            let x = testing::Array::cast(shape, lie, dtype, &x);
            for threads in [1, 2, 8] {
                let found = with_threads(threads, || run(window, &x, &[3, 3, 3, 2]).unwrap());
                assert_eq!(found, expected, "{dtype} {lie:?}");
            }
        }
    }

    #[test]
    fn blocks_and_what_they_leave_over_agree_with_the_definition() {
        // Rows of fewer outputs than a block, of one, and of several; windows that reach far; every stride.
        for (i, [len, size, stride, dilation, before]) in [
            [28, 2, 2, 1, 0],
            [15, 2, 2, 1, 0],
            [16, 1, 1, 1, 0],
            [70, 3, 2, 1, 1],
            [50, 3, 1, 1, 1],
            [40, 5, 1, 4, 8],
            [60, 5, 3, 3, 2],
            [64, 40, 1, 1, 3],
            [90, 4, 4, 1, 0],
            [99, 3, 3, 1, 0],
        ]
        .into_iter()
        .enumerate()
        {
            let window = Window {
                size: [1, 2, size],
                stride: [1, 2, stride],
                dilation: [1, 1, dilation],
                before: [0, 1, before],
            };
            let shape = [2, 1, 9, len];
            let out = [1, 5, (len + before - dilation * (size - 1) - 1) / stride + 1];
            let mut x = numbers(shape.iter().product(), 4, 3 + i as u64);
            x.iter_mut().skip(5).step_by(37).for_each(|x| *x = f64::NAN);
            x.iter_mut().skip(3).step_by(7).for_each(|x| *x = f64::NEG_INFINITY);
            let (values, places) = naive(window, &x, shape, out);
            for dtype in [DType::F32, DType::F64, DType::BF16] {
                let x = testing::Array::cast(shape, Lie::Plain, dtype, &x);
                let found = run(window, &x, &[2, out[0], out[1], out[2]]).unwrap();
                assert_eq!(found.1, places, "{dtype} {window:?}");
                let same = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan();
                assert!(found.0.iter().zip(&values).all(same), "{dtype} {window:?}");
            }
        }
    }

    /// Runs a case on some threads, in some layout and dtype: on as many outputs as there are windows with a tap inside, or
    /// fewer. False if there is none.
    fn sweep(window: Window, x: [usize; 3], choices: &Choices) -> bool {
        let all = [0, 1, 2].map(|a| {
            let inside = |o: &usize| {
                (0..window.size[a])
                    .map(|t| o * window.stride[a] + t * window.dilation[a])
                    .any(|at| (window.before[a]..window.before[a] + x[a]).contains(&at))
            };
            (0..=x[a] + window.before[a]).take_while(inside).count()
        });
        if all.contains(&0) {
            return false;
        }
        let out = all.map(|n| if choices.below(3) == 0 { 1 + choices.below(n) } else { n });
        let shape = [1 + choices.below(3), x[0], x[1], x[2]];
        let mut values = numbers(shape.iter().product(), 4, 3);
        let dtype = choices.of(&DType::ALL);
        if dtype.is_float() {
            values.iter_mut().skip(2).step_by(7).for_each(|x| *x = f64::NAN);
        }
        let (lie, threads) = (choices.of(&Lie::ALL), choices.threads());
        let array = testing::Array::cast(shape, lie, dtype, &values);
        let (expected, places) = naive(window, &array.reals(), shape, out);
        let found = with_threads(threads, || run(window, &array, &[shape[0], out[0], out[1], out[2]]).unwrap());
        let what = || format!("{window:?} over {x:?} to {out:?} {dtype} {lie:?} {threads} threads");
        assert!(found.1 == places, "{}", what());
        assert!(found.0.iter().zip(&expected).all(|(a, b)| a == b || a.is_nan() && b.is_nan()), "{}", what());
        true
    }

    #[test]
    fn sweep_of_windows_along_one_axis() {
        let (choices, mut seen) = (&Choices::new(41), 0);
        for (len, size) in (1..=20).flat_map(|len| (1..=20).map(move |size| (len, size))) {
            for (stride, dilation) in (1..=4).flat_map(|s| (1..=3).map(move |d| (s, d))) {
                let before = [0, 1, size / 2, size - 1, choices.below(2 * size)];
                let before = before[choices.below(5)];
                let window = Window {
                    size: [1, 1, size],
                    stride: [1, 1, stride],
                    dilation: [1, 1, dilation],
                    before: [0, 0, before],
                };
                seen += usize::from(sweep(window, [1, 1, len], choices));
            }
        }
        assert!(seen > 2000, "{seen}");
    }

    #[test]
    fn sweep_of_windows_along_three_axes() {
        let (choices, mut seen) = (&Choices::new(42), 0);
        for _ in 0..1500 {
            let three = |choices: &Choices, n: usize| [(); 3].map(|()| 1 + choices.below(n));
            let (size, stride, dilation) = (three(choices, 5), three(choices, 4), three(choices, 3));
            let before = size.map(|size| choices.below(size + 1));
            let last = if choices.below(4) == 0 { 40 } else { 8 };
            let x = [1 + choices.below(4), 1 + choices.below(6), 1 + choices.below(last)];
            seen += usize::from(sweep(Window { size, stride, dilation, before }, x, choices));
        }
        assert!(seen > 500, "{seen}");
    }

    #[test]
    fn a_window_may_be_longer_than_the_input_and_its_padding_too() {
        let choices = &Choices::new(43);
        for (len, size) in [(3, 13), (1, 13), (2, 9), (5, 20), (16, 33), (17, 64)] {
            let window = Window {
                size: [1, size, size],
                stride: [1, 1, 1],
                dilation: [1, 1, 1],
                before: [0, size / 2, size / 2],
            };
            assert!(sweep(window, [1, len, len], choices), "{len} {size}");
        }
    }

    #[test]
    fn nan_wins_and_windows_in_the_padding_are_refused() {
        let one = [1; 3];
        let window = Window { size: [1, 1, 2], stride: one, dilation: one, before: [0, 0, 1] };
        let x = testing::Array::of([1, 1, 3], Lie::Plain, &[f32::NEG_INFINITY, f32::NAN, 1.0]);
        let (values, places) = run(window, &x, &[1, 1, 4]).unwrap();
        assert_eq!(places, [0, 1, 1, 2]);
        assert!(values[0] == f64::NEG_INFINITY && values[1].is_nan() && values[2].is_nan() && values[3] == 1.0);
        assert!(run(window, &x, &[1, 1, 5]).is_err());
        assert!(run(Window { before: [0, 0, 2], ..window }, &x, &[1, 1, 1]).is_err());
        assert!(run(Window { stride: [1, 1, usize::MAX], ..window }, &x, &[1, 1, 2]).is_err());
    }
}
