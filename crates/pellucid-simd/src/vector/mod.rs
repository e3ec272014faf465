//! Vectors: the few instructions that the kernels of the matrix product and of chains are written with.
//!
//! A kernel is written once, over [`Vector`], and compiled once per instruction set. All sets
//! compute the same bits: every operation rounds once everywhere, and which elements share a vector
//! never matters, because the only sum across lanes is the tree of [`fold`](Vector::fold), the same whichever registers hold the lanes.

mod interleaved;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use portable::Lanes;
#[cfg(target_arch = "x86_64")]
pub use x86::{F32x8, F32x16, F64x4, F64x8};

use crate::element::Element;
use crate::math::Real;

/// A register of `LANES` numbers.
///
/// # Safety of the methods
///
/// All are `#[inline(always)]` and must be inlined into a function that has the instruction set
/// enabled, on a machine that has it. Pointers need no alignment, and must be valid for the lanes
/// read or written: all of them, or those of the mask.
pub trait Vector: Copy {
    type Scalar: Element;
    /// Selects neighbouring lanes.
    type Mask: Copy;
    const LANES: usize;
    /// Side of the square block that [`transpose`](Self::transpose) turns.
    const SIDE: usize;

    unsafe fn zero() -> Self;
    /// All lanes read the one number at `p`.
    unsafe fn splat(p: *const Self::Scalar) -> Self;
    /// The first `n` lanes.
    unsafe fn mask(n: usize) -> Self::Mask;
    /// The lanes `first..first + n`.
    unsafe fn mask_from(first: usize, n: usize) -> Self::Mask;
    unsafe fn load(p: *const Self::Scalar) -> Self;
    /// The lanes outside the mask are zero, and their memory is not touched.
    unsafe fn load_part(p: *const Self::Scalar, mask: Self::Mask) -> Self;
    /// The lanes of the mask from memory, the others as they are; no other memory is touched.
    unsafe fn load_over(self, p: *const Self::Scalar, mask: Self::Mask) -> Self;
    unsafe fn store(self, p: *mut Self::Scalar);
    unsafe fn store_part(self, p: *mut Self::Scalar, mask: Self::Mask);
    /// `self · b + c`, rounded once.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    unsafe fn add(self, b: Self) -> Self;
    unsafe fn sub(self, b: Self) -> Self;
    /// The sum of all lanes by halves: lane l takes lane l + LANES/2, then l + LANES/4, and so on.
    unsafe fn fold(self) -> Self::Scalar;
    /// `to[j·to_row + i] = from[i·from_row + j]` for `i, j < SIDE`.
    unsafe fn transpose(from: *const Self::Scalar, from_row: isize, to: *mut Self::Scalar, to_row: usize);
}

/// A register of floats, with the rest of their arithmetic.
///
/// # Safety of the methods
///
/// As those of [`Vector`].
pub trait FloatVector: Vector<Scalar: Real> {
    unsafe fn mul(self, b: Self) -> Self;
    unsafe fn div(self, b: Self) -> Self;
    /// Every lane with the other sign.
    unsafe fn neg(self) -> Self;
    /// √x of every lane, rounded once.
    unsafe fn sqrt(self) -> Self;
    /// eˣ of every lane, the vectors' steps interleaved; None if some lane is rare or there is no such way.
    #[inline(always)]
    unsafe fn exp<const R: usize>(_: [Self; R]) -> Option<[Self; R]> {
        None
    }
    /// tanh x of every lane, as [`exp`](FloatVector::exp).
    #[inline(always)]
    unsafe fn tanh<const R: usize>(_: [Self; R]) -> Option<[Self; R]> {
        None
    }
    /// Stores past the caches, where there is a way to; `p` is aligned as the vector is.
    unsafe fn stream(self, p: *mut Self::Scalar);
}

/// A function of one value.
pub trait Function<T> {
    /// What it gives.
    type Out;
    /// The result, without branches, wherever `is_rare` is false.
    fn at(x: T) -> Self::Out;
    /// True for operands that `at` does not cover.
    #[inline(always)]
    fn is_rare(_: T) -> bool {
        false
    }
    /// The result for those, at any cost.
    #[inline(always)]
    fn rare(x: T) -> Self::Out {
        Self::at(x)
    }
}

/// Returns the elements of vectors, in order.
#[inline(always)]
pub fn lanes<V: FloatVector, const R: usize>(v: &mut [V; R]) -> &mut [V::Scalar] {
    // SAFETY: a vector consists of its elements, in order (the contract of `Vector`), and the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(v.as_mut_ptr().cast(), R * V::LANES) }
}

/// Asks for the cache line at `p`; any address is allowed.
#[inline(always)]
pub fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing the program can see and never faults; SSE is baseline.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Asks for `len` numbers from `p` on, which are wanted in the second isa of the cache: the first has better things to keep until then.
#[inline(always)]
pub fn prefetch_run<T>(p: *const T, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (p.addr() & !63..p.wrapping_add(len).addr()).step_by(64) {
        // SAFETY: as above.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(p.with_addr(line).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (p, len);
}
