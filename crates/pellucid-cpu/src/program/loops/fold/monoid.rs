//! The operations of reductions: their identities, and how they combine values by fixed trees.

use crate::program::loops::loop_element::{LoopElement, MaskByte};
use pellucid_simd::math::Real;
use pellucid_simd::math::integer::Int;

/// The number of lanes (running values) of one reduction.
pub(crate) const LANES: usize = 16;

/// The number of elements of one block, and of rows of one block of rows.
pub(crate) const ROWS: usize = 8 * LANES;

/// An operation and its identity.
pub(super) trait Monoid<T: Copy> {
    /// The identity of the operation.
    const IDENTITY: T;
    /// Combines two values.
    fn combine(a: T, b: T) -> T;
    /// Combines eight values by the fixed tree.
    #[inline(always)]
    fn combine_eight(x: [T; 8]) -> T {
        eight_tree(x, Self::combine)
    }
    /// Combines the lanes by the fixed tree.
    #[inline(always)]
    fn combine_lanes(x: [T; LANES]) -> T {
        lane_tree(x, Self::combine)
    }
}

/// Combines eight values with `c` by the fixed tree.
#[inline(always)]
fn eight_tree<T: Copy>(x: [T; 8], c: impl Fn(T, T) -> T) -> T {
    c(c(c(x[0], x[1]), c(x[2], x[3])), c(c(x[4], x[5]), c(x[6], x[7])))
}

/// Combines the lanes with `c` by the fixed tree: lane l with l + 8, then + 4, + 2, + 1.
#[inline(always)]
fn lane_tree<T: Copy>(x: [T; LANES], c: impl Fn(T, T) -> T + Copy) -> T {
    let x: [T; 8] = halve_lanes(x, c);
    let x: [T; 4] = halve_lanes(x, c);
    let x: [T; 2] = halve_lanes(x, c);
    c(x[0], x[1])
}

/// Combines lane l with lane l + H, for each lane of the first half.
#[inline(always)]
fn halve_lanes<T: Copy, const N: usize, const H: usize>(x: [T; N], c: impl Fn(T, T) -> T) -> [T; H] {
    let mut y = [x[0]; H];
    for l in 0..H {
        y[l] = c(x[l], x[l + H]);
    }
    y
}

/// Returns NaN if a value of `x` is NaN, otherwise `best`, the extremum of `x`.
///
/// `best` is computed by a tree of comparisons that ignore NaN, and this separate pass detects NaN. Together they take
/// half the work of a tree that handles NaN in every comparison.
#[inline(always)]
#[expect(clippy::eq_op, reason = "0 / 0 is NaN in every type")]
fn extremum<T: Real, const N: usize>(x: [T; N], best: T) -> T {
    let nan = x.iter().fold(false, |nan, v| nan | v.is_nan());
    if nan { T::ZERO / T::ZERO } else { best }
}

/// Returns the larger value; the second if the comparison is undefined.
#[inline(always)]
fn greater<T: PartialOrd>(a: T, b: T) -> T {
    if a > b { a } else { b }
}

/// Returns the smaller value; the second if the comparison is undefined.
#[inline(always)]
fn lesser<T: PartialOrd>(a: T, b: T) -> T {
    if a < b { a } else { b }
}

/// Defines operations: their type bound, identity, and combination of two values, of eight values and of the lanes.
macro_rules! monoids {
    ($($Op:ident for $bound:ident: $identity:expr, |$a:ident, $b:ident| $e:expr, $eight:expr, $lanes:expr;)*) => {$(
        pub(super) struct $Op;
        impl<T: $bound> Monoid<T> for $Op {
            const IDENTITY: T = $identity;
            #[inline(always)]
            fn combine($a: T, $b: T) -> T {
                $e
            }
            #[inline(always)]
            fn combine_eight(x: [T; 8]) -> T {
                $eight(x)
            }
            #[inline(always)]
            fn combine_lanes(x: [T; LANES]) -> T {
                $lanes(x)
            }
        }
    )*};
}

