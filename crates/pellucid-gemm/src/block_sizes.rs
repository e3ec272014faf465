//! The division of ranges into blocks. The blocks of k determine the order of summation.

use pellucid_simd::Element;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__cpuid;
use std::ops::Range;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

/// The largest block of k. It determines the order of summation, so it is the same for all types and processors. With
/// this size, 14 rows of A (`f32`) fill half of a 32 KiB L1, and the pass over C for each block costs about 2 % of the
/// time.
pub(crate) const MAX_DEPTH_BLOCK: usize = 272;

/// The number of columns of a block with the maximum k extent: half a megabyte of `f32` in a 1 MiB L2. With a larger
/// L2, a block has more columns.
const BLOCK_COLUMNS: usize = 512;

/// Returns the blocks of a depth of `len` elements of type `T`. All blocks except the last have the same size. The
/// blocks depend only on the number of factors, `len · T::FACTORS`.
pub(crate) fn depth_blocks<T: Element>(len: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    chunks(0..len, depth_block_size::<T>(len))
}

/// Returns the block size for a depth of `len` elements of type `T`.
///
/// Pairs of factors have the same blocks of k as single factors: block boundaries are multiples of 8, so a pair never
/// crosses one, and padding an odd k to an even one changes no boundary.
///
/// Quads of `i8`, whose sums are exact, have the same number of elements in a block as `f32`.
pub(crate) fn depth_block_size<T: Element>(len: usize) -> usize {
    let max_factors = if T::FACTORS == 4 { 4 * MAX_DEPTH_BLOCK } else { MAX_DEPTH_BLOCK };
    equal_part(len * T::FACTORS, max_factors).next_multiple_of(8).max(8) / T::FACTORS
}

/// Returns the size, at most `max`, of the parts into which `len` is divided. Only the last part may be smaller.
///
/// If one part is enough, no division is computed: it would be noticeable in a small product (32 × 32 × 32 takes only
/// about 1000 cycles).
#[inline]
pub(crate) fn equal_part(len: usize, max: usize) -> usize {
    if len <= max { len } else { len.div_ceil(len.div_ceil(max)) }
}

/// Splits a range into consecutive parts of `size`; the last may be smaller. Unlike `step_by`, this needs no division.
#[inline]
pub(crate) fn chunks(range: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    debug_assert!(size > 0, "the size of a chunk must be greater than 0");
    let mut start = range.start;
    std::iter::from_fn(move || {
        let chunk = start..range.end.min(start.saturating_add(size));
        start = chunk.end;
        (!chunk.is_empty()).then_some(chunk)
    })
}

/// Returns the number of columns of a block for elements of type `T`, a multiple of the panel's `width`.
///
/// With wider blocks, A is read fewer times. Measured for `f32` with 2 MiB of L2: 1024 columns take 0.96 of the time of
/// 512.
pub(crate) fn block_columns<T: Element>(k: usize, width: usize) -> usize {
    block_elements::<T>() / depth_block_size::<T>(k) / width * width
}

/// Returns the number of elements of the largest block of B: about half of an L2 of [`l2_megabytes`].
fn block_elements<T>() -> usize {
    MAX_DEPTH_BLOCK * BLOCK_COLUMNS * (l2_megabytes() * size_of::<f32>() / size_of::<T>()).max(1)
}

/// Returns the width of the blocks into which `cols` columns are divided. Only the last block may be narrower.
#[inline]
pub(crate) fn column_block_width<T: Element>(k: usize, cols: usize, width: usize) -> usize {
    if cols <= BLOCK_COLUMNS {
        return cols;
    }
    equal_part(cols, block_columns::<T>(k, width)).next_multiple_of(width)
}

/// Returns the size of the second-level cache in MiB, limited to the range from 1 to 2. Returns 1 if the size cannot be
/// determined.
fn l2_megabytes() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        static MEGABYTES: OnceLock<usize> = OnceLock::new();
        *MEGABYTES.get_or_init(|| {
            let (leaf, highest) = (0x8000_0006, __cpuid(0x8000_0000).eax);
            // Bits 16 to 31 of ECX are the size of L2 in KiB, on Intel and AMD.
            if highest < leaf { 1 } else { (__cpuid(leaf).ecx as usize >> 26).clamp(1, 2) }
        })
    }
    #[cfg(not(target_arch = "x86_64"))]
    1
}

#[cfg(test)]
mod tests {
    use super::*;
    use pellucid_simd::vector::BF16Pair;

    #[test]
    fn chunks_cover_a_range_in_order() {
        for (start, len) in [(0, 0), (0, 1), (3, 20), (5, 24)] {
            for size in [1, 7, 8, 24, 100, usize::MAX] {
                let parts: Vec<_> = chunks(start..start + len, size).collect();
                assert!(parts.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= size));
                assert!(parts.iter().rev().skip(1).all(|chunk| chunk.len() == size), "{parts:?}");
                assert!(parts.into_iter().flatten().eq(start..start + len), "{start} + {len} by {size}");
            }
        }
    }

    #[test]
    fn pairs_have_the_blocks_of_single_factors() {
        for k in 1..3000usize {
            let pairs = depth_blocks::<BF16Pair>(k.div_ceil(2)).map(|block| 2 * block.start..k.min(2 * block.end));
            assert!(pairs.eq(depth_blocks::<f32>(k)), "k = {k}");
        }
    }

    #[test]
    fn equal_parts_are_as_few_as_possible() {
        for (len, max) in (0..100).flat_map(|len| [1, 6, 14, 50].map(|max| (len, max))) {
            let part = equal_part(len, max);
            assert!(part <= max && (len == 0 || len.div_ceil(part) == len.div_ceil(max)), "{len} by at most {max}");
        }
    }
}
