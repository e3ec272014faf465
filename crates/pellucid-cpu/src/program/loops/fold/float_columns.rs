//! Reductions of the columns of at most 128 rows of floats.
//!
//! Lane after lane, the rows of a lane are combined in registers, over a strip of columns. The fixed tree combines the
//! lanes in the order of its leaves, so only the results of a few open subtrees are stored; they fit the first-level
//! cache. All rows are read in runs of the length of a strip, which the hardware prefetches.

use super::float_rows::{VectorMonoid, combine_to_depth};
use super::monoid::{LANES, ROWS};
use crate::program::loops::loop_element::{LoopElement, are_apart};
use pellucid_simd::vector::FloatVector;
use pellucid_simd::{Float, per_isa};
use std::mem::MaybeUninit;

/// The maximum number of bytes of a row of a strip.
const STRIP_BYTES: usize = 4096;

/// The maximum number of columns of a strip, for elements of four bytes.
const STRIP: usize = STRIP_BYTES / 4;

/// The maximum number of subtrees whose results are stored at a time.
const MAX_SUBTREES: usize = LANES.ilog2() as usize;

/// The lanes in the order of the leaves of the fixed tree, which first combines lanes l and l + 8: the operands of
/// every combination are neighbours.
const TREE_ORDER: [usize; LANES] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

/// A strip of columns of at most 128 rows, and the memory of its reduction. All addresses refer to the first column.
struct FloatColumns<T> {
    /// The first row.
    src: *const T,
    /// The distance between two rows, in bytes.
    row_stride: isize,
    /// The number of rows.
    rows: usize,
    /// The number of columns.
    cols: usize,
    /// A row of identities, which replaces absent rows.
    absent: *const T,
    /// The results of the open subtrees, `STRIP` values apart, the largest subtree first.
    subtrees: *mut T,
}

/// The subtrees that a lane completes, and the memory of the result.
struct CompletedSubtrees<T> {
    /// The result of the smallest open subtree, which precedes the lane in the tree.
    last: *const T,
    /// The number of subtrees that are combined with the lane, the smallest first.
    count: usize,
    /// The memory of the result.
    to: *mut T,
}

impl<T: LoopElement> FloatColumns<T> {
    /// Writes the combination of each column to `dst`.
    ///
    /// # Safety
    /// - *Rows*: there is at least one row, and every row, and `absent`, is valid for reads of `cols` values, of which
    ///   there are at most `STRIP`.
    /// - *Results*: `dst` is valid for writes of `cols` values and `subtrees` for writes of `MAX_SUBTREES` · `STRIP`
    ///   values. Neither overlaps another operand.
    /// - *Instruction set*: the calling function has the instruction set of V enabled, on a processor that supports it.
    #[inline(always)]
    unsafe fn reduce<V: FloatVector<Scalar = T>, M: VectorMonoid<T>>(&self, dst: *mut T) {
        // All lanes at or after `leaves` are absent. An absent lane before it is the identity, which changes no bit.
        let leaves = self.rows.min(LANES).next_power_of_two();
        let mut open: usize = 0;
        for (leaf, lane) in TREE_ORDER[..leaves].iter().enumerate() {
            let (l, count) = (lane * leaves / LANES, leaf.trailing_ones() as usize);
            // SAFETY: there are `open` stored subtrees, the number of ones in the binary form of `leaf`, of which
            // `count` are completed. At most `MAX_SUBTREES` are stored at a time, because the last leaf completes all.
            // The other clauses of `combine_lane` are clauses of this function.
            unsafe {
                let subtree = |index: usize| self.subtrees.wrapping_add(index * STRIP);
                let to = if leaf + 1 == leaves { dst } else { subtree(open - count) };
                let completed = CompletedSubtrees { last: subtree(open.saturating_sub(1)), count, to };
                match self.rows.saturating_sub(l).div_ceil(LANES) {
                    0 | 1 => self.combine_lane::<V, M, 1>(l, completed),
                    2 => self.combine_lane::<V, M, 2>(l, completed),
                    3 | 4 => self.combine_lane::<V, M, 4>(l, completed),
                    _ => self.combine_lane::<V, M, 8>(l, completed),
                }
            }
            open = open + 1 - count;
        }
    }

