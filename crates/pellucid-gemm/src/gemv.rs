//! Matrix-vector products y = A·x, which are bound by memory bandwidth.
//!
//! A is read once, so it is not packed. One chain over k per element would be bound by the latency of an addition.
//! Therefore the order of summation differs from other products. Each element of y has [`VIRTUAL_LANES`] = 16 partial
//! sums, which are called *virtual lanes* because no register needs to have 16 lanes. Partial sum l adds the products
//! whose k index is ≡ l (mod 16), in ascending order. A fixed tree then reduces the partial sums: to sum l, it adds sum
//! l + 8, then l + 4, l + 2 and l + 1.
//!
//! The order is the same for both layouts of A. If the rows of A are contiguous, the partial sums of a few rows stay in
//! registers. If the columns of A are contiguous, the partial sums of many rows stay in cache.

use pellucid_simd::Element;
use pellucid_simd::vector::Vector;

/// The number of partial sums of each element of y, the same for every instruction set.
pub const VIRTUAL_LANES: usize = 16;

/// The number of columns that [`ColumnMatVec`] multiplies in one pass over the partial sums. Each pass loads and stores
/// the partial sums once.
const COLUMNS_PER_PASS: usize = 4;

/// A product `y[i] (+)= Σₚ a[i, p]·x[p]` with contiguous rows of A.
///
/// # Row product contract
///
/// - *Reads*: `a` is valid for reads of `rows` rows of `depth` elements, and `x` is valid for reads of `depth`
///   elements.
/// - *Writes*: `y` is valid for reads and writes of `rows` elements at stride `y_stride`. These elements are distinct
///   and overlap neither A nor x, and no other thread accesses them.
pub(crate) struct RowMatVec<T> {
    /// The number of rows of A.
    pub(crate) rows: usize,
    /// The number of columns of A.
    pub(crate) depth: usize,
    /// Element (0, 0) of A.
    pub(crate) a: *const T,
    /// The stride between rows of A, in elements.
    pub(crate) a_row_stride: isize,
    /// The contiguous vector x.
    pub(crate) x: *const T,
    /// Element 0 of y.
    pub(crate) y: *mut T,
    /// The stride between elements of y.
    pub(crate) y_stride: isize,
    /// True if the product is added to y, false if it overwrites y.
    pub(crate) accumulate: bool,
}

impl<T: Element> RowMatVec<T> {
    /// Computes the product, `R` rows at a time. The independent chains of these rows hide the latency of an addition.
    ///
    /// # Safety
    ///
    /// - The row product contract of [`RowMatVec`] holds.
    /// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    pub(crate) unsafe fn multiply<V: Vector<Scalar = T>, const R: usize>(&self) {
        debug_assert!(self.rows <= 1 || self.y_stride != 0, "the elements of y overlap: their stride is 0");
        let full_groups = self.rows - self.rows % R;
        // SAFETY: the copy reads the last `depth % 16` elements of x, which *Reads* of the row product contract covers,
        // and writes a buffer of 16 elements. `multiply_rows` requires `i + R ≤ rows`, which both loops ensure, and the
        // contract of this function.
        unsafe {
            // The remainder of x is padded with -0, which leaves the unused partial sums unchanged: they add
            // 0·(-0) = -0, and s + (-0) = s for every s.
            let mut x_tail = [T::NEGATIVE_ZERO; VIRTUAL_LANES];
            let rest = self.depth % VIRTUAL_LANES;
            x_tail.as_mut_ptr().copy_from_nonoverlapping(self.x.add(self.depth - rest), rest);
            for i in (0..full_groups).step_by(R) {
                self.multiply_rows::<V, R>(i, &x_tail);
            }
            for i in full_groups..self.rows {
                self.multiply_rows::<V, 1>(i, &x_tail);
            }
        }
    }

    /// Computes the elements `i..i + R` of y. `x_tail` is the last `depth % 16` elements of x, padded with -0.
    ///
    /// # Safety
    ///
    /// The contract of [`multiply`](Self::multiply) holds, and `i + R ≤ rows`.
    #[inline(always)]
    unsafe fn multiply_rows<V: Vector<Scalar = T>, const R: usize>(&self, i: usize, x_tail: &[T; VIRTUAL_LANES]) {
        let vectors = const { VIRTUAL_LANES / V::LANES };
        let mut row = [self.a; R];
        for (r, row) in row.iter_mut().enumerate() {
            *row = self.a.wrapping_offset((i + r) as isize * self.a_row_stride);
        }
        let rest = self.depth % VIRTUAL_LANES;
        let full_depth = self.depth - rest;
        // SAFETY: the loop over p accesses columns below `full_depth ≤ depth`. The code after the loop accesses the
        // remaining columns under masks that end at column `depth`. Rows are below `i + R ≤ rows`. Therefore *Reads*
        // and *Writes* of the row product contract cover every access.
        unsafe {
            // At most four vectors hold the 16 partial sums of a row. The compiler removes unused vectors.
            let mut sums = [[V::zero(); 4]; R];
            for p in (0..full_depth).step_by(VIRTUAL_LANES) {
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
                    let x = V::load(x_tail.as_ptr().add(first));
                    for (row, sums) in row.iter().zip(&mut sums) {
                        sums[v] = V::load_part(row.wrapping_add(full_depth + first), mask).mul_add(x, sums[v]);
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
                let y = self.y.wrapping_offset((i + r) as isize * self.y_stride);
                *y = if self.accumulate { (*y).add(sum) } else { sum };
            }
        }
    }
}

