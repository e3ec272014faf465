//! The canonical reduction order: a function of the number of elements only.
//!
//! The elements, in row-major order, are cut into chunks of [`CHUNK`]. The lanes of [`crate::program::loops`] reduce
//! each chunk. A fixed tree combines the results of the chunks: neighbours in pairs, pairs in fours, and so on; an
//! unpaired last result moves up unchanged. Every path (contiguous, strided, column by column, any number of threads)
//! keeps this order, so the results of all paths are bit-identical.

use crate::program::loops::{self, BinaryLoop, FoldLoops, LANES, OperandForm, ROWS};
use pellucid_ir::Compute;
use pellucid_ir::formula::{Binary, RowOp};
use pellucid_runtime::scratch::{self, padded};
use pellucid_simd::Isa;
use std::mem::MaybeUninit;

/// The number of elements of a chunk: enough to amortize its final combination, and few enough for several threads to
/// share one row.
pub(crate) const CHUNK: usize = 4096;

/// The number of columns whose lanes are combined together, chosen so that the intermediate results stay in L1.
const STRIP: usize = 512;

/// Contiguous values to reduce: the values at `values` or, with `factors`, their products with the values at `factors`.
#[derive(Clone, Copy)]
pub(crate) struct FoldValues {
    /// The address of the values, or of the first factors.
    pub(crate) values: *const u8,
    /// The address of the second factors, if products are summed.
    pub(crate) factors: Option<*const u8>,
}

impl FoldValues {
    /// Returns the values at `values`, without factors.
    #[inline]
    pub(crate) fn plain(values: *const u8) -> FoldValues {
        FoldValues { values, factors: None }
    }

    /// Returns the values that begin `bytes` bytes later.
    ///
    /// # Safety
    /// Both addresses, moved by `bytes`, are within their allocation or one past its end.
    #[inline]
    pub(crate) unsafe fn skip(self, bytes: usize) -> FoldValues {
        // SAFETY: the caller guarantees that the moved addresses are in bounds (this function's contract).
        unsafe { FoldValues { values: self.values.add(bytes), factors: self.factors.map(|p| p.add(bytes)) } }
    }
}

/// The loops of one reduction operation on values of one compute type.
#[derive(Clone, Copy)]
pub(crate) struct FoldKernel {
    /// The loops that accumulate values in lanes and combine the lanes.
    pub(crate) loops: FoldLoops,
    /// Combines two arrays of results element by element.
    pub(crate) combine: BinaryLoop,
    /// The size of one value in bytes.
    pub(crate) size: usize,
}

impl FoldKernel {
    /// Returns the loops that reduce values of type `compute` by `op`, or `None` if the operation is not defined.
    pub(crate) fn new(op: loops::FoldOp, compute: Compute) -> Option<FoldKernel> {
        FoldKernel::for_isa(op, compute, Isa::best())
    }

    /// Returns the loops of [`FoldKernel::new`] for an instruction set.
    pub(crate) fn for_isa(op: loops::FoldOp, compute: Compute, isa: Isa) -> Option<FoldKernel> {
        let mask = compute == Compute::Mask;
        let primitive = match op {
            loops::FoldOp::Sum => Binary::Add,
            loops::FoldOp::Prod => Binary::Mul,
            loops::FoldOp::Max if mask => Binary::Or,
            loops::FoldOp::Min if mask => Binary::And,
            loops::FoldOp::Max => Binary::Max,
            loops::FoldOp::Min => Binary::Min,
            loops::FoldOp::And => Binary::And,
            loops::FoldOp::Or => Binary::Or,
        };
        Some(FoldKernel {
            loops: loops::fold(op, compute, isa)?,
            combine: loops::binary(primitive, compute, OperandForm::TileTile, isa)?,
            size: compute.size(),
        })
    }

    /// Returns the loops of a row reduction of a program, or `None` if the operation is not defined.
    pub(crate) fn for_row_op(op: RowOp, compute: Compute) -> Option<FoldKernel> {
        let op = match op {
            RowOp::Sum => loops::FoldOp::Sum,
            RowOp::Max => loops::FoldOp::Max,
            RowOp::Min => loops::FoldOp::Min,
        };
        FoldKernel::new(op, compute)
    }

    /// Returns eight bytes filled with copies of the identity.
    fn identity(&self) -> u64 {
        let bytes = self.loops.identity;
        u64::from_ne_bytes(std::array::from_fn(|i| bytes[i % self.size]))
    }

