//! Matrix products on the CPU: C = A·B with any strides, any batch, and one order of summation.
//!
//! This crate is a part of the CPU backend of Pellucid. Most users need the crate `pellucid`.
//!
//! | module | contents |
//! | --- | --- |
//! | `lib` (this file) | shapes, orientation, and the grid of tasks: [`gemm`], [`gemm_batched`], [`multiply`] |
//! | `block` | the blocked loops around the micro-kernel, and the call of the [`Epilogue`] |
//! | `blocks` | the sizes of the blocks; the blocks of k determine the order of summation |
//! | `in_place` | the choice of operands that are read in place, and of the orientation of a product |
//! | `tile` | the micro-kernel, which computes one register tile of C |
//! | `source` | operands of a product, and the panels into which they are packed: [`PackSource`] |
//! | `strided` | strided matrices, the usual operands: [`Strided`] |
//! | `pack` | the packing of strided matrices |
//! | `packed` | operands that are packed once and used by many products: [`PackedPanels`], [`OwnedPanels`] |
//! | `im2col` | operands given by offset lists, as the windows of a convolution are: [`ImplicitIm2col`] |
//! | `offsets` | lists of offsets, and the packing from them: [`OffsetList`], [`PackRuns`] |
//! | `offset_dot` | products of a few rows with such operands, without packing: [`OffsetDotRow`], [`WeightGradDots`] |
//! | `winograd` | the transforms of small tiles in a Winograd convolution: [`TransformTiles`] |
//! | `gemv` | matrix-vector products, which are bound by memory bandwidth |
//! | `kernels` | the kernels of each instruction set, and their selection |
//!
//! The vectors and the instruction sets are in the crate `pellucid-simd`.
//!
//! **Order.** The bits of C depend on (m, n, k) and the values only. They do not depend on the threads, the strides,
//! the batch or the instruction set.
//!
//! - With m, n > 1, each element is one chain of fused multiply-adds over each block of k, and the blocks are added in
//!   order. The blocks are a function of k.
//! - With m = 1 or n = 1, each element is 16 interleaved chains, which a fixed tree reduces (`gemv`).
//!
//! k is never split across threads. No product is skipped, so NaN and infinity propagate.

mod block;
mod blocks;
mod gemv;
mod im2col;
mod in_place;
mod kernels;
mod offset_dot;
mod offsets;
mod pack;
mod packed;
mod source;
mod strided;
mod tile;
mod winograd;

#[cfg(test)]
mod sweep;
#[cfg(test)]
mod tests;

pub use gemv::VIRTUAL_LANES;
pub use im2col::ImplicitIm2col;
pub use offset_dot::{OffsetDotRow, WeightGradDots, sum_virtual_lanes};
pub use offsets::{OffsetList, PackRuns};
pub use packed::{OwnedPanels, PackedPanels};
pub use source::{PackSource, PanelRange};
pub use strided::Strided;
pub use winograd::{TransformTiles, WinogradTransform};

use block::BlockedProduct;
use gemv::{ColumnMatVec, RowMatVec};
use kernels::Kernels;
use pack::PackPanels;
use pellucid_runtime::{scratch, threads};
use pellucid_simd::vector::prefetch_run;
use pellucid_simd::{Element, Isa};
use std::ops::Range;

/// The shape of a product C[m × n] = A[m × k]·B[k × n], or C + A·B.
///
/// Strides are (row, column), in elements, and have any sign. Strides of A and B may be 0 (broadcast).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemm {
    /// Number of rows of A and C.
    pub m: usize,
    /// Number of columns of B and C.
    pub n: usize,
    /// Number of columns of A and of rows of B.
    pub k: usize,
    /// Strides of A.
    pub a_strides: (isize, isize),
    /// Strides of B.
    pub b_strides: (isize, isize),
    /// Strides of C.
    pub c_strides: (isize, isize),
    /// True if the product is added to C, false if it overwrites C.
    pub accumulate: bool,
}

/// The offsets of the matrices of one product of a batch from the common pointers, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// Offset of A.
    pub a: isize,
    /// Offset of B.
    pub b: isize,
    /// Offset of C.
    pub c: isize,
}

