//! `Copy`: writes the values of one array to another of any layout and dtype.

use super::map;
use crate::operand::Operand;
use crate::program::prepared::PreparedProgram;
use crate::program::transpose::transpose_matrix;
use crate::strided::{self, Cursor, StridedAxes, StridedAxis};
use pellucid_gemm::Threads;
use pellucid_ir::kernel::Params;
use pellucid_ir::{DType, Result};
use pellucid_runtime::threads::{GRAIN, SharedPtr, parallel_ranges};
use std::sync::OnceLock;

/// The minimal bytes of a contiguous run that is copied by `memcpy`.
const MIN_RUN_BYTES: usize = 128;

/// The number of output rows that are transposed together.
const STRIP: usize = 64;

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
        match axes.last() {
            Some(inner) if dense(inner, 0) && dense(inner, 1) && inner.len * size >= MIN_RUN_BYTES => {
                return copy_runs(&axes, &bases, size);
            }
            Some(inner) if dense(inner, 1) && !dense(inner, 0) && inner.len >= 8 => {
                let across = axes.iter().position(|a| dense(a, 0) && a.len >= 8);
                if let Some(across) = across {
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
    // A long run is divided into several tasks. Several short runs are one task.
    let piece = run.min(GRAIN.next_multiple_of(size));
    let pieces = run.div_ceil(piece);
    let bases = bases.map(SharedPtr);
    let total = strided::element_count(outer) * pieces;
    parallel_ranges(total, GRAIN.div_ceil(piece), |range| {
        let mut cursor = Cursor::at(outer, &[bases[0].get(), bases[1].get()], range.start / pieces);
        let mut done = range.start;
        while done < range.end {
            let first = done % pieces;
            let last = pieces.min(first + range.end - done);
            let (start, end) = (first * piece, run.min(last * piece));
            let [from, to] = [cursor.positions[0], cursor.positions[1]];
            // SAFETY: bytes `start..end` of a run are within both operands, and no other thread writes them. `copy`
            // permits the overlap of an operand with itself.
            unsafe { std::ptr::copy(from.add(start), to.add(start), end - start) };
            done += last - first;
            cursor.advance();
        }
    });
}

/// Copies where the target is contiguous along axis `along` and the source along axis `across`.
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
            let (from_row, to_row) = (along.strides[0], across.strides[1]);
            // SAFETY: the contract of `transpose_matrix`. *Source* and *Target*: the strip is within both operands.
            // *Disjoint*: operands overlap only if their addresses and layouts are equal, and no layout is contiguous
            // along two different axes of length 8 or more.
            unsafe { transpose_matrix(size, start(0), from_row, start(1), to_row, rows, along.len) };
            if i + STRIP >= across.len {
                cursor.advance();
            }
        }
    });
}
