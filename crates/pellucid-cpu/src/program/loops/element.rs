//! The element types of the loops, and how they lie in memory.

use pellucid_simd::math::half::{BF16, F16};
use std::mem::MaybeUninit;

/// A truth value in one byte, 0 or 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(transparent)]
pub(crate) struct Mask(pub(crate) u8);

impl From<bool> for Mask {
    #[inline(always)]
    fn from(b: bool) -> Mask {
        Mask(b as u8)
    }
}

/// A type of plain bytes of which all zeros is a value.
pub(crate) trait LoopElement: Copy + 'static {}
macro_rules! elem {
    ($($t:ty)*) => {$( impl LoopElement for $t {} )*};
}
elem!(Mask u8 i8 i16 i32 i64 u32 u64 F16 BF16 f32 f64);

/// An element at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(crate) struct At<T: Copy>(pub(crate) T);

/// The `n` elements at `p`.
///
/// # Safety
/// They are initialised and not written while the slice lives.
#[inline(always)]
pub(crate) unsafe fn source<'a, T: LoopElement>(p: *const u8, n: usize) -> &'a [At<T>] {
    // SAFETY: the caller's promise; `At` has alignment 1.
    unsafe { std::slice::from_raw_parts(p.cast(), n) }
}

/// Room for `n` elements at `p`.
///
/// # Safety
/// It is writable, and nothing else reads or writes it while the slice lives.
#[inline(always)]
pub(crate) unsafe fn target<'a, T: LoopElement>(p: *mut u8, n: usize) -> &'a mut [MaybeUninit<At<T>>] {
    // SAFETY: the caller's promise; `At` has alignment 1 and `MaybeUninit` needs no value.
    unsafe { std::slice::from_raw_parts_mut(p.cast(), n) }
}

/// Whether two runs of bytes, each an address and a length, have no byte in common.
#[inline(always)]
pub(crate) fn are_apart((a, m): (*const u8, usize), (b, n): (*const u8, usize)) -> bool {
    m == 0 || n == 0 || a.addr() + m <= b.addr() || b.addr() + n <= a.addr()
}

/// Whether a loop over `n` elements may write to `dst` and read `source`, each an address and the size of an element: they
/// do not overlap, or are equal, sizes included. A size of 0 stands for one value, which is read before any is written.
#[inline(always)]
pub(crate) fn may_overwrite(dst: (*mut u8, usize), source: (*const u8, usize), n: usize) -> bool {
    let same = dst.0.cast_const() == source.0 && dst.1 == source.1;
    same || are_apart((dst.0, n * dst.1), (source.0, n * source.1))
}

/// The one element at `p`.
///
/// # Safety
/// It is initialised.
#[inline(always)]
pub(crate) unsafe fn one<T: LoopElement>(p: *const u8) -> T {
    // SAFETY: the caller's promise.
    unsafe { p.cast::<T>().read_unaligned() }
}
