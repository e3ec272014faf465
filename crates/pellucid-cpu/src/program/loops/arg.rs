//! The index of the extremum of a row.
//!
//! Vector code computes the extremum of each block. Only the block that contains the extremum of the row is searched
//! for the index of the extremum. Therefore the row is read from memory once, at memory bandwidth.

use super::loop_element::{LoopElement, Unaligned, source_slice};
use pellucid_ir::Compute;
use pellucid_simd::{Isa, per_isa, up_to};

/// `position(src, n)` returns the first index of the extremum of `n` ≥ 1 contiguous values. A NaN counts as the
/// extremum, and the first NaN wins.
///
/// # Safety
/// * Source: `src` is valid for reads of `n` elements.
/// * ISA: the processor has the instruction set for which the loop was requested.
pub(crate) type ArgLoop = unsafe fn(src: *const u8, n: usize) -> usize;

/// The number of values of a block: few enough to be in L1 when the block is searched.
const BLOCK: usize = 1024;

/// The number of independent running extrema, which is sufficient to hide the latency of a comparison.
const LANES: usize = 64;

/// The minimum number of values of a last group that is padded.
const MIN_PADDED: usize = 24;

/// The order that defines the extremum.
trait ExtremumOrder<T> {
    /// The worst value: no value is worse.
    const WORST: T;
    /// Returns true if `a` is better than `b`. Returns false if `a` or `b` is NaN.
    fn is_better(a: T, b: T) -> bool;
}

/// The order in which the largest value is best.
struct LargestFirst;
/// The order in which the smallest value is best.
struct SmallestFirst;

macro_rules! orders {
    ($($t:ident $least:expr, $greatest:expr;)*) => {$(
        impl ExtremumOrder<$t> for LargestFirst {
            const WORST: $t = $least;
            #[inline(always)]
            fn is_better(a: $t, b: $t) -> bool {
                a > b
            }
        }
        impl ExtremumOrder<$t> for SmallestFirst {
            const WORST: $t = $greatest;
            #[inline(always)]
            fn is_better(a: $t, b: $t) -> bool {
                a < b
            }
        }
    )*};
}
orders! {
    f32 f32::NEG_INFINITY, f32::INFINITY;
    f64 f64::NEG_INFINITY, f64::INFINITY;
    i32 i32::MIN, i32::MAX;
    i64 i64::MIN, i64::MAX;
}

/// Returns the better of two values, or `best` if neither value is better.
#[inline(always)]
fn better_of<T: LoopElement, O: ExtremumOrder<T>>(v: T, best: T) -> T {
    if O::is_better(v, best) { v } else { best }
}

/// Returns `v` if it is NaN, otherwise `nan`.
#[inline(always)]
fn nan_of<T: LoopElement + PartialOrd>(v: T, nan: T) -> T {
    if is_nan(v) { v } else { nan }
}

/// Combines the running extrema and NaNs of lanes l and l + H.
#[inline(always)]
fn halve_lanes<T: LoopElement + PartialOrd, O: ExtremumOrder<T>, const N: usize, const H: usize>(
    (best, nan): ([T; N], [T; N]),
) -> ([T; H], [T; H]) {
    let mut half = ([O::WORST; H], [O::WORST; H]);
    for l in 0..H {
        half.0[l] = better_of::<T, O>(best[l + H], best[l]);
        half.1[l] = nan_of(nan[l + H], nan[l]);
    }
    half
}

/// Combines a group of values into the running extrema and NaNs of the lanes.
#[inline(always)]
fn update_lanes<T: LoopElement + PartialOrd, O: ExtremumOrder<T>>(
    best: &mut [T; LANES],
    nan: &mut [T; LANES],
    group: &[Unaligned<T>; LANES],
) {
    for l in 0..LANES {
        let v = group[l].0;
        best[l] = better_of::<T, O>(v, best[l]);
        nan[l] = nan_of(v, nan[l]);
    }
}