/// A finished part of C, still in cache, which an [`Epilogue`] may read and modify in place.
#[derive(Clone, Debug)]
pub struct OutputBlock<T> {
    /// Index of the product in its batch.
    pub batch: usize,
    /// Rows of C in this part.
    pub rows: Range<usize>,
    /// Columns of C in this part.
    pub cols: Range<usize>,
    /// Element (`rows.start`, `cols.start`) of C.
    pub data: *mut T,
    /// Stride between rows, in elements.
    pub row_stride: isize,
    /// Stride between columns, in elements.
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
    /// product of the batch. They arrive from memory while the sums are computed.
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

/// The threads that compute a product. The choice does not change a bit of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The calling thread only.
    One,
    /// The thread pool, if there is enough work.
    Pool,
}

/// The number of multiply-adds that are worth a separate task.
const TASK_MULTIPLY_ADDS: usize = 1 << 19;

/// The number of bytes of each operand of the next product of a batch that are prefetched: enough cache lines that the
/// hardware prefetcher detects a stream and continues it.
///
/// Measured with a batch of 3 MiB and 2 MiB of L2: products of 32 × 32 × 32 take 0.93 of the time. Prefetching whole
/// operands takes longer than none, since demand loads wait for the prefetches.
const PREFETCH_BYTES: usize = 256;

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
/// - *Epilogue*: the epilogue accesses no element of C outside its part.
/// - *Panels*: `packed_b`, if any, are the panels of B of every product, packed for the same instruction set, and no
///   thread writes them during the call.
#[inline]
pub unsafe fn gemm<T: Element>(shape: &Gemm, operands: &GemmOperands<'_, T>, threads: Threads) {
    // SAFETY: the caller guarantees the gemm contract, for the single product of this batch.
    unsafe { gemm_batched(shape, &[Offsets::default()], operands, threads) }
}

/// Computes a batch of products of one shape: the i-th at the offsets `batch[i]` from the pointers.
///
/// # Safety
///
/// - The gemm contract of [`gemm`] holds for every product.
/// - *Disjoint results*: no two products share an element of C.
#[inline]
pub unsafe fn gemm_batched<T: Element>(
    shape: &Gemm,
    batch: &[Offsets],
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
    batch: &[Offsets],
    operands: &GemmOperands<'_, T>,
    threads: Threads,
) {
    let &GemmOperands { a, b, packed_b, c, epilogue } = operands;
    let kernels = Kernels::<T>::for_isa(isa);
    let a = Strided { data: a, lane: shape.a_strides.0, depth: shape.a_strides.1 };
    let b = Strided { data: b, lane: shape.b_strides.1, depth: shape.b_strides.0 };
    let (row_stride, col_stride) = shape.c_strides;
    let c = c.map(|data| OutputMatrix { data, row_stride, col_stride, accumulate: shape.accumulate });
    let packed_b = packed_b.filter(|_| uses_packed_panels::<T>(isa, shape));
    let problem = GemmProblem { kernels, m: shape.m, n: shape.n, k: shape.k, packed_b, epilogue, transposed: false };
    // Vectors are along the rows of C, or, by (A·B)ᵀ = Bᵀ·Aᵀ, along its columns. The products and their order are the
    // same. A single row is computed as the single column of the transpose.
    // A C in scratch is stored by rows, like nearly all other operands of an epilogue.
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
            let problem = GemmProblem { m: shape.n, n: shape.m, transposed: true, ..problem };
            let swapped = |i: usize| Offsets { a: batch[i].b, b: batch[i].a, c: batch[i].c };
            problem.compute(batch.len(), swapped, b, a, c, threads);
        } else {
            problem.compute(batch.len(), |i| batch[i], a, b, c, threads);
        }
    }
}

/// Returns true if a product of this shape is computed from [packed panels](GemmOperands::packed_b) of B where they
/// exist: if C has more than one row and column, the elements of its rows are adjacent, and its transpose would not be
/// computed with fewer vectors.
pub fn uses_packed_panels<T: Element>(isa: Isa, shape: &Gemm) -> bool {
    let lanes = Kernels::<T>::for_isa(isa).lanes;
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
        transposed: false,
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

/// Adds sums of products along the lanes to the 16 virtual lanes (partial sums) of each k index. See
/// [`WeightGradDots`].
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
///   matrix. The width need not be a multiple of a vector.
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
    // SAFETY: the contract of `PackPanels::transpose`. *Source* is its *Range* with contiguous k indices. *Target* is
    // its *Target* and *Row length*. The caller guarantees *Isa*.
    unsafe {
        (Kernels::<T>::for_isa(isa).transpose_panel)(&PackPanels::to_transpose(from, (lanes, width), depth, to, width))
    }
}

