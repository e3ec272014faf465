//! The geometry of sliding windows.

use std::ops::Range;

/// The geometry of a sliding window over three spatial axes. For fewer axes, the leading ones have length 1.
///
/// Along each axis, tap t of the window at output o is at input position `stride·o + dilation·t − before`. Positions
/// outside the input are padding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Window {
    /// The number of taps.
    pub size: [usize; 3],
    /// The distance between windows; at least 1.
    pub stride: [usize; 3],
    /// The distance between taps; at least 1.
    pub dilation: [usize; 3],
    /// The padding before the first element of the input.
    pub before: [usize; 3],
}

impl Window {
    /// Returns the number of taps over all axes, at most `usize::MAX`.
    pub fn taps(&self) -> usize {
        self.size.iter().fold(1, |taps, &size| taps.saturating_mul(size))
    }

    /// Returns the distance from the first tap to the last along an axis.
    pub fn span(&self, axis: usize) -> usize {
        self.dilation[axis] * self.size[axis].saturating_sub(1)
    }

    /// Returns the number of positions from the first tap to the last along an axis, both included.
    pub fn extent(&self, axis: usize) -> usize {
        self.span(axis) + 1
    }

    /// Returns the number of windows along an axis of length `padded`, which includes padding; `None` if none fits.
    pub fn outputs(&self, axis: usize, padded: usize) -> Option<usize> {
        Some(padded.checked_sub(self.extent(axis))? / self.stride[axis] + 1)
    }

    /// Returns the length that `outputs` ≥ 1 windows cover along an axis.
    pub fn covered_length(&self, axis: usize, outputs: usize) -> usize {
        self.stride[axis] * (outputs - 1) + self.extent(axis)
    }

    /// The limit of coordinates: sums and differences of coordinates below it cannot overflow.
    pub const MAX_COORDINATE: usize = isize::MAX as usize / 8;

    /// Returns true if stride and dilation along an axis are positive, and an upper bound of all coordinates of
    /// `outputs` windows over an input of length `len`, with padding, is less than `limit`.
    pub fn has_coordinates(&self, axis: usize, len: usize, outputs: usize, limit: usize) -> bool {
        let (stride, dilation) = (self.stride[axis], self.dilation[axis]);
        let extent = || {
            let taps = dilation.checked_mul(self.size[axis])?;
            stride.checked_mul(outputs)?.checked_add(taps)?.checked_add(self.before[axis])?.checked_add(len)
        };
        stride > 0 && dilation > 0 && extent().is_some_and(|extent| extent < limit)
    }

    /// Returns true if every output along an axis has a tap inside an input of length `len`. Stride and dilation must
    /// be positive, and [coordinates](Self::has_coordinates) must not overflow.
    pub fn has_taps(&self, axis: usize, len: usize, outputs: usize) -> bool {
        // Windows from index `started` on do not begin in the padding before the input. Of these, only the last one is
        // checked, because it begins last.
        let started = self.before[axis].div_ceil(self.stride[axis]).min(outputs);
        (0..started).chain(outputs.checked_sub(1)).all(|o| !self.taps_inside(axis, len, o).is_empty())
    }

    /// Returns the taps of an output that are inside an input of length `len` along an axis.
    #[inline]
    pub fn taps_inside(&self, axis: usize, len: usize, output: usize) -> Range<usize> {
        let (start, dilation) = (self.stride[axis] * output, self.dilation[axis]);
        let first = self.before[axis].saturating_sub(start).div_ceil(dilation);
        let end = (len + self.before[axis]).saturating_sub(start).div_ceil(dilation);
        first..end.min(self.size[axis])
    }
}

/// Returns the elements of window o of `outputs` adaptive windows over an axis of length `len`: ⌊o·len/outputs⌋ ..
/// ⌈(o + 1)·len/outputs⌉. Neighbouring windows may overlap.
pub fn adaptive_window(len: usize, outputs: usize, o: usize) -> Range<usize> {
    // A 128-bit division is slow, so it is used only if the product overflows.
    if let Some(end) = (o + 1).checked_mul(len) {
        return (end - len) / outputs..end.div_ceil(outputs);
    }
    let (start, end) = (o as u128 * len as u128, (o + 1) as u128 * len as u128);
    (start / outputs as u128) as usize..end.div_ceil(outputs as u128) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_without_a_tap_inside_are_found() {
        for (size, stride, dilation, before) in
            (1..4).flat_map(|s| (1..4).flat_map(move |t| (1..4).flat_map(move |d| (0..5).map(move |b| (s, t, d, b)))))
        {
            let window = Window { size: [size; 3], stride: [stride; 3], dilation: [dilation; 3], before: [before; 3] };
            for (len, outputs) in (0..5).flat_map(|len| (0..6).map(move |outputs| (len, outputs))) {
                let has_tap =
                    |o: usize| (0..size).any(|t| (before..before + len).contains(&(stride * o + dilation * t)));
                let expected = (0..outputs).all(has_tap);
                assert_eq!(window.has_taps(1, len, outputs), expected, "{window:?}, {len}, {outputs}");
            }
        }
    }

    #[test]
    fn coordinates_are_limited() {
        let window =
            |stride, dilation| Window { size: [3; 3], stride: [stride; 3], dilation: [dilation; 3], before: [1; 3] };
        // The bound is stride·outputs + dilation·size + padding + length = 2·4 + 1·3 + 1 + 5 = 17.
        assert!(window(2, 1).has_coordinates(0, 5, 4, 18) && !window(2, 1).has_coordinates(0, 5, 4, 17));
        for (stride, dilation) in [(0, 1), (1, 0), (usize::MAX, 1), (1, usize::MAX)] {
            assert!(!window(stride, dilation).has_coordinates(0, 5, 4, usize::MAX), "{stride}, {dilation}");
        }
    }
}
