//! The softmax of rows of scores, and its gradient.
//!
//! Sums are accumulated in [`VIRTUAL_LANES`] lanes and reduced by a fixed tree, independent of the vector length. Loops
//! are not passed as closures: a closure that is not inlined would be compiled without the instruction set of the
//! vectors.

use super::matrices::{HeadMatrix, MatrixStack};
use pellucid_gemm::VIRTUAL_LANES;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::math::Real;
use pellucid_simd::math::half::BF16;
use pellucid_simd::vector::{FloatVector, lanes};
use pellucid_simd::{Float, VectorWork};
use std::ops::Range;

/// The number of queries of a block, and of keys of a block in the backward pass. It is small, because all queries of a
/// block are multiplied by every key that is visible to the last query, even if earlier queries do not attend to the
/// key. The order of accumulation depends on this number, so the number is the same on all machines.
pub(super) const BLOCK_ROWS: usize = 32;

/// The mask of all heads.
#[derive(Clone, Copy)]
pub(super) enum AttentionMask<T> {
    /// A byte per query and key: nonzero if the key is visible.
    Boolean(MatrixStack<u8>),
    /// A value per query and key that is added to the score.
    Additive(MatrixStack<T>),
}

/// The mask of one head.
#[derive(Clone, Copy)]
pub(super) enum HeadMask<T> {
    /// There is no mask.
    None,
    /// A byte per query and key: nonzero if the key is visible.
    Boolean(HeadMatrix<u8>),
    /// A value per query and key that is added to the score.
    Additive(HeadMatrix<T>),
}

/// Scores of neighbouring queries for all keys. Rows are `row_stride` elements apart, and each row is writable up to
/// the next multiple of 16 elements.
#[derive(Clone, Copy)]
pub(super) struct ScoreRows<T> {
    /// The first score of the first row.
    pub(super) data: SharedPtr<T>,
    /// The stride from one row to the next.
    pub(super) row_stride: usize,
}

impl<T> ScoreRows<T> {
    /// Returns the address of the score of a row and a key.
    pub(super) fn element_ptr(&self, row: usize, key: usize) -> *mut T {
        self.data.offset((row * self.row_stride + key) as isize)
    }
}

/// A block of scores and the operands of its softmax.
pub(super) struct ScoreBlock<T> {
    /// The scores.
    pub(super) scores: ScoreRows<T>,
    /// The queries of the rows.
    pub(super) queries: Range<usize>,
    /// The number of keys of a row.
    pub(super) keys: usize,
    /// Whether query i attends only to the keys 0..=i.
    pub(super) causal: bool,
    /// The mask.
    pub(super) mask: HeadMask<T>,
    /// The factor by which the scores are multiplied.
    pub(super) scale: T,
    /// Whether the weights and the gradients of the scores are rounded to `bf16`. They are then `f32`.
    pub(super) rounds: bool,
}

/// Returns the length of a row for `keys` scores: an odd multiple of 16. An odd multiple distributes the rows over the
/// sets of the cache.
pub(super) fn padded_row_len(keys: usize) -> usize {
    (keys.div_ceil(VIRTUAL_LANES) | 1) * VIRTUAL_LANES
}

impl<T: Float> ScoreBlock<T> {
    /// Returns the number of keys, counted from the first, that a query can attend to without regard to the mask. The
    /// keys after them have weight 0.
    fn visible_keys(&self, query: usize) -> usize {
        if self.causal { self.keys.min(query + 1) } else { self.keys }
    }

