//! Running reductions along one axis: sum, product, maximum, minimum, ln Σ exp.
//!
//! Strictly in order along the axis, so that the bits depend on nothing else; sums and products of `f32` and half
//! precision accumulate in `f64`. *Lines* along the axis
//! are independent: where neighbouring lines are neighbours in memory, a whole vector of them
//! advances together; otherwise a few at a time hide the latency of the chain.

use crate::family::CpuFamily;
use crate::number::{Number, Wide};
use crate::operand::Operand;
use crate::strided::{IndexSpace, axes};
use pellucid_ir::kernel::{Scan, ScanOp};
use pellucid_ir::{DType, Error, Result};
use pellucid_runtime::threads::{GRAIN, SharedPtr, split};
use pellucid_simd::Isa;
use pellucid_simd::math::Real;
use pellucid_simd::per_isa;

/// Lines that advance together where they are neighbours.
const WIDE: usize = 256;
/// The most that advance together where they are not.
const MOST: usize = 16;

impl CpuFamily for Scan {
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (kernel, x) = (self, &inputs[0]);
        let with_positions = matches!(kernel.op, ScanOp::Max | ScanOp::Min);
        let y = &outputs[0];
        let fits = outputs.len() == 1 + with_positions as usize
            && outputs.iter().all(|o| o.shape() == x.shape())
            && kernel.axis < x.shape().rank()
            && y.dtype == x.dtype
            && outputs.get(1).is_none_or(|p| p.dtype == DType::I64);
        if !fits {
            return Err(Error::shapes(
                "scan",
                [x.shape(), y.shape()],
                "values and positions have the shape of the input",
            ));
        }
        let refuse = |help: &str| Err(Error::dtypes("scan", [x.dtype], help));
        match (kernel.op, x.dtype) {
            (ScanOp::Sum | ScanOp::Prod, DType::Bool) => refuse("convert masks to integers first"),
            (ScanOp::LogSumExp, d) if !d.is_float() => refuse("logcumsumexp is for floats"),
            _ => Ok(()),
        }
    }

    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (kernel, x, y) = (self, &inputs[0], &outputs[0]);
        let task = Task { kernel, x, y, positions: outputs.get(1) };
        match kernel.op {
            ScanOp::Sum => with_number!(x.dtype, T => task.run::<T, Sum>()),
            ScanOp::Prod => with_number!(x.dtype, T => task.run::<T, Product>()),
            ScanOp::Max => with_number!(x.dtype, T => task.run::<T, Extremum<true>>()),
            ScanOp::Min => with_number!(x.dtype, T => task.run::<T, Extremum<false>>()),
            ScanOp::LogSumExp => match x.dtype {
                DType::F16 => task.run::<pellucid_simd::math::half::F16, LogSumExp>(),
                DType::BF16 => task.run::<pellucid_simd::math::half::BF16, LogSumExp>(),
                DType::F32 => task.run::<f32, LogSumExp>(),
                _ => task.run::<f64, LogSumExp>(),
            },
        }
        Ok(())
    }
}

/// An operation, by what it does to what one line has accumulated. That is two values, which many
/// lines keep in two arrays, so that a loop over lines becomes vector code.
trait Running<W> {
    type First: Copy;
    type Second: Copy;
    const START: (Self::First, Self::Second);
    /// True if the second value is the position of the first.
    const POSITIONS: bool = false;
    /// Lines that advance together where they are not neighbours: enough to hide the latency of a
    /// step, and where a step is long, to fill a vector.
    const NARROW: usize = 4;
    /// Takes the element at position `i` and tells the result so far.
    fn step(first: &mut Self::First, second: &mut Self::Second, x: W, i: i64) -> W;
    fn position(_: Self::Second) -> i64 {
        0
    }
}

/// A compute type with the type in which its sums and products accumulate: `f32` does so in `f64`, whose 29 spare bits
/// hold the sum of 2²⁹ equal elements exactly; an `f32` sum of ones would stay at 2²⁴.
trait Accumulate: Wide {
    type Total: Wide;
    fn widened(self) -> Self::Total;
    fn rounded(total: Self::Total) -> Self;
}

