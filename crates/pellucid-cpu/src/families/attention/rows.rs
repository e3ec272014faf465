//! Rows of scores: how they come to weights, and weights to the gradients of scores.
//!
//! Sums take 16 virtual lanes and a fixed tree, whatever the vectors. Loops are written out: a closure might not be
//! inlined, and would then be compiled without the vectors.

use super::blocks::{Matrix, ROWS, Stack};
use pellucid_gemm::VIRTUAL_LANES;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::math::Real;
use pellucid_simd::vector::{FloatVector, lanes};
use pellucid_simd::{Float, VectorWork};
use std::ops::Range;

/// What is seen besides order, by sequence and head, or of one of them.
#[derive(Clone, Copy)]
pub(super) enum Mask<T> {
    /// Whether a query sees a key, as bytes.
    Seen(Stack<u8>),
    /// What is added to scores.
    Added(Stack<T>),
}

/// The mask of one head.
#[derive(Clone, Copy)]
pub(super) enum Hidden<T> {
    Nothing,
    Seen(Matrix<u8>),
    Added(Matrix<T>),
}

/// Scores of neighbouring queries, all from key 0 on, in rows that are `row` apart and may be written up to the next
/// multiple of 16.
#[derive(Clone, Copy)]
pub(super) struct Scores<T> {
    pub(super) data: SharedPtr<T>,
    pub(super) row: usize,
}

impl<T> Scores<T> {
    /// From a row, and an element of it, on.
    pub(super) fn at(&self, row: usize, key: usize) -> *mut T {
        self.data.at((row * self.row + key) as isize)
    }
}

/// Which scores, of which queries, and how they are read.
pub(super) struct Block<T> {
    pub(super) scores: Scores<T>,
    pub(super) queries: Range<usize>,
    pub(super) keys: usize,
    pub(super) causal: bool,
    pub(super) hidden: Hidden<T>,
    pub(super) scale: T,
}

/// Room for a row of `keys` scores: whole vectors, an odd number of 16 lanes, so that rows spread over the cache.
pub(super) fn room(keys: usize) -> usize {
    (keys.div_ceil(VIRTUAL_LANES) | 1) * VIRTUAL_LANES
}

impl<T: Float> Block<T> {
    /// How many keys a query may see: those after them have no weight.
    fn seen(&self, query: usize) -> usize {
        if self.causal { self.keys.min(query + 1) } else { self.keys }
    }

    /// Multiplies products with the scale, and applies the mask.
    ///
    /// # Safety
    /// As for [`Work::run`]; the row has so many keys.
    #[inline(always)]
    unsafe fn scaled(&self, row: &mut [T], query: usize) {
        for x in &mut *row {
            *x = *x * self.scale;
        }
        // A mask that is dense has a loop of its own, for the compiler to make vectors of.
        // SAFETY: the mask has the query and the keys of the row.
        unsafe {
            match self.hidden {
                Hidden::Nothing => {}
                Hidden::Seen(mask) if mask.column == 1 => {
                    let mask = std::slice::from_raw_parts(mask.at(query, 0), row.len());
                    for (x, &seen) in row.iter_mut().zip(mask) {
                        *x = if seen != 0 { *x } else { -T::INFINITY };
                    }
                }
                Hidden::Seen(mask) => {
                    for (key, x) in row.iter_mut().enumerate() {
                        *x = if *mask.at(query, key) != 0 { *x } else { -T::INFINITY };
                    }
                }
                Hidden::Added(mask) if mask.column == 1 => {
                    let mask = std::slice::from_raw_parts(mask.at(query, 0), row.len());
                    for (x, &added) in row.iter_mut().zip(mask) {
                        *x = *x + added;
                    }
                }
                Hidden::Added(mask) => {
                    for (key, x) in row.iter_mut().enumerate() {
                        *x = *x + *mask.at(query, key);
                    }
                }
            }
        }
    }
}

/// Scores come to weights exp(x − max x), not yet divided by their sum; keys that are not seen have zeros.
pub(super) struct Weights<'a, T> {
    pub(super) block: &'a Block<T>,
    /// 1 over the sum of each row, or 0.
    pub(super) shares: *mut T,
    /// ln Σ exp x of each query.
    pub(super) logs: Matrix<T>,
}