    /// Multiplies the scores of a row by the scale and applies the mask.
    ///
    /// # Safety
    /// The mask of the block is valid for reading the query `query` and `row.len()` keys.
    #[inline(always)]
    unsafe fn scale_and_mask(&self, row: &mut [T], query: usize) {
        for x in &mut *row {
            *x = *x * self.scale;
        }
        // A contiguous mask has a separate loop, which the compiler vectorizes.
        // SAFETY: `mask` is valid for reading the query and the keys of the row (this function's contract).
        unsafe {
            match self.mask {
                HeadMask::None => {}
                HeadMask::Boolean(mask) if mask.column == 1 => {
                    let mask = std::slice::from_raw_parts(mask.element_ptr(query, 0), row.len());
                    for (x, &visible) in row.iter_mut().zip(mask) {
                        *x = if visible != 0 { *x } else { -T::INFINITY };
                    }
                }
                HeadMask::Boolean(mask) => {
                    for (key, x) in row.iter_mut().enumerate() {
                        *x = if *mask.element_ptr(query, key) != 0 { *x } else { -T::INFINITY };
                    }
                }
                HeadMask::Additive(mask) if mask.column == 1 => {
                    let mask = std::slice::from_raw_parts(mask.element_ptr(query, 0), row.len());
                    for (x, &added) in row.iter_mut().zip(mask) {
                        *x = *x + added;
                    }
                }
                HeadMask::Additive(mask) => {
                    for (key, x) in row.iter_mut().enumerate() {
                        *x = *x + *mask.element_ptr(query, key);
                    }
                }
            }
        }
    }
}

/// Overwrites scores x with the weights exp(x − max x), not yet divided by their sum. Keys that are not visible have
/// weight 0.
///
/// # Contract of the work
/// - *scores*: the block has at most [`BLOCK_ROWS`] queries; its rows are valid for reading and writing
///   [`padded_row_len`] elements, and no other thread accesses them;
/// - *mask*: the mask of the block is valid for reading all its queries and keys;
/// - *outputs*: `inverse_sums` and, at the queries of the block, `log_sums` are valid for writing one element per
///   query, and no other thread accesses these elements.
pub(super) struct SoftmaxRows<'a, T> {
    /// The scores.
    pub(super) block: &'a ScoreBlock<T>,
    /// The reciprocal of the sum of each row, or 0 if the sum is 0.
    pub(super) inverse_sums: *mut T,
    /// λ = ln Σ exp x of each query.
    pub(super) log_sums: HeadMatrix<T>,
}

impl<T: Float> VectorWork<T> for SoftmaxRows<'_, T> {
    #[inline(always)]
    unsafe fn run<V: FloatVector<Scalar = T>>(&self) {
        let block = self.block;
        let count = block.queries.len();
        debug_assert!(
            count <= BLOCK_ROWS && block.scores.row_stride >= padded_row_len(block.keys),
            "{count} rows of scores exceed BLOCK_ROWS, or their stride {} is less than padded_row_len({})",
            block.scores.row_stride,
            block.keys
        );
        let [mut maxima, mut sums] = [[<T as Real>::ZERO; BLOCK_ROWS]; 2];
        for (r, query) in block.queries.clone().enumerate() {
            let visible = block.visible_keys(query);
            // SAFETY: the rows of the block have `padded_row_len(keys)` elements (*scores*) and the mask has the query
            // and its keys (*mask*): clauses of the work's contract. The instruction set of `V` is enabled (contract of
            // `VectorWork::run`).
            unsafe {
                let row = std::slice::from_raw_parts_mut(block.scores.element_ptr(r, 0), padded_row_len(block.keys));
                block.scale_and_mask(&mut row[..visible], query);
                let m = row_max(&row[..visible]);
                let m = if m == -T::INFINITY { <T as Real>::ZERO } else { m };
                for x in &mut row[..visible] {
                    *x = *x - m;
                }
                exp_row::<V>(row, visible, block.keys);
                (maxima[r], sums[r]) = (m, row_sum(&row[..visible.next_multiple_of(VIRTUAL_LANES)]));
                if block.rounds {
                    round_row(&mut row[..visible], SMALLEST_ROUNDED_WEIGHT);
                }
            }
        }
        // A single loop over all rows, which the compiler vectorizes.
        let zero = <T as Real>::ZERO;
        for (log, sum) in maxima.iter_mut().zip(&mut sums) {
            let is_empty = *sum == zero;
            *log = if is_empty { T::INFINITY } else { *log + Real::ln(*sum) };
            *sum = if is_empty { zero } else { <T as Real>::ONE / *sum };
        }
        for (r, query) in block.queries.clone().enumerate() {
            // SAFETY: `log_sums` has a writable element for the query (*outputs* of the work's contract).
            unsafe { *self.log_sums.element_ptr(query, 0) = maxima[r] }
        }
        // SAFETY: `inverse_sums` is valid for `count` writes (*outputs* of the work's contract), and `sums` has
        // `BLOCK_ROWS ≥ count` elements.
        unsafe { self.inverse_sums.copy_from_nonoverlapping(sums.as_ptr(), count) }
    }
}

