//! Element types and their compute types, for the kernel families that do not run programs.

use pellucid_simd::Isa;
use pellucid_simd::math::half::{BF16, F16};

/// A type of elements in memory.
pub(crate) trait StorageElement: Copy + PartialEq + Send + Sync + 'static {
    /// The type that arithmetic on these elements uses.
    type Compute: ComputeScalar;
    /// The widest instruction set for which kernels on these elements are compiled. A kernel may override it.
    const WIDEST_ISA: Isa;
    /// Converts to the compute type, exactly.
    fn widen(self) -> Self::Compute;
    /// Converts from the compute type. Floats are rounded; integers wrap.
    fn narrow(wide: Self::Compute) -> Self;
}

/// A compute type. Integer arithmetic wraps.
pub(crate) trait ComputeScalar: Copy + PartialOrd + Send + Sync + 'static {
    /// The additive identity z: z + x is bit-identical to x. It is −0 for floats.
    const ADDITIVE_IDENTITY: Self;
    /// The multiplicative identity 1.
    const ONE: Self;
    /// Returns self + b.
    fn plus(self, b: Self) -> Self;
    /// Returns self · b.
    fn times(self, b: Self) -> Self;

    /// Returns true for NaN.
    #[inline(always)]
    #[allow(clippy::eq_op, reason = "only NaN is unequal to itself")]
    fn is_nan(self) -> bool {
        self != self
    }

    /// Returns the larger value, or NaN if either value is NaN.
    #[inline(always)]
    fn maximum(self, b: Self) -> Self {
        if b > self || b.is_nan() { b } else { self }
    }

    /// Returns the smaller value, or NaN if either value is NaN.
    #[inline(always)]
    fn minimum(self, b: Self) -> Self {
        if b < self || b.is_nan() { b } else { self }
    }
}

macro_rules! cast_elements {
    ($($t:ty: $wide:ty, $isa:ident;)*) => {$(
        impl StorageElement for $t {
            type Compute = $wide;
            const WIDEST_ISA: Isa = Isa::$isa;
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
// Kernels on integers run rarely, so they are not compiled for wider instruction sets.
cast_elements! {
    u8: i32, Avx2;
    i8: i32, Avx2;
    i16: i32, Avx2;
    i32: i32, Avx2;
    i64: i64, Avx2;
    f32: f32, Avx512;
    f64: f64, Avx512;
}

macro_rules! half_precision_elements {
    ($($t:ty),*) => {$(
        impl StorageElement for $t {
            type Compute = f32;
            const WIDEST_ISA: Isa = Isa::Avx512;
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
half_precision_elements!(F16, BF16);

macro_rules! compute_scalars {
    ($($t:ty: $zero:expr, $one:expr, |$a:ident, $b:ident| $plus:expr, $times:expr;)*) => {$(
        impl ComputeScalar for $t {
            const ADDITIVE_IDENTITY: $t = $zero;
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
compute_scalars! {
    i32: 0, 1, |a, b| a.wrapping_add(b), a.wrapping_mul(b);
    i64: 0, 1, |a, b| a.wrapping_add(b), a.wrapping_mul(b);
    f32: -0.0, 1.0, |a, b| a + b, a * b;
    f64: -0.0, 1.0, |a, b| a + b, a * b;
}

/// Matches a value against patterns, each with a type, and evaluates `body` with `T` bound to the type of the matching
/// pattern.
macro_rules! with_type {
    ($value:expr, $T:ident => $body:expr; $($pattern:pat => $type:ty;)*) => {
        match $value {
            $($pattern => {
                type $T = $type;
                $body
            })*
        }
    };
}

/// Evaluates `body` with `T` bound to the [`StorageElement`] of a dtype. Booleans are `u8`.
macro_rules! with_storage_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        with_type! { $dtype, $T => $body;
            pellucid_ir::DType::Bool | pellucid_ir::DType::U8 => u8;
            pellucid_ir::DType::I8 => i8;
            pellucid_ir::DType::I16 => i16;
            pellucid_ir::DType::I32 => i32;
            pellucid_ir::DType::I64 => i64;
            pellucid_ir::DType::F16 => pellucid_simd::math::half::F16;
            pellucid_ir::DType::BF16 => pellucid_simd::math::half::BF16;
            pellucid_ir::DType::F32 => f32;
            pellucid_ir::DType::F64 => f64;
        }
    };
}

/// Evaluates `body` with `T` bound to the unsigned integer type of the given size in bytes, for copies without
/// arithmetic.
macro_rules! with_width {
    ($bytes:expr, $T:ident => $body:expr) => {
        with_type! { $bytes, $T => $body;
            1 => u8;
            2 => u16;
            4 => u32;
            _ => u64;
        }
    };
}
