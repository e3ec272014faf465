//! Running reductions along one axis: sum, product, maximum, minimum, ln Σ exp.
//!
//! Strictly in order along the axis, so that the bits depend on nothing else. *Lines* along the axis
//! are independent: where neighbouring lines are neighbours in memory, a whole vector of them
//! advances together; otherwise eight at a time hide the latency of the chain.

use crate::math::Real;
use crate::number::{Number, Wide};
use crate::operand::{Array, Operand};
use crate::simd::Level;
use crate::threads::{GRAIN, Ptr, split};
use crate::walk::{Space, axes};
use pellucid_ir::kernel::{Scan, ScanOp};
use pellucid_ir::{DType, Error, Result};

/// Lines that advance together where they are neighbours.
const WIDE: usize = 256;
/// Lines that advance together where they are not.
const NARROW: usize = 8;

/// Runs a scan: `x` to `outputs`.
pub(crate) fn scan(kernel: &Scan, x: &Operand<'_>, outputs: &[Operand<'_>]) -> Result<()> {
    let with_positions = matches!(kernel.op, ScanOp::Max | ScanOp::Min);
    let y = &outputs[0];
    let fits = outputs.len() == 1 + with_positions as usize
        && outputs.iter().all(|o| o.shape() == x.shape())
        && kernel.axis < x.shape().rank()
        && y.dtype == x.dtype
        && outputs.get(1).is_none_or(|p| p.dtype == DType::I64);
    if !fits {
        return Err(Error::shapes("scan", [x.shape(), y.shape()], "values and positions have the shape of the input"));
    }
    let refuse = |mend: &str| Err(Error::dtypes("scan", [x.dtype], mend));
    match (kernel.op, x.dtype) {
        (ScanOp::Sum | ScanOp::Prod, DType::Bool) => return refuse("convert masks to integers first"),
        (ScanOp::LogSumExp, d) if !d.is_float() => return refuse("logcumsumexp is for floats"),
        _ => {}
    }
    let task = Task { kernel, x, y, positions: outputs.get(1) };
    match kernel.op {
        ScanOp::Sum => with_number!(x.dtype, T => task.run::<T, Sum<<T as Number>::Wide>>()),
        ScanOp::Prod => with_number!(x.dtype, T => task.run::<T, Product<<T as Number>::Wide>>()),
        ScanOp::Max => with_number!(x.dtype, T => task.run::<T, Extremum<<T as Number>::Wide, true>>()),
        ScanOp::Min => with_number!(x.dtype, T => task.run::<T, Extremum<<T as Number>::Wide, false>>()),
        ScanOp::LogSumExp => match x.dtype {
            DType::F16 => task.run::<crate::math::half::F16, LogSumExp<f32>>(),
            DType::BF16 => task.run::<crate::math::half::BF16, LogSumExp<f32>>(),
            DType::F32 => task.run::<f32, LogSumExp<f32>>(),
            _ => task.run::<f64, LogSumExp<f64>>(),
        },
    }
    Ok(())
}

/// What one line has accumulated.
trait Running<W>: Copy {
    const START: Self;
    /// True if there is a position to tell.
    const POSITIONS: bool = false;
    /// Takes the element at position `i` and tells the result so far.
    fn step(&mut self, x: W, i: usize) -> W;
    fn position(&self) -> i64 {
        0
    }
}

#[derive(Clone, Copy)]
struct Sum<W>(W);

impl<W: Wide> Running<W> for Sum<W> {
    const START: Self = Sum(W::NOTHING);
    #[inline(always)]
    fn step(&mut self, x: W, _: usize) -> W {
        self.0 = self.0.plus(x);
        self.0
    }
}

#[derive(Clone, Copy)]
struct Product<W>(W);

impl<W: Wide> Running<W> for Product<W> {
    const START: Self = Product(W::ONE);
    #[inline(always)]
    fn step(&mut self, x: W, _: usize) -> W {
        self.0 = self.0.times(x);
        self.0
    }
}

/// The largest (or smallest) so far, and where it was: the last among equals; NaN once met stays.
#[derive(Clone, Copy)]
struct Extremum<W, const MAX: bool> {
    /// Meaningless while `at` is negative.
    value: W,
    at: i64,
}

impl<W: Wide, const MAX: bool> Running<W> for Extremum<W, MAX> {
    const START: Self = Extremum { value: W::ONE, at: -1 };
    const POSITIONS: bool = true;
    #[inline(always)]
    fn step(&mut self, x: W, i: usize) -> W {
        let beats = if MAX { x >= self.value } else { x <= self.value };
        let new = beats | x.is_nan() | (self.at < 0);
        self.value = if new { x } else { self.value };
        self.at = if new { i as i64 } else { self.at };
        self.value
    }
    #[inline(always)]
    fn position(&self) -> i64 {
        self.at
    }
}

/// ln Σ exp = m + ln s with m the largest so far and s = Σ exp(x − m), rescaled when m grows
/// (Milakov & Gimelshein 2018).
#[derive(Clone, Copy)]
struct LogSumExp<W> {
    max: W,
    sum: W,
}

