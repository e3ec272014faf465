//! [`Pack`]: vectors of `f32` side by side, each step of a function done to all of them before the next.

use super::FloatVector;
use crate::math::Single;
use crate::math::single::{self, EXP_LIMIT};
use std::ops::{Add, Div, Mul, Sub};

/// A vector of `f32`, with operations on its bits.
///
/// # Safety of the methods
///
/// As those of [`Vector`](super::Vector).
pub(super) trait SingleVector: FloatVector<Scalar = f32> {
    /// |self|
    unsafe fn abs(self) -> Self;
    /// The lesser of `self` and `c`; NaN in `self` stays.
    unsafe fn at_most(self, c: Self) -> Self;
    /// The magnitudes of `self` with the signs of `s`.
    unsafe fn copysign(self, s: Self) -> Self;
    /// The bits shifted left by 23.
    unsafe fn low_bits_as_exponent(self) -> Self;
    /// The sum of the bits, as integers.
    unsafe fn add_bits(self, b: Self) -> Self;
    /// True if the magnitude of some lane is not at most that of `limit`.
    unsafe fn any_beyond(self, limit: Self) -> bool;
}

/// K vectors.
#[derive(Clone, Copy)]
struct Pack<V, const K: usize>([V; K]);

impl<V: SingleVector, const K: usize> Pack<V, K> {
    /// # Safety
    /// As the methods of [`SingleVector`], of this and of every operation on packs.
    #[inline(always)]
    unsafe fn new(vectors: &[V; K]) -> Self {
        Pack(*vectors)
    }
}

/// `Pack([f(k), ..])` for an expression of k; not a closure, which might not be inlined.
macro_rules! each {
    (|$k:ident| $e:expr) => {{
        // SAFETY: as promised when the pack was made; a pointer to a number is valid for it.
        let mut vectors = [unsafe { V::zero() }; K];
        for $k in 0..K {
            // SAFETY: as above.
            vectors[$k] = unsafe { $e };
        }
        Pack(vectors)
    }};
}

/// The operators, each the vectors' method of the same name.
macro_rules! operators {
    ($($Trait:ident $name:ident)*) => {$(
        impl<V: SingleVector, const K: usize> $Trait for Pack<V, K> {
            type Output = Self;
            #[inline(always)]
            fn $name(self, b: Self) -> Self {
                each!(|k| self.0[k].$name(b.0[k]))
            }
        }
    )*};
}
operators! { Add add  Sub sub  Mul mul  Div div }

impl<V: SingleVector, const K: usize> Single for Pack<V, K> {
    #[inline(always)]
    fn of(c: f32) -> Self {
        each!(|_k| V::splat(&c))
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        each!(|k| self.0[k].mul_add(b.0[k], c.0[k]))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        each!(|k| self.0[k].abs())
    }

    #[inline(always)]
    fn at_most(self, c: f32) -> Self {
        each!(|k| self.0[k].at_most(V::splat(&c)))
    }

    #[inline(always)]
    fn copysign(self, s: Self) -> Self {
        each!(|k| self.0[k].copysign(s.0[k]))
    }

    #[inline(always)]
    fn low_bits_as_exponent(self) -> Self {
        each!(|k| self.0[k].low_bits_as_exponent())
    }

    #[inline(always)]
    fn add_bits(self, b: Self) -> Self {
        each!(|k| self.0[k].add_bits(b.0[k]))
    }
}

/// A function of R vectors, four at once.
macro_rules! by_fours {
    ($f:path, $v:ident) => {{
        let (mut fours, rest) = ($v, R / 4 * 4);
        for four in fours.as_chunks_mut::<4>().0 {
            // SAFETY: the caller's promise.
            *four = $f(unsafe { Pack::new(four) }).0;
        }
        for one in fours[rest..].as_chunks_mut::<1>().0 {
            // SAFETY: the caller's promise.
            *one = $f(unsafe { Pack::new(one) }).0;
        }
        fours
    }};
}

/// eˣ of every lane; None if some lane is beyond [`EXP_LIMIT`].
///
/// # Safety
/// As the methods of [`SingleVector`].
#[inline(always)]
pub(super) unsafe fn exp<V: SingleVector, const R: usize>(v: [V; R]) -> Option<[V; R]> {
    let mut beyond = false;
    for x in v {
        // SAFETY: the caller's promise; a pointer to one number.
        beyond |= unsafe { x.any_beyond(V::splat(&EXP_LIMIT)) };
    }
    if beyond { None } else { Some(by_fours!(single::exp_fast, v)) }
}

/// tanh x of every lane.
///
/// # Safety
/// As the methods of [`SingleVector`].
#[inline(always)]
pub(super) unsafe fn tanh<V: SingleVector, const R: usize>(v: [V; R]) -> [V; R] {
    by_fours!(single::tanh, v)
}
