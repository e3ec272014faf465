//! Transposition of matrices with contiguous rows, block by block.
//!
//! Rows at a distance that is a power of two map to the same few cache sets. Each block is therefore first copied row
//! by row, full cache lines at a time, into a small contiguous buffer, and transposed when it is stored.

use std::mem::MaybeUninit;

/// The size of one row of a block, in bytes: two cache lines.
const BLOCK_ROW_BYTES: usize = 128;

/// A square block of elements of any size.
#[repr(C, align(64))]
struct TransposeBlock(MaybeUninit<[u8; BLOCK_ROW_BYTES * BLOCK_ROW_BYTES]>);

/// Writes `to[i][j] = from[j][i]` for `rows` indices i and `cols` indices j.
///
/// `from` is a `[cols, rows]` matrix and `to` is `[rows, cols]`. Rows of both are contiguous; the elements have `size`
/// bytes, and consecutive rows are `from_row` and `to_row` bytes apart.
///
/// # Safety
/// - *Source*: every element of `from` is aligned to `size` and valid for reads.
/// - *Target*: every element of `to` is aligned to `size` and valid for writes.
/// - *Disjoint*: the two matrices do not overlap.
pub(crate) unsafe fn transpose_matrix(
    size: usize,
    from: *const u8,
    from_row: isize,
    to: *mut u8,
    to_row: isize,
    rows: usize,
    cols: usize,
) {
    debug_assert!(matches!(size, 1 | 2 | 4 | 8), "elements must have 1, 2, 4 or 8 bytes, got {size}");
    let dense = |row: isize, count: usize, len: usize| count <= 1 || row.unsigned_abs() >= len * size;
    debug_assert!(
        dense(to_row, rows, cols),
        "the target's rows overlap: {cols} elements of {size} bytes, {to_row} bytes apart"
    );
    debug_assert!(
        cols <= 1 || from_row.unsigned_abs().is_multiple_of(size),
        "the source's rows are misaligned: elements of {size} bytes, {from_row} bytes apart"
    );
    // SAFETY: the element type has `size` bytes; the caller guarantees *Source*, *Target* and *Disjoint* (this
    // function's contract).
    unsafe { with_width!(size, T => transpose_as::<T>(from, from_row, to, to_row, rows, cols)) }
}

/// Transposes a matrix of elements of type `T`.
///
/// # Safety
/// The contract of [`transpose_matrix`] holds for elements of type `T`.
unsafe fn transpose_as<T: Copy>(
    from: *const u8,
    from_row: isize,
    to: *mut u8,
    to_row: isize,
    rows: usize,
    cols: usize,
) {
    let side = BLOCK_ROW_BYTES / size_of::<T>();
    let mut block = TransposeBlock(MaybeUninit::uninit());
    let buffer = block.0.as_mut_ptr().cast::<T>();
    for i in (0..rows).step_by(side) {
        let height = side.min(rows - i);
        for j in (0..cols).step_by(side) {
            let width = side.min(cols - j);
            // SAFETY: by this function's contract, the reads are elements `i..i + height` of source rows `j..j + width`
            // (*Source*). The buffer is valid for `side` × `side` elements and is not part of either matrix. The writes
            // are elements `j..j + width` of target rows `i..i + height` (*Target*), and `width` rows of the block are
            // initialized.
            unsafe {
                for c in 0..width {
                    let row = from.offset((j + c) as isize * from_row).cast::<T>().add(i);
                    if height == side {
                        std::ptr::copy_nonoverlapping(row, buffer.add(c * side), side);
                    } else {
                        std::ptr::copy_nonoverlapping(row, buffer.add(c * side), height);
                    }
                }
                let to = to.offset(i as isize * to_row).cast::<T>().add(j);
                store_transposed(buffer, side, to, to_row, height, width);
            }
        }
    }
}

/// Stores the transpose of a block: `to[r][c] = block[c][r]` for `height` rows r and `width` columns c.
///
/// # Safety
/// - *Block*: `block` is valid for reads of `width` rows of `height` elements, `side` elements apart.
/// - *Target*: `to` is valid for writes of `height` rows of `width` elements, `to_row` bytes apart.
#[inline(always)]
unsafe fn store_transposed<T: Copy>(
    block: *const T,
    side: usize,
    to: *mut T,
    to_row: isize,
    height: usize,
    width: usize,
) {
    // SAFETY: by this function's contract, r < height and c < width for every element, and for all elements of the 4 ×
    // 4 and 2 × 2 blocks: reads are within *Block* and writes within *Target*.
    unsafe {
        // The number of rows and of columns that vector code transposes. Scalar code transposes the rest.
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut))]
        let (mut done_rows, mut done_cols) = (0, 0);
        #[cfg(target_arch = "x86_64")]
        if size_of::<T>() == 4 {
            (done_rows, done_cols) = (height & !3, width & !3);
            for r in (0..done_rows).step_by(4) {
                for c in (0..done_cols).step_by(4) {
                    transpose_4x4(
                        block.add(c * side + r).cast(),
                        side,
                        to.byte_offset(r as isize * to_row).add(c).cast(),
                        to_row,
                    );
                }
            }
        } else if size_of::<T>() == 8 {
            (done_rows, done_cols) = (height & !1, width & !1);
            for r in (0..done_rows).step_by(2) {
                for c in (0..done_cols).step_by(2) {
                    transpose_2x2(
                        block.add(c * side + r).cast(),
                        side,
                        to.byte_offset(r as isize * to_row).add(c).cast(),
                        to_row,
                    );
                }
            }
        }
        for r in 0..height {
            let row = to.byte_offset(r as isize * to_row);
            for c in if r < done_rows { done_cols } else { 0 }..width {
                *row.add(c) = *block.add(c * side + r);
            }
        }
    }
}

/// Transposes a 4 × 4 matrix of four-byte elements.
///
/// # Safety
/// - *Source*: `from` is valid for reads of 4 rows of 4 elements, `from_row` elements apart.
/// - *Target*: `to` is valid for writes of 4 rows of 4 elements, `to_row` bytes apart.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn transpose_4x4(from: *const f32, from_row: usize, to: *mut f32, to_row: isize) {
    use std::arch::x86_64::*;
    // SAFETY: *Source* of this function covers the loads of four rows, and *Target* the stores of four rows. Every
    // x86-64 processor has SSE.
    unsafe {
        let [mut a, mut b, mut c, mut d] = [0, 1, 2, 3].map(|r| _mm_loadu_ps(from.add(r * from_row)));
        _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
        for (r, x) in [a, b, c, d].into_iter().enumerate() {
            _mm_storeu_ps(to.byte_offset(r as isize * to_row), x);
        }
    }
}

/// Transposes a 2 × 2 matrix of eight-byte elements.
///
/// # Safety
/// - *Source*: `from` is valid for reads of 2 rows of 2 elements, `from_row` elements apart.
/// - *Target*: `to` is valid for writes of 2 rows of 2 elements, `to_row` bytes apart.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn transpose_2x2(from: *const f64, from_row: usize, to: *mut f64, to_row: isize) {
    use std::arch::x86_64::*;
    // SAFETY: *Source* of this function covers the loads of two rows, and *Target* the stores of two rows. Every x86-64
    // processor has SSE2.
    unsafe {
        let (a, b) = (_mm_loadu_pd(from), _mm_loadu_pd(from.add(from_row)));
        _mm_storeu_pd(to, _mm_unpacklo_pd(a, b));
        _mm_storeu_pd(to.byte_offset(to_row), _mm_unpackhi_pd(a, b));
    }
}
