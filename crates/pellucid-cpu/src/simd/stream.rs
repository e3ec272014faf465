//! Stores that pass the caches by.

use super::Level;

/// Outputs of at least so many bytes pass the caches by: before the last of them is written the first would
/// have left.
const LARGE: usize = if cfg!(test) { 32 << 10 } else { 8 << 20 };

/// The copy by which outputs of so many bytes reach memory, if they are too large to be kept near. In place nothing
/// is gained: those lines were just read.
#[inline]
pub(crate) fn streaming(bytes: usize, in_place: impl FnOnce() -> bool) -> Option<StreamLoop> {
    (bytes >= LARGE && !in_place()).then(|| stream(Level::detect()))
}

/// `stream(dst, src, n)`: copies `n` bytes without reading the lines of `dst` and without keeping them near.
/// Worth it where so much is written that the first of it is gone before anyone reads. Other threads see it
/// after [`settle`].
///
/// # Safety
/// `src` holds `n` bytes, `dst` has room for them, they do not overlap, and the processor has the level the loop
/// was asked for.
pub(crate) type StreamLoop = unsafe fn(dst: *mut u8, src: *const u8, n: usize);

/// The copy of this level.
pub(crate) fn stream(level: Level) -> StreamLoop {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => x86::avx512,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => x86::avx2,
        #[cfg(target_arch = "x86_64")]
        Level::Portable => x86::sse2,
        #[cfg(not(target_arch = "x86_64"))]
        _ => copy,
    }
}

/// Ends a series of such stores: whoever learns of anything later finds them done.
#[inline]
pub(crate) fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE.
    unsafe {
        core::arch::x86_64::_mm_sfence()
    };
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy(dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: the caller's promise.
    unsafe { dst.copy_from_nonoverlapping(src, n) };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::simd::are_apart;
    use core::arch::x86_64::*;

    /// Bytes of a cache line, which must be written whole.
    const LINE: usize = 64;

    /// The copy by vectors of one width.
    macro_rules! by {
        ($name:ident, $features:literal, $vector:ty, $load:ident, $store:ident) => {
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name(dst: *mut u8, src: *const u8, n: usize) {
                debug_assert!(are_apart((dst, n), (src, n)), "{n} bytes overlap");
                let head = dst.align_offset(LINE).min(n);
                let lines = (n - head) / LINE * LINE;
                // SAFETY: the caller's promise; the lines are aligned as the stores need.
                unsafe {
                    dst.copy_from_nonoverlapping(src, head);
                    let (to, from) = (dst.add(head), src.add(head));
                    for at in (0..lines).step_by(size_of::<$vector>()) {
                        $store(to.add(at).cast(), $load(from.add(at).cast()));
                    }
                    to.add(lines).copy_from_nonoverlapping(from.add(lines), n - head - lines);
                }
            }
        };
    }
    by!(avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512);
    by!(avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_stream_si256);
    by!(sse2, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128);
}
