//! Reductions of the columns of a few rows, in registers.

use super::monoid::{LANES, Monoid, ROWS, combine_vectors};
use crate::program::loops::loop_element::LoopElement;
use pellucid_simd::per_isa;

/// Up to sixteen columns of at most 128 rows.
#[derive(Clone, Copy)]
struct ColumnGroup {
    /// The address of the first element.
    from: *const u8,
    row_stride: isize,
    rows: usize,
    /// The number of columns.
    count: usize,
}

impl ColumnGroup {
    /// Returns a row, padded with the identity.
    ///
    /// # Safety
    /// The group has more than `r` rows, and they are valid for reads.
    #[inline(always)]
    unsafe fn row<T: LoopElement, M: Monoid<T>>(self, r: usize) -> [T; LANES] {
        // SAFETY: the caller guarantees that row `r` is valid for reads of `count` elements.
        unsafe {
            let from = self.from.offset(r as isize * self.row_stride);
            if self.count == LANES {
                return from.cast::<[T; LANES]>().read_unaligned();
            }
            let mut values = [M::IDENTITY; LANES];
            for c in 0..self.count {
                values[c] = from.cast::<T>().add(c).read_unaligned();
            }
            values
        }
    }

    /// Returns row `r`, or the identity if the group has fewer rows.
    ///
    /// # Safety
    /// The rows of the group are valid for reads.
    #[inline(always)]
    unsafe fn row_or_identity<T: LoopElement, M: Monoid<T>>(self, r: usize) -> [T; LANES] {
        // SAFETY: r < rows, and the rows are valid for reads (this function's contract).
        if r < self.rows { unsafe { self.row::<T, M>(r) } } else { [M::IDENTITY; LANES] }
    }

    /// Returns lane `l` of each column: the combination of rows l, l + 16, .. Absent rows are left out, as in
    /// a last block of contiguous values.
    ///
    /// # Safety
    /// The group has more than `l` rows, and they are valid for reads.
    #[inline(always)]
    unsafe fn lane<T: LoopElement, M: Monoid<T>>(self, l: usize) -> [T; LANES] {
        // SAFETY: the match has the number of rows of the lane, so row l + 16·j exists for all j below it.
        unsafe {
            let first = self.row::<T, M>(l);
            let value = match (self.rows - l).div_ceil(LANES) {
                1 => first,
                2 => combine_vectors::<T, M>(first, self.row::<T, M>(l + LANES)),
                3 | 4 => {
                    let left = combine_vectors::<T, M>(first, self.row::<T, M>(l + LANES));
                    let third = self.row::<T, M>(l + 2 * LANES);
                    let right = combine_vectors::<T, M>(third, self.row_or_identity::<T, M>(l + 3 * LANES));
                    combine_vectors::<T, M>(left, right)
                }
                _ => {
                    let vectors = [
                        first,
                        self.row::<T, M>(l + LANES),
                        self.row::<T, M>(l + 2 * LANES),
                        self.row::<T, M>(l + 3 * LANES),
                        self.row::<T, M>(l + 4 * LANES),
                        self.row_or_identity::<T, M>(l + 5 * LANES),
                        self.row_or_identity::<T, M>(l + 6 * LANES),
                        self.row_or_identity::<T, M>(l + 7 * LANES),
                    ];
                    let mut value = [M::IDENTITY; LANES];
                    for c in 0..LANES {
                        let mut eight = [M::IDENTITY; 8];
                        for j in 0..8 {
                            eight[j] = vectors[j][c];
                        }
                        value[c] = M::combine_eight(eight);
                    }
                    value
                }
            };
            combine_vectors::<T, M>([M::IDENTITY; LANES], value)
        }
    }

    /// Returns the combination of each column.
    ///
    /// # Safety
    /// The group has 1 to 128 rows, which are valid for reads.
    #[inline(always)]
    unsafe fn reduce<T: LoopElement, M: Monoid<T>>(self) -> [T; LANES] {
        let mut lanes = [[M::IDENTITY; LANES]; LANES];
        let present = self.rows.min(LANES);
        for l in 0..present {
            // SAFETY: the group has more than `l` rows, which are valid for reads (this function's contract).
            lanes[l] = unsafe { self.lane::<T, M>(l) };
        }
        for half in [8, 4, 2, 1] {
            for l in 0..half.min(present.saturating_sub(half)) {
                lanes[l] = combine_vectors::<T, M>(lanes[l], lanes[l + half]);
            }
        }
        lanes[0]
    }
}

per_isa! {
    /// Returns the `ReduceColumnsLoop` of M for an instruction set.
    pub(super) fn reduce_columns[T: LoopElement, M: Monoid<T>][T, M]
    (dst: *mut u8, src: *const u8, row_stride: isize, cols: usize, rows: usize) {
        let size = size_of::<T>();
        debug_assert!((1..=ROWS).contains(&rows), "the number of rows must be from 1 to {ROWS}, got {rows}");
        let mut done = 0;
        while done < cols {
            // The last columns are reduced together with columns before them, so that they fill a vector.
            let start = if cols - done < LANES && cols >= LANES { cols - LANES } else { done };
            let count = LANES.min(cols - start);
            // SAFETY: by the contract of `ReduceColumnsLoop`, elements `start..start + count` of each row are valid for
            // reads (*Source*, *Rows*), and those of `dst` for writes (*Destination*).
            unsafe {
                let values = ColumnGroup { from: src.add(start * size), row_stride, rows, count }.reduce::<T, M>();
                let to = dst.add(start * size).cast::<T>();
                if count == LANES {
                    to.cast::<[T; LANES]>().write_unaligned(values);
                } else {
                    for c in 0..count {
                        to.add(c).write_unaligned(values[c]);
                    }
                }
            }
            done = start + count;
        }
    }
}
