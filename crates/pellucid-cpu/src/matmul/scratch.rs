//! Scratch memory: buffers of every thread, kept from call to call.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::ptr::NonNull;

/// A cache line, and the width of the widest vector.
const ALIGN: usize = 64;

/// What scratch is for; uses of different purpose nest without a second allocation.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// Packed operands.
    Panels,
    /// A part of a product that nobody keeps.
    Product,
}

struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
}

impl Buffer {
    const EMPTY: Self = Self { start: NonNull::dangling(), bytes: 0 };

    fn with_bytes(bytes: usize) -> Self {
        // Powers of two: a handful of growths in the life of a thread.
        let bytes = bytes.next_power_of_two().max(1 << 16);
        let layout = Layout::from_size_align(bytes, ALIGN).expect("scratch fits the address space");
        // SAFETY: the layout has at least 64 KiB.
        let start = unsafe { alloc(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, bytes }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: `with_bytes` allocated `start` with exactly this layout.
            unsafe { dealloc(self.start.as_ptr(), Layout::from_size_align_unchecked(self.bytes, ALIGN)) }
        }
    }
}

thread_local! {
    static BUFFERS: [Cell<Buffer>; 2] = const { [Cell::new(Buffer::EMPTY), Cell::new(Buffer::EMPTY)] };
}

/// Runs `work` with room for `len` values of `T`, uninitialised, aligned to a cache line.
///
/// The buffer is taken out of its cell meanwhile, so a product inside `work` (an epilogue may do
/// that) finds the cell empty and gets another one.
pub(super) fn with<T, R>(purpose: Purpose, len: usize, work: impl FnOnce(*mut T) -> R) -> R {
    let bytes = len.checked_mul(size_of::<T>()).expect("scratch fits the address space");
    let mut buffer = BUFFERS.with(|kept| kept[purpose as usize].replace(Buffer::EMPTY));
    if buffer.bytes < bytes {
        drop(buffer);
        buffer = Buffer::with_bytes(bytes);
    }
    let result = work(buffer.start.as_ptr().cast());
    BUFFERS.with(|kept| kept[purpose as usize].set(buffer));
    result
}
