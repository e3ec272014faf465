//! Operands, and the packing of their panels.
//!
//! The micro-kernel reads panels: `lanes` rows of A, or columns of B, over one block of the depth. A packed panel is
//! contiguous in the order in which the kernel reads it: `panel[p·width + i] = operand[first + i, start + p]`, with
//! zeros in the lanes past the last.

use super::kernels::Kernels;
use pellucid_simd::Element;
use pellucid_simd::vector::{Vector, prefetch_run};
use std::ops::Range;

/// An operand of a product, as a matrix of lanes × depth: the lanes of A[m × k] are its rows, those of B[k × n] its
/// columns.
///
/// Any type that can write panels is an operand: a strided matrix, the windows of a convolution, a half-precision
/// matrix that is widened during packing, packed weights.
///
/// # Safety
///
/// - `pack` initialises the whole panel, and `pack_rows` the depth of every lane.
/// - The memory that `strided` and `panel` describe is valid for reads, in the layout that they document.
pub unsafe trait Source<T>: Sync {
    /// Returns the operand as a strided matrix if memory stores it as one. Kernels then read it without packing where
    /// that is faster.
    fn strided(&self) -> Option<Strided<T>> {
        None
    }

    /// Returns the packed panel of the `width` lanes from `first` and of the depth from `start`, if the operand stores
    /// it.
    fn panel(&self, _first: usize, _start: usize, _width: usize) -> Option<*const T> {
        None
    }

    /// Packs the lanes `first..first + lanes` over the depth `start..start + depth` to `to[p·width + i]`, with zeros in
    /// the lanes `lanes..width`.
    ///
    /// # Safety
    ///
    /// The *panel contract*:
    ///
    /// - *Range*: the lanes and the depth are within the operand, whose memory is valid for reads and not written
    ///   meanwhile.
    /// - *Width*: `lanes ≤ width`, and `width` is a multiple of the lanes of a vector, because whole vectors are
    ///   stored.
    /// - *Target*: `to` is valid for writes of `depth · width` elements, which do not overlap the operand.
    /// - *Isa*: the processor has the instruction set of `kernels`.
    #[allow(private_interfaces)]
    unsafe fn pack(
        &self,
        kernels: &Kernels<T>,
        first: usize,
        lanes: usize,
        start: usize,
        depth: usize,
        width: usize,
        to: *mut T,
    );

    /// Returns true if the depth of a lane is stored in runs, so that packing lanes as rows is faster.
    fn in_rows(&self) -> bool {
        false
    }

    /// Packs the same elements to `to[i·step + p]`, one row for each lane.
    ///
    /// # Safety
    ///
    /// The *row contract*:
    ///
    /// - *Range*: the lanes and the depth are within the operand, whose memory is valid for reads and not written
    ///   meanwhile.
    /// - *Stride*: `depth ≤ step`.
    /// - *Target*: `to` is valid for writes of `lanes · step` elements, which do not overlap the operand.
    /// - *Isa*: the processor has the instruction set of `kernels`.
    ///
    /// # Panics
    ///
    /// The default method panics: only operands whose [`in_rows`](Self::in_rows) returns true support rows.
    #[allow(private_interfaces)]
    unsafe fn pack_rows(
        &self,
        _: &Kernels<T>,
        _first: usize,
        _lanes: usize,
        _start: usize,
        _depth: usize,
        _step: usize,
        _to: *mut T,
    ) {
        unreachable!("this operand does not support packing in rows")
    }
}

/// A strided matrix of lanes × depth. Strides are in elements and have any sign.
#[derive(Clone, Copy, Debug)]
pub struct Strided<T> {
    /// Element (0, 0).
    pub data: *const T,
    /// Stride between lanes.
    pub lane: isize,
    /// Stride between steps of the depth.
    pub depth: isize,
}

// SAFETY: a `Strided` has no safe method that reads memory. The unsafe functions that read through it require that no
// thread writes the memory meanwhile (*Range* of the panel contract, *Operands* of `multiply`).
unsafe impl<T: Sync> Sync for Strided<T> {}

impl<T> Strided<T> {
    /// Returns the address of an element.
    #[inline(always)]
    pub(crate) fn element_ptr(&self, lane: usize, depth: usize) -> *const T {
        self.data.wrapping_offset(lane as isize * self.lane + depth as isize * self.depth)
    }
}

// SAFETY: `pack` writes every lane of every step of the depth, `pack_rows` the depth of every lane, and `strided`
// returns the matrix itself.
unsafe impl<T: Element> Source<T> for Strided<T> {
    #[inline]
    fn strided(&self) -> Option<Strided<T>> {
        Some(*self)
    }

