//! `Pool`: the largest element of every window, and where it is.
//!
//! Row by row of the output, tap by tap: every tap is compared with what the whole row has found so far, so that the
//! innermost loop runs along memory.

use crate::buffer::CpuBuffer;
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
        let mend = "values and positions are dense, and have the shape of the input but for the last three axes";
        return Err(Error::shapes("pool", [x.shape(), values.shape()], mend));
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

    /// The outputs whose tap t lies inside.
    fn outputs(&self, t: usize) -> Range<usize> {
        let start = self.before.saturating_sub(self.dilation * t).div_ceil(self.stride);
        let end = (self.len + self.before).saturating_sub(self.dilation * t).div_ceil(self.stride);
        start..end.min(self.outputs)
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
        let meet = meet::<T>(c.stride);
        split(planes, GRAIN / work.max(1) + 1, |range| {
            for p in range {
                // SAFETY: every operand is dense and has so many planes; each plane is one task's.
                let (x, values, positions) = unsafe {
                    (
                        std::slice::from_raw_parts(x.get().add(p * whole), whole),
                        std::slice::from_raw_parts_mut(values.get().add(p * plane), plane),
                        std::slice::from_raw_parts_mut(positions.get().add(p * plane), plane),
                    )
                };
                self.plane(meet, x, values, positions);
            }
        });
    }

    fn plane<T: Number>(&self, meet: Meet<T>, x: &[T], values: &mut [T], positions: &mut [i64]) {
        let [z, y, c] = &self.0;
        let rows = values.chunks_exact_mut(c.outputs).zip(positions.chunks_exact_mut(c.outputs));
        for (row, (values, positions)) in rows.enumerate() {
            let (oz, oy) = (row / y.outputs, row % y.outputs);
            // −1: nothing found so far.
            positions.fill(-1);
            for tz in z.taps(oz) {
                for ty in y.taps(oy) {
                    let line = (z.at(oz, tz) * y.len + y.at(oy, ty)) * c.len;
                    for tx in 0..c.size {
                        let range = c.outputs(tx);
                        if range.is_empty() {
                            continue;
                        }
                        let first = line + c.at(range.start, tx);
                        let (values, positions) = (&mut values[range.clone()], &mut positions[range]);
                        // SAFETY: the taps of these outputs lie in the line; the level is this machine's.
                        unsafe { meet(x, first, c.stride, values, positions) }
                    }
                }
            }
        }
    }
}

/// One tap of a run of outputs meets what they have found so far: it lies at `first`, and `stride` further for each.
type Meet<T> = unsafe fn(&[T], usize, usize, &mut [T], &mut [i64]);

/// The loop for a stride: a number that the compiler knows lets it load several taps at once.
fn meet<T: Number>(stride: usize) -> Meet<T> {
    let level = Level::detect();
    match stride {
        1 => meet_every::<T, 1>(level),
        2 => meet_every::<T, 2>(level),
        _ => meet_every::<T, 0>(level),
    }
}

per_level! {
    /// Compares without a branch: which of two numbers is larger is anybody's guess. `S` is the stride, or 0.
    fn meet_every[T: Number, const S: usize][T, S](
        x: &[T], first: usize, stride: usize, values: &mut [T], positions: &mut [i64]
    ) {
        let stride = if S == 0 { stride } else { S };
        for (i, (value, position)) in values.iter_mut().zip(positions).enumerate() {
            let at = first + i * stride;
            // SAFETY: the caller's.
            let tap = *unsafe { x.get_unchecked(at) };
            let (new, old) = (tap.widen(), value.widen());
            let better = (*position < 0) | (new > old) | (new.is_nan() & !old.is_nan());
            *value = if better { tap } else { *value };
            *position = if better { at as i64 } else { *position };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Lie, numbers};
    use crate::with_threads;
    use pellucid_ir::kernel::Kernel;

    fn run(window: Window, x: &testing::Array, out: &[usize]) -> Result<(Vec<f64>, Vec<i64>)> {
        let values = testing::Array::new(out, x.dtype, Lie::Plain);
        let positions = testing::Array::new(out, DType::I64, Lie::Plain);
        testing::run(Kernel::Pool(Pool { window }), &[x], &[&values, &positions])?;
        Ok((values.reals(), positions.values::<i64>()))
    }

    #[test]
    fn it_is_the_first_largest_of_every_window() {
        let window = Window { size: [2, 3, 2], stride: [1, 2, 3], dilation: [1, 1, 2], before: [1, 1, 0] };
        let (shape, out) = ([3, 3, 5, 7], [3, 3, 3, 2]);
        let x = numbers(shape.iter().product(), 3, 5);
        let (mut expected, mut places) = (vec![], vec![]);
        for n in 0..3 {
            for o in 0..3 * 3 * 2 {
                let o = [o / 6, o / 2 % 3, o % 2];
                let mut best: Option<(f64, i64)> = None;
                for t in 0..12 {
                    let t = [t / 6, t / 2 % 3, t % 2];
                    let at = [0, 1, 2].map(|a| {
                        (o[a] * window.stride[a] + t[a] * window.dilation[a]) as i64 - window.before[a] as i64
                    });
                    if (0..3).all(|a| (0..shape[a + 1] as i64).contains(&at[a])) {
                        let flat = (at[0] * 5 + at[1]) * 7 + at[2];
                        let value = x[n * 105 + flat as usize];
                        if best.is_none_or(|(b, _)| value > b) {
                            best = Some((value, flat));
                        }
                    }
                }
                let (value, place) = best.unwrap();
                expected.push(value);
                places.push(place);
            }
        }
        for (lie, dtype) in Lie::ALL.into_iter().cycle().zip(DType::ALL.into_iter().skip(2)) {
            let x = testing::Array::cast(shape, lie, dtype, &x);
            for threads in [1, 2, 8] {
                let found = with_threads(threads, || run(window, &x, &out).unwrap());
                assert_eq!(found, (expected.clone(), places.clone()), "{dtype} {lie:?}");
            }
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