/// The matrix C: element (0, 0), its strides in elements, and whether products are added to it.
#[derive(Clone, Copy)]
struct OutputMatrix<T> {
    data: *mut T,
    row_stride: isize,
    col_stride: isize,
    accumulate: bool,
}

// SAFETY: tasks write disjoint parts of C, and *Aliasing* of the gemm contract excludes accesses of other threads.
unsafe impl<T: Send> Sync for OutputMatrix<T> {}

/// A batch of products in the orientation in which they are computed.
///
/// The lanes of A are the rows of C. If C has a single row or a single column, it is a single column (n = 1).
struct GemmProblem<'a, T: 'static> {
    kernels: &'static Kernels<T>,
    m: usize,
    n: usize,
    k: usize,
    packed_b: Option<PackedPanels<T>>,
    epilogue: Option<&'a dyn Epilogue<T>>,
    transposed: bool,
}

impl<T: Element> GemmProblem<'_, T> {
    /// Computes the batch. Splits it into tasks, and C into a grid if the batch is small.
    ///
    /// # Safety
    ///
    /// The contract of [`gemm_batched_for_isa`] holds for the products at `offsets(0..batch)`, with C of `m × n` and
    /// the instruction set of `kernels`.
    #[inline]
    unsafe fn compute(
        &self,
        batch: usize,
        offsets: impl Fn(usize) -> Offsets + Sync,
        a: Strided<T>,
        b: Strided<T>,
        c: Option<OutputMatrix<T>>,
        threads: Threads,
    ) {
        let multiply_adds = self.m.saturating_mul(self.n).saturating_mul(self.k.max(1));
        let tasks = match threads {
            Threads::Pool if multiply_adds.saturating_mul(batch) >= 2 * TASK_MULTIPLY_ADDS => {
                threads::count().min(multiply_adds.saturating_mul(batch) / TASK_MULTIPLY_ADDS)
            }
            _ => 1,
        };
        let prefetch_next = |index: usize| {
            if index + 1 < batch {
                self.prefetch_operands(offsets(index + 1), &a, &b);
            }
        };
        if tasks <= 1 {
            for index in 0..batch {
                prefetch_next(index);
                // SAFETY: the caller guarantees the contract of `gemm_batched_for_isa`. *Region* holds because only
                // this thread works on the batch.
                unsafe { self.compute_rectangle(index, offsets(index), a, b, c, (0..self.m, 0..self.n)) }
            }
            return;
        }
        let grid =
            if batch >= 4 * tasks { TaskGrid { rows: 1, cols: 1 } } else { TaskGrid::new(self.m, self.n, tasks) };
        let parts = grid.rows * grid.cols;
        let (height, width) = (
            self.m.div_ceil(grid.rows).next_multiple_of(self.kernels.rows),
            self.n.div_ceil(grid.cols).next_multiple_of(self.kernels.width()),
        );
        let grain = (TASK_MULTIPLY_ADDS * parts / multiply_adds.max(1)).clamp(1, (batch * parts).div_ceil(tasks));
        threads::parallel_for(batch * parts, grain, |_, task| {
            let (index, part) = (task / parts, task % parts);
            let (i, j) = (part / grid.cols * height, part % grid.cols * width);
            let rows = i.min(self.m)..self.m.min(i + height);
            let cols = j.min(self.n)..self.n.min(j + width);
            if parts == 1 {
                prefetch_next(index);
            }
            // SAFETY: the caller guarantees the contract of `gemm_batched_for_isa`. *Region* holds because the parts of
            // the grid are disjoint, and *Disjoint results* separates the products.
            unsafe { self.compute_rectangle(index, offsets(index), a, b, c, (rows, cols)) }
        });
    }

    /// Prefetches the start of the operands of a product.
    #[inline]
    fn prefetch_operands(&self, offsets: Offsets, a: &Strided<T>, b: &Strided<T>) {
        let len = PREFETCH_BYTES / size_of::<T>();
        prefetch_run(a.data.wrapping_offset(offsets.a), len.min(self.m.saturating_mul(self.k)));
        prefetch_run(b.data.wrapping_offset(offsets.b), len.min(self.k.saturating_mul(self.n)));
    }

    /// Computes one rectangle of one product of the batch, into C or into scratch for the epilogue.
    ///
    /// # Safety
    ///
    /// - The contract of [`gemm_batched_for_isa`] holds for the product at `offsets`.
    /// - *Region*: no other thread accesses the rectangle of C during the call.
    #[inline]
    unsafe fn compute_rectangle(
        &self,
        batch: usize,
        offsets: Offsets,
        a: Strided<T>,
        b: Strided<T>,
        c: Option<OutputMatrix<T>>,
        (rows, cols): (Range<usize>, Range<usize>),
    ) {
        let a = Strided { data: a.data.wrapping_offset(offsets.a), ..a };
        let b = Strided { data: b.data.wrapping_offset(offsets.b), ..b };
        if let Some(c) = c {
            let c = OutputMatrix { data: c.data.wrapping_offset(offsets.c), ..c };
            // SAFETY: the caller guarantees the contract of `gemm_batched_for_isa` for these pointers, and *Region*.
            return unsafe { self.compute_into(batch, a, b, c, rows, cols) };
        }
        let width = blocks::block_columns::<T>(self.k, self.kernels.width()).min(cols.len()).max(1);
        let height = (block::SCRATCH_ELEMENTS / width).next_multiple_of(self.kernels.rows);
        for j in cols.clone().step_by(width) {
            let cols = j..cols.end.min(j + width);
            for i in rows.clone().step_by(height) {
                let rows = i..rows.end.min(i + height);
                scratch::with_buffer(rows.len() * cols.len(), |workspace: *mut T| {
                    let row_stride = cols.len() as isize;
                    let data = workspace.wrapping_offset(-(rows.start as isize * row_stride + cols.start as isize));
                    let c = OutputMatrix { data, row_stride, col_stride: 1, accumulate: false };
                    // SAFETY: the caller guarantees the contract of `gemm_batched_for_isa` for A and B. For C,
                    // *Bounds*, *Aliasing* and *Region* hold because the workspace is exclusive and holds exactly these
                    // rows and columns, with the first element at its start.
                    unsafe { self.compute_into(batch, a, b, c, rows, cols.clone()) }
                });
            }
        }
    }

    /// Computes one rectangle of one product of the batch, given by its own operands and C.
    ///
    /// # Safety
    ///
    /// - The gemm contract of [`gemm`] and *Isa* of [`gemm_batched_for_isa`] hold for the rectangle of these matrices.
    /// - *Region*: no other thread accesses the rectangle of C during the call.
    #[inline]
    unsafe fn compute_into(
        &self,
        batch: usize,
        a: Strided<T>,
        b: Strided<T>,
        c: OutputMatrix<T>,
        rows: Range<usize>,
        cols: Range<usize>,
    ) {
        let product = BlockedProduct {
            a: &a,
            b: &b,
            k: self.k,
            c: c.data,
            c_row_stride: c.row_stride,
            c_col_stride: c.col_stride,
            accumulate: c.accumulate,
            epilogue: self.epilogue,
            batch,
            transposed: self.transposed,
        };
        // SAFETY: the product contract and the contract of `multiply_vector`: *Bounds*, *Panels* and *Aliasing* are
        // *Operands*, and with *Region* they are *C*. The caller guarantees *Isa*. *Packed* follows from *Panels*.
        unsafe {
            if let Some(panels) = &self.packed_b {
                BlockedProduct { b: panels, ..product }.compute_packed(self.kernels, rows, cols);
            } else if self.n == 1 && self.k > 0 && !rows.is_empty() && !cols.is_empty() {
                multiply_vector(self.kernels, a, b, c, rows.clone(), self.k);
                product.finish(rows, cols);
            } else {
                product.compute(self.kernels, rows, cols);
            }
        }
    }
}

