//! Matrix times vector: y = A·x, as fast as memory delivers A.
//!
//! Nothing is reused, so nothing is packed. One chain over k per element would be bound by the
//! latency of its additions, so y has an order of its own: [`VIRTUAL_LANES`] partial sums, lane l
//! over the k ≡ l (mod 16) in ascending order, then a fixed tree: lane l takes lane l + 8, then
//! l + 4, l + 2, l + 1. Both layouts of A follow it:
//! contiguous rows keep the lanes of a few rows in registers, contiguous columns keep the lanes
//! of many rows in cache.

use pellucid_simd::Element;
use pellucid_simd::vector::Vector;

/// Partial sums per element, the same for every instruction set.
pub const VIRTUAL_LANES: usize = 16;

/// ColumnMatVec multiplied at once by [`ColumnMatVec`]: they share the traffic of the partial sums.
const AT_ONCE: usize = 4;

/// `y[i] (+)= Σ a[i, p]·x[p]` with contiguous rows of A, and x contiguous.
pub(crate) struct RowMatVec<T> {
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    pub(crate) a: *const T,
    pub(crate) a_row: isize,
    pub(crate) x: *const T,
    pub(crate) y: *mut T,
    pub(crate) y_step: isize,
    pub(crate) add: bool,
}

impl<T: Element> RowMatVec<T> {
    /// `R` rows at a time, so that enough independent chains hide the latency of an addition.
    ///
    /// # Safety
    ///
    /// As for [`Vector`]; the pointers are valid for `rows` and `depth`.
    #[inline(always)]
    pub(crate) unsafe fn multiply<V: Vector<Scalar = T>, const R: usize>(&self) {
        debug_assert!(self.rows <= 1 || self.y_step != 0, "elements of y overlap");
        let whole = self.rows - self.rows % R;
        // SAFETY: rows stay below `self.rows`; the end of x has at most 16 numbers.
        unsafe {
            // The end of x, filled up so that lanes without a number stay as they are to the last
            // bit: they get 0·(-0) = -0, and s + (-0) = s for every s.
            let mut end = [T::NEGATIVE_ZERO; VIRTUAL_LANES];
            let rest = self.depth % VIRTUAL_LANES;
            end.as_mut_ptr().copy_from_nonoverlapping(self.x.add(self.depth - rest), rest);
            for i in (0..whole).step_by(R) {
                self.rows::<V, R>(i, &end);
            }
            for i in whole..self.rows {
                self.rows::<V, 1>(i, &end);
            }
        }
    }

    /// # Safety
    ///
    /// As for [`multiply`](Self::multiply); rows `i..i + R` exist.
    #[inline(always)]
    unsafe fn rows<V: Vector<Scalar = T>, const R: usize>(&self, i: usize, end: &[T; VIRTUAL_LANES]) {
        let vectors = const { VIRTUAL_LANES / V::LANES };
        let mut row = [self.a; R];
        for (r, row) in row.iter_mut().enumerate() {
            *row = self.a.wrapping_offset((i + r) as isize * self.a_row);
        }
        let rest = self.depth % VIRTUAL_LANES;
        let whole = self.depth - rest;
        // SAFETY: p + lane < whole ≤ depth in the loop, and masks stop at the depth after it.
        unsafe {
            // At most four vectors hold the lanes; those not used never come to be.
            let mut sums = [[V::zero(); 4]; R];
            for p in (0..whole).step_by(VIRTUAL_LANES) {
                for v in 0..vectors {
                    let x = V::load(self.x.add(p + v * V::LANES));
                    for (row, sums) in row.iter().zip(&mut sums) {
                        sums[v] = V::load(row.add(p + v * V::LANES)).mul_add(x, sums[v]);
                    }
                }
            }
            if rest > 0 {
                for v in 0..vectors {
                    let first = v * V::LANES;
                    let mask = V::mask(rest.saturating_sub(first).min(V::LANES));
                    let x = V::load(end.as_ptr().add(first));
                    for (row, sums) in row.iter().zip(&mut sums) {
                        sums[v] = V::load_part(row.wrapping_add(whole + first), mask).mul_add(x, sums[v]);
                    }
                }
            }
            for (r, lanes) in sums.iter_mut().enumerate() {
                let mut half = vectors;
                while half > 1 {
                    half /= 2;
                    for v in 0..half {
                        lanes[v] = lanes[v].add(lanes[v + half]);
                    }
                }
                let sum = lanes[0].fold();
                let y = self.y.wrapping_offset((i + r) as isize * self.y_step);
                *y = if self.add { (*y).add(sum) } else { sum };
            }
        }
    }
}

/// `y[i] (+)= Σ a[i, p]·x[p]` with contiguous columns of A, and x contiguous.
pub(crate) struct ColumnMatVec<T> {
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    pub(crate) a: *const T,
    pub(crate) a_col: isize,
    pub(crate) x: *const T,
    pub(crate) y: *mut T,
    pub(crate) y_step: isize,
    pub(crate) add: bool,
    /// Scratch for [`ColumnMatVec::SCRATCH`] elements.
    pub(crate) partial: *mut T,
}