/// A product `y[i] (+)= Σₚ a[i, p]·x[p]` with contiguous columns of A.
///
/// # Column product contract
///
/// - *Reads*: `a` is valid for reads of `depth` columns of `rows` elements, and `x` is valid for reads of `depth`
///   elements.
/// - *Writes*: `y` is valid for reads and writes of `rows` elements at stride `y_stride`. These elements are distinct
///   and overlap neither A nor x, and no other thread accesses them.
/// - *Scratch*: `partial` is valid for reads and writes of [`ColumnMatVec::SCRATCH`] elements. These elements overlap
///   no operand, and no other thread accesses them.
pub(crate) struct ColumnMatVec<T> {
    /// The number of rows of A.
    pub(crate) rows: usize,
    /// The number of columns of A.
    pub(crate) depth: usize,
    /// Element (0, 0) of A.
    pub(crate) a: *const T,
    /// The stride between columns of A, in elements.
    pub(crate) a_col_stride: isize,
    /// The contiguous vector x.
    pub(crate) x: *const T,
    /// Element 0 of y.
    pub(crate) y: *mut T,
    /// The stride between elements of y.
    pub(crate) y_stride: isize,
    /// True if the product is added to y, false if it overwrites y.
    pub(crate) accumulate: bool,
    /// The scratch memory for [`ColumnMatVec::SCRATCH`] elements.
    pub(crate) partial: *mut T,
}

impl<T: Element> ColumnMatVec<T> {
    /// The number of rows in a block, whose partial sums (256 KiB) stay in L2. A block has 16 KiB of each column, which
    /// is long enough for the hardware prefetcher.
    const BLOCK: usize = 16384 / size_of::<T>();

    /// The number of scratch elements that the product needs.
    pub(crate) const SCRATCH: usize = VIRTUAL_LANES * Self::BLOCK;

