//! Matrix products on the CPU: C = A·B, any strides, any batch, one order of summation.
//!
//! The parts, from the inside out:
//!
//! - `isa`: which instruction set runs; its vectors are in `crate::vector`;
//! - `tile`: the micro-kernel, one register tile of C;
//! - `pack`: what an operand is ([`Source`]) and how panels of it are packed;
//! - `packed`: operands that are packed once, for many products;
//! - `block`: the loops around the micro-kernel, and the store with its [`Epilogue`];
//! - `table`: operands whose elements lie at sums of two offsets, as the windows of a convolution do;
//! - `direct`: products of one row with such operands, which are not worth packing;
//! - `transform`: the linear maps of small tiles before and after the products of a Winograd convolution;
//! - `gemv`: matrix times vector, which is bound by memory;
//! - this file: shapes, orientation, and the grid over threads.
//!
//! **Order.** The bits of C depend on (m, n, k) and the values only: never on threads, strides,
//! batch or instruction set. With m, n > 1 each element is a fused multiply-add chain over each
//! block of k, blocks added in order; the blocks are a function of k. With m = 1 or n = 1 it is
//! 16 interleaved chains and a fixed tree (`gemv`). k is never split across threads. No product
//! is skipped, so NaN and infinity arrive.

mod block;
mod gemv;
mod kernels;
mod offset_dot;
mod offsets;
mod pack;
mod packed;
mod tile;
mod winograd;

#[cfg(test)]
mod sweep;
#[cfg(test)]
mod tests;

pub use gemv::VIRTUAL_LANES;
pub use offset_dot::{OffsetDotRow, WeightGradDots, folded};
pub use offsets::{ImplicitIm2col, OffsetList, PackRuns};
pub use pack::{Source, Strided};
pub use packed::{OwnedPanels, PackedPanels};
pub use winograd::{TransformTiles, WinogradTransform};

use block::BlockedProduct;
use gemv::{ColumnMatVec, RowMatVec};
use kernels::Kernels;
use pack::Panel;
use pellucid_runtime::{scratch, threads};
use pellucid_simd::{Element, Isa};
use std::ops::Range;

/// C[m × n] = A[m × k]·B[k × n], or C + A·B. Strides are (row, column), in elements, of any sign;
/// those of A and B may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the type's documentation says it")]
pub struct Gemm {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a_strides: (isize, isize),
    pub b_strides: (isize, isize),
    pub c_strides: (isize, isize),
    /// Whether the product is added to C.
    pub accumulate: bool,
}

/// Where one product of a batch has its matrices, in elements from the common pointers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the type's documentation says it")]
pub struct Offsets {
    pub a: isize,
    pub b: isize,
    pub c: isize,
}

/// A finished part of C, still in cache, that an [`Epilogue`] may read and change in place.
#[derive(Clone, Debug)]
pub struct Finished<T> {
    /// Index of the product in its batch.
    pub batch: usize,
    /// RowMatVec of C that are finished here.
    pub rows: Range<usize>,
    /// ColumnMatVec of C that are finished here.
    pub cols: Range<usize>,
    /// Element (`rows.start`, `cols.start`); the others at these strides.
    pub data: *mut T,
    /// From a row to the next, in elements.
    pub row_stride: isize,
    /// From a column to the next, in elements.
    pub col_stride: isize,
}

/// What happens to finished sums: bias, activation, rounding to another type.
pub trait Epilogue<T>: Sync {
    /// Called once for each element of C, in parts whose shape is not specified, from several threads. Where C is `None`,
    /// the product is made part by part in scratch, for its epilogue alone.
    fn finish(&self, part: Finished<T>);

    /// Asks for what [`finish`](Self::finish) reads and writes besides C, soon, of some rows and columns of a product of the
    /// batch: memory has time to bring it while sums are made.
    fn prefetch_epilogue(&self, _batch: usize, _rows: Range<usize>, _cols: Range<usize>) {}
}

