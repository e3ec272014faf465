//! Scratch memory that is split into slices.

use pellucid_runtime::threads::SharedPtr;

/// Splits scratch memory into slices of full cache lines. The field is the start of the unused part.
pub(super) struct ScratchCursor<T>(pub(super) SharedPtr<T>);

impl<T: Copy> ScratchCursor<T> {
    /// Returns the start of the next `count` elements.
    pub(super) fn take(&mut self, count: usize) -> SharedPtr<T> {
        let start = self.0;
        self.0 = SharedPtr(start.offset(round_to_cache_lines::<T>(count) as isize));
        start
    }
}

/// Rounds a number of elements up to full cache lines.
pub(super) fn round_to_cache_lines<T>(count: usize) -> usize {
    count.next_multiple_of(64 / size_of::<T>())
}
