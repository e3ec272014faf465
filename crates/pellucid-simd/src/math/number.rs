//! [`Single`]: what the functions of `f32` that chains run in registers are written with.

use std::ops::{Add, Div, Mul, Sub};

/// One `f32`, or several in vectors side by side: the same operations, rounded alike.
///
/// A function written over this is the scalar one and, over several vectors, one whose steps are interleaved, so that
/// the processor need not look far ahead to keep busy.
pub trait Single: Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> {
    /// The number c everywhere.
    fn of(c: f32) -> Self;
    /// self · b + c, rounded once.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// |self|
    fn abs(self) -> Self;
    /// The lesser of `self` and c; NaN stays NaN.
    fn at_most(self, c: f32) -> Self;
    /// The magnitude of `self` with the sign of `s`.
    fn copysign(self, s: Self) -> Self;
    /// The lowest bits as an exponent: the bits shifted left by 23.
    fn low_bits_as_exponent(self) -> Self;
    /// The sum of the bits, as integers.
    fn add_bits(self, b: Self) -> Self;
}

impl Single for f32 {
    #[inline(always)]
    fn of(c: f32) -> f32 {
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
    fn at_most(self, c: f32) -> f32 {
        if self > c { c } else { self }
    }

    #[inline(always)]
    fn copysign(self, s: f32) -> f32 {
        f32::copysign(self, s)
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
