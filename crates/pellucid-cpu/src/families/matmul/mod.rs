//! `MatMul`: batched matrix products with an optional epilogue.
//!
//! [`pellucid_gemm`] multiplies matrices of `f32`, `f64`, `i32`, `i64`, pairs of `bf16` and quads of `i8`. Other
//! factors are converted ([`PreparedFactors`]); the product is rounded or wrapped once, at the end. An epilogue that
//! reads the sums of small factors runs before this rounding.

mod factors;
mod weights;

#[cfg(test)]
mod tests;

pub(crate) use weights::{PackedWeight, WeightOfProduct};

use crate::family::CpuFamily;
use crate::operand::{Operand, Operands};
use crate::program::MapEpilogue;
use crate::strided::{self, StridedAxes, StridedAxis};
use factors::{PreparedFactors, ProductArray};
use pellucid_gemm::{
    Epilogue, Gemm, GemmOperands, Offsets, OutputBlock, ProductBatch, Threads, gemm_batched_for_isa, pair_isa, quad_isa,
};
use pellucid_ir::kernel::{Map, MatMul};
use pellucid_ir::{DType, Error, Layout, Result, Shape, are_one_axis};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_simd::vector::{BF16Pair, I8Quad};
use pellucid_simd::{Element, Isa};
use std::ops::Range;

impl CpuFamily for MatMul {
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        run_matmul(self, inputs, outputs, None)
    }
}

