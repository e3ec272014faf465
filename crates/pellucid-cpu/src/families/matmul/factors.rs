//! The factors of a product in the form in which they are multiplied.
//!
//! `i8` is converted to quads if the processor multiplies them, and small integers to `i32` otherwise. Half precision
//! is converted to `f32`, or to pairs of `bf16` if the processor multiplies them and no product of two factors can be
//! subnormal. A `bf16` product has the same bits whether it is computed from `f32` or from pairs, except for products
//! that [use AMX](pellucid_gemm::pair_isa), whose order of summation differs: there, a single tiny factor, which
//! prevents the use of pairs, changes the last bits of the entire product.

use crate::factor_groups::GroupMatrices;
use crate::operand::Operand;
use crate::program;
use pellucid_gemm::{FactorElement, Strided, quad_isa};
use pellucid_ir::{DType, Layout, Result, Shape, Strides};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::scratch::MAX_STACK_BYTES;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::math::half::BF16;
use pellucid_simd::vector::{BF16Pair, I8Quad};
use pellucid_simd::{Element, Isa};
use std::ops::Range;

/// The minimum number of bytes of a strided vector that is copied before the product. The product itself copies shorter
/// vectors to scratch memory.
const MIN_COPIED_BYTES: usize = if cfg!(test) { 512 } else { MAX_STACK_BYTES };

/// The factors A and B of a product.
pub(super) enum PreparedFactors<'a> {
    /// Arrays of the dtype in which the product is computed.
    Single([SingleFactor<'a>; 2]),
    /// Matrices of pairs, whose products are `f32`.
    Pairs([GroupedFactor<BF16Pair>; 2]),
    /// Matrices of quads, whose products are `i32`.
    Quads([GroupedFactor<I8Quad>; 2]),
}

impl<'a> PreparedFactors<'a> {
    /// Converts the factors of a product that is rounded to `product`.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    pub(super) fn new(a: &Operand<'a>, b: &Operand<'a>, product: DType) -> Result<PreparedFactors<'a>> {
        let dtype = match a.dtype {
            DType::F16 | DType::BF16 => DType::F32,
            DType::U8 | DType::I8 | DType::I16 => DType::I32,
            dtype => dtype,
        };
        // Groups are not used for a product with one row or column. In products of pairs, its order of summation is
        // different.
        let is_vector = a.shape()[a.shape().rank() - 2] == 1 || b.shape().last() == Some(&1);
        if a.dtype == DType::BF16 && !is_vector && Isa::best().has_bf16_products() {
            let pairs =
                [GroupedFactor::new::<BF16>(a, LaneAxis::Rows)?, GroupedFactor::new::<BF16>(b, LaneAxis::Columns)?];
            if pairs[0].matrices.range().excludes_subnormals(pairs[1].matrices.range()) {
                return Ok(PreparedFactors::Pairs(pairs));
            }
        }
        // A product that wraps to 8 bits has the same bits for `u8` and for `i8`.
        let has_bytes = a.dtype == DType::I8 || a.dtype == DType::U8 && product == DType::U8;
        if has_bytes && !is_vector && quad_isa(Isa::best(), (1, 1, 1)) != Isa::Portable {
            let quads = [GroupedFactor::new::<i8>(a, LaneAxis::Rows)?, GroupedFactor::new::<i8>(b, LaneAxis::Columns)?];
            return Ok(PreparedFactors::Quads(quads));
        }
        let factor = |operand: &Operand<'a>, lanes: LaneAxis| match is_vector && is_long_and_strided(operand, lanes) {
            true => ConvertedFactor::with_contiguous_depth(operand, dtype, lanes).map(SingleFactor::Converted),
            false if operand.dtype == dtype => Ok(SingleFactor::Own(*operand)),
            false => ConvertedFactor::new(operand, dtype).map(SingleFactor::Converted),
        };
        Ok(PreparedFactors::Single([factor(a, LaneAxis::Rows)?, factor(b, LaneAxis::Columns)?]))
    }

    /// Returns both factors as arrays. Pairs and quads are arrays with elements of the size of their sums.
    pub(super) fn arrays(&self) -> [ProductArray<'_>; 2] {
        match self {
            PreparedFactors::Single([a, b]) => [a.array(), b.array()],
            PreparedFactors::Pairs([a, b]) => [a.array(DType::F32), b.array(DType::F32)],
            PreparedFactors::Quads([a, b]) => [a.array(DType::I32), b.array(DType::I32)],
        }
    }
}

