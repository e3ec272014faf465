//! `f32`, `f64`, `i32`, `i64`, [`BF16Pair`] and [`I8Quad`] as elements, with their vector types.

use super::element::{Element, Float, sealed};
use super::{BF16Pair, I8Quad, Lanes};
#[cfg(target_arch = "x86_64")]
use super::{BF16PairX16, F32x8, F32x16, F64x4, F64x8, I8QuadX8, I8QuadX16};

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
            type Vector256 = Lanes<$t, 8>;
            #[cfg(not(target_arch = "x86_64"))]
            type Vector512 = Lanes<$t, 8>;

            const HAS_VECTOR256: bool = cfg!(target_arch = "x86_64");
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
            type Vector256 = Lanes<$t, 8>;
            type Vector512 = Lanes<$t, 8>;

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

impl sealed::Sealed for BF16Pair {}

impl Element for BF16Pair {
    type Vector256 = Lanes<BF16Pair, 8>;
    #[cfg(target_arch = "x86_64")]
    type Vector512 = BF16PairX16;
    #[cfg(not(target_arch = "x86_64"))]
    type Vector512 = Lanes<BF16Pair, 8>;

    const HAS_VECTOR512: bool = cfg!(target_arch = "x86_64");
    const FACTORS: usize = 2;
    const ZERO: Self = BF16Pair(0);
    const NEGATIVE_ZERO: Self = BF16Pair(0x8000_0000);
    const HALF: Option<Self> = None;

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        let ([a0, a1], [b0, b1]) = (self.factors(), b.factors());
        BF16Pair::from_sum(a1.mul_add(b1, a0.mul_add(b0, c.sum())))
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        BF16Pair::from_sum(self.sum() + b.sum())
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        BF16Pair::from_sum(self.sum() - b.sum())
    }
}

impl sealed::Sealed for I8Quad {}

impl Element for I8Quad {
    #[cfg(target_arch = "x86_64")]
    type Vector256 = I8QuadX8;
    #[cfg(target_arch = "x86_64")]
    type Vector512 = I8QuadX16;
    #[cfg(not(target_arch = "x86_64"))]
    type Vector256 = Lanes<I8Quad, 8>;
    #[cfg(not(target_arch = "x86_64"))]
    type Vector512 = Lanes<I8Quad, 8>;

    const HAS_VECTOR256: bool = cfg!(target_arch = "x86_64");
    const HAS_VECTOR512: bool = cfg!(target_arch = "x86_64");
    const FACTORS: usize = 4;
    const ZERO: Self = I8Quad(0);
    const NEGATIVE_ZERO: Self = I8Quad(0);
    const HALF: Option<Self> = None;

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        let products = self.factors().into_iter().zip(b.factors()).map(|(a, b)| i32::from(a) * i32::from(b));
        I8Quad::from_sum(c.sum().wrapping_add(products.sum()))
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        I8Quad::from_sum(self.sum().wrapping_add(b.sum()))
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        I8Quad::from_sum(self.sum().wrapping_sub(b.sum()))
    }
}