/// Runs a matrix product and its epilogue. `inputs` are A, B and the other inputs of the epilogue. `weight` holds the
/// packed panels of B, if B was packed before.
pub(crate) fn run_matmul(
    kernel: &MatMul,
    inputs: &[Operand<'_>],
    outputs: &[Operand<'_>],
    weight: Option<&PackedWeight>,
) -> Result<()> {
    let (a, b, out) = (&inputs[0], &inputs[1], &outputs[0]);
    let dtype = kernel.product_dtype(a.dtype);
    let factors = PreparedFactors::new(a, b, dtype)?;
    let arrays = factors.arrays();
    let sums = arrays[0].dtype;
    let Some(program) = &kernel.epilogue else {
        return multiply_rounded(&factors, out, weight);
    };
    let map = Map { program: program.clone(), params: kernel.params.clone() };
    let others = &inputs[2..];
    let addresses = |o: &Operand<'_>| ProductArray::new(o).addresses();
    let avoids_factors = |o: &Operand<'_>| {
        let output = addresses(o);
        let ranges = arrays.each_ref().map(ProductArray::addresses);
        ranges.iter().all(|factor| factor.start >= output.end || output.start >= factor.end)
    };
    // The product is complete and rounded to its dtype before the epilogue reads it. If an output has the same dtype
    // and is not also an input of the epilogue, the product is stored in that output.
    let have_same_start = |i: &Operand<'_>, o: &Operand<'_>| addresses(i).start == addresses(o).start;
    let stored = outputs.iter().find(|o| o.dtype == dtype && !others.iter().any(|i| have_same_start(i, o)));
    if dtype == sums && outputs.iter().all(avoids_factors) {
        if program.is_identity() {
            return multiply(&factors, Ok(out), None, weight);
        }
        // The epilogue reads each part of the product while it is in cache.
        let epilogue = MapEpilogue::new(&map, others, outputs)?;
        return multiply(&factors, stored.ok_or(out.shape()), Some(epilogue), weight);
    }
    let dense = Layout::contiguous(out.shape().clone());
    let mut c = stored.copied().unwrap_or(Operand { base: std::ptr::null_mut(), layout: &dense, dtype });
    let scratch;
    if stored.is_none_or(|o| !avoids_factors(o)) {
        scratch = CpuBuffer::scratch(dense.shape().size().saturating_mul(dtype.size()))?;
        c = Operand { base: scratch.ensure()?.as_ptr(), layout: &dense, dtype };
    }
    multiply_rounded(&factors, &c, weight)?;
    let operands: Operands<'_> = [c].into_iter().chain(others.iter().copied()).collect();
    map.run(&operands, outputs)
}

/// The destination of a product, or the shape of a product that only the epilogue reads.
type ProductTarget<'a> = std::result::Result<&'a Operand<'a>, &'a Shape>;

/// Computes C = A·B, rounded to the dtype of C.
fn multiply_rounded(factors: &PreparedFactors<'_>, c: &Operand<'_>, weight: Option<&PackedWeight>) -> Result<()> {
    match factors.arrays()[0].dtype {
        dtype if dtype == c.dtype => multiply(factors, Ok(c), None, weight),
        dtype => multiply(factors, Err(c.shape()), Some(MapEpilogue::cast(dtype, c)), weight),
    }
}

/// Computes C = A·B and runs the epilogue.
fn multiply(
    factors: &PreparedFactors<'_>,
    c: ProductTarget<'_>,
    epilogue: Option<MapEpilogue<'_>>,
    weight: Option<&PackedWeight>,
) -> Result<()> {
    let arrays = &factors.arrays();
    let best = Isa::best();
    match (factors, arrays[0].dtype) {
        (PreparedFactors::Pairs(_), _) => {
            let ((m, pairs, _), (_, n, _)) = (arrays[0].matrix(), arrays[1].matrix());
            multiply_as::<BF16Pair>(pair_isa(best, (m, n, 2 * pairs)), arrays, c, epilogue, None);
        }
        (PreparedFactors::Quads(_), _) => {
            let ((m, quads, _), (_, n, _)) = (arrays[0].matrix(), arrays[1].matrix());
            multiply_as::<I8Quad>(quad_isa(best, (m, n, 4 * quads)), arrays, c, epilogue, None);
        }
        (_, DType::F32) => multiply_as::<f32>(best, arrays, c, epilogue, weight),
        (_, DType::F64) => multiply_as::<f64>(best, arrays, c, epilogue, weight),
        (_, DType::I32) => multiply_as::<i32>(best, arrays, c, epilogue, None),
        (_, DType::I64) => multiply_as::<i64>(best, arrays, c, epilogue, None),
        (_, dtype) => return Err(Error::dtypes("matmul", [dtype], "convert booleans to a numeric dtype first")),
    }
    Ok(())
}

/// Computes C = A·B for elements of type `T`, which have the size of the dtype of all arrays.
fn multiply_as<T: Element>(
    isa: Isa,
    [a, b]: &[ProductArray<'_>; 2],
    c: ProductTarget<'_>,
    mut epilogue: Option<MapEpilogue<'_>>,
    weight: Option<&PackedWeight>,
) {
    let shape = c.map_or_else(|shape| shape, |c| c.shape());
    if shape.contains(&0) {
        return;
    }
    let batch_rank = shape.rank() - 2;
    let c = c.ok().map(ProductArray::new);
    let ((m, k, a_strides), (_, n, b_strides)) = (a.matrix(), b.matrix());
    let c_strides = c.as_ref().map_or((n as isize, 1), |c| c.matrix().2);
    let mut gemm = Gemm { m, n, k, a_strides, b_strides, c_strides, accumulate: false };
    let stride = |array: &ProductArray<'_>, axis: usize| array.broadcast_stride(axis, batch_rank + 2);
    let steps = |axis: usize| [stride(a, axis), stride(b, axis), c.as_ref().map_or(0, |c| stride(c, axis))];
    let mut batch: List<(usize, [isize; 3]), 6> = (0..batch_rank).map(|axis| (shape[axis], steps(axis))).collect();
    // Products with the same B are one product with more rows. Therefore a batch axis along which B is broadcast is
    // merged into the rows of A and C (folded), if their strides permit it. For m, n > 1 the order of summation depends
    // on k and `isa` alone, so folding changes no bit.
    while let Some(&(len, [x, y, z])) = batch.last() {
        let extends_rows = |stride: isize, rows: isize| are_one_axis(stride, rows, gemm.m);
        let is_foldable = y == 0 && extends_rows(x, a_strides.0) && (c.is_none() || extends_rows(z, c_strides.0));
        if len == 1 || m > 1 && n > 1 && is_foldable && epilogue.as_mut().is_none_or(MapEpilogue::fold) {
            gemm.m *= len;
            batch.pop();
        } else {
            break;
        }
    }
    let mut axes: StridedAxes<[isize; 3]> =
        batch.iter().filter(|&&(len, _)| len != 1).map(|&(len, strides)| StridedAxis { len, strides }).collect();
    strided::merge(&mut axes);
    let axis = |axis: &StridedAxis<[isize; 3]>| {
        let [a, b, c] = axis.strides;
        (axis.len, Offsets { a, b, c })
    };
    let axes: List<(usize, Offsets), 6> = axes.iter().map(axis).collect();
    let operands = GemmOperands {
        a: a.first::<T>(),
        b: b.first::<T>(),
        packed_b: weight.and_then(PackedWeight::panels),
        c: c.as_ref().map(ProductArray::first::<T>),
        epilogue: epilogue.as_ref().map(|epilogue| -> &dyn Epilogue<T> { epilogue }),
    };
    // SAFETY: all elements of an operand are in its buffer, and the rule of the family has accepted the shapes, so
    // every element that the shape and the strides address is valid. C is not broadcast, so its elements are distinct,
    // also between two products of the batch. C and the outputs of the epilogue overlap no factor: `run_matmul` ensures
    // it if there is an epilogue, and otherwise the caller of the kernel passes no such output. The caller also holds
    // the borrow words of all storages, so no other thread uses the operands. *Panels*: a weight belongs to the single
    // matrix of this version of B, is packed for `Isa::best()`, and is never written again. *Isa*: `best`,
    // `pair_isa` and `quad_isa` return an instruction set of this processor.
    unsafe { gemm_batched_for_isa(isa, &gemm, &ProductBatch { axes: &axes }, &operands, Threads::Pool) }
}

impl<T: Element> Epilogue<T> for MapEpilogue<'_> {
    fn finish(&self, part: OutputBlock<T>) {
        let size = size_of::<T>() as isize;
        let steps = [part.row_stride * size, part.col_stride * size];
        // SAFETY: the part is within the product, and its first element is at `part.data`. Each element of the product
        // is in one part, which one thread finishes, so no other thread uses the outputs of this part. No thread writes
        // an input, except that an output may have the address and the layout of an input.
        unsafe { self.run(part.batch, part.rows, part.cols, part.data.cast(), steps) }
    }

    fn prefetch_epilogue(&self, batch: usize, rows: Range<usize>, cols: Range<usize>) {
        self.prefetch(batch, rows, cols);
    }
}
