//! Cumulative reductions along one axis: sum, product, maximum, minimum and ln Σ exp.
//!
//! Elements are accumulated in the order of their indices along the axis, so the bits do not depend on layouts, threads
//! or instruction sets. Sums and products of `f32` and half precision accumulate in `f64`.
//!
//! The *lines* along the axis are independent. Lines whose elements are adjacent in memory are processed together as a
//! vector. Otherwise a few lines are processed together to hide the latency of the dependency chain.

use crate::element::{ComputeScalar, StorageElement};
use crate::family::CpuFamily;
use crate::operand::Operand;
use crate::strided::{IndexSpace, axes};
use pellucid_ir::kernel::{Scan, ScanOp};
use pellucid_ir::{DType, Result};
use pellucid_runtime::threads::{GRAIN, SharedPtr, parallel_ranges};
use pellucid_simd::math::Real;
use pellucid_simd::{Isa, per_isa, up_to};

/// The maximum number of adjacent lines that are processed together.
const MAX_ADJACENT: usize = 256;
/// The maximum of [`RunningReduction::STRIDED_LINES`].
const MAX_STRIDED: usize = 16;

impl CpuFamily for Scan {
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (kernel, x, y) = (self, &inputs[0], &outputs[0]);
        let task = ScanTask { kernel, x, y, positions: outputs.get(1) };
        match kernel.op {
            ScanOp::Sum => with_storage_element!(x.dtype, T => task.run::<T, RunningSum>()),
            ScanOp::Prod => with_storage_element!(x.dtype, T => task.run::<T, RunningProduct>()),
            ScanOp::Max => with_storage_element!(x.dtype, T => task.run::<T, RunningExtremum<true>>()),
            ScanOp::Min => with_storage_element!(x.dtype, T => task.run::<T, RunningExtremum<false>>()),
            ScanOp::LogSumExp => match x.dtype {
                DType::F16 => task.run::<pellucid_simd::math::half::F16, RunningLogSumExp>(),
                DType::BF16 => task.run::<pellucid_simd::math::half::BF16, RunningLogSumExp>(),
                DType::F32 => task.run::<f32, RunningLogSumExp>(),
                _ => task.run::<f64, RunningLogSumExp>(),
            },
        }
        Ok(())
    }
}

/// A cumulative reduction, defined by its accumulator.
///
/// The accumulator of a line is a pair. The pairs of several lines are stored as two arrays, so that a loop over the
/// lines vectorizes.
trait RunningReduction<W> {
    /// The first component of the accumulator.
    type First: Copy;
    /// The second component of the accumulator.
    type Second: Copy;
    /// The accumulator before the first element.
    const START: (Self::First, Self::Second);
    /// True if the second component is the index at which the first component was found.
    const POSITIONS: bool = false;
    /// The number of lines that are processed together if they are not adjacent in memory: enough to hide the latency
    /// of a step or, if a step is long, to fill a vector.
    const STRIDED_LINES: usize = 4;
    /// Adds the element `x` with index `i` to the accumulator, and returns the result so far.
    fn step(first: &mut Self::First, second: &mut Self::Second, x: W, i: i64) -> W;
    /// Returns the index that the second component stores.
    fn position(_: Self::Second) -> i64 {
        0
    }
}

/// A compute type with the accumulator type of its sums and products: see [`ScanOp::accumulator`].
trait Accumulate: ComputeScalar {
    /// The accumulator type.
    type Total: ComputeScalar;
    /// Converts to the accumulator type, exactly.
    fn to_total(self) -> Self::Total;
    /// Converts from the accumulator type, with rounding.
    fn from_total(total: Self::Total) -> Self;
}

macro_rules! accumulate {
    ($($t:ty: $total:ty),*) => {$(
        impl Accumulate for $t {
            type Total = $total;
            #[inline(always)]
            fn to_total(self) -> $total {
                self as $total
            }
            #[inline(always)]
            fn from_total(total: $total) -> $t {
                total as $t
            }
        }
    )*};
}
accumulate!(i32: i32, i64: i64, f32: f64, f64: f64);

/// The cumulative sum.
struct RunningSum;