/// The numbers of tasks along the rows and the columns of C.
struct TaskGrid {
    rows: usize,
    cols: usize,
}

impl TaskGrid {
    /// Returns a grid of at least `tasks` parts that are as square as possible: these read the least of A and B.
    fn new(m: usize, n: usize, tasks: usize) -> Self {
        let shape = |rows: usize| Self { rows, cols: tasks.div_ceil(rows) };
        let reads = |grid: &Self| m.div_ceil(grid.rows) + n.div_ceil(grid.cols);
        (1..=tasks).map(shape).min_by_key(reads).unwrap_or(Self { rows: 1, cols: 1 })
    }
}

/// Computes y[rows] = A[rows × k]·x, or y + A·x. x is the first lane of `x`, and y the first column of `y`.
///
/// # Safety
///
/// - *Operands*: `a` has the lanes `rows`, and `x` one lane, for `k > 0` k indices. No thread writes them
///   during the call.
/// - *C*: the elements `rows` of y are valid for reads and writes at their stride, are distinct, and do not overlap the
///   operands. No other thread accesses them during the call.
/// - *Isa*: the processor has the instruction set of `kernels`.
unsafe fn multiply_vector<T: Element>(
    kernels: &Kernels<T>,
    a: Strided<T>,
    x: Strided<T>,
    y: OutputMatrix<T>,
    rows: Range<usize>,
    k: usize,
) {
    let OutputMatrix { data: y, row_stride: y_stride, accumulate, .. } = y;
    let x_len = if x.depth == 1 { 0 } else { k };
    let a_len = match a {
        Strided { depth: 1, .. } => 0,
        Strided { lane: 1, .. } => ColumnMatVec::<T>::SCRATCH,
        _ => k,
    };
    let work = |workspace: *mut T| {
        // SAFETY: the workspace has `a_len` elements for A and `x_len` elements for x after them, which are the targets
        // of the gathers, and *Scratch* of the column product. *Operands* covers every read and *C* every write of the
        // row and column product contracts. The caller guarantees *Isa*.
        unsafe {
            let x = if x_len == 0 { x.data } else { gather_contiguous(x.data, x.depth, k, workspace.add(a_len)) };
            let (y, count) = (y.wrapping_offset(rows.start as isize * y_stride), rows.len());
            let matrix = a.element_ptr(rows.start, 0);
            match a {
                Strided { depth: 1, lane: a_row_stride, .. } => {
                    (kernels.row_matvec)(&RowMatVec {
                        rows: count,
                        depth: k,
                        a: matrix,
                        a_row_stride,
                        x,
                        y,
                        y_stride,
                        accumulate,
                    });
                }
                Strided { lane: 1, depth: a_col_stride, .. } => {
                    (kernels.column_matvec)(&ColumnMatVec {
                        rows: count,
                        depth: k,
                        a: matrix,
                        a_col_stride,
                        x,
                        y,
                        y_stride,
                        accumulate,
                        partial: workspace,
                    });
                }
                _ => {
                    for i in rows.clone() {
                        let a = gather_contiguous(a.element_ptr(i, 0), a.depth, k, workspace);
                        let y = y.wrapping_offset((i - rows.start) as isize * y_stride);
                        (kernels.row_matvec)(&RowMatVec {
                            rows: 1,
                            depth: k,
                            a,
                            a_row_stride: 0,
                            x,
                            y,
                            y_stride,
                            accumulate,
                        });
                    }
                }
            }
        }
    };
    if x_len + a_len == 0 { work(std::ptr::null_mut()) } else { scratch::with_buffer(x_len + a_len, work) }
}

/// Copies a strided vector to contiguous memory, and returns its start.
///
/// # Safety
///
/// - *Reads*: `from` is valid for reads of `count` elements at `stride`.
/// - *Writes*: `to` is valid for writes of `count` elements, which do not overlap the source.
unsafe fn gather_contiguous<T: Element>(from: *const T, stride: isize, count: usize, to: *mut T) -> *const T {
    for p in 0..count {
        // SAFETY: `p < count`, which *Reads* and *Writes* cover.
        unsafe { *to.add(p) = *from.wrapping_offset(p as isize * stride) }
    }
    to
}
