//! Pairs of `bf16`: the elements of matrix products in half precision.

use crate::math::half::BF16;

/// A 32-bit element of a matrix product with `bf16` factors: two factors with consecutive k indices, or an `f32` sum.
///
/// [`mul_add`](super::Element::mul_add) multiplies two pairs and adds both products to a sum, by two fused
/// multiply-adds of `f32`. The product with the smaller k index is added first. [`add`](super::Element::add) and
/// [`sub`](super::Element::sub) operate on sums. The first factor is in the upper half, because the instruction of
/// AVX512-BF16 adds that product first.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(transparent)]
pub struct BF16Pair(pub(super) u32);

impl BF16Pair {
    /// Returns the bit pattern of the smallest nonzero magnitude of the two factors, minus 1.
    ///
    /// If both factors are zero, the result is `u32::MAX`.
    #[inline(always)]
    pub fn least_magnitude(self) -> u32 {
        ((self.0 >> 16) & 0x7fff).wrapping_sub(1).min((self.0 & 0x7fff).wrapping_sub(1))
    }

    /// Returns the pair of two factors. The k index of `first` is smaller.
    #[inline(always)]
    pub fn new(first: BF16, second: BF16) -> BF16Pair {
        BF16Pair((first.0 as u32) << 16 | second.0 as u32)
    }

    /// Returns the pair of two factors that are neighbours in little-endian memory.
    #[inline(always)]
    pub fn from_neighbours(bits: u32) -> BF16Pair {
        BF16Pair(bits.rotate_left(16))
    }

    /// Returns the two factors as `f32`.
    #[inline(always)]
    pub(super) fn factors(self) -> [f32; 2] {
        [f32::from_bits(self.0 & 0xffff_0000), f32::from_bits(self.0 << 16)]
    }

    /// Returns the element that stores a sum.
    #[inline(always)]
    pub(super) fn from_sum(sum: f32) -> BF16Pair {
        BF16Pair(sum.to_bits())
    }

    /// Returns the sum that this element stores.
    #[inline(always)]
    pub(super) fn sum(self) -> f32 {
        f32::from_bits(self.0)
    }
}