impl<T, F: Fn(Finished<T>) + Sync> Epilogue<T> for F {
    fn finish(&self, part: Finished<T>) {
        self(part);
    }
}

/// How many tasks a product may be split into; no choice changes a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// All on this thread.
    One,
    /// The threads that kernels have, if there is work enough.
    Pool,
}

/// Multiply-adds that are worth a task of their own.
const TASK: usize = 1 << 19;

/// C = A·B as `shape` says.
///
/// # Safety
///
/// The pointers are valid for every element that the shape and the strides reach, those of C for
/// writing; elements of C are distinct, and overlap neither A nor B; nobody writes A or B, or
/// touches C, meanwhile. An epilogue touches nothing of C but its part.
#[inline]
pub unsafe fn gemm<T: Element>(
    shape: &Gemm,
    a: *const T,
    b: *const T,
    c: Option<*mut T>,
    epilogue: Option<&dyn Epilogue<T>>,
    threads: Threads,
) {
    // SAFETY: the caller's.
    unsafe { gemm_batched(shape, &[Offsets::default()], a, b, c, epilogue, threads) }
}

/// Products of one shape, the i-th at `batch[i]` from the pointers.
///
/// # Safety
///
/// As for [`gemm`], for every product; no two of them share an element of C.
#[inline]
pub unsafe fn gemm_batched<T: Element>(
    shape: &Gemm,
    batch: &[Offsets],
    a: *const T,
    b: *const T,
    c: Option<*mut T>,
    epilogue: Option<&dyn Epilogue<T>>,
    threads: Threads,
) {
    // SAFETY: the caller's; the isa is one of this machine.
    unsafe { gemm_at(Isa::best(), shape, batch, a, b, c, epilogue, threads) }
}

/// [`gemm_batched`] by the kernels of one instruction set: for tests and measurements.
///
/// # Safety
///
/// As for [`gemm_batched`]; the machine has the instruction set.
#[allow(clippy::too_many_arguments, reason = "the arguments of gemm_batched and a isa")]
pub unsafe fn gemm_at<T: Element>(
    isa: Isa,
    shape: &Gemm,
    batch: &[Offsets],
    a: *const T,
    b: *const T,
    c: Option<*mut T>,
    epilogue: Option<&dyn Epilogue<T>>,
    threads: Threads,
) {
    let kernels = Kernels::<T>::of(isa);
    let a = Strided { data: a, lane: shape.a_strides.0, depth: shape.a_strides.1 };
    let b = Strided { data: b, lane: shape.b_strides.1, depth: shape.b_strides.0 };
    let (row, col) = shape.c_strides;
    let c = c.map(|data| Output { data, row, col, accumulate: shape.accumulate });
    let problem = GemmProblem { kernels, m: shape.m, n: shape.n, k: shape.k, epilogue, transposed: false };
    // C is computed in vectors along its rows, or, (A·B)ᵀ = Bᵀ·Aᵀ, along its columns: products and
    // order are the same. A single row is computed as the single column of the transpose.
    // What is not kept lies by rows, as what its epilogue reads and writes nearly always does.
    let (c_row, c_col) = c.map_or((shape.n as isize, 1), |c| (c.row, c.col));
    let turn = shape.m == 1
        || shape.n > 1
            && block::cost(kernels, (shape.n, shape.m, shape.k), &a, c_row)
                < block::cost(kernels, (shape.m, shape.n, shape.k), &b, c_col);
    // SAFETY: the caller's.
    unsafe {
        if turn {
            let c = c.map(|c| Output { row: c.col, col: c.row, ..c });
            let problem = GemmProblem { m: shape.n, n: shape.m, transposed: true, ..problem };
            let turned = |i: usize| Offsets { a: batch[i].b, b: batch[i].a, c: batch[i].c };
            problem.run(batch.len(), turned, b, a, c, threads);
        } else {
            problem.run(batch.len(), |i| batch[i], a, b, c, threads);
        }
    }
}

