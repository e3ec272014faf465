//! Matrix products on the CPU: C = A·B with any strides, any batch, and one order of summation.
//!
//! This crate is a part of the CPU backend of Pellucid. Most users need the crate `pellucid`.
//!
//! | module | contents |
//! | --- | --- |
//! | `lib` (this file) | shapes and orientation: [`gemm`], [`gemm_batched`], [`multiply`] |
//! | `problem` | the grid of tasks, and the choice of the loops for each part of C |
//! | `blocked_product` | the blocked loops around the micro-kernel, and the call of the [`Epilogue`] |
//! | `block_sizes` | the sizes of the blocks; the blocks of k determine the order of summation |
//! | `in_place` | the choice of operands that are read in place, and of the orientation of a product |
//! | `compute_tile` | the packing of A, and the tiles of C that the loops compute |
//! | `panel_layout` | the panels that a tile reads |
//! | `register_tile` | the micro-kernel, which computes one register tile of C |
//! | `tile_unit` | the micro-kernel for the tile registers of AMX |
//! | `source` | operands of a product, and the panels into which they are packed: [`PackSource`] |
//! | `strided` | strided matrices, the usual operands: [`Strided`] |
//! | `pack` | the packing of strided matrices |
//! | `factor_groups` | the conversion of matrices to groups of factors that one instruction multiplies: [`PackGroups`] |
//! | `bf16_pairs`, `i8_quads` | pairs of `bf16` factors, and quads of `i8` factors |
//! | `packed_panels` | operands that are packed once and used by many products: [`PackedPanels`], [`OwnedPanels`] |
//! | `im2col` | operands given by offset lists, such as the windows of a convolution: [`ImplicitIm2col`] |
//! | `offsets` | lists of offsets, and the packing from them: [`OffsetList`], [`PackRuns`] |
//! | `offset_dot` | products of a few rows with such operands, without packing: [`OffsetDotRow`], [`WeightGradDots`] |
//! | `winograd` | the transforms of small tiles in a Winograd convolution: [`TransformTiles`] |
//! | `gemv` | matrix-vector products, which are bound by memory bandwidth |
//! | `view` | views of matrices and their products, without `unsafe` for the caller: [`MatRef`], [`MatMut`] |
//! | `kernels` | the kernels of each instruction set, and their selection |
//!
//! The vectors and the instruction sets are in the crate `pellucid-simd`.
//!
//! **Order.** The bits of C depend only on (m, n, k) and the values of A, B and the initial C. They do not depend on
//! the threads, the strides, the batch or, with the exception of [`Isa::Amx`], the instruction set.
//!
//! - With m, n > 1, each element is the sum of one chain of fused multiply-adds for each block of k, added in the order
//!   of the blocks. The blocks depend only on k.
//! - Products of quads of `i8` are exact modulo 2³², so their order does not matter.
//! - With [`Isa::Amx`], products of pairs of `bf16` with m, n > 1 divide each block of k into steps of 32 k indices.
//!   Two chains of fused multiply-adds over the even and the odd k indices of a step start at zero. Their sum is added
//!   to C, step after step. [`pair_isa`] selects [`Isa::Amx`] by (m, n, k).
//! - With m = 1 or n = 1, each element is 16 interleaved chains, which a fixed tree reduces (`gemv`).
//!
//! k is never split across threads. No product is skipped, so NaN and infinity propagate.

mod bf16_pairs;
mod block_sizes;
mod blocked_product;
mod compute_tile;
mod factor_groups;
mod gemv;
mod i8_quads;
mod im2col;
mod in_place;
mod kernels;
mod offset_dot;
mod offsets;
mod pack;
mod packed_panels;
mod panel_layout;
mod problem;
mod register_tile;
mod source;
mod strided;
mod tile_unit;
mod view;
mod winograd;

#[cfg(test)]
mod sweep;
#[cfg(test)]
mod tests;

