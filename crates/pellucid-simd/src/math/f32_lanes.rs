//! [`F32Lanes`]: the operations of functions that compute one `f32` or several vector registers of `f32`.

use std::ops::{Add, Div, Mul, Sub};

/// One `f32`, or several vectors of `f32`, with the same operations and the same rounding.
///
/// A function that is generic over this trait is the scalar function for `f32`. Called with several vectors, it
/// interleaves their operations, so that a processor with a short reorder window finds independent instructions.
pub trait F32Lanes: Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> {
    /// Returns the constant c, broadcast to all lanes.
    fn splat(c: f32) -> Self;
    /// Returns self · b + c, rounded once.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// Returns |self|.
    fn abs(self) -> Self;
    /// Returns the lesser of `self` and c; NaN stays NaN.
    fn min_const(self, c: f32) -> Self;
    /// Returns the magnitude of `self` with the sign of `s`.
    fn copysign(self, s: Self) -> Self;
    /// Returns `a` where `self` < 0, otherwise `b`.
    fn if_negative(self, a: Self, b: Self) -> Self;
    /// Returns the bits shifted left by 23, which moves the lowest bits into the exponent field.
    fn low_bits_as_exponent(self) -> Self;
    /// Returns the value whose bits are the integer sum of the bits of `self` and `b`.
    fn add_bits(self, b: Self) -> Self;
}

impl F32Lanes for f32 {
    #[inline(always)]
    fn splat(c: f32) -> f32 {
        c
    }

    #[inline(always)]
    fn mul_add(self, b: f32, c: f32) -> f32 {
        f32::mul_add(self, b, c)
    }

    #[inline(always)]
    fn abs(self) -> f32 {
        f32::abs(self)
    }

    #[inline(always)]
    fn min_const(self, c: f32) -> f32 {
        if self > c { c } else { self }
    }

    #[inline(always)]
    fn copysign(self, s: f32) -> f32 {
        f32::copysign(self, s)
    }

    #[inline(always)]
    fn if_negative(self, a: f32, b: f32) -> f32 {
        if self < 0.0 { a } else { b }
    }

    #[inline(always)]
    fn low_bits_as_exponent(self) -> f32 {
        f32::from_bits(self.to_bits() << 23)
    }

    #[inline(always)]
    fn add_bits(self, b: f32) -> f32 {
        f32::from_bits(self.to_bits().wrapping_add(b.to_bits()))
    }
}
