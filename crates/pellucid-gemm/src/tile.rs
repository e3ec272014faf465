//! The micro-kernel: the product for one register tile of C.
//!
//! All R × N vectors of the tile stay in registers while the loop over the depth runs. Each step is a rank-1 update:
//! one column of A, broadcast element by element, times one row of B (N vectors). See Goto and van de Geijn, "Anatomy
//! of High-Performance Matrix Multiplication" (2008), and Van Zee and van de Geijn, "BLIS" (2015).

use pellucid_simd::vector::{Vector, prefetch};

/// The operands of one micro-kernel call: `C[rows × cols] (+)= A[rows × depth] · B[depth × cols]`.
///
/// The tile fits the registers. `rows` is a constant of the kernel. The rows of B and C are contiguous. All strides are
/// in elements.
///
/// # Tile contract
///
/// - *Reads*: `a` is valid for reads of `rows × depth` elements at its strides, and `b` of `depth × cols` elements.
/// - *Writes*: `c` is valid for reads and writes of `rows × cols` elements, no other thread accesses them, and they
///   overlap neither A nor B.
/// - *Width*: `cols` needs exactly the N vectors of the kernel: `(N - 1) · LANES < cols ≤ N · LANES`.
pub(crate) struct RegisterTile<T> {
    /// Length of the sums (k of this block).
    pub(crate) depth: usize,
    /// Element (0, 0) of A.
    pub(crate) a: *const T,
    /// Stride between rows of A.
    pub(crate) a_row_stride: isize,
    /// Stride between columns of A, which are the steps of the depth.
    pub(crate) a_col_stride: isize,
    /// Element (0, 0) of B.
    pub(crate) b: *const T,
    /// Stride between rows of B, which are the steps of the depth.
    pub(crate) b_row_stride: isize,
    /// Element (0, 0) of C.
    pub(crate) c: *mut T,
    /// Stride between rows of C.
    pub(crate) c_row_stride: isize,
    /// Number of columns of C.
    pub(crate) cols: usize,
    /// True if the product is added to C, false if it overwrites C.
    pub(crate) accumulate: bool,
}

impl<T> RegisterTile<T> {
    /// Computes the tile with `R` rows and `N` vectors.
    ///
    /// Each element is one chain `s ← fma(a, b, s)` over the depth, which starts at zero, and then `c ← c + s`. The
    /// order of the products is the order of k.
    ///
    /// # Safety
    ///
    /// - The tile contract of [`RegisterTile`] holds for R rows and N vectors.
    /// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    pub(crate) unsafe fn multiply<V: Vector<Scalar = T>, const R: usize, const N: usize>(&self) {
        let &Self { depth, mut a, a_row_stride, a_col_stride, mut b, b_row_stride, c, c_row_stride, cols, accumulate } =
            self;
        // SAFETY: every access is to a row below R and a column below `cols`, because the last vector uses the mask of
        // its valid columns. *Reads* and *Writes* of the tile contract cover these elements, and *Width* makes the mask
        // that of one vector. The caller guarantees the contract of `Vector`.
        unsafe {
            let last = (N - 1) * V::LANES;
            debug_assert!(last < cols && cols <= N * V::LANES, "{cols} columns do not need {N} vectors");
            debug_assert!(
                R == 1 || c_row_stride.unsigned_abs() >= cols,
                "rows of C overlap: {cols} columns, row stride {c_row_stride}"
            );
            let mask = V::mask(cols - last);
            for r in 0..R {
                let row = c.wrapping_offset(r as isize * c_row_stride);
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
                    let x = V::splat(a.wrapping_offset(r as isize * a_row_stride));
                    for (sum, &b_vector) in sums.iter_mut().zip(&row) {
                        *sum = x.mul_add(b_vector, *sum);
                    }
                }
                a = a.wrapping_offset(a_col_stride);
                b = b.wrapping_offset(b_row_stride);
            }
            for (r, sums) in sums.iter().enumerate() {
                let row = c.wrapping_offset(r as isize * c_row_stride);
                for (v, &sum) in sums[..N - 1].iter().enumerate() {
                    let to = row.add(v * V::LANES);
                    if accumulate { V::load(to).add(sum).store(to) } else { sum.store(to) }
                }
                let (to, sum) = (row.add(last), sums[N - 1]);
                if accumulate { V::load_part(to, mask).add(sum).store_part(to, mask) } else { sum.store_part(to, mask) }
            }
        }
    }
}
