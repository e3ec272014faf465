//! The geometry of sliding windows.

/// The geometry of a sliding window over three spatial axes; with fewer axes the leading ones have length 1.
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
    /// Returns the number of taps over all axes.
    pub fn taps(&self) -> usize {
        self.size.iter().product()
    }

    /// Returns the distance from the first tap to the last along an axis.
    pub fn reach(&self, axis: usize) -> usize {
        self.dilation[axis] * self.size[axis].saturating_sub(1)
    }
}
