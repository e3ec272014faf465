//! The vectorized loops of sparse products: sums of weighted rows, and the transposition of blocks.

use super::CsrRows;
use pellucid_ir::kernel::SparseProduct;
use pellucid_simd::vector::{FloatVector, prefetch};
use pellucid_simd::{Element, Float, VectorWork};
use std::ops::Range;

/// Output rows that are sums of weighted rows of `inner` elements.
///
/// # Contract of the work
/// - *input*: row c at `x + c·inner` is valid for reads, for every column c of the rows `rows` of the matrix;
/// - *output*: `y` is valid for writes of `inner` elements for each of the rows, which overlap no input and which no
///   other thread accesses.
pub(super) struct SparseRows<'a, T> {
    pub(super) matrix: &'a CsrRows<'a, T>,
    /// The rows of the matrix that are computed.
    pub(super) rows: Range<usize>,
    /// The input row of column 0.
    pub(super) x: *const T,
    /// The first output row.
    pub(super) y: *mut T,
    /// The length of a row.
    pub(super) inner: usize,
}

impl<T: Float> VectorWork<T> for SparseRows<'_, T> {
    #[inline(always)]
    unsafe fn run<V: FloatVector<Scalar = T>>(&self) {
        let inner = self.inner;
        debug_assert!(self.rows.end <= self.matrix.rows(), "the rows {:?} are not in the matrix", self.rows);
        for (k, row) in self.rows.clone().enumerate() {
            let terms = self.matrix.terms(row);
            let y = self.y.wrapping_add(k * inner);
            self.prefetch_terms(row + PREFETCH_ROWS);
            let mut j = 0;
            // SAFETY: all reads are elements `j..inner` of rows of the columns (*input*), and all writes are elements
            // `j..inner` of output row k (*output*): clauses of the work's contract. The last mask has `inner − j`
            // lanes, less than a vector. The instruction set of `V` is enabled (contract of `VectorWork::run`).
            unsafe {
                while j + 4 * V::LANES <= inner {
                    let sums = self.sums::<V, 4>(terms, |x, r| V::load(x.add(j + r * V::LANES)));
                    for (r, sum) in sums.into_iter().enumerate() {
                        sum.store(y.add(j + r * V::LANES));
                    }
                    j += 4 * V::LANES;
                }
                while j + V::LANES <= inner {
                    let [sum] = self.sums::<V, 1>(terms, |x, _| V::load(x.add(j)));
                    sum.store(y.add(j));
                    j += V::LANES;
                }
                if j < inner {
                    let mask = V::mask(inner - j);
                    let [sum] = self.sums::<V, 1>(terms, |x, _| V::load_part(x.add(j), mask));
                    sum.store_part(y.add(j), mask);
                }
            }
        }
    }
}

/// The columns and weights of some terms.
type ColumnTerms<'a, T> = (&'a [i64], &'a [T]);

/// The distance from an output row to the row whose input rows are prefetched.
const PREFETCH_ROWS: usize = 8;