/// A factor in the dtype in which the product is computed.
pub(super) enum SingleFactor<'a> {
    /// The operand.
    Own(Operand<'a>),
    /// A copy in another dtype or layout.
    Converted(ConvertedFactor),
}

impl SingleFactor<'_> {
    /// Returns the array.
    fn array(&self) -> ProductArray<'_> {
        match self {
            SingleFactor::Own(operand) => ProductArray::new(operand),
            SingleFactor::Converted(factor) => factor.array(),
        }
    }
}

/// Returns true if a matrix-vector product would gather at least [`MIN_COPIED_BYTES`] of a factor: a vector, or a row
/// of a matrix without contiguous rows or columns.
fn is_long_and_strided(operand: &Operand<'_>, lanes: LaneAxis) -> bool {
    let (shape, strides) = (operand.shape(), operand.layout.strides());
    let (lane, depth) = lanes.lane_and_depth(shape.rank());
    let is_gathered = strides[depth] != 1 && (shape[lane] == 1 || strides[lane] != 1);
    is_gathered && shape[depth].saturating_mul(operand.dtype.size()) >= MIN_COPIED_BYTES
}

/// A factor or a product with its strides. In contrast to an operand, it needs no [`Layout`], whose strides are on the
/// heap, because the launch of a captured step must not allocate.
pub(super) struct ProductArray<'a> {
    first: SharedPtr<u8>,
    shape: &'a Shape,
    strides: Strides,
    pub(super) dtype: DType,
}

impl<'a> ProductArray<'a> {
    pub(super) fn new(operand: &Operand<'a>) -> ProductArray<'a> {
        let (first, strides) = (operand.first(), operand.layout.strides());
        ProductArray { first, shape: operand.shape(), strides, dtype: operand.dtype }
    }

    /// Returns a pointer to element (0, 0, ..). `T` must have the size of the dtype.
    pub(super) fn first<T>(&self) -> *mut T {
        self.first.get().cast()
    }

    /// Returns the rows and columns of a matrix, and the strides between them.
    pub(super) fn matrix(&self) -> (usize, usize, (isize, isize)) {
        let rank = self.shape.rank();
        (self.shape[rank - 2], self.shape[rank - 1], (self.strides[rank - 2], self.strides[rank - 1]))
    }

    /// Returns the stride along an axis of a shape of `rank` axes to which the array broadcasts, or 0 if the array is
    /// broadcast along it.
    pub(super) fn broadcast_stride(&self, axis: usize, rank: usize) -> isize {
        match (axis + self.shape.rank()).checked_sub(rank) {
            Some(own) if self.shape[own] != 1 => self.strides[own],
            _ => 0,
        }
    }

    /// Returns the range of addresses from the lowest element to the end of the highest.
    pub(super) fn addresses(&self) -> Range<usize> {
        let (mut low, mut high) = (0, 0);
        for (&dim, &stride) in self.shape.iter().zip(&*self.strides) {
            let extent = (dim as isize - 1) * stride;
            if extent < 0 { low += extent } else { high += extent }
        }
        let size = self.dtype.size() as isize;
        self.first.offset(low * size).addr()..self.first.offset((high + 1) * size).addr()
    }
}

/// A copy of a factor in another dtype or layout.
pub(super) struct ConvertedFactor {
    memory: CpuBuffer,
    shape: Shape,
    strides: Strides,
    dtype: DType,
}

impl ConvertedFactor {
    /// Converts an operand. Its axes keep their order in memory, because converting a transposed matrix in its own
    /// order is faster than transposing it.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    fn new(operand: &Operand<'_>, dtype: DType) -> Result<ConvertedFactor> {
        let strides = operand.layout.strides();
        let mut order: List<usize, 6> = (0..strides.len()).collect();
        order.sort_unstable_by_key(|&axis| (std::cmp::Reverse(strides[axis].unsigned_abs()), axis));
        ConvertedFactor::with_order(operand, dtype, &order, |_| false)
    }