    /// Fills `n` values with the identity, in units of eight bytes.
    ///
    /// # Safety
    /// `into` is aligned to 8 bytes and valid for writes of `n` values, rounded up to a multiple of 8 bytes.
    pub(crate) unsafe fn fill_identity(&self, into: *mut u8, n: usize) {
        let words = (n * self.size).div_ceil(8);
        debug_assert!(into.cast::<u64>().is_aligned(), "the destination {into:?} must be aligned to 8 bytes");
        // SAFETY: the slice is the `n` values rounded up to full words, for which the caller guarantees alignment and
        // validity (this function's contract).
        unsafe { std::slice::from_raw_parts_mut(into.cast::<u64>(), words).fill(self.identity()) }
    }

    /// Accumulates `n` values in the 16 lanes. With `first`, the lanes are overwritten instead of read.
    ///
    /// # Safety
    /// - *Lanes*, *Values*: the contract of [`loops::FoldLoops::accumulate`].
    /// - *Products*: `from` has factors only if the operation is a sum.
    #[inline]
    unsafe fn accumulate(&self, lanes: *mut u8, from: FoldValues, n: usize, first: bool) {
        // SAFETY: the loops are compiled for this processor's instruction set; the caller guarantees *Lanes* and
        // *Values* (this function's contract) for the values and for the factors.
        unsafe {
            match (from.factors, self.loops.accumulate_products) {
                (Some(factors), Some(products)) => products(lanes, from.values, factors, n, first),
                _ => (self.loops.accumulate)(lanes, from.values, n, first),
            }
        }
    }

    /// Reduces `n` values to one.
    ///
    /// # Safety
    /// - *Values*: `from` is valid for reads of `n` values, and of `n` second factors if it has factors.
    /// - *Result*: `into` is valid for the write of one value.
    /// - *Products*: `from` has factors only if the operation is a sum.
    #[inline]
    pub(crate) unsafe fn reduce(&self, into: *mut u8, from: FoldValues, n: usize) {
        // SAFETY: the lanes are local and hold sixteen values of up to eight bytes; they are initialized by the call of
        // `accumulate` with `first`. *Values*, *Result* and *Products* are this function's contract.
        unsafe {
            if n <= CHUNK {
                let mut lanes = MaybeUninit::<[u64; LANES]>::uninit();
                self.accumulate(lanes.as_mut_ptr().cast(), from, n, true);
                return (self.loops.finish)(into, lanes.as_ptr().cast());
            }
            let mut running = RunningFold::new();
            running.push(self, from, n);
            running.finish(self, into);
        }
    }

    /// Accumulates the last `n` values of a chunk in `lanes` and combines the lanes to one result.
    ///
    /// `done` values, a multiple of the block length, are already accumulated in the lanes.
    ///
    /// # Safety
    /// - *Values*: `tail` is valid for reads of `n` values, and of `n` second factors if it has factors.
    /// - *Result*: `into` is valid for the write of one value.
    /// - *Products*: `tail` has factors only if the operation is a sum.
    /// - *Lanes*: `lanes` is valid for reads and writes of sixteen values, initialized if `done > 0`.
    /// - *Chunk*: `done + n` is at most [`CHUNK`].
    #[inline]
    pub(crate) unsafe fn finish_chunk(&self, into: *mut u8, lanes: *mut u8, tail: FoldValues, done: usize, n: usize) {
        // SAFETY: by this function's contract, the lanes are initialized before `finish` reads them: by the caller if
        // `done > 0` (*Lanes*), otherwise by `accumulate` with `first`. *Values*, *Products* and *Result* cover the
        // other arguments.
        unsafe {
            if n > 0 || done == 0 {
                self.accumulate(lanes, tail, n, done == 0);
            }
            (self.loops.finish)(into, lanes);
        }
    }

    /// Reduces each of `rows` contiguous rows of `len` values.
    ///
    /// # Safety
    /// - *Values*: `from` is valid for reads of `rows · len` values, and of `rows · len` second factors if it has
    ///   factors.
    /// - *Results*: `into` is valid for writes of `rows` values, which do not overlap the values.
    /// - *Products*: `from` has factors only if the operation is a sum.
    pub(crate) unsafe fn reduce_rows(&self, into: *mut u8, from: FoldValues, rows: usize, len: usize) {
        if from.factors.is_none() && len <= CHUNK {
            // SAFETY: the loops are compiled for this processor's instruction set; *Values* and *Results* of this
            // function's contract cover the rows and their results.
            return unsafe { (self.loops.reduce_rows)(into, from.values, rows, len) };
        }
        for row in 0..rows {
            // SAFETY: by this function's contract, row `row` is within *Values* and its result within *Results*, and
            // *Products* holds for every row.
            unsafe { self.reduce(into.add(row * self.size), from.skip(row * len * self.size), len) };
        }
    }

