//! Elements of memory and the types they are computed in, for loops that no program drives.

use pellucid_simd::math::half::{BF16, F16};

/// An element in memory.
pub(crate) trait Number: Copy + PartialEq + Send + Sync + 'static {
    /// Its compute type.
    type Wide: Wide;
    /// The value in the compute type.
    fn widen(self) -> Self::Wide;
    /// The value rounded to the element, or wrapped.
    fn narrow(wide: Self::Wide) -> Self;
}

/// A compute type: floats, and integers that wrap.
pub(crate) trait Wide: Copy + PartialOrd + Send + Sync + 'static {
    /// The value z with z + x = x in every bit: −0 for floats.
    const NOTHING: Self;
    /// 1
    const ONE: Self;
    /// a + b
    fn plus(self, b: Self) -> Self;
    /// a · b
    fn times(self, b: Self) -> Self;

    /// True for NaN.
    #[inline(always)]
    #[allow(clippy::eq_op, reason = "NaN is what does not equal itself")]
    fn is_nan(self) -> bool {
        self != self
    }

    /// The larger, NaN if either is.
    #[inline(always)]
    fn larger(self, b: Self) -> Self {
        if b > self || b.is_nan() { b } else { self }
    }

    /// The smaller, NaN if either is.
    #[inline(always)]
    fn smaller(self, b: Self) -> Self {
        if b < self || b.is_nan() { b } else { self }
    }
}

macro_rules! integers {
    ($($t:ty: $wide:ty),*) => {$(
        impl Number for $t {
            type Wide = $wide;
            #[inline(always)]
            fn widen(self) -> $wide {
                self as $wide
            }
            #[inline(always)]
            fn narrow(wide: $wide) -> $t {
                wide as $t
            }
        }
    )*};
}
integers!(u8: i32, i8: i32, i16: i32, i32: i32, i64: i64, f32: f32, f64: f64);

macro_rules! halves {
    ($($t:ty),*) => {$(
        impl Number for $t {
            type Wide = f32;
            #[inline(always)]
            fn widen(self) -> f32 {
                self.to_f32()
            }
            #[inline(always)]
            fn narrow(wide: f32) -> $t {
                <$t>::from_f32(wide)
            }
        }
    )*};
}
halves!(F16, BF16);

macro_rules! wide {
    ($($t:ty: $nothing:expr, $one:expr, |$a:ident, $b:ident| $plus:expr, $times:expr;)*) => {$(
        impl Wide for $t {
            const NOTHING: $t = $nothing;
            const ONE: $t = $one;
            #[inline(always)]
            fn plus(self, $b: $t) -> $t {
                let $a = self;
                $plus
            }
            #[inline(always)]
            fn times(self, $b: $t) -> $t {
                let $a = self;
                $times
            }
        }
    )*};
}
wide! {
    i32: 0, 1, |a, b| a.wrapping_add(b), a.wrapping_mul(b);
    i64: 0, 1, |a, b| a.wrapping_add(b), a.wrapping_mul(b);
    f32: -0.0, 1.0, |a, b| a + b, a * b;
    f64: -0.0, 1.0, |a, b| a + b, a * b;
}

/// `body` with `T` the [`Number`] of a dtype; masks are the bytes that they are.
macro_rules! with_number {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            pellucid_ir::DType::Bool | pellucid_ir::DType::U8 => {
                type $T = u8;
                $body
            }
            pellucid_ir::DType::I8 => {
                type $T = i8;
                $body
            }
            pellucid_ir::DType::I16 => {
                type $T = i16;
                $body
            }
            pellucid_ir::DType::I32 => {
                type $T = i32;
                $body
            }
            pellucid_ir::DType::I64 => {
                type $T = i64;
                $body
            }
            pellucid_ir::DType::F16 => {
                type $T = pellucid_simd::math::half::F16;
                $body
            }
            pellucid_ir::DType::BF16 => {
                type $T = pellucid_simd::math::half::BF16;
                $body
            }
            pellucid_ir::DType::F32 => {
                type $T = f32;
                $body
            }
            pellucid_ir::DType::F64 => {
                type $T = f64;
                $body
            }
        }
    };
}

/// `body` with `T` the unsigned integer of a width in bytes: for moves, which need no arithmetic.
macro_rules! with_width {
    ($bytes:expr, $T:ident => $body:expr) => {
        match $bytes {
            1 => {
                type $T = u8;
                $body
            }
            2 => {
                type $T = u16;
                $body
            }
            4 => {
                type $T = u32;
                $body
            }
            _ => {
                type $T = u64;
                $body
            }
        }
    };
}
