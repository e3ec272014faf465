//! `Copy`: the same values in another layout or dtype.

use super::map;
use crate::operand::Operand;
use crate::program::lower::Prepared;
use crate::program::strided::{self, Axis, Cursor};
use crate::program::transpose::turn;
use pellucid_gemm::Threads;
use pellucid_ir::kernel::Params;
use pellucid_ir::{DType, Result};
use pellucid_runtime::threads::{GRAIN, SharedPtr, split};
use std::sync::OnceLock;

/// Runs at least this long are copied by `memcpy`.
const LONG_BYTES: usize = 128;

/// Rows of the output that are transposed together.
const STRIP: usize = 32;

/// Writes the values of `input`, broadcast to the shape of `output` and converted to its dtype.
pub(crate) fn copy(input: &Operand<'_>, output: &Operand<'_>) -> Result<()> {
    let n = output.layout.shape().size();
    if n == 0 {
        return Ok(());
    }
    let size = output.dtype.size();
    let contiguous = input.layout.is_contiguous() && output.layout.is_contiguous();
    if contiguous && input.dtype == output.dtype && n * size < GRAIN && input.layout.shape() == output.layout.shape() {
        // SAFETY: `n` elements each, side by side.
        unsafe { std::ptr::copy(strided::start(input), strided::start(output), n * size) };
        return Ok(());
    }
    let bases = [strided::start(input), strided::start(output)];
    let axes = strided::axes(output.layout.shape(), [input, output].into_iter(), |_| true);
    copy_axes(axes, bases, [input.dtype, output.dtype]);
    Ok(())
}

/// Copies between two arrays of one dtype: the second is row-major, and its last axis is `axis` of the first. `to` is the
/// one that is written.
pub(crate) fn copy_turned(arrays: [&Operand<'_>; 2], axis: usize, to: usize) {
    let [strided, dense] = arrays;
    let (shape, size) = (strided.layout.shape(), strided.dtype.size() as isize);
    let others = (0..shape.rank()).filter(|&a| a != axis);
    let steps = |(k, a): (usize, usize)| {
        let steps = [strided.layout.strides()[a] * size, dense.layout.strides()[k] * size];
        Axis { len: shape[a], steps: [steps[1 - to], steps[to]].into_iter().collect() }
    };
    let axes = others.chain([axis]).enumerate().map(steps).filter(|axis| axis.len != 1).collect();
    let (from, to) = (arrays[1 - to], arrays[to]);
    copy_axes(axes, [strided::start(from), strided::start(to)], [from.dtype, to.dtype]);
}

/// Copies over an index space of at least one element, between two arrays that begin there.
fn copy_axes(mut axes: strided::Axes, mut bases: [*mut u8; 2], [from, to]: [DType; 2]) {
    let size = to.size();
    strided::reorder(&mut axes, 1, &mut bases);
    strided::merge(&mut axes);
    if from == to {
        let dense = |a: &Axis, k: usize| a.steps[k] == size as isize;
        match axes.last() {
            Some(inner) if dense(inner, 0) && dense(inner, 1) && inner.len * size >= LONG_BYTES => {
                return copy_runs(&axes, &bases, size);
            }
            Some(inner) if dense(inner, 1) && !dense(inner, 0) && inner.len >= 8 => {
                let across = axes.iter().position(|a| dense(a, 0) && a.len >= 8);
                if let Some(across) = across {
                    let others = (0..axes.len() - 1).filter(|&a| a != across);
                    let outer: strided::Axes = others.map(|a| axes[a].clone()).collect();
                    return transpose(&outer, &axes[across], inner, &bases, size);
                }
            }
            _ => {}
        }
    }
    map::run(cast(from, to), &Params::new(), &axes, &bases, Threads::Pool);
}

/// The conversion between two dtypes: loaded exactly, stored with one rounding.
fn cast(from: DType, to: DType) -> &'static Prepared {
    const N: usize = DType::ALL.len();
    static CASTS: [[OnceLock<Prepared>; N]; N] = [const { [const { OnceLock::new() }; N] }; N];
    CASTS[from as usize][to as usize].get_or_init(|| Prepared::cast(from, to))
}

/// Copies contiguous runs, piece by piece.
fn copy_runs(axes: &[Axis], bases: &[*mut u8; 2], size: usize) {
    let Some((inner, outer)) = axes.split_last() else { return };
    let run = inner.len * size;
    // Pieces of a run are as long as a task; short runs make up a task together.
    let piece = run.min(GRAIN.next_multiple_of(size));
    let pieces = run.div_ceil(piece);
    let bases = bases.map(SharedPtr);
    let total = strided::count(outer) * pieces;
    split(total, GRAIN.div_ceil(piece), |range| {
        let mut cursor = Cursor::new(outer, &[bases[0].get(), bases[1].get()], range.start / pieces);
        let mut at = range.start;
        while at < range.end {
            let within = at % pieces;
            let upto = pieces.min(within + range.end - at);
            let (start, end) = (within * piece, run.min(upto * piece));
            // SAFETY: bytes `start..end` of a run lie within both operands, which do not overlap
            // unless they are the same.
            unsafe { std::ptr::copy(cursor.at[0].add(start), cursor.at[1].add(start), end - start) };
            at += upto - within;
            cursor.advance();
        }
    });
}

/// Copies where the output is dense along `along` and the input along `across`.
fn transpose(outer: &[Axis], across: &Axis, along: &Axis, bases: &[*mut u8; 2], size: usize) {
    let bases = bases.map(SharedPtr);
    let strips = across.len.div_ceil(STRIP);
    let total = strided::count(outer) * strips;
    let strip_bytes = STRIP * along.len * size * 2;
    split(total, GRAIN.div_ceil(strip_bytes), |range| {
        let mut cursor = Cursor::new(outer, &[bases[0].get(), bases[1].get()], range.start / strips);
        for strip in range {
            let i = strip % strips * STRIP;
            let rows = STRIP.min(across.len - i);
            let at = |k: usize| cursor.at[k].wrapping_offset(i as isize * across.steps[k]);
            // SAFETY: the strip lies within both operands, which do not overlap: the same view would
            // not lie across itself.
            unsafe { turn(size, at(0), along.steps[0], at(1), across.steps[1], rows, along.len) };
            if i + STRIP >= across.len {
                cursor.advance();
            }
        }
    });
}
