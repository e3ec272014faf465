//! The packing of strided matrices: copies and transpositions into panels.

use super::strided::Strided;
use pellucid_simd::Element;
use pellucid_simd::vector::{Vector, prefetch_run};

/// A packing of a strided operand into panels.
///
/// A panel is a row-major matrix of `depth` rows (one for each k index) of `width` elements. Column i of a panel is one
/// row of A or one column of B. Columns past the last lane are zeros. [`transpose`](Self::transpose) packs one panel,
/// with zeros up to column `lanes_per_panel`. [`copy`](Self::copy) packs panels of `lanes_per_panel` columns each.
///
/// # Packing contract
///
/// - *Range*: `from` is valid for reads of `lanes × depth` elements, and no thread writes them during the call.
/// - *Target*: `to` is valid for writes of all panels, which overlap neither each other nor the source.
/// - *Width*: a panel has at most `width` packed columns, and `width` is a multiple of the length of a vector.
pub(crate) struct PackPanels<T> {
    pub(crate) from: Strided<T>,
    pub(crate) lanes: usize,
    pub(crate) lanes_per_panel: usize,
    pub(crate) depth: usize,
    pub(crate) width: usize,
    pub(crate) to: *mut T,
    pub(crate) panel_stride: usize,
}

/// The number of k indices that are copied together. Source rows whose stride is a power of two share a cache set.
/// Therefore more rows would evict each other.
const STEPS_PER_GROUP: usize = 8;

/// The number of lanes of the widest packed panel. Wider targets are matrices, not panels.
const MAX_PANEL_WIDTH: usize = 32;

/// The size of a cache line in bytes.
const CACHE_LINE: usize = 64;

impl<T: Element> PackPanels<T> {
    /// Returns the transposition of a matrix that is contiguous along k: `to[p·row_stride + i] = from[i, p]` for
    /// `i < lanes`, and 0 for `lanes ≤ i < padded_lanes`.
    pub(crate) fn to_transpose(
        from: Strided<T>,
        (lanes, padded_lanes): (usize, usize),
        depth: usize,
        to: *mut T,
        row_stride: usize,
    ) -> PackPanels<T> {
        PackPanels { from, lanes, lanes_per_panel: padded_lanes, depth, width: row_stride, to, panel_stride: 0 }
    }