/// Returns the extremum of the values that are not NaN, and whether any value is NaN.
#[inline(always)]
fn extremum<T: LoopElement + PartialOrd, O: ExtremumOrder<T>>(x: &[Unaligned<T>]) -> (T, bool) {
    let mut best = [O::WORST; LANES];
    // The last NaN of each lane. It is stored as a value instead of a flag, so all vectors have the same width.
    let mut nan = [O::WORST; LANES];
    let (groups, rest) = x.as_chunks::<LANES>();
    for group in groups {
        update_lanes::<T, O>(&mut best, &mut nan, group);
    }
    // A few values are combined one by one below; more of them are a padded group.
    let is_padded = rest.len() >= MIN_PADDED;
    if is_padded {
        let mut last = [Unaligned(O::WORST); LANES];
        last[..rest.len()].copy_from_slice(rest);
        update_lanes::<T, O>(&mut best, &mut nan, &last);
    }
    let half: ([T; 32], _) = halve_lanes::<T, O, _, _>((best, nan));
    let half: ([T; 16], _) = halve_lanes::<T, O, _, _>(half);
    let half: ([T; 8], _) = halve_lanes::<T, O, _, _>(half);
    let half: ([T; 4], _) = halve_lanes::<T, O, _, _>(half);
    let half: ([T; 2], _) = halve_lanes::<T, O, _, _>(half);
    let ([mut extremum], [mut nan]) = halve_lanes::<T, O, _, _>(half);
    for v in rest.iter().filter(|_| !is_padded) {
        extremum = better_of::<T, O>(v.0, extremum);
        nan = nan_of(v.0, nan);
    }
    (extremum, is_nan(nan))
}

/// Returns true if `v` is NaN: only a NaN differs from itself.
#[inline(always)]
#[allow(clippy::eq_op)]
fn is_nan<T: PartialOrd>(v: T) -> bool {
    v != v
}

per_isa! {
    /// Returns the loop that finds the first extremum, for an instruction set.
    fn first_position[T: LoopElement + PartialOrd, O: ExtremumOrder<T>][T, O](src: *const u8, n: usize) -> usize {
        debug_assert!(n >= 1, "a row must not be empty, because an empty row has no extremum");
        // SAFETY: the caller guarantees *Source* (the contract of `ArgLoop`) and does not write the row during the
        // call.
        let src = unsafe { source_slice::<T>(src, n) };
        let mut best = O::WORST;
        let mut start = 0;
        for (i, x) in src.chunks(BLOCK).enumerate() {
            let (block_best, nan) = extremum::<T, O>(x);
            if nan {
                return i * BLOCK + x.iter().position(|v| is_nan(v.0)).unwrap_or(0);
            }
            if O::is_better(block_best, best) {
                (best, start) = (block_best, i * BLOCK);
            }
        }
        // Each group of values is first compared as a full vector; only the group with the extremum is searched.
        let mut groups = src[start..].chunks(LANES).enumerate();
        let hit = groups.find(|(_, group)| group.iter().fold(false, |hit, v| hit | ({ v.0 } == best)));
        let (group, values) = hit.unwrap_or((0, &src[start..]));
        start + group * LANES + values.iter().position(|v| { v.0 } == best).unwrap_or(0)
    }
}

/// Returns the loop for the largest or the smallest value.
fn position_loop<T: LoopElement + PartialOrd>(largest: bool, isa: Isa) -> ArgLoop
where
    LargestFirst: ExtremumOrder<T>,
    SmallestFirst: ExtremumOrder<T>,
{
    if largest {
        up_to!(T::WIDEST_ISA, isa, first_position::<T, LargestFirst>)
    } else {
        up_to!(T::WIDEST_ISA, isa, first_position::<T, SmallestFirst>)
    }
}

/// Returns the loop for values of type `ty`, or `None` for masks.
fn arg_loop(largest: bool, ty: Compute, isa: Isa) -> Option<ArgLoop> {
    match ty {
        Compute::Mask => None,
        Compute::I32 => Some(position_loop::<i32>(largest, isa)),
        Compute::I64 => Some(position_loop::<i64>(largest, isa)),
        Compute::F32 => Some(position_loop::<f32>(largest, isa)),
        Compute::F64 => Some(position_loop::<f64>(largest, isa)),
    }
}

/// Returns the loop that finds the first largest value of type `ty`, or `None` for masks.
pub(crate) fn argmax(ty: Compute, isa: Isa) -> Option<ArgLoop> {
    arg_loop(true, ty, isa)
}

/// Returns the loop that finds the first smallest value of type `ty`, or `None` for masks.
pub(crate) fn argmin(ty: Compute, isa: Isa) -> Option<ArgLoop> {
    arg_loop(false, ty, isa)
}
