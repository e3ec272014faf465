//! The loops over heads, blocks of queries and blocks of keys.

use super::rows::{Block, Hidden, Mask, Scaled, Scores, Slopes, Weights, room};
use pellucid_gemm::{Gemm, PackedPanels, Source, Strided, Threads};
use pellucid_ir::Result;
use pellucid_ir::kernel::{Attention, AttentionSizes};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::threads::{self, SharedPtr};
use pellucid_simd::Isa;
use pellucid_simd::math::Real;
use pellucid_simd::vector::prefetch_run;
use pellucid_simd::{Float, vector_work};
use std::ops::Range;

/// Queries of a block, and keys of a block backward: few, since all of them meet the keys that the last one sees. Sums
/// hang on it, so it is one number for all machines.
pub(super) const ROWS: usize = 32;

/// Scores that backward keeps, if those of one block are not more: with the gradients of as many they fill a 1 MiB L2,
/// and a sum over queries is long enough.
const KEPT: usize = 128 << 10;

/// For so few queries keys and values are not worth packing.
const FEW: usize = 8;

/// Multiply-adds that are worth a task of their own.
const TASK: u64 = 1 << 19;

/// Matrices by sequence and head; strides in elements, of any sign.
#[derive(Clone, Copy)]
pub(super) struct Stack<T> {
    pub(super) data: SharedPtr<T>,
    pub(super) sequence: isize,
    pub(super) head: isize,
    pub(super) row: isize,
    pub(super) column: isize,
}

/// One of them.
#[derive(Clone, Copy)]
pub(super) struct Matrix<T> {
    data: SharedPtr<T>,
    pub(super) row: isize,
    pub(super) column: isize,
}

impl<T> Stack<T> {
    fn of(&self, sequence: usize, head: usize) -> Matrix<T> {
        let data = SharedPtr(self.data.at(sequence as isize * self.sequence + head as isize * self.head));
        Matrix { data, row: self.row, column: self.column }
    }
}

impl<T> Matrix<T> {
    pub(super) fn at(&self, row: usize, column: usize) -> *mut T {
        self.data.at(row as isize * self.row + column as isize * self.column)
    }

    /// As a factor, from a row on: its rows are lanes.
    fn rows(&self, first: usize) -> Strided<T> {
        Strided { data: self.at(first, 0).cast_const(), lane: self.row, depth: self.column }
    }

    /// As a factor, from a row on: its columns are lanes.
    fn columns(&self, first: usize) -> Strided<T> {
        Strided { data: self.at(first, 0).cast_const(), lane: self.column, depth: self.row }
    }
}

/// Attention.
pub(super) struct Problem<'a, T> {
    pub(super) isa: Isa,
    pub(super) kernel: &'a Attention,
    pub(super) sizes: AttentionSizes,
    pub(super) q: Stack<T>,
    pub(super) k: Stack<T>,
    pub(super) v: Stack<T>,
    pub(super) mask: Option<Mask<T>>,
}

/// What gradients come from besides, and where they go.
pub(super) struct Gradient<T> {
    pub(super) g: Stack<T>,
    pub(super) o: Stack<T>,
    pub(super) logs: Stack<T>,
    pub(super) dq: Stack<T>,
    pub(super) dk: Stack<T>,
    pub(super) dv: Stack<T>,
}

/// Keys and values of a head, as factors: packed, or as they are.
enum Shared<T> {
    OwnedPanels { keys: PackedPanels<T>, values: PackedPanels<T> },
    Plain { keys: Strided<T>, values: Strided<T> },
}

/// Who works on the blocks of a head.
#[derive(Clone, Copy)]
enum Workers {
    One,
    All,
}

impl Workers {
    /// Calls `work(worker, i)` for all i below `count`; calls of one worker come one after the other.
    fn each(self, count: usize, work: impl Fn(usize, usize) + Sync) {
        match self {
            Workers::One => (0..count).for_each(|i| work(0, i)),
            Workers::All => threads::each(count, 1, work),
        }
    }

    /// The number of worker_ids.
    fn worker_ids(self, count: usize) -> usize {
        match self {
            Workers::One => 1,
            Workers::All => threads::worker_ids(count),
        }
    }
}

/// Cuts a room into parts, of whole cache lines.
struct Room<T>(SharedPtr<T>);

impl<T: Copy> Room<T> {
    fn take(&mut self, count: usize) -> SharedPtr<T> {
        let part = self.0;
        self.0 = SharedPtr(part.at(whole_lines::<T>(count) as isize));
        part
    }
}

fn whole_lines<T>(count: usize) -> usize {
    count.next_multiple_of(64 / size_of::<T>())
}