/// The rows and columns of C = A·B, or C + A·B, for any operands of depth k, on this thread; C's rows are contiguous and
/// `row` apart.
///
/// # Safety
///
/// The operands have so many lanes and steps, C is valid for the rows and nobody else touches them; the machine has
/// the instruction set.
#[allow(clippy::too_many_arguments, reason = "two operands, a place, and what to do")]
pub unsafe fn multiply<T: Element>(
    isa: Isa,
    a: &dyn Source<T>,
    b: &dyn Source<T>,
    (rows, cols, k): (Range<usize>, Range<usize>, usize),
    c: *mut T,
    row: isize,
    accumulate: bool,
) {
    let product =
        BlockedProduct { a, b, k, c, c_row: row, c_col: 1, accumulate, epilogue: None, batch: 0, transposed: false };
    // SAFETY: the caller's.
    unsafe { product.rectangle(Kernels::<T>::of(isa), rows, cols) }
}

/// One row of a product.
///
/// # Safety
///
/// As for [`OffsetDotRow::multiply`]; the machine has the instruction set.
pub unsafe fn offset_dot_row<T: Element>(isa: Isa, work: &OffsetDotRow<'_, T>) {
    // SAFETY: the caller's.
    unsafe { (Kernels::<T>::of(isa).offset_dot_row)(work) }
}

/// Copies equally long rows.
///
/// # Safety
///
/// As for [`PackRuns::copy`]; the machine has the instruction set.
pub unsafe fn pack_runs<T: Element>(isa: Isa, work: &PackRuns<'_, T>) {
    // SAFETY: the caller's.
    unsafe { (Kernels::<T>::of(isa).pack_runs)(work) }
}

/// Sums of products along runs.
///
/// # Safety
///
/// As for [`WeightGradDots::add`]; the machine has the instruction set.
pub unsafe fn weight_grad_dots<T: Element>(isa: Isa, work: &WeightGradDots<'_, T>) {
    // SAFETY: the caller's.
    unsafe { (Kernels::<T>::of(isa).weight_grad_dots)(work) }
}

/// Transforms tiles; whether all results are finite.
///
/// # Safety
///
/// As for [`TransformTiles::run`]; the machine has the instruction set.
pub unsafe fn transform_tiles<T: Element>(isa: Isa, work: &TransformTiles<'_, T>) -> bool {
    // SAFETY: the caller's.
    unsafe { (Kernels::<T>::of(isa).transform)(work) }
}

/// Transposes a matrix: `to[p·width + i] = from[i, p]`, with zeros in lanes `lanes..width`.
///
/// # Safety
///
/// `from.depth` is 1, and the matrix has `lanes` lanes of `depth` steps; `width ≥ lanes`, of any size; `to` is valid for
/// writing `depth · width` elements, which do not overlap the matrix; the machine has the instruction set.
pub unsafe fn transpose<T: Element>(
    isa: Isa,
    from: Strided<T>,
    (lanes, depth): (usize, usize),
    width: usize,
    to: *mut T,
) {
    debug_assert!(from.depth == 1 && lanes <= width, "{lanes} lanes in rows of {width}, {from:?}");
    // SAFETY: the depth is contiguous, which is all that `turn` requires besides this function's contract.
    unsafe { (Kernels::<T>::of(isa).transpose)(&Panel::to_transpose(from, (lanes, width), depth, to, width)) }
}

/// Where results go.
#[derive(Clone, Copy)]
struct Output<T> {
    data: *mut T,
    row: isize,
    col: isize,
    accumulate: bool,
}

// SAFETY: tasks write disjoint parts of C, which the caller vouches is theirs to write.
unsafe impl<T: Send> Sync for Output<T> {}

/// A batch of products in the orientation they are computed in: lanes of A are rows of C, and if
/// there is one column or one row, it is one column (n = 1).
struct GemmProblem<'a, T: 'static> {
    kernels: &'static Kernels<T>,
    m: usize,
    n: usize,
    k: usize,
    epilogue: Option<&'a dyn Epilogue<T>>,
    transposed: bool,
}

