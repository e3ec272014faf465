//! Scratch memory: every thread keeps a stack for the tiles and panels of its kernels, so that kernels do not allocate.
//!
//! Nested uses are stacked: a use within another use receives the memory above it. If the memory of a use does not fit
//! on the stack, the use allocates its own block. At the first use after the stack is empty, the stack grows to the
//! largest size that was needed. Slices of more than 1 MiB ([`with_filled`]) are never on the stack, and are freed
//! after their use.

use crate::guard;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The alignment of scratch memory: the size of a cache line and of the widest vector. Work on an unaligned tile
/// takes 25 to 50 % more time.
const ALIGN: usize = 64;

/// The smallest size of a thread's stack.
const MIN_BYTES: usize = 64 << 10;

/// The largest size of a slice that [`with_filled`] stores on the stack. Memory that may be larger, because its size
/// depends on the operands, is a [workspace](crate::workspace).
pub const MAX_STACK_BYTES: usize = 1 << 20;

/// The maximum number of bytes that any thread has needed simultaneously.
static MAX_NEEDED: AtomicUsize = AtomicUsize::new(0);

/// The bytes of scratch memory that are currently allocated for all threads together.
static TOTAL: AtomicUsize = AtomicUsize::new(0);

/// An owned block of scratch memory.
struct ScratchBlock {
    start: *mut u8,
    bytes: usize,
}

impl ScratchBlock {
    /// A block without memory.
    const NONE: ScratchBlock = ScratchBlock { start: std::ptr::null_mut(), bytes: 0 };

    /// Allocates a block, and aborts the process if the system has no more memory.
    fn new(bytes: usize) -> ScratchBlock {
        let min_bytes = if guard::EXACT { 1 } else { ALIGN };
        let layout =
            Layout::from_size_align(bytes.max(min_bytes), ALIGN).expect("scratch memory must fit the address space");
        // SAFETY: the size of the layout is at least `min_bytes`, which is not zero.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        TOTAL.fetch_add(layout.size(), Relaxed);
        ScratchBlock { start, bytes: layout.size() }
    }
}

impl Drop for ScratchBlock {
    fn drop(&mut self) {
        if self.bytes > 0 {
            TOTAL.fetch_sub(self.bytes, Relaxed);
            // SAFETY: `new` allocated the block with this size and alignment, which form a valid layout.
            unsafe { dealloc(self.start, Layout::from_size_align_unchecked(self.bytes, ALIGN)) }
        }
    }
}

/// The scratch stack of a thread.
struct ScratchStack {
    block: Cell<ScratchBlock>,
    /// The start of `block`.
    start: Cell<*mut u8>,
    /// The size of `block`.
    bytes: Cell<usize>,
    /// The number of bytes in use.
    top: Cell<usize>,
    /// The maximum number of bytes that this thread has needed simultaneously.
    max_needed: Cell<usize>,
}

thread_local! {
    static STACK: ScratchStack = const {
        ScratchStack {
            block: Cell::new(ScratchBlock::NONE),
            start: Cell::new(std::ptr::null_mut()),
            bytes: Cell::new(0),
            top: Cell::new(0),
            max_needed: Cell::new(0),
        }
    };
}

impl ScratchStack {
    /// Replaces the block by one of at least `bytes` bytes. The stack must be empty.
    #[cold]
    fn grow(&self, bytes: usize) {
        // Sizes that are powers of two limit the number of reallocations in the life of a thread.
        let bytes = bytes.next_power_of_two().max(MIN_BYTES);
        self.block.set(ScratchBlock::NONE);
        let block = ScratchBlock::new(bytes);
        self.start.set(block.start);
        self.bytes.set(block.bytes);
        self.block.set(block);
    }
}

/// The memory of one use, on the stack or in a separate block. Frames are dropped in reverse order of their creation.
struct ScratchFrame {
    /// The top of the stack before this frame.
    previous_top: usize,
    start: *mut u8,
    _overflow: ScratchBlock,
}

impl ScratchFrame {
    #[inline]
    fn new(stack: &ScratchStack, bytes: usize) -> ScratchFrame {
        let previous_top = stack.top.get();
        let top = previous_top + bytes;
        if top > stack.max_needed.get() {
            stack.max_needed.set(top);
            MAX_NEEDED.fetch_max(top, Relaxed);
        }
        if previous_top == 0 && stack.max_needed.get() > stack.bytes.get() {
            stack.grow(stack.max_needed.get());
        }
        stack.top.set(top);
        if top <= stack.bytes.get() {
            let start = stack.start.get().wrapping_add(previous_top);
            return ScratchFrame { previous_top, start, _overflow: ScratchBlock::NONE };
        }
        let overflow = ScratchBlock::new(bytes);
        ScratchFrame { previous_top, start: overflow.start, _overflow: overflow }
    }
}

impl Drop for ScratchFrame {
    #[inline]
    fn drop(&mut self) {
        STACK.with(|stack| stack.top.set(self.previous_top));
    }
}

