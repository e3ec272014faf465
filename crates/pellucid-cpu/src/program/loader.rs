//! Moves elements between strided operands and contiguous tiles: gather, scatter and fill.

use crate::program::loops::are_apart;
use crate::program::transpose::{MIN_TRANSPOSE, is_transposed, transpose_matrix};
use crate::strided::{IndexSpace, StridedAxis};
use pellucid_simd::{Isa, per_isa};

/// The number of elements below which a loop costs less than a call of `memcpy`.
const SHORT_RUN: usize = 16;

/// The number of equal elements below which a loop costs less than a call of [`repeat`].
const SHORT_REPEAT: usize = 48;

/// Copies elements `start..start + n` of operand `k` of an index space to the contiguous `tile`.
///
/// `base` is the address of the operand's first element; elements have `size` bytes.
///
/// # Safety
/// - *Operand*: those elements are aligned to `size` and valid for reads.
/// - *Tile*: `tile` is aligned to `size`, valid for writes of `n` elements, and disjoint from the operand.
pub(crate) unsafe fn gather(
    tile: *mut u8,
    size: usize,
    axes: &[StridedAxis],
    k: usize,
    base: *mut u8,
    start: usize,
    n: usize,
) {
    debug_assert!(matches!(size, 1 | 2 | 4 | 8), "elements must have 1, 2, 4 or 8 bytes, got {size}");
    let copy = |part: TilePart| {
        let tile = tile.wrapping_add(part.first * size);
        // SAFETY: the element type has `size` bytes; the parts are within the `n` elements, for which the caller
        // guarantees *Operand* and *Tile* (this function's contract). They are the clauses of `transpose_matrix` for a
        // part that is a matrix.
        unsafe {
            match part.matrix {
                Some(OperandMatrix { address, rows, cols, strides }) => {
                    let tile_strides = [cols * size, size].map(|stride| stride as isize);
                    transpose_matrix(size, (address, strides), (tile, tile_strides), rows, cols)
                }
                None => {
                    with_width!(size, T => gather_as::<T>(tile.cast(), axes, k, base, start + part.first, part.len))
                }
            }
        }
    };
    for_each_part(size, axes, k, base, start, n, copy);
}

/// Copies the contiguous `tile` to elements `start..start + n` of operand `k` of an index space.
///
/// `base` is the address of the operand's first element; elements have `size` bytes.
///
/// # Safety
/// - *Operand*: those elements are aligned to `size` and valid for writes.
/// - *Tile*: `tile` is aligned to `size`, valid for reads of `n` elements, and disjoint from the operand.
pub(crate) unsafe fn scatter(
    tile: *const u8,
    size: usize,
    axes: &[StridedAxis],
    k: usize,
    base: *mut u8,
    start: usize,
    n: usize,
) {
    debug_assert!(matches!(size, 1 | 2 | 4 | 8), "elements must have 1, 2, 4 or 8 bytes, got {size}");
    let copy = |part: TilePart| {
        let tile = tile.wrapping_add(part.first * size);
        // SAFETY: the element type has `size` bytes; the parts are within the `n` elements, for which the caller
        // guarantees *Operand* and *Tile* (this function's contract). They are the clauses of `transpose_matrix` for a
        // part that is a matrix, with the operand as the target.
        unsafe {
            match part.matrix {
                Some(OperandMatrix { address, rows, cols, strides: [across, along] }) => {
                    let tile_strides = [size, cols * size].map(|stride| stride as isize);
                    transpose_matrix(size, (tile, tile_strides), (address, [along, across]), cols, rows)
                }
                None => {
                    with_width!(size, T => scatter_as::<T>(tile.cast(), axes, k, base, start + part.first, part.len))
                }
            }
        }
    };
    for_each_part(size, axes, k, base, start, n, copy);
}

/// A part of a tile.
struct TilePart {
    /// The first element, counted from the start of the tile.
    first: usize,
    /// The number of elements.
    len: usize,
    /// The elements in the operand, if they are the transpose of the part.
    matrix: Option<OperandMatrix>,
}

/// The part of an operand whose transpose is a tile of `rows` rows and `cols` columns: its columns are contiguous, in
/// either direction.
struct OperandMatrix {
    /// The address of the first element.
    address: *mut u8,
    rows: usize,
    cols: usize,
    /// The bytes between two rows and between two columns.
    strides: [isize; 2],
}