impl<W: Accumulate> RunningReduction<W> for RunningSum {
    type First = W::Total;
    type Second = ();
    const START: (W::Total, ()) = (W::Total::ADDITIVE_IDENTITY, ());
    #[inline(always)]
    fn step(sum: &mut W::Total, (): &mut (), x: W, _: i64) -> W {
        *sum = sum.plus(x.to_total());
        W::from_total(*sum)
    }
}

/// The cumulative product.
struct RunningProduct;

impl<W: Accumulate> RunningReduction<W> for RunningProduct {
    type First = W::Total;
    type Second = ();
    const START: (W::Total, ()) = (W::Total::ONE, ());
    #[inline(always)]
    fn step(product: &mut W::Total, (): &mut (), x: W, _: i64) -> W {
        *product = product.times(x.to_total());
        W::from_total(*product)
    }
}

/// The cumulative maximum (or minimum) and its index, which is the last index of equal elements. After a NaN, all
/// results are NaN.
struct RunningExtremum<const MAX: bool>;

impl<W: ComputeScalar, const MAX: bool> RunningReduction<W> for RunningExtremum<MAX> {
    type First = W;
    type Second = i64;
    /// The value is undefined while the index is negative.
    const START: (W, i64) = (W::ONE, -1);
    const POSITIONS: bool = true;
    #[inline(always)]
    fn step(value: &mut W, position: &mut i64, x: W, i: i64) -> W {
        let replaces = if MAX { x >= *value } else { x <= *value };
        let new = replaces | x.is_nan() | (*position < 0);
        *value = if new { x } else { *value };
        *position = if new { i } else { *position };
        *value
    }
    #[inline(always)]
    fn position(position: i64) -> i64 {
        position
    }
}

/// The cumulative ln Σ exp = m + ln s, where m is the maximum so far and s = Σ exp(x − m). The sum s is rescaled when m
/// grows (Milakov & Gimelshein 2018).
struct RunningLogSumExp;

macro_rules! log_sum_exp {
    ($($t:ident |$sum:ident, $rounded:ident| $rest:expr),*) => {$(
        impl RunningReduction<$t> for RunningLogSumExp {
            type First = $t;
            type Second = f64;
            const START: ($t, f64) = ($t::NEG_INFINITY, 0.0);
            const STRIDED_LINES: usize = 16;
            #[inline(always)]
            fn step(max: &mut $t, sum: &mut f64, x: $t, _: i64) -> $t {
                // e^−|x − m|. It is 1 for two equal infinities, whose difference is NaN.
                let e = Real::exp(-Real::abs(x - *max));
                let e = f64::from(if x == *max { 1.0 } else { e });
                let grows = x > *max;
                *sum = if grows { *sum * e + 1.0 } else { *sum + e };
                *max = if grows { x } else { *max };
                let ($sum, $rounded) = (*sum, *sum as $t);
                *max + Real::ln($rounded) + $rest
            }
        }
    )*};
}
log_sum_exp!(
    // ln s = ln w + r/w, where r is the rounding error of w. r matters only for w near 1.
    f32 | sum,
    rounded | if rounded < 2.0 { (sum - f64::from(rounded)) as f32 } else { 0.0 },
    f64 | _sum,
    _rounded | 0.0
);

/// A scan with its operands.
struct ScanTask<'a> {
    kernel: &'a Scan,
    x: &'a Operand<'a>,
    y: &'a Operand<'a>,
    positions: Option<&'a Operand<'a>>,
}

/// Several lines of the operands of a scan.
#[derive(Clone, Copy)]
struct ScanLines {
    /// The element of the first line that is processed first.
    x: *const u8,
    /// The output of this element.
    y: *mut u8,
    /// The output for the index of this element. Reductions that return no indices do not use it.
    positions: *mut i64,
    /// The strides along the axis, in processing order, of `x`, `y` and `positions`.
    along: [isize; 3],
    /// The strides from one line to the next.
    across: [isize; 3],
    /// The number of elements of a line.
    len: usize,
    /// True if a line is processed from its last element to its first.
    reverse: bool,
}