pub use bf16_pairs::{pair_isa, round_to_bf16};
pub use factor_groups::{FactorElement, FactorRange, PackGroups};
pub use gemv::VIRTUAL_LANES;
pub use i8_quads::quad_isa;
pub use im2col::ImplicitIm2col;
pub use offset_dot::{OffsetDotRow, WeightGradDots, sum_virtual_lanes};
pub use offsets::{OffsetList, PackRuns};
pub use packed_panels::{OwnedPanels, PackedPanels};
pub use source::{PackSource, PanelRange};
pub use strided::Strided;
pub use view::{MatMut, MatRef, TILE, Tile};
pub use winograd::{TransformTiles, WinogradTransform};

use blocked_product::BlockedProduct;
use kernels::Kernels;
use pack::PackPanels;
use pellucid_simd::{Element, Isa};
use problem::{GemmProblem, OutputMatrix};
use std::ops::Range;

/// The shape of a product C[m × n] = A[m × k]·B[k × n], or C + A·B.
///
/// Strides are (row, column), in elements, and have any sign. Strides of A and B may be 0 (broadcast).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemm {
    /// The number of rows of A and C.
    pub m: usize,
    /// The number of columns of B and C.
    pub n: usize,
    /// The number of columns of A and of rows of B.
    pub k: usize,
    /// The strides of A.
    pub a_strides: (isize, isize),
    /// The strides of B.
    pub b_strides: (isize, isize),
    /// The strides of C.
    pub c_strides: (isize, isize),
    /// True if the product is added to C, false if it overwrites C.
    pub accumulate: bool,
}

/// The offsets of the matrices of one product of a batch, in elements, from the pointers that all products share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// The offset of A.
    pub a: isize,
    /// The offset of B.
    pub b: isize,
    /// The offset of C.
    pub c: isize,
}

/// A batch of products: one for each point of an index space.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProductBatch<'a> {
    /// The axes of the index space, outermost first: each has a length, and the offsets from one index to the next.
    /// Without axes, the batch is one product at offset 0.
    pub axes: &'a [(usize, Offsets)],
}

impl ProductBatch<'_> {
    /// Returns the number of products.
    pub fn count(&self) -> usize {
        self.axes.iter().map(|(len, _)| len).product()
    }

    /// Returns the offsets of the product with this index, which must be less than [`count`](Self::count).
    #[inline]
    fn offsets(&self, mut index: usize) -> Offsets {
        let mut at = Offsets::default();
        for (axis, &(len, step)) in self.axes.iter().enumerate().rev() {
            let i = if axis == 0 { index } else { index % len } as isize;
            at = Offsets { a: at.a + i * step.a, b: at.b + i * step.b, c: at.c + i * step.c };
            index = if axis == 0 { 0 } else { index / len };
        }
        at
    }
}

/// A finished part of C, still in cache, which an [`Epilogue`] may read and modify in place.
#[derive(Clone, Debug)]
pub struct OutputBlock<T> {
    /// The index of the product in its batch.
    pub batch: usize,
    /// The rows of C in this part.
    pub rows: Range<usize>,
    /// The columns of C in this part.
    pub cols: Range<usize>,
    /// Element (`rows.start`, `cols.start`) of C.
    pub data: *mut T,
    /// The stride between rows, in elements.
    pub row_stride: isize,
    /// The stride between columns, in elements.
    pub col_stride: isize,
}

/// An operation on finished sums: bias, activation, conversion to another dtype.
pub trait Epilogue<T>: Sync {
    /// Processes a part of C.
    ///
    /// Each element of C is in exactly one part. The shape of the parts is unspecified, and several threads call this
    /// method. If C is `None`, each part is computed in scratch and passed to this method only.
    fn finish(&self, part: OutputBlock<T>);

    /// Prefetches the operands that [`finish`](Self::finish) accesses in addition to C, for some rows and columns of a
    /// product of the batch, so that they are loaded from memory while the sums are computed.
    fn prefetch_epilogue(&self, _batch: usize, _rows: Range<usize>, _cols: Range<usize>) {}
}