/// Runs `f` with a pointer to scratch memory for at least `count` values.
///
/// The memory is uninitialized, aligned to 64 bytes, and not used by any other code until `f` returns.
///
/// # Panics
/// Panics if the size exceeds the address space. In builds with debug assertions, also panics if `f` writes outside the
/// memory.
#[inline]
pub fn with_buffer<T, R>(count: usize, f: impl FnOnce(*mut T) -> R) -> R {
    with_memory(count, guard::EXACT, f)
}

/// Runs `f` as [`with_buffer`] does, with memory of the stack or, if `has_own_block`, with a block that is freed when
/// `f` returns.
#[inline]
fn with_memory<T, R>(count: usize, has_own_block: bool, f: impl FnOnce(*mut T) -> R) -> R {
    const { assert!(align_of::<T>() <= ALIGN) };
    let bytes = count.checked_mul(size_of::<T>()).filter(|&bytes| bytes < isize::MAX as usize / 2);
    let bytes = bytes.expect("scratch memory must fit the address space");
    if has_own_block {
        let block = ScratchBlock::new(bytes);
        return f(block.start.cast());
    }
    let frame = STACK.with(|stack| ScratchFrame::new(stack, padded(guard::padded(bytes))));
    // SAFETY: the frame has `guard::padded(bytes)` bytes, so the first guard is inside the frame.
    let start = unsafe { frame.start.add(guard::GUARD) };
    // SAFETY: *extent* of `guard::write`: the frame has `bytes` bytes and `GUARD` bytes on both sides of them.
    // *Exclusive*: the frame belongs to this call.
    unsafe { guard::write(start, bytes) };
    let result = f(start.cast());
    // SAFETY: *written* of `guard::check`: the call above wrote the guards for `bytes` bytes, and the frame is alive.
    unsafe { guard::check(start, bytes) };
    result
}

/// Runs `f` with a slice of `count` values in scratch memory, all equal to `value`.
///
/// A slice of more than 1 MiB has its own block, which is freed when `f` returns, so that a large matrix does not grow
/// the stacks of all threads for the life of the process.
///
/// # Panics
/// Panics if the size exceeds the address space.
#[inline]
pub fn with_filled<T: Copy, R>(count: usize, value: T, f: impl FnOnce(&mut [T]) -> R) -> R {
    let is_large = count.saturating_mul(size_of::<T>()) > MAX_STACK_BYTES;
    with_memory(count, guard::EXACT || is_large, |start: *mut T| {
        // SAFETY: the buffer has memory for `count` values, aligned to 64 bytes, which no other code uses until `f`
        // returns. All values are initialized before the slice of values is created.
        let values = unsafe {
            (0..count).for_each(|i| start.add(i).write(value));
            std::slice::from_raw_parts_mut(start, count)
        };
        f(values)
    })
}

/// Returns the bytes of scratch memory that are currently allocated for all threads, including blocks that did not fit
/// on the stack of their thread.
pub fn total_bytes() -> usize {
    TOTAL.load(Relaxed)
}

/// Returns the maximum number of bytes that any thread has needed simultaneously.
pub fn peak_bytes() -> usize {
    MAX_NEEDED.load(Relaxed)
}

/// Grows the stack of this thread to the largest size that any thread has needed, if the stack is empty.
///
/// Otherwise, the stack grows at the first use after it is empty.
pub fn reserve() {
    STACK.with(|stack| {
        stack.max_needed.set(stack.max_needed.get().max(peak_bytes()));
        if stack.top.get() == 0 && stack.max_needed.get() > stack.bytes.get() {
            stack.grow(stack.max_needed.get());
        }
    });
}

/// Returns `bytes` rounded up to a multiple of the alignment of scratch memory.
pub const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_uses_have_disjoint_memory() {
        let nested = || {
            with_buffer(100, |a: *mut u8| {
                with_buffer(100, |b: *mut u64| {
                    with_buffer(1 << 20, |c: *mut u8| {
                        let all = [a.addr(), b.addr(), c.addr()];
                        assert!(all.iter().all(|p| p % ALIGN == 0));
                        assert!(all[0].abs_diff(all[1]) >= 100 && all[1].abs_diff(all[2]) >= 800);
                        all
                    })
                })
            })
        };
        nested();
        let addresses = nested();
        assert_eq!(addresses, nested(), "the second use must reuse the memory of the first");
        assert!(addresses.is_sorted(), "nested uses must be stacked in one block");
    }

    #[test]
    fn a_large_slice_is_freed_after_its_use() {
        let bytes = 32 << 20;
        with_filled(bytes, 1u8, |values| {
            assert!(values.len() == bytes && values[bytes - 1] == 1 && total_bytes() >= bytes);
        });
        reserve();
        assert!(total_bytes() < bytes && peak_bytes() < bytes);
    }

    #[test]
    fn a_thread_reserves_as_much_as_another_thread_needed() {
        with_buffer(3 << 20, |_: *mut u8| ());
        assert!(peak_bytes() >= 3 << 20);
        std::thread::spawn(|| {
            reserve();
            assert!(total_bytes() >= 3 << 20);
            let reserved = STACK.with(|stack| stack.start.get()).wrapping_add(guard::GUARD);
            assert_eq!(with_buffer(3 << 20, |p: *mut u8| p), reserved);
        })
        .join()
        .unwrap();
    }
}