/// A scan of several lines; see [`scan_adjacent`] and [`scan_strided`].
type ScanKernel = unsafe fn(ScanLines, usize);

/// The kernels of a reduction of elements of one type.
struct ScanKernels {
    /// Scans lines that are adjacent in memory.
    adjacent: ScanKernel,
    /// The kernels that scan several lines and one line, with any strides.
    strided: [ScanKernel; 2],
}

impl ScanTask<'_> {
    /// Runs the reduction `R` on all lines.
    fn run<T: StorageElement, R: RunningReduction<T::Compute>>(&self) {
        let isa = Isa::best();
        // Sums and products are bound by their latency. The steps of the others have more instructions.
        let strided = if const { R::STRIDED_LINES == MAX_STRIDED } {
            [
                up_to!(T::WIDEST_ISA, isa, scan_strided::<T, R, MAX_STRIDED>),
                up_to!(T::WIDEST_ISA, isa, scan_strided::<T, R, 1>),
            ]
        } else if const { R::POSITIONS } {
            [up_to!(T::WIDEST_ISA, isa, scan_strided::<T, R, 4>), up_to!(T::WIDEST_ISA, isa, scan_strided::<T, R, 1>)]
        } else {
            const { [scan_strided::<T, R, 4>(Isa::Portable), scan_strided::<T, R, 1>(Isa::Portable)] }
        };
        let kernels = ScanKernels { adjacent: up_to!(T::WIDEST_ISA, isa, scan_adjacent::<T, R>), strided };
        self.run_kernels(&kernels, size_of::<T>(), R::STRIDED_LINES);
    }

    /// Runs the kernels of a reduction of elements of `size` bytes on all lines, `strided_lines` at a time if they are
    /// not adjacent.
    fn run_kernels(&self, kernels: &ScanKernels, size: usize, strided_lines: usize) {
        let (shape, axis) = (self.x.shape(), self.kernel.axis);
        if shape.size() == 0 {
            return;
        }
        // If the reduction returns no positions, the third layout is not used.
        let positions = self.positions.unwrap_or(self.y);
        let layouts = [self.x.layout, self.y.layout, positions.layout];
        let mut along = layouts.map(|l| l.strides()[axis]);
        let len = shape[axis];
        let (x, y) = (self.x.first::<u8>(), self.y.first::<u8>());
        let bytes = size as isize;
        let mut starts = [0; 3];
        if self.kernel.reverse {
            starts = along.map(|s| s * (len as isize - 1));
            along = along.map(|s| -s);
        }
        let positions = SharedPtr(self.positions.map_or(std::ptr::null_mut(), |p| p.first::<i64>().get()));
        let space = IndexSpace::new(axes(shape, layouts).enumerate().filter(|&(a, _)| a != axis).map(|(_, a)| a));
        let across = space.step();
        let lines_are_adjacent = across == [1; 3];
        let [strided, single] = kernels.strided;
        parallel_ranges(space.len(), GRAIN / (len * size), |range| {
            space.runs(range, |offsets, lines| {
                let scan = |line: usize, count: usize, kernel: ScanKernel| {
                    let mut o = [0; 3];
                    for k in 0..3 {
                        o[k] = offsets[k] + starts[k] + line as isize * across[k];
                    }
                    let reverse = self.kernel.reverse;
                    let (x, y, positions) =
                        (x.offset(o[0] * bytes).cast_const(), y.offset(o[1] * bytes), positions.offset(o[2]));
                    let lines = ScanLines { x, y, positions, along, across, len, reverse };
                    // SAFETY: these `count` lines of `len` elements are within the shape, and all elements of an
                    // operand are in its buffer (clause 1 of the scan kernels). The lines of an output belong to this
                    // task alone, and no thread writes the input, except that an output may have its address and layout
                    // (clause 2). The processor has the instruction set of the kernel (clause 3).
                    unsafe { kernel(lines, count) }
                };
                let mut line = 0;
                while line < lines {
                    let remaining = lines - line;
                    let (count, kernel) = match remaining {
                        // A long step is vectorized over a fixed number of lines only.
                        MAX_STRIDED.. if strided_lines == MAX_STRIDED => (strided_lines, strided),
                        _ if lines_are_adjacent => (remaining.min(MAX_ADJACENT), kernels.adjacent),
                        _ if remaining >= strided_lines => (strided_lines, strided),
                        _ => (1, single),
                    };
                    scan(line, count, kernel);
                    line += count;
                }
            })
        });
    }
}