impl<T: Float> SparseRows<'_, T> {
    /// Prefetches the starts of the input rows of the first terms of output row `row`, whose addresses the hardware
    /// prefetcher cannot predict.
    #[inline(always)]
    fn prefetch_terms(&self, row: usize) {
        if row < self.rows.end {
            let (columns, _) = self.matrix.terms(row);
            for &column in columns.iter().take(SparseProduct::GROUP) {
                prefetch(self.x.wrapping_add(self.matrix.index(column) * self.inner));
            }
        }
    }

    /// Returns the sums of weighted vectors of the input rows. `load(row, r)` loads vector r of an input row.
    ///
    /// # Safety
    /// The instruction set of `V` is enabled, and `load` may be called for the rows of all columns.
    #[inline(always)]
    unsafe fn sums<V: FloatVector<Scalar = T>, const R: usize>(
        &self,
        terms: ColumnTerms<'_, T>,
        load: impl Fn(*const T, usize) -> V + Copy,
    ) -> [V; R] {
        const GROUP: usize = SparseProduct::GROUP;
        // SAFETY: the caller guarantees the instruction set and the calls of `load`.
        unsafe {
            match terms.0.len() {
                0 => [V::zero(); R],
                // A single group needs no totals.
                1..=GROUP => self.group_sum(terms, load),
                _ => total(terms, SparseProduct::LARGEST_GROUP, |terms| {
                    total(terms, GROUP.pow(4), |terms| {
                        total(terms, GROUP.pow(3), |terms| {
                            total(terms, GROUP.pow(2), |terms| total(terms, GROUP, |terms| self.group_sum(terms, load)))
                        })
                    })
                }),
            }
        }
    }

    /// Returns the sums of at least one term, in order.
    ///
    /// # Safety
    /// The contract of [`sums`](Self::sums) holds.
    #[inline(always)]
    unsafe fn group_sum<V: FloatVector<Scalar = T>, const R: usize>(
        &self,
        (columns, weights): ColumnTerms<'_, T>,
        load: impl Fn(*const T, usize) -> V,
    ) -> [V; R] {
        let term = |column: i64, weight: &T| -> [V; R] {
            let row = self.x.wrapping_add(self.matrix.index(column) * self.inner);
            // SAFETY: `weight` is a reference, and the caller guarantees the instruction set.
            std::array::from_fn(|r| unsafe { load(row, r).mul(V::splat(weight)) })
        };
        let mut sum = term(columns[0], &weights[0]);
        for (&column, weight) in columns[1..].iter().zip(&weights[1..]) {
            let term = term(column, weight);
            // SAFETY: the caller guarantees the instruction set.
            sum = std::array::from_fn(|r| unsafe { sum[r].add(term[r]) });
        }
        sum
    }
}

/// Returns the total of the sums of groups of `size` terms, in order. There is at least one term.
///
/// # Safety
/// The instruction set of `V` is enabled.
#[inline(always)]
unsafe fn total<V: FloatVector, const R: usize>(
    (columns, weights): ColumnTerms<'_, V::Scalar>,
    size: usize,
    sum: impl Fn(ColumnTerms<'_, V::Scalar>) -> [V; R],
) -> [V; R] {
    // `sum` is called in only one place, because it contains the loops of all smaller groups. The total therefore
    // starts at −0, for which −0 + s is s.
    // SAFETY: the constant is a valid scalar, and the caller guarantees the instruction set.
    let mut total = [unsafe { V::splat(&V::Scalar::NEGATIVE_ZERO) }; R];
    for group in columns.chunks(size).zip(weights.chunks(size)) {
        let sum = sum(group);
        // SAFETY: the caller guarantees the instruction set.
        total = std::array::from_fn(|r| unsafe { total[r].add(sum[r]) });
    }
    total
}

/// The transposition of a block: `to[j·to_row + i] = from[i·from_row + j]` for `rows` indices i and `columns` indices
/// j.
///
/// # Contract of the work
/// - *source*: `from` is valid for reads of the elements of the block;
/// - *target*: `to` is valid for writes of the transposed elements, which do not overlap the source and which no other
///   thread accesses.
pub(super) struct TransposedBlock<T> {
    pub(super) from: *const T,
    /// The distance between the rows of `from`, in elements.
    pub(super) from_row: usize,
    pub(super) to: *mut T,
    /// The distance between the rows of `to`, in elements.
    pub(super) to_row: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl<T: Float> VectorWork<T> for TransposedBlock<T> {
    #[inline(always)]
    unsafe fn run<V: FloatVector<Scalar = T>>(&self) {
        let &TransposedBlock { from, from_row, to, to_row, rows, columns } = self;
        let side = V::SIDE;
        debug_assert!(from_row >= columns || rows <= 1, "the rows of the source overlap");
        debug_assert!(to_row >= rows || columns <= 1, "the rows of the target overlap");
        let squares = |n: usize| n / side * side;
        // SAFETY: i < rows and j < columns for every element that is read or written: clauses *source* and *target* of
        // the work's contract. The instruction set of `V` is enabled (contract of `VectorWork::run`).
        unsafe {
            for j in (0..squares(columns)).step_by(side) {
                for i in (0..squares(rows)).step_by(side) {
                    let (from, to) = (from.add(i * from_row + j), to.add(j * to_row + i));
                    V::transpose(from, from_row as isize, to, to_row as isize);
                }
            }
            for i in 0..rows {
                for j in if i < squares(rows) { squares(columns) } else { 0 }..columns {
                    *to.add(j * to_row + i) = *from.add(i * from_row + j);
                }
            }
        }
    }
}
