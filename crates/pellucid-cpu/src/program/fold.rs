//! The canonical order of a reduction: a function of the number of elements only.
//!
//! The elements, in row-major order, are cut into chunks of [`CHUNK`]; a chunk is reduced by the lanes
//! of [`crate::program::loops`], and the chunks' results meet in a fixed tree: neighbours in pairs, pairs in
//! fours, and so on, the last one left over passing up unchanged. Every path (contiguous, strided,
//! column by column, any number of threads) keeps this order, so all give the same bits.

use crate::program::loops::{self, BinaryLoop, FoldLoops, Form, LANES};
use pellucid_ir::Compute;
use pellucid_ir::formula::{Binary, RowOp};
use pellucid_simd::Isa;
use std::mem::MaybeUninit;

/// Elements of a chunk: enough that its end costs little, few enough that threads share one row.
pub(crate) const CHUNK: usize = 4096;

/// Rows at most this long are reduced side by side, so many at once.
pub(crate) const SHORT: usize = 32;
const TOGETHER: usize = 64;

/// Contiguous values to reduce: those at `of` or, with `times`, the products with those there.
#[derive(Clone, Copy)]
pub(crate) struct Values {
    pub(crate) of: *const u8,
    pub(crate) times: Option<*const u8>,
}

impl Values {
    /// The values at `of`.
    #[inline]
    pub(crate) fn plain(of: *const u8) -> Values {
        Values { of, times: None }
    }

    /// The values `bytes` further on.
    ///
    /// # Safety
    /// There are some, or these are their end.
    #[inline]
    pub(crate) unsafe fn skip(self, bytes: usize) -> Values {
        // SAFETY: the caller's promise.
        unsafe { Values { of: self.of.add(bytes), times: self.times.map(|p| p.add(bytes)) } }
    }
}

/// The loops of one reduction.
#[derive(Clone, Copy)]
pub(crate) struct Fold {
    pub(crate) loops: FoldLoops,
    /// Combines results, element by element.
    pub(crate) combine: BinaryLoop,
    /// Bytes of one value.
    pub(crate) size: usize,
}

impl Fold {
    pub(crate) fn new(op: loops::Fold, compute: Compute) -> Option<Fold> {
        let isa = Isa::best();
        let mask = compute == Compute::Mask;
        let primitive = match op {
            loops::Fold::Sum => Binary::Add,
            loops::Fold::Prod => Binary::Mul,
            loops::Fold::Max if mask => Binary::Or,
            loops::Fold::Min if mask => Binary::And,
            loops::Fold::Max => Binary::Max,
            loops::Fold::Min => Binary::Min,
            loops::Fold::And => Binary::And,
            loops::Fold::Or => Binary::Or,
        };
        Some(Fold {
            loops: loops::fold(op, compute, isa)?,
            combine: loops::binary(primitive, compute, Form::TileTile, isa)?,
            size: compute.size(),
        })
    }

    pub(crate) fn of_row(op: RowOp, compute: Compute) -> Option<Fold> {
        let op = match op {
            RowOp::Sum => loops::Fold::Sum,
            RowOp::Max => loops::Fold::Max,
            RowOp::Min => loops::Fold::Min,
        };
        Fold::new(op, compute)
    }

    /// The identity in every place of eight values or fewer.
    fn identity(&self) -> u64 {
        let bytes = self.loops.identity;
        u64::from_ne_bytes(std::array::from_fn(|i| bytes[i % self.size]))
    }