    #[allow(private_interfaces)]
    unsafe fn pack(
        &self,
        kernels: &Kernels<T>,
        first: usize,
        lanes: usize,
        start: usize,
        depth: usize,
        width: usize,
        to: *mut T,
    ) {
        check_panel(kernels, lanes, width);
        let from = Strided { data: self.element_ptr(first, start), ..*self };
        let panel = PackPanels { from, lanes, lanes_per_panel: width, depth, width, to, panel_stride: 0 };
        // SAFETY: the caller guarantees the panel contract, which is the packing contract of one panel of `width`
        // lanes. The lanes are contiguous in the call of `copy_panels`, the depth in that of `transpose_panel`.
        unsafe {
            match self {
                Self { lane: 1, .. } => (kernels.copy_panels)(&panel),
                Self { depth: 1, .. } => (kernels.transpose_panel)(&panel),
                _ => panel.gather(0, 0),
            }
        }
    }

    fn in_rows(&self) -> bool {
        self.depth == 1
    }

    #[allow(private_interfaces)]
    unsafe fn pack_rows(
        &self,
        _: &Kernels<T>,
        first: usize,
        lanes: usize,
        start: usize,
        depth: usize,
        step: usize,
        to: *mut T,
    ) {
        debug_assert!(depth <= step && self.depth == 1, "{depth} elements in rows of stride {step}, {self:?}");
        for i in 0..lanes {
            // SAFETY: *Stride* and *Target* of the row contract cover `depth` elements from `i · step`, and *Range*
            // covers the lane, whose depth is contiguous.
            unsafe { to.add(i * step).copy_from_nonoverlapping(self.element_ptr(first + i, start), depth) }
        }
    }
}

/// Checks *Width* of the panel contract of [`Source::pack`].
#[inline(always)]
pub(crate) fn check_panel<T>(kernels: &Kernels<T>, lanes: usize, width: usize) {
    debug_assert!(
        lanes <= width && width.is_multiple_of(kernels.lanes),
        "the width {width} of a panel is less than its {lanes} lanes, or not a multiple of {} (a vector)",
        kernels.lanes
    );
}

/// Packs consecutive panels of `lanes_per_panel` lanes, each as [`Source::pack`] does: panel s to `to +
/// s·panel_stride`.
///
/// # Safety
///
/// - The panel contract of [`Source::pack`] holds for every panel.
/// - *Disjoint panels*: `panel_stride ≥ depth · width` if there are several panels.
pub(crate) unsafe fn pack_panels<T: Element>(
    source: &dyn Source<T>,
    kernels: &Kernels<T>,
    lanes: Range<usize>,
    lanes_per_panel: usize,
    depth: Range<usize>,
    width: usize,
    to: *mut T,
    panel_stride: usize,
) {
    check_panel(kernels, lanes_per_panel.min(lanes.len()), width);
    debug_assert!(
        lanes_per_panel > 0 && (lanes.len() <= lanes_per_panel || panel_stride >= depth.len() * width),
        "packed panels overlap"
    );
    if let Some(from @ Strided { lane: 1, .. }) = source.strided()
        && depth.len() >= MIN_JOINT_DEPTH
    {
        let from = Strided { data: from.element_ptr(lanes.start, depth.start), ..from };
        let panels =
            PackPanels { from, lanes: lanes.len(), lanes_per_panel, depth: depth.len(), width, to, panel_stride };
        // SAFETY: the caller guarantees the panel contract for every panel and *Disjoint panels*, which together are
        // the packing contract. Lanes are contiguous (the pattern above).
        return unsafe { (kernels.copy_panels)(&panels) };
    }
    for (s, first) in lanes.clone().step_by(lanes_per_panel).enumerate() {
        let lanes = lanes_per_panel.min(lanes.end - first);
        // SAFETY: the caller guarantees the panel contract for panel s.
        unsafe { source.pack(kernels, first, lanes, depth.start, depth.len(), width, to.add(s * panel_stride)) }
    }
}

/// A packing of `lanes × depth` of a strided matrix into rows of `width`: one panel, padded with zeros to
/// `lanes_per_panel` lanes, or, if lanes are contiguous, several panels of `lanes_per_panel` lanes.
///
/// # Packing contract
///
/// - *Range*: `from` is valid for reads of `lanes × depth` elements, and no thread writes them meanwhile.
/// - *Target*: `to` is valid for writes of all panels, which overlap neither each other nor the source. A panel is
///   `depth` rows of `width` elements.
/// - *Width*: the lanes of a panel are at most `width`, which is a multiple of the lanes of a vector.
pub(crate) struct PackPanels<T> {
    from: Strided<T>,
    lanes: usize,
    lanes_per_panel: usize,
    depth: usize,
    width: usize,
    to: *mut T,
    panel_stride: usize,
}

/// The least depth at which panels are packed together. For smaller ones, cache lines that panels share stay in the
/// cache between the panels anyway.
const MIN_JOINT_DEPTH: usize = 128;

/// The number of steps of the depth that are copied together. Rows whose stride is a power of two share a cache set, so
/// that more of them would evict each other.
const STEPS_PER_GROUP: usize = 8;

