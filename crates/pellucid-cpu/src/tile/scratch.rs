//! Scratch: memory that every thread keeps for its tiles, so that no run allocates.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;

/// Vector registers and cache lines are this wide: an unaligned tile costs a quarter to a half.
const ALIGN: usize = 64;

/// Bytes behind the scratch that are watched.
const GUARD: usize = if cfg!(test) { 256 } else { 0 };

/// What scratch is for; uses of different purpose nest without a second allocation.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// Registers of a program, while a tile or a row is worked on.
    Tile,
    /// Results that wait for their combination, while tiles are worked on.
    Partial,
}

struct Block {
    start: *mut u8,
    bytes: usize,
}

impl Block {
    fn new(bytes: usize) -> Block {
        let bytes = bytes.next_power_of_two().max(32 << 10);
        let layout = Layout::from_size_align(bytes, ALIGN).expect("scratch fits the address space");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Block { start, bytes }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this size and alignment, both valid there.
        unsafe { dealloc(self.start, Layout::from_size_align_unchecked(self.bytes, ALIGN)) }
    }
}

thread_local! {
    static KEPT: [Cell<Option<Block>>; 2] = const { [Cell::new(None), Cell::new(None)] };
}

/// Runs `f` with at least `bytes` bytes of uninitialised memory, 64-byte aligned, that nobody else
/// uses meanwhile.
pub(super) fn with<R>(purpose: Purpose, bytes: usize, f: impl FnOnce(*mut u8) -> R) -> R {
    let kept = KEPT.with(|k| k[purpose as usize].take());
    let block = kept.filter(|b| b.bytes >= bytes + GUARD).unwrap_or_else(|| Block::new(bytes + GUARD));
    // In tests, whoever writes beyond its scratch is caught.
    let guard = block.start.wrapping_add(bytes);
    // SAFETY: the block has `GUARD` bytes more than were asked for.
    unsafe { guard.write_bytes(0xA5, GUARD) };
    let result = f(block.start);
    // SAFETY: as above, and they were written.
    let intact = unsafe { std::slice::from_raw_parts(guard, GUARD) }.iter().all(|&b| b == 0xA5);
    assert!(intact, "a kernel wrote beyond its {bytes} bytes of scratch");
    KEPT.with(|k| k[purpose as usize].set(Some(block)));
    result
}

/// `bytes` rounded up so that what follows is aligned.
pub(super) const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_uses_never_share_memory() {
        with(Purpose::Tile, 100, |a| {
            with(Purpose::Tile, 100, |b| {
                with(Purpose::Partial, 1 << 20, |c| {
                    assert!(a != b && b != c && a != c);
                    assert!([a, b, c].iter().all(|p| p.addr() % ALIGN == 0));
                })
            })
        });
        let first = with(Purpose::Partial, 1, |p| p.addr());
        assert_eq!(first, with(Purpose::Partial, 1 << 20, |p| p.addr()), "kept, not allocated again");
    }
}
