//! Conversions between dtypes (what memory holds) and compute types (what formulas use).

use super::element::{LoopElement, Mask};
use super::unary::{UnaryLoop, map};
use pellucid_ir::{Compute, DType};
use pellucid_simd::Isa;
use pellucid_simd::math::half::{BF16, F16, int_round_to_odd, round_to_odd};
use pellucid_simd::vector::Function;
use std::marker::PhantomData;

/// One value of a type as the nearest of another: floats round once, to nearest even; integers wrap;
/// floats become integers by truncation, saturating, NaN to 0; anything but 0 is true (NaN too).
trait Cast<To> {
    fn cast(self) -> To;
}

macro_rules! numbers {
    ($($from:ident)* => $to:tt) => {$( numbers!(@from $from $to); )*};
    (@from $from:ident [$($to:ident)*]) => {
        $(
            impl Cast<$to> for $from {
                #[inline(always)]
                fn cast(self) -> $to {
                    self as $to
                }
            }
        )*
        impl Cast<Mask> for $from {
            #[inline(always)]
            fn cast(self) -> Mask {
                (self != 0 as $from).into()
            }
        }
        impl Cast<$from> for Mask {
            #[inline(always)]
            fn cast(self) -> $from {
                self.0 as $from
            }
        }
    };
}
numbers!(u8 i8 i16 i32 i64 => [u8 i8 i16 i32 i64 f32 f64]);
numbers!(f32 f64 => [f32 f64]);

/// What `as` does, in a form that vectorises: the float clamped, then converted without a check.
macro_rules! saturate {
    ($($float:ident to $($int:ident through $wide:ident up to $highest:expr),*;)*) => {$($(
        impl Cast<$int> for $float {
            #[inline(always)]
            fn cast(self) -> $int {
                const LOWEST: $float = $int::MIN as $float;
                // The largest float that is not above the integers.
                const HIGHEST: $float = $highest;
                let x = if self < LOWEST { LOWEST } else { self };
                let x = if x > HIGHEST { HIGHEST } else { x };
                let x = if x.is_nan() { 0.0 } else { x };
                // SAFETY: a number within the integer type's range.
                let y: $wide = unsafe { x.to_int_unchecked() };
                if self > HIGHEST { $int::MAX } else { y as $int }
            }
        }
    )*)*};
}
saturate! {
    f32 to u8 through i32 up to 255.0, i8 through i32 up to 127.0, i16 through i32 up to 32_767.0,
        i32 through i32 up to 2_147_483_520.0, i64 through i64 up to 9_223_371_487_098_961_920.0;
    f64 to u8 through i32 up to 255.0, i8 through i32 up to 127.0, i16 through i32 up to 32_767.0,
        i32 through i32 up to 2_147_483_647.0, i64 through i64 up to 9_223_372_036_854_774_784.0;
}

impl Cast<Mask> for Mask {
    #[inline(always)]
    fn cast(self) -> Mask {
        self
    }
}

/// The half types go through `f32`, which holds them exactly.
macro_rules! halves {
    ($($half:ident)*) => {$(
        halves!(@to $half: i32 i64 f32 f64 Mask);
        // What is wider than `f32` is rounded to odd first, so that the second rounding is the only one.
        halves!(@from $half: f32 |x| x, f64 |x| round_to_odd(x), i32 |x| round_to_odd(x as f64),
            i64 |x| round_to_odd(int_round_to_odd(x)), Mask |x| x.0 as f32);
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
halves!(F16 BF16);

struct To<T>(PhantomData<T>);
impl<S: LoopElement + Cast<T>, T: LoopElement> Function<S> for To<T> {
    type Out = T;
    #[inline(always)]
    fn at(x: S) -> T {
        x.cast()
    }
}

struct Through<S>(PhantomData<S>);
impl<S: LoopElement + Cast<T>, T: LoopElement + Cast<S>> Function<T> for Through<S> {
    type Out = T;
    #[inline(always)]
    fn at(x: T) -> T {
        let stored: S = x.cast();
        stored.cast()
    }
}

/// `$body` with `$T` the Rust type of a compute type.
macro_rules! with_compute {
    ($ty:expr, $T:ident => $body:expr) => {
        match $ty {
            Compute::Mask => {
                type $T = Mask;
                $body
            }
            Compute::I32 => {
                type $T = i32;
                $body
            }
            Compute::I64 => {
                type $T = i64;
                $body
            }
            Compute::F32 => {
                type $T = f32;
                $body
            }
            Compute::F64 => {
                type $T = f64;
                $body
            }
        }
    };
}

/// `$body` with `$S` the Rust type of a dtype.
macro_rules! with_dtype {
    ($dtype:expr, $S:ident => $body:expr) => {
        match $dtype {
            DType::Bool => {
                type $S = Mask;
                $body
            }
            DType::U8 => {
                type $S = u8;
                $body
            }
            DType::I8 => {
                type $S = i8;
                $body
            }
            DType::I16 => {
                type $S = i16;
                $body
            }
            DType::I32 => {
                type $S = i32;
                $body
            }
            DType::I64 => {
                type $S = i64;
                $body
            }
            DType::F16 => {
                type $S = F16;
                $body
            }
            DType::BF16 => {
                type $S = BF16;
                $body
            }
            DType::F32 => {
                type $S = f32;
                $body
            }
            DType::F64 => {
                type $S = f64;
                $body
            }
        }
    };
}

/// The loop that loads `from` values as `to`.
pub(crate) fn convert(from: DType, to: Compute, isa: Isa) -> UnaryLoop {
    with_dtype!(from, S => with_compute!(to, T => map::<S, To<T>>(isa)))
}

/// The loop that stores `from` values as `to`.
pub(crate) fn store(from: Compute, to: DType, isa: Isa) -> UnaryLoop {
    with_compute!(from, T => with_dtype!(to, S => map::<T, To<S>>(isa)))
}

/// The loop that rounds values of `ty` through `dtype` and back, as storing and loading them would; None
/// unless `dtype` computes in `ty`.
pub(crate) fn round(ty: Compute, dtype: DType, isa: Isa) -> Option<UnaryLoop> {
    if dtype.compute() != ty {
        return None;
    }
    Some(match dtype {
        DType::U8 => map::<i32, Through<u8>>(isa),
        DType::I8 => map::<i32, Through<i8>>(isa),
        DType::I16 => map::<i32, Through<i16>>(isa),
        DType::F16 => map::<f32, Through<F16>>(isa),
        DType::BF16 => map::<f32, Through<BF16>>(isa),
        DType::Bool | DType::I32 | DType::I64 | DType::F32 | DType::F64 => convert(dtype, ty, isa),
    })
}