impl<T: Element> PackPanels<T> {
    /// Returns the transposition of a matrix whose depth is contiguous: `to[p·row_stride + i] = from[i, p]`, with zeros
    /// in the lanes `lanes..padded_lanes` of each row.
    pub(crate) fn to_transpose(
        from: Strided<T>,
        (lanes, padded_lanes): (usize, usize),
        depth: usize,
        to: *mut T,
        row_stride: usize,
    ) -> PackPanels<T> {
        PackPanels { from, lanes, lanes_per_panel: padded_lanes, depth, width: row_stride, to, panel_stride: 0 }
    }

    /// Packs contiguous lanes by copying rows.
    ///
    /// Consecutive panels share the cache lines and the pages of a row. Therefore a few rows at a time are distributed
    /// to all panels.
    ///
    /// # Safety
    ///
    /// - The packing contract of [`PackPanels`] holds, and `from.lane` is 1.
    /// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    pub(crate) unsafe fn copy<V: Vector<Scalar = T>>(&self) {
        let &Self { from, lanes, lanes_per_panel, depth, width, to, panel_stride } = self;
        debug_assert!(from.lane == 1 || lanes <= 1, "lanes have the stride {} instead of 1", from.lane);
        debug_assert!(
            lanes_per_panel.min(lanes) <= width && width.is_multiple_of(V::LANES),
            "{lanes} lanes in a row of {width}"
        );
        // The second condition excludes several panels whose lanes together are as many as a row has elements.
        if lanes == width && lanes <= lanes_per_panel && width == 2 * V::LANES {
            for p in 0..depth {
                let (from, to) = (from.element_ptr(0, p), to.wrapping_add(p * width));
                // SAFETY: a row of the source and of the panel is exactly two vectors (*Range*, *Target*).
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
                    // SAFETY: the mask ends loads at the panel's lanes (*Range*). Stores end at `width`, which is a
                    // multiple of LANES (*Width*), so they stay in the panel (*Target*).
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

    /// Packs one panel of lanes whose depth is contiguous: transposes square blocks in registers.
    ///
    /// # Safety
    ///
    /// - *Range* and *Target* of the packing contract of [`PackPanels`] hold, and `from.depth` is 1.
    /// - *Row length*: `width` is at least the lanes with their padding. It need not be a multiple of a vector.
    /// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    pub(crate) unsafe fn transpose<V: Vector<Scalar = T>>(&self) {
        let &Self { from, lanes, lanes_per_panel, depth, width, to, .. } = self;
        debug_assert!(from.depth == 1 || depth <= 1, "the depth has the stride {} instead of 1", from.depth);
        debug_assert!(
            depth <= 1 || lanes.max(lanes_per_panel) <= width,
            "{lanes} lanes, padded to {lanes_per_panel}, in a row of {width}"
        );
        let (whole_lanes, whole_depth) = (lanes - lanes % V::SIDE, depth - depth % V::SIDE);
        // SAFETY: the blocks are within `whole_lanes × whole_depth`, so *Range*, *Target* and *Row length* cover them.
        // The remainders that `gather` and `gather_depth` pack are within `lanes_per_panel × depth`.
        unsafe {
            for i in (0..whole_lanes).step_by(V::SIDE) {
                for p in (0..whole_depth).step_by(V::SIDE) {
                    V::transpose(from.element_ptr(i, p), from.lane, to.add(p * width + i), width);
                }
            }
            self.gather(whole_lanes, 0);
            Self { lanes: whole_lanes, ..*self }.gather_depth(whole_depth);
        }
    }

    /// Packs the lanes from `first_lane` over the depth from `start`, element by element, with the zeros of the
    /// padding.
    ///
    /// # Safety
    ///
    /// *Range* and *Target* of the packing contract of [`PackPanels`] hold, and `lanes_per_panel ≤ width`.
    unsafe fn gather(&self, first_lane: usize, start: usize) {
        for p in start..self.depth {
            for i in first_lane..self.lanes_per_panel {
                // SAFETY: reads are below `lanes` (*Range*), writes below `lanes_per_panel` of row `p < depth`
                // (*Target*).
                unsafe {
                    *self.to.add(p * self.width + i) =
                        if i < self.lanes { *self.from.element_ptr(i, p) } else { T::ZERO };
                }
            }
        }
    }

    /// Packs all lanes over the depth from `start`, element by element, without the zeros of the padding.
    ///
    /// # Safety
    ///
    /// *Range* and *Target* of the packing contract of [`PackPanels`] hold, and `lanes ≤ width`.
    unsafe fn gather_depth(&self, start: usize) {
        for p in start..self.depth {
            for i in 0..self.lanes {
                // SAFETY: `i < lanes` and `p < depth`, which *Range* and *Target* cover.
                unsafe { *self.to.add(p * self.width + i) = *self.from.element_ptr(i, p) }
            }
        }
    }
}
