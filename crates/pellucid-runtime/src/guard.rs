//! Guard bytes around blocks of memory in debug builds, and exact blocks for sanitizers.
//!
//! In builds with debug assertions, every block of the allocator and of [`scratch`](crate::scratch) has guard bytes before
//! its first byte and behind its last one, and its bytes are those of NaNs: outputs, packed panels, scratch and lists
//! alike. A kernel that writes outside of its memory causes a panic when the block is released. A kernel that reads
//! elements that were never written computes NaNs.
//!
//! With `--cfg pellucid_exact_alloc` blocks have neither guards nor the slack of a size class, and every one comes from the
//! system and goes back to it, so that AddressSanitizer knows the bounds of each of them.

use std::fmt;

/// Whether blocks are exactly as large as requested, and none is kept.
#[allow(unexpected_cfgs, reason = "set by the sanitizer's script only")]
pub(crate) const EXACT: bool = cfg!(pellucid_exact_alloc);

/// Guard bytes on each side of a block: two of the widest vectors.
pub(crate) const GUARD: usize = if cfg!(debug_assertions) && !EXACT { 128 } else { 0 };

/// The value of a guard byte.
const INTACT: u8 = 0xa5;

/// The value of a byte that no kernel has written: those of a NaN of any float type.
const UNWRITTEN: u8 = 0xff;

/// Returns the size of a block of `bytes` bytes with its guards.
#[inline(always)]
pub(crate) const fn padded(bytes: usize) -> usize {
    bytes.saturating_add(2 * GUARD)
}

/// Writes the guards around the `bytes` bytes from `start` on, and fills these bytes with NaNs.
///
/// # Safety
/// The bytes and [`GUARD`] bytes on each side of them are valid for writing, and no other reference to them exists.
#[inline(always)]
pub(crate) unsafe fn write(start: *mut u8, bytes: usize) {
    if GUARD == 0 {
        return;
    }
    // SAFETY: the contract of this function.
    unsafe {
        start.sub(GUARD).write_bytes(INTACT, GUARD);
        start.write_bytes(UNWRITTEN, bytes);
        start.add(bytes).write_bytes(INTACT, GUARD);
    }
}

/// Checks the guards around the `bytes` bytes from `start` on.
///
/// # Panics
/// If a byte of a guard has changed: a kernel wrote outside of the block.
///
/// # Safety
/// The guards were written by [`write`] for as many bytes, and the block is still valid.
#[inline(always)]
pub(crate) unsafe fn check(start: *mut u8, bytes: usize) {
    if GUARD == 0 {
        return;
    }
    // SAFETY: `write` has initialised both guards of the block.
    let (before, behind) = unsafe {
        (std::slice::from_raw_parts(start.sub(GUARD), GUARD), std::slice::from_raw_parts(start.add(bytes), GUARD))
    };
    let damage = Damage {
        bytes,
        before: before.iter().rposition(|&b| b != INTACT).map(|i| GUARD - i),
        behind: behind.iter().position(|&b| b != INTACT),
    };
    // A second panic would end the process before the first is reported.
    let found = damage.before.is_some() || damage.behind.is_some();
    assert!(!found || std::thread::panicking(), "{damage}");
}

/// Where a guard was overwritten.
struct Damage {
    bytes: usize,
    before: Option<usize>,
    behind: Option<usize>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a kernel wrote outside of a block of {} bytes:", self.bytes)?;
        self.before.map_or(Ok(()), |at| write!(f, " {at} bytes before its start"))?;
        self.behind.map_or(Ok(()), |at| write!(f, " {at} bytes behind its end"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::CpuBuffer;
    use crate::scratch;
    use std::panic::catch_unwind;

    /// The message of the panic that `f` ends with, if it does.
    fn message(f: impl FnOnce() + std::panic::UnwindSafe) -> Option<String> {
        catch_unwind(f).err().map(|e| e.downcast_ref::<String>().cloned().unwrap_or_default())
    }

    #[test]
    fn a_write_outside_of_a_block_is_found() {
        if GUARD == 0 {
            return;
        }
        for (at, expected) in [(-1isize, "1 bytes before"), (100, "0 bytes behind"), (227, "127 bytes behind")] {
            let buffer = move || {
                let buffer = CpuBuffer::scratch(100).unwrap();
                // SAFETY: the guards are part of the block.
                unsafe { *buffer.ensure().unwrap().as_ptr().offset(at) = 7 };
            };
            // SAFETY: as above.
            let stack = move || scratch::with(100, |start: *mut u8| unsafe { *start.offset(at) = 7 });
            for found in [message(buffer), message(stack)] {
                assert!(found.as_deref().is_some_and(|m| m.contains(expected)), "{at}: {found:?}");
            }
        }
        let inside = || {
            let buffer = CpuBuffer::scratch(100).unwrap();
            // SAFETY: these are all bytes of the block.
            unsafe { buffer.ensure().unwrap().as_ptr().write_bytes(0, 100) };
            // SAFETY: as above.
            scratch::with(100, |start: *mut u8| unsafe { start.write_bytes(0, 100) });
        };
        assert_eq!(message(inside), None);
    }
}
