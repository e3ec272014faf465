//! The element types of vectors.

use crate::math::Real;
#[cfg(target_arch = "x86_64")]
use crate::vector::{F32x8, F32x16, F64x4, F64x8};
use crate::vector::{FloatVector, Lanes, Vector};

mod sealed {
    pub trait Sealed {}
}

/// An element of a vector: `f32`, `f64`, and wrapping `i32`, `i64`.
///
/// Half precision is not among them: kernels convert it to `f32`, and round once at the end.
pub trait Element: Copy + PartialEq + Send + Sync + std::fmt::Debug + sealed::Sealed + 'static {
    /// The 256-bit vector.
    type Vector256: Vector<Scalar = Self>;

    /// The 512-bit vector, or the 256-bit vector if [`HAS_VECTOR512`](Element::HAS_VECTOR512) is false.
    type Vector512: Vector<Scalar = Self>;

    /// True if there is a 512-bit vector.
    const HAS_VECTOR512: bool;

    /// Zero, the empty sum.
    const ZERO: Self;

    /// The number z with z + x = x in every bit: −0 for floats.
    const NEGATIVE_ZERO: Self;

    /// One half, or `None` for integers.
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
    /// Returns the nearest number to `x`.
    fn from_f64(x: f64) -> Self;
}

macro_rules! float {
    ($t:ty, $wide:ident, $half:ident) => {
        impl sealed::Sealed for $t {}

        impl Element for $t {
            #[cfg(target_arch = "x86_64")]
            type Vector256 = $half;
            #[cfg(target_arch = "x86_64")]
            type Vector512 = $wide;
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

macro_rules! integer {
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

float!(f32, F32x16, F32x8);
float!(f64, F64x8, F64x4);
integer!(i32);
integer!(i64);