impl<T, F: Fn(OutputBlock<T>) + Sync> Epilogue<T> for F {
    fn finish(&self, part: OutputBlock<T>) {
        self(part);
    }
}

/// The matrices of a product, at offset 0 of its batch, and the operation on its finished sums.
pub struct GemmOperands<'a, T> {
    /// Element (0, 0) of A.
    pub a: *const T,
    /// Element (0, 0) of B.
    pub b: *const T,
    /// The panels of B, if they were packed before. They replace B where this [is faster](uses_packed_panels).
    pub packed_b: Option<PackedPanels<T>>,
    /// Element (0, 0) of C. Without C, the product is computed in scratch for its epilogue only.
    pub c: Option<*mut T>,
    /// The operation on the finished sums, if any.
    pub epilogue: Option<&'a dyn Epilogue<T>>,
}

/// The threads that compute a product. The result is bit-identical for both choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The calling thread only.
    One,
    /// The thread pool, or the calling thread if there is too little work.
    Pool,
}

/// Computes the product of `shape`.
///
/// # Safety
///
/// The *gemm contract*:
///
/// - *Bounds*: every element of A and B that the shape and the strides address is valid for reads, and every element of
///   C for reads and writes.
/// - *Aliasing*: the elements of C are distinct and overlap neither A nor B. No other thread writes A or B, or accesses
///   C, during the call.
/// - *Epilogue*: the epilogue accesses no element of C outside its part, and computes no product.
/// - *Panels*: `packed_b`, if any, are the panels of B of every product, packed for the same instruction set, and no
///   thread writes them during the call.
#[inline]
pub unsafe fn gemm<T: Element>(shape: &Gemm, operands: &GemmOperands<'_, T>, threads: Threads) {
    // SAFETY: the caller guarantees the gemm contract, for the single product of this batch.
    unsafe { gemm_batched(shape, &ProductBatch::default(), operands, threads) }
}

/// Computes a batch of products with the same shape.
///
/// # Safety
///
/// - The gemm contract of [`gemm`] holds for every product.
/// - *Disjoint results*: no two products share an element of C.
#[inline]
pub unsafe fn gemm_batched<T: Element>(
    shape: &Gemm,
    batch: &ProductBatch<'_>,
    operands: &GemmOperands<'_, T>,
    threads: Threads,
) {
    // SAFETY: the caller guarantees the gemm contract and *Disjoint results*. The processor has `Isa::best()`.
    unsafe { gemm_batched_for_isa(Isa::best(), shape, batch, operands, threads) }
}

/// Computes [`gemm_batched`] with the kernels of one instruction set.
///
/// # Safety
///
/// - The gemm contract of [`gemm`] holds for every product.
/// - *Disjoint results*: no two products share an element of C.
/// - *Isa*: the processor has the instruction set.
pub unsafe fn gemm_batched_for_isa<T: Element>(
    isa: Isa,
    shape: &Gemm,
    batch: &ProductBatch<'_>,
    operands: &GemmOperands<'_, T>,
    threads: Threads,
) {
    // SAFETY: the caller guarantees the contract, with *Isa* for these kernels.
    unsafe { gemm_batched_by(Kernels::for_isa(isa), shape, batch, operands, threads) }
}

