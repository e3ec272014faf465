//! `Copy`: the same values in another layout or dtype.

use super::map;
use super::prepare::Prepared;
use super::walk::{self, Axis, Cursor};
use crate::operand::Operand;
use crate::threads::{GRAIN, Ptr, split};
use pellucid_ir::{DType, Result};
use smallvec::SmallVec;
use std::sync::OnceLock;

/// Runs at least this long are copied by `memcpy`.
const LONG_BYTES: usize = 128;

/// Side of the squares of a transposition: a line of the cache holds one row of bytes, and all lines
/// of a square fit L1 several times over.
const SIDE: usize = 32;

/// Writes the values of `input`, broadcast to the shape of `output` and converted to its dtype.
pub(crate) fn copy(input: &Operand<'_>, output: &Operand<'_>) -> Result<()> {
    if output.layout.shape().size() == 0 {
        return Ok(());
    }
    let mut bases = [walk::start(input), walk::start(output)];
    let mut axes = walk::axes(output.layout.shape(), [input, output].into_iter(), |_| true);
    walk::reorder(&mut axes, 1, &mut bases);
    walk::merge(&mut axes);
    let size = output.dtype.size();
    if input.dtype == output.dtype {
        let dense = |a: &Axis, k: usize| a.steps[k] == size as isize;
        match axes.last() {
            Some(inner) if dense(inner, 0) && dense(inner, 1) && inner.len * size >= LONG_BYTES => {
                copy_runs(&axes, &bases, size);
                return Ok(());
            }
            Some(inner) if dense(inner, 1) && !dense(inner, 0) && inner.len >= 8 => {
                let across = axes.iter().position(|a| dense(a, 0) && a.len >= 8);
                if let Some(across) = across {
                    let outer: walk::Axes = axes.iter().enumerate().filter(|(i, _)| *i != across && *i + 1 != axes.len()).map(|(_, a)| a.clone()).collect();
                    match size {
                        1 => transpose::<u8>(&outer, &axes[across], inner, &bases),
                        2 => transpose::<u16>(&outer, &axes[across], inner, &bases),
                        4 => transpose::<u32>(&outer, &axes[across], inner, &bases),
                        _ => transpose::<u64>(&outer, &axes[across], inner, &bases),
                    }
                    return Ok(());
                }
            }
            _ => {}
        }
    }
    let long = axes.len() > 1 && axes.last().is_some_and(|a| a.len >= 128);
    let (outer, inner) = axes.split_at(if long { axes.len() - 1 } else { 0 });
    map::run(cast(input.dtype, output.dtype), &SmallVec::new(), outer, inner, &bases);
    Ok(())
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
    let bases = bases.map(Ptr);
    let total = walk::count(outer) * pieces;
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
fn transpose<T: Copy>(outer: &[Axis], across: &Axis, along: &Axis, bases: &[*mut u8; 2]) {
    let bases = bases.map(Ptr);
    let strips = across.len.div_ceil(SIDE);
    let total = walk::count(outer) * strips;
    let strip_bytes = SIDE * along.len * size_of::<T>() * 2;
    split(total, GRAIN.div_ceil(strip_bytes), |range| {
        let mut cursor = Cursor::new(outer, &[bases[0].get(), bases[1].get()], range.start / strips);
        for strip in range {
            let i = strip % strips * SIDE;
            let rows = SIDE.min(across.len - i);
            for j in (0..along.len).step_by(SIDE) {
                let cols = SIDE.min(along.len - j);
                let at = |k: usize| {
                    cursor.at[k].wrapping_offset(i as isize * across.steps[k] + j as isize * along.steps[k])
                };
                // SAFETY: the block lies within both operands.
                unsafe { block::<T>(at(0), along.steps[0], at(1), across.steps[1], rows, cols) };
            }
            if i + SIDE >= across.len {
                cursor.advance();
            }
        }
    });
}

/// `to[i][j] = from[j][i]` for `rows` i and `cols` j; both matrices have dense rows.
#[inline(always)]
unsafe fn block<T: Copy>(from: *const u8, from_row: isize, to: *mut u8, to_row: isize, rows: usize, cols: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if rows == SIDE && cols == SIDE {
            for i in 0..SIDE {
                let row = to.offset(i as isize * to_row).cast::<T>();
                for j in 0..SIDE {
                    *row.add(j) = *from.offset(j as isize * from_row).cast::<T>().add(i);
                }
            }
            return;
        }
        for i in 0..rows {
            let row = to.offset(i as isize * to_row).cast::<T>();
            for j in 0..cols {
                *row.add(j) = *from.offset(j as isize * from_row).cast::<T>().add(i);
            }
        }
    }
}
