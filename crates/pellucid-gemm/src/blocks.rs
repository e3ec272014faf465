//! The division of ranges into blocks. The blocks of k determine the order of summation.

use std::ops::Range;

/// The largest block of k. It determines the order of summation, so it is the same for all types and processors. With
/// this size, 14 rows of A (`f32`) fill half of a 32 KiB L1, and a pass over C costs about 2 %.
pub(crate) const MAX_DEPTH_BLOCK: usize = 272;

/// Returns the blocks of k, which have equal sizes except for the last. They are a function of k alone.
pub(crate) fn depth_blocks(k: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    chunks(0..k, depth_block_size(k))
}

/// Returns the size of a block of k.
pub(crate) fn depth_block_size(k: usize) -> usize {
    equal_part(k, MAX_DEPTH_BLOCK).next_multiple_of(8).max(8)
}

/// Returns the size of the parts of `len`, at most `max` each, which have equal sizes except for the last.
///
/// Small products skip the divisions: a product of 32 × 32 × 32 takes only about 1000 cycles.
#[inline]
pub(crate) fn equal_part(len: usize, max: usize) -> usize {
    if len <= max { len } else { len.div_ceil(len.div_ceil(max)) }
}

/// Splits a range into consecutive parts of `size`, of which the last may be smaller. Unlike `step_by`, it does not
/// divide.
#[inline]
pub(crate) fn chunks(range: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    debug_assert!(size > 0, "chunks of size 0");
    let mut start = range.start;
    std::iter::from_fn(move || {
        let chunk = start..range.end.min(start.saturating_add(size));
        start = chunk.end;
        (!chunk.is_empty()).then_some(chunk)
    })
}
