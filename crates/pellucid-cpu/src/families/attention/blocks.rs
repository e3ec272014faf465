//! The loops over heads, blocks of queries and blocks of keys.

use super::factors::{FactorPacking, RightFactor};
use super::matrices::{HeadMatrix, MatrixStack};
use super::rows::{
    AttentionMask, BLOCK_ROWS, HeadMask, ScaledRows, ScoreBlock, ScoreRows, SoftmaxGradientRows, SoftmaxRows,
    padded_row_len,
};
use super::scratch::{ScratchCursor, round_to_cache_lines};
use pellucid_gemm::Strided;
use pellucid_ir::kernel::{Attention, AttentionSizes};
use pellucid_ir::{DType, Result};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::threads::{self, SharedPtr};
use pellucid_simd::Isa;
use pellucid_simd::math::Real;
use pellucid_simd::vector::prefetch_run;
use pellucid_simd::{Float, vector_work};
use std::ops::Range;

/// The largest number of scores that the backward pass keeps, unless one block of queries has more scores. As `f32`,
/// these scores and their gradients fill an L2 cache of 1 MiB; the sums over queries are then long enough to be
/// efficient.
const KEPT_SCORES: usize = 128 << 10;

/// The largest number of queries for which reading keys and values in place is faster than packing them.
const MAX_UNPACKED_QUERIES: usize = 8;

/// The smallest number of multiply-adds of a task. Distributing smaller tasks would take longer than it saves.
const MIN_TASK_WORK: u64 = 1 << 19;

/// The sizes of an attention kernel, and the operands that the output and the gradient both read.
///
/// # The array contract
/// The unsafe methods require the following of the arrays in this struct and of the arrays that are their arguments:
///
/// - *shape*: the arrays have the shapes of [`Attention`] for `sizes`, and are valid for reads;
/// - *contiguous*: outputs are contiguous along their last axis;
/// - *exclusive*: outputs are valid for writes, overlap no other array, and no other thread accesses them;
/// - *isa*: the processor supports `isa`.
pub(super) struct AttentionProblem<'a, T> {
    /// The instruction set of the kernels.
    pub(super) isa: Isa,
    /// The kernel.
    pub(super) kernel: &'a Attention,
    /// The sizes N, H, G, L, S, E and D.
    pub(super) sizes: AttentionSizes,
    /// The queries Q.
    pub(super) q: MatrixStack<T>,
    /// The keys K.
    pub(super) k: MatrixStack<T>,
    /// The values V.
    pub(super) v: MatrixStack<T>,
    /// The mask.
    pub(super) mask: Option<AttentionMask<T>>,
}

/// The operands of the gradient in addition to those in [`AttentionProblem`], and its outputs.
pub(super) struct AttentionGradientArrays<T> {
    /// Ω, the gradient of the output.
    pub(super) g: MatrixStack<T>,
    /// The output O.
    pub(super) o: MatrixStack<T>,
    /// λ = ln Σ exp(score) of every query, summed over the keys.
    pub(super) log_sums: MatrixStack<T>,
    /// The gradient of the queries: an output.
    pub(super) dq: MatrixStack<T>,
    /// The gradient of the keys: an output.
    pub(super) dk: MatrixStack<T>,
    /// The gradient of the values: an output.
    pub(super) dv: MatrixStack<T>,
}

/// The threads that share the blocks of one head.
#[derive(Clone, Copy)]
enum BlockThreads {
    /// The calling thread computes the head alone. Other threads compute other heads.
    One,
    /// All threads of the pool compute the head together. Heads are computed one after the other.
    Pool,
}

impl BlockThreads {
    /// Calls `work(worker, i)` for all i below `count`. Calls with the same `worker` never run concurrently.
    fn for_each(self, count: usize, work: impl Fn(usize, usize) + Sync) {
        match self {
            BlockThreads::One => (0..count).for_each(|i| work(0, i)),
            BlockThreads::Pool => threads::parallel_for(count, 1, work),
        }
    }

    /// Returns the number of workers that [`for_each`](Self::for_each) uses for `count` calls.
    fn worker_count(self, count: usize) -> usize {
        match self {
            BlockThreads::One => 1,
            BlockThreads::Pool => threads::worker_ids(count),
        }
    }
}