/// Computes [`gemm_batched`] with these kernels.
///
/// # Safety
///
/// The contract of [`gemm_batched_for_isa`] holds for the instruction set of the kernels.
unsafe fn gemm_batched_by<T: Element>(
    kernels: &'static Kernels<T>,
    shape: &Gemm,
    batch: &ProductBatch<'_>,
    operands: &GemmOperands<'_, T>,
    threads: Threads,
) {
    let &GemmOperands { a, b, packed_b, c, epilogue } = operands;
    let a = Strided { data: a, lane: shape.a_strides.0, depth: shape.a_strides.1 };
    let b = Strided { data: b, lane: shape.b_strides.1, depth: shape.b_strides.0 };
    let (row_stride, col_stride) = shape.c_strides;
    let c = c.map(|data| OutputMatrix { data, row_stride, col_stride, accumulate: shape.accumulate });
    let packed_b = packed_b.filter(|_| is_faster_with_panels(kernels.lanes, shape));
    let problem = GemmProblem { kernels, m: shape.m, n: shape.n, k: shape.k, packed_b, epilogue, is_transposed: false };
    // Vectors are along the rows of C, or, by (A·B)ᵀ = Bᵀ·Aᵀ, along its columns. Both orientations add the same
    // products in the same order. A single row is computed as the single column of the transpose. A C in scratch is
    // stored by rows, like nearly all other operands of an epilogue.
    let (c_row_stride, c_col_stride) = c.map_or((shape.n as isize, 1), |c| (c.row_stride, c.col_stride));
    let swap_operands = shape.m == 1
        || shape.n > 1
            && packed_b.is_none()
            && in_place::cost(kernels, (shape.n, shape.m, shape.k), &a, c_row_stride)
                < in_place::cost(kernels, (shape.m, shape.n, shape.k), &b, c_col_stride);
    // SAFETY: the caller guarantees the gemm contract, *Disjoint results* and *Isa*. Swapping the operands, the strides
    // of C and m and n together addresses the same elements.
    unsafe {
        if swap_operands {
            let c = c.map(|c| OutputMatrix { row_stride: c.col_stride, col_stride: c.row_stride, ..c });
            let problem = GemmProblem { m: shape.n, n: shape.m, is_transposed: true, ..problem };
            let swapped = |i: usize| {
                let Offsets { a, b, c } = batch.offsets(i);
                Offsets { a: b, b: a, c }
            };
            problem.compute(batch.count(), swapped, b, a, c, threads);
        } else {
            problem.compute(batch.count(), |i| batch.offsets(i), a, b, c, threads);
        }
    }
}

/// Returns true if a product of this shape is computed from [packed panels](GemmOperands::packed_b) of B where they
/// exist: if C has more than one row and more than one column, the elements of its rows are adjacent, and its transpose
/// would not be computed with fewer vectors.
pub fn uses_packed_panels<T: Element>(isa: Isa, shape: &Gemm) -> bool {
    is_faster_with_panels(Kernels::<T>::for_isa(isa).lanes, shape)
}

/// Returns [`uses_packed_panels`] for vectors of `lanes` elements.
fn is_faster_with_panels(lanes: usize, shape: &Gemm) -> bool {
    let (vectors, transposed) = (shape.m * shape.n.div_ceil(lanes), shape.n * shape.m.div_ceil(lanes));
    shape.m > 1 && shape.n > 1 && shape.c_strides.1 == 1 && vectors <= transposed
}

/// Computes the elements `rows × cols` of C = A·B, or C + A·B, on this thread, for any two operands.
///
/// `c` is element (0, 0) of C. The rows of C are contiguous, and `c_row_stride` is the stride between them.
///
/// # Safety
///
/// - *Operands*: `a` has the lanes `rows`, and `b` the lanes `cols`, for all k indices. No thread writes their
///   memory during the call.
/// - *C*: the elements `rows × cols` of C are valid for reads and writes, are distinct, and do not overlap the
///   operands. No other thread accesses them during the call.
/// - *Isa*: the processor has the instruction set.
pub unsafe fn multiply<T: Element>(
    isa: Isa,
    a: &dyn PackSource<T>,
    b: &dyn PackSource<T>,
    (rows, cols, k): (Range<usize>, Range<usize>, usize),
    c: *mut T,
    c_row_stride: isize,
    accumulate: bool,
) {
    let product = BlockedProduct {
        a,
        b,
        k,
        c,
        c_row_stride,
        c_col_stride: 1,
        accumulate,
        epilogue: None,
        batch: 0,
        is_transposed: false,
    };
    // SAFETY: the caller guarantees *Operands*, *C* and *Isa*, which are the product contract of `BlockedProduct`.
    unsafe { product.compute(Kernels::<T>::for_isa(isa), rows, cols) }
}

