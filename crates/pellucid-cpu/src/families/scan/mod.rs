//! Cumulative reductions along one axis: sum, product, maximum, minimum and ln Σ exp.
//!
//! Elements are accumulated in ascending or descending order of their indices along the axis, so the bits do not depend
//! on layouts, threads or instruction sets. Sums and products of `f32` and half precision accumulate in `f64`.
//!
//! The *lines* along the axis are independent. Lines whose elements are adjacent in memory are processed together as
//! vectors. Otherwise blocks of a few lines are transposed, so that the elements of the lines are adjacent.

use crate::element::{ComputeScalar, StorageElement};
use crate::family::CpuFamily;
use crate::operand::Operand;
use crate::program::transpose::transpose_matrix;
use crate::strided::{IndexSpace, axes};
use pellucid_ir::kernel::{Scan, ScanOp};
use pellucid_ir::{DType, Result};
use pellucid_runtime::scratch;
use pellucid_runtime::threads::{GRAIN, SharedPtr, parallel_ranges};
use pellucid_simd::math::Real;
use pellucid_simd::{Isa, per_isa, up_to};

/// The maximum number of adjacent lines that are processed together.
const MAX_ADJACENT: usize = 256;
/// The number of lines that are processed as one vector.
const LANES: usize = 16;
/// The maximum numbers of lines, and of elements of each line, in a transposed block. A block of `f32` with its
/// positions has 24 KiB and fits the first-level cache.
const BLOCK: (usize, usize) = (32, 64);
/// The minimum number of lines that are transposed. Fewer lines are processed one by one.
const MIN_TRANSPOSED: usize = 4;

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
    /// Whether the second component is the index at which the first component was found.
    const POSITIONS: bool = false;
    /// Whether a step has many operations. The kernel for a single line is then also compiled for wider instruction
    /// sets.
    const LONG_STEP: bool = false;
    /// Combines the accumulator with the element `x` at index `i`, and returns the result up to this element.
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

/// The cumulative maximum (or minimum) and its index. Among equal elements, it is the index of the element that is
/// processed last. After a NaN, all results are NaN.
struct RunningExtremum<const MAX: bool>;