macro_rules! accumulate {
    ($($t:ty: $total:ty),*) => {$(
        impl Accumulate for $t {
            type Total = $total;
            #[inline(always)]
            fn widened(self) -> $total {
                self as $total
            }
            #[inline(always)]
            fn rounded(total: $total) -> $t {
                total as $t
            }
        }
    )*};
}
accumulate!(i32: i32, i64: i64, f32: f64, f64: f64);

struct Sum;

impl<W: Accumulate> Running<W> for Sum {
    type First = W::Total;
    type Second = ();
    const START: (W::Total, ()) = (W::Total::NOTHING, ());
    #[inline(always)]
    fn step(sum: &mut W::Total, (): &mut (), x: W, _: i64) -> W {
        *sum = sum.plus(x.widened());
        W::rounded(*sum)
    }
}

struct Product;

impl<W: Accumulate> Running<W> for Product {
    type First = W::Total;
    type Second = ();
    const START: (W::Total, ()) = (W::Total::ONE, ());
    #[inline(always)]
    fn step(product: &mut W::Total, (): &mut (), x: W, _: i64) -> W {
        *product = product.times(x.widened());
        W::rounded(*product)
    }
}

/// The largest (or smallest) so far, and where it was: the last among equals; NaN once met stays.
struct Extremum<const MAX: bool>;

impl<W: Wide, const MAX: bool> Running<W> for Extremum<MAX> {
    type First = W;
    type Second = i64;
    /// The value is meaningless while the position is negative.
    const START: (W, i64) = (W::ONE, -1);
    const POSITIONS: bool = true;
    #[inline(always)]
    fn step(value: &mut W, at: &mut i64, x: W, i: i64) -> W {
        let beats = if MAX { x >= *value } else { x <= *value };
        let new = beats | x.is_nan() | (*at < 0);
        *value = if new { x } else { *value };
        *at = if new { i } else { *at };
        *value
    }
    #[inline(always)]
    fn position(at: i64) -> i64 {
        at
    }
}

/// ln Σ exp = m + ln s with m the largest so far and s = Σ exp(x − m), rescaled when m grows
/// (Milakov & Gimelshein 2018).
struct LogSumExp;