impl<T: Element> GemmProblem<'_, T> {
    /// Splits the batch into tasks, and C into a grid where the batch is small.
    ///
    /// # Safety
    ///
    /// As for [`gemm_at`].
    #[inline]
    unsafe fn run(
        &self,
        batch: usize,
        offsets: impl Fn(usize) -> Offsets + Sync,
        a: Strided<T>,
        b: Strided<T>,
        c: Option<Output<T>>,
        threads: Threads,
    ) {
        let one = self.m.saturating_mul(self.n).saturating_mul(self.k.max(1));
        let tasks = match threads {
            Threads::Pool if one.saturating_mul(batch) >= 2 * TASK => {
                threads::count().min(one.saturating_mul(batch) / TASK)
            }
            _ => 1,
        };
        if tasks <= 1 {
            for index in 0..batch {
                // SAFETY: the caller's.
                unsafe { self.rectangle(index, offsets(index), a, b, c, 0..self.m, 0..self.n) }
            }
            return;
        }
        let grid = if batch >= 4 * tasks { Grid { rows: 1, cols: 1 } } else { Grid::new(self.m, self.n, tasks) };
        let parts = grid.rows * grid.cols;
        let (height, width) = (
            self.m.div_ceil(grid.rows).next_multiple_of(self.kernels.rows),
            self.n.div_ceil(grid.cols).next_multiple_of(self.kernels.width()),
        );
        let least = (TASK * parts / one.max(1)).clamp(1, (batch * parts).div_ceil(tasks));
        threads::each(batch * parts, least, |_, task| {
            let (index, part) = (task / parts, task % parts);
            let (i, j) = (part / grid.cols * height, part % grid.cols * width);
            let rows = i.min(self.m)..self.m.min(i + height);
            let cols = j.min(self.n)..self.n.min(j + width);
            // SAFETY: the parts of the grid are disjoint; the rest is the caller's.
            unsafe { self.rectangle(index, offsets(index), a, b, c, rows, cols) }
        });
    }

    /// One rectangle of one product of the batch.
    ///
    /// # Safety
    ///
    /// As for [`gemm_at`]; nobody else writes the rectangle.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "three matrices and where to look in them")]
    unsafe fn rectangle(
        &self,
        batch: usize,
        at: Offsets,
        a: Strided<T>,
        b: Strided<T>,
        c: Option<Output<T>>,
        rows: Range<usize>,
        cols: Range<usize>,
    ) {
        let a = Strided { data: a.data.wrapping_offset(at.a), ..a };
        let b = Strided { data: b.data.wrapping_offset(at.b), ..b };
        if let Some(c) = c {
            let c = Output { data: c.data.wrapping_offset(at.c), ..c };
            // SAFETY: the caller's.
            return unsafe { self.product(batch, a, b, c, rows, cols) };
        }
        let width = block::columns(self.k, self.kernels.width()).min(cols.len()).max(1);
        let height = (block::UNKEPT / width).next_multiple_of(self.kernels.rows);
        for j in cols.clone().step_by(width) {
            let cols = j..cols.end.min(j + width);
            for i in rows.clone().step_by(height) {
                let rows = i..rows.end.min(i + height);
                scratch::with(rows.len() * cols.len(), |room: *mut T| {
                    let row = cols.len() as isize;
                    let data = room.wrapping_offset(-(rows.start as isize * row + cols.start as isize));
                    let c = Output { data, row, col: 1, accumulate: false };
                    // SAFETY: the room is for these rows and columns, the first element at its start.
                    unsafe { self.product(batch, a, b, c, rows, cols.clone()) }
                });
            }
        }
    }

    /// One rectangle of one product of the batch, which lies as the operands say.
    ///
    /// # Safety
    ///
    /// As for [`rectangle`](Self::rectangle).
    #[inline]
    unsafe fn product(
        &self,
        batch: usize,
        a: Strided<T>,
        b: Strided<T>,
        c: Output<T>,
        rows: Range<usize>,
        cols: Range<usize>,
    ) {
        let product = BlockedProduct {
            a: &a,
            b: &b,
            k: self.k,
            c: c.data,
            c_row: c.row,
            c_col: c.col,
            accumulate: c.accumulate,
            epilogue: self.epilogue,
            batch,
            transposed: self.transposed,
        };
        // SAFETY: the caller's.
        unsafe {
            if self.n == 1 && self.k > 0 && !rows.is_empty() && !cols.is_empty() {
                vector(self.kernels, a, b, product.c, c.row, c.accumulate, rows.clone(), self.k);
                product.finish(rows, cols);
            } else {
                product.rectangle(self.kernels, rows, cols);
            }
        }
    }
}

