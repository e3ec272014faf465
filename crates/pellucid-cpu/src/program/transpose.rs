//! Transposition of dense matrices, block by block.
//!
//! Rows whose distance is a power of two fall into the same few sets of a cache. So a block is first
//! read row by row, whole lines at a time, into a small dense buffer, and turned while it is written.

use std::mem::MaybeUninit;

/// Bytes of a row of a block: two lines.
const LINE: usize = 128;

#[repr(C, align(64))]
struct Block(MaybeUninit<[u8; LINE * LINE]>);

/// Writes `to[i][j] = from[j][i]` for `rows` i and `cols` j; both have dense rows of `size`-byte elements,
/// `from_row` and `to_row` bytes apart.
///
/// # Safety
/// All those elements are valid, and the matrices do not overlap.
pub(crate) unsafe fn turn(
    size: usize,
    from: *const u8,
    from_row: isize,
    to: *mut u8,
    to_row: isize,
    rows: usize,
    cols: usize,
) {
    debug_assert!(matches!(size, 1 | 2 | 4 | 8), "elements of {size} bytes");
    let dense = |row: isize, count: usize, len: usize| count <= 1 || row.unsigned_abs() >= len * size;
    debug_assert!(dense(to_row, rows, cols), "rows of {cols} elements of {size} bytes are {to_row} bytes apart");
    debug_assert!(from_row == 0 || dense(from_row, cols, rows) || from_row.unsigned_abs().is_multiple_of(size));
    // SAFETY: the caller's promise; the widths agree.
    unsafe {
        match size {
            1 => turn_as::<u8>(from, from_row, to, to_row, rows, cols),
            2 => turn_as::<u16>(from, from_row, to, to_row, rows, cols),
            4 => turn_as::<u32>(from, from_row, to, to_row, rows, cols),
            _ => turn_as::<u64>(from, from_row, to, to_row, rows, cols),
        }
    }
}

unsafe fn turn_as<T: Copy>(from: *const u8, from_row: isize, to: *mut u8, to_row: isize, rows: usize, cols: usize) {
    let side = LINE / size_of::<T>();
    let mut block = Block(MaybeUninit::uninit());
    let buffer = block.0.as_mut_ptr().cast::<T>();
    for i in (0..rows).step_by(side) {
        let height = side.min(rows - i);
        for j in (0..cols).step_by(side) {
            let width = side.min(cols - j);
            // SAFETY: rows `j..j + width` of the source, at `height` elements from `i` on; the block
            // has room for a square of them, and the target is the same square turned.
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
                square(buffer, side, to, to_row, height, width);
            }
        }
    }
}

/// Writes the turned block.
#[inline(always)]
unsafe fn square<T: Copy>(block: *const T, side: usize, to: *mut T, to_row: isize, height: usize, width: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let (mut low, mut left) = (0, 0);
        #[cfg(target_arch = "x86_64")]
        if size_of::<T>() == 4 {
            (low, left) = (height & !3, width & !3);
            for r in (0..low).step_by(4) {
                for c in (0..left).step_by(4) {
                    four(
                        block.add(c * side + r).cast(),
                        side,
                        to.byte_offset(r as isize * to_row).add(c).cast(),
                        to_row,
                    );
                }
            }
        } else if size_of::<T>() == 8 {
            (low, left) = (height & !1, width & !1);
            for r in (0..low).step_by(2) {
                for c in (0..left).step_by(2) {
                    two(
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
            for c in if r < low { left } else { 0 }..width {
                *row.add(c) = *block.add(c * side + r);
            }
        }
    }
}

/// Turns 4 × 4 elements of four bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn four(from: *const f32, from_row: usize, to: *mut f32, to_row: isize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promise; SSE is part of every x86-64.
    unsafe {
        let [mut a, mut b, mut c, mut d] = [0, 1, 2, 3].map(|r| _mm_loadu_ps(from.add(r * from_row)));
        _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
        for (r, x) in [a, b, c, d].into_iter().enumerate() {
            _mm_storeu_ps(to.byte_offset(r as isize * to_row), x);
        }
    }
}

/// Turns 2 × 2 elements of eight bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn two(from: *const f64, from_row: usize, to: *mut f64, to_row: isize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promise; SSE2 is part of every x86-64.
    unsafe {
        let (a, b) = (_mm_loadu_pd(from), _mm_loadu_pd(from.add(from_row)));
        _mm_storeu_pd(to, _mm_unpacklo_pd(a, b));
        _mm_storeu_pd(to.byte_offset(to_row), _mm_unpackhi_pd(a, b));
    }
}
