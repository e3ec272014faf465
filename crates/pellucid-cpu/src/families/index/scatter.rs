//! Scatter: `y[index] = reduction(y[index], values)` in place, in row-major order of the values.
//!
//! The fixed order makes repeated indices deterministic. The work is therefore divided into tasks only along an axis
//! that is not indexed, where different tasks write different elements of `y`.

use super::{IndexPairs, PositionBlock, addresses_and_layouts, check_indices, is_empty};
use crate::element::{ComputeScalar, StorageElement};
use crate::family::CpuFamily;
use crate::operand::Operand;
use crate::strided::{IndexSpace, axes};
use pellucid_ir::kernel::{Index, Scatter, ScatterOp};
use pellucid_ir::{DType, Layout, Result};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{GRAIN, SharedPtr, parallel_ranges};
use pellucid_simd::math::half::{BF16, F16};
use pellucid_simd::vector::prefetch;
use pellucid_simd::{Isa, per_isa, up_to};

impl CpuFamily for Scatter {
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        let (kernel, values, indices, y) = (self, &inputs[0], &inputs[1..], &outputs[0]);
        check_indices(kernel.op, &kernel.index, kernel.from_end, y, indices)?;
        if is_empty(values.shape()) {
            return Ok(());
        }
        let reduction = kernel.reduction.for_dtype(y.dtype);
        let (first, layout, element_size) = (values.first(), values.layout, y.dtype.size());
        let indices = &addresses_and_layouts(indices);
        let task = ScatterTask { index: &kernel.index, first, layout, indices, element_size };
        let accumulates = matches!(reduction, ScatterOp::Add | ScatterOp::Mul);
        match y.dtype {
            _ if reduction == ScatterOp::Set => {
                with_width!(y.dtype.size(), T => task.run(ScatterArray::new(y), up_to!(Isa::Avx2, Isa::best(), assign_block::<T>)))
            }
            DType::F16 if accumulates => task.accumulate_in_f32::<F16>(reduction, y)?,
            DType::BF16 if accumulates => task.accumulate_in_f32::<BF16>(reduction, y)?,
            dtype => with_storage_element!(dtype, T => task.combine::<T, T>(reduction, ScatterArray::new(y))),
        }
        Ok(())
    }
}

/// The values and indices of a scatter.
struct ScatterTask<'a> {
    index: &'a Index,
    /// The address of element (0, 0, ..) of the values, of any type.
    first: SharedPtr<u8>,
    /// The layout of the values.
    layout: &'a Layout,
    indices: &'a [(SharedPtr<i64>, &'a Layout)],
    /// The size of an element of y in bytes.
    element_size: usize,
}

/// An array of a scatter: y or the values.
struct ScatterArray<'a, T> {
    /// The layout.
    layout: &'a Layout,
    /// The address of element (0, 0, ..).
    first: SharedPtr<T>,
}

