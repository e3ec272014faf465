//! `Copy`: writes the values of one array to another of any layout and dtype.

use super::map;
use crate::operand::Operand;
use crate::program::prepared::PreparedProgram;
use crate::program::transpose::{MIN_TRANSPOSE, is_transposed, transpose_matrix};
use crate::strided::{self, Cursor, StridedAxes, StridedAxis};
use pellucid_gemm::Threads;
use pellucid_ir::kernel::Params;
use pellucid_ir::{DType, Result};
use pellucid_runtime::threads::{GRAIN, SharedPtr, parallel_ranges};
use pellucid_simd::{Isa, per_isa};
use std::sync::OnceLock;

/// The number of output rows that are transposed together.
const STRIP: usize = 64;

/// The maximum size of a run that is copied by moves of a constant length, in bytes: for longer runs, `memmove` is
/// faster.
const MAX_SHORT_RUN: usize = 4096;

/// The number of rows that are copied together, column by column, if the innermost axis is short. The rows of both
/// operands fit the first-level cache.
const COLUMN_ROWS: usize = 256;

/// Writes the values of `input`, broadcast to the shape of `output` and converted to its dtype.
pub(crate) fn copy(input: &Operand<'_>, output: &Operand<'_>) -> Result<()> {
    let n = output.layout.shape().size();
    if n == 0 {
        return Ok(());
    }
    let size = output.dtype.size();
    let contiguous = input.layout.is_contiguous() && output.layout.is_contiguous();
    if contiguous && input.dtype == output.dtype && n * size < GRAIN && input.layout.shape() == output.layout.shape() {
        // SAFETY: both operands are `n` contiguous elements of `size` bytes in their buffers; `copy` permits overlap.
        unsafe { std::ptr::copy(strided::base_address(input), strided::base_address(output), n * size) };
        return Ok(());
    }
    let bases = [strided::base_address(input), strided::base_address(output)];
    let axes = strided::broadcast_axes(output.layout.shape(), [input, output].into_iter(), |_| true);
    copy_over_axes(axes, bases, [input.dtype, output.dtype]);
    Ok(())
}

/// Copies between two arrays of the same dtype. The second array is row-major, and its last axis is axis `axis` of the
/// first array. `arrays[to]` is written, and the other array is read.
pub(crate) fn copy_axis_last(arrays: [&Operand<'_>; 2], axis: usize, to: usize) {
    let [strided, dense] = arrays;
    let (shape, size) = (strided.layout.shape(), strided.dtype.size() as isize);
    let others = (0..shape.rank()).filter(|&a| a != axis);
    let axis_pair = |(k, a): (usize, usize)| {
        let strides = [strided.layout.strides()[a] * size, dense.layout.strides()[k] * size];
        StridedAxis { len: shape[a], strides: [strides[1 - to], strides[to]].into_iter().collect() }
    };
    let axes = others.chain([axis]).enumerate().map(axis_pair).filter(|axis| axis.len != 1).collect();
    let (from, to) = (arrays[1 - to], arrays[to]);
    copy_over_axes(axes, [strided::base_address(from), strided::base_address(to)], [from.dtype, to.dtype]);
}

/// Copies over an index space of at least one element. The operands are the source and the target, with the addresses
/// of their first elements and their dtypes.
fn copy_over_axes(mut axes: StridedAxes, mut bases: [*mut u8; 2], [from, to]: [DType; 2]) {
    let size = to.size();
    strided::reorder(&mut axes, 1, &mut bases);
    strided::merge(&mut axes);
    if from == to {
        let dense = |a: &StridedAxis, k: usize| a.strides[k] == size as isize;
        if let [outer @ .., row, column] = &axes[..]
            && column.len < MIN_TRANSPOSE
            && row.len >= MIN_TRANSPOSE
        {
            return copy_columns(outer, row, column, &bases, size);
        }
        match axes.last() {
            Some(inner) if dense(inner, 0) && dense(inner, 1) => return copy_runs(&axes, &bases, size),
            Some(inner) if dense(inner, 1) && inner.len >= MIN_TRANSPOSE => {
                let is_across =
                    |a: &StridedAxis| a.len >= MIN_TRANSPOSE && is_transposed(size, a.strides[0], inner.strides[0]);
                if let Some(across) = axes.iter().position(is_across) {
                    let others = (0..axes.len() - 1).filter(|&a| a != across);
                    let outer: StridedAxes = others.map(|a| axes[a].clone()).collect();
                    return copy_transposed(&outer, &axes[across], inner, &bases, size);
                }
            }
            _ => {}
        }
    }
    map::map_over_axes(cast_program(from, to), &Params::new(), &axes, &bases, Threads::Pool);
}

/// Returns the program that converts between two dtypes: the load is exact, the store rounds once.
pub(super) fn cast_program(from: DType, to: DType) -> &'static PreparedProgram {
    const N: usize = DType::ALL.len();
    static CASTS: [[OnceLock<PreparedProgram>; N]; N] = [const { [const { OnceLock::new() }; N] }; N];
    CASTS[from as usize][to as usize].get_or_init(|| PreparedProgram::cast(from, to))
}