/// Overwrites scores x with the weights P, which are exp(x − λ) divided by their sum, and the products Ω·Vᵀ with the
/// gradients of the scores, scale·P·(Ω·Vᵀ − Σ Ω·O).
///
/// # Contract of the work
/// - *scores*: the rows of the block are valid for reading and writing [`padded_row_len`] elements, the rows of
///   `gradients` are valid for reading and writing one element per key, and no other thread accesses these rows;
/// - *mask*: the mask of the block is valid for reading all its queries and keys;
/// - *operands*: `log_sums`, `g` and `o` are valid for reading the queries of the block; `g` and `o` have `v_width`
///   columns.
pub(super) struct SoftmaxGradientRows<'a, T> {
    /// The scores.
    pub(super) block: &'a ScoreBlock<T>,
    /// The products Ω·Vᵀ, in rows with the layout of the scores.
    pub(super) gradients: ScoreRows<T>,
    /// λ of each query.
    pub(super) log_sums: HeadMatrix<T>,
    /// Ω, the gradient of the output.
    pub(super) g: HeadMatrix<T>,
    /// The output O.
    pub(super) o: HeadMatrix<T>,
    /// The number of columns of Ω and O.
    pub(super) v_width: usize,
}

impl<T: Float> VectorWork<T> for SoftmaxGradientRows<'_, T> {
    #[inline(always)]
    unsafe fn run<V: FloatVector<Scalar = T>>(&self) {
        let block = self.block;
        debug_assert!(
            block.scores.row_stride.min(self.gradients.row_stride) >= padded_row_len(block.keys),
            "the rows of the scores or of the gradients are shorter than padded_row_len"
        );
        for (r, query) in block.queries.clone().enumerate() {
            let visible = block.visible_keys(query);
            // SAFETY: the rows of the block have `padded_row_len(keys)` elements and the rows of `gradients` have
            // `keys` (*scores*), the mask has the query and its keys (*mask*), and `log_sums`, `g` and `o` have the
            // query (*operands*): clauses of the work's contract. The instruction set of `V` is enabled (contract of
            // `VectorWork::run`).
            unsafe {
                let p = std::slice::from_raw_parts_mut(block.scores.element_ptr(r, 0), padded_row_len(block.keys));
                let gradients = std::slice::from_raw_parts_mut(self.gradients.element_ptr(r, 0), block.keys);
                block.scale_and_mask(&mut p[..visible], query);
                let log = *self.log_sums.element_ptr(query, 0);
                for x in &mut p[..visible] {
                    *x = *x - log;
                }
                exp_row::<V>(p, visible, block.keys);
                // For scores of large magnitude, λ is rounded to little more than their maximum, so the sum of exp(x −
                // λ) differs from 1. The weights are therefore divided by their sum.
                let sum = row_sum(&p[..visible.next_multiple_of(VIRTUAL_LANES)]);
                let inverse_sum = if sum == <T as Real>::ZERO { sum } else { <T as Real>::ONE / sum };
                for p in &mut p[..visible] {
                    *p = *p * inverse_sum;
                }
                let (d, scale) = (self.dot(query), block.scale);
                let (attended, rest) = gradients.split_at_mut(visible);
                for (x, &p) in attended.iter_mut().zip(&*p) {
                    *x = p * (*x - d) * scale;
                }
                if block.rounds {
                    round_row(&mut p[..visible], SMALLEST_ROUNDED_WEIGHT);
                    round_row(attended, 0.0);
                }
                rest.fill(<T as Real>::ZERO);
            }
        }
    }
}

