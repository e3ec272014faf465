//! The numbers a product can be made of.

use super::level::{Kernels, Level, Portable};
use crate::vector::Lanes;

mod sealed {
    pub trait Sealed {}
}

/// A number that [`gemm`](super::gemm) multiplies: `f32`, `f64`, and wrapping `i32`, `i64`.
///
/// Half types are no elements: a product of halves is a product of their `f32` values, rounded
/// once at the end, and the caller (or a [`Source`](super::Source)) converts.
pub trait Element: Copy + PartialEq + Send + Sync + std::fmt::Debug + sealed::Sealed + 'static {
    /// The empty sum.
    const ZERO: Self;

    /// The number that adds nothing to any other, zeros of both signs included.
    const NEGATIVE_ZERO: Self;

    /// One half, if there is one.
    const HALF: Option<Self>;

    /// `self · b + c`, rounded once (wrapping for integers).
    fn mul_add(self, b: Self, c: Self) -> Self;

    /// `self + b` (wrapping for integers).
    fn add(self, b: Self) -> Self;

    /// `self − b` (wrapping for integers).
    fn sub(self, b: Self) -> Self;

    /// The kernels of one instruction set, or those nearest to it that exist for this type.
    #[doc(hidden)]
    #[allow(private_interfaces)]
    fn kernels(level: Level) -> &'static Kernels<Self>;
}

macro_rules! float {
    ($t:ty, $wide:ident, $half:ident) => {
        impl sealed::Sealed for $t {}
        impl Element for $t {
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

            #[allow(private_interfaces)]
            fn kernels(level: Level) -> &'static Kernels<Self> {
                #[cfg(target_arch = "x86_64")]
                {
                    use super::level::{Avx2, Avx512};
                    use crate::vector::{$half, $wide};
                    match level {
                        Level::Avx512 => &const { Avx512::<$wide>::KERNELS },
                        Level::Avx2 => &const { Avx2::<$half>::KERNELS },
                        Level::Portable => &const { Portable::<Lanes<$t>>::KERNELS },
                    }
                }
                #[cfg(not(target_arch = "x86_64"))]
                {
                    let _ = level;
                    &const { Portable::<Lanes<$t>>::KERNELS }
                }
            }
        }
    };
}

macro_rules! integer {
    ($t:ty) => {
        impl sealed::Sealed for $t {}
        impl Element for $t {
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

            #[allow(private_interfaces)]
            fn kernels(level: Level) -> &'static Kernels<Self> {
                match level {
                    // The plain loops, compiled with wider registers.
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 | Level::Avx2 => &const { super::level::Avx2::<Lanes<$t>>::KERNELS },
                    _ => &const { Portable::<Lanes<$t>>::KERNELS },
                }
            }
        }
    };
}

float!(f32, F32x16, F32x8);
float!(f64, F64x8, F64x4);
integer!(i32);
integer!(i64);
