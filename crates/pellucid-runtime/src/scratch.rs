//! Scratch: memory that every thread keeps for its tiles and panels, so that no run allocates.
//!
//! A stack: who asks within the work of somebody else gets what lies above. What does not fit is allocated for the
//! time, and the block grows to all that was needed as soon as nobody uses it.

use crate::guard;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Vector registers and cache lines are this wide: an unaligned tile costs a quarter to a half.
const ALIGN: usize = 64;

/// The least that a thread keeps.
const LEAST: usize = 64 << 10;

/// The most that a thread has needed at once.
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Bytes that all threads have at present.
static TOTAL: AtomicUsize = AtomicUsize::new(0);

struct Block {
    start: *mut u8,
    bytes: usize,
}

impl Block {
    const NONE: Block = Block { start: std::ptr::null_mut(), bytes: 0 };

    fn new(bytes: usize) -> Block {
        let least = if guard::EXACT { 1 } else { ALIGN };
        let layout = Layout::from_size_align(bytes.max(least), ALIGN).expect("scratch fits the address space");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        TOTAL.fetch_add(layout.size(), Relaxed);
        Block { start, bytes: layout.size() }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.bytes > 0 {
            TOTAL.fetch_sub(self.bytes, Relaxed);
            // SAFETY: allocated in `new` with this size and alignment, both valid there.
            unsafe { dealloc(self.start, Layout::from_size_align_unchecked(self.bytes, ALIGN)) }
        }
    }
}

/// What a thread keeps.
struct Stack {
    block: Cell<Block>,
    /// Where the block is, and its size.
    start: Cell<*mut u8>,
    bytes: Cell<usize>,
    /// Bytes that are in use, and the most that ever were.
    top: Cell<usize>,
    most: Cell<usize>,
}

thread_local! {
    static STACK: Stack = const {
        Stack {
            block: Cell::new(Block::NONE),
            start: Cell::new(std::ptr::null_mut()),
            bytes: Cell::new(0),
            top: Cell::new(0),
            most: Cell::new(0),
        }
    };
}

impl Stack {
    /// Makes the block, which nobody uses, large enough.
    #[cold]
    fn grow(&self, bytes: usize) {
        // Powers of two: a handful of growths in the life of a thread.
        let bytes = bytes.next_power_of_two().max(LEAST);
        self.block.set(Block::NONE);
        let block = Block::new(bytes);
        self.start.set(block.start);
        self.bytes.set(block.bytes);
        self.block.set(block);
    }
}

/// A part of the stack, given back when it is dropped: last come, first gone.
struct Part {
    below: usize,
    start: *mut u8,
    _own: Block,
}

impl Part {
    #[inline]
    fn new(stack: &Stack, bytes: usize) -> Part {
        let below = stack.top.get();
        let top = below + bytes;
        if top > stack.most.get() {
            stack.most.set(top);
            MOST.fetch_max(top, Relaxed);
        }
        if below == 0 && stack.most.get() > stack.bytes.get() {
            stack.grow(stack.most.get());
        }
        stack.top.set(top);
        if top <= stack.bytes.get() {
            return Part { below, start: stack.start.get().wrapping_add(below), _own: Block::NONE };
        }
        let own = Block::new(bytes);
        Part { below, start: own.start, _own: own }
    }
}

impl Drop for Part {
    #[inline]
    fn drop(&mut self) {
        STACK.with(|stack| stack.top.set(self.below));
    }
}

/// Runs `f` with room for at least `count` uninitialised values, 64-byte aligned, that nobody else uses meanwhile.
#[inline]
pub fn with<T, R>(count: usize, f: impl FnOnce(*mut T) -> R) -> R {
    const { assert!(align_of::<T>() <= ALIGN) };
    let bytes = count.checked_mul(size_of::<T>()).filter(|&bytes| bytes < isize::MAX as usize / 2);
    let bytes = bytes.expect("scratch fits the address space");
    if guard::EXACT {
        let own = Block::new(bytes);
        return f(own.start.cast());
    }
    let part = STACK.with(|stack| Part::new(stack, padded(guard::padded(bytes))));
    // SAFETY: the part belongs to this call, and includes the guards.
    let start = unsafe { part.start.add(guard::GUARD) };
    // SAFETY: as above.
    unsafe { guard::write(start, bytes) };
    let result = f(start.cast());
    // SAFETY: the guards were written for as many bytes.
    unsafe { guard::check(start, bytes) };
    result
}

/// Bytes that all threads keep, and use beyond that, at present.
pub fn total() -> usize {
    TOTAL.load(Relaxed)
}

/// The most that any thread has needed.
pub fn most() -> usize {
    MOST.load(Relaxed)
}

/// Lets this thread keep as much as any thread has needed.
pub fn reserve() {
    STACK.with(|stack| {
        stack.most.set(stack.most.get().max(most()));
        if stack.top.get() == 0 && stack.most.get() > stack.bytes.get() {
            stack.grow(stack.most.get());
        }
    });
}

/// `bytes` rounded up so that what follows is aligned.
pub const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_uses_never_share_memory() {
        let nested = || {
            with(100, |a: *mut u8| {
                with(100, |b: *mut u64| {
                    with(1 << 20, |c: *mut u8| {
                        let all = [a.addr(), b.addr(), c.addr()];
                        assert!(all.iter().all(|p| p % ALIGN == 0));
                        assert!(all[0].abs_diff(all[1]) >= 100 && all[1].abs_diff(all[2]) >= 800);
                        all
                    })
                })
            })
        };
        nested();
        let kept = nested();
        assert_eq!(kept, nested(), "kept, not allocated again");
        assert!(kept.is_sorted(), "one block");
    }

    #[test]
    fn a_thread_may_have_what_another_needed() {
        with(3 << 20, |_: *mut u8| ());
        assert!(most() >= 3 << 20);
        std::thread::spawn(|| {
            reserve();
            assert!(total() >= 3 << 20);
            let kept = STACK.with(|stack| stack.start.get()).wrapping_add(guard::GUARD);
            assert_eq!(with(3 << 20, |p: *mut u8| p), kept);
        })
        .join()
        .unwrap();
    }
}
