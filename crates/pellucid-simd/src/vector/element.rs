//! The element types of vectors.

use super::{FloatVector, Vector};
use crate::math::Real;

pub(super) mod sealed {
    /// Prevents implementations of [`Element`](super::Element) outside this crate.
    pub trait Sealed {}
}

/// An element type of vectors: `f32`, `f64`, `i32` and `i64` with wrapping arithmetic, and, in matrix products,
/// [`BF16Pair`](super::BF16Pair) and [`I8Quad`](super::I8Quad).
///
/// There are no vectors of single `f16` or `bf16` elements. Kernels convert these to `f32` and round the result once.
pub trait Element: Copy + PartialEq + Send + Sync + std::fmt::Debug + sealed::Sealed + 'static {
    /// The 256-bit vector type, or the portable [`Lanes`](super::Lanes) if [`HAS_VECTOR256`](Element::HAS_VECTOR256) is
    /// false.
    type Vector256: Vector<Scalar = Self>;

    /// The 512-bit vector type, or the 256-bit vector type if [`HAS_VECTOR512`](Element::HAS_VECTOR512) is false.
    type Vector512: Vector<Scalar = Self>;

    /// True if this element type has a vector type for AVX2. It is false for integers and for
    /// [`BF16Pair`](super::BF16Pair).
    const HAS_VECTOR256: bool = false;

    /// True if this element type has a 512-bit vector type.
    const HAS_VECTOR512: bool;

    /// The number of factors in an element, which is the number of products that [`mul_add`](Element::mul_add) adds.
    const FACTORS: usize = 1;

    /// Zero, the value of an empty sum.
    const ZERO: Self;

    /// The additive identity z, for which z + x is bit-identical to x for every x: −0 for floats and
    /// for [`BF16Pair`](super::BF16Pair), 0 for integers and for [`I8Quad`](super::I8Quad).
    const NEGATIVE_ZERO: Self;

    /// The value ½, or `None` for integers and for elements with several factors.
    const HALF: Option<Self>;

    /// Returns `self · b + c`, rounded once (wrapping for integers). For [`BF16Pair`](super::BF16Pair), the two
    /// products are added to the sum `c` one after the other, with one rounding each. For [`I8Quad`](super::I8Quad),
    /// the four products are added to the sum `c`, which wraps.
    fn mul_add(self, b: Self, c: Self) -> Self;

    /// Returns `self + b` (wrapping for integers).
    fn add(self, b: Self) -> Self;

    /// Returns `self − b` (wrapping for integers).
    fn sub(self, b: Self) -> Self;
}

/// A float element: `f32` or `f64`.
pub trait Float: Real + Element<Vector256: FloatVector, Vector512: FloatVector> {
    /// Returns `x` rounded to the nearest value of this type.
    fn from_f64(x: f64) -> Self;
}
