//! Transposition of matrices with contiguous rows, block by block.
//!
//! Rows at a distance that is a power of two map to the same few cache sets. Blocks of such rows are therefore first
//! copied row by row, full cache lines at a time, into a small contiguous buffer, and transposed when they are stored.

use pellucid_simd::vector::Vector;
use pellucid_simd::{InstructionSet, Isa, per_isa, up_to};
use std::mem::MaybeUninit;

/// The minimum length of both axes of a matrix that is transposed by blocks.
pub(crate) const MIN_TRANSPOSE: usize = 8;

/// The bytes of a row and the number of columns of a block.
const BLOCK: (usize, usize) = (128, 64);

/// The shape of a block if rows are [aliased](is_aliased): more rows and columns write longer runs of both matrices. On
/// an AMD EPYC (Zen 5), transposing 1024 × 1024 values of four bytes takes half as long as with blocks of 128 bytes and
/// 32 columns.
const ALIASED_BLOCK: (usize, usize) = (256, 128);

/// A block of elements of any size.
#[repr(C, align(64))]
struct TransposeBlock(MaybeUninit<[u8; ALIASED_BLOCK.0 * ALIASED_BLOCK.1]>);

/// Returns true if the elements of a column, `row` bytes apart, compete for a few sets of the caches.
pub(crate) fn is_aliased(row: isize) -> bool {
    row.unsigned_abs().is_multiple_of(2048)
}

/// Returns true if the rows of a block map to so few sets of the first-level cache that not all of them fit.
fn is_copied(row: isize) -> bool {
    row.unsigned_abs().is_multiple_of(512)
}

/// Returns true if a matrix whose elements have `size` bytes is contiguous along `across`, in either direction, and has
/// another stride along `along`. Such a matrix is read in panels, which are transposed.
pub(crate) fn is_transposed(size: usize, across: isize, along: isize) -> bool {
    across.unsigned_abs() == size && along.unsigned_abs() != size && along != 0
}

/// Writes `to[i][j] = from[i][j]` for `rows` indices i and `cols` indices j, where `from` is contiguous along i and
/// `to` along j.
///
/// A matrix consists of the address of element (0, 0) and the strides along i and j, in bytes. The elements have `size`
/// bytes, which is the magnitude of the stride along i of `from` and of the stride along j of `to`.
///
/// # Safety
/// - *Source*: every element of `from` is aligned to `size` and valid for reads.
/// - *Target*: every element of `to` is aligned to `size` and valid for writes.
/// - *Disjoint*: the two matrices do not overlap.
pub(crate) unsafe fn transpose_matrix(
    size: usize,
    (mut from, [from_element, mut from_row]): (*const u8, [isize; 2]),
    (mut to, [mut to_row, to_element]): (*mut u8, [isize; 2]),
    rows: usize,
    cols: usize,
) {
    if rows == 0 || cols == 0 {
        return;
    }
    // An axis on which adjacent elements are in descending order is traversed backwards in both matrices.
    if from_element < 0 {
        let last = rows as isize - 1;
        (from, to) = (from.wrapping_offset(last * from_element), to.wrapping_offset(last * to_row));
        to_row = -to_row;
    }
    if to_element < 0 {
        let last = cols as isize - 1;
        (from, to) = (from.wrapping_offset(last * from_row), to.wrapping_offset(last * to_element));
        from_row = -from_row;
    }
    debug_assert!(matches!(size, 1 | 2 | 4 | 8), "elements must have 1, 2, 4 or 8 bytes, got {size}");
    let dense = |row: isize, count: usize, len: usize| count <= 1 || row.unsigned_abs() >= len * size;
    debug_assert!(
        dense(to_row, rows, cols),
        "the target's rows overlap: {cols} elements of {size} bytes, {to_row} bytes apart"
    );
    debug_assert!(
        from_element.unsigned_abs() == size && to_element.unsigned_abs() == size,
        "elements of {size} bytes are not adjacent: {from_element} and {to_element} bytes apart"
    );
    debug_assert!(
        cols <= 1 || from_row.unsigned_abs().is_multiple_of(size),
        "the source's rows are misaligned: elements of {size} bytes, {from_row} bytes apart"
    );
    let isa = Isa::best();
    let transpose = match size {
        1 => const { transpose_elements::<u8>(Isa::Portable) },
        2 => const { transpose_elements::<u16>(Isa::Portable) },
        4 => up_to!(Isa::Avx2, isa, transpose_elements::<f32>),
        _ => up_to!(Isa::Avx2, isa, transpose_elements::<f64>),
    };
    // SAFETY: the element type has `size` bytes, and the processor has the instruction set; the caller guarantees
    // *Source*, *Target* and *Disjoint* (this function's contract).
    unsafe { transpose(from, from_row, to, to_row, rows, cols) }
}

/// An element of a matrix. Elements of the size of a float are moved as floats, in vectors.
trait TransposeElement: Copy {
    /// Returns the side length of the squares that [`transpose_square`](Self::transpose_square) transposes.
    fn side<S: InstructionSet>() -> usize;