/// Calls `copy` for parts that cover elements `start..start + n` of operand `k`. Parts are matrices if the elements are
/// full rows along the last axis of the index space and the operand is contiguous along the axis before it; parts of
/// fewer than [`MIN_TRANSPOSE`] rows are not.
fn for_each_part(
    size: usize,
    axes: &[StridedAxis],
    k: usize,
    base: *mut u8,
    start: usize,
    n: usize,
    copy: impl Fn(TilePart),
) {
    let all = TilePart { first: 0, len: n, matrix: None };
    let [outer @ .., across, along] = axes else { return copy(all) };
    let (cols, strides) = (along.len, [across.strides[k], along.strides[k]]);
    let are_rows = cols >= MIN_TRANSPOSE
        && is_transposed(size, strides[0], strides[1])
        && start.is_multiple_of(cols)
        && n.is_multiple_of(cols);
    if !are_rows || n < MIN_TRANSPOSE * cols {
        return copy(all);
    }
    let mut done = 0;
    while done < n {
        let row = (start + done) / cols;
        let (mut group, within) = (row / across.len, row % across.len);
        let mut address = base.wrapping_offset(within as isize * strides[0]);
        for axis in outer.iter().rev() {
            address = address.wrapping_offset((group % axis.len) as isize * axis.strides[k]);
            group /= axis.len;
        }
        let rows = (across.len - within).min((n - done) / cols);
        let matrix = (rows >= MIN_TRANSPOSE).then_some(OperandMatrix { address, rows, cols, strides });
        copy(TilePart { first: done, len: rows * cols, matrix });
        done += rows * cols;
    }
}

/// Writes the element at `value` to all `n` elements of `tile`.
///
/// # Safety
/// - *Value*: `value` is valid for reads of `size` bytes.
/// - *Tile*: `tile` is aligned to `size` and valid for writes of `n` elements of `size` bytes; no other reference or
///   thread accesses it during the call.
pub(crate) unsafe fn fill(tile: *mut u8, value: *const u8, size: usize, n: usize) {
    debug_assert!(matches!(size, 1 | 2 | 4 | 8), "elements must have 1, 2, 4 or 8 bytes, got {size}");
    // SAFETY: the element type has `size` bytes; the caller guarantees *Value* and *Tile* (this function's contract).
    unsafe { with_width!(size, T => fill_as::<T>(tile.cast(), value, n)) }
}

/// Fills a tile of elements of type `T`.
///
/// # Safety
/// The contract of [`fill`] holds for elements of type `T`.
unsafe fn fill_as<T: Copy>(tile: *mut T, value: *const u8, n: usize) {
    // SAFETY: *Value* of `fill` covers the read, which needs no alignment, and *Tile* the writes.
    unsafe {
        let value = value.cast::<T>().read_unaligned();
        repeat(tile, &raw const value, 1, n);
    }
}

/// Writes each of `rows` values `len` times.
///
/// # Safety
/// - *Source*: `from` is aligned and valid for reads of `rows` values.
/// - *Target*: `to` is aligned, valid for writes of `rows · len` values, and disjoint from `from`.
#[inline]
pub(crate) unsafe fn repeat<T: Copy>(to: *mut T, from: *const T, rows: usize, len: usize) {
    let repeat = match size_of::<T>() {
        1 => const { repeat_values::<T>(Isa::Portable) },
        _ => repeat_values::<T>(Isa::best()),
    };
    // SAFETY: *Source* and *Target* of this function's contract are the contract of the loop, and the processor has the
    // instruction set.
    unsafe { repeat(to, from, rows, len) }
}

per_isa! {
    /// Returns the loop of [`repeat`].
    ///
    /// # Safety of the returned function pointer
    /// *Source* and *Target* of [`repeat`] hold, and the processor has the instruction set.
    fn repeat_values[T: Copy][T](to: *mut T, from: *const T, rows: usize, len: usize) {
        for row in 0..rows {
            // SAFETY: row < rows, so the clauses *Source* and *Target* cover the read and the writes.
            unsafe {
                let value = *from.add(row);
                let to = to.add(row * len);
                for i in 0..len {
                    to.add(i).write(value);
                }
            }
        }
    }
}