/// Copies runs along the innermost axis, which is contiguous in both operands.
fn copy_runs(axes: &[StridedAxis], bases: &[*mut u8; 2], size: usize) {
    let Some((inner, outer)) = axes.split_last() else { return };
    let run = inner.len * size;
    if let Some((row, outer)) = outer.split_last()
        && run <= GRAIN
    {
        return copy_rows(outer, row, bases, run);
    }
    // A long run is divided into several tasks.
    let piece = run.min(GRAIN.next_multiple_of(size));
    let pieces = run.div_ceil(piece);
    let (bases, copy) = (bases.map(SharedPtr), copy_spaced_runs(Isa::best()));
    let total = strided::element_count(outer) * pieces;
    parallel_ranges(total, GRAIN.div_ceil(piece), |range| {
        let mut cursor = Cursor::at(outer, &[bases[0].get(), bases[1].get()], range.start / pieces);
        let (mut done, mut first) = (range.start, range.start % pieces);
        while done < range.end {
            let last = pieces.min(first + range.end - done);
            let (start, end) = (first * piece, run.min(last * piece));
            let [from, to] = [cursor.positions[0], cursor.positions[1]];
            // SAFETY: bytes `start..end` of a run are within both operands, and no other thread writes them. Operands
            // overlap only if their addresses and layouts are equal. The processor has the instruction set.
            unsafe { copy(from.add(start), to.add(start), [0; 2], 1, end - start) };
            done += last - first;
            first = 0;
            cursor.advance();
        }
    });
}

/// Copies runs of `run` bytes, which axis `row` and the axes `outer` number. A loop over `row` needs no cursor.
fn copy_rows(outer: &[StridedAxis], row: &StridedAxis, bases: &[*mut u8; 2], run: usize) {
    let (bases, copy) = (bases.map(SharedPtr), copy_spaced_runs(Isa::best()));
    let total = strided::element_count(outer) * row.len;
    parallel_ranges(total, GRAIN.div_ceil(run), |range| {
        let mut cursor = Cursor::at(outer, &[bases[0].get(), bases[1].get()], range.start / row.len);
        let (mut done, mut first) = (range.start, range.start % row.len);
        while done < range.end {
            let count = (row.len - first).min(range.end - done);
            let strides = [row.strides[0], row.strides[1]];
            let start = |k: usize| cursor.positions[k].wrapping_offset(first as isize * strides[k]);
            // SAFETY: the runs are within both operands, and no other thread writes them. Operands overlap only if
            // their addresses and layouts are equal. The processor has the instruction set.
            unsafe { copy(start(0), start(1), strides, count, run) };
            done += count;
            first = 0;
            cursor.advance();
        }
    });
}

per_isa! {
    /// Returns the loop that copies `count` runs of `n` bytes. The addresses of adjacent runs differ by `strides`.
    ///
    /// # Safety of the returned function pointer
    /// The contract of [`copy_bytes`] holds for every run, and the processor has the instruction set.
    fn copy_spaced_runs[][](from: *const u8, to: *mut u8, strides: [isize; 2], count: usize, n: usize) {
        for i in 0..count as isize {
            // SAFETY: i < count, so the caller guarantees the contract of `copy_bytes` for this run.
            unsafe { copy_bytes(from.offset(i * strides[0]), to.offset(i * strides[1]), n) }
        }
    }
}