    /// Computes the product, one block of rows after another.
    ///
    /// # Safety
    ///
    /// - The column product contract of [`ColumnMatVec`] holds.
    /// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    pub(crate) unsafe fn multiply<V: Vector<Scalar = T>>(&self) {
        debug_assert!(!self.partial.is_null(), "the scratch of a column product must not be null");
        debug_assert!(self.rows <= 1 || self.y_stride != 0, "the elements of y overlap: their stride is 0");
        for i in (0..self.rows).step_by(Self::BLOCK) {
            let rows = Self::BLOCK.min(self.rows - i);
            // SAFETY: *Range* of `accumulate_columns` and `reduce_lanes`: `i + rows ≤ self.rows` and `rows ≤ BLOCK`,
            // and `count` is chosen so that the last column, `p + l + (count - 1) · 16`, is below `depth`.
            // *Initialized*: the first call for each l has `p < 16`, and before `reduce_lanes` the loop has written the
            // partial sums l for all l below min(depth, 16). The caller guarantees the contract of this function.
            unsafe {
                for p in (0..self.depth).step_by(COLUMNS_PER_PASS * VIRTUAL_LANES) {
                    for l in 0..VIRTUAL_LANES.min(self.depth - p) {
                        let count = (self.depth - p - l).div_ceil(VIRTUAL_LANES).min(COLUMNS_PER_PASS);
                        if count == COLUMNS_PER_PASS {
                            self.accumulate_columns::<V, COLUMNS_PER_PASS>(i, rows, l, p + l);
                        } else {
                            for c in 0..count {
                                self.accumulate_columns::<V, 1>(i, rows, l, p + l + c * VIRTUAL_LANES);
                            }
                        }
                    }
                }
                self.reduce_lanes::<V>(i, rows);
            }
        }
    }

    /// Adds the products of the `N` columns p, p + 16, .. of A (p ≡ l mod 16) to partial sum `l` of each row of the
    /// block.
    ///
    /// # Safety
    ///
    /// - The contract of [`multiply`](Self::multiply) holds.
    /// - *Range*: `i + rows ≤ self.rows`, `rows ≤ BLOCK`, `l < 16`, and the indices of the N columns are below `depth`.
    /// - *Initialized*: partial sum `l` of the first `rows` rows of the block is initialized, unless `p < 16`.
    #[inline(always)]
    unsafe fn accumulate_columns<V: Vector<Scalar = T>, const N: usize>(
        &self,
        i: usize,
        rows: usize,
        l: usize,
        p: usize,
    ) {
        let column =
            |c: usize| self.a.wrapping_offset((p + c * VIRTUAL_LANES) as isize * self.a_col_stride).wrapping_add(i);
        // SAFETY: by *Range* of this function, and because the last vector of a column is loaded under a mask, *Reads*
        // of the column product contract covers the reads of A and x. BLOCK is a multiple of LANES, so full vectors of
        // partial sum `l` are within its BLOCK elements of the scratch (*Scratch* of that contract).
        unsafe {
            let sums = self.partial.add(l * Self::BLOCK);
            let mut x = [V::zero(); N];
            for (c, x) in x.iter_mut().enumerate() {
                *x = V::splat(self.x.add(p + c * VIRTUAL_LANES));
            }
            let is_first = p < VIRTUAL_LANES;
            let full_rows = rows - rows % V::LANES;
            for j in (0..full_rows).step_by(V::LANES) {
                let mut sum = if is_first { V::zero() } else { V::load(sums.add(j)) };
                for (c, &x) in x.iter().enumerate() {
                    sum = V::load(column(c).add(j)).mul_add(x, sum);
                }
                sum.store(sums.add(j));
            }
            if full_rows < rows {
                let mask = V::mask(rows - full_rows);
                let mut sum = if is_first { V::zero() } else { V::load(sums.add(full_rows)) };
                for (c, &x) in x.iter().enumerate() {
                    sum = V::load_part(column(c).add(full_rows), mask).mul_add(x, sum);
                }
                sum.store(sums.add(full_rows));
            }
        }
    }

    /// Reduces the 16 partial sums of each row with the fixed tree, whose first step adds sum l + 8 to sum l, and
    /// stores the results to y, or adds them to it.
    ///
    /// # Safety
    ///
    /// - The contract of [`multiply`](Self::multiply) holds.
    /// - *Range*: `i + rows ≤ self.rows` and `rows ≤ BLOCK`.
    /// - *Initialized*: the first min(depth, 16) partial sums of each row are initialized, in full vectors of rows.
    #[inline(always)]
    unsafe fn reduce_lanes<V: Vector<Scalar = T>>(&self, i: usize, rows: usize) {
        let used = self.depth.min(VIRTUAL_LANES);
        for j in (0..rows).step_by(V::LANES) {
            // SAFETY: *Initialized* of this function covers the loads of full vectors of partial sums below `used`. The
            // indices of the writes to y are below `i + rows`, so *Writes* of the column product contract covers them.
            unsafe {
                let mut lanes = [V::zero(); VIRTUAL_LANES];
                for (l, lane) in lanes[..used].iter_mut().enumerate() {
                    *lane = V::load(self.partial.add(l * Self::BLOCK + j));
                }
                if used == 1 {
                    // The tree would only add zeros. A single addition of zero has the same result: it maps -0 to 0.
                    lanes[0] = lanes[0].add(V::zero());
                } else {
                    for half in [8, 4, 2, 1] {
                        for l in 0..half {
                            lanes[l] = lanes[l].add(lanes[l + half]);
                        }
                    }
                }
                let n = V::LANES.min(rows - j);
                let y = self.y.wrapping_offset((i + j) as isize * self.y_stride);
                if self.y_stride == 1 {
                    let mask = V::mask(n);
                    let sum = if self.accumulate { V::load_part(y, mask).add(lanes[0]) } else { lanes[0] };
                    sum.store_part(y, mask);
                } else {
                    let mut sums = [T::ZERO; VIRTUAL_LANES];
                    lanes[0].store(sums.as_mut_ptr());
                    for (r, &sum) in sums[..n].iter().enumerate() {
                        let y = y.wrapping_offset(r as isize * self.y_stride);
                        *y = if self.accumulate { (*y).add(sum) } else { sum };
                    }
                }
            }
        }
    }
}