impl<W: ComputeScalar, const MAX: bool> RunningReduction<W> for RunningExtremum<MAX> {
    type First = W;
    type Second = i64;
    /// The value is not used while the index is negative.
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
            const LONG_STEP: bool = true;
            #[inline(always)]
            fn step(max: &mut $t, sum: &mut f64, x: $t, _: i64) -> $t {
                // The factor e^−|x − m|. It is 1 for two equal infinities, whose difference is NaN.
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
    // The sum s is in `f64`. With w = s rounded to `f32` and r = s − w, ln s ≈ ln w + r/w. The second term matters only
    // for w near 1, where it is about r.
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

/// Several lines of the operands of a scan, or the same range of elements of several lines.
#[derive(Clone, Copy)]
struct ScanLines {
    /// The address, in the first line, of the element that is processed first.
    x: *const u8,
    /// The address of the output for this element.
    y: *mut u8,
    /// The output for the index of this element. Reductions that return no indices do not use it.
    positions: *mut i64,
    /// The strides along the axis, in processing order, of `x`, `y` and `positions`.
    along: [isize; 3],
    /// The strides from one line to the next.
    across: [isize; 3],
    /// The number of elements of a line.
    len: usize,
    /// The index along the axis of the element that is processed first, and the difference to the next index.
    index: (i64, i64),
    /// The accumulators of the lines: an [`Accumulators`] of the reduction.
    accumulators: *mut u8,
    /// Whether the elements are the first elements of their lines. The accumulators are then not initialized yet.
    is_first: bool,
}

/// The accumulators of adjacent lines.
#[repr(C, align(64))]
struct Accumulators<First, Second> {
    first: [First; MAX_ADJACENT],
    second: [Second; MAX_ADJACENT],
}

/// Scratch memory of a scan.
#[repr(C, align(64))]
struct ScanScratch {
    /// The accumulators of any reduction, whose components have at most eight bytes.
    accumulators: Accumulators<u64, u64>,
    /// A transposed block of values of at most eight bytes, which the results overwrite.
    values: [u64; BLOCK.0 * BLOCK.1],
    /// The positions of a transposed block.
    positions: [i64; BLOCK.0 * BLOCK.1],
}

/// A scan of several lines; see [`scan_adjacent`] and [`scan_line`].
type ScanKernel = unsafe fn(ScanLines, usize);

/// The kernels of a reduction of elements of one type.
struct ScanKernels {
    /// Scans lines that are adjacent in memory.
    adjacent: ScanKernel,
    /// Scans one line with any stride.
    line: ScanKernel,
    /// The bytes of an element.
    size: usize,
    /// Whether the reduction has positions.
    has_positions: bool,
}

impl ScanTask<'_> {
    /// Runs the reduction `R` on all lines.
    fn run<T: StorageElement, R: RunningReduction<T::Compute>>(&self) {
        const { assert!(size_of::<R::First>() <= 8 && size_of::<R::Second>() <= 8) };
        let isa = Isa::best();
        // The other reductions are bound by the latency of a step, so wider instruction sets would not make them
        // faster.
        let line = if const { R::LONG_STEP } {
            up_to!(T::WIDEST_ISA, isa, scan_line::<T, R>)
        } else {
            const { scan_line::<T, R>(Isa::Portable) }
        };
        let adjacent = up_to!(T::WIDEST_ISA, isa, scan_adjacent::<T, R>);
        self.run_kernels(&ScanKernels { adjacent, line, size: size_of::<T>(), has_positions: R::POSITIONS });
    }

    /// Runs the kernels of a reduction on all lines.
    fn run_kernels(&self, kernels: &ScanKernels) {
        let (shape, axis) = (self.x.shape(), self.kernel.axis);
        if shape.size() == 0 {
            return;
        }
        // The third layout belongs to the positions. It is not used if the reduction returns no positions.
        let positions = self.positions.unwrap_or(self.y);
        let layouts = [self.x.layout, self.y.layout, positions.layout];
        let mut along = layouts.map(|l| l.strides()[axis]);
        let (len, reverse) = (shape[axis], self.kernel.reverse);
        let (x, y) = (self.x.first::<u8>(), self.y.first::<u8>());
        let bytes = kernels.size as isize;
        let mut starts = [0; 3];
        if reverse {
            starts = along.map(|s| s * (len as isize - 1));
            along = along.map(|s| -s);
        }
        let index = if reverse { (len as i64 - 1, -1) } else { (0, 1) };
        let positions = SharedPtr(self.positions.map_or(std::ptr::null_mut(), |p| p.first::<i64>().get()));
        let space = IndexSpace::new(axes(shape, layouts).enumerate().filter(|&(a, _)| a != axis).map(|(_, a)| a));
        let across = space.step();
        let lines_are_adjacent = across == [1; 3];
        parallel_ranges(space.len(), GRAIN / (len * kernels.size), |range| {
            scratch::with_buffer(size_of::<ScanScratch>(), |scratch: *mut u8| {
                let scratch = scratch.cast::<ScanScratch>();
                // SAFETY: the scratch memory is aligned to 64 bytes and has the size of a `ScanScratch`.
                let accumulators = unsafe { (&raw mut (*scratch).accumulators).cast() };
                space.runs(range, |offsets, lines| {
                    let mut line = 0;
                    while line < lines {
                        let remaining = lines - line;
                        let mut o = [0; 3];
                        for k in 0..3 {
                            o[k] = offsets[k] + starts[k] + line as isize * across[k];
                        }
                        let (x, y) = (x.offset(o[0] * bytes).cast_const(), y.offset(o[1] * bytes));
                        let positions = positions.offset(o[2]);
                        let lines =
                            ScanLines { x, y, positions, along, across, len, index, accumulators, is_first: true };
                        // SAFETY: the `count` lines of `len` elements are within the shape, and all elements of an
                        // operand are in its buffer (*Lines* of the kernels). The lines of an output belong to this
                        // task alone, and no thread writes the input, except that an output may have its address and
                        // layout (*Exclusive*). The scratch memory is not part of an operand (*Accumulators*,
                        // *Scratch*). The processor has the instruction set of the kernels (*Instruction set*).
                        unsafe {
                            line += match remaining {
                                _ if lines_are_adjacent => {
                                    let count = remaining.min(MAX_ADJACENT);
                                    (kernels.adjacent)(lines, count);
                                    count
                                }
                                MIN_TRANSPOSED.. => {
                                    let count = remaining.min(BLOCK.0);
                                    kernels.scan_transposed(lines, count, scratch);
                                    count
                                }
                                _ => {
                                    (kernels.line)(lines, 1);
                                    1
                                }
                            };
                        }
                    }
                });
            });
        });
    }
}

impl ScanKernels {
    /// Scans `count` lines with any strides, at most [`BLOCK`]`.0`: transposes them block by block, scans each block
    /// and transposes the results. Without positions, the results of adjacent lines of y are written in place instead.
    ///
    /// # Safety
    /// *Lines*, *Exclusive* and *Instruction set* of [`scan_adjacent`] hold, with any strides. *Scratch*: `scratch` is
    /// valid for reads and writes and disjoint from the operands, and `lines.accumulators` is its field.
    unsafe fn scan_transposed(&self, lines: ScanLines, count: usize, scratch: *mut ScanScratch) {
        let size = self.size;
        let lanes = count.next_multiple_of(LANES);
        // SAFETY: the field is within the scratch memory (*Scratch* of this function's contract).
        let (values, positions) =
            unsafe { ((&raw mut (*scratch).values).cast::<u8>(), (&raw mut (*scratch).positions).cast::<i64>()) };
        if lanes > count {
            // SAFETY: `values` is within the scratch memory and has this size (*Scratch*). The lanes without a line
            // then have defined values.
            unsafe { values.write_bytes(0, size_of::<[u64; BLOCK.0 * BLOCK.1]>()) };
        }
        for start in (0..lines.len).step_by(BLOCK.1) {
            let n = BLOCK.1.min(lines.len - start);
            let index = (lines.index.0 + start as i64 * lines.index.1, lines.index.1);
            let block = ScanLines {
                x: values,
                y: values,
                positions,
                along: [lanes as isize; 3],
                across: [1; 3],
                len: n,
                index,
                is_first: start == 0,
                ..lines
            };
            let strides = |k: usize, size: usize| [lines.along[k], lines.across[k]].map(|s| s * size as isize);
            let tile_strides = |size: usize| [lanes * size, size].map(|s| s as isize);
            let swapped = |[a, b]: [isize; 2]| [b, a];
            // SAFETY: elements `start..start + n` of the lines are valid (*Lines*), and the tiles hold `n` ≤ `BLOCK.1`
            // rows of `lanes` ≤ `BLOCK.0` values of at most eight bytes, outside of the operands (*Scratch*). The
            // accumulators keep the values of earlier blocks. Without positions, adjacent lines of y are written in
            // place, and no other lines. *Exclusive* and *Instruction set* are this function's contract.
            unsafe {
                let x = lines.x.offset(start as isize * lines.along[0] * size as isize);
                copy_matrix(size, (x, strides(0, size)), (values, tile_strides(size)), n, count);
                let y = lines.y.offset(start as isize * lines.along[1] * size as isize);
                if lines.across[1] == 1 && !self.has_positions {
                    let along = [block.along[0], lines.along[1], 0];
                    (self.adjacent)(ScanLines { y, along, ..block }, count);
                    continue;
                }
                (self.adjacent)(block, lanes);
                copy_matrix(size, (values, swapped(tile_strides(size))), (y, swapped(strides(1, size))), count, n);
                if self.has_positions {
                    let to = lines.positions.offset(start as isize * lines.along[2]).cast::<u8>();
                    let from = positions.cast::<u8>();
                    copy_matrix(8, (from, swapped(tile_strides(8))), (to, swapped(strides(2, 8))), count, n);
                }
            }
        }
    }
}

/// Writes `to[i][j] = from[i][j]` for `rows` indices i and `cols` indices j of elements of `size` bytes. A matrix is
/// the address of element (0, 0) and the strides along i and j, in bytes.
///
/// # Safety
/// All elements of `from` are valid for reads and those of `to` for writes, aligned to `size`, and the matrices do not
/// overlap.
unsafe fn copy_matrix(size: usize, from: (*const u8, [isize; 2]), to: (*mut u8, [isize; 2]), rows: usize, cols: usize) {
    // SAFETY: the caller guarantees the clauses of `transpose_matrix` and the validity of every element (this
    // function's contract). The element type has `size` bytes.
    unsafe {
        if from.1[0].unsigned_abs() == size && to.1[1].unsigned_abs() == size {
            return transpose_matrix(size, from, to, rows, cols);
        }
        with_width!(size, T => {
            for i in 0..rows as isize {
                let (from_row, to_row) = (from.0.offset(i * from.1[0]), to.0.offset(i * to.1[0]));
                // The rows of a broadcast input repeat one value.
                if from.1[1] == 0 && to.1[1] == size as isize {
                    std::slice::from_raw_parts_mut(to_row.cast::<T>(), cols).fill(*from_row.cast::<T>());
                    continue;
                }
                for j in 0..cols as isize {
                    *to_row.offset(j * to.1[1]).cast::<T>() = *from_row.offset(j * from.1[1]).cast::<T>();
                }
            }
        })
    }
}

per_isa! {
    /// Scans `count` lines that are adjacent in memory, at most [`MAX_ADJACENT`].
    ///
    /// # Safety
    /// - *Lines*: the first `count` lines of `lines` are valid: `x` for reads, `y` for writes, and `positions` for
    ///   writes if the reduction has positions. The strides from one line to the next are 1.
    /// - *Exclusive*: no other thread uses the outputs of these lines or writes their inputs. An output may be the
    ///   input.
    /// - *Accumulators*: `lines.accumulators` is valid for reads and writes of the [`Accumulators`] of the reduction,
    ///   disjoint from the lines, and initialized for them unless `lines.is_first`.
    /// - *Instruction set*: the processor has the instruction set.
    fn scan_adjacent[T: StorageElement, R: RunningReduction<T::Compute>][T, R](lines: ScanLines, count: usize) {
        // SAFETY: *Accumulators* of this function's contract.
        let (first, second) = unsafe {
            let accumulators = lines.accumulators.cast::<Accumulators<R::First, R::Second>>();
            let first = (&raw mut (*accumulators).first).cast::<R::First>();
            let second = (&raw mut (*accumulators).second).cast::<R::Second>();
            if lines.is_first {
                for l in 0..count {
                    first.add(l).write(R::START.0);
                    second.add(l).write(R::START.1);
                }
            }
            (std::slice::from_raw_parts_mut(first, count), std::slice::from_raw_parts_mut(second, count))
        };
        for i in 0..lines.len as isize {
            let index = lines.index.0 + i as i64 * lines.index.1;
            // SAFETY: i < len and l < count, so every access is to an element of a line that the caller guarantees to
            // be valid (*Lines*). Arrays of elements need no alignment beyond that of an element.
            unsafe {
                let x = lines.x.cast::<T>().offset(i * lines.along[0]);
                let y = lines.y.cast::<T>().offset(i * lines.along[1]);
                let mut done = 0;
                // Long steps, steps with a conversion, and steps over few lines are fastest in a loop over a fixed
                // number of lines.
                let is_long = const { R::LONG_STEP || size_of::<T>() < size_of::<T::Compute>() };
                if !R::POSITIONS && (is_long || count <= BLOCK.0) {
                    let first = first.as_chunks_mut::<LANES>().0.iter_mut();
                    for (first, second) in first.zip(second.as_chunks_mut::<LANES>().0) {
                        let (mut firsts, mut seconds) = (*first, *second);
                        let mut values = x.add(done).cast::<[T; LANES]>().read();
                        for l in 0..LANES {
                            let x = values[l].widen();
                            values[l] = T::narrow(R::step(&mut firsts[l], &mut seconds[l], x, index));
                        }
                        y.add(done).cast::<[T; LANES]>().write(values);
                        (*first, *second) = (firsts, seconds);
                        done += LANES;
                    }
                }
                for (l, (first, second)) in first.iter_mut().zip(second.iter_mut()).enumerate().skip(done) {
                    *y.add(l) = T::narrow(R::step(first, second, (*x.add(l)).widen(), index));
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
    /// Scans one line with any strides.
    ///
    /// # Safety
    /// *Lines*, *Exclusive* and *Instruction set* of [`scan_adjacent`] hold for one line, with any strides.
    fn scan_line[T: StorageElement, R: RunningReduction<T::Compute>][T, R](lines: ScanLines, _count: usize) {
        let (mut first, mut second) = R::START;
        for i in 0..lines.len as isize {
            // SAFETY: i < len, so every access is to an element of the line, which the caller guarantees to be valid
            // (*Lines*).
            unsafe {
                let x = (*lines.x.cast::<T>().offset(i * lines.along[0])).widen();
                let index = lines.index.0 + i as i64 * lines.index.1;
                *lines.y.cast::<T>().offset(i * lines.along[1]) =
                    T::narrow(R::step(&mut first, &mut second, x, index));
                if R::POSITIONS {
                    *lines.positions.offset(i * lines.along[2]) = R::position(second);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
