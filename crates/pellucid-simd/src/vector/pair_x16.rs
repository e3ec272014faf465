//! Vectors of [`BF16Pair`] for AVX512-BF16.

use super::{BF16Pair, F32x16, Vector};
use std::arch::x86_64::{__m512, __m512bh, _mm512_dpbf16_ps};
use std::mem::transmute;

/// A vector of sixteen [`BF16Pair`] in a 512-bit register.
///
/// - The clause *instruction set* of [`Vector`] also requires AVX512-BF16.
/// - [`mul_add`](Vector::mul_add) is bit-identical to [`Element::mul_add`](super::Element::mul_add) if no factor and no
///   sum is subnormal. The instruction flushes subnormal numbers to zero.
///
/// The other methods call the methods of [`F32x16`]: they move 32-bit lanes, or operate on sums.
#[derive(Clone, Copy)]
pub struct BF16PairX16(F32x16);

// SAFETY: a pair has the size and alignment of an `f32`, and the register has the layout of an array of its lanes.
unsafe impl Vector for BF16PairX16 {
    type Scalar = BF16Pair;
    type Mask = <F32x16 as Vector>::Mask;
    const LANES: usize = F32x16::LANES;
    const SIDE: usize = F32x16::SIDE;

    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: *instruction set* covers the intrinsic. The register types have the same size, and every bit pattern
        // is valid.
        unsafe {
            let [a, b] = [self, b].map(|v| transmute::<__m512, __m512bh>(v.0.0));
            Self(F32x16(_mm512_dpbf16_ps(c.0.0, a, b)))
        }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: both methods have the same contract, because the two scalars have the same size and alignment.
        Self(unsafe { F32x16::zero() })
    }

    #[inline(always)]
    unsafe fn splat(p: *const BF16Pair) -> Self {
        // SAFETY: both methods have the same contract, because the two scalars have the same size and alignment.
        Self(unsafe { F32x16::splat(p.cast()) })
    }

    #[inline(always)]
    unsafe fn mask(n: usize) -> Self::Mask {
        // SAFETY: both methods have the same contract, because the two scalars have the same size and alignment.
        unsafe { F32x16::mask(n) }
    }

    #[inline(always)]
    unsafe fn mask_from(first: usize, n: usize) -> Self::Mask {
        // SAFETY: both methods have the same contract, because the two scalars have the same size and alignment.
        unsafe { F32x16::mask_from(first, n) }
    }

    #[inline(always)]
    unsafe fn load(p: *const BF16Pair) -> Self {
        // SAFETY: both methods have the same contract, because the two scalars have the same size and alignment.
        Self(unsafe { F32x16::load(p.cast()) })
    }

    #[inline(always)]
    unsafe fn load_part(p: *const BF16Pair, mask: Self::Mask) -> Self {
        // SAFETY: both methods have the same contract, because the two scalars have the same size and alignment.
        Self(unsafe { F32x16::load_part(p.cast(), mask) })
    }

    #[inline(always)]
    unsafe fn load_over(self, p: *const BF16Pair, mask: Self::Mask) -> Self {
        // SAFETY: both methods have the same contract, because the two scalars have the same size and alignment.
        Self(unsafe { self.0.load_over(p.cast(), mask) })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut BF16Pair) {
        // SAFETY: both methods have the same contract, because the two scalars have the same size and alignment.
        unsafe { self.0.store(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store_part(self, p: *mut BF16Pair, mask: Self::Mask) {
        // SAFETY: both methods have the same contract, because the two scalars have the same size and alignment.
        unsafe { self.0.store_part(p.cast(), mask) }
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: both methods have the same contract, because the two scalars have the same size and alignment.
        Self(unsafe { self.0.add(b.0) })
    }

    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: both methods have the same contract, because the two scalars have the same size and alignment.
        Self(unsafe { self.0.sub(b.0) })
    }

    #[inline(always)]
    unsafe fn fold(self) -> BF16Pair {
        // SAFETY: both methods have the same contract, because the two scalars have the same size and alignment.
        BF16Pair::from_sum(unsafe { self.0.fold() })
    }

    #[inline(always)]
    unsafe fn transpose(from: *const BF16Pair, from_row: isize, to: *mut BF16Pair, to_row: isize) {
        // SAFETY: both methods have the same contract, because the two scalars have the same size and alignment.
        unsafe { F32x16::transpose(from.cast(), from_row, to.cast(), to_row) }
    }
}