impl<T: Float> VectorWork<T> for Weights<'_, T> {
    #[inline(always)]
    unsafe fn run<V: FloatVector<Scalar = T>>(&self) {
        let block = self.block;
        let count = block.queries.len();
        debug_assert!(count <= ROWS && block.scores.row >= room(block.keys), "{count} rows of {}", block.scores.row);
        let [mut largest, mut sums] = [[<T as Real>::ZERO; ROWS]; 2];
        for (r, query) in block.queries.clone().enumerate() {
            let seen = block.seen(query);
            // SAFETY: the caller's: rows have room for whole vectors.
            unsafe {
                let row = std::slice::from_raw_parts_mut(block.scores.at(r, 0), room(block.keys));
                block.scaled(&mut row[..seen], query);
                let m = self::largest(&row[..seen]);
                let m = if m == -T::INFINITY { <T as Real>::ZERO } else { m };
                for x in &mut row[..seen] {
                    *x = *x - m;
                }
                exponentials::<V>(row, seen, block.keys);
                (largest[r], sums[r]) = (m, sum(&row[..seen.next_multiple_of(VIRTUAL_LANES)]));
            }
        }
        // A loop over all rows, for the compiler to make vectors of.
        let zero = <T as Real>::ZERO;
        for (log, sum) in largest.iter_mut().zip(&mut sums) {
            let none = *sum == zero;
            *log = if none { T::INFINITY } else { *log + Real::ln(*sum) };
            *sum = if none { zero } else { <T as Real>::ONE / *sum };
        }
        for (r, query) in block.queries.clone().enumerate() {
            // SAFETY: the caller's.
            unsafe { *self.logs.at(query, 0) = largest[r] }
        }
        // SAFETY: the caller's.
        unsafe { self.shares.copy_from_nonoverlapping(sums.as_ptr(), count) }
    }
}

/// Scores come to weights P = exp(x − λ), and what weights contribute, Ω·Vᵀ, to the gradients of scores,
/// scale·P·(Ω·Vᵀ − Σ Ω·O).
pub(super) struct Slopes<'a, T> {
    pub(super) block: &'a Block<T>,
    /// Rows like those of the scores.
    pub(super) slopes: Scores<T>,
    pub(super) logs: Matrix<T>,
    /// Ω, O and their width.
    pub(super) g: Matrix<T>,
    pub(super) o: Matrix<T>,
    pub(super) depth: usize,
}

impl<T: Float> VectorWork<T> for Slopes<'_, T> {
    #[inline(always)]
    unsafe fn run<V: FloatVector<Scalar = T>>(&self) {
        let block = self.block;
        debug_assert!(block.scores.row.min(self.slopes.row) >= room(block.keys), "rows are too short");
        for (r, query) in block.queries.clone().enumerate() {
            let seen = block.seen(query);
            // SAFETY: the caller's: rows have room for whole vectors.
            unsafe {
                let p = std::slice::from_raw_parts_mut(block.scores.at(r, 0), room(block.keys));
                let slopes = std::slice::from_raw_parts_mut(self.slopes.at(r, 0), block.keys);
                block.scaled(&mut p[..seen], query);
                let log = *self.logs.at(query, 0);
                for x in &mut p[..seen] {
                    *x = *x - log;
                }
                exponentials::<V>(p, seen, block.keys);
                // λ is rounded, and of scores that are large it is little more than their maximum: the weights' sum is
                // 1 all the same.
                let sum = sum(&p[..seen.next_multiple_of(VIRTUAL_LANES)]);
                let share = if sum == <T as Real>::ZERO { sum } else { <T as Real>::ONE / sum };
                for p in &mut p[..seen] {
                    *p = *p * share;
                }
                let (d, scale) = (self.dot(query), block.scale);
                let (own, rest) = slopes.split_at_mut(seen);
                for (x, &p) in own.iter_mut().zip(&*p) {
                    *x = p * (*x - d) * scale;
                }
                rest.fill(<T as Real>::ZERO);
            }
        }
    }
}

impl<T: Float> Slopes<'_, T> {
    /// Σ Ω·O of a query.
    ///
    /// # Safety
    /// As for [`Work::run`].
    #[inline(always)]
    unsafe fn dot(&self, query: usize) -> T {
        let mut sums = [<T as Real>::ZERO; VIRTUAL_LANES];
        let (g, o) = ((self.g.at(query, 0), self.g.column), (self.o.at(query, 0), self.o.column));
        // SAFETY: the matrices are `depth` wide.
        unsafe {
            if (g.1, o.1) == (1, 1) {
                // A loop of its own, for the compiler to make vectors of.
                let (g, o) = (std::slice::from_raw_parts(g.0, self.depth), std::slice::from_raw_parts(o.0, self.depth));
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
                for j in 0..self.depth as isize {
                    let (g, o) = (*g.0.offset(j * g.1), *o.0.offset(j * o.1));
                    let sum = &mut sums[j as usize % VIRTUAL_LANES];
                    *sum = Real::mul_add(g, o, *sum);
                }
            }
        }
        total(sums)
    }
}