    /// Combines rows l, l + 16, .., at most `DEPTH` (1, 2, 4 or 8), and then the subtrees that lane `l` completes.
    ///
    /// # Safety
    /// - The contract of [`FloatColumns::reduce`] holds.
    /// - *Subtrees*: the results of the completed subtrees are initialized, and `completed.to` is valid for writes of
    ///   `cols` values.
    #[inline(always)]
    unsafe fn combine_lane<V: FloatVector<Scalar = T>, M: VectorMonoid<T>, const DEPTH: usize>(
        &self,
        l: usize,
        completed: CompletedSubtrees<T>,
    ) {
        let row = |j: usize| match l + j * LANES {
            r if r < self.rows => self.src.wrapping_byte_offset(r as isize * self.row_stride),
            _ => self.absent,
        };
        let rows: [*const T; DEPTH] = std::array::from_fn(row);
        let (full, rest) = (self.cols - self.cols % V::LANES, self.cols % V::LANES);
        // SAFETY: every row, `absent`, the subtrees and the result have `cols` values (*Rows*, *Results*, *Subtrees*).
        // All vectors before column `full`, and the lanes of the last one that are in the mask, are within them.
        unsafe {
            for c in (0..full).step_by(V::LANES) {
                combine_at::<V, M, DEPTH>(&rows, &completed, c, None).store(completed.to.add(c));
            }
            if rest > 0 {
                let mask = V::mask(rest);
                let value = combine_at::<V, M, DEPTH>(&rows, &completed, full, Some(mask));
                value.store_part(completed.to.add(full), mask);
            }
        }
    }
}

/// Returns the combination of the rows and of the completed subtrees, for the columns of a vector, or those in `mask`,
/// starting at column `c`.
///
/// # Safety
/// - *Columns*: the rows and the results of the subtrees are valid for reads of these columns.
/// - *Instruction set*: the clause of [`FloatColumns::reduce`] holds.
#[inline(always)]
unsafe fn combine_at<V: FloatVector, M: VectorMonoid<V::Scalar>, const DEPTH: usize>(
    rows: &[*const V::Scalar; DEPTH],
    completed: &CompletedSubtrees<V::Scalar>,
    c: usize,
    mask: Option<V::Mask>,
) -> V {
    // SAFETY: *Columns* and *Instruction set* of this function's contract.
    unsafe {
        let identity = V::splat(&M::IDENTITY);
        let mut t = [identity; 8];
        for j in 0..DEPTH {
            t[j] = load_columns(identity, rows[j].add(c), mask);
        }
        let mut value = M::combine_vector(identity, combine_to_depth::<V, M, DEPTH>(t));
        for s in 0..completed.count {
            value = M::combine_vector(load_columns(identity, completed.last.sub(s * STRIP).add(c), mask), value);
        }
        value
    }
}

/// Loads a vector, or `identity` with the lanes in the mask loaded.
///
/// # Safety
/// `p` is valid for reads of these lanes, and the clause *Instruction set* of [`FloatColumns::reduce`] holds.
#[inline(always)]
unsafe fn load_columns<V: FloatVector>(identity: V, p: *const V::Scalar, mask: Option<V::Mask>) -> V {
    // SAFETY: this function's contract covers the reads and the instruction set.
    unsafe {
        match mask {
            None => V::load(p),
            Some(mask) => identity.load_over(p, mask),
        }
    }
}

per_isa! {
    /// Returns the [`ReduceColumnsLoop`](super::ReduceColumnsLoop) of M for floats and an instruction set.
    pub(super) fn reduce_float_columns[T: LoopElement + Float, M: VectorMonoid<T>][T, M]<S>
    (dst: *mut u8, src: *const u8, row_stride: isize, cols: usize, rows: usize) {
        debug_assert!((1..=ROWS).contains(&rows), "the number of rows must be from 1 to {ROWS}, got {rows}");
        debug_assert!(are_apart((dst, cols * size_of::<T>()), (src, cols * size_of::<T>())), "the results overlap a row");
        let mut absent = [const { MaybeUninit::<T>::uninit() }; STRIP];
        absent[..cols.min(STRIP)].fill(MaybeUninit::new(M::IDENTITY));
        let mut subtrees = [const { MaybeUninit::<T>::uninit() }; MAX_SUBTREES * STRIP];
        let (dst, src) = (dst.cast::<T>(), src.cast::<T>());
        let strip_cols = STRIP_BYTES / size_of::<T>();
        for start in (0..cols).step_by(strip_cols) {
            // SAFETY: by the contract of `ReduceColumnsLoop`, each row is valid for reads of `cols` elements (*Source*,
            // *Rows*), and `dst` for writes (*Destination*). The two arrays are local and have as many values as
            // `reduce` requires; `absent` is initialized for the columns of a strip. The function around this body
            // enables the instruction set.
            unsafe {
                let strip = FloatColumns {
                    src: src.add(start),
                    row_stride,
                    rows,
                    cols: strip_cols.min(cols - start),
                    absent: absent.as_ptr().cast(),
                    subtrees: subtrees.as_mut_ptr().cast(),
                };
                strip.reduce::<S::FloatVector<T>, M>(dst.add(start));
            }
        }
    }
}
