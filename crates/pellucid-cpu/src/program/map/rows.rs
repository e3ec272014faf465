//! Maps of one instruction over rows: one call of the loop for each row, without a schedule.

use super::for_each_range;
use crate::program::loops::{self, BinaryLoop, UnaryLoop};
use crate::program::prepared::{KernelFn, PreparedProgram, SingleArg};
use crate::strided::{self, Cursor, StridedAxis};
use pellucid_gemm::Threads;
use pellucid_ir::kernel::Params;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{GRAIN, SharedPtr};

/// The minimum length of a row. For shorter rows, copies to a tile of several rows cost less than calls of the loop.
const MIN_ROW: usize = 16;

/// The form of the loop for the operands of a row.
enum RowLoop {
    Unary(UnaryLoop),
    Binary(BinaryLoop),
}

/// Runs a program of one instruction row by row. Returns false, without writing anything, if the program has more
/// instructions, if a row is short or not contiguous, or if the loop lacks the form for these operands.
///
/// The operands are the inputs and then the output of the program.
pub(super) fn run_single_rows(
    program: &PreparedProgram,
    params: &Params,
    axes: &[StridedAxis],
    bases: &[*mut u8],
    threads: Threads,
) -> bool {
    let (Some(single), [outer @ .., row, inner]) = (&program.single, axes) else { return false };
    let output = program.inputs.len();
    let overwrites_input = || bases[..output].contains(&bases[output]);
    let size = single.size * strided::element_count(axes);
    if inner.len < MIN_ROW
        || inner.strides[output] != single.size as isize
        || overwrites_input()
        || loops::streaming::<0>(size, overwrites_input).is_some()
    {
        return false;
    }
    let mut cells = [0u64; 2];
    // For each operand: the index among the bases, for a uniform the index of the output, and whether it is a tile.
    let (mut operands, mut is_tile) = ([output; 2], [false; 2]);
    for (k, arg) in single.args.iter().enumerate() {
        match *arg {
            SingleArg::None => {}
            SingleArg::Uniform(u) => cells[k] = program.uniform_value(&program.uniforms[u as usize], params, 0),
            SingleArg::Input(i, size) => {
                let stride = inner.strides[i as usize];
                if stride != 0 && stride != size as isize {
                    return false;
                }
                (operands[k], is_tile[k]) = (i as usize, stride != 0);
            }
        }
    }
    let row_loop = match (single.kernel, is_tile) {
        (KernelFn::Unary(f), [true, _]) => RowLoop::Unary(f),
        (KernelFn::Binary(forms), [true, true]) => RowLoop::Binary(forms[0]),
        (KernelFn::Binary(forms), [true, false]) => RowLoop::Binary(forms[1]),
        (KernelFn::Binary(forms), [false, true]) => RowLoop::Binary(forms[2]),
        _ => return false,
    };
    let starts: List<SharedPtr<u8>, 8> = bases.iter().map(|&base| SharedPtr(base)).collect();
    let grain = GRAIN.div_ceil(inner.len * 3 * single.size);
    for_each_range(threads, strided::element_count(outer) * row.len, grain, |range| {
        let bases: List<*mut u8, 8> = starts.iter().map(SharedPtr::get).collect();
        let mut cursor = Cursor::at(outer, &bases, range.start / row.len);
        let (mut done, mut first) = (range.start, range.start % row.len);
        while done < range.end {
            let count = (row.len - first).min(range.end - done);
            let from = [0, 1].map(|k| match operands[k] {
                index if index == output => ((&raw const cells[k]).cast::<u8>().cast_mut(), 0),
                index => (cursor.positions[index], row.strides[index]),
            });
            let (to, to_stride) = (cursor.positions[output], row.strides[output]);
            for i in first as isize..(first + count) as isize {
                let at = |(base, stride): (*mut u8, isize)| base.wrapping_offset(i * stride);
                let (to, a, b) =
                    (to.wrapping_offset(i * to_stride), at(from[0]).cast_const(), at(from[1]).cast_const());
                // SAFETY: row i of the output and of every tile operand has `inner.len` contiguous elements, and every
                // other operand is one value; the form was selected for these operands. The output overlaps an input
                // only if their addresses and layouts are equal, which `overwrites_input` excludes. No other task
                // writes these rows.
                unsafe {
                    match &row_loop {
                        RowLoop::Unary(f) => f.run(to, a, inner.len),
                        RowLoop::Binary(f) => f.run(to, a, b, inner.len),
                    }
                }
            }
            done += count;
            first = 0;
            cursor.advance();
        }
    });
    true
}
