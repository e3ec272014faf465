//! The micro-kernel: one register tile of C.
//!
//! All R × N vectors of the tile stay in registers while k runs; each step is a rank-1 update,
//! one column of A (broadcast, number by number) times one row of B (N vectors). See Goto and
//! van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008), and Van Zee and
//! van de Geijn, "BLIS" (2015).

use pellucid_simd::vector::{Vector, prefetch};

/// `C[rows × cols] (+)= A[rows × depth] · B[depth × cols]` for a tile that fits the registers.
///
/// `rows` is a parameter of the kernel; `cols` fills all vectors of the kernel but a part of the
/// last. RowMatVec of B and C are contiguous.
pub(crate) struct Tile<T> {
    pub(crate) depth: usize,
    pub(crate) a: *const T,
    pub(crate) a_row: isize,
    pub(crate) a_col: isize,
    pub(crate) b: *const T,
    pub(crate) b_row: isize,
    pub(crate) c: *mut T,
    pub(crate) c_row: isize,
    pub(crate) cols: usize,
    /// Whether C is added to, or overwritten.
    pub(crate) add: bool,
}

impl<T> Tile<T> {
    /// Each element is one chain `s ← fma(a, b, s)` over the depth, from zero, and then
    /// `c ← c + s`. The order of the products is that of k alone.
    ///
    /// # Safety
    ///
    /// As for [`Vector`]; the strided pointers are valid for R rows and `cols` columns.
    #[inline(always)]
    pub(crate) unsafe fn multiply<V: Vector<Scalar = T>, const R: usize, const N: usize>(&self) {
        let &Self { depth, mut a, a_row, a_col, mut b, b_row, c, c_row, cols, add } = self;
        // SAFETY: every access is to a row below R and a column below `cols`, the last vector
        // under the mask of the columns it has; the caller vouches for those.
        unsafe {
            let last = (N - 1) * V::LANES;
            debug_assert!(last < cols && cols <= N * V::LANES, "{cols} columns in {N} vectors");
            debug_assert!(R == 1 || c_row.unsigned_abs() >= cols, "rows of C overlap: {cols} columns, {c_row} apart");
            let mask = V::mask(cols - last);
            for r in 0..R {
                let row = c.wrapping_offset(r as isize * c_row);
                prefetch(row);
                prefetch(row.wrapping_add(cols - 1));
            }
            let mut sums = [[V::zero(); N]; R];
            for _ in 0..depth {
                let mut row = [V::zero(); N];
                for (v, b_vector) in row[..N - 1].iter_mut().enumerate() {
                    *b_vector = V::load(b.add(v * V::LANES));
                }
                row[N - 1] = V::load_part(b.add(last), mask);
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = V::splat(a.wrapping_offset(r as isize * a_row));
                    for (sum, &b_vector) in sums.iter_mut().zip(&row) {
                        *sum = x.mul_add(b_vector, *sum);
                    }
                }
                a = a.wrapping_offset(a_col);
                b = b.wrapping_offset(b_row);
            }
            for (r, sums) in sums.iter().enumerate() {
                let row = c.wrapping_offset(r as isize * c_row);
                for (v, &sum) in sums[..N - 1].iter().enumerate() {
                    let at = row.add(v * V::LANES);
                    if add { V::load(at).add(sum).store(at) } else { sum.store(at) }
                }
                let (at, sum) = (row.add(last), sums[N - 1]);
                if add { V::load_part(at, mask).add(sum).store_part(at, mask) } else { sum.store_part(at, mask) }
            }
        }
    }
}