/// Gathers elements of type `T`.
///
/// # Safety
/// The contract of [`gather`] holds for elements of type `T`.
unsafe fn gather_as<T: Copy>(tile: *mut T, axes: &[StridedAxis], k: usize, base: *mut u8, start: usize, n: usize) {
    let size = size_of::<T>() as isize;
    for_each_run(axes, k, base, start, n, |from, stride, first, len| {
        // SAFETY: `for_each_run` visits elements `start..start + n` only, so *Operand* of `gather` covers the reads.
        // `first + len <= n`, so *Tile* covers the writes.
        unsafe {
            let to = tile.add(first);
            if stride == size {
                copy_elements(to, from.cast(), len);
            } else if stride == 0 && len >= SHORT_REPEAT {
                repeat(to, from.cast_const().cast(), 1, len);
            } else if stride == 0 {
                let value = *from.cast::<T>();
                (0..len).for_each(|i| *to.add(i) = value);
            } else if stride == -size {
                // With a constant stride, the compiler vectorizes this loop.
                let from = from.cast::<T>();
                (0..len).for_each(|i| *to.add(i) = *from.sub(i));
            } else {
                (0..len).for_each(|i| *to.add(i) = *from.offset(i as isize * stride).cast());
            }
        }
    });
}

/// Scatters elements of type `T`.
///
/// # Safety
/// The contract of [`scatter`] holds for elements of type `T`.
unsafe fn scatter_as<T: Copy>(tile: *const T, axes: &[StridedAxis], k: usize, base: *mut u8, start: usize, n: usize) {
    let size = size_of::<T>() as isize;
    for_each_run(axes, k, base, start, n, |to, stride, first, len| {
        // SAFETY: `for_each_run` visits elements `start..start + n` only, so *Operand* of `scatter` covers the writes.
        // `first + len <= n`, so *Tile* covers the reads.
        unsafe {
            let from = tile.add(first);
            if stride == size {
                copy_elements(to.cast(), from, len);
            } else if stride == -size {
                let to = to.cast::<T>();
                (0..len).for_each(|i| *to.sub(i) = *from.add(i));
            } else {
                (0..len).for_each(|i| *to.offset(i as isize * stride).cast() = *from.add(i));
            }
        }
    });
}

/// Calls `visit(address, stride, first, len)` for every run of operand `k`. A run is a sequence of adjacent elements
/// along the innermost axis.
///
/// The runs together are elements `start..start + n` of the index space, in row-major order. `first` is the offset of
/// the run's first element from `start`.
#[inline(always)]
fn for_each_run(
    axes: &[StridedAxis],
    k: usize,
    base: *mut u8,
    start: usize,
    n: usize,
    mut visit: impl FnMut(*mut u8, isize, usize, usize),
) {
    let space = IndexSpace::new(axes.iter().map(|axis| (axis.len, [axis.strides[k]])));
    let ([stride], mut first) = (space.step(), 0);
    space.runs(start..start + n, |[offset], len| {
        visit(base.wrapping_offset(offset), stride, first, len);
        first += len;
    });
}

/// Copies `len` contiguous elements. Short copies use a loop, because a call of `memcpy` costs more.
///
/// # Safety
/// - *Source*: `from` is aligned and valid for reads of `len` elements.
/// - *Target*: `to` is aligned and valid for writes of `len` elements.
/// - *Disjoint*: the source and the target do not overlap.
#[inline(always)]
unsafe fn copy_elements<T: Copy>(to: *mut T, from: *const T, len: usize) {
    debug_assert!(
        are_apart((to.cast(), len * size_of::<T>()), (from.cast(), len * size_of::<T>())),
        "the source and the target of a copy of {len} elements overlap"
    );
    // SAFETY: i < len, so reads are within *Source* and writes within *Target*; *Disjoint* is the
    // requirement of `copy_nonoverlapping`. All are clauses of this function's contract.
    unsafe {
        if len < SHORT_RUN {
            (0..len).for_each(|i| *to.add(i) = *from.add(i));
        } else {
            std::ptr::copy_nonoverlapping(from, to, len);
        }
    }
}