/// A type with a least and a greatest value, whose comparison may be undefined (NaN).
pub(super) trait Ordered: Copy {
    /// The smallest value.
    const LEAST: Self;
    /// The greatest value.
    const GREATEST: Self;
    /// Returns the larger value, or NaN if either value is NaN.
    fn larger(self, b: Self) -> Self;
    /// Returns the smaller value, or NaN if either value is NaN.
    fn smaller(self, b: Self) -> Self;
    /// Combines eight values by the fixed tree of `larger`.
    fn largest(x: [Self; 8]) -> Self;
    /// Combines eight values by the fixed tree of `smaller`.
    fn smallest(x: [Self; 8]) -> Self;
    /// Combines the lanes by the fixed tree of `larger`.
    fn largest_lane(x: [Self; LANES]) -> Self;
    /// Combines the lanes by the fixed tree of `smaller`.
    fn smallest_lane(x: [Self; LANES]) -> Self;
}
/// A type with addition and multiplication.
pub(super) trait Ring: Copy {
    /// The identity of addition.
    const ZERO: Self;
    /// The identity of multiplication.
    const ONE: Self;
    /// Returns the sum.
    fn plus(self, b: Self) -> Self;
    /// Returns the product.
    fn times(self, b: Self) -> Self;
}
/// Implements [`Ordered`] and [`Ring`] for number types. `$extremum(x, best)` returns the extremum of the values x,
/// where `best` is the result of comparisons that ignore NaN.
macro_rules! numeric_types {
    ($(
        $t:ident: $kind:ident, $least:expr, $greatest:expr, $plus:expr, $times:expr, $larger:expr, $smaller:expr,
            $extremum:expr;
    )*) => {$(
        impl Ordered for $t {
            const LEAST: $t = $least;
            const GREATEST: $t = $greatest;
            #[inline(always)]
            fn larger(self, b: $t) -> $t {
                $larger(self, b)
            }
            #[inline(always)]
            fn smaller(self, b: $t) -> $t {
                $smaller(self, b)
            }
            #[inline(always)]
            fn largest(x: [$t; 8]) -> $t {
                $extremum(x, eight_tree(x, greater))
            }
            #[inline(always)]
            fn smallest(x: [$t; 8]) -> $t {
                $extremum(x, eight_tree(x, lesser))
            }
            #[inline(always)]
            fn largest_lane(x: [$t; LANES]) -> $t {
                $extremum(x, lane_tree(x, greater))
            }
            #[inline(always)]
            fn smallest_lane(x: [$t; LANES]) -> $t {
                $extremum(x, lane_tree(x, lesser))
            }
        }
        impl Ring for $t {
            const ZERO: $t = <$t as $kind>::ZERO;
            const ONE: $t = <$t as $kind>::ONE;
            #[inline(always)]
            fn plus(self, b: $t) -> $t {
                $plus(self, b)
            }
            #[inline(always)]
            fn times(self, b: $t) -> $t {
                $times(self, b)
            }
        }
    )*};
}
numeric_types! {
    f32: Real, -f32::INFINITY, f32::INFINITY, |a: f32, b| a + b, |a: f32, b| a * b,
        <f32 as Real>::max, <f32 as Real>::min, extremum;
    f64: Real, -f64::INFINITY, f64::INFINITY, |a: f64, b| a + b, |a: f64, b| a * b,
        <f64 as Real>::max, <f64 as Real>::min, extremum;
    i32: Int, i32::MIN, i32::MAX, i32::wrapping_add, i32::wrapping_mul, Ord::max, Ord::min, |_, best| best;
    i64: Int, i64::MIN, i64::MAX, i64::wrapping_add, i64::wrapping_mul, Ord::max, Ord::min, |_, best| best;
}

monoids! {
    Sum for Ring: T::ZERO, |a, b| a.plus(b), |x| eight_tree(x, T::plus), |x| lane_tree(x, T::plus);
    Prod for Ring: T::ONE, |a, b| a.times(b), |x| eight_tree(x, T::times), |x| lane_tree(x, T::times);
    Max for Ordered: T::LEAST, |a, b| a.larger(b), T::largest, T::largest_lane;
    Min for Ordered: T::GREATEST, |a, b| a.smaller(b), T::smallest, T::smallest_lane;
}

/// Logical and of masks.
pub(super) struct And;
impl Monoid<MaskByte> for And {
    const IDENTITY: MaskByte = MaskByte(1);
    #[inline(always)]
    fn combine(a: MaskByte, b: MaskByte) -> MaskByte {
        MaskByte(a.0 & b.0)
    }
}
/// Logical or of masks.
pub(super) struct Or;
impl Monoid<MaskByte> for Or {
    const IDENTITY: MaskByte = MaskByte(0);
    #[inline(always)]
    fn combine(a: MaskByte, b: MaskByte) -> MaskByte {
        MaskByte(a.0 | b.0)
    }
}

/// Combines sixteen pairs of values.
#[inline(always)]
pub(super) fn combine_vectors<T: LoopElement, M: Monoid<T>>(a: [T; LANES], b: [T; LANES]) -> [T; LANES] {
    let mut c = [M::IDENTITY; LANES];
    for l in 0..LANES {
        c[l] = M::combine(a[l], b[l]);
    }
    c
}
