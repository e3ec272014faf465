//! Gather: `y = x[index]`. Elements are copied as unsigned integers of the same size.

use super::{IndexPairs, addresses_and_layouts, check_indices, is_empty};
use crate::family::CpuFamily;
use crate::operand::Operand;
use crate::strided::IndexSpace;
use pellucid_ir::Result;
use pellucid_ir::kernel::Gather;
use pellucid_runtime::threads::{GRAIN, SharedPtr, parallel_ranges};
use std::ops::Range;

/// The minimum number of outer points, or of index positions, that are divided into tasks. If both are fewer, the
/// elements of the slices are divided, unless a slice has only one element.
const MIN_TASKS: usize = 64;

impl CpuFamily for Gather {
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (kernel, x, indices, y) = (self, &inputs[0], &inputs[1..], &outputs[0]);
        check_indices(kernel.op, &kernel.index, kernel.from_end, x, indices)?;
        if is_empty(y.shape()) {
            return Ok(());
        }
        let pairs = IndexPairs::new(&kernel.index, x.layout, y.layout, &addresses_and_layouts(indices), None);
        with_width!(x.dtype.size(), T => gather_slices::<T>(&pairs, x.first(), y.first()));
        Ok(())
    }
}

/// Copies the slice of `x` at every index position to `y`.
fn gather_slices<T: Copy>(pairs: &IndexPairs, x: SharedPtr<T>, y: SharedPtr<T>) {
    let (outer, count, slice) = (pairs.outer.len(), pairs.positions.len(), pairs.slice.len());
    let grain = |elements: usize| GRAIN / (elements * size_of::<T>());
    if outer >= MIN_TASKS {
        parallel_ranges(outer, grain(count * slice), |outer| gather_part(pairs, x, y, [outer, 0..count, 0..slice]));
    } else if count >= MIN_TASKS || slice == 1 {
        parallel_ranges(count, grain(outer * slice), |count| gather_part(pairs, x, y, [0..outer, count, 0..slice]));
    } else {
        parallel_ranges(slice, grain(outer * count), |slice| gather_part(pairs, x, y, [0..outer, 0..count, slice]));
    }
}

/// Copies the given outer points, index positions and elements of the slices.
fn gather_part<T: Copy>(pairs: &IndexPairs, x: SharedPtr<T>, y: SharedPtr<T>, part: [Range<usize>; 3]) {
    let (slice, [outer, positions, part]) = (&pairs.slice, part);
    let is_dense = slice.run_len() == slice.len() && slice.step() == [1, 1];
    pairs.for_each_block(outer, positions, &mut |[in_x, in_y], block| {
        let (x, y) = (x.offset(in_x), y.offset(in_y));
        if slice.len() == 1 {
            // SAFETY: the offsets address elements of `x` and `y`: the rule of the family and `check_indices` have
            // accepted the operands. Each element of `y` belongs to one index position of one outer point, so no other
            // task writes it.
            block.for_each_slice(|from, to| unsafe { *y.offset(to) = *x.offset(from) });
        } else if is_dense {
            // SAFETY: the slices at `from` and `to` are within `x` and `y`: the rule of the family and `check_indices`
            // have accepted the operands. Each element of a slice of `y` belongs to one index position of one outer
            // point and to one part, so no other task writes it.
            block.for_each_slice(|from, to| unsafe {
                x.offset(from).add(part.start).copy_to(y.offset(to).add(part.start), part.len())
            });
        } else {
            block.for_each_slice(|from, to| {
                copy_slice(x.wrapping_offset(from), y.wrapping_offset(to), slice, part.clone())
            });
        }
    });
}

/// Copies the elements `part` of one slice from `x` to `y`.
#[inline]
fn copy_slice<T: Copy>(x: *const T, y: *mut T, slice: &IndexSpace<2>, part: Range<usize>) {
    let [from_step, to_step] = slice.step();
    slice.runs(part, |[from, to], n| {
        // SAFETY: `x` and `y` are the first elements of slices within the operands (the rule of the family,
        // `check_indices`), and the offsets of `slice` stay within these slices. No other task writes this part of the
        // slice of `y`.
        unsafe {
            let (x, y) = (x.offset(from), y.offset(to));
            if from_step == 1 && to_step == 1 {
                x.copy_to(y, n);
            } else {
                (0..n as isize).for_each(|i| *y.offset(i * to_step) = *x.offset(i * from_step));
            }
        }
    });
}
