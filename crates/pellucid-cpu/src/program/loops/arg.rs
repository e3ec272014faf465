//! The position of the extremum of a row.
//!
//! Two steps per block: its extremum on vectors, and, only where that settles the answer, a search for
//! the position. So the row is read once, at the speed of memory.

use super::element::{At, LoopElement, source};
use pellucid_ir::Compute;
use pellucid_simd::Isa;
use pellucid_simd::per_isa;

/// The first index of the extremum of `n` contiguous values, n ≥ 1; a NaN counts as the extremum, and
/// the first one wins.
///
/// # Safety
/// `src` holds `n` values, and the processor has the isa the loop was asked for.
pub(crate) type ArgLoop = unsafe fn(src: *const u8, n: usize) -> usize;

/// Values per block: few enough to be in L1 when they are searched.
const BLOCK: usize = 1024;

/// Independent running extrema, enough to hide the latency of a comparison.
const LANES: usize = 64;

/// An order to search by.
trait Order<T> {
    /// Nothing is better than the first of its kind.
    const WORST: T;
    /// `a` beats `b`; never with a NaN.
    fn better(a: T, b: T) -> bool;
}

struct Largest;
struct Smallest;

macro_rules! orders {
    ($($t:ident $least:expr, $greatest:expr;)*) => {$(
        impl Order<$t> for Largest {
            const WORST: $t = $least;
            #[inline(always)]
            fn better(a: $t, b: $t) -> bool {
                a > b
            }
        }
        impl Order<$t> for Smallest {
            const WORST: $t = $greatest;
            #[inline(always)]
            fn better(a: $t, b: $t) -> bool {
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

/// The better of both.
#[inline(always)]
fn best_of<T: LoopElement, O: Order<T>>(v: T, best: T) -> T {
    if O::better(v, best) { v } else { best }
}

/// A NaN if there is one, the latter first.
#[inline(always)]
fn nan_of<T: LoopElement + PartialOrd>(v: T, nan: T) -> T {
    if is_nan(v) { v } else { nan }
}

/// Running extrema and NaNs: each of the first half with its partner of the second.
#[inline(always)]
fn halve<T: LoopElement + PartialOrd, O: Order<T>, const N: usize, const H: usize>(
    (best, nan): ([T; N], [T; N]),
) -> ([T; H], [T; H]) {
    let mut half = ([O::WORST; H], [O::WORST; H]);
    for l in 0..H {
        half.0[l] = best_of::<T, O>(best[l + H], best[l]);
        half.1[l] = nan_of(nan[l + H], nan[l]);
    }
    half
}

/// The extremum of the values that are not NaN, and whether there is one that is.
#[inline(always)]
fn extremum<T: LoopElement + PartialOrd, O: Order<T>>(x: &[At<T>]) -> (T, bool) {
    let mut best = [O::WORST; LANES];
    // The last NaN of each lane: kept as wide as the values, so that no vector changes its width.
    let mut nan = [O::WORST; LANES];
    let (groups, rest) = x.as_chunks::<LANES>();
    for group in groups {
        for l in 0..LANES {
            let v = group[l].0;
            best[l] = best_of::<T, O>(v, best[l]);
            nan[l] = nan_of(v, nan[l]);
        }
    }
    let half: ([T; 32], _) = halve::<T, O, _, _>((best, nan));
    let half: ([T; 16], _) = halve::<T, O, _, _>(half);
    let half: ([T; 8], _) = halve::<T, O, _, _>(half);
    let half: ([T; 4], _) = halve::<T, O, _, _>(half);
    let half: ([T; 2], _) = halve::<T, O, _, _>(half);
    let ([mut top], [mut nan]) = halve::<T, O, _, _>(half);
    for v in rest {
        top = best_of::<T, O>(v.0, top);
        nan = nan_of(v.0, nan);
    }
    (top, is_nan(nan))
}

/// Of all numbers only a NaN is not itself.
#[inline(always)]
#[allow(clippy::eq_op)]
fn is_nan<T: PartialOrd>(v: T) -> bool {
    v != v
}

per_isa! {
    fn position[T: LoopElement + PartialOrd, O: Order<T>][T, O](src: *const u8, n: usize) -> usize {
        debug_assert!(n >= 1, "no extremum of nothing");
        // SAFETY: the caller's promise.
        let src = unsafe { source::<T>(src, n) };
        let mut best = O::WORST;
        let mut home = 0;
        for (i, x) in src.chunks(BLOCK).enumerate() {
            let (top, nan) = extremum::<T, O>(x);
            if nan {
                return i * BLOCK + x.iter().position(|v| is_nan(v.0)).unwrap_or(0);
            }
            if O::better(top, best) {
                (best, home) = (top, i * BLOCK);
            }
        }
        // Whole groups are compared at once; only the one that has it is searched.
        let mut groups = src[home..].chunks(LANES).enumerate();
        let hit = groups.find(|(_, group)| group.iter().fold(false, |hit, v| hit | ({ v.0 } == best)));
        let (group, values) = hit.unwrap_or((0, &src[home..]));
        home + group * LANES + values.iter().position(|v| { v.0 } == best).unwrap_or(0)
    }
}

fn by<T: LoopElement + PartialOrd>(largest: bool, isa: Isa) -> ArgLoop
where
    Largest: Order<T>,
    Smallest: Order<T>,
{
    if largest { position::<T, Largest>(isa) } else { position::<T, Smallest>(isa) }
}

fn arg(largest: bool, ty: Compute, isa: Isa) -> Option<ArgLoop> {
    match ty {
        Compute::Mask => None,
        Compute::I32 => Some(by::<i32>(largest, isa)),
        Compute::I64 => Some(by::<i64>(largest, isa)),
        Compute::F32 => Some(by::<f32>(largest, isa)),
        Compute::F64 => Some(by::<f64>(largest, isa)),
    }
}

/// The loop that finds the first largest of `ty` values; None for masks.
pub(crate) fn argmax(ty: Compute, isa: Isa) -> Option<ArgLoop> {
    arg(true, ty, isa)
}

/// The loop that finds the first smallest of `ty` values; None for masks.
pub(crate) fn argmin(ty: Compute, isa: Isa) -> Option<ArgLoop> {
    arg(false, ty, isa)
}