/// Copies `n` bytes. A short run is copied by moves of a constant length, the last of which may overlap the one before
/// it: they cost less than a call of `memmove`.
///
/// # Safety
/// - *Source*, *Target*: `from` is valid for reads, and `to` for writes, of `n` bytes.
/// - *Overlap*: the two ranges are equal or do not overlap.
#[inline(always)]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: every copy is within the first or the last `n` bytes (*Source*, *Target*). By *Overlap*, a byte that was
    // already written has not changed its value.
    unsafe {
        match n {
            0 => {}
            1 => *to = *from,
            2..4 => copy_both_ends::<2>(from, to, n),
            4..8 => copy_both_ends::<4>(from, to, n),
            8..16 => copy_both_ends::<8>(from, to, n),
            16..32 => copy_both_ends::<16>(from, to, n),
            32..64 => copy_both_ends::<32>(from, to, n),
            64..=MAX_SHORT_RUN => {
                for start in (0..n - 64).step_by(64) {
                    copy_both_ends::<64>(from.add(start), to.add(start), 64);
                }
                copy_both_ends::<64>(from.add(n - 64), to.add(n - 64), 64);
            }
            _ => std::ptr::copy(from, to, n),
        }
    }
}

/// Copies the first N and the last N of `n` bytes, for N ≤ n.
///
/// # Safety
/// The contract of [`copy_bytes`] holds.
#[inline(always)]
unsafe fn copy_both_ends<const N: usize>(from: *const u8, to: *mut u8, n: usize) {
    debug_assert!(N <= n && n <= 2 * N, "two copies of {N} bytes must cover {n} bytes and be within them");
    // SAFETY: both parts are within the `n` bytes (*Source*, *Target* of `copy_bytes`); arrays of bytes need no
    // alignment.
    unsafe {
        let (first, last) = (from.cast::<[u8; N]>().read(), from.add(n - N).cast::<[u8; N]>().read());
        to.cast::<[u8; N]>().write(first);
        to.add(n - N).cast::<[u8; N]>().write(last);
    }
}

/// Copies operands whose innermost axis, `column`, is so short that a loop over the axis before it, `row`, is faster.
/// Repeated elements and shifts along short axes are examples.
fn copy_columns(outer: &[StridedAxis], row: &StridedAxis, column: &StridedAxis, bases: &[*mut u8; 2], size: usize) {
    let bases = bases.map(SharedPtr);
    let blocks = row.len.div_ceil(COLUMN_ROWS);
    let total = strided::element_count(outer) * blocks;
    parallel_ranges(total, GRAIN.div_ceil(COLUMN_ROWS * column.len * size), |range| {
        let mut cursor = Cursor::at(outer, &[bases[0].get(), bases[1].get()], range.start / blocks);
        for block in range {
            let first = block % blocks * COLUMN_ROWS;
            let rows = COLUMN_ROWS.min(row.len - first) as isize;
            for j in 0..column.len as isize {
                let start = |k: usize| {
                    cursor.positions[k].wrapping_offset(first as isize * row.strides[k] + j * column.strides[k])
                };
                let (from, to) = (start(0), start(1));
                // SAFETY: the elements are within both operands and have `size` bytes, and no other thread writes them.
                // Operands overlap only if their addresses and layouts are equal.
                unsafe {
                    with_width!(size, T => {
                        for i in 0..rows {
                            let value = *from.wrapping_offset(i * row.strides[0]).cast::<T>();
                            *to.wrapping_offset(i * row.strides[1]).cast::<T>() = value;
                        }
                    })
                }
            }
            if first + COLUMN_ROWS >= row.len {
                cursor.advance();
            }
        }
    });
}

/// Copies a source that is contiguous along axis `across` to a target that is contiguous along axis `along`.
fn copy_transposed(
    outer: &[StridedAxis],
    across: &StridedAxis,
    along: &StridedAxis,
    bases: &[*mut u8; 2],
    size: usize,
) {
    let bases = bases.map(SharedPtr);
    let strips = across.len.div_ceil(STRIP);
    let total = strided::element_count(outer) * strips;
    let strip_bytes = STRIP * along.len * size * 2;
    parallel_ranges(total, GRAIN.div_ceil(strip_bytes), |range| {
        let mut cursor = Cursor::at(outer, &[bases[0].get(), bases[1].get()], range.start / strips);
        for strip in range {
            let i = strip % strips * STRIP;
            let rows = STRIP.min(across.len - i);
            let start = |k: usize| cursor.positions[k].wrapping_offset(i as isize * across.strides[k]);
            let matrix = |k: usize| (start(k), [across.strides[k], along.strides[k]]);
            // SAFETY: the contract of `transpose_matrix`. *Source* and *Target*: the strip is within both operands.
            // *Disjoint*: operands overlap only if their addresses and layouts are equal, and no layout is contiguous
            // along two different axes of length 8 or more.
            unsafe {
                let (from, strides) = matrix(0);
                transpose_matrix(size, (from.cast_const(), strides), matrix(1), rows, along.len);
            }
            if i + STRIP >= across.len {
                cursor.advance();
            }
        }
    });
}