    /// Reduces each of `cols` columns of `rows` contiguous rows, `row_stride` bytes apart.
    ///
    /// # Safety
    /// - *Values*: each row of `from` is valid for reads of `cols` values; `rows` is from 1 to [`CHUNK`].
    /// - *Results*: `into` is valid for writes of `cols` values and disjoint from the values.
    pub(crate) unsafe fn reduce_columns(
        &self,
        into: *mut u8,
        from: *const u8,
        row_stride: isize,
        rows: usize,
        cols: usize,
    ) {
        if self.reduces_columns_at_once(rows, cols) {
            // SAFETY: the rows are one block; *Values* and *Results* are this function's contract.
            return unsafe { (self.loops.reduce_columns)(into, from, row_stride, cols, rows) };
        }
        let lanes_bytes = padded(LANES * cols * self.size);
        scratch::with_buffer(lanes_bytes + lanes_bytes / 2, |lanes: *mut u8| {
            // SAFETY: blocks of at most `ROWS` rows are within *Values*. The scratch memory holds sixteen rows of
            // lanes, which are initialized before the first block is accumulated, and then eight rows.
            unsafe {
                self.fill_identity(lanes, LANES * cols);
                for first in (0..rows).step_by(ROWS) {
                    let block = from.offset(first as isize * row_stride);
                    (self.loops.accumulate_rows)(lanes, block, row_stride, cols, ROWS.min(rows - first));
                }
                self.combine_lanes(into, lanes, lanes.add(lanes_bytes), cols);
            }
        });
    }

    /// Combines the lanes of each of `cols` columns by the fixed tree, one strip of columns at a time.
    ///
    /// Lane l is combined with lane l + 8, then l + 4, l + 2 and l + 1.
    ///
    /// # Safety
    /// - *Lanes*: `lanes` is valid for reads and writes of 16 initialized rows of `cols` values.
    /// - *Half*: `half` is valid for reads and writes of 8 rows of `cols` values and disjoint from `lanes`.
    /// - *Result*: `into` is valid for writes of `cols` values and disjoint from both.
    pub(crate) unsafe fn combine_lanes(&self, into: *mut u8, lanes: *mut u8, half: *mut u8, cols: usize) {
        for start in (0..cols).step_by(STRIP) {
            let n = STRIP.min(cols - start);
            let skipped = start * self.size;
            // SAFETY: by this function's contract, the strip is within the columns of *Lanes* and *Result*.
            let (lanes, into) = unsafe { ((lanes.add(skipped), cols), (into.add(skipped), cols)) };
            for (step, from, to) in
                [(8, lanes, (half, n)), (4, (half, n), lanes), (2, lanes, (half, n)), (1, (half, n), into)]
            {
                // All rows of a single strip are contiguous.
                let (calls, len) = if n == cols { (1, step * n) } else { (step, n) };
                // SAFETY: by this function's contract, `from` holds `2 · step` initialized rows (*Lanes*, or written by
                // the previous round), and `to` is valid for `step` rows (*Lanes*, *Half*, *Result*), of which row l
                // begins at `l` times the row length; the two buffers are disjoint.
                unsafe {
                    let row = |(rows, len): (*mut u8, usize), l: usize| rows.add(l * len * self.size);
                    (0..calls).for_each(|l| self.combine.run(row(to, l), row(from, l), row(from, l + step), len));
                }
            }
        }
    }

    /// Returns true if the loop for columns is faster than lanes in memory: the matrix is one block of rows, and the
    /// loop supports wide matrices or the matrix fits L1.
    pub(crate) fn reduces_columns_at_once(&self, rows: usize, cols: usize) -> bool {
        const L1_BYTES: usize = 32 << 10;
        let is_fast = self.loops.reduces_wide_matrices || rows * cols * self.size <= L1_BYTES;
        (1..=ROWS).contains(&rows) && is_fast
    }

    /// Combines `chunks` rows of `n` partial results by the fixed tree; the first row becomes the result.
    ///
    /// # Safety
    /// `results` is valid for reads and writes of `chunks · n` initialized values.
    pub(crate) unsafe fn combine_chunks(&self, results: *mut u8, chunks: usize, n: usize) {
        let mut step = 1;
        while step < chunks {
            for i in (0..chunks - step).step_by(2 * step) {
                // SAFETY: i + step < chunks, so both rows are within `results`; the target equals the first operand.
                unsafe {
                    let a = results.add(i * n * self.size);
                    self.combine.run(a, a, results.add((i + step) * n * self.size), n);
                }
            }
            step *= 2;
        }
    }
}

