//! Guard bytes around blocks of memory in debug builds, and exact blocks for sanitizers.
//!
//! In builds with debug assertions, every block of the allocator and of [`scratch`](crate::scratch) has guard bytes
//! before its first byte and after its last byte. The block itself is filled with NaNs. These blocks store outputs,
//! packed panels, scratch and lists. A kernel that writes outside its memory causes a panic when the block is released.
//! A kernel that reads elements that were never written computes NaNs.
//!
//! With `--cfg pellucid_exact_alloc`, blocks have neither guards nor the unused bytes of a size class. Every block is
//! allocated from the system and returned to it, so that AddressSanitizer knows the bounds of each block.

use std::fmt;

/// True if blocks have exactly the requested size and are never cached.
#[allow(unexpected_cfgs, reason = "set by the sanitizer's script only")]
pub(crate) const EXACT: bool = cfg!(pellucid_exact_alloc);

/// The number of guard bytes on each side of a block: two of the widest vectors.
pub(crate) const GUARD: usize = if cfg!(debug_assertions) && !EXACT { 128 } else { 0 };

/// The value of an intact guard byte.
const INTACT: u8 = 0xa5;

/// The value of a byte that no kernel has written. Floats of any type whose bytes all have this value are NaNs.
const UNWRITTEN: u8 = 0xff;

/// Returns the size of a block of `bytes` bytes with its guards.
#[inline(always)]
pub(crate) const fn padded(bytes: usize) -> usize {
    bytes.saturating_add(2 * GUARD)
}

/// Writes the guards around the `bytes` bytes starting at `start`, and fills these bytes with NaNs.
///
/// # Safety
/// - *Extent*: the bytes and [`GUARD`] bytes on each side of them are valid for writes.
/// - *Exclusive*: no other reference to these bytes exists.
#[inline(always)]
pub(crate) unsafe fn write(start: *mut u8, bytes: usize) {
    if GUARD == 0 {
        return;
    }
    // SAFETY: the caller guarantees *extent*, which contains all writes, and *exclusive*: no other reference exists.
    unsafe {
        start.sub(GUARD).write_bytes(INTACT, GUARD);
        start.write_bytes(UNWRITTEN, bytes);
        start.add(bytes).write_bytes(INTACT, GUARD);
    }
}

/// Checks the guards around the `bytes` bytes starting at `start`.
///
/// # Panics
/// Panics if a guard byte has changed: a kernel wrote outside the block.
///
/// # Safety
/// - *Written*: [`write`] has written the guards for the same `start` and `bytes`, and the block is still valid.
#[inline(always)]
pub(crate) unsafe fn check(start: *mut u8, bytes: usize) {
    if GUARD == 0 {
        return;
    }
    // SAFETY: the caller guarantees *written*, so both guards are initialized and still valid for reads.
    let (before, after) = unsafe {
        (std::slice::from_raw_parts(start.sub(GUARD), GUARD), std::slice::from_raw_parts(start.add(bytes), GUARD))
    };
    let damage = GuardDamage {
        bytes,
        before: before.iter().rposition(|&b| b != INTACT).map(|i| GUARD - i),
        after: after.iter().position(|&b| b != INTACT),
    };
    // A second panic would abort the process before the first one is reported.
    let is_damaged = damage.before.is_some() || damage.after.is_some();
    assert!(!is_damaged || std::thread::panicking(), "{damage}");
}

/// The damage to the guards of a block: the overwritten byte on each side that is nearest to the block.
struct GuardDamage {
    /// The size of the block.
    bytes: usize,
    /// The distance in bytes from the start of the block back to the nearest damaged byte before it. It is 1 for an
    /// adjacent byte.
    before: Option<usize>,
    /// The distance in bytes from the end of the block to the nearest damaged byte after it. It is 0 for an adjacent
    /// byte.
    after: Option<usize>,
}

impl fmt::Display for GuardDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a kernel wrote outside a block of {} bytes:", self.bytes)?;
        self.before.map_or(Ok(()), |distance| write!(f, " {distance} bytes before its start"))?;
        self.after.map_or(Ok(()), |distance| write!(f, " {distance} bytes after its end"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::CpuBuffer;
    use crate::scratch;
    use std::panic::catch_unwind;

    /// Returns the panic message of `f`, or `None` if `f` does not panic.
    fn panic_message(f: impl FnOnce() + std::panic::UnwindSafe) -> Option<String> {
        catch_unwind(f).err().map(|e| e.downcast_ref::<String>().cloned().unwrap_or_default())
    }

    #[test]
    fn a_write_outside_of_a_block_is_detected() {
        if GUARD == 0 {
            return;
        }
        for (offset, expected) in [(-1isize, "1 bytes before"), (100, "0 bytes after"), (227, "127 bytes after")] {
            let write_to_buffer = move || {
                let buffer = CpuBuffer::scratch(100).unwrap();
                // SAFETY: the guards are part of the allocation, and `offset` is inside them.
                unsafe { *buffer.ensure().unwrap().as_ptr().offset(offset) = 7 };
            };
            // SAFETY: the guards are part of the scratch frame, and `offset` is inside them.
            let write_to_scratch =
                move || scratch::with_buffer(100, |start: *mut u8| unsafe { *start.offset(offset) = 7 });
            for message in [panic_message(write_to_buffer), panic_message(write_to_scratch)] {
                assert!(
                    message.as_deref().is_some_and(|m| m.contains(expected)),
                    "a write at offset {offset} must be reported as {expected:?}, but the message is {message:?}"
                );
            }
        }
        let write_inside = || {
            let buffer = CpuBuffer::scratch(100).unwrap();
            // SAFETY: the buffer has 100 bytes.
            unsafe { buffer.ensure().unwrap().as_ptr().write_bytes(0, 100) };
            // SAFETY: the scratch memory has 100 bytes.
            scratch::with_buffer(100, |start: *mut u8| unsafe { start.write_bytes(0, 100) });
        };
        assert_eq!(panic_message(write_inside), None);
    }
}
