//! Between strided memory and tiles: elements of an index space, gathered and scattered.

use crate::program::loops::are_apart;
use crate::program::strided::{Axis, runs};

/// Moves elements `start..start + n` of operand `k` of an index space to the dense `tile`.
///
/// # Safety
/// The operand has `size`-byte elements at all those places from `base` on, and `tile` has room.
pub(crate) unsafe fn gather(
    tile: *mut u8,
    size: usize,
    axes: &[Axis],
    k: usize,
    base: *mut u8,
    start: usize,
    n: usize,
) {
    debug_assert!(matches!(size, 1 | 2 | 4 | 8), "elements of {size} bytes");
    // SAFETY: the caller's promise; the widths agree.
    unsafe {
        match size {
            1 => gather_as::<u8>(tile.cast(), axes, k, base, start, n),
            2 => gather_as::<u16>(tile.cast(), axes, k, base, start, n),
            4 => gather_as::<u32>(tile.cast(), axes, k, base, start, n),
            _ => gather_as::<u64>(tile.cast(), axes, k, base, start, n),
        }
    }
}

/// Moves the dense `tile` to elements `start..start + n` of operand `k` of an index space.
///
/// # Safety
/// As [`gather`].
pub(crate) unsafe fn scatter(
    tile: *const u8,
    size: usize,
    axes: &[Axis],
    k: usize,
    base: *mut u8,
    start: usize,
    n: usize,
) {
    debug_assert!(matches!(size, 1 | 2 | 4 | 8), "elements of {size} bytes");
    // SAFETY: the caller's promise; the widths agree.
    unsafe {
        match size {
            1 => scatter_as::<u8>(tile.cast(), axes, k, base, start, n),
            2 => scatter_as::<u16>(tile.cast(), axes, k, base, start, n),
            4 => scatter_as::<u32>(tile.cast(), axes, k, base, start, n),
            _ => scatter_as::<u64>(tile.cast(), axes, k, base, start, n),
        }
    }
}

/// Writes the element at `value` to all `n` places of `tile`.
///
/// # Safety
/// `value` is readable and `tile` has room for `n` elements of `size` bytes.
pub(crate) unsafe fn fill(tile: *mut u8, value: *const u8, size: usize, n: usize) {
    debug_assert!(matches!(size, 1 | 2 | 4 | 8), "elements of {size} bytes");
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => fill_as::<u8>(tile.cast(), value, n),
            2 => fill_as::<u16>(tile.cast(), value, n),
            4 => fill_as::<u32>(tile.cast(), value, n),
            _ => fill_as::<u64>(tile.cast(), value, n),
        }
    }
}

unsafe fn fill_as<T: Copy>(tile: *mut T, value: *const u8, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let value = value.cast::<T>().read_unaligned();
        std::slice::from_raw_parts_mut(tile, n).fill(value);
    }
}

unsafe fn gather_as<T: Copy>(tile: *mut T, axes: &[Axis], k: usize, base: *mut u8, start: usize, n: usize) {
    let size = size_of::<T>() as isize;
    runs(axes, k, base, start, n, |from, step, first, len| {
        // SAFETY: `runs` names exactly the elements asked for, and `first + len <= n`.
        unsafe {
            let to = tile.add(first);
            if step == size {
                copy_run(to, from.cast(), len);
            } else if step == 0 {
                let value = *from.cast::<T>();
                (0..len).for_each(|i| *to.add(i) = value);
            } else {
                (0..len).for_each(|i| *to.add(i) = *from.offset(i as isize * step).cast());
            }
        }
    });
}

unsafe fn scatter_as<T: Copy>(tile: *const T, axes: &[Axis], k: usize, base: *mut u8, start: usize, n: usize) {
    let size = size_of::<T>() as isize;
    runs(axes, k, base, start, n, |to, step, first, len| {
        // SAFETY: as in `gather_as`.
        unsafe {
            let from = tile.add(first);
            if step == size {
                copy_run(to.cast(), from, len);
            } else {
                (0..len).for_each(|i| *to.offset(i as isize * step).cast() = *from.add(i));
            }
        }
    });
}

/// A call of `memcpy` costs more than a short run.
#[inline(always)]
unsafe fn copy_run<T: Copy>(to: *mut T, from: *const T, len: usize) {
    debug_assert!(
        are_apart((to.cast(), len * size_of::<T>()), (from.cast(), len * size_of::<T>())),
        "{len} elements overlap"
    );
    // SAFETY: the caller's promise; tiles and operands never overlap.
    unsafe {
        if len < 16 {
            (0..len).for_each(|i| *to.add(i) = *from.add(i));
        } else {
            std::ptr::copy_nonoverlapping(from, to, len);
        }
    }
}
