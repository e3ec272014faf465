//! Conversions between dtypes (the types in memory) and compute types (the types of arithmetic).

use super::loop_element::{LoopElement, MaskByte};
use super::unary::{UnaryLoop, narrow_loop, vector_loop};
use pellucid_ir::formula::Unary;
use pellucid_ir::{Compute, DType};
use pellucid_simd::Isa;
use pellucid_simd::math::half::{BF16, F16, int_round_to_odd, round_to_odd};
use pellucid_simd::vector::Function;
use std::marker::PhantomData;

/// Conversion of one value to another type.
///
/// Conversions to floats round once, to nearest even. Integers wrap. Floats convert to integers by truncation with
/// saturation, NaN to 0. Every nonzero value, NaN included, converts to true.
trait Cast<To> {
    /// Returns the converted value.
    fn cast(self) -> To;
}

/// Implements [`Cast`] between integers, floats and masks with `as`.
macro_rules! number_casts {
    ($($from:ident)* => $to:tt) => {$( number_casts!(@from $from $to); )*};
    (@from $from:ident [$($to:ident)*]) => {
        $(
            impl Cast<$to> for $from {
                #[inline(always)]
                fn cast(self) -> $to {
                    self as $to
                }
            }
        )*
        impl Cast<MaskByte> for $from {
            #[inline(always)]
            fn cast(self) -> MaskByte {
                (self != 0 as $from).into()
            }
        }
        impl Cast<$from> for MaskByte {
            #[inline(always)]
            fn cast(self) -> $from {
                self.0 as $from
            }
        }
    };
}
number_casts!(u8 i8 i16 i32 i64 => [u8 i8 i16 i32 i64 f32 f64]);
number_casts!(f32 f64 => [f32 f64]);

/// Implements [`Cast`] from floats to integers with the result of `as`, in a form that vectorizes: it clamps the float,
/// then converts it without a check.
macro_rules! saturating_casts {
    ($($float:ident to $($int:ident through $wide:ident up to $highest:expr),*;)*) => {$($(
        impl Cast<$int> for $float {
            #[inline(always)]
            fn cast(self) -> $int {
                const LOWEST: $float = $int::MIN as $float;
                // The largest float that is at most the largest integer.
                const HIGHEST: $float = $highest;
                let x = if self < LOWEST { LOWEST } else { self };
                let x = if x > HIGHEST { HIGHEST } else { x };
                let x = if x.is_nan() { 0.0 } else { x };
                // SAFETY: x is not NaN and is between LOWEST and HIGHEST, so it is within the range of `$wide`.
                let y: $wide = unsafe { x.to_int_unchecked() };
                if self > HIGHEST { $int::MAX } else { y as $int }
            }
        }
    )*)*};
}
saturating_casts! {
    f32 to u8 through i32 up to 255.0, i8 through i32 up to 127.0, i16 through i32 up to 32_767.0,
        i32 through i32 up to 2_147_483_520.0, i64 through i64 up to 9_223_371_487_098_961_920.0;
    f64 to u8 through i32 up to 255.0, i8 through i32 up to 127.0, i16 through i32 up to 32_767.0,
        i32 through i32 up to 2_147_483_647.0, i64 through i64 up to 9_223_372_036_854_774_784.0;
}

impl Cast<MaskByte> for MaskByte {
    #[inline(always)]
    fn cast(self) -> MaskByte {
        self
    }
}

/// Implements [`Cast`] for half precision by way of `f32`, which represents `f16` and `bf16` exactly.
macro_rules! half_precision_casts {
    ($($half:ident)*) => {$(
        half_precision_casts!(@to $half: i32 i64 f32 f64 MaskByte);
        // Types wider than `f32` are rounded to odd first, so the second rounding gives the same result as rounding
        // once.
        half_precision_casts!(@from $half: f32 |x| x, f64 |x| round_to_odd(x), i32 |x| round_to_odd(x as f64),
            i64 |x| round_to_odd(int_round_to_odd(x)), MaskByte |x| x.0 as f32);
    )*};
    (@to $half:ident: $($to:ident)*) => {$(
        impl Cast<$to> for $half {
            #[inline(always)]
            fn cast(self) -> $to {
                self.to_f32().cast()
            }
        }
    )*};
    (@from $half:ident: $($from:ident |$x:ident| $e:expr),*) => {$(
        impl Cast<$half> for $from {
            #[inline(always)]
            fn cast(self) -> $half {
                let $x = self;
                $half::from_f32($e)
            }
        }
    )*};
}
half_precision_casts!(F16 BF16);