/// Tasks over the rows and the columns of C.
struct Grid {
    rows: usize,
    cols: usize,
}

impl Grid {
    /// At least `tasks` parts, as near to squares as can be: then they read the least of A and B.
    fn new(m: usize, n: usize, tasks: usize) -> Self {
        let shape = |rows: usize| Self { rows, cols: tasks.div_ceil(rows) };
        let reads = |grid: &Self| m.div_ceil(grid.rows) + n.div_ceil(grid.cols);
        (1..=tasks).map(shape).min_by_key(reads).unwrap_or(Self { rows: 1, cols: 1 })
    }
}

/// y[rows] = A[rows × k]·x.
///
/// # Safety
///
/// As for [`gemm_at`].
#[allow(clippy::too_many_arguments, reason = "a matrix, two vectors, and a range")]
unsafe fn vector<T: Element>(
    kernels: &Kernels<T>,
    a: Strided<T>,
    x: Strided<T>,
    y: *mut T,
    y_step: isize,
    add: bool,
    rows: Range<usize>,
    k: usize,
) {
    let x_room = if x.depth == 1 { 0 } else { k };
    let a_room = match a {
        Strided { depth: 1, .. } => 0,
        Strided { lane: 1, .. } => ColumnMatVec::<T>::SCRATCH,
        _ => k,
    };
    let work = |room: *mut T| {
        // SAFETY: the scratch has room for x and for what A needs; the rest is the caller's.
        unsafe {
            let x = if x_room == 0 { x.data } else { gather(x.data, x.depth, k, room.add(a_room)) };
            let (y, count) = (y.wrapping_offset(rows.start as isize * y_step), rows.len());
            let matrix = a.at(rows.start, 0);
            match a {
                Strided { depth: 1, lane: a_row, .. } => {
                    (kernels.by_rows)(&RowMatVec { rows: count, depth: k, a: matrix, a_row, x, y, y_step, add });
                }
                Strided { lane: 1, depth: a_col, .. } => {
                    (kernels.by_columns)(&ColumnMatVec {
                        rows: count,
                        depth: k,
                        a: matrix,
                        a_col,
                        x,
                        y,
                        y_step,
                        add,
                        partial: room,
                    });
                }
                _ => {
                    for i in rows.clone() {
                        let a = gather(a.at(i, 0), a.depth, k, room);
                        let y = y.wrapping_offset((i - rows.start) as isize * y_step);
                        (kernels.by_rows)(&RowMatVec { rows: 1, depth: k, a, a_row: 0, x, y, y_step, add });
                    }
                }
            }
        }
    };
    if x_room + a_room == 0 { work(std::ptr::null_mut()) } else { scratch::with(x_room + a_room, work) }
}

/// Makes a strided vector contiguous.
///
/// # Safety
///
/// `from` is valid for `count` steps, `to` for `count` numbers.
unsafe fn gather<T: Element>(from: *const T, step: isize, count: usize, to: *mut T) -> *const T {
    for p in 0..count {
        // SAFETY: the caller's.
        unsafe { *to.add(p) = *from.wrapping_offset(p as isize * step) }
    }
    to
}