impl<T: Element> ColumnMatVec<T> {
    /// RowMatVec whose partial sums lie in L2 together: 16 KiB of each column, so that the hardware
    /// sees long streams, and 256 KiB of sums.
    const BLOCK: usize = 16384 / size_of::<T>();

    /// Numbers of scratch that the product needs.
    pub(crate) const SCRATCH: usize = VIRTUAL_LANES * Self::BLOCK;

    /// # Safety
    ///
    /// As for [`Vector`]; the pointers are valid for `rows` and `depth`.
    #[inline(always)]
    pub(crate) unsafe fn multiply<V: Vector<Scalar = T>>(&self) {
        debug_assert!(!self.partial.is_null(), "no scratch");
        debug_assert!(self.rows <= 1 || self.y_step != 0, "elements of y overlap");
        for i in (0..self.rows).step_by(Self::BLOCK) {
            let rows = Self::BLOCK.min(self.rows - i);
            // SAFETY: rows `i..i + rows` exist.
            unsafe {
                for p in (0..self.depth).step_by(AT_ONCE * VIRTUAL_LANES) {
                    for l in 0..VIRTUAL_LANES.min(self.depth - p) {
                        let count = (self.depth - p - l).div_ceil(VIRTUAL_LANES).min(AT_ONCE);
                        if count == AT_ONCE {
                            self.accumulate::<V, AT_ONCE>(i, rows, l, p + l);
                        } else {
                            for c in 0..count {
                                self.accumulate::<V, 1>(i, rows, l, p + l + c * VIRTUAL_LANES);
                            }
                        }
                    }
                }
                self.finish::<V>(i, rows);
            }
        }
    }

    /// Adds columns p, p + 16, .. (`N` of them, all of lane l) to the partial sums of that lane.
    ///
    /// # Safety
    ///
    /// As for [`multiply`](Self::multiply); rows `i..i + rows` and the columns exist.
    #[inline(always)]
    unsafe fn accumulate<V: Vector<Scalar = T>, const N: usize>(&self, i: usize, rows: usize, l: usize, p: usize) {
        let column = |c: usize| self.a.wrapping_offset((p + c * VIRTUAL_LANES) as isize * self.a_col).wrapping_add(i);
        // SAFETY: accesses stay below `rows`, the last vector under a mask; the partial sums have
        // room for whole vectors.
        unsafe {
            let sums = self.partial.add(l * Self::BLOCK);
            let mut x = [V::zero(); N];
            for (c, x) in x.iter_mut().enumerate() {
                *x = V::splat(self.x.add(p + c * VIRTUAL_LANES));
            }
            let fresh = p < VIRTUAL_LANES;
            let whole = rows - rows % V::LANES;
            for j in (0..whole).step_by(V::LANES) {
                let mut sum = if fresh { V::zero() } else { V::load(sums.add(j)) };
                for (c, &x) in x.iter().enumerate() {
                    sum = V::load(column(c).add(j)).mul_add(x, sum);
                }
                sum.store(sums.add(j));
            }
            if whole < rows {
                let mask = V::mask(rows - whole);
                let mut sum = if fresh { V::zero() } else { V::load(sums.add(whole)) };
                for (c, &x) in x.iter().enumerate() {
                    sum = V::load_part(column(c).add(whole), mask).mul_add(x, sum);
                }
                sum.store(sums.add(whole));
            }
        }
    }

    /// Sums the lanes by the fixed tree, lane l and l + 8 first, and stores.
    ///
    /// # Safety
    ///
    /// As for [`multiply`](Self::multiply); the partial sums of min(depth, 16) lanes are written.
    #[inline(always)]
    unsafe fn finish<V: Vector<Scalar = T>>(&self, i: usize, rows: usize) {
        let used = self.depth.min(VIRTUAL_LANES);
        for j in (0..rows).step_by(V::LANES) {
            // SAFETY: lanes below `used` hold whole vectors; y is written below `rows` only.
            unsafe {
                let mut lanes = [V::zero(); VIRTUAL_LANES];
                for (l, lane) in lanes[..used].iter_mut().enumerate() {
                    *lane = V::load(self.partial.add(l * Self::BLOCK + j));
                }
                for half in [8, 4, 2, 1] {
                    for l in 0..half {
                        lanes[l] = lanes[l].add(lanes[l + half]);
                    }
                }
                let n = V::LANES.min(rows - j);
                let y = self.y.wrapping_offset((i + j) as isize * self.y_step);
                if self.y_step == 1 {
                    let mask = V::mask(n);
                    let sum = if self.add { V::load_part(y, mask).add(lanes[0]) } else { lanes[0] };
                    sum.store_part(y, mask);
                } else {
                    let mut sums = [T::ZERO; VIRTUAL_LANES];
                    lanes[0].store(sums.as_mut_ptr());
                    for (r, &sum) in sums[..n].iter().enumerate() {
                        let y = y.wrapping_offset(r as isize * self.y_step);
                        *y = if self.add { (*y).add(sum) } else { sum };
                    }
                }
            }
        }
    }
}