    /// Transposes a square: `to[j·to_row + i] = from[i·from_row + j]`. The row strides count elements.
    ///
    /// # Safety
    /// `from` is valid for reads, and `to` for writes, of a square; the two do not overlap. The calling function has
    /// the instruction set `S` enabled.
    unsafe fn transpose_square<S: InstructionSet>(from: *const Self, from_row: isize, to: *mut Self, to_row: isize);
}

macro_rules! transposable {
    (scalars $($scalar:ident)*; floats $($float:ident)*) => {
        $(impl TransposeElement for $scalar {
            #[inline(always)]
            fn side<S: InstructionSet>() -> usize {
                1
            }

            #[inline(always)]
            unsafe fn transpose_square<S: InstructionSet>(from: *const Self, _: isize, to: *mut Self, _: isize) {
                // SAFETY: the caller guarantees a square of one element (the contract of `transpose_square`).
                unsafe { *to = *from };
            }
        })*
        $(impl TransposeElement for $float {
            #[inline(always)]
            fn side<S: InstructionSet>() -> usize {
                S::Vector::<$float>::SIDE
            }

            #[inline(always)]
            unsafe fn transpose_square<S: InstructionSet>(
                from: *const Self,
                from_row: isize,
                to: *mut Self,
                to_row: isize,
            ) {
                // SAFETY: `transpose_square` has the contract of `Vector::transpose`.
                unsafe { S::Vector::<$float>::transpose(from, from_row, to, to_row) };
            }
        })*
    };
}
transposable! { scalars u8 u16; floats f32 f64 }

per_isa! {
    /// Returns the function that transposes matrices of elements of type `T`.
    ///
    /// # Safety of the returned function pointer
    /// The contract of [`transpose_matrix`] holds for elements of type `T` in ascending order, and the processor has
    /// the instruction set.
    fn transpose_elements[T: TransposeElement][T]<S>
    (from: *const u8, from_row: isize, to: *mut u8, to_row: isize, rows: usize, cols: usize) {
        let (row_bytes, side_cols) = if is_aliased(from_row) || is_aliased(to_row) { ALIASED_BLOCK } else { BLOCK };
        let side_rows = row_bytes / size_of::<T>();
        let mut block = TransposeBlock(MaybeUninit::uninit());
        let buffer = block.0.as_mut_ptr().cast::<T>();
        for i in (0..rows).step_by(side_rows) {
            let height = side_rows.min(rows - i);
            for j in (0..cols).step_by(side_cols) {
                let width = side_cols.min(cols - j);
                // SAFETY: by the contract of `transpose_matrix`, the reads are elements `i..i + height` of source rows
                // `j..j + width` (*Source*). The buffer is valid for `side_rows` × `side_cols` elements and is not part
                // of either matrix. The writes are elements `j..j + width` of target rows `i..i + height` (*Target*),
                // and `width` rows of the block are initialized.
                unsafe {
                    let source = |c: usize| from.offset((j + c) as isize * from_row).cast::<T>().add(i);
                    let (mut block, mut block_row) = (source(0), from_row / size_of::<T>() as isize);
                    if is_copied(from_row) {
                        for c in 0..width {
                            std::ptr::copy_nonoverlapping(source(c), buffer.add(c * side_rows), height);
                        }
                        (block, block_row) = (buffer.cast_const(), side_rows as isize);
                    }
                    let to = to.offset(i as isize * to_row).cast::<T>().add(j);
                    store_transposed::<T, S>(block, block_row, to, to_row, height, width);
                }
            }
        }
    }
}

/// Stores the transpose of a block: `to[r][c] = block[c][r]` for `height` rows r and `width` columns c.
///
/// # Safety
/// - *Block*: `block` is valid for reads of `width` rows of `height` elements, `block_row` elements apart.
/// - *Target*: `to` is valid for writes of `height` rows of `width` elements, `to_row` bytes apart.
/// - *Instruction set*: the calling function has the instruction set `S` enabled.
#[inline(always)]
unsafe fn store_transposed<T: TransposeElement, S: InstructionSet>(
    block: *const T,
    block_row: isize,
    to: *mut T,
    to_row: isize,
    height: usize,
    width: usize,
) {
    let side = T::side::<S>();
    // Rows whose distance is not a multiple of the element size are stored by scalar code.
    let is_regular = to_row % size_of::<T>() as isize == 0;
    let full = |len: usize| if side > 1 && is_regular { len - len % side } else { 0 };
    let (done_rows, done_cols) = (full(height), full(width));
    // SAFETY: by this function's contract, r < height and c < width for every element, and for all elements of the
    // squares: reads are within *Block* and writes within *Target*.
    unsafe {
        for r in (0..done_rows).step_by(side) {
            for c in (0..done_cols).step_by(side) {
                let from = block.offset(c as isize * block_row).add(r);
                let into = to.byte_offset(r as isize * to_row).add(c);
                T::transpose_square::<S>(from, block_row, into, to_row / size_of::<T>() as isize);
            }
        }
        for r in 0..height {
            let row = to.byte_offset(r as isize * to_row);
            for c in if r < done_rows { done_cols } else { 0 }..width {
                *row.add(c) = *block.offset(c as isize * block_row).add(r);
            }
        }
    }
}