/// Multiplies rows with a number each.
pub(super) struct Scaled<T> {
    pub(super) to: Matrix<T>,
    pub(super) rows: Range<usize>,
    pub(super) width: usize,
    pub(super) by: *const T,
}

impl<T: Float> VectorWork<T> for Scaled<T> {
    #[inline(always)]
    unsafe fn run<V: FloatVector<Scalar = T>>(&self) {
        for (r, row) in self.rows.clone().enumerate() {
            // SAFETY: the caller's; rows are dense.
            let (row, by) =
                unsafe { (std::slice::from_raw_parts_mut(self.to.at(row, 0), self.width), *self.by.add(r)) };
            for x in row {
                *x = *x * by;
            }
        }
    }
}

/// The largest number, −∞ of none. A NaN is passed over: it arrives in the sum.
#[inline(always)]
fn largest<T: Float>(row: &[T]) -> T {
    let mut best = [-T::INFINITY; VIRTUAL_LANES];
    let chunks = row.chunks_exact(VIRTUAL_LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for l in 0..VIRTUAL_LANES {
            best[l] = larger(chunk[l], best[l]);
        }
    }
    for (best, &x) in best.iter_mut().zip(rest) {
        *best = larger(x, *best);
    }
    for half in [8, 4, 2, 1] {
        for l in 0..half {
            best[l] = larger(best[l], best[l + half]);
        }
    }
    best[0]
}

#[inline(always)]
fn larger<T: Float>(a: T, b: T) -> T {
    if a > b { a } else { b }
}

/// The sum of whole lanes.
#[inline(always)]
fn sum<T: Float>(row: &[T]) -> T {
    let mut sums = [<T as Real>::ZERO; VIRTUAL_LANES];
    for chunk in row.chunks_exact(VIRTUAL_LANES) {
        for l in 0..VIRTUAL_LANES {
            sums[l] = sums[l] + chunk[l];
        }
    }
    total(sums)
}

/// The sum of all lanes, by halves.
#[inline(always)]
fn total<T: Float>(mut sums: [T; VIRTUAL_LANES]) -> T {
    for half in [8, 4, 2, 1] {
        for l in 0..half {
            sums[l] = sums[l] + sums[l + half];
        }
    }
    sums[0]
}

/// eˣ of the first `seen` numbers of a row, and zeros up to `keys` and to the end of the last vector.
///
/// # Safety
/// As for [`Work::run`]; the row has room for `keys` in whole vectors.
#[inline(always)]
unsafe fn exponentials<V: FloatVector>(row: &mut [V::Scalar], seen: usize, keys: usize) {
    let zero = <V::Scalar as Real>::ZERO;
    let whole = seen.next_multiple_of(VIRTUAL_LANES);
    debug_assert!(seen <= keys && keys.max(whole) <= row.len(), "{seen} of {keys} keys in a row of {}", row.len());
    debug_assert!(VIRTUAL_LANES.is_multiple_of(V::LANES));
    // What lies behind, in the last vector, is an ordinary number; what is as good as 0, as where a mask says −∞,
    // becomes one, and then 0.
    row[seen..whole].fill(zero);
    let least = -<V::Scalar as Real>::EXP_LIMIT;
    for x in &mut row[..seen] {
        *x = if *x < least { least } else { *x };
    }
    // SAFETY: the caller's.
    unsafe {
        let mut j = 0;
        while j + 4 * V::LANES <= whole {
            exponential::<V, 4>(row.as_mut_ptr().add(j));
            j += 4 * V::LANES;
        }
        while j < whole {
            exponential::<V, 1>(row.as_mut_ptr().add(j));
            j += V::LANES;
        }
    }
    let nothing = Real::exp(least) + Real::exp(least);
    for e in &mut row[..seen] {
        *e = if *e < nothing { zero } else { *e };
    }
    row[seen..keys.max(whole)].fill(zero);
}

/// # Safety
/// As for [`Work::run`]; there are R vectors.
#[inline(always)]
unsafe fn exponential<V: FloatVector, const R: usize>(at: *mut V::Scalar) {
    // SAFETY: the caller's; vectors are their numbers.
    unsafe {
        let mut v = [V::zero(); R];
        for (r, v) in v.iter_mut().enumerate() {
            *v = V::load(at.add(r * V::LANES));
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
            e.store(at.add(r * V::LANES));
        }
    }
}