impl<T: Float> SoftmaxGradientRows<'_, T> {
    /// Returns Σ Ω·O of a query.
    ///
    /// # Safety
    /// `g` and `o` are valid for reading `v_width` elements of the query.
    #[inline(always)]
    unsafe fn dot(&self, query: usize) -> T {
        let mut sums = [<T as Real>::ZERO; VIRTUAL_LANES];
        let (g, o) = ((self.g.element_ptr(query, 0), self.g.column), (self.o.element_ptr(query, 0), self.o.column));
        // SAFETY: `g` and `o` have `v_width` elements in the row of the query (this function's contract).
        unsafe {
            if (g.1, o.1) == (1, 1) {
                // Contiguous rows have a separate loop, which the compiler vectorizes.
                let (g, o) =
                    (std::slice::from_raw_parts(g.0, self.v_width), std::slice::from_raw_parts(o.0, self.v_width));
                let (g, o) = (g.chunks_exact(VIRTUAL_LANES), o.chunks_exact(VIRTUAL_LANES));
                let rest = g.remainder().iter().zip(o.remainder());
                for (g, o) in g.zip(o) {
                    for l in 0..VIRTUAL_LANES {
                        sums[l] = Real::mul_add(g[l], o[l], sums[l]);
                    }
                }
                for (sum, (&g, &o)) in sums.iter_mut().zip(rest) {
                    *sum = Real::mul_add(g, o, *sum);
                }
            } else {
                for j in 0..self.v_width as isize {
                    let (g, o) = (*g.0.offset(j * g.1), *o.0.offset(j * o.1));
                    let sum = &mut sums[j as usize % VIRTUAL_LANES];
                    *sum = Real::mul_add(g, o, *sum);
                }
            }
        }
        fold_lanes(sums)
    }
}

/// Multiplies each row of a matrix by a factor.
///
/// # Contract of the work
/// The rows `rows` of `to` are contiguous and valid for reading and writing `width` elements, no other thread accesses
/// them, and `factors` is valid for reading one element per row.
pub(super) struct ScaledRows<T> {
    /// The matrix.
    pub(super) to: HeadMatrix<T>,
    /// The rows that are multiplied.
    pub(super) rows: Range<usize>,
    /// The number of columns.
    pub(super) width: usize,
    /// The factors, one per row.
    pub(super) factors: *const T,
}

impl<T: Float> VectorWork<T> for ScaledRows<T> {
    #[inline(always)]
    unsafe fn run<V: FloatVector<Scalar = T>>(&self) {
        for (r, row) in self.rows.clone().enumerate() {
            // SAFETY: the row is contiguous with `width` elements, and `factors` has one element per row (the work's
            // contract).
            let (row, factor) = unsafe {
                (std::slice::from_raw_parts_mut(self.to.element_ptr(row, 0), self.width), *self.factors.add(r))
            };
            for x in row {
                *x = *x * factor;
            }
        }
    }
}

/// The smallest nonzero weight that is rounded to `bf16`. Smaller weights become 0. They change no result, but pairs of
/// `bf16` are multiplied only if no product can be subnormal.
const SMALLEST_ROUNDED_WEIGHT: f32 = 1.0 / (1u64 << 63) as f32;

/// Rounds the elements of a row, which are `f32`, to the nearest `bf16`, and magnitudes below `smallest` to 0.
#[inline(always)]
fn round_row<T: Float>(row: &mut [T], smallest: f32) {
    assert!(size_of::<T>() == size_of::<f32>(), "only rows of `f32` are rounded");
    // SAFETY: the elements of an attention kernel are `f32` or `f64`, and these have the size of `f32`.
    let row = unsafe { std::slice::from_raw_parts_mut(row.as_mut_ptr().cast::<f32>(), row.len()) };
    for x in row {
        *x = if x.abs() < smallest { 0.0 } else { BF16::from_f32(*x).to_f32() };
    }
}

/// Returns the largest element of a row, or −∞ if it is empty. NaN elements are ignored here; they make the sum NaN.
#[inline(always)]
fn row_max<T: Float>(row: &[T]) -> T {
    let mut best = [-T::INFINITY; VIRTUAL_LANES];
    let chunks = row.chunks_exact(VIRTUAL_LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for l in 0..VIRTUAL_LANES {
            best[l] = max_ignoring_nan(chunk[l], best[l]);
        }
    }
    for (best, &x) in best.iter_mut().zip(rest) {
        *best = max_ignoring_nan(x, *best);
    }
    for half in [8, 4, 2, 1] {
        for l in 0..half {
            best[l] = max_ignoring_nan(best[l], best[l + half]);
        }
    }
    best[0]
}