/// The state of a reduction whose elements are passed in several calls. The number of elements of each call, except the
/// last, is a multiple of 128.
pub(crate) struct RunningFold {
    lanes: [u64; LANES],
    /// The elements of the current chunk that are accumulated in the lanes.
    filled: usize,
    /// The number of finished chunks.
    chunks: usize,
    /// The results of finished subtrees, the largest subtree first.
    subtrees: [u64; 48],
    /// The number of subtrees.
    depth: usize,
}

impl RunningFold {
    /// Returns the state of a reduction without elements.
    pub(crate) fn new() -> RunningFold {
        RunningFold { lanes: [0; LANES], filled: 0, chunks: 0, subtrees: [0; 48], depth: 0 }
    }

    /// Accumulates `n` values.
    ///
    /// # Safety
    /// - *Values*: `from` is valid for reads of `n` values of the type of `fold`, and of `n` second factors if it has
    ///   factors.
    /// - *Same*: all calls for one state pass the same `fold`.
    /// - *Products*: `from` has factors only if the operation is a sum.
    pub(crate) unsafe fn push(&mut self, fold: &FoldKernel, mut from: FoldValues, mut n: usize) {
        while n > 0 {
            let count = n.min(CHUNK - self.filled);
            // SAFETY: by this function's contract, `count <= n`, so the values are within *Values*, and `skip` moves to
            // their end at most. The lanes hold sixteen values of up to eight bytes, which earlier calls initialized
            // for the same `fold` (*Same*).
            unsafe {
                fold.accumulate(self.lanes.as_mut_ptr().cast(), from, count, self.filled == 0);
                from = from.skip(count * fold.size);
            }
            self.filled += count;
            n -= count;
            if self.filled == CHUNK {
                self.finish_chunk(fold);
            }
        }
    }

    /// Accumulates blocks of 128 values, each combined to one value for each lane.
    ///
    /// # Safety
    /// - *Values*: `from` is valid for reads of `blocks` blocks of 16 values of the type of `fold`.
    /// - *Same*: all calls for one state pass the same `fold`.
    pub(crate) unsafe fn push_lanes(&mut self, fold: &FoldKernel, mut from: *const u8, mut blocks: usize) {
        while blocks > 0 {
            let count = blocks.min((CHUNK - self.filled) / ROWS);
            // SAFETY: by this function's contract, `count <= blocks`, so the values are within *Values*. The lanes hold
            // sixteen values of up to eight bytes, which earlier calls initialized for the same `fold` (*Same*).
            unsafe {
                (fold.loops.accumulate_lanes)(self.lanes.as_mut_ptr().cast(), from, count, self.filled == 0);
                from = from.add(count * LANES * fold.size);
            }
            self.filled += count * ROWS;
            blocks -= count;
            if self.filled == CHUNK {
                self.finish_chunk(fold);
            }
        }
    }

    /// Finishes the current chunk and combines its result with the subtrees that it completes.
    fn finish_chunk(&mut self, fold: &FoldKernel) {
        let mut result = 0u64;
        let into = (&raw mut result).cast::<u8>();
        // SAFETY: the lanes hold sixteen values; `into` and every subtree are eight bytes and hold one value.
        unsafe {
            (fold.loops.finish)(into, self.lanes.as_ptr().cast());
            for _ in 0..self.chunks.trailing_ones() {
                self.depth -= 1;
                fold.combine.run(into, self.subtrees.as_ptr().add(self.depth).cast(), into, 1);
            }
        }
        self.subtrees[self.depth] = result;
        self.depth += 1;
        self.chunks += 1;
        self.filled = 0;
    }

    /// Combines all accumulated values and writes the result to `into`. Without elements, the result is the identity.
    ///
    /// # Safety
    /// - *Same*: `fold` is the argument of all calls of [`RunningFold::push`].
    /// - *Result*: `into` is valid for the write of one value.
    pub(crate) unsafe fn finish(&mut self, fold: &FoldKernel, into: *mut u8) {
        if self.filled > 0 || self.chunks == 0 {
            if self.filled == 0 {
                self.lanes = [fold.identity(); LANES];
            }
            self.finish_chunk(fold);
        }
        // SAFETY: by this function's contract, at least one chunk is finished, so `depth >= 1`. Every subtree and
        // `result` hold one value of this `fold` (*Same*); `into` is valid for one (*Result*).
        unsafe {
            let mut result = self.subtrees[self.depth - 1];
            let combined = (&raw mut result).cast::<u8>();
            for left in self.subtrees[..self.depth - 1].iter().rev() {
                fold.combine.run(combined, (&raw const *left).cast(), combined, 1);
            }
            std::ptr::copy_nonoverlapping(combined, into, fold.size);
        }
    }
}
