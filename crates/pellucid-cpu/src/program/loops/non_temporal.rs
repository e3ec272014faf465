//! Stores that pass the caches by.

use super::are_apart;
use pellucid_simd::vector::{FloatVector, Vector};
use pellucid_simd::{Isa, per_isa};

/// The size of a cache line in bytes. Whole lines are written.
const LINE: usize = 64;

/// Outputs of at least so many bytes pass the caches by: before the last of them is written the first would
/// have left.
const LARGE: usize = if cfg!(test) { 32 << 10 } else { 8 << 20 };

/// The copy by which outputs of so many bytes reach memory, if they are too large to be kept near. In place nothing
/// is gained: those lines were just read.
#[inline]
pub(crate) fn streaming(bytes: usize, in_place: impl FnOnce() -> bool) -> Option<StreamLoop> {
    (bytes >= LARGE && !in_place()).then(|| stream(Isa::best()))
}

/// `stream(dst, src, n)`: copies `n` bytes without reading the lines of `dst` and without keeping them near.
/// Worth it where so much is written that the first of it is gone before anyone reads. Other threads see it
/// after [`store_fence`].
///
/// # Safety
/// `src` holds `n` bytes, `dst` has room for them, they do not overlap, and the processor has the isa the loop
/// was asked for.
pub(crate) type StreamLoop = unsafe fn(dst: *mut u8, src: *const u8, n: usize);

per_isa! {
    /// Returns the copy of an instruction set.
    pub(crate) fn stream [] [] <S> (dst: *mut u8, src: *const u8, n: usize) {
        debug_assert!(are_apart((dst, n), (src, n)), "{n} bytes overlap");
        let head = dst.align_offset(LINE).min(n);
        let lines = (n - head) / LINE * LINE;
        // SAFETY: the caller keeps the contract of `StreamLoop`. The first line is aligned, and so are the vectors, whose
        // size divides that of a line.
        unsafe {
            dst.copy_from_nonoverlapping(src, head);
            let (to, from) = (dst.add(head), src.add(head));
            for at in (0..lines).step_by(size_of::<S::FloatVector<f32>>()) {
                S::FloatVector::<f32>::load(from.add(at).cast()).stream(to.add(at).cast());
            }
            to.add(lines).copy_from_nonoverlapping(from.add(lines), n - head - lines);
        }
    }
}

/// Ends a series of such stores: whoever learns of anything later finds them done.
#[inline]
pub(crate) fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE.
    unsafe {
        core::arch::x86_64::_mm_sfence()
    };
}
