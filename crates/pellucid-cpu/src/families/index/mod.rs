//! Indexing by integer arrays, for [`gather`] and [`scatter`].
//!
//! Both kernels map every *index position* (a position in the index arrays) to a slice of the array and a slice of the
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
    if is_empty(index.shape()) {
        return None;
    }
    // Along an axis of stride 0, all indices are equal.
    let distinct =
        axes(index.shape(), [index.layout]).map(|(n, strides)| (if strides == [0] { 1 } else { n }, strides));
    let space = IndexSpace::new(distinct);
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

/// For every index position, a pair of slices: one of the array and one of the values.
///
/// An axis along which the indices do not change is not an axis of the positions. It belongs to the slices or to the
/// *outer space*; all positions are visited again for every point of the outer space. An axis belongs to the outer
/// space if its strides exceed the distance between two positions, so that a slice is compact in memory, unless there
/// is too little work for each point of the outer space.
struct IndexPairs {
    indexed: List<IndexedAxis, 4>,
    /// The points of the outer space, with the strides of the array and of the values.
    outer: IndexSpace<2>,
    /// The index positions, with the strides of the array (without the contribution of the indices), of the values and
    /// of the first index array.
    positions: IndexSpace<3>,
    /// Whether adjacent index positions have equally spaced values over all axes.
    has_linear_values: bool,
    /// The elements of one slice, with the strides of the array and of the values.
    slice: IndexSpace<2>,
}

/// An axis of the array that is not indexed: its length, and its strides in the array and in the values.
type FreeAxis = (usize, [isize; 2]);

impl IndexPairs {
    /// Creates the pairs of operands that the rule of the family has accepted, from their layouts.
    ///
    /// `cut` is an axis of the array that is not indexed, and a length: only the first `length` elements along this
    /// axis are paired.
    fn new(
        index: &Index,
        array: &Layout,
        values: &Layout,
        indices: &[(SharedPtr<i64>, &Layout)],
        cut: Option<(usize, usize)>,
    ) -> IndexPairs {
        let first = indices[0].1;
        let (shape, rank) = (first.shape(), first.shape().rank());
        let length = |axis: usize, full: usize| cut.filter(|c| c.0 == axis).map_or(full, |c| c.1);
        // With `Index::Along`, the index array has the axes of the array. Along an axis of stride 0, all indices are
        // equal.
        let along = matches!(index, Index::Along(_));
        let is_free = |a: usize| along && !index.axes().contains(&a) && first.strides()[a] == 0;
        let position_axes = || {
            let length = move |a: usize| if along { length(a, shape[a]) } else { shape[a] };
            (0..rank).filter(|&a| !is_free(a)).map(move |a| (a, length(a)))
        };
        let array_stride = |a: usize| if along && !index.axes().contains(&a) { array.strides()[a] } else { 0 };
        let indexed_axis = |(&axis, &(first, layout)): (&usize, &(SharedPtr<i64>, &Layout))| IndexedAxis {
            space: IndexSpace::new(position_axes().map(|(a, len)| (len, [layout.strides()[a]]))),
            first,
            len: array.shape()[axis],
            stride: array.strides()[axis],
        };
        let positions = IndexSpace::new(
            position_axes().map(|(a, len)| (len, [array_stride(a), values.strides()[a], first.strides()[a]])),
        );
        let free_axis = |a: usize, in_values: usize, full: usize| -> FreeAxis {
            (length(a, full), [array.strides()[a], values.strides()[in_values]])
        };
        let free: List<FreeAxis, 4> = match index {
            Index::Along(_) => (0..rank).filter(|&a| is_free(a)).map(|a| free_axis(a, a, shape[a])).collect(),
            Index::Axes(_) => {
                let slice_axes = index.slice_axes(array.shape().rank()).enumerate();
                slice_axes.map(|(k, a)| free_axis(a, rank + k, array.shape()[a])).collect()
            }
        };
        let indexed: List<IndexedAxis, 4> = index.axes().iter().zip(indices).map(indexed_axis).collect();
        let distance = indexed.last().map_or(0, |axis| axis.stride.unsigned_abs())
            + positions.step().get(1).map_or(0, |step| step.unsigned_abs());
        let (outer, slice) = split_free_axes(&free, distance, positions.len());
        let value_positions = IndexSpace::new(position_axes().map(|(a, len)| (len, [values.strides()[a]])));
        let has_linear_values = value_positions.run_len() == value_positions.len();
        IndexPairs { indexed, outer, positions, has_linear_values, slice }
    }