macro_rules! log_sum_exp {
    ($($t:ident),*) => {$(
        impl Running<$t> for LogSumExp<$t> {
            const START: Self = LogSumExp { max: $t::NEG_INFINITY, sum: 0.0 };
            #[inline(always)]
            fn step(&mut self, x: $t, _: usize) -> $t {
                // e^−|x − m|, and 1 for two equal infinities, whose difference is NaN.
                let e = Real::exp(-Real::abs(x - self.max));
                let e = if x == self.max { 1.0 } else { e };
                let grows = x > self.max;
                self.sum = if grows { self.sum * e + 1.0 } else { self.sum + e };
                self.max = if grows { x } else { self.max };
                self.max + Real::ln(self.sum)
            }
        }
    )*};
}
log_sum_exp!(f32, f64);

/// One scan with its operands.
struct Task<'a> {
    kernel: &'a Scan,
    x: &'a Operand<'a>,
    y: &'a Operand<'a>,
    positions: Option<&'a Operand<'a>>,
}

/// Some lines: where the first one's elements lie, and how to go on from there.
#[derive(Clone, Copy)]
struct Lines<T> {
    x: *const T,
    y: *mut T,
    /// Not used where the scan has no positions.
    at: *mut i64,
    /// Along the axis, from one element to the next: in `x`, `y`, `at`.
    along: [isize; 3],
    /// From one line to the next.
    across: [isize; 3],
    /// Elements of a line.
    len: usize,
    /// From the last element to the first: positions count down.
    reverse: bool,
}

impl Task<'_> {
    fn run<T: Number, R: Running<T::Wide>>(&self) {
        let (shape, axis) = (self.x.shape(), self.kernel.axis);
        if shape.size() == 0 {
            return;
        }
        let at = self.positions.unwrap_or(self.y);
        let layouts = [self.x.layout, self.y.layout, at.layout];
        let mut along = layouts.map(|l| l.strides()[axis]);
        let len = shape[axis];
        let (x, y) = (self.x.first::<T>(), self.y.first::<T>());
        let mut starts = [0; 3];
        if self.kernel.reverse {
            starts = along.map(|s| s * (len as isize - 1));
            along = along.map(|s| -s);
        }
        let at = Ptr(self.positions.map_or(std::ptr::null_mut(), |p| p.first::<i64>().get()));
        let space = Space::new(axes(shape, layouts).enumerate().filter(|&(a, _)| a != axis).map(|(_, a)| a));
        let across = space.step();
        let neighbours = across == [1; 3];
        let (wide, narrow, single) = {
            let level = Level::detect();
            (wide::<T, R>(level), narrow::<T, R, NARROW>(level), narrow::<T, R, 1>(level))
        };
        split(space.len(), GRAIN / (len * size_of::<T>()), |range| {
            space.runs(range, |offsets, lines| {
                let go = |line: usize, count: usize, kernel: unsafe fn(Lines<T>, usize)| {
                    let o: [isize; 3] = std::array::from_fn(|k| offsets[k] + starts[k] + line as isize * across[k]);
                    let reverse = self.kernel.reverse;
                    let lines =
                        Lines { x: x.at(o[0]), y: y.at(o[1]), at: at.at(o[2]), along, across, len, reverse };
                    // SAFETY: the operands hold all elements of the shape, and these lines are
                    // within it; no other range has them; the level is this machine's.
                    unsafe { kernel(lines, count) }
                };
                let mut line = 0;
                while line < lines {
                    let left = lines - line;
                    let (count, kernel) = match left {
                        _ if neighbours => (left.min(WIDE), wide),
                        NARROW.. => (NARROW, narrow),
                        _ => (1, single),
                    };
                    go(line, count, kernel);
                    line += count;
                }
            })
        });
    }
}

impl<T> Lines<T> {
    /// The position that step `i` meets.
    #[inline(always)]
    fn position(&self, i: usize) -> usize {
        if self.reverse { self.len - 1 - i } else { i }
    }
}

per_level! {
    /// Up to [`WIDE`] lines that are neighbours, step by step along the axis.
    fn wide[T: Number, R: Running<T::Wide>][T, R](lines: Lines<T>, count: usize) {
        let mut states = [R::START; WIDE];
        let states = &mut states[..count];
        for i in 0..lines.len {
            let position = lines.position(i);
            let i = i as isize;
            // SAFETY: the caller vouches for `count` lines of `len` elements.
            unsafe {
                let (x, y) = (lines.x.offset(i * lines.along[0]), lines.y.offset(i * lines.along[1]));
                for (l, state) in states.iter_mut().enumerate() {
                    *y.add(l) = T::narrow(state.step((*x.add(l)).widen(), position));
                }
                if R::POSITIONS {
                    let at = lines.at.offset(i * lines.along[2]);
                    for (l, state) in states.iter().enumerate() {
                        *at.add(l) = state.position();
                    }
                }
            }
        }
    }
}

per_level! {
    /// `N` lines anywhere.
    fn narrow[T: Number, R: Running<T::Wide>, const N: usize][T, R, N](lines: Lines<T>, _count: usize) {
        let mut states = [R::START; N];
        for i in 0..lines.len {
            let position = lines.position(i);
            let i = i as isize;
            for (l, state) in states.iter_mut().enumerate() {
                let o: [isize; 3] = std::array::from_fn(|k| i * lines.along[k] + l as isize * lines.across[k]);
                // SAFETY: the caller vouches for `N` lines of `len` elements.
                unsafe {
                    *lines.y.offset(o[1]) = T::narrow(state.step((*lines.x.offset(o[0])).widen(), position));
                    if R::POSITIONS {
                        *lines.at.offset(o[2]) = state.position();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
