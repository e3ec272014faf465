//! Gather: `y = x[index]`, for elements of any type by their width.

use super::{Pairs, check_indices, check_shapes, is_empty, located};
use crate::family::CpuFamily;
use crate::operand::{Array, Operand};
use crate::strided::IndexSpace;
use pellucid_ir::Result;
use pellucid_ir::kernel::Gather;
use pellucid_runtime::threads::{GRAIN, SharedPtr, split};

/// With so many places, the work is cut by place, else by what lies at each.
const MANY: usize = 64;

impl CpuFamily for Gather {
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        check_shapes("gather", &self.index, &inputs[0], &outputs[0], &inputs[1..])
    }

    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (kernel, x, indices, y) = (self, &inputs[0], &inputs[1..], &outputs[0]);
        check_indices("gather", &kernel.index, x, indices)?;
        if is_empty(y.shape()) {
            return Ok(());
        }
        let pairs = Pairs::new(&kernel.index, x.layout, y.layout, &located(indices), None);
        with_width!(x.dtype.size(), T => run::<T>(&pairs, x.first(), y.first()));
        Ok(())
    }
}

fn run<T: Copy>(pairs: &Pairs, x: SharedPtr<T>, y: SharedPtr<T>) {
    let (count, rest) = (pairs.places.len(), &pairs.rest);
    if count >= MANY || rest.len() == 1 {
        let grain = GRAIN / (rest.len() * size_of::<T>());
        split(count, grain, |places| {
            pairs.blocks(places, |from, to| {
                if rest.len() == 1 {
                    for (&from, &to) in from.iter().zip(to) {
                        // SAFETY: the offsets are those of elements of x and y (`check`), and
                        // every place of y is written once.
                        unsafe { *y.at(to) = *x.at(from) }
                    }
                } else {
                    from.iter().zip(to).for_each(|(&from, &to)| copy(x.at(from), y.at(to), rest, 0..rest.len()));
                }
            });
        });
    } else {
        split(rest.len(), GRAIN / (count * size_of::<T>()), |part| {
            pairs.blocks(0..count, |from, to| {
                from.iter().zip(to).for_each(|(&from, &to)| copy(x.at(from), y.at(to), rest, part.clone()));
            });
        });
    }
}

/// Copies a part of what lies at one place.
#[inline]
fn copy<T: Copy>(x: *const T, y: *mut T, rest: &IndexSpace<2>, part: std::ops::Range<usize>) {
    let [from_step, to_step] = rest.step();
    rest.runs(part, |[from, to], n| {
        // SAFETY: the places are of x and y (`check`), and `rest` stays within both.
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
