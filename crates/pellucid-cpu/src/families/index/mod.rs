//! Indexing by integer arrays, for [`gather`] and [`scatter`].
//!
//! Both kernels map every *index position* (an index of the index arrays) to a slice of the array and a slice of the
//! values. The slices range over the axes that are not indexed. All indices are checked before the first write.

mod gather;
mod scatter;
#[cfg(test)]
mod tests;

use crate::operand::Operand;
use crate::strided::{IndexSpace, axes};
use pellucid_ir::kernel::Index;
use pellucid_ir::{Error, Layout, Result, Shape};
use pellucid_runtime::list::List;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::Isa;
use pellucid_simd::per_isa;
use std::ops::Range;

/// The number of index positions whose offsets are computed together.
const BLOCK: usize = 256;

/// Returns an error if an index is out of bounds. If `from_end`, negative indices count from the end.
fn check_indices(
    op: &'static str,
    index: &Index,
    from_end: bool,
    array: &Operand<'_>,
    indices: &[Operand<'_>],
) -> Result<()> {
    for (&axis, index) in index.axes().iter().zip(indices) {
        let len = array.shape()[axis];
        if let Some(index) = first_out_of_bounds(index, if from_end { len } else { 0 }, len) {
            return Err(Error::IndexOutOfBounds { op, index, axis, len });
        }
    }
    Ok(())
}

/// Returns the first index that is not in `-negative..len`.
fn first_out_of_bounds(index: &Operand<'_>, negative: usize, len: usize) -> Option<i64> {
    let space = IndexSpace::new(axes(index.shape(), [index.layout]));
    let (first, [step]) = (index.first::<i64>(), space.step());
    let (mut found, all_in_bounds) = (None, all_in_bounds(Isa::best()));
    space.runs(0..space.len(), |[offset], n| {
        // SAFETY: the run consists of `n` elements of the operand, `step` apart, and all elements of an operand are in
        // its buffer (clause 1 of `all_in_bounds`). `Isa::best` returns an instruction set of this processor (clause
        // 2).
        if found.is_none() && !unsafe { all_in_bounds(first.offset(offset), step, n, negative, len) } {
            // SAFETY: i < n, so this is one of the `n` elements that are in the buffer.
            let values = (0..n as isize).map(|i| unsafe { *first.offset(offset + i * step) });
            found = values.into_iter().find(|&v| !is_in_bounds(v, negative, len));
        }
    });
    found
}

/// Returns true if an index is in `-negative..len`.
#[inline(always)]
fn is_in_bounds(index: i64, negative: usize, len: usize) -> bool {
    (index.wrapping_add(negative as i64) as u64) < (negative + len) as u64
}

per_isa! {
    /// Returns true if `n` indices, `step` elements apart, are all in `-negative..len`.
    ///
    /// # Safety
    /// 1. `first` and the `n − 1` pointers that follow it at distance `step` are valid for reads.
    /// 2. The processor has the instruction set.
    fn all_in_bounds[][](first: *const i64, step: isize, n: usize, negative: usize, len: usize) -> bool {
        let mut out_of_bounds = 0;
        for i in 0..n as isize {
            // SAFETY: i < n, and the caller guarantees that these `n` indices are valid for reads (clause 1 of this
            // function's contract).
            let index = if step == 1 { unsafe { *first.offset(i) } } else { unsafe { *first.offset(i * step) } };
            out_of_bounds += !is_in_bounds(index, negative, len) as usize;
        }
        out_of_bounds == 0
    }
}

/// An index array and the axis of the array that it indexes.
struct IndexedAxis {
    /// The index positions with the strides of the index array.
    space: IndexSpace<1>,
    /// The first index.
    first: SharedPtr<i64>,
    /// The length of the axis.
    len: usize,
    /// The stride of the array along the axis.
    stride: isize,
}

/// The pairs of slices that index positions refer to: one of the array and one of the values.
struct IndexPairs {
    indexed: List<IndexedAxis, 4>,
    /// The index positions, with the strides of the array (without the contribution of the indices) and of the values.
    positions: IndexSpace<2>,
    /// The elements of one slice, with the strides of the array and of the values.
    slice: IndexSpace<2>,
}

impl IndexPairs {
    /// Creates the pairs of operands that the rule of the family has accepted, from their layouts.
    ///
    /// `cut` is an axis of the array that is not indexed, and a length. Only that many first elements along this axis
    /// are paired.
    fn new(
        index: &Index,
        array: &Layout,
        values: &Layout,
        indices: &[(SharedPtr<i64>, &Layout)],
        cut: Option<(usize, usize)>,
    ) -> IndexPairs {
        let shape = indices[0].1.shape();
        let length = |axis: usize, full: usize| cut.filter(|c| c.0 == axis).map_or(full, |c| c.1);
        // With `Index::Along`, the index array has the axes of the array.
        let along = matches!(index, Index::Along(_));
        let positions_along = |axis: usize| if along { length(axis, shape[axis]) } else { shape[axis] };
        let indexed_axis = |axis: usize, (first, layout): (SharedPtr<i64>, &Layout)| {
            let space = IndexSpace::new((0..shape.rank()).map(|a| (positions_along(a), [layout.strides()[a]])));
            IndexedAxis { space, first, len: array.shape()[axis], stride: array.strides()[axis] }
        };
        match index {
            Index::Axes(axes) => {
                let rank = shape.rank();
                let others = (0..array.shape().rank()).filter(|a| !axes.contains(a)).enumerate();
                IndexPairs {
                    indexed: axes.iter().zip(indices).map(|(&axis, &index)| indexed_axis(axis, index)).collect(),
                    positions: IndexSpace::new((0..rank).map(|a| (shape[a], [0, values.strides()[a]]))),
                    slice: IndexSpace::new(
                        others.map(|(k, a)| {
                            (length(a, array.shape()[a]), [array.strides()[a], values.strides()[rank + k]])
                        }),
                    ),
                }
            }
            Index::Along(axis) => {
                let position_axis = |a: usize| {
                    let stride = if a == *axis { 0 } else { array.strides()[a] };
                    (positions_along(a), [stride, values.strides()[a]])
                };
                IndexPairs {
                    indexed: [indexed_axis(*axis, indices[0])].into_iter().collect(),
                    positions: IndexSpace::new((0..shape.rank()).map(position_axis)),
                    slice: IndexSpace::new([]),
                }
            }
        }
    }

    /// Calls `f(array offsets, value offsets)` for blocks of the index positions `range`, in order. The offsets refer
    /// to the first elements of the slices.
    fn for_each_block(&self, range: Range<usize>, f: &mut dyn FnMut(&[isize], &[isize])) {
        let (mut array, mut values) = ([0; BLOCK], [0; BLOCK]);
        let steps = self.positions.step();
        let add_index_offsets = add_index_offsets(Isa::best());
        let mut from = range.start;
        while from < range.end {
            let n = BLOCK.min(range.end - from);
            let mut done = 0;
            self.positions.runs(from..from + n, |offsets, n| {
                for i in 0..n {
                    array[done + i] = offsets[0] + i as isize * steps[0];
                    values[done + i] = offsets[1] + i as isize * steps[1];
                }
                done += n;
            });
            for axis in &self.indexed {
                let (mut done, [step]) = (0, axis.space.step());
                axis.space.runs(from..from + n, |[offset], n| {
                    let (offsets, first) = (&mut array[done..done + n], axis.first.offset(offset));
                    // SAFETY: the run consists of `n` elements of the index array, `step` apart, and all elements of an
                    // operand are in its buffer (clause 1 of `add_index_offsets`). `Isa::best` returns an instruction
                    // set of this processor (clause 2).
                    unsafe { add_index_offsets(offsets, first, step, axis.len, axis.stride) };
                    done += n;
                });
            }
            f(&array[..n], &values[..n]);
            from += n;
        }
    }
}

per_isa! {
    /// Adds `index · stride` to every offset, for indices `step` elements apart into an axis of length `len`. Negative
    /// indices count from the end.
    ///
    /// # Safety
    /// 1. `first` and the pointers that follow it at distance `step`, one for each offset, are valid for reads.
    /// 2. The processor has the instruction set.
    fn add_index_offsets[][](offsets: &mut [isize], first: *const i64, step: isize, len: usize, stride: isize) {
        for (i, offset) in offsets.iter_mut().enumerate() {
            // SAFETY: the caller guarantees that the index of every offset is valid for reads (clause 1 of this
            // function's contract).
            let index = if step == 1 { unsafe { *first.add(i) } } else { unsafe { *first.offset(i as isize * step) } };
            let index = if index < 0 { index.wrapping_add(len as i64) } else { index } as u64;
            // The bounds have been checked. Clamping keeps the access in bounds even if the indices have been modified
            // since.
            *offset += index.min(len as u64 - 1) as isize * stride;
        }
    }
}

/// Returns the address of the first element and the layout of every index array.
fn addresses_and_layouts<'a>(indices: &[Operand<'a>]) -> List<(SharedPtr<i64>, &'a Layout), 4> {
    indices.iter().map(|i| (i.first(), i.layout)).collect()
}

/// Returns true if an array of this shape has no elements.
fn is_empty(shape: &Shape) -> bool {
    shape.contains(&0)
}