macro_rules! log_sum_exp {
    ($($t:ident),*) => {$(
        impl Running<$t> for LogSumExp {
            type First = $t;
            type Second = f64;
            const START: ($t, f64) = ($t::NEG_INFINITY, 0.0);
            const NARROW: usize = 16;
            #[inline(always)]
            fn step(max: &mut $t, sum: &mut f64, x: $t, _: i64) -> $t {
                // e^−|x − m|, and 1 for two equal infinities, whose difference is NaN.
                let e = Real::exp(-Real::abs(x - *max));
                let e = if x == *max { 1.0 } else { f64::from(e) };
                let grows = x > *max;
                *sum = if grows { *sum * e + 1.0 } else { *sum + e };
                *max = if grows { x } else { *max };
                *max + Real::ln(*sum as $t)
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
        let at = SharedPtr(self.positions.map_or(std::ptr::null_mut(), |p| p.first::<i64>().get()));
        let space = IndexSpace::new(axes(shape, layouts).enumerate().filter(|&(a, _)| a != axis).map(|(_, a)| a));
        let across = space.step();
        let neighbours = across == [1; 3];
        let dense = along == [1; 3];
        let isa = Isa::best();
        let (wide, narrow, single) = match (R::NARROW, dense) {
            (MOST, true) => (wide::<T, R>(isa), narrow::<T, R, MOST, true>(isa), narrow::<T, R, 1, true>(isa)),
            (MOST, false) => (wide::<T, R>(isa), narrow::<T, R, MOST, false>(isa), narrow::<T, R, 1, false>(isa)),
            (_, true) => (wide::<T, R>(isa), narrow::<T, R, 4, true>(isa), narrow::<T, R, 1, true>(isa)),
            (_, false) => (wide::<T, R>(isa), narrow::<T, R, 4, false>(isa), narrow::<T, R, 1, false>(isa)),
        };
        split(space.len(), GRAIN / (len * size_of::<T>()), |range| {
            space.runs(range, |offsets, lines| {
                let go = |line: usize, count: usize, kernel: unsafe fn(Lines<T>, usize)| {
                    let o: [isize; 3] = std::array::from_fn(|k| offsets[k] + starts[k] + line as isize * across[k]);
                    let reverse = self.kernel.reverse;
                    let lines = Lines { x: x.at(o[0]), y: y.at(o[1]), at: at.at(o[2]), along, across, len, reverse };
                    // SAFETY: the operands hold all elements of the shape, and these lines are
                    // within it; no other range has them; the isa is this machine's.
                    unsafe { kernel(lines, count) }
                };
                let mut line = 0;
                while line < lines {
                    let left = lines - line;
                    let (count, kernel) = match left {
                        _ if neighbours => (left.min(WIDE), wide),
                        _ if left >= R::NARROW => (R::NARROW, narrow),
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
    fn position(&self, i: usize) -> i64 {
        (if self.reverse { self.len - 1 - i } else { i }) as i64
    }
}

per_isa! {
    /// Up to [`WIDE`] lines that are neighbours, step by step along the axis.
    fn wide[T: Number, R: Running<T::Wide>][T, R](lines: Lines<T>, count: usize) {
        let (mut first, mut second) = ([R::START.0; WIDE], [R::START.1; WIDE]);
        let (first, second) = (&mut first[..count], &mut second[..count]);
        for i in 0..lines.len {
            let position = lines.position(i);
            let i = i as isize;
            // SAFETY: the caller vouches for `count` lines of `len` elements.
            unsafe {
                let (x, y) = (lines.x.offset(i * lines.along[0]), lines.y.offset(i * lines.along[1]));
                for (l, (first, second)) in first.iter_mut().zip(second.iter_mut()).enumerate() {
                    *y.add(l) = T::narrow(R::step(first, second, (*x.add(l)).widen(), position));
                }
                if R::POSITIONS {
                    let at = lines.at.offset(i * lines.along[2]);
                    for (l, &second) in second.iter().enumerate() {
                        *at.add(l) = R::position(second);
                    }
                }
            }
        }
    }
}

per_isa! {
    /// `N` lines anywhere; `DENSE` if the elements of each are neighbours.
    fn narrow[T: Number, R: Running<T::Wide>, const N: usize, const DENSE: bool][T, R, N, DENSE](lines: Lines<T>, _count: usize) {
        let (mut first, mut second) = ([R::START.0; N], [R::START.1; N]);
        let x: [*const T; N] = std::array::from_fn(|l| lines.x.wrapping_offset(l as isize * lines.across[0]));
        let y: [*mut T; N] = std::array::from_fn(|l| lines.y.wrapping_offset(l as isize * lines.across[1]));
        let at: [*mut i64; N] = std::array::from_fn(|l| lines.at.wrapping_offset(l as isize * lines.across[2]));
        let along = if DENSE { [1; 3] } else { lines.along };
        for i in 0..lines.len {
            let position = lines.position(i);
            let i = i as isize;
            // SAFETY: the caller vouches for `N` lines of `len` elements.
            unsafe {
                // In three loops, the middle one of which is vector code where that pays.
                let mut values: [T; N] = std::array::from_fn(|l| *x[l].offset(i * along[0]));
                for l in 0..N {
                    values[l] = T::narrow(R::step(&mut first[l], &mut second[l], values[l].widen(), position));
                }
                for l in 0..N {
                    *y[l].offset(i * along[1]) = values[l];
                    if R::POSITIONS {
                        *at[l].offset(i * along[2]) = R::position(second[l]);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