impl<T: Float> AttentionProblem<'_, T> {
    /// Computes the output, and λ = ln Σ exp(score) of every query.
    ///
    /// # Errors
    /// Returns an error if scratch memory cannot be allocated.
    ///
    /// # Safety
    /// The [array contract](AttentionProblem#the-array-contract) holds; `o` and `log_sums` are outputs.
    pub(super) unsafe fn compute_output(&self, o: MatrixStack<T>, log_sums: MatrixStack<T>) -> Result<()> {
        let AttentionSizes { heads, kv_heads, queries, keys, qk_width, v_width, .. } = self.sizes;
        let (sizes, packing) = ([(keys, qk_width), (v_width, keys)], self.packing(queries));
        let is_packed = queries > MAX_UNPACKED_QUERIES;
        // The number of query heads per head of keys, and the number of blocks of queries per head.
        let (query_heads, blocks) = (heads / kv_heads.max(1), queries.div_ceil(BLOCK_ROWS));
        let scores_len = round_to_cache_lines::<T>(queries.min(BLOCK_ROWS) * padded_row_len(keys));
        let block_len = scores_len + if is_packed { packing.left_len::<T>(keys.max(qk_width)) } else { 0 };
        let panels_len = if is_packed { sizes.iter().map(|&size| packing.right_len::<T>(size)).sum() } else { 0 };
        let scratch_len = |threads: BlockThreads| panels_len + threads.worker_count(query_heads * blocks) * block_len;
        self.for_each_head(scratch_len, |sequence, group, threads, mut scratch| {
            let (k, v) = (self.k.matrix(sequence, group), self.v.matrix(sequence, group));
            let factors = [k.row_lanes(0), v.column_lanes(0)];
            let factors = match is_packed {
                // SAFETY: by the array contract, keys and values are valid for reads (*shape*), the processor supports
                // the instruction set (*isa*), and the scratch of a head includes the panels.
                true => [0, 1].map(|i| unsafe { packing.pack(factors[i], sizes[i], &mut scratch) }),
                false => factors.map(RightFactor::InPlace),
            };
            threads.for_each(query_heads * blocks, |worker, i| {
                let (head, first) = (group * query_heads + i / blocks, i % blocks * BLOCK_ROWS);
                let [scores, pairs] =
                    [0, scores_len].map(|at| SharedPtr(scratch.0.offset((worker * block_len + at) as isize)));
                let (o, log_sums) = (o.matrix(sequence, head), log_sums.matrix(sequence, head));
                // SAFETY: the array contract, which is this function's contract. No other block has these rows of the
                // outputs, and the worker has scratch for the scores of one block and its left factors.
                unsafe {
                    let rows = first..queries.min(first + BLOCK_ROWS);
                    self.compute_output_block((sequence, head), rows, &factors, [scores, pairs], o, log_sums)
                }
            });
        })
    }

    /// Returns true if factors are rounded to `bf16`. Factors of `f16` are multiplied in `f32`, which is as fast.
    fn rounds_factors(&self) -> bool {
        self.kernel.half_factors == Some(DType::BF16)
    }

    /// Returns how the right factors of products with blocks of `rows` rows are packed.
    fn packing(&self, rows: usize) -> FactorPacking {
        let is_paired = self.rounds_factors() && self.isa.has_bf16_products();
        FactorPacking { isa: self.isa, rows: rows.min(BLOCK_ROWS), is_paired }
    }

    /// Computes the output and λ of a block of queries of one sequence and head.
    ///
    /// # Safety
    /// The [array contract](AttentionProblem#the-array-contract) holds for the rows `rows` of the outputs `o` and
    /// `log_sums`. The right factors are the keys and the values of the head. The two slices of scratch memory, which
    /// no other thread accesses, are valid for the scores of the block, and for [`FactorPacking::left_len`] elements.
    unsafe fn compute_output_block(
        &self,
        (sequence, head): (usize, usize),
        rows: Range<usize>,
        [keys_factor, values_factor]: &[RightFactor<T>; 2],
        [scores_scratch, pairs]: [SharedPtr<T>; 2],
        o: HeadMatrix<T>,
        log_sums: HeadMatrix<T>,
    ) {
        let AttentionSizes { qk_width, v_width, .. } = self.sizes;
        let (count, keys, q) = (rows.len(), self.visible_keys(rows.end), self.q.matrix(sequence, head));
        let scores = ScoreRows { data: scores_scratch, row_stride: padded_row_len(keys) };
        let (q, weights, to) = (q.row_lanes(rows.start), scores.query_lanes(), (o.element_ptr(rows.start, 0), o.row));
        let mut inverse_sums = [<T as Real>::ZERO; BLOCK_ROWS];
        // SAFETY: the products have the sizes of the head (*shape*), and the destination is the scratch of the block or
        // the rows of the block in `o`, which no other thread accesses (*exclusive*). The contracts of the work: the
        // scores are in the scratch of the block, with rows of `padded_row_len(keys)` elements; mask and `log_sums`
        // have the queries (*shape*); `o` is contiguous (*contiguous*); `inverse_sums` has an element per query. The
        // processor supports the instruction set (*isa*).
        unsafe {
            let size = (count, keys, qk_width);
            keys_factor.multiply(self.isa, q, size, scores.as_destination(), false, pairs);
            self.prefetch_next_head(sequence, head, &rows, &[]);
            let block = self.score_block(scores, rows.clone(), keys, self.head_mask(sequence, head));
            vector_work::<T, _>(self.isa)(&SoftmaxRows {
                block: &block,
                inverse_sums: inverse_sums.as_mut_ptr(),
                log_sums,
            });
            values_factor.multiply(self.isa, weights, (count, v_width, keys), to, false, pairs);
            vector_work::<T, _>(self.isa)(&ScaledRows { to: o, rows, width: v_width, factors: inverse_sums.as_ptr() });
        }
    }

    /// Computes the gradients of queries, keys and values.
    ///
    /// # Errors
    /// Returns an error if scratch memory cannot be allocated.
    ///
    /// # Safety
    /// The [array contract](AttentionProblem#the-array-contract) holds; `dq`, `dk` and `dv` are outputs.
    pub(super) unsafe fn compute_gradient(&self, arrays: &AttentionGradientArrays<T>) -> Result<()> {
        let AttentionSizes { heads, kv_heads, queries, keys, qk_width, v_width, .. } = self.sizes;
        // The size of a chunk of queries is chosen so that the scores of these queries stay in the cache.
        let chunk_queries = (KEPT_SCORES / padded_row_len(keys) / BLOCK_ROWS * BLOCK_ROWS)
            .clamp(BLOCK_ROWS, queries.next_multiple_of(BLOCK_ROWS).max(BLOCK_ROWS));
        // The right factors of the products with blocks of queries, and of those with blocks of keys.
        let ((by_queries, by_keys), columns) = ((self.packing(queries), self.packing(keys)), (qk_width, keys));
        let lens = [(keys, qk_width), (keys, v_width), columns].map(|size| by_queries.right_len::<T>(size));
        let chunk_lens = [qk_width, v_width].map(|width| by_keys.right_len::<T>((width, chunk_queries)));
        let kept_len = round_to_cache_lines::<T>(chunk_queries * padded_row_len(keys));
        let pairs_len = [(by_queries, keys.max(qk_width).max(v_width)), (by_keys, chunk_queries)]
            .map(|(packing, depth)| packing.left_len::<T>(depth))
            .into_iter()
            .max()
            .unwrap_or(0);
        let shared_len: usize = lens.into_iter().chain(chunk_lens).chain([kept_len; 2]).sum();
        let blocks = chunk_queries.max(keys).div_ceil(BLOCK_ROWS);
        let query_heads = heads / kv_heads.max(1);
        self.for_each_head(
            |threads| shared_len + threads.worker_count(blocks) * pairs_len,
            |sequence, group, threads, mut scratch| {
                let kept =
                    [(); 2].map(|()| ScoreRows { data: scratch.take(kept_len), row_stride: padded_row_len(keys) });
                let (k, v) = (self.k.matrix(sequence, group), self.v.matrix(sequence, group));
                let (dk, dv) = (arrays.dk.matrix(sequence, group), arrays.dv.matrix(sequence, group));
                // SAFETY: by the array contract, the operands have the sizes of the head (*shape*), the processor
                // supports the instruction set (*isa*), and the scratch of a head has all panels and the scores of
                // `chunk_queries` queries. No other head and no other thread accesses the rows of `dk` and `dv`
                // (*exclusive*), which are contiguous (*contiguous*).
                unsafe {
                    let packed = [
                        by_queries.pack(k.row_lanes(0), (keys, qk_width), &mut scratch),
                        by_queries.pack(v.row_lanes(0), (keys, v_width), &mut scratch),
                        by_queries.pack(k.column_lanes(0), columns, &mut scratch),
                    ];
                    let chunk_scratch = scratch.0;
                    let worker_scratch = SharedPtr(chunk_scratch.offset(chunk_lens.iter().sum::<usize>() as isize));
                    let pairs_of = |worker: usize| SharedPtr(worker_scratch.offset((worker * pairs_len) as isize));
                    let mut written = 0;
                    for head in group * query_heads..(group + 1) * query_heads {
                        for first in (0..queries).step_by(chunk_queries) {
                            let chunk = first..queries.min(first + chunk_queries);
                            self.compute_score_gradients(
                                (sequence, head),
                                &chunk,
                                &packed,
                                kept,
                                arrays,
                                (threads, &pairs_of),
                            );
                            let end = self.add_key_gradients(
                                (sequence, head),
                                &chunk,
                                (by_keys, chunk_scratch),
                                (kept, written),
                                arrays,
                                (threads, &pairs_of),
                            );
                            written = written.max(end);
                        }
                    }
                    // No query attends to the keys with index `written` and above, so the gradients of these keys and
                    // their values are 0.
                    for (to, width) in [(dk, qk_width), (dv, v_width)] {
                        for key in written..keys {
                            std::slice::from_raw_parts_mut(to.element_ptr(key, 0), width).fill(<T as Real>::ZERO);
                        }
                    }
                }
            },
        )
    }

    /// Adds the contribution of a chunk of queries to the gradients of the keys and values that they attend to. The
    /// first contribution to the keys from `written` on replaces their gradients. Returns the number of these keys.
    ///
    /// # Safety
    /// The [array contract](AttentionProblem#the-array-contract) holds; `kept` contains the results of
    /// [`compute_score_gradients`](Self::compute_score_gradients) for the chunk, and `scratch` is valid for the right
    /// factors of the chunk, packed by `packing`. For each worker, `pairs_of` returns scratch memory of
    /// [`FactorPacking::left_len`] elements. No other thread accesses this memory.
    unsafe fn add_key_gradients(
        &self,
        (sequence, head): (usize, usize),
        chunk: &Range<usize>,
        (packing, scratch): (FactorPacking, SharedPtr<T>),
        ([scores, gradients], written): ([ScoreRows<T>; 2], usize),
        arrays: &AttentionGradientArrays<T>,
        (threads, pairs_of): (BlockThreads, &(impl Fn(usize) -> SharedPtr<T> + Sync)),
    ) -> usize {
        let AttentionSizes { heads, kv_heads, qk_width, v_width, .. } = self.sizes;
        let group = head * kv_heads / heads;
        let (dk, dv) = (arrays.dk.matrix(sequence, group), arrays.dv.matrix(sequence, group));
        let mut scratch = ScratchCursor(scratch);
        // SAFETY: by the array contract, the operands have the sizes of the head (*shape*) and the processor supports
        // the instruction set (*isa*). The scratch memory is valid for both factors (this function's contract).
        let [q, g] = [(self.q, qk_width), (arrays.g, v_width)].map(|(stack, width)| unsafe {
            let columns = stack.matrix(sequence, head).column_lanes(chunk.start);
            packing.pack(columns, (width, chunk.len()), &mut scratch)
        });
        let end = self.visible_keys(chunk.end);
        threads.for_each(end.div_ceil(BLOCK_ROWS), |worker, i| {
            let key_block = i * BLOCK_ROWS..end.min((i + 1) * BLOCK_ROWS);
            // In causal attention, query i attends only to the keys 0..=i.
            let skip = if self.kernel.causal { key_block.start.saturating_sub(chunk.start) } else { 0 };
            let add = key_block.start < written;
            for (weights, factor, to, width) in [(gradients, q, dk, qk_width), (scores, g, dv, v_width)] {
                let a = weights.key_lanes(skip, key_block.start);
                let (size, to) =
                    ((key_block.len(), width, chunk.len() - skip), (to.element_ptr(key_block.start, 0), to.row));
                // SAFETY: the factors have the sizes of the product. Blocks of keys write disjoint rows of `dk` and
                // `dv`, which no other head and no other thread accesses (*exclusive*) and whose rows are contiguous
                // (*contiguous*). The worker has scratch memory for the left factor.
                unsafe { factor.skip(skip).multiply(self.isa, a, size, to, add, pairs_of(worker)) };
            }
        });
        end
    }

    /// Computes, for a chunk of queries, the softmax weights, the gradients of the scores, and the gradients of the
    /// queries.
    ///
    /// # Safety
    /// The [array contract](AttentionProblem#the-array-contract) holds; `key_rows`, `value_rows` and `key_columns` are
    /// the right factors of the head, and `kept` is valid for the scores and gradients of all queries of the chunk. For
    /// each worker, `pairs_of` returns scratch memory of [`FactorPacking::left_len`] elements. No other thread accesses
    /// this memory.
    unsafe fn compute_score_gradients(
        &self,
        (sequence, head): (usize, usize),
        chunk: &Range<usize>,
        [key_rows, value_rows, key_columns]: &[RightFactor<T>; 3],
        kept: [ScoreRows<T>; 2],
        arrays: &AttentionGradientArrays<T>,
        (threads, pairs_of): (BlockThreads, &(impl Fn(usize) -> SharedPtr<T> + Sync)),
    ) {
        let AttentionSizes { qk_width, v_width, .. } = self.sizes;
        let (q, dq) = (self.q.matrix(sequence, head), arrays.dq.matrix(sequence, head));
        let [g, o, log_sums] = [arrays.g, arrays.o, arrays.log_sums].map(|stack| stack.matrix(sequence, head));
        threads.for_each(chunk.len().div_ceil(BLOCK_ROWS), |worker, i| {
            let pairs = pairs_of(worker);
            let rows = chunk.start + i * BLOCK_ROWS..chunk.end.min(chunk.start + (i + 1) * BLOCK_ROWS);
            let (count, keys) = (rows.len(), self.visible_keys(rows.end));
            let [scores, gradients] =
                kept.map(|s| ScoreRows { data: SharedPtr(s.element_ptr(i * BLOCK_ROWS, 0)), ..s });
            // SAFETY: the products have the sizes of the head (*shape*). The rows of the block in `scores`, `gradients`
            // and `dq` belong to this block alone (*exclusive*). The contracts of the work: rows have
            // `padded_row_len(keys)` elements, and mask, `log_sums`, `g` and `o` have the queries (*shape*). The
            // processor supports the instruction set (*isa*).
            unsafe {
                let (to, size) = (scores.as_destination(), (count, keys, qk_width));
                key_rows.multiply(self.isa, q.row_lanes(rows.start), size, to, false, pairs);
                let (to, size) = (gradients.as_destination(), (count, keys, v_width));
                value_rows.multiply(self.isa, g.row_lanes(rows.start), size, to, false, pairs);
                self.prefetch_next_head(sequence, head, &rows, &[(arrays.g, v_width), (arrays.o, v_width)]);
                let block = self.score_block(scores, rows.clone(), keys, self.head_mask(sequence, head));
                vector_work::<T, _>(self.isa)(&SoftmaxGradientRows {
                    block: &block,
                    gradients,
                    log_sums,
                    g,
                    o,
                    v_width,
                });
                let to = (dq.element_ptr(rows.start, 0), dq.row);
                let weights = gradients.query_lanes();
                key_columns.multiply(self.isa, weights, (count, qk_width, keys), to, false, pairs);
            }
        });
    }

    /// Calls `work(sequence, head, threads, scratch)` for every head of keys and values.
    ///
    /// `scratch` has `scratch_len(threads)` elements. Large computations use several threads: the heads are distributed
    /// over them if there are at least as many heads as threads, otherwise all threads compute each head together.
    ///
    /// # Errors
    /// Returns an error if scratch memory cannot be allocated.
    fn for_each_head(
        &self,
        scratch_len: impl Fn(BlockThreads) -> usize,
        work: impl Fn(usize, usize, BlockThreads, ScratchCursor<T>) + Sync,
    ) -> Result<()> {
        let AttentionSizes { batch, kv_heads, qk_width, v_width, .. } = self.sizes;
        let heads = batch * kv_heads;
        let threads = match self.kernel.pairs(&self.sizes).saturating_mul((qk_width + v_width) as u64) {
            products if products >= 2 * MIN_TASK_WORK => threads::count(),
            _ => 1,
        };
        let block_threads = if heads < threads { BlockThreads::Pool } else { BlockThreads::One };
        let is_parallel_over_heads = threads > 1 && matches!(block_threads, BlockThreads::One);
        let workers = if is_parallel_over_heads { threads::worker_ids(heads) } else { 1 };
        let head_len = scratch_len(block_threads);
        let buffer = CpuBuffer::scratch(head_len.saturating_mul(workers).saturating_mul(size_of::<T>()))?;
        let start = SharedPtr(buffer.ensure()?.as_ptr().cast::<T>());
        let work = |worker: usize, i: usize| {
            work(
                i / kv_heads,
                i % kv_heads,
                block_threads,
                ScratchCursor(SharedPtr(start.offset((worker * head_len) as isize))),
            );
        };
        if is_parallel_over_heads {
            threads::parallel_for(heads, 1, work);
        } else {
            (0..heads).for_each(|i| work(0, i));
        }
        Ok(())
    }

    /// Prefetches operands of the next head: the rows `queries` of its queries and of its matrices in `others` (pairs
    /// of an array and its width) and, if the next head uses other keys and values than this head, a proportional part
    /// of these. The heads are interleaved in memory, so their rows are too short for the hardware prefetcher.
    fn prefetch_next_head(
        &self,
        sequence: usize,
        head: usize,
        queries: &Range<usize>,
        others: &[(MatrixStack<T>, usize)],
    ) {
        let AttentionSizes { batch, heads, kv_heads, queries: query_count, keys, qk_width, v_width } = self.sizes;
        let [current, next] = [0, 1].map(|by| (sequence * heads + head + by, (head + by) * kv_heads / heads));
        if next.0 >= batch * heads {
            return;
        }
        let prefetch_rows = |stack: &MatrixStack<T>, head: usize, rows: Range<usize>, width: usize| {
            let matrix = stack.matrix(next.0 / heads, head);
            if matrix.column == 1 {
                rows.for_each(|row| prefetch_run(matrix.element_ptr(row, 0), width));
            }
        };
        for (stack, width) in others.iter().copied().chain([(self.q, qk_width)]) {
            prefetch_rows(&stack, next.0 % heads, queries.clone(), width);
        }
        if current.1 != next.1 {
            let rows = queries.start * keys / query_count..queries.end * keys / query_count;
            prefetch_rows(&self.k, next.1 % kv_heads, rows.clone(), qk_width);
            prefetch_rows(&self.v, next.1 % kv_heads, rows, v_width);
        }
    }

    /// Returns the number of keys that the queries before `end` can attend to without regard to the mask.
    fn visible_keys(&self, end: usize) -> usize {
        if self.kernel.causal { end.min(self.sizes.keys) } else { self.sizes.keys }
    }

    /// Returns the mask of a sequence and a head.
    fn head_mask(&self, sequence: usize, head: usize) -> HeadMask<T> {
        match &self.mask {
            None => HeadMask::None,
            Some(AttentionMask::Boolean(mask)) => HeadMask::Boolean(mask.matrix(sequence, head)),
            Some(AttentionMask::Additive(mask)) => HeadMask::Additive(mask.matrix(sequence, head)),
        }
    }

    /// Returns a block of scores with its operands.
    fn score_block(
        &self,
        scores: ScoreRows<T>,
        queries: Range<usize>,
        keys: usize,
        mask: HeadMask<T>,
    ) -> ScoreBlock<T> {
        let (Attention { causal, scale, .. }, rounds) = (*self.kernel, self.rounds_factors());
        ScoreBlock { scores, queries, keys, causal, mask, rounds, scale: T::from_f64(scale) }
    }
}

impl<T> ScoreRows<T> {
    /// Returns the scores as an operand A whose rows are the queries.
    fn query_lanes(&self) -> Strided<T> {
        Strided { data: self.element_ptr(0, 0).cast_const(), lane: self.row_stride as isize, depth: 1 }
    }

    /// Returns the transposed scores, starting at a query and a key, as an operand A whose rows are the keys.
    fn key_lanes(&self, query: usize, key: usize) -> Strided<T> {
        Strided { data: self.element_ptr(query, key).cast_const(), lane: 1, depth: self.row_stride as isize }
    }

    /// Returns the destination of a product: the first score and the row stride.
    fn as_destination(&self) -> (*mut T, isize) {
        (self.element_ptr(0, 0), self.row_stride as isize)
    }
}
