//! [`Pack`]: several vectors of `f32`. A function applies each of its operations to all vectors before the next
//! operation.
//!
//! Interleaving gives the processor independent instructions, so the latencies of dependent instructions overlap.

use super::FloatVector;
use crate::math::F32Lanes;
use crate::math::single::{self, EXP_LIMIT, NDTR_LIMIT};
use std::ops::{Add, Div, Mul, Sub};

/// A vector of `f32`, with operations on its bits.
///
/// # Safety of the methods
///
/// Every method requires the clause *instruction set* of [`Vector`](super::Vector).
pub(super) trait SingleVector: FloatVector<Scalar = f32> {
    /// Returns |x| of every lane.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`](super::Vector) holds.
    unsafe fn abs(self) -> Self;

    /// Returns the lesser of `self` and `c` in every lane; a NaN in `self` stays NaN.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`](super::Vector) holds.
    unsafe fn at_most(self, c: Self) -> Self;

    /// Returns the magnitudes of `self` with the signs of `s`.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`](super::Vector) holds.
    unsafe fn copysign(self, s: Self) -> Self;

    /// Returns the bits of every lane shifted left by 23, which moves the lowest bits into the exponent field.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`](super::Vector) holds.
    unsafe fn low_bits_as_exponent(self) -> Self;

    /// Returns the vector whose bits are, in every lane, the integer sum of the bits of `self` and `b`.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`](super::Vector) holds.
    unsafe fn add_bits(self, b: Self) -> Self;

    /// Returns true if the magnitude of a lane exceeds the corresponding lane of `limit` or is NaN.
    ///
    /// # Safety
    /// The clause *instruction set* of [`Vector`](super::Vector) holds.
    unsafe fn any_exceeds(self, limit: Self) -> bool;
}

/// K vectors with the arithmetic of [`F32Lanes`].
#[derive(Clone, Copy)]
struct Pack<V, const K: usize>([V; K]);

impl<V: SingleVector, const K: usize> Pack<V, K> {
    /// Creates a pack of vectors.
    ///
    /// # Safety
    /// *Instruction set*: the clause of this name of [`Vector`](super::Vector) holds for this call and for every
    /// operation on this pack and on packs computed from it.
    #[inline(always)]
    unsafe fn new(vectors: &[V; K]) -> Self {
        Pack(*vectors)
    }
}

/// Computes `Pack([e(0), e(1), ..])` for an expression e(k). This is a macro, because a closure might not be inlined.
macro_rules! pack_of {
    (|$k:ident| $e:expr) => {{
        // SAFETY: the caller of `Pack::new` guarantees its clause *instruction set* for every operation on the pack.
        let mut vectors = [unsafe { V::zero() }; K];
        for $k in 0..K {
            // SAFETY: the caller of `Pack::new` guarantees *instruction set* for every operation on the pack; *pointer
            // validity* of `splat` holds because its argument is a reference to a local `f32`.
            vectors[$k] = unsafe { $e };
        }
        Pack(vectors)
    }};
}

/// Implements the operators by the vector methods of the same names.
macro_rules! impl_operators {
    ($($Trait:ident $name:ident)*) => {$(
        impl<V: SingleVector, const K: usize> $Trait for Pack<V, K> {
            type Output = Self;
            #[inline(always)]
            fn $name(self, b: Self) -> Self {
                pack_of!(|k| self.0[k].$name(b.0[k]))
            }
        }
    )*};
}
impl_operators! { Add add  Sub sub  Mul mul  Div div }

impl<V: SingleVector, const K: usize> F32Lanes for Pack<V, K> {
    #[inline(always)]
    fn splat(c: f32) -> Self {
        pack_of!(|_k| V::splat(&c))
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        pack_of!(|k| self.0[k].mul_add(b.0[k], c.0[k]))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        pack_of!(|k| self.0[k].abs())
    }

    #[inline(always)]
    fn min_const(self, c: f32) -> Self {
        pack_of!(|k| self.0[k].at_most(V::splat(&c)))
    }

    #[inline(always)]
    fn copysign(self, s: Self) -> Self {
        pack_of!(|k| self.0[k].copysign(s.0[k]))
    }

    #[inline(always)]
    fn if_negative(self, a: Self, b: Self) -> Self {
        pack_of!(|k| a.0[k].select(b.0[k], self.0[k].less(V::zero())))
    }

