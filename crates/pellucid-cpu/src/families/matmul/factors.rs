//! The factors of a product in the form in which they are multiplied.
//!
//! Small integers are converted to `i32`, and half precision to `f32`, or to [pairs of `bf16`](PairMatrices) if the
//! processor multiplies them. Both forms of a `bf16` product have the same bits.

use crate::operand::Operand;
use crate::pairs::PairMatrices;
use crate::program;
use pellucid_gemm::Strided;
use pellucid_ir::{DType, Layout, Result};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_simd::Isa;
use pellucid_simd::math::half::BF16;

/// The factors A and B of a product.
pub(super) enum PreparedFactors<'a> {
    /// Arrays of the dtype in which the product is computed.
    Own([Operand<'a>; 2]),
    /// Arrays converted to this dtype.
    Converted([ConvertedFactor; 2]),
    /// Matrices of pairs, whose products are `f32`.
    Pairs([PairFactor; 2]),
}

impl<'a> PreparedFactors<'a> {
    /// Converts the factors of a product.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    pub(super) fn new(a: &Operand<'a>, b: &Operand<'a>) -> Result<PreparedFactors<'a>> {
        let dtype = match a.dtype {
            DType::F16 | DType::BF16 => DType::F32,
            DType::U8 | DType::I8 | DType::I16 => DType::I32,
            _ => return Ok(PreparedFactors::Own([*a, *b])),
        };
        // A product with one row or column has another order of summation.
        let is_vector = a.shape()[a.shape().rank() - 2] == 1 || b.shape().last() == Some(&1);
        if a.dtype == DType::BF16 && !is_vector && Isa::best().has_bf16_products() {
            let pairs = [PairFactor::new(a, LaneAxis::Rows)?, PairFactor::new(b, LaneAxis::Columns)?];
            if pairs[0].matrices.range.excludes_subnormals(pairs[1].matrices.range) {
                return Ok(PreparedFactors::Pairs(pairs));
            }
        }
        Ok(PreparedFactors::Converted([ConvertedFactor::new(a, dtype)?, ConvertedFactor::new(b, dtype)?]))
    }

    /// Returns the factors as operands, with the dtype of the sums.
    pub(super) fn operands(&self) -> [Operand<'_>; 2] {
        match self {
            PreparedFactors::Own(operands) => *operands,
            PreparedFactors::Converted([a, b]) => [a.operand(), b.operand()],
            PreparedFactors::Pairs([a, b]) => [a.operand(), b.operand()],
        }
    }
}

/// One factor converted to another dtype.
pub(super) struct ConvertedFactor {
    memory: CpuBuffer,
    layout: Layout,
    dtype: DType,
}

impl ConvertedFactor {
    /// Converts an operand. Its axes keep their order in memory, because converting a transposed matrix in its own
    /// order is faster than transposing it.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    fn new(operand: &Operand<'_>, dtype: DType) -> Result<ConvertedFactor> {
        let (shape, strides) = (operand.shape(), operand.layout.strides());
        let mut order: List<usize, 6> = (0..shape.rank()).collect();
        order.sort_unstable_by_key(|&axis| (std::cmp::Reverse(strides[axis].unsigned_abs()), axis));
        let mut axes_in_order = order.clone();
        (0..order.len()).for_each(|k| axes_in_order[order[k]] = k);
        let from = operand.layout.permute(&order);
        let to = Layout::contiguous(from.shape().clone());
        let memory = CpuBuffer::scratch(shape.size().saturating_mul(dtype.size()))?;
        let base = memory.ensure()?.as_ptr();
        program::copy(&Operand { layout: &from, ..*operand }, &Operand { base, layout: &to, dtype })?;
        Ok(ConvertedFactor { memory, layout: to.permute(&axes_in_order), dtype })
    }

    /// Returns the converted array as an operand.
    fn operand(&self) -> Operand<'_> {
        let base = self.memory.start().expect("the memory of the factor must be allocated").as_ptr();
        Operand { base, layout: &self.layout, dtype: self.dtype }
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

/// One factor as matrices of pairs, which replace the axis of k by an axis of half the length.
pub(super) struct PairFactor {
    matrices: PairMatrices,
    layout: Layout,
}

impl PairFactor {
    /// Converts a `bf16` operand. Axes along which it is broadcast stay broadcast.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    fn new(operand: &Operand<'_>, lanes: LaneAxis) -> Result<PairFactor> {
        let (shape, mut strides) = (operand.shape(), operand.layout.strides().clone());
        let batch_rank = shape.rank() - 2;
        let (lane_axis, depth_axis) = match lanes {
            LaneAxis::Rows => (batch_rank, batch_rank + 1),
            LaneAxis::Columns => (batch_rank + 1, batch_rank),
        };
        let from = operand.first::<BF16>();
        let stored = |axis: usize| if strides[axis] == 0 { 1 } else { shape[axis] };
        let count = (0..batch_rank).map(stored).product();
        let matrix = |mut index: usize| {
            let mut offset = 0;
            // An empty batch has no matrix, but strides.
            for axis in (0..batch_rank).rev().filter(|_| count > 0) {
                offset += (index % stored(axis)) as isize * strides[axis];
                index /= stored(axis);
            }
            Strided { data: from.offset(offset).cast_const(), lane: strides[lane_axis], depth: strides[depth_axis] }
        };
        // SAFETY: the operand is in its buffer with all elements that its layout addresses, and the caller of the
        // kernel has borrowed its storage for reading.
        let matrices = unsafe { PairMatrices::new(count, (shape[lane_axis], shape[depth_axis]), matrix)? };
        (strides[lane_axis], strides[depth_axis]) = (matrices.first.lane, matrices.first.depth);
        let mut step = matrices.len as isize;
        for axis in (0..batch_rank).rev() {
            if strides[axis] != 0 {
                strides[axis] = step;
                step *= shape[axis] as isize;
            }
        }
        let layout = Layout::strided(shape.with_axis(depth_axis, shape[depth_axis].div_ceil(2)), strides, 0);
        Ok(PairFactor { matrices, layout })
    }

    /// Returns the matrices as an operand with elements of the size of an `f32`.
    fn operand(&self) -> Operand<'_> {
        Operand { base: self.matrices.data().get().cast(), layout: &self.layout, dtype: DType::F32 }
    }
}
