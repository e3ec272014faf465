//! Binary search in sorted rows.

#[cfg(test)]
mod tests;

use crate::element::{ComputeScalar, StorageElement};
use crate::family::CpuFamily;
use crate::operand::Operand;
use crate::strided::IndexSpace;
use pellucid_ir::Result;
use pellucid_ir::kernel::Search;
use pellucid_runtime::threads::{GRAIN, parallel_ranges};

/// The number of values that are searched together. The load of a step depends on the step before, and the loads for
/// other values fill the latency.
const LANES: usize = 16;

/// The assumed cost of a step of a search, in bytes of memory traffic.
const STEP_BYTES: usize = 8;

impl CpuFamily for Search {
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (sorted, values, y) = (&inputs[0], &inputs[1], &outputs[0]);
        with_storage_element!(values.dtype, T => search_rows::<T>(self.right, sorted, values, y));
        Ok(())
    }
}

/// Searches for all values.
fn search_rows<T: StorageElement>(right: bool, sorted: &Operand<'_>, values: &Operand<'_>, y: &Operand<'_>) {
    let (shape, row_axis) = (values.shape(), sorted.shape().rank() - 1);
    let row_stride = |axis: usize| if axis < row_axis { sorted.layout.strides()[axis] } else { 0 };
    let strides = |axis: usize| [row_stride(axis), values.layout.strides()[axis], y.layout.strides()[axis]];
    let space = IndexSpace::new((0..shape.rank()).map(|axis| (shape[axis], strides(axis))));
    let (len, step) = (sorted.shape()[row_axis], sorted.layout.strides()[row_axis]);
    let (rows, values, y) = (sorted.first::<T>(), values.first::<T>(), y.first::<i64>());
    let strides = space.step();
    let steps = (usize::BITS - len.leading_zeros()) as usize;
    parallel_ranges(space.len(), GRAIN / (STEP_BYTES * steps.max(1)), |range| {
        space.runs(range, |offsets, n| {
            for start in (0..n).step_by(LANES) {
                let at = |k: usize| offsets[k] + start as isize * strides[k];
                let rows = SortedRows { first: rows.offset(at(0)), to_next: strides[0], step, len };
                let lanes = LANES.min(n - start);
                // SAFETY: the rows, values and outputs of these points are elements of their operands, which are in
                // their buffers (clauses 1 and 2). No other task writes these outputs (clause 2).
                unsafe { rows.search(right, (values.offset(at(1)), strides[1]), (y.offset(at(2)), strides[2]), lanes) };
            }
        });
    });
}

/// The sorted rows in which the values of a group are searched, one row for each value.
struct SortedRows<T> {
    /// The first element of the first row.
    first: *const T,
    /// The distance between the first elements of neighbouring rows; 0 for a common row.
    to_next: isize,
    /// The distance between neighbouring elements of a row.
    step: isize,
    /// The number of elements of a row.
    len: usize,
}

impl<T: StorageElement> SortedRows<T> {
    /// Searches for at most [`LANES`] values. Values and outputs are each given by a pointer and the distance of two
    /// elements.
    ///
    /// # Safety
    /// 1. The elements of the rows and the values are valid for reads.
    /// 2. The outputs are valid for writes, and no other thread accesses them.
    #[inline]
    unsafe fn search(
        &self,
        right: bool,
        (values, value_step): (*const T, isize),
        (y, y_step): (*mut i64, isize),
        lanes: usize,
    ) {
        // SAFETY: there is at least one value, which is valid for a read (clause 1 of this function's contract).
        let mut targets = [unsafe { (*values).widen() }; LANES];
        for (i, target) in targets[..lanes].iter_mut().enumerate() {
            // SAFETY: i < `lanes`, so this value is valid for a read (clause 1).
            *target = unsafe { (*values.offset(i as isize * value_step)).widen() };
        }
        // SAFETY: the elements of the rows are valid for reads (clause 1).
        let positions = unsafe { self.positions(right, &targets, lanes) };
        for i in 0..lanes {
            let position = if targets[i].is_nan() { self.len } else { positions[i] };
            // SAFETY: i < `lanes`, so this output is valid for a write (clause 2).
            unsafe { *y.offset(i as isize * y_step) = position as i64 };
        }
    }

    /// Returns the number of elements that precede each target in its row. NaN in a row precedes no target.
    ///
    /// # Safety
    /// The elements of the rows are valid for reads.
    #[inline(always)]
    unsafe fn positions(&self, right: bool, targets: &[T::Compute; LANES], lanes: usize) -> [usize; LANES] {
        let mut low = [0; LANES];
        // Lanes without a value search the first row.
        let rows: [isize; LANES] = std::array::from_fn(|i| if i < lanes { i as isize * self.to_next } else { 0 });
        let mut count = self.len;
        while count > 0 {
            let half = count.div_ceil(2);
            for ((low, &row), &target) in low.iter_mut().zip(&rows).zip(targets) {
                let offset = row + (*low + half - 1) as isize * self.step;
                // SAFETY: `low` + `count` is at most the length of the row and `half` is at most `count`, so this
                // element is valid for a read (this function's contract).
                let probe = unsafe { (*self.first.wrapping_offset(offset)).widen() };
                // The result of the comparison is not predictable, so it is not a branch.
                let precedes = (probe < target) | (right & (probe == target));
                *low += half & usize::from(precedes).wrapping_neg();
            }
            count /= 2;
        }
        low
    }
}
