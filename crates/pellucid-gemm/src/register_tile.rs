//! The micro-kernel: the product for one register tile of C.
//!
//! All R × N vectors of the tile stay in registers during the loop over k. Each iteration is a rank-1 update: one
//! column of A, broadcast element by element, times one row of B (N vectors). See Goto and van de Geijn, "Anatomy of
//! High-Performance Matrix Multiplication" (2008), and Van Zee and van de Geijn, "BLIS" (2015).

use pellucid_simd::vector::{Vector, prefetch};

/// The operands of one micro-kernel call: `C[rows × cols] (+)= A[rows × depth] · B[depth × cols]`.
///
/// The tile fits the registers. In kernels for vectors, `rows` is a constant of the kernel. The rows of B and C are
/// contiguous. All strides are in elements.
///
/// # Tile contract
///
/// - *Reads*: `a` is valid for reads of `rows × depth` elements at its strides. `b` is valid for reads of `depth ×
///   cols` elements, or of `depth` rows of N full vectors if the kernel loads full vectors.
/// - *Writes*: `c` is valid for reads and writes of `rows × cols` elements, no other thread accesses them, and they
///   overlap neither A nor B.
/// - *Width*: `cols` columns need exactly the N vectors of the kernel: `(N - 1) · LANES < cols ≤ N · LANES`.
pub(crate) struct RegisterTile<T> {
    /// The number of products in each sum: the size of this block of k.
    pub(crate) depth: usize,
    /// The number of rows of A and C.
    pub(crate) rows: usize,
    /// Element (0, 0) of A.
    pub(crate) a: *const T,
    /// The stride between rows of A.
    pub(crate) a_row_stride: isize,
    /// The stride between columns of A (along k).
    pub(crate) a_col_stride: isize,
    /// Element (0, 0) of B.
    pub(crate) b: *const T,
    /// The stride between rows of B (along k).
    pub(crate) b_row_stride: isize,
    /// Element (0, 0) of C.
    pub(crate) c: *mut T,
    /// The stride between rows of C.
    pub(crate) c_row_stride: isize,
    /// The number of columns of C.
    pub(crate) cols: usize,
    /// True if the product is added to C, false if it overwrites C.
    pub(crate) accumulate: bool,
}