/// Returns the larger of `a` and `b`, or `b` if `a` is NaN.
#[inline(always)]
fn max_ignoring_nan<T: Float>(a: T, b: T) -> T {
    if a > b { a } else { b }
}

/// Returns the sum of a row, whose length is a multiple of [`VIRTUAL_LANES`].
#[inline(always)]
fn row_sum<T: Float>(row: &[T]) -> T {
    let mut sums = [<T as Real>::ZERO; VIRTUAL_LANES];
    for chunk in row.chunks_exact(VIRTUAL_LANES) {
        for l in 0..VIRTUAL_LANES {
            sums[l] = sums[l] + chunk[l];
        }
    }
    fold_lanes(sums)
}

/// Returns the sum of all lanes, by a fixed tree that halves the number of lanes.
#[inline(always)]
fn fold_lanes<T: Float>(mut sums: [T; VIRTUAL_LANES]) -> T {
    for half in [8, 4, 2, 1] {
        for l in 0..half {
            sums[l] = sums[l] + sums[l + half];
        }
    }
    sums[0]
}

/// Replaces the first `visible` elements of a row by eˣ, and the elements after them by zeros, up to index `keys` and
/// up to the next multiple of [`VIRTUAL_LANES`].
///
/// # Safety
/// The instruction set of `V` is enabled.
#[inline(always)]
unsafe fn exp_row<V: FloatVector>(row: &mut [V::Scalar], visible: usize, keys: usize) {
    let zero = <V::Scalar as Real>::ZERO;
    let padded = visible.next_multiple_of(VIRTUAL_LANES);
    debug_assert!(
        visible <= keys && keys.max(padded) <= row.len(),
        "a row of {} elements is too short for {visible} visible of {keys} keys",
        row.len()
    );
    debug_assert!(VIRTUAL_LANES.is_multiple_of(V::LANES));
    // The vector exponential requires arguments that are not below −EXP_LIMIT. Therefore the padding up to a multiple
    // of VIRTUAL_LANES is set to 0, and smaller arguments, such as a masked −∞, are clamped. Their results are set to 0
    // below.
    row[visible..padded].fill(zero);
    let lowest = -<V::Scalar as Real>::EXP_LIMIT;
    for x in &mut row[..visible] {
        *x = if *x < lowest { lowest } else { *x };
    }
    // SAFETY: the vectors are inside `row[..padded]`, which slicing has checked above, and the instruction set of `V`
    // is enabled (this function's contract).
    unsafe {
        let mut j = 0;
        while j + 4 * V::LANES <= padded {
            exp_vectors::<V, 4>(row.as_mut_ptr().add(j));
            j += 4 * V::LANES;
        }
        while j < padded {
            exp_vectors::<V, 1>(row.as_mut_ptr().add(j));
            j += V::LANES;
        }
    }
    let smallest = Real::exp(lowest) + Real::exp(lowest);
    for e in &mut row[..visible] {
        *e = if *e < smallest { zero } else { *e };
    }
    row[visible..keys.max(padded)].fill(zero);
}

/// Replaces R vectors by eˣ.
///
/// # Safety
/// `data` is valid for reading and writing R vectors, and the instruction set of `V` is enabled.
#[inline(always)]
unsafe fn exp_vectors<V: FloatVector, const R: usize>(data: *mut V::Scalar) {
    // SAFETY: `data` is valid for R vectors, and the instruction set of `V` is enabled (this function's contract).
    unsafe {
        let mut v = [V::zero(); R];
        for (r, v) in v.iter_mut().enumerate() {
            *v = V::load(data.add(r * V::LANES));
        }
        let e = match V::exp(v) {
            Some(e) => e,
            None => {
                for x in lanes(&mut v) {
                    *x = Real::exp(*x);
                }
                v
            }
        };
        for (r, e) in e.into_iter().enumerate() {
            e.store(data.add(r * V::LANES));
        }
    }
}
