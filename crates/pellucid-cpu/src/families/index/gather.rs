//! Gather: `y = x[index]`. Elements are copied as unsigned integers of the same size.

use super::{IndexPairs, addresses_and_layouts, check_indices, is_empty};
use crate::family::CpuFamily;
use crate::operand::Operand;
use crate::strided::IndexSpace;
use pellucid_ir::Result;
use pellucid_ir::kernel::Gather;
use pellucid_runtime::threads::{GRAIN, SharedPtr, parallel_ranges};

/// The minimum number of index positions for which the positions are divided into tasks. With fewer positions, the
/// slice at each position is divided.
const MIN_POSITIONS: usize = 64;

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
    let (count, slice) = (pairs.positions.len(), &pairs.slice);
    if count >= MIN_POSITIONS || slice.len() == 1 {
        let grain = GRAIN / (slice.len() * size_of::<T>());
        let is_dense = slice.run_len() == slice.len() && slice.step() == [1, 1];
        parallel_ranges(count, grain, |positions| {
            pairs.for_each_block(positions, &mut |from, to| {
                if slice.len() == 1 {
                    for (&from, &to) in from.iter().zip(to) {
                        // SAFETY: `from` and `to` are offsets of elements of `x` and `y`: the rule of the family and
                        // `check_indices` have accepted the operands. Each element of `y` belongs to one index
                        // position, so no other task writes it.
                        unsafe { *y.offset(to) = *x.offset(from) }
                    }
                } else if is_dense {
                    for (&from, &to) in from.iter().zip(to) {
                        // SAFETY: the slices at `from` and `to` are within `x` and `y`: the rule of the family and
                        // `check_indices` have accepted the operands. Each slice of `y` belongs to one index position,
                        // so no other task writes it.
                        unsafe { x.offset(from).copy_to(y.offset(to), slice.len()) }
                    }
                } else {
                    from.iter()
                        .zip(to)
                        .for_each(|(&from, &to)| copy_slice(x.offset(from), y.offset(to), slice, 0..slice.len()));
                }
            });
        });
    } else {
        parallel_ranges(slice.len(), GRAIN / (count * size_of::<T>()), |part| {
            pairs.for_each_block(0..count, &mut |from, to| {
                from.iter()
                    .zip(to)
                    .for_each(|(&from, &to)| copy_slice(x.offset(from), y.offset(to), slice, part.clone()));
            });
        });
    }
}

/// Copies the elements `part` of one slice from `x` to `y`.
#[inline]
fn copy_slice<T: Copy>(x: *const T, y: *mut T, slice: &IndexSpace<2>, part: std::ops::Range<usize>) {
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