impl<T> RegisterTile<T> {
    /// Computes the tile with `R` rows and `N` vectors. If `UNMASKED`, rows of B are loaded as full vectors.
    ///
    /// Each element of the product is computed as one chain `s ← fma(a, b, s)` in ascending order of k, starting with s
    /// = 0. The result is `c ← c + s` if the product is added to C, and `c ← s` otherwise.
    ///
    /// The loop has few instructions other than the multiply-adds, because all instructions share the ports of the
    /// processor. On Intel, a masked load costs as much as a multiply-add, which is 4 % of a tile of 14 × 2 vectors.
    ///
    /// # Safety
    ///
    /// - The tile contract of [`RegisterTile`] holds for R rows and N vectors, with entire rows of B if `UNMASKED`.
    /// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    pub(crate) unsafe fn multiply<V: Vector<Scalar = T>, const R: usize, const N: usize, const UNMASKED: bool>(&self) {
        const { assert!(R <= 2 * ROWS_PER_POINTER, "two pointers must address all rows of a register tile") }
        let &Self { depth, a, a_row_stride, a_col_stride, mut b, b_row_stride, .. } = self;
        let &Self { rows, cols, c, c_row_stride, accumulate, .. } = self;
        debug_assert_eq!(rows, R, "the kernel computes tiles of exactly {R} rows");
        // SAFETY: every access is to a row below R and a column below `cols`, because the last vector is accessed under
        // the mask of its valid columns, or to full vectors of B if `UNMASKED`. *Reads* and *Writes* of the tile
        // contract cover these elements. By *Width*, the mask has at most LANES columns. The caller guarantees the
        // contract of `Vector`.
        unsafe {
            let last = (N - 1) * V::LANES;
            debug_assert!(last < cols && cols <= N * V::LANES, "{cols} columns do not need exactly {N} vectors");
            debug_assert!(
                R == 1 || c_row_stride.unsigned_abs() >= cols,
                "the rows of C overlap: they have {cols} columns and the row stride {c_row_stride}"
            );
            let mask = V::mask(cols - last);
            // A tile that overwrites C does not prefetch it: stores wait in the store buffer, but prefetches would
            // delay the first loads of A and B. Measured: products of 64 × 64 × 64 in L3 would take 8 % more time.
            if accumulate {
                for r in 0..R {
                    let row = c.wrapping_offset(r as isize * c_row_stride);
                    prefetch(row);
                    prefetch(row.wrapping_add(cols - 1));
                }
            }
            let mut sums = [[V::zero(); N]; R];
            let mut biases = [V::zero(); N];
            let prefetched = PREFETCH_DISTANCE * b_row_stride;
            let offsets = row_offsets(a_row_stride * size_of::<T>() as isize);
            let mut upper = a;
            let mut lower = a.wrapping_offset(ROWS_PER_POINTER as isize * a_row_stride);
            for _ in 0..depth {
                if UNMASKED && R >= MIN_PREFETCHING_ROWS && V::LANES * size_of::<T>() == CACHE_LINE {
                    (0..N).for_each(|v| prefetch(b.wrapping_offset(prefetched).wrapping_add(v * V::LANES)));
                }
                let mut row = [V::zero(); N];
                for (v, b_vector) in row[..N - 1].iter_mut().enumerate() {
                    *b_vector = V::load(b.add(v * V::LANES));
                }
                row[N - 1] = if UNMASKED { V::load(b.add(last)) } else { V::load_part(b.add(last), mask) };
                if V::IS_BIASED {
                    biases.iter_mut().zip(&row).for_each(|(bias, b_vector)| *bias = b_vector.add_bias(*bias));
                }
                macro_rules! rows {
                    ($($pointer:ident: $($r:literal)*),*) => {$($(
                        if $r < R {
                            let x = V::splat($pointer.wrapping_byte_offset(offsets[$r % ROWS_PER_POINTER]));
                            for (sum, &b_vector) in sums[$r % R].iter_mut().zip(&row) {
                                *sum = x.mul_add_biased(b_vector, *sum);
                            }
                        }
                    )*)*};
                }
                rows!(upper: 0 1 2 3 4 5 6, lower: 7 8 9 10 11 12 13);
                upper = opaque(upper.wrapping_offset(a_col_stride));
                if R > ROWS_PER_POINTER {
                    lower = opaque(lower.wrapping_offset(a_col_stride));
                }
                b = b.wrapping_offset(b_row_stride);
            }
            if V::IS_BIASED {
                for sums in &mut sums {
                    sums.iter_mut().zip(biases).for_each(|(sum, bias)| *sum = sum.sub(bias));
                }
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

/// The prefetch distance for rows of B, in k indices. It covers the memory latency. Near the end of a packed panel, the
/// prefetch reads the next panel.
///
/// Measured on an AMD EPYC (Zen 5), with packed weights that exceed the caches: products of 16 rows take 0.78 of the
/// time without prefetch, and products of 128 rows take 0.89.
const PREFETCH_DISTANCE: isize = 32;

/// The smallest number of rows of a tile that prefetches B: in smaller tiles, the loads already take as long as the
/// multiply-adds.
const MIN_PREFETCHING_ROWS: usize = 6;

/// The size of a cache line in bytes. Only tiles whose vectors fill a line prefetch B: with vectors of 256 bits, there
/// would be too few multiply-adds between the prefetches.
const CACHE_LINE: usize = 64;

/// The number of rows of A that are addressed relative to one pointer.
const ROWS_PER_POINTER: usize = 7;

/// Returns the offsets of the rows of A from their pointer, in bytes.
///
/// The addressing modes of x86-64 scale a register by 1, 2, 4 or 8, so that three registers (1, 3 and 5 strides)
/// address all rows.
#[inline(always)]
fn row_offsets(stride: isize) -> [isize; ROWS_PER_POINTER] {
    let (three, five) = (3 * stride, 5 * stride);
    [0, stride, 2 * stride, three, 4 * stride, five, 2 * three]
}

/// Returns `pointer`, but hides from the optimizer how it was computed.
///
/// Otherwise, the optimizer reduces the addresses of all rows to one chain of additions, which is as long as the chain
/// of multiply-adds of a step.
#[inline(always)]
fn opaque<T>(pointer: *const T) -> *const T {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        let mut hidden = pointer;
        #[allow(clippy::pointers_in_nomem_asm_block)] // The assembly uses the address only.
        // SAFETY: the assembly is empty: it leaves the register, the memory, the stack and the flags unchanged.
        unsafe {
            std::arch::asm!("/* {0} */", inout(reg) hidden, options(pure, nomem, nostack, preserves_flags));
        }
        hidden
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pointer
}