    /// Fills `n` values with the identity, in whole words.
    ///
    /// # Safety
    /// `into` is aligned to 8 bytes and valid for writing `n` values, up to the next multiple of 8 bytes.
    pub(crate) unsafe fn clear(&self, into: *mut u8, n: usize) {
        let words = (n * self.size).div_ceil(8);
        debug_assert!(into.cast::<u64>().is_aligned(), "{into:?}");
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(into.cast::<u64>(), words).fill(self.identity()) }
    }

    /// Takes `n` values into the 16 lanes, of which nothing is read if they are the `first`.
    ///
    /// # Safety
    /// As [`loops::FoldLoops::accumulate`]; only a sum takes products.
    #[inline]
    unsafe fn accumulate(&self, lanes: *mut u8, from: Values, n: usize, first: bool) {
        // SAFETY: the caller's promise.
        unsafe {
            match (from.times, self.loops.accumulate_products) {
                (Some(times), Some(products)) => products(lanes, from.of, times, n, first),
                _ => (self.loops.accumulate)(lanes, from.of, n, first),
            }
        }
    }

    /// Reduces `n` values.
    ///
    /// # Safety
    /// `from` holds `n` values and `into` has room for one; only a sum takes products.
    #[inline]
    pub(crate) unsafe fn reduce(&self, into: *mut u8, from: Values, n: usize) {
        // SAFETY: the caller's promise; the lanes hold sixteen values of up to eight bytes.
        unsafe {
            if n <= CHUNK {
                let mut lanes = MaybeUninit::<[u64; LANES]>::uninit();
                self.accumulate(lanes.as_mut_ptr().cast(), from, n, true);
                return (self.loops.finish)(into, lanes.as_ptr().cast());
            }
            let mut running = Running::new();
            running.push(self, from, n);
            running.finish(self, into);
        }
    }

    /// Ends a reduction whose lanes hold the first `done` values, whole blocks of them; `n` are left.
    ///
    /// # Safety
    /// As [`Fold::reduce`]; `lanes` holds sixteen values, and all together make one chunk at most.
    #[inline]
    pub(crate) unsafe fn end(&self, into: *mut u8, lanes: *mut u8, rest: Values, done: usize, n: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            if n > 0 || done == 0 {
                self.accumulate(lanes, rest, n, done == 0);
            }
            (self.loops.finish)(into, lanes);
        }
    }

    /// Reduces each of `rows` contiguous rows of `len` values. Short rows are turned and reduced side by
    /// side, which gives the same bits.
    ///
    /// # Safety
    /// `from` holds `rows · len` values, `aside` has room for as many, and `into` for `rows`; products are of
    /// rows longer than [`SHORT`].
    pub(crate) unsafe fn reduce_rows(&self, into: *mut u8, from: Values, rows: usize, len: usize, aside: *mut u8) {
        if rows < 8 || len > SHORT || len == 0 {
            for row in 0..rows {
                // SAFETY: the caller's promise.
                unsafe { self.reduce(into.add(row * self.size), from.skip(row * len * self.size), len) };
            }
            return;
        }
        let bytes = rows * len * self.size;
        debug_assert!(from.times.is_none() && loops::are_apart((aside, bytes), (from.of, bytes)), "rows overlap");
        let from = from.of;
        let (mut lanes, mut half) = (Lanes(MaybeUninit::uninit()), Lanes(MaybeUninit::uninit()));
        let (lanes, half) = (lanes.0.as_mut_ptr().cast::<u8>(), half.0.as_mut_ptr().cast::<u8>());
        for first in (0..rows).step_by(TOGETHER) {
            let count = TOGETHER.min(rows - first);
            // SAFETY: `count` rows from `first` on; the lanes have room for sixteen values a row.
            unsafe {
                let from = from.add(first * len * self.size);
                match self.size {
                    1 => columns::<u8>(aside, from, count, len),
                    4 => columns::<u32>(aside.cast(), from.cast(), count, len),
                    _ => columns::<u64>(aside.cast(), from.cast(), count, len),
                }
                self.clear(lanes, LANES * count);
                (self.loops.accumulate_rows)(lanes, aside, (count * self.size) as isize, count, len);
                self.meet(into.add(first * self.size), lanes, half, count);
            }
        }
    }

    /// Combines the lanes of each of `cols` columns by the fixed tree, all columns at once: lane l with
    /// l + 8, then + 4, + 2, + 1.
    ///
    /// # Safety
    /// `lanes` holds 16 rows of `cols` values, `half` has room for 8, and `into` for one.
    pub(crate) unsafe fn meet(&self, into: *mut u8, lanes: *mut u8, half: *mut u8, cols: usize) {
        for (step, from, to) in [(8, lanes, half), (4, half, lanes), (2, lanes, half), (1, half, into)] {
            // SAFETY: `2 · step` rows of values are read, `step` written elsewhere.
            unsafe { (self.combine)(to, from, from.add(step * cols * self.size), step * cols) };
        }
    }

    /// Combines `chunks` rows of `n` results each, `n` values apart, into the first.
    ///
    /// # Safety
    /// `results` holds `chunks · n` values.
    pub(crate) unsafe fn tree(&self, results: *mut u8, chunks: usize, n: usize) {
        let mut step = 1;
        while step < chunks {
            for i in (0..chunks - step).step_by(2 * step) {
                // SAFETY: both rows are among the `chunks`.
                unsafe {
                    let a = results.add(i * n * self.size);
                    (self.combine)(a, a, results.add((i + step) * n * self.size), n);
                }
            }
            step *= 2;
        }
    }
}