impl<T: Float> Problem<'_, T> {
    /// The result, and the logarithms.
    ///
    /// # Safety The arrays have the shapes of [`Attention`], outputs are dense along their last axis and overlap
    /// nothing; the machine has the instruction set.
    pub(super) unsafe fn result(&self, o: Stack<T>, logs: Stack<T>) -> Result<()> {
        let AttentionSizes { heads, groups, queries, keys, width, depth, .. } = self.sizes;
        let sizes = [(keys, width), (depth, keys)].map(|size| PackedPanels::<T>::room(self.isa, size));
        let packed = queries > FEW;
        // Of a head of keys, the heads of queries; of each, the blocks.
        let (each, blocks) = (heads / groups.max(1), queries.div_ceil(ROWS));
        let scores = whole_lines::<T>(queries.min(ROWS) * room(keys));
        let panels = if packed { sizes.iter().map(|&size| whole_lines::<T>(size)).sum() } else { 0 };
        let all = |workers: Workers| panels + workers.worker_ids(each * blocks) * scores;
        self.heads(all, |sequence, group, workers, mut room| {
            let (k, v) = (self.k.of(sequence, group), self.v.of(sequence, group));
            let shared = match packed {
                true => {
                    let [to_keys, to_values] = sizes.map(|size| room.take(size));
                    // SAFETY: the caller's; there is room.
                    let [keys, values] = unsafe {
                        [
                            PackedPanels::pack(self.isa, k.rows(0), (keys, width), to_keys),
                            PackedPanels::pack(self.isa, v.columns(0), (depth, keys), to_values),
                        ]
                    };
                    Shared::OwnedPanels { keys, values }
                }
                false => Shared::Plain { keys: k.rows(0), values: v.columns(0) },
            };
            workers.each(each * blocks, |worker, i| {
                let (head, first) = (group * each + i / blocks, i % blocks * ROWS);
                let place = SharedPtr(room.0.at((worker * scores) as isize));
                let (o, logs) = (o.of(sequence, head), logs.of(sequence, head));
                // SAFETY: the caller's; no other block has these rows, and no other worker this room.
                unsafe { self.block(sequence, head, first..queries.min(first + ROWS), &shared, place, o, logs) }
            });
        })
    }

    /// What a block of queries finds.
    ///
    /// # Safety
    /// As for [`result`](Self::result), with room for the scores.
    #[allow(clippy::too_many_arguments, reason = "a block, what it sees, and places")]
    unsafe fn block(
        &self,
        sequence: usize,
        head: usize,
        rows: Range<usize>,
        shared: &Shared<T>,
        place: SharedPtr<T>,
        o: Matrix<T>,
        logs: Matrix<T>,
    ) {
        let AttentionSizes { width, depth, .. } = self.sizes;
        let (count, keys, q) = (rows.len(), self.seen(rows.end), self.q.of(sequence, head));
        let scores = Scores { data: place, row: room(keys) };
        let (q, weights, to) = (q.rows(rows.start), scores.columns(), (o.at(rows.start, 0), o.row));
        let mut shares = [<T as Real>::ZERO; ROWS];
        // SAFETY: the caller's.
        unsafe {
            match shared {
                Shared::OwnedPanels { keys: k, .. } => {
                    self.multiply(&q, k, (count, keys, width), scores.place(), false)
                }
                Shared::Plain { keys: k, .. } => self.plain(q, *k, (count, keys, width), scores.place()),
            }
            self.expect(sequence, head, &rows, &[]);
            let block = self.scores(scores, rows.clone(), keys, self.hidden(sequence, head));
            vector_work::<T, _>(self.isa)(&Weights { block: &block, shares: shares.as_mut_ptr(), logs });
            match shared {
                Shared::OwnedPanels { values, .. } => self.multiply(&weights, values, (count, depth, keys), to, false),
                Shared::Plain { values, .. } => self.plain(weights, *values, (count, depth, keys), to),
            }
            vector_work::<T, _>(self.isa)(&Scaled { to: o, rows, width: depth, by: shares.as_ptr() });
        }
    }

    /// The gradients of queries, keys and values.
    ///
    /// # Safety
    /// As for [`result`](Self::result).
    pub(super) unsafe fn gradient(&self, arrays: &Gradient<T>) -> Result<()> {
        let AttentionSizes { heads, groups, queries, keys, width, depth, .. } = self.sizes;
        // As many queries at once as leave their scores in the cache.
        let high = (KEPT / room(keys) / ROWS * ROWS).clamp(ROWS, queries.next_multiple_of(ROWS).max(ROWS));
        let panels = [(keys, width), (keys, depth), (width, keys), (width, high), (depth, high)]
            .map(|size| PackedPanels::<T>::room(self.isa, size));
        let all: usize = panels.into_iter().chain([high * room(keys); 2]).map(whole_lines::<T>).sum();
        let each = heads / groups.max(1);
        self.heads(
            |_| all,
            |sequence, group, workers, mut parts| {
                let [by_key, by_value, as_depth, to_q, to_g] = panels.map(|size| parts.take(size));
                let kept = [(); 2].map(|()| Scores { data: parts.take(high * room(keys)), row: room(keys) });
                let [scores, slopes] = kept;
                let (k, v) = (self.k.of(sequence, group), self.v.of(sequence, group));
                let (dk, dv) = (arrays.dk.of(sequence, group), arrays.dv.of(sequence, group));
                // SAFETY: the caller's; there is room for all panels, and for the scores of `high` queries.
                unsafe {
                    let factors = [
                        PackedPanels::pack(self.isa, k.rows(0), (keys, width), by_key),
                        PackedPanels::pack(self.isa, v.rows(0), (keys, depth), by_value),
                        PackedPanels::pack(self.isa, k.columns(0), (width, keys), as_depth),
                    ];
                    let mut written = 0;
                    for head in group * each..(group + 1) * each {
                        let (q, g) = (self.q.of(sequence, head), arrays.g.of(sequence, head));
                        for first in (0..queries).step_by(high) {
                            let some = first..queries.min(first + high);
                            self.slopes((sequence, head), &some, &factors, kept, arrays, workers);
                            let q = PackedPanels::pack(self.isa, q.columns(first), (width, some.len()), to_q);
                            let g = PackedPanels::pack(self.isa, g.columns(first), (depth, some.len()), to_g);
                            let end = self.seen(some.end);
                            workers.each(end.div_ceil(ROWS), |_, i| {
                                let block = i * ROWS..end.min((i + 1) * ROWS);
                                // Queries before a key do not see it.
                                let skip = if self.kernel.causal { block.start.saturating_sub(first) } else { 0 };
                                let add = block.start < written;
                                for (weights, factor, to, width) in [(slopes, q, dk, width), (scores, g, dv, depth)] {
                                    let a = weights.turned(skip, block.start);
                                    let (size, to) =
                                        ((block.len(), width, some.len() - skip), (to.at(block.start, 0), to.row));
                                    self.multiply(&a, &factor.after(skip), size, to, add);
                                }
                            });
                            written = written.max(end);
                        }
                    }
                    // Nobody sees the last keys.
                    for (to, width) in [(dk, width), (dv, depth)] {
                        for key in written..keys {
                            std::slice::from_raw_parts_mut(to.at(key, 0), width).fill(<T as Real>::ZERO);
                        }
                    }
                }
            },
        )
    }

    /// The weights of some queries, the gradients of their scores, and those of the queries.
    ///
    /// # Safety
    /// As for [`result`](Self::result), with room for the scores of all these queries.
    unsafe fn slopes(
        &self,
        (sequence, head): (usize, usize),
        some: &Range<usize>,
        [by_key, by_value, as_depth]: &[PackedPanels<T>; 3],
        kept: [Scores<T>; 2],
        arrays: &Gradient<T>,
        workers: Workers,
    ) {
        let AttentionSizes { width, depth, .. } = self.sizes;
        let (q, dq) = (self.q.of(sequence, head), arrays.dq.of(sequence, head));
        let [g, o, logs] = [arrays.g, arrays.o, arrays.logs].map(|stack| stack.of(sequence, head));
        workers.each(some.len().div_ceil(ROWS), |_, i| {
            let rows = some.start + i * ROWS..some.end.min(some.start + (i + 1) * ROWS);
            let (count, keys) = (rows.len(), self.seen(rows.end));
            let [scores, slopes] = kept.map(|s| Scores { data: SharedPtr(s.at(i * ROWS, 0)), ..s });
            // SAFETY: the caller's; no other block has these rows.
            unsafe {
                self.multiply(&q.rows(rows.start), by_key, (count, keys, width), scores.place(), false);
                self.multiply(&g.rows(rows.start), by_value, (count, keys, depth), slopes.place(), false);
                self.expect(sequence, head, &rows, &[(arrays.g, depth), (arrays.o, depth)]);
                let block = self.scores(scores, rows.clone(), keys, self.hidden(sequence, head));
                vector_work::<T, _>(self.isa)(&Slopes { block: &block, slopes, logs, g, o, depth });
                let to = (dq.at(rows.start, 0), dq.row);
                self.multiply(&slopes.columns(), as_depth, (count, width, keys), to, false);
            }
        });
    }

    /// Rows × columns × depth of C (+)= A·B, on this thread; C's rows are `to.1` apart.
    ///
    /// # Safety
    /// The factors and C have so many, and nobody else touches C.
    unsafe fn multiply(
        &self,
        a: &Strided<T>,
        b: &PackedPanels<T>,
        (m, n, k): (usize, usize, usize),
        (to, row): (*mut T, isize),
        add: bool,
    ) {
        let b: &dyn Source<T> = b;
        // SAFETY: the caller's; the isa is this machine's.
        unsafe { pellucid_gemm::multiply(self.isa, a, b, (0..m, 0..n, k), to, row, add) }
    }

    /// The same for a factor that is not packed.
    ///
    /// # Safety
    /// As for [`multiply`](Self::multiply).
    unsafe fn plain(&self, a: Strided<T>, b: Strided<T>, (m, n, k): (usize, usize, usize), (to, row): (*mut T, isize)) {
        let (a_strides, b_strides) = ((a.lane, a.depth), (b.depth, b.lane));
        let shape = Gemm { m, n, k, a_strides, b_strides, c_strides: (row, 1), accumulate: false };
        let alone = [Default::default()];
        // SAFETY: the caller's; the isa is this machine's.
        unsafe { pellucid_gemm::gemm_at(self.isa, &shape, &alone, a.data, b.data, Some(to), None, Threads::One) }
    }

    /// Calls `work` for every head of keys and values, with room for as many numbers as `room` says.
    fn heads(
        &self,
        room: impl Fn(Workers) -> usize,
        work: impl Fn(usize, usize, Workers, Room<T>) + Sync,
    ) -> Result<()> {
        let AttentionSizes { batch, groups, width, depth, .. } = self.sizes;
        let heads = batch * groups;
        let threads = match self.kernel.pairs(&self.sizes).saturating_mul((width + depth) as u64) {
            products if products >= 2 * TASK => threads::count(),
            _ => 1,
        };
        let workers = if heads < threads { Workers::All } else { Workers::One };
        let together = threads > 1 && matches!(workers, Workers::One);
        let worker_ids = if together { threads::worker_ids(heads) } else { 1 };
        let each = room(workers);
        let rooms = CpuBuffer::scratch(each.saturating_mul(worker_ids).saturating_mul(size_of::<T>()))?;
        let start = SharedPtr(rooms.ensure()?.as_ptr().cast::<T>());
        let work = |worker: usize, i: usize| {
            work(i / groups, i % groups, workers, Room(SharedPtr(start.at((worker * each) as isize))));
        };
        if together {
            threads::each(heads, 1, work);
        } else {
            (0..heads).for_each(|i| work(0, i));
        }
        Ok(())
    }

    /// Asks for what the same queries of the next head will take: these rows of arrays `width` wide, and as large a
    /// part of its keys and values. Heads lie beside one another, in rows too short for the processor to foresee them.
    fn expect(&self, sequence: usize, head: usize, queries: &Range<usize>, besides: &[(Stack<T>, usize)]) {
        let AttentionSizes { batch, heads, groups, queries: all, keys, width, depth } = self.sizes;
        let [own, next] = [0, 1].map(|by| (sequence * heads + head + by, (head + by) * groups / heads));
        if next.0 >= batch * heads {
            return;
        }
        let ask = |stack: &Stack<T>, head: usize, rows: Range<usize>, width: usize| {
            let matrix = stack.of(next.0 / heads, head);
            if matrix.column == 1 {
                rows.for_each(|row| prefetch_run(matrix.at(row, 0), width));
            }
        };
        for (stack, width) in besides.iter().copied().chain([(self.q, width)]) {
            ask(&stack, next.0 % heads, queries.clone(), width);
        }
        if own.1 != next.1 {
            let rows = queries.start * keys / all..queries.end * keys / all;
            ask(&self.k, next.1 % groups, rows.clone(), width);
            ask(&self.v, next.1 % groups, rows, depth);
        }
    }

    /// How many keys the queries before `end` see.
    fn seen(&self, end: usize) -> usize {
        if self.kernel.causal { end.min(self.sizes.keys) } else { self.sizes.keys }
    }

    fn hidden(&self, sequence: usize, head: usize) -> Hidden<T> {
        match &self.mask {
            None => Hidden::Nothing,
            Some(Mask::Seen(mask)) => Hidden::Seen(mask.of(sequence, head)),
            Some(Mask::Added(mask)) => Hidden::Added(mask.of(sequence, head)),
        }
    }

    fn scores(&self, scores: Scores<T>, queries: Range<usize>, keys: usize, hidden: Hidden<T>) -> Block<T> {
        Block { scores, queries, keys, causal: self.kernel.causal, hidden, scale: T::from_f64(self.kernel.scale) }
    }
}

impl<T> Scores<T> {
    /// As a factor.
    fn columns(&self) -> Strided<T> {
        Strided { data: self.at(0, 0).cast_const(), lane: self.row as isize, depth: 1 }
    }

    /// As a factor whose lanes are the keys from one on, and whose depth the queries.
    fn turned(&self, query: usize, key: usize) -> Strided<T> {
        Strided { data: self.at(query, key).cast_const(), lane: 1, depth: self.row as isize }
    }

    /// As the place of a product.
    fn place(&self) -> (*mut T, isize) {
        (self.at(0, 0), self.row as isize)
    }
}