    /// Calls `f(offsets of the outer point, block)` for blocks of the index positions `positions`, for every point of
    /// `outer`. The positions of a point are visited in order.
    fn for_each_block(
        &self,
        outer: Range<usize>,
        positions: Range<usize>,
        f: &mut dyn FnMut([isize; 2], &PositionBlock<'_>),
    ) {
        let [array_step, value_step] = self.outer.step();
        let for_each_point = |f: &mut dyn FnMut([isize; 2])| {
            self.outer.runs(outer.clone(), |[array, values], n| {
                (0..n as isize).for_each(|i| f([array + i * array_step, values + i * value_step]));
            });
        };
        if positions.len() <= BLOCK {
            // The offsets of a block are computed once for all points.
            self.for_each_position_block(positions, &mut |block| for_each_point(&mut |point| f(point, block)));
        } else {
            for_each_point(&mut |point| self.for_each_position_block(positions.clone(), &mut |block| f(point, block)));
        }
    }

    /// Returns the offsets of the values of a block of several runs. `table` has all offsets unless they are linear.
    fn value_offsets<'a>(&self, first: isize, table: &'a [isize]) -> ValueOffsets<'a> {
        match self.has_linear_values {
            true => ValueOffsets::Linear { first, step: self.positions.step()[1] },
            false => ValueOffsets::Table(table),
        }
    }

    /// Calls `f` for blocks of the index positions `range`, in order.
    fn for_each_position_block(&self, range: Range<usize>, f: &mut dyn FnMut(&PositionBlock<'_>)) {
        let (mut array, mut values) = ([0; BLOCK], [0; BLOCK]);
        let [array_step, value_step, index_step] = self.positions.step();
        let index_offsets = index_offsets(Isa::best());
        let (first, rest) = self.indexed.split_first().expect("there is at least one index array");
        // A block contains several short runs, or at most one long run.
        let is_long = self.positions.run_len() >= if self.has_linear_values { BLOCK } else { MIN_RUN };
        let (mut start, mut filled, mut block_values) = (range.start, 0, 0);
        let mut finish_block = |array: &mut [isize], values: ValueOffsets<'_>| {
            rest.iter().for_each(|axis| axis.add_offsets(start, array));
            start += array.len();
            f(&PositionBlock { array, values });
        };
        self.positions.runs(range, |[in_array, in_values, in_index], n| {
            let mut done = 0;
            while done < n {
                let (len, from) = ((n - done).min(BLOCK - filled), done as isize);
                let offsets = &mut array[filled..filled + len];
                let (base, index) = (in_array + from * array_step, first.first.offset(in_index + from * index_step));
                // SAFETY: the run consists of `n` elements of the index array, `index_step` apart, and all elements of
                // an operand are in its buffer (clause 1 of `index_offsets`). `Isa::best` returns an instruction set of
                // this processor (clause 2).
                unsafe { index_offsets(offsets, index, index_step, first.len, first.stride, base, array_step) };
                let values_start = in_values + from * value_step;
                done += len;
                if is_long {
                    finish_block(offsets, ValueOffsets::Linear { first: values_start, step: value_step });
                    continue;
                }
                if filled == 0 {
                    block_values = values_start;
                }
                if !self.has_linear_values {
                    let in_values = &mut values[filled..filled + len];
                    in_values.iter_mut().enumerate().for_each(|(i, v)| *v = values_start + i as isize * value_step);
                }
                filled += len;
                if filled == BLOCK {
                    finish_block(&mut array, self.value_offsets(block_values, &values));
                    filled = 0;
                }
            }
        });
        if filled > 0 {
            finish_block(&mut array[..filled], self.value_offsets(block_values, &values[..filled]));
        }
    }
}

/// The minimum length of a run of index positions that does not share its blocks with other runs.
const MIN_RUN: usize = 32;

/// The minimum number of elements that are processed for one point of the outer space.
const MIN_POINT: usize = 32;

