//! The factors of a product in the form in which they are multiplied.
//!
//! Small integers are converted to `i32`, and half precision to `f32`, or to [pairs of `bf16`](PackPairs) if the
//! processor multiplies them. Both forms of a `bf16` product have the same bits.

use crate::dense::DenseArray;
use crate::operand::Operand;
use pellucid_gemm::{FactorRange, PackPairs, Strided};
use pellucid_ir::{DType, Layout, Result, lock};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::threads::{GRAIN, SharedPtr, parallel_ranges};
use pellucid_simd::Isa;
use pellucid_simd::math::half::BF16;
use pellucid_simd::vector::BF16Pair;
use std::sync::{Mutex, PoisonError};

/// The factors A and B of a product.
pub(super) enum Factors<'a> {
    /// Arrays of the dtype in which the product is computed.
    Own([Operand<'a>; 2]),
    /// Arrays converted to this dtype.
    Converted([DenseArray<'a>; 2]),
    /// Matrices of pairs, whose products are `f32`.
    Pairs([PairMatrices; 2]),
}

impl<'a> Factors<'a> {
    /// Converts the factors of a product.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    pub(super) fn new(a: &Operand<'a>, b: &Operand<'a>) -> Result<Factors<'a>> {
        let dtype = match a.dtype {
            DType::F16 | DType::BF16 => DType::F32,
            DType::U8 | DType::I8 | DType::I16 => DType::I32,
            _ => return Ok(Factors::Own([*a, *b])),
        };
        // A product with one row or column has another order of summation.
        let is_vector = a.shape()[a.shape().rank() - 2] == 1 || b.shape().last() == Some(&1);
        if a.dtype == DType::BF16 && !is_vector && Isa::best().has_bf16_products() {
            let pairs = [PairMatrices::new(a, Lanes::Rows)?, PairMatrices::new(b, Lanes::Columns)?];
            if pairs[0].range.excludes_subnormals(pairs[1].range) {
                return Ok(Factors::Pairs(pairs));
            }
        }
        Ok(Factors::Converted([DenseArray::of_input(a, dtype)?, DenseArray::of_input(b, dtype)?]))
    }

    /// Returns the factors as operands, with the dtype of the sums.
    pub(super) fn operands(&self) -> [Operand<'_>; 2] {
        match self {
            Factors::Own(operands) => *operands,
            Factors::Converted([a, b]) => [a.operand(), b.operand()],
            Factors::Pairs([a, b]) => [a.operand(), b.operand()],
        }
    }
}

/// The axis of a factor that is not summed.
#[derive(Clone, Copy)]
enum Lanes {
    /// The second to last axis, as in A.
    Rows,
    /// The last axis, as in B.
    Columns,
}

/// The matrices of one factor as pairs of `bf16`, which replace the axis of k by an axis of half the length.
pub(super) struct PairMatrices {
    pairs: CpuBuffer,
    layout: Layout,
    /// The range of all factors.
    range: FactorRange,
}

impl PairMatrices {
    /// Converts a `bf16` operand. Axes along which it is broadcast stay broadcast.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    fn new(operand: &Operand<'_>, lanes: Lanes) -> Result<PairMatrices> {
        let (shape, strides) = (operand.shape(), operand.layout.strides());
        let batch_rank = shape.rank() - 2;
        let (lane_axis, depth_axis) = match lanes {
            Lanes::Rows => (batch_rank, batch_rank + 1),
            Lanes::Columns => (batch_rank + 1, batch_rank),
        };
        let matrix = |data: *const BF16, to: *mut BF16Pair| PackPairs {
            from: Strided { data, lane: strides[lane_axis], depth: strides[depth_axis] },
            lanes: shape[lane_axis],
            depth: shape[depth_axis],
            to,
        };
        let one = matrix(std::ptr::null(), std::ptr::null_mut());
        let (len, rows) = (one.len(), one.rows());
        let stored = |axis: usize| if strides[axis] == 0 { 1 } else { shape[axis] };
        let matrices: usize = (0..batch_rank).map(stored).product();
        let buffer = CpuBuffer::scratch(matrices.saturating_mul(len).saturating_mul(size_of::<BF16Pair>()))?;
        let (from, to) = (operand.first::<BF16>(), SharedPtr(buffer.ensure()?.as_ptr().cast::<BF16Pair>()));
        let range = Mutex::new(FactorRange::EMPTY);
        parallel_ranges(matrices * rows, (GRAIN / (one.row_len() * size_of::<BF16Pair>()).max(1)).max(1), |part| {
            let (mut row, mut least) = (part.start, FactorRange::EMPTY);
            while row < part.end {
                let (index, first) = (row / rows, row % rows);
                let end = rows.min(first + part.end - row);
                let (mut outer, mut offset) = (index, 0);
                for axis in (0..batch_rank).rev() {
                    offset += (outer % stored(axis)) as isize * strides[axis];
                    outer /= stored(axis);
                }
                let work = matrix(from.offset(offset).cast_const(), to.offset((index * len) as isize));
                // SAFETY: the pair packing contract. *Source*: the operand is in its buffer with all elements that its
                // layout addresses, and the caller of the kernel has borrowed its storage for reading. *Target*: the
                // buffer has `len` pairs for each matrix, and each row is in one part. *Isa*: the processor has
                // `Isa::best()`.
                least = least.join(unsafe { work.pack(Isa::best(), first..end) });
                row += end - first;
            }
            let mut range = lock(&range);
            *range = range.join(least);
        });
        let pairs = one.pairs();
        let mut strides = strides.clone();
        (strides[lane_axis], strides[depth_axis]) = (pairs.lane, pairs.depth);
        let mut step = len as isize;
        for axis in (0..batch_rank).rev() {
            if strides[axis] != 0 {
                strides[axis] = step;
                step *= shape[axis] as isize;
            }
        }
        let layout = Layout::strided(shape.with_axis(depth_axis, shape[depth_axis].div_ceil(2)), strides, 0);
        Ok(PairMatrices { pairs: buffer, layout, range: range.into_inner().unwrap_or_else(PoisonError::into_inner) })
    }

    /// Returns the matrices as an operand with elements of the size of an `f32`.
    fn operand(&self) -> Operand<'_> {
        let base = self.pairs.start().expect("the memory of the pairs must be allocated").as_ptr();
        Operand { base, layout: &self.layout, dtype: DType::F32 }
    }
}
