//! Element types of the loops, and unaligned access to them.

use pellucid_simd::Isa;
use pellucid_simd::math::half::{BF16, F16};
use std::mem::MaybeUninit;

/// A boolean stored in one byte, 0 or 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(transparent)]
pub(crate) struct MaskByte(pub(crate) u8);

impl From<bool> for MaskByte {
    #[inline(always)]
    fn from(b: bool) -> MaskByte {
        MaskByte(b as u8)
    }
}

/// A type of plain bytes whose all-zero bit pattern is a valid value.
pub(crate) trait LoopElement: Copy + 'static {
    /// The widest instruction set for which loops on these elements are compiled. A loop may override it.
    const WIDEST_ISA: Isa;
}
macro_rules! loop_elements {
    ($isa:ident: $($t:ty)*) => {$(
        impl LoopElement for $t {
            const WIDEST_ISA: Isa = Isa::$isa;
        }
    )*};
}
loop_elements!(Avx512: MaskByte u8 i32 i64 u32 u64 F16 BF16 f32 f64);
// Conversions of these types rarely run.
loop_elements!(Avx2: i8 i16);

/// An element with alignment 1.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(crate) struct Unaligned<T: Copy>(pub(crate) T);

/// Returns the `n` elements at `p` as a slice.
///
/// # Safety
/// * Initialized: `p` is valid for reads of `n` elements of type `T`, all initialized. `p` needs no alignment.
/// * Unchanged: no code writes these elements while the slice is in use.
#[inline(always)]
pub(crate) unsafe fn source_slice<'a, T: LoopElement>(p: *const u8, n: usize) -> &'a [Unaligned<T>] {
    // SAFETY: the caller guarantees *Initialized* and *Unchanged* (this function's contract); `Unaligned` has alignment
    // 1.
    unsafe { std::slice::from_raw_parts(p.cast(), n) }
}

/// Returns the memory of `n` elements at `p` as a slice of uninitialized elements.
///
/// # Safety
/// * Writable: `p` is valid for writes of `n` elements of type `T`. It needs no alignment.
/// * Exclusive: no other code reads or writes these elements while the slice is in use.
#[inline(always)]
pub(crate) unsafe fn output_slice<'a, T: LoopElement>(p: *mut u8, n: usize) -> &'a mut [MaybeUninit<Unaligned<T>>] {
    // SAFETY: the caller guarantees *Writable* and *Exclusive* (this function's contract). `Unaligned` has alignment 1,
    // and `MaybeUninit` needs no initialized value.
    unsafe { std::slice::from_raw_parts_mut(p.cast(), n) }
}

/// Returns true if two byte ranges, each an address and a length, have no byte in common.
#[inline(always)]
pub(crate) fn are_apart((a, m): (*const u8, usize), (b, n): (*const u8, usize)) -> bool {
    m == 0 || n == 0 || a.addr() + m <= b.addr() || b.addr() + n <= a.addr()
}

/// Returns true if a loop over `n` elements may write to `dst` and read `source`, each an address and an element size.
///
/// The two ranges must be disjoint, or have equal addresses and equal element sizes. Size 0 stands for a uniform
/// operand: one value, which the loop reads before it writes any result.
#[inline(always)]
pub(crate) fn can_overwrite(dst: (*mut u8, usize), source: (*const u8, usize), n: usize) -> bool {
    let same = dst.0.cast_const() == source.0 && dst.1 == source.1;
    same || are_apart((dst.0, n * dst.1), (source.0, n * source.1))
}

/// Reads the element at `p`.
///
/// # Safety
/// `p` is valid for reads of one initialized element of type `T`. It needs no alignment.
#[inline(always)]
pub(crate) unsafe fn read_element<T: LoopElement>(p: *const u8) -> T {
    // SAFETY: the caller guarantees that `p` is valid for reads of one element (this function's contract).
    unsafe { p.cast::<T>().read_unaligned() }
}