/// Computes one row of a product with an operand that is given by offset lists and not packed. See [`OffsetDotRow`].
///
/// # Safety
///
/// - The offset dot contract of [`OffsetDotRow`] holds.
/// - *Isa*: the processor has the instruction set.
pub unsafe fn offset_dot_row<T: Element>(isa: Isa, work: &OffsetDotRow<'_, T>) {
    // SAFETY: the caller guarantees the offset dot contract of `OffsetDotRow` and *Isa*.
    unsafe { (Kernels::<T>::for_isa(isa).offset_dot_row)(work) }
}

/// Copies rows of equal length from a list of offsets. See [`PackRuns`].
///
/// # Safety
///
/// - The run packing contract of [`PackRuns`] holds.
/// - *Isa*: the processor has the instruction set.
pub unsafe fn pack_runs<T: Element>(isa: Isa, work: &PackRuns<'_, T>) {
    // SAFETY: the caller guarantees the run packing contract of `PackRuns` and *Isa*.
    unsafe { (Kernels::<T>::for_isa(isa).pack_runs)(work) }
}

/// Computes the dot products of a vector with the lanes of each k index, and adds them to the 16 partial sums of this k
/// index. See [`WeightGradDots`].
///
/// # Safety
///
/// - The gradient dot contract of [`WeightGradDots`] holds.
/// - *Isa*: the processor has the instruction set.
pub unsafe fn weight_grad_dots<T: Element>(isa: Isa, work: &WeightGradDots<'_, T>) {
    // SAFETY: the caller guarantees the gradient dot contract of `WeightGradDots` and *Isa*.
    unsafe { (Kernels::<T>::for_isa(isa).weight_grad_dots)(work) }
}

/// Transforms Winograd tiles. Returns true if all results are finite. See [`TransformTiles`].
///
/// # Safety
///
/// - The transform contract of [`TransformTiles`] holds.
/// - *Isa*: the processor has the instruction set.
pub unsafe fn transform_tiles<T: Element>(isa: Isa, work: &TransformTiles<'_, T>) -> bool {
    // SAFETY: the caller guarantees the transform contract of `TransformTiles` and *Isa*.
    unsafe { (Kernels::<T>::for_isa(isa).transform_tiles)(work) }
}

/// Transposes a matrix: `to[p·width + i] = from[i, p]`, with zeros in the lanes `lanes..width`.
///
/// # Safety
///
/// - *Source*: `from.depth` is 1, and `from` is valid for reads of `lanes` lanes of `depth` elements. No thread writes
///   them during the call.
/// - *Target*: `width ≥ lanes`, and `to` is valid for writes of `depth · width` elements, which do not overlap the
///   matrix. The width need not be a multiple of the vector length.
/// - *Isa*: the processor has the instruction set.
pub unsafe fn transpose<T: Element>(
    isa: Isa,
    from: Strided<T>,
    (lanes, depth): (usize, usize),
    width: usize,
    to: *mut T,
) {
    debug_assert!(
        from.depth == 1 && lanes <= width,
        "`from.depth` must be 1 and the width at least the number of lanes: {lanes} lanes, width {width}, {from:?}"
    );
    // SAFETY: the contract of `PackPanels::transpose`. Its *Range*, with contiguous k indices, follows from *Source*,
    // and its *Target* and *Row length* follow from *Target*. The caller guarantees *Isa*.
    unsafe {
        (Kernels::<T>::for_isa(isa).transpose_panel)(&PackPanels::to_transpose(from, (lanes, width), depth, to, width))
    }
}
