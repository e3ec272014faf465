//! The division of long sequences into parts.

/// The maximum number of parts, unless the parts would then exceed [`PartSizes::limit`].
const MAX_PARTS: usize = 1 << 17;

/// The sizes of the parts of a sequence.
#[derive(Clone, Copy, Debug)]
pub(in crate::families) struct PartSizes {
    /// The length of the longest sequence that is not divided.
    pub(in crate::families) undivided: usize,
    /// The minimum number of elements of a part, up to `few_parts` parts.
    pub(in crate::families) small: usize,
    pub(in crate::families) few_parts: usize,
    /// The minimum number of elements of a part of a sequence with more parts.
    pub(in crate::families) large: usize,
    /// The maximum number of elements of a part, at least 1: the elements that one invocation or workgroup can process.
    pub(in crate::families) limit: usize,
}

impl PartSizes {
    /// Returns the number of parts of a sequence of `length` elements: with growing length, first parts of `small`
    /// elements, then `few_parts` parts, then parts of `large` elements, and finally [`MAX_PARTS`] parts. There are
    /// more parts if a part would exceed `limit`.
    pub(in crate::families) fn part_count(self, length: usize) -> usize {
        let PartSizes { undivided, small, few_parts, large, limit } = self;
        let parts = match length <= undivided {
            true => 1,
            false => length.div_ceil(small).min(length.div_ceil(large).clamp(few_parts, MAX_PARTS)),
        };
        parts.max(length.div_ceil(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_grow_with_the_length_up_to_the_limit() {
        let sizes = PartSizes { undivided: 100, small: 50, few_parts: 8, large: 200, limit: 1000 };
        let lengths = [0, 1, 100, 101, 400, 1600, 1601, 200 * MAX_PARTS, 1000 * MAX_PARTS + 1];
        let counts = lengths.map(|length| sizes.part_count(length));
        assert_eq!(counts, [1, 1, 1, 3, 8, 8, 9, MAX_PARTS, MAX_PARTS + 1]);
        let loops = PartSizes { limit: 3, ..sizes };
        assert_eq!([0, 3, 100, 101].map(|length| loops.part_count(length)), [1, 1, 34, 34]);
    }
}