    #[inline(always)]
    fn low_bits_as_exponent(self) -> Self {
        pack_of!(|k| self.0[k].low_bits_as_exponent())
    }

    #[inline(always)]
    fn add_bits(self, b: Self) -> Self {
        pack_of!(|k| self.0[k].add_bits(b.0[k]))
    }
}

/// Applies a function to R vectors, K vectors at a time, and then to the remaining vectors one at a time.
macro_rules! apply_in_groups {
    ($k:literal, $f:path, $v:ident) => {{
        let (mut vectors, remainder) = ($v, R / $k * $k);
        for group in vectors.as_chunks_mut::<$k>().0 {
            // SAFETY: the caller of the enclosing function guarantees *instruction set* of `Vector` for its entire
            // body. The `Pack` is used only in this statement, which is part of that body.
            *group = $f(unsafe { Pack::new(group) }).0;
        }
        for one in vectors[remainder..].as_chunks_mut::<1>().0 {
            // SAFETY: the caller of the enclosing function guarantees *instruction set* of `Vector` for its entire
            // body. The `Pack` is used only in this statement, which is part of that body.
            *one = $f(unsafe { Pack::new(one) }).0;
        }
        vectors
    }};
}

/// Returns whether the magnitude of a lane exceeds `limit` or is NaN.
///
/// # Safety
/// The clause *instruction set* of [`Vector`](super::Vector) holds.
#[inline(always)]
unsafe fn any_exceeds<V: SingleVector, const R: usize>(v: &[V; R], limit: f32) -> bool {
    // SAFETY: *instruction set* is the clause of this function; *pointer validity* holds because the argument of
    // `splat` is a reference to an argument.
    v.iter().fold(false, |exceeds, x| exceeds | unsafe { x.any_exceeds(V::splat(&limit)) })
}

/// Returns eˣ of every lane, or `None` if the magnitude of a lane exceeds [`EXP_LIMIT`] or is NaN.
///
/// # Safety
/// The clause *instruction set* of [`Vector`](super::Vector) holds.
#[inline(always)]
pub(super) unsafe fn exp<V: SingleVector, const R: usize>(v: [V; R]) -> Option<[V; R]> {
    // SAFETY: *instruction set* is the clause of both functions.
    if unsafe { any_exceeds(&v, EXP_LIMIT) } { None } else { Some(apply_in_groups!(4, single::exp_fast, v)) }
}

/// Returns tanh x of every lane.
///
/// # Safety
/// The clause *instruction set* of [`Vector`](super::Vector) holds.
#[inline(always)]
pub(super) unsafe fn tanh<V: SingleVector, const R: usize>(v: [V; R]) -> [V; R] {
    apply_in_groups!(4, single::tanh, v)
}

/// Returns 1 / (1 + e⁻ˣ) of every lane, or `None` if the magnitude of a lane exceeds [`EXP_LIMIT`] or is NaN.
///
/// # Safety
/// The clause *instruction set* of [`Vector`](super::Vector) holds.
#[inline(always)]
pub(super) unsafe fn sigmoid<V: SingleVector, const R: usize>(v: [V; R]) -> Option<[V; R]> {
    // SAFETY: *instruction set* is the clause of both functions.
    if unsafe { any_exceeds(&v, EXP_LIMIT) } { None } else { Some(apply_in_groups!(4, single::sigmoid_fast, v)) }
}

/// Returns Φ(x) of every lane, or `None` if the magnitude of a lane exceeds [`NDTR_LIMIT`] or is NaN.
///
/// # Safety
/// The clause *instruction set* of [`Vector`](super::Vector) holds.
#[inline(always)]
pub(super) unsafe fn ndtr<V: SingleVector, const R: usize>(v: [V; R]) -> Option<[V; R]> {
    // SAFETY: *instruction set* is the clause of both functions.
    if unsafe { any_exceeds(&v, NDTR_LIMIT) } {
        return None;
    }
    // Four vectors have more intermediate values than the 16 registers of AVX2 hold.
    Some(match const { V::LANES >= 16 } {
        true => apply_in_groups!(4, single::ndtr_fast, v),
        false => apply_in_groups!(2, single::ndtr_fast, v),
    })
}