/// Divides axes that are not indexed between the outer space and the slices. `distance` is the sum of the distances
/// between two positions in the array and in the values; there are `count` positions.
fn split_free_axes(free: &[FreeAxis], distance: usize, count: usize) -> (IndexSpace<2>, IndexSpace<2>) {
    let is_outer = |axis: &FreeAxis| axis.1.iter().map(|s| s.unsigned_abs()).sum::<usize>() > distance;
    let slice = IndexSpace::new(free.iter().filter(|axis| !is_outer(axis)).copied());
    if count == 1 || count * slice.len() < MIN_POINT {
        return (IndexSpace::new([]), IndexSpace::new(free.iter().copied()));
    }
    (IndexSpace::new(free.iter().filter(|axis| is_outer(axis)).copied()), slice)
}

/// The offsets of the slices at a block of index positions, relative to a point of the outer space.
struct PositionBlock<'a> {
    /// The offset of every slice of the array.
    array: &'a [isize],
    /// The offset of every slice of the values.
    values: ValueOffsets<'a>,
}

/// The offsets of slices of the values.
enum ValueOffsets<'a> {
    /// Equally spaced offsets.
    Linear {
        /// The first offset.
        first: isize,
        /// The distance between adjacent offsets.
        step: isize,
    },
    /// All offsets.
    Table(&'a [isize]),
}

impl PositionBlock<'_> {
    /// Calls `f(array offset, value offset)` for every slice, in order.
    #[inline(always)]
    fn for_each_slice(&self, mut f: impl FnMut(isize, isize)) {
        match self.values {
            // Adjacent values are frequent. A separate loop for them needs no multiplication.
            ValueOffsets::Linear { first, step: 1 } => {
                self.array.iter().enumerate().for_each(|(i, &a)| f(a, first + i as isize))
            }
            ValueOffsets::Linear { first, step } => {
                self.array.iter().enumerate().for_each(|(i, &a)| f(a, first + i as isize * step))
            }
            ValueOffsets::Table(values) => self.array.iter().zip(values).for_each(|(&a, &v)| f(a, v)),
        }
    }
}

impl IndexedAxis {
    /// Adds the contribution of the indices at the positions starting at `start` to the offsets.
    fn add_offsets(&self, start: usize, offsets: &mut [isize]) {
        let (mut done, [step], add_index_offsets) = (0, self.space.step(), add_index_offsets(Isa::best()));
        self.space.runs(start..start + offsets.len(), |[offset], n| {
            // SAFETY: the run consists of `n` elements of the index array, `step` apart, and all elements of an operand
            // are in its buffer (clause 1 of `add_index_offsets`). `Isa::best` returns an instruction set of this
            // processor (clause 2).
            unsafe {
                add_index_offsets(&mut offsets[done..done + n], self.first.offset(offset), step, self.len, self.stride)
            };
            done += n;
        });
    }
}

/// Returns the offset `index · stride` along an axis of length `len`. Negative indices count from the end.
#[inline(always)]
fn index_offset(index: i64, len: usize, stride: isize) -> isize {
    let index = if index < 0 { index.wrapping_add(len as i64) } else { index } as u64;
    // The bounds have been checked. Clamping keeps the access in bounds even if the indices have been modified since.
    index.min(len as u64 - 1) as isize * stride
}

per_isa! {
    /// Computes the offsets `base + i · step + index · stride` of indices `index_step` elements apart into an axis of
    /// length `len`. Negative indices count from the end.
    ///
    /// # Safety
    /// 1. `first` and the pointers that follow it at distance `index_step`, one for each offset, are valid for reads.
    /// 2. The processor has the instruction set.
    fn index_offsets[][](
        offsets: &mut [isize], first: *const i64, index_step: isize, len: usize, stride: isize, base: isize, step: isize
    ) {
        if index_step == 1 && stride == 1 && step == 0 {
            for (i, offset) in offsets.iter_mut().enumerate() {
                // SAFETY: the caller guarantees that the index of every offset is valid for reads (clause 1 of this
                // function's contract).
                *offset = base + index_offset(unsafe { *first.add(i) }, len, 1);
            }
            return;
        }
        for (i, offset) in offsets.iter_mut().enumerate() {
            let at = i as isize;
            // SAFETY: the index of every offset is valid for reads (clause 1 of this function's contract).
            let index = unsafe { if index_step == 1 { *first.add(i) } else { *first.offset(at * index_step) } };
            *offset = base + at * step + index_offset(index, len, stride);
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
            *offset += index_offset(index, len, stride);
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