/// Lanes for [`TOGETHER`] reductions of any type.
#[repr(C, align(64))]
struct Lanes(MaybeUninit<[u64; LANES * TOGETHER]>);

/// Writes `rows` rows of `len` values as columns.
unsafe fn columns<T: Copy>(to: *mut T, from: *const T, rows: usize, len: usize) {
    for r in 0..rows {
        for i in 0..len {
            // SAFETY: the caller's promise.
            unsafe { *to.add(i * rows + r) = *from.add(r * len + i) };
        }
    }
}

/// A reduction whose elements come in pieces, all multiples of 128 but the last.
pub(crate) struct Running {
    lanes: [u64; LANES],
    /// Elements of the chunk at hand.
    filled: usize,
    chunks: usize,
    /// Results of finished subtrees, the largest first.
    done: [u64; 48],
    depth: usize,
}

impl Running {
    pub(crate) fn new() -> Running {
        Running { lanes: [0; LANES], filled: 0, chunks: 0, done: [0; 48], depth: 0 }
    }

    /// # Safety
    /// `from` holds `n` values of `fold`, which is the same in all calls; only a sum takes products.
    pub(crate) unsafe fn push(&mut self, fold: &Fold, mut from: Values, mut n: usize) {
        while n > 0 {
            let count = n.min(CHUNK - self.filled);
            // SAFETY: `count` of the caller's values; the lanes hold sixteen.
            unsafe {
                fold.accumulate(self.lanes.as_mut_ptr().cast(), from, count, self.filled == 0);
                from = from.skip(count * fold.size);
            }
            self.filled += count;
            n -= count;
            if self.filled == CHUNK {
                self.close(fold);
            }
        }
    }

    /// Ends a chunk: its result joins the subtrees that it completes.
    fn close(&mut self, fold: &Fold) {
        let mut result = 0u64;
        let place = (&raw mut result).cast::<u8>();
        // SAFETY: all are places of one value.
        unsafe {
            (fold.loops.finish)(place, self.lanes.as_ptr().cast());
            for _ in 0..self.chunks.trailing_ones() {
                self.depth -= 1;
                (fold.combine)(place, self.done.as_ptr().add(self.depth).cast(), place, 1);
            }
        }
        self.done[self.depth] = result;
        self.depth += 1;
        self.chunks += 1;
        self.filled = 0;
    }

    /// # Safety
    /// `into` has room for one value.
    pub(crate) unsafe fn finish(&mut self, fold: &Fold, into: *mut u8) {
        if self.filled > 0 || self.chunks == 0 {
            if self.filled == 0 {
                self.lanes = [fold.identity(); LANES];
            }
            self.close(fold);
        }
        // SAFETY: all are places of one value.
        unsafe {
            let mut result = self.done[self.depth - 1];
            let place = (&raw mut result).cast::<u8>();
            for left in self.done[..self.depth - 1].iter().rev() {
                (fold.combine)(place, (&raw const *left).cast(), place, 1);
            }
            std::ptr::copy_nonoverlapping(place, into, fold.size);
        }
    }
}
