//! The fast path for small reductions of contiguous arrays. It calls the loops directly, without an index space or
//! tiles.

use super::fold_op;
use crate::operand::Operand;
use crate::program::fold::{CHUNK, FoldKernel, FoldValues};
use crate::program::loops::{LANES, ROWS};
use crate::program::map::dense_operand::DensePtr;
use crate::program::map::small;
use crate::program::prepared::PreparedProgram;
use crate::strided;
use pellucid_ir::Compute;
use pellucid_ir::kernel::{Reduce, ReduceOp};
use pellucid_runtime::scratch::{self, padded};
use pellucid_runtime::threads;

/// The size of the largest input that this path accepts if there are several threads, in bytes. Several threads may be
/// faster for larger inputs.
const MAX_SHARED_BYTES: usize = 128 << 10;

/// The size of the largest input that this path accepts if there is one thread, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// Runs `kernel` on input `x` and output `y` if it is a small reduction of the elements of a contiguous array over
/// adjacent axes. Otherwise returns false and writes nothing.
pub(crate) fn reduce_contiguous(
    kernel: &Reduce,
    program: &PreparedProgram,
    finish: Option<&PreparedProgram>,
    x: &Operand<'_>,
    y: &Operand<'_>,
) -> bool {
    let (Some(op), [input]) = (fold_op(kernel.op), &program.inputs[..]) else { return false };
    let plain = program.steps.is_empty() && program.outputs[0].slot == 0 && input.load.is_none();
    let compute = x.dtype.compute();
    let narrow = matches!(compute, Compute::Mask | Compute::I32) && matches!(kernel.op, ReduceOp::Sum | ReduceOp::Prod);
    let storage = kernel.finish.as_ref().map_or(x.dtype, |f| f.outputs[0].storage);
    let shape = x.layout.shape();
    let size = shape.size();
    let contiguous = x.layout.is_contiguous() && y.layout.is_contiguous();
    let max_bytes = if threads::count() > 1 { MAX_SHARED_BYTES } else { MAX_BYTES };
    if !plain || narrow || !contiguous || storage != y.dtype || size == 0 || size * input.size > max_bytes {
        return false;
    }
    // The reduced axes must be adjacent. The input then has the shape [outer, length, inner].
    let (mut outer, mut length, mut inner) = (1, 1, 1);
    for (axis, &len) in shape.iter().enumerate().filter(|(_, len)| **len != 1) {
        match (kernel.axes.contains(axis), inner) {
            (true, 1) => length *= len,
            (true, _) => return false,
            (false, _) if length == 1 => outer *= len,
            (false, _) => inner *= len,
        }
    }
    let count = outer * inner;
    let Some(fold) = FoldKernel::new(op, compute) else { return false };
    let fits = length <= CHUNK && (kernel.finish.is_none() || count <= small::MAX_LEN);
    if !fits || y.layout.shape().size() != count {
        return false;
    }
    let (from, to) = (strided::base_address(x), strided::base_address(y));
    let results = if finish.is_some() { padded(count * 8) } else { 0 };
    let lanes = padded(LANES * inner * 8);
    let at_once = fold.reduces_columns_at_once(length, inner);
    let work_bytes = if inner > 1 && !at_once { lanes + LANES / 2 * inner * 8 } else { 0 };
    scratch::with_buffer(results + work_bytes, |scratch: *mut u8| {
        let (into, work) = (if finish.is_some() { scratch } else { to }, scratch.wrapping_add(results));
        // SAFETY: `x` is contiguous with shape [outer, length, inner], `y` is contiguous with shape [outer, inner], and
        // the dtype of `x` is the compute type of the loops. `y` has the dtype of the result, or of the output of the
        // finishing program. The scratch memory holds `count` results and then `work_bytes`: for columns that are not
        // reduced at once, the lanes and half as many combined lanes per column.
        unsafe {
            if inner == 1 {
                fold.reduce_rows(into, FoldValues::plain(from), outer, length);
            } else {
                for o in 0..outer {
                    let rows = from.add(o * length * inner * fold.size);
                    if at_once {
                        let (into, stride) = (into.add(o * inner * fold.size), (inner * fold.size) as isize);
                        (fold.loops.reduce_columns)(into, rows, stride, inner, length);
                        continue;
                    }
                    fold.fill_identity(work, LANES * inner);
                    for first in (0..length).step_by(ROWS) {
                        let row = rows.add(first * inner * fold.size);
                        let stride = (inner * fold.size) as isize;
                        (fold.loops.accumulate_rows)(work, row, stride, inner, ROWS.min(length - first));
                    }
                    fold.combine_lanes(into.add(o * inner * fold.size), work, work.add(lanes), inner);
                }
            }
            match finish {
                Some(f) => {
                    small::run_one_tile(f, &kernel.finish_params, count, &[DensePtr::full(into)], &[DensePtr::full(to)])
                }
                None => true,
            }
        }
    })
}