/// The function that converts to T.
struct CastTo<T>(PhantomData<T>);
impl<S: LoopElement + Cast<T>, T: LoopElement> Function<S> for CastTo<T> {
    type Out = T;
    #[inline(always)]
    fn at(x: S) -> T {
        x.cast()
    }
}

/// The function that rounds through S: it converts to S and back.
struct RoundThrough<S>(PhantomData<S>);
impl<S: LoopElement + Cast<T>, T: LoopElement + Cast<S>> Function<T> for RoundThrough<S> {
    type Out = T;
    #[inline(always)]
    fn at(x: T) -> T {
        let stored: S = x.cast();
        stored.cast()
    }
}

/// Evaluates `$body` with `$T` bound to the Rust type of a compute type.
macro_rules! with_compute {
    ($ty:expr, $T:ident => $body:expr) => {
        with_type! { $ty, $T => $body;
            Compute::Mask => MaskByte;
            Compute::I32 => i32;
            Compute::I64 => i64;
            Compute::F32 => f32;
            Compute::F64 => f64;
        }
    };
}

/// Evaluates `$body` with `$S` bound to the Rust type of a dtype.
macro_rules! with_dtype {
    ($dtype:expr, $S:ident => $body:expr) => {
        with_type! { $dtype, $S => $body;
            DType::Bool => MaskByte;
            DType::U8 => u8;
            DType::I8 => i8;
            DType::I16 => i16;
            DType::I32 => i32;
            DType::I64 => i64;
            DType::F16 => F16;
            DType::BF16 => BF16;
            DType::F32 => f32;
            DType::F64 => f64;
        }
    };
}

/// Returns the loop that loads values of dtype `from` as compute type `to`.
pub(crate) fn convert(from: DType, to: Compute, isa: Isa) -> UnaryLoop {
    with_dtype!(from, S => with_compute!(to, T => cast_loop::<S, T>(isa)))
}

/// Returns the loop that stores values of compute type `from` as dtype `to`.
pub(crate) fn store(from: Compute, to: DType, isa: Isa) -> UnaryLoop {
    with_compute!(from, T => with_dtype!(to, S => cast_loop::<T, S>(isa)))
}

/// Returns the loop that converts from S to T.
fn cast_loop<S: LoopElement + Cast<T>, T: LoopElement>(isa: Isa) -> UnaryLoop {
    if const { matches!((S::WIDEST_ISA, T::WIDEST_ISA), (Isa::Avx512, Isa::Avx512)) } {
        vector_loop::<S, CastTo<T>>(isa)
    } else {
        narrow_loop::<S, CastTo<T>>(isa)
    }
}

/// The function that changes bit 15 of a half-precision number, its sign: inverts it if INVERT, otherwise clears it.
struct HalfPrecisionSign<const INVERT: bool>;
impl<const INVERT: bool> Function<BF16> for HalfPrecisionSign<INVERT> {
    type Out = BF16;
    #[inline(always)]
    fn at(x: BF16) -> BF16 {
        BF16(if INVERT { x.0 ^ 0x8000 } else { x.0 & 0x7fff })
    }
}

/// Returns the loop of −x or |x| on the bits of `f16` or `bf16`, or `None` for other operations.
pub(crate) fn half_precision_sign(op: Unary, isa: Isa) -> Option<UnaryLoop> {
    match op {
        Unary::Neg => Some(vector_loop::<BF16, HalfPrecisionSign<true>>(isa)),
        Unary::Abs => Some(vector_loop::<BF16, HalfPrecisionSign<false>>(isa)),
        _ => None,
    }
}

/// Returns the loop that rounds values of `ty` through `dtype` and back, with the same result as a store and a load.
/// Returns `None` unless the compute type of `dtype` is `ty`.
pub(crate) fn round(ty: Compute, dtype: DType, isa: Isa) -> Option<UnaryLoop> {
    if dtype.compute() != ty {
        return None;
    }
    Some(match dtype {
        DType::U8 => vector_loop::<i32, RoundThrough<u8>>(isa),
        DType::I8 => narrow_loop::<i32, RoundThrough<i8>>(isa),
        DType::I16 => narrow_loop::<i32, RoundThrough<i16>>(isa),
        DType::F16 => vector_loop::<f32, RoundThrough<F16>>(isa),
        DType::BF16 => vector_loop::<f32, RoundThrough<BF16>>(isa),
        DType::Bool | DType::I32 | DType::I64 | DType::F32 | DType::F64 => convert(dtype, ty, isa),
    })
}
