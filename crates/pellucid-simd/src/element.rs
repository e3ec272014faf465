//! The element types of vectors.

use crate::math::Real;
#[cfg(target_arch = "x86_64")]
use crate::vector::{F32x8, F32x16, F64x4, F64x8};
use crate::vector::{FloatVector, Lanes, Vector};

mod sealed {
    /// Prevents implementations of [`Element`](super::Element) outside of this module.
    pub trait Sealed {}
}

/// An element type of vectors: `f32`, `f64`, and `i32`, `i64` with wrapping arithmetic.
///
/// Half precision has no vector type. Kernels convert `f16` and `bf16` to `f32` and round the result once.
pub trait Element: Copy + PartialEq + Send + Sync + std::fmt::Debug + sealed::Sealed + 'static {
    /// The 256-bit vector type. It is the portable [`Lanes`] for integers, and for floats on other targets than x86-64.
    type Vector256: Vector<Scalar = Self>;

    /// The 512-bit vector type, or the 256-bit vector type if [`HAS_VECTOR512`](Element::HAS_VECTOR512) is false.
    type Vector512: Vector<Scalar = Self>;

    /// Whether a 512-bit vector type exists for this element type.
    const HAS_VECTOR512: bool;

    /// Zero, the value of an empty sum.
    const ZERO: Self;

    /// The additive identity z, for which z + x has the bits of x for every x: −0 for floats, 0 for integers.
    const NEGATIVE_ZERO: Self;

    /// The value ½, or `None` for integers.
    const HALF: Option<Self>;

    /// Returns `self · b + c`, rounded once (wrapping for integers).
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

/// Implements [`Element`] and [`Float`] for a float type with a 512-bit and a 256-bit vector type.
macro_rules! impl_float {
    ($t:ty, $vector512:ident, $vector256:ident) => {
        impl sealed::Sealed for $t {}

        impl Element for $t {
            #[cfg(target_arch = "x86_64")]
            type Vector256 = $vector256;
            #[cfg(target_arch = "x86_64")]
            type Vector512 = $vector512;
            #[cfg(not(target_arch = "x86_64"))]
            type Vector256 = Lanes<$t>;
            #[cfg(not(target_arch = "x86_64"))]
            type Vector512 = Lanes<$t>;

            const HAS_VECTOR512: bool = cfg!(target_arch = "x86_64");
            const ZERO: Self = 0.0;
            const NEGATIVE_ZERO: Self = -0.0;
            const HALF: Option<Self> = Some(0.5);

            #[inline(always)]
            fn mul_add(self, b: Self, c: Self) -> Self {
                <$t>::mul_add(self, b, c)
            }

            #[inline(always)]
            fn add(self, b: Self) -> Self {
                self + b
            }

            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                self - b
            }
        }

        impl Float for $t {
            #[inline(always)]
            fn from_f64(x: f64) -> $t {
                x as $t
            }
        }
    };
}

/// Implements [`Element`] for an integer type.
macro_rules! impl_integer {
    ($t:ty) => {
        impl sealed::Sealed for $t {}

        impl Element for $t {
            type Vector256 = Lanes<$t>;
            type Vector512 = Lanes<$t>;

            const HAS_VECTOR512: bool = false;
            const ZERO: Self = 0;
            const NEGATIVE_ZERO: Self = 0;
            const HALF: Option<Self> = None;

            #[inline(always)]
            fn mul_add(self, b: Self, c: Self) -> Self {
                self.wrapping_mul(b).wrapping_add(c)
            }

            #[inline(always)]
            fn add(self, b: Self) -> Self {
                self.wrapping_add(b)
            }

            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                self.wrapping_sub(b)
            }
        }
    };
}

impl_float!(f32, F32x16, F32x8);
impl_float!(f64, F64x8, F64x4);
impl_integer!(i32);
impl_integer!(i64);