    /// Packs panels by copying rows, because the elements of a row of a panel are contiguous in the source.
    ///
    /// Consecutive panels share the cache lines and the pages of a source row. Therefore a few source rows at a time
    /// are distributed to all panels.
    ///
    /// # Safety
    ///
    /// - The packing contract of [`PackPanels`] holds, and `from.lane` is 1.
    /// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    pub(crate) unsafe fn copy<V: Vector<Scalar = T>>(&self) {
        let &Self { from, lanes, lanes_per_panel, depth, width, to, panel_stride } = self;
        debug_assert!(
            from.lane == 1 || lanes <= 1,
            "the elements of a source row have the stride {} instead of 1",
            from.lane
        );
        debug_assert!(
            lanes_per_panel.min(lanes) <= width && width.is_multiple_of(V::LANES),
            "{lanes} columns do not fit a panel of width {width}, or the width is not a multiple of a vector's length"
        );
        // The second condition excludes the case of several panels that have `width` columns together.
        if lanes == width && lanes <= lanes_per_panel && width == 2 * V::LANES {
            for p in 0..depth {
                let (from, to) = (from.element_ptr(0, p), to.wrapping_add(p * width));
                // SAFETY: a row of the source and a row of the panel are exactly two vectors, which *Range* and
                // *Target* of the packing contract cover.
                unsafe {
                    V::load(from).store(to);
                    V::load(from.add(V::LANES)).store(to.add(V::LANES));
                }
            }
            return;
        }
        for start in (0..depth).step_by(STEPS_PER_GROUP) {
            let steps = STEPS_PER_GROUP.min(depth - start);
            for p in start + 2 * STEPS_PER_GROUP..depth.min(start + 2 * STEPS_PER_GROUP + steps) {
                prefetch_run(from.element_ptr(0, p), lanes);
            }
            for (panel, first) in (0..lanes).step_by(lanes_per_panel).enumerate() {
                let lanes = lanes_per_panel.min(lanes - first);
                for i in (0..width).step_by(V::LANES) {
                    let (mut from, mut to) =
                        (from.element_ptr(first + i, start), to.wrapping_add(panel * panel_stride + start * width + i));
                    // SAFETY: the mask ends loads at the last column of the panel, which *Range* covers. Stores end at
                    // `width`, which *Width* makes a multiple of LANES, so *Target* covers them. All three are clauses
                    // of the packing contract.
                    unsafe {
                        let mask = V::mask(lanes.saturating_sub(i).min(V::LANES));
                        for _ in 0..steps {
                            V::load_part(from, mask).store(to);
                            (from, to) = (from.wrapping_offset(self.from.depth), to.wrapping_add(width));
                        }
                    }
                }
            }
        }
    }

    /// Packs one panel from a source that is contiguous along k: transposes square blocks in registers.
    ///
    /// # Safety
    ///
    /// - *Range* and *Target* of the packing contract of [`PackPanels`] hold, and `from.depth` is 1.
    /// - *Row length*: `width ≥ max(lanes, lanes_per_panel)`. It need not be a multiple of a vector's length.
    /// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    pub(crate) unsafe fn transpose<V: Vector<Scalar = T>>(&self) {
        let &Self { from, lanes, lanes_per_panel, depth, width, to, .. } = self;
        debug_assert!(from.depth == 1 || depth <= 1, "the stride along k is {} instead of 1", from.depth);
        debug_assert!(
            depth <= 1 || lanes.max(lanes_per_panel) <= width,
            "{lanes} columns, padded to {lanes_per_panel}, do not fit a panel of width {width}"
        );
        let (full_lanes, full_depth) = (lanes - lanes % V::SIDE, depth - depth % V::SIDE);
        // SAFETY: the blocks are within `full_lanes × full_depth`, so *Range*, *Target* and *Row length* of this
        // function cover them. *Row length* also implies `lanes ≤ width` and `lanes_per_panel ≤ width`, which `gather`
        // and `gather_depth` require.
        unsafe {
            // Blocks that share a cache line of a long row are transposed in succession, because rows of C often share
            // a cache set and evict each other.
            let lanes_together = if width > MAX_PANEL_WIDTH { CACHE_LINE / size_of::<T>() } else { V::SIDE };
            for first in (0..full_lanes).step_by(lanes_together) {
                for p in (0..full_depth).step_by(V::SIDE) {
                    for i in (first..full_lanes.min(first + lanes_together)).step_by(V::SIDE) {
                        V::transpose(from.element_ptr(i, p), from.lane, to.add(p * width + i), width as isize);
                    }
                }
            }
            self.gather(full_lanes, 0);
            Self { lanes: full_lanes, ..*self }.gather_depth(full_depth);
        }
    }

    /// Packs the panel columns from `first_lane` and the k indices from `start`, element by element, and writes the
    /// zeros of the padding.
    ///
    /// # Safety
    ///
    /// *Range* and *Target* of the packing contract of [`PackPanels`] hold, and `lanes_per_panel ≤ width`.
    pub(crate) unsafe fn gather(&self, first_lane: usize, start: usize) {
        for p in start..self.depth {
            for i in first_lane..self.lanes_per_panel {
                // SAFETY: reads have `i < lanes` and `p < depth`, which *Range* covers. Writes have `i <
                // lanes_per_panel ≤ width` in panel row `p < depth`, which *Target* covers. Both are clauses of this
                // function.
                unsafe {
                    *self.to.add(p * self.width + i) =
                        if i < self.lanes { *self.from.element_ptr(i, p) } else { T::ZERO };
                }
            }
        }
    }

    /// Packs all panel columns and the k indices from `start`, element by element, without the zeros of the padding.
    ///
    /// # Safety
    ///
    /// *Range* and *Target* of the packing contract of [`PackPanels`] hold, and `lanes ≤ width`.
    unsafe fn gather_depth(&self, start: usize) {
        for p in start..self.depth {
            for i in 0..self.lanes {
                // SAFETY: `i < lanes` and `p < depth`, which *Range* and *Target* of this function cover.
                unsafe { *self.to.add(p * self.width + i) = *self.from.element_ptr(i, p) }
            }
        }
    }
}