impl<'a, T> ScatterArray<'a, T> {
    /// Returns the array of an operand.
    fn new(operand: &Operand<'a>) -> ScatterArray<'a, T> {
        ScatterArray { layout: operand.layout, first: operand.first() }
    }
}

/// A function that combines a block of slices of the values with slices of y.
///
/// The arguments are y, the values, the offsets of the slices, and the elements of a slice. The contract of
/// [`for_each_element`] holds; in addition, the processor has the instruction set.
type ScatterKernel<S, V> = unsafe fn(*mut S, *const V, &PositionBlock<'_>, &IndexSpace<2>);

impl<'a> ScatterTask<'a> {
    /// Combines the values with a copy of y in `f32`. The result for values with equal indices is then rounded once,
    /// instead of after each operation.
    fn accumulate_in_f32<T: StorageElement<Compute = f32>>(&self, reduction: ScatterOp, y: &Operand<'_>) -> Result<()> {
        let wide = CpuBuffer::scratch(y.shape().size() * size_of::<f32>())?;
        let first = SharedPtr(wide.ensure()?.as_ptr().cast::<f32>());
        let layout = Layout::contiguous(y.shape().clone());
        let space = IndexSpace::new(axes(y.shape(), [y.layout, &layout]));
        let steps = space.step();
        let for_each_pair = |f: &dyn Fn(*mut T, *mut f32)| {
            space.runs(0..space.len(), |offsets, n| {
                for i in 0..n as isize {
                    f(y.first().offset(offsets[0] + i * steps[0]), first.offset(offsets[1] + i * steps[1]));
                }
            });
        };
        // SAFETY: the index space has the shape of y and of the scratch array. Both pointers refer to elements of these
        // arrays, which no other thread uses.
        for_each_pair(&|narrow, wide| unsafe { *wide = (*narrow).widen() });
        self.combine::<T, f32>(reduction, ScatterArray { layout: &layout, first });
        // SAFETY: both pointers are elements of y and of the scratch array, which no other thread uses.
        for_each_pair(&|narrow, wide| unsafe { *narrow = T::narrow(*wide) });
        Ok(())
    }

    /// Combines all values with the elements of y at their indices.
    fn combine<V, S>(&self, reduction: ScatterOp, y: ScatterArray<'_, S>)
    where
        V: StorageElement<Compute = S::Compute>,
        S: StorageElement,
    {
        // Sums are used most often, because they compute the gradient of a gather.
        let kernel = match reduction {
            ScatterOp::Mul => up_to!(Isa::Avx2, Isa::best(), combine_block::<S, V, ScatterProduct>),
            ScatterOp::Max => up_to!(Isa::Avx2, Isa::best(), combine_block::<S, V, ScatterMax>),
            ScatterOp::Min => up_to!(Isa::Avx2, Isa::best(), combine_block::<S, V, ScatterMin>),
            ScatterOp::Add | ScatterOp::Set => {
                up_to!(S::WIDEST_ISA, Isa::best(), combine_block::<S, V, ScatterSum>)
            }
        };
        self.run::<S, V>(y, kernel);
    }

    /// Runs `kernel` on all values, in tasks along the longest axis that is not indexed.
    fn run<S, V>(&self, y: ScatterArray<'_, S>, kernel: ScatterKernel<S, V>) {
        let values = ScatterArray { layout: self.layout, first: SharedPtr(self.first.get().cast::<V>()) };
        let index_rank = self.indices[0].1.shape().rank();
        // Maps an axis of y that is not indexed to the axis of the values (and, for `Along`, of the indices).
        let unindexed = |a: usize| match self.index {
            Index::Along(axis) => (a != *axis).then_some((a, a)),
            Index::Axes(axes) => {
                (!axes.contains(&a)).then(|| (a, index_rank + a - axes.iter().filter(|&&i| i < a).count()))
            }
        };
        let shape = values.layout.shape();
        let cut = (0..y.layout.shape().rank()).filter_map(unindexed).max_by_key(|&(_, v)| shape[v]);
        let Some((in_y, in_values)) = cut else {
            return self.run_part(y, values, self.indices, None, kernel);
        };
        let total = shape[in_values];
        let work = shape.size() / total * self.element_size;
        parallel_ranges(total, GRAIN / work, |range| {
            let shift = |l: &Layout, axis: usize| l.strides()[axis] * range.start as isize;
            let along = matches!(self.index, Index::Along(_));
            let shifted_index = |&(first, l): &(SharedPtr<i64>, &'a Layout)| {
                (SharedPtr(first.offset(if along { shift(l, in_values) } else { 0 })), l)
            };
            let indices: List<(SharedPtr<i64>, &Layout), 4> = self.indices.iter().map(shifted_index).collect();
            let y = ScatterArray { first: SharedPtr(y.first.offset(shift(y.layout, in_y))), ..y };
            let values =
                ScatterArray { first: SharedPtr(values.first.offset(shift(values.layout, in_values))), ..values };
            self.run_part(y, values, &indices, Some((in_y, range.len())), kernel);
        });
    }

    /// Runs `kernel` on all values, or on the part of an axis that `cut` selects; see [`IndexPairs::new`].
    fn run_part<S, V>(
        &self,
        y: ScatterArray<'_, S>,
        values: ScatterArray<'_, V>,
        indices: &[(SharedPtr<i64>, &Layout)],
        cut: Option<(usize, usize)>,
        kernel: ScatterKernel<S, V>,
    ) {
        let pairs = IndexPairs::new(self.index, y.layout, values.layout, indices, cut);
        let (outer, positions) = (0..pairs.outer.len(), 0..pairs.positions.len());
        pairs.for_each_block(outer, positions, &mut |[in_y, in_values], block| {
            // SAFETY: the offsets and the slice address elements of y and of the values, because the rule of the family
            // and `check_indices` have accepted the operands (clause 1 of `for_each_element`). Other tasks process
            // other indices along an axis that is not indexed, so they use other elements of y; the caller of the
            // scatter passes no values that overlap y (clause 2). The instruction set of `kernel` is one of this
            // processor.
            unsafe { kernel(y.first.offset(in_y), values.first.offset(in_values), block, &pairs.slice) }
        });
    }
}

/// A binary operation that combines an element of y with a value.
trait ScatterCombine {
    /// Returns the new element of y.
    fn combine<W: ComputeScalar>(element: W, value: W) -> W;
}

macro_rules! scatter_combines {
    ($($name:ident: $method:ident),*) => {$(
        struct $name;
        impl ScatterCombine for $name {
            #[inline(always)]
            fn combine<W: ComputeScalar>(element: W, value: W) -> W {
                element.$method(value)
            }
        }
    )*};
}
scatter_combines!(ScatterSum: plus, ScatterProduct: times, ScatterMax: maximum, ScatterMin: minimum);

per_isa! {
    /// Combines a block of slices of the values with slices of y.
    ///
    /// # Safety
    /// The contract of [`for_each_element`] holds. In addition, the processor has the instruction set.
    fn combine_block
    [S: StorageElement, V: StorageElement<Compute = S::Compute>, C: ScatterCombine]
    [S, V, C](
        y: *mut S, values: *const V, block: &PositionBlock<'_>, slice: &IndexSpace<2>
    ) {
        // SAFETY: the caller guarantees both clauses of the contract of `for_each_element` (this function's contract).
        unsafe {
            for_each_element(y, values, block, slice, #[inline(always)] |y: &mut S, v: &V| {
                *y = S::narrow(C::combine(y.widen(), v.widen()))
            })
        }
    }
}

per_isa! {
    /// Copies a block of slices of the values to slices of y.
    ///
    /// # Safety
    /// The contract of [`for_each_element`] holds. In addition, the processor has the instruction set.
    fn assign_block[T: Copy][T](
        y: *mut T, values: *const T, block: &PositionBlock<'_>, slice: &IndexSpace<2>
    ) {
        // SAFETY: the caller guarantees both clauses of the contract of `for_each_element` (this function's contract).
        unsafe { for_each_element(y, values, block, slice, #[inline(always)] |y, v| *y = *v) }
    }
}

/// The number of bytes of the next slice of y that are prefetched.
const PREFETCH_BYTES: usize = 512;

/// Calls `f` for every pair of an element of y and a value, in order.
///
/// `slice` is the index space of the elements of a slice, with their strides in y and in the values.
///
/// # Safety
/// 1. For every slice of `block` and every offset within it, `y` is valid for reads and writes, and `values` is valid
///    for reads.
/// 2. No other thread uses these elements of y or writes these values, and y does not overlap the values.
#[inline(always)]
unsafe fn for_each_element<S, V: Copy>(
    y: *mut S,
    values: *const V,
    block: &PositionBlock<'_>,
    slice: &IndexSpace<2>,
    f: impl Fn(&mut S, &V),
) {
    let [y_step, v_step] = slice.step();
    if slice.len() == 1 {
        // SAFETY: the offsets address elements that are valid for reads, and in y for writes (clause 1 of this
        // function's contract). The reference to an element of y is unique, because no other thread uses it and the
        // values do not overlap y (clause 2).
        return block.for_each_slice(|in_y, in_values| unsafe { f(&mut *y.offset(in_y), &*values.offset(in_values)) });
    }
    let mut following = block.array.iter().skip(1);
    block.for_each_slice(|y_offset, value_offset| {
        // The hardware prefetcher cannot predict the address of the next slice, so the start of that slice is
        // prefetched here.
        let next = following.next();
        if let Some(&next) = next.filter(|_| y_step == 1 && slice.len() * size_of::<S>() >= PREFETCH_BYTES) {
            for line in (0..PREFETCH_BYTES).step_by(64) {
                prefetch(y.wrapping_offset(next).cast::<u8>().wrapping_add(line));
            }
        }
        // SAFETY: `y_offset`, `value_offset` and the offsets of `slice` address elements that are valid for reads, and
        // in y for writes (clause 1 of this function's contract). The reference to an element of y is unique, because
        // no other thread uses it and the values do not overlap y (clause 2).
        unsafe {
            let (y, values) = (y.offset(y_offset), values.offset(value_offset));
            if slice.run_len() == slice.len() && y_step == 1 && v_step == 1 {
                (0..slice.len()).for_each(|i| f(&mut *y.add(i), &*values.add(i)));
            } else if slice.run_len() == slice.len() && y_step == 1 && v_step == 0 {
                // A broadcast value, such as the gradient of a sum.
                let value = *values;
                (0..slice.len()).for_each(|i| f(&mut *y.add(i), &value));
            } else {
                slice.runs(0..slice.len(), |o, n| {
                    (0..n as isize)
                        .for_each(|i| f(&mut *y.offset(o[0] + i * y_step), &*values.offset(o[1] + i * v_step)));
                });
            }
        }
    });
}
