//! A batch of products in one orientation: the grid of tasks, and the choice of the loops for each part of C.

use super::block_sizes;
use super::blocked_product::{self, BlockedProduct};
use super::gemv::{ColumnMatVec, RowMatVec};
use super::kernels::Kernels;
use super::packed_panels::PackedPanels;
use super::strided::Strided;
use super::{Epilogue, Offsets, Threads};
use pellucid_runtime::{scratch, threads};
use pellucid_simd::Element;
use pellucid_simd::vector::prefetch_run;
use std::ops::Range;

/// The number of multiply-adds that justifies a separate task.
const TASK_MULTIPLY_ADDS: usize = 1 << 19;

/// The number of bytes that are prefetched from each operand of the next product in a batch: enough cache lines for the
/// hardware prefetcher to detect a stream and continue it.
///
/// Measured with a batch of 3 MiB and 2 MiB of L2: products of 32 × 32 × 32 take 0.93 of the time without prefetch.
/// Prefetching entire operands is slower than no prefetch, since demand loads wait for the prefetches.
const PREFETCH_BYTES: usize = 256;

/// The matrix C: element (0, 0), its strides in elements, and whether products are added to it.
#[derive(Clone, Copy)]
pub(crate) struct OutputMatrix<T> {
    pub(crate) data: *mut T,
    pub(crate) row_stride: isize,
    pub(crate) col_stride: isize,
    pub(crate) accumulate: bool,
}

// SAFETY: tasks write disjoint parts of C, and *Aliasing* of the gemm contract excludes accesses of other threads.
unsafe impl<T: Send> Sync for OutputMatrix<T> {}

/// A batch of products in the orientation in which they are computed.
///
/// The lanes of A are the rows of C. If the C of the caller has a single row, the C of this problem is its transpose, a
/// single column (n = 1).
pub(crate) struct GemmProblem<'a, T: 'static> {
    pub(crate) kernels: &'static Kernels<T>,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) packed_b: Option<PackedPanels<T>>,
    pub(crate) epilogue: Option<&'a dyn Epilogue<T>>,
    pub(crate) is_transposed: bool,
}

impl<T: Element> GemmProblem<'_, T> {
    /// Computes the batch on several threads if there is enough work. If there are few products, each C is divided into
    /// a grid of tasks.
    ///
    /// # Safety
    ///
    /// The contract of [`gemm_batched_for_isa`] holds for the products at `offsets(0..batch)`, with C of `m × n` and
    /// the instruction set of `kernels`.
    #[inline]
    pub(crate) unsafe fn compute(
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

    /// Prefetches the first elements of the operands A and B of a product.
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
        let width = block_sizes::block_columns::<T>(self.k, self.kernels.width()).min(cols.len()).max(1);
        let height = (blocked_product::SCRATCH_ELEMENTS / width).next_multiple_of(self.kernels.rows);
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
            is_transposed: self.is_transposed,
        };
        // SAFETY: the product contract and the contract of `multiply_vector`: *Bounds*, *Panels* and *Aliasing* imply
        // *Operands*, and together with *Region* they imply *C*. The caller guarantees *Isa*. *Packed* follows from
        // *Panels*.
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

/// The numbers of tasks along the rows and along the columns of C.
struct TaskGrid {
    rows: usize,
    cols: usize,
}

impl TaskGrid {
    /// Returns a grid of at least `tasks` parts that are as square as possible. Square parts read the fewest elements
    /// of A and B.
    fn new(m: usize, n: usize, tasks: usize) -> Self {
        let shape = |rows: usize| Self { rows, cols: tasks.div_ceil(rows) };
        let reads = |grid: &Self| m.div_ceil(grid.rows) + n.div_ceil(grid.cols);
        (1..=tasks).map(shape).min_by_key(reads).unwrap_or(Self { rows: 1, cols: 1 })
    }
}

/// Computes y[rows] = A[rows × k]·x, or adds this product to y if y accumulates. Here x is the first lane of the
/// argument `x`, and y is the first column of the argument `y`.
///
/// # Safety
///
/// - *Operands*: `k` is at least 1. `a` has the lanes `rows`, `x` has one lane, and both have the k indices 0..k. No
///   thread writes them during the call.
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
    // For k = 1, a contiguous column also has contiguous rows of one element. Depth 0 selects the column kernel, which
    // fills its vectors.
    let a = if k == 1 && a.lane == 1 { Strided { depth: 0, ..a } } else { a };
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