    /// Converts an operand to an array in which the elements of a lane are contiguous. Axes of the batch along which it
    /// is broadcast stay broadcast.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    fn with_contiguous_depth(operand: &Operand<'_>, dtype: DType, lanes: LaneAxis) -> Result<ConvertedFactor> {
        let (shape, strides) = (operand.shape(), operand.layout.strides());
        let (lane, depth) = lanes.lane_and_depth(shape.rank());
        let order: List<usize, 6> = (0..shape.rank() - 2).chain([lane, depth]).collect();
        let is_repeated = |axis: usize| axis != depth && strides[axis] == 0 && shape[axis] > 1;
        ConvertedFactor::with_order(operand, dtype, &order, is_repeated)
    }

    /// Converts an operand to an array whose axes are stored in the order `order`. Axes for which `is_repeated` is true
    /// are stored once.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    fn with_order(
        operand: &Operand<'_>,
        dtype: DType,
        order: &[usize],
        is_repeated: impl Fn(usize) -> bool,
    ) -> Result<ConvertedFactor> {
        let (shape, mut strides) = (operand.shape(), operand.layout.strides());
        let repeated = (0..shape.rank()).filter(|&axis| is_repeated(axis));
        let from = repeated.fold(operand.layout.clone(), |layout, axis| layout.slice(axis, 0, 1, 1)).permute(order);
        let to = Layout::contiguous(from.shape().clone());
        let memory = CpuBuffer::scratch(from.shape().size().saturating_mul(dtype.size()))?;
        let base = memory.ensure()?.as_ptr();
        program::copy(&Operand { layout: &from, ..*operand }, &Operand { base, layout: &to, dtype })?;
        for (&axis, &stride) in order.iter().zip(&*to.strides()) {
            strides[axis] = if is_repeated(axis) { 0 } else { stride };
        }
        Ok(ConvertedFactor { memory, shape: shape.clone(), strides, dtype })
    }

    /// Returns the converted array.
    fn array(&self) -> ProductArray<'_> {
        let first = SharedPtr(self.memory.start().expect("the memory of the factor must be allocated").as_ptr());
        ProductArray { first, shape: &self.shape, strides: self.strides.clone(), dtype: self.dtype }
    }
}

/// The axis of a factor that is not summed.
#[derive(Clone, Copy)]
enum LaneAxis {
    /// The second to last axis, as in A.
    Rows,
    /// The last axis, as in B.
    Columns,
}

impl LaneAxis {
    /// Returns the axis of the lanes and the axis of k of a factor with `rank` axes.
    fn lane_and_depth(self, rank: usize) -> (usize, usize) {
        match self {
            LaneAxis::Rows => (rank - 2, rank - 1),
            LaneAxis::Columns => (rank - 1, rank - 2),
        }
    }
}

/// A factor as matrices of groups: the axis of k has as many elements as there are groups of factors.
pub(super) struct GroupedFactor<G> {
    matrices: GroupMatrices<G>,
    shape: Shape,
    strides: Strides,
}

impl<G: Element> GroupedFactor<G> {
    /// Converts an operand with elements of type `E`. Axes along which it is broadcast stay broadcast.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    fn new<E: FactorElement<Group = G>>(operand: &Operand<'_>, lanes: LaneAxis) -> Result<GroupedFactor<G>> {
        let (shape, mut strides) = (operand.shape(), operand.layout.strides().clone());
        let batch_rank = shape.rank() - 2;
        let (lane_axis, depth_axis) = lanes.lane_and_depth(shape.rank());
        let from = operand.first::<E>();
        let stored = |axis: usize| if strides[axis] == 0 { 1 } else { shape[axis] };
        let count = (0..batch_rank).map(stored).product();
        let matrix = |mut index: usize| {
            let mut offset = 0;
            // An empty batch has no matrix, but the strides of `matrix(0)` are needed.
            for axis in (0..batch_rank).rev().filter(|_| count > 0) {
                offset += (index % stored(axis)) as isize * strides[axis];
                index /= stored(axis);
            }
            Strided { data: from.offset(offset).cast_const(), lane: strides[lane_axis], depth: strides[depth_axis] }
        };
        // SAFETY: the operand is in its buffer with all elements that its layout addresses, and the caller of the
        // kernel has borrowed its storage for reading.
        let matrices =
            unsafe { GroupMatrices::new((count, count.max(1)), (shape[lane_axis], shape[depth_axis]), matrix)? };
        (strides[lane_axis], strides[depth_axis]) = (matrices.first.lane, matrices.first.depth);
        let mut step = matrices.len as isize;
        for axis in (0..batch_rank).rev() {
            if strides[axis] != 0 {
                strides[axis] = step;
                step *= shape[axis] as isize;
            }
        }
        let shape = shape.with_axis(depth_axis, shape[depth_axis].div_ceil(G::FACTORS));
        Ok(GroupedFactor { matrices, shape, strides })
    }

    /// Returns the matrices as an array of the dtype of the sums.
    fn array(&self, dtype: DType) -> ProductArray<'_> {
        let first = SharedPtr(self.matrices.data().get().cast());
        ProductArray { first, shape: &self.shape, strides: self.strides.clone(), dtype }
    }
}