impl ScanLines {
    /// Returns the index along the axis of the `i`-th element in processing order.
    #[inline(always)]
    fn position(&self, i: usize) -> i64 {
        (if self.reverse { self.len - 1 - i } else { i }) as i64
    }
}

per_isa! {
    /// Scans `count` lines that are adjacent in memory, at most [`MAX_ADJACENT`].
    ///
    /// # Safety
    /// 1. The first `count` lines of `lines` are valid: `x` for reads, `y` for writes, and `positions` for writes if
    ///    the reduction has positions. The strides from one line to the next are 1.
    /// 2. No other thread uses the outputs of these lines or writes their inputs.
    /// 3. The processor has the instruction set.
    fn scan_adjacent[T: StorageElement, R: RunningReduction<T::Compute>][T, R](lines: ScanLines, count: usize) {
        let (mut first, mut second) = ([R::START.0; MAX_ADJACENT], [R::START.1; MAX_ADJACENT]);
        let (first, second) = (&mut first[..count], &mut second[..count]);
        let (x, y) = (lines.x.cast::<T>(), lines.y.cast::<T>());
        for i in 0..lines.len {
            let position = lines.position(i);
            let i = i as isize;
            // SAFETY: i < len and l < count, so every access is to an element of a line that the caller guarantees to
            // be valid (clause 1 of this function's contract).
            unsafe {
                let (x, y) = (x.offset(i * lines.along[0]), y.offset(i * lines.along[1]));
                for (l, (first, second)) in first.iter_mut().zip(second.iter_mut()).enumerate() {
                    *y.add(l) = T::narrow(R::step(first, second, (*x.add(l)).widen(), position));
                }
                if R::POSITIONS {
                    let positions = lines.positions.offset(i * lines.along[2]);
                    for (l, &second) in second.iter().enumerate() {
                        *positions.add(l) = R::position(second);
                    }
                }
            }
        }
    }
}

per_isa! {
    /// Scans `N` lines with any strides.
    ///
    /// # Safety
    /// 1. The first `N` lines of `lines` are valid: `x` for reads, `y` for writes, and `positions` for writes if the
    ///    reduction has positions.
    /// 2. No other thread uses the outputs of these lines or writes their inputs.
    /// 3. The processor has the instruction set.
    fn scan_strided[T: StorageElement, R: RunningReduction<T::Compute>, const N: usize][T, R, N](
        lines: ScanLines, _count: usize
    ) {
        let (mut first, mut second) = ([R::START.0; N], [R::START.1; N]);
        let (mut x, mut y, mut positions) = ([lines.x.cast::<T>(); N], [lines.y.cast::<T>(); N], [lines.positions; N]);
        for l in 0..N {
            x[l] = x[l].wrapping_offset(l as isize * lines.across[0]);
            y[l] = y[l].wrapping_offset(l as isize * lines.across[1]);
            positions[l] = lines.positions.wrapping_offset(l as isize * lines.across[2]);
        }
        let along = lines.along;
        for i in 0..lines.len {
            let position = lines.position(i);
            let i = i as isize;
            // SAFETY: i < len and l < N, so every access is to an element of a line that the caller guarantees to be
            // valid (clause 1 of this function's contract).
            unsafe {
                // There are three loops instead of one, because the compiler can then vectorize the second loop.
                let mut values = [*x[0].offset(i * along[0]); N];
                for l in 1..N {
                    values[l] = *x[l].offset(i * along[0]);
                }
                for l in 0..N {
                    values[l] = T::narrow(R::step(&mut first[l], &mut second[l], values[l].widen(), position));
                }
                for l in 0..N {
                    *y[l].offset(i * along[1]) = values[l];
                    if R::POSITIONS {
                        *positions[l].offset(i * along[2]) = R::position(second[l]);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
