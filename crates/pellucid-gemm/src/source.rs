//! Operands of a product ([`PackSource`]), and the panels into which they are packed.
//!
//! The micro-kernel reads panels: `lanes` rows of A, or columns of B, over one block of k. A packed panel is
//! contiguous in the order in which the kernel reads it: `panel[p·width + i] = operand[first + i, start + p]`, with
//! zeros in the lanes past the last.

use super::kernels::Kernels;
use super::pack::PackPanels;
use super::strided::Strided;
use pellucid_simd::Element;
use std::ops::Range;

/// The part of an operand that one panel holds: `lanes` lanes from `first`, over `depth` k indices from
/// `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanelRange {
    /// The first lane.
    pub first: usize,
    /// The number of lanes.
    pub lanes: usize,
    /// The first k index.
    pub start: usize,
    /// The number of k indices.
    pub depth: usize,
}

impl PanelRange {
    /// Returns the part of an operand with the given lanes and k indices.
    #[inline(always)]
    pub fn new(lanes: Range<usize>, depth: Range<usize>) -> PanelRange {
        PanelRange { first: lanes.start, lanes: lanes.len(), start: depth.start, depth: depth.len() }
    }
}

/// An operand of a product, as a matrix of lanes × k indices: the lanes of A[m × k] are its rows, and the lanes of B[k
/// × n] its columns.
///
/// Any type that can write panels is an operand: a strided matrix, the windows of a convolution, a half-precision
/// matrix that is widened during packing, packed weights.
///
/// # Safety
///
/// - `pack` initializes the entire panel, and `pack_rows` initializes all k indices of every lane.
/// - The memory that `strided` and `panel` describe is valid for reads, in the layout that they document.
pub unsafe trait PackSource<T>: Sync {
    /// Returns the operand as a strided matrix if it is stored as one. Kernels then read it without packing where that
    /// is faster.
    fn strided(&self) -> Option<Strided<T>> {
        None
    }

    /// Returns the packed panel of the `width` lanes from `first` and of the k indices from `start`, if the operand
    /// stores it.
    fn panel(&self, _first: usize, _start: usize, _width: usize) -> Option<*const T> {
        None
    }

    /// Packs a part of the operand to `to[p·width + i]`, with zeros in the lanes `lanes..width`.
    ///
    /// # Safety
    ///
    /// The *panel contract*:
    ///
    /// - *Range*: the lanes and the k indices are within the operand, whose memory is valid for reads and not written
    ///   during the call.
    /// - *Width*: `lanes ≤ width`, and `width` is a multiple of the lanes of a vector, because full vectors are stored.
    /// - *Target*: `to` is valid for writes of `depth · width` elements, which do not overlap the operand.
    /// - *Isa*: the processor has the instruction set of `kernels`.
    #[allow(private_interfaces)]
    unsafe fn pack(&self, kernels: &Kernels<T>, range: PanelRange, width: usize, to: *mut T);

    /// Returns true if the k indices of a lane are stored in contiguous runs, so that packing lanes as rows is faster.
    fn in_rows(&self) -> bool {
        false
    }

    /// Packs a part of the operand to `to[i·step + p]`, one row for each lane.
    ///
    /// # Safety
    ///
    /// The *row contract*:
    ///
    /// - *Range*: the lanes and the k indices are within the operand, whose memory is valid for reads and not written
    ///   during the call.
    /// - *Stride*: `depth ≤ step`.
    /// - *Target*: `to` is valid for writes of `lanes · step` elements, which do not overlap the operand.
    /// - *Isa*: the processor has the instruction set of `kernels`.
    #[allow(private_interfaces)]
    unsafe fn pack_rows(&self, kernels: &Kernels<T>, range: PanelRange, step: usize, to: *mut T);
}

// SAFETY: `pack` writes every lane of every k index, `pack_rows` all k indices of every lane, and `strided`
// returns the matrix itself.
unsafe impl<T: Element> PackSource<T> for Strided<T> {
    #[inline]
    fn strided(&self) -> Option<Strided<T>> {
        Some(*self)
    }

    #[allow(private_interfaces)]
    unsafe fn pack(&self, kernels: &Kernels<T>, range: PanelRange, width: usize, to: *mut T) {
        let PanelRange { first, lanes, start, depth } = range;
        check_panel(kernels, lanes, width);
        let from = Strided { data: self.element_ptr(first, start), ..*self };
        let panel = PackPanels { from, lanes, lanes_per_panel: width, depth, width, to, panel_stride: 0 };
        // SAFETY: the caller guarantees the panel contract, which is the packing contract of one panel of `width`
        // lanes. The lanes are contiguous in the call of `copy_panels`, and the k indices in the call of
        // `transpose_panel`.
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
    unsafe fn pack_rows(&self, kernels: &Kernels<T>, range: PanelRange, step: usize, to: *mut T) {
        let PanelRange { first, lanes, start, depth } = range;
        debug_assert!(depth <= step, "rows of {depth} elements exceed their stride {step}");
        // In a panel of the transpose, the k indices are the lanes.
        let transpose = Strided { data: self.element_ptr(first, start), lane: self.depth, depth: self.lane };
        let panel = PackPanels::to_transpose(transpose, (depth, depth), lanes, to, step);
        // SAFETY: *Stride* and *Target* of the row contract cover `depth` elements from `i · step` for each lane i, and
        // *Range* covers the lanes. So they imply the contracts of a panel of the transpose, whose lanes fit its width.
        // The caller guarantees *Isa*.
        unsafe {
            match self {
                Self { depth: 1, .. } => {
                    for i in 0..lanes {
                        to.add(i * step).copy_from_nonoverlapping(self.element_ptr(first + i, start), depth);
                    }
                }
                Self { lane: 1, .. } => (kernels.transpose_panel)(&panel),
                _ => panel.gather(0, 0),
            }
        }
    }
}

/// Checks *Width* of the panel contract of [`PackSource::pack`].
#[inline(always)]
pub(crate) fn check_panel<T>(kernels: &Kernels<T>, lanes: usize, width: usize) {
    debug_assert!(
        lanes <= width && width.is_multiple_of(kernels.lanes),
        "the width {width} of a panel is less than its {lanes} lanes, or not a multiple of {} (a vector)",
        kernels.lanes
    );
}

/// The smallest k at which panels are packed together. For a smaller k, cache lines that panels share stay in the cache
/// from one panel to the next.
const MIN_JOINT_DEPTH: usize = 128;

/// Packs consecutive panels of `lanes_per_panel` lanes, each as [`PackSource::pack`] does: panel s to `to +
/// s·panel_stride`.
///
/// # Safety
///
/// - The panel contract of [`PackSource::pack`] holds for every panel.
/// - *Disjoint panels*: `panel_stride ≥ depth · width` if there are several panels.
pub(crate) unsafe fn pack_panels<T: Element>(
    source: &dyn PackSource<T>,
    kernels: &Kernels<T>,
    range: PanelRange,
    lanes_per_panel: usize,
    width: usize,
    to: *mut T,
    panel_stride: usize,
) {
    let PanelRange { first, lanes, start, depth } = range;
    check_panel(kernels, lanes_per_panel.min(lanes), width);
    debug_assert!(
        lanes_per_panel > 0 && (lanes <= lanes_per_panel || panel_stride >= depth * width),
        "packed panels overlap: their stride {panel_stride} is less than {depth} · {width}"
    );
    if let Some(from @ Strided { lane: 1, .. }) = source.strided()
        && depth >= MIN_JOINT_DEPTH
    {
        let from = Strided { data: from.element_ptr(first, start), ..from };
        let panels = PackPanels { from, lanes, lanes_per_panel, depth, width, to, panel_stride };
        // SAFETY: the caller guarantees the panel contract for every panel and *Disjoint panels*, which together are
        // the packing contract. Lanes are contiguous (the pattern above).
        return unsafe { (kernels.copy_panels)(&panels) };
    }
    for (s, i) in (0..lanes).step_by(lanes_per_panel).enumerate() {
        let panel = PanelRange { first: first + i, lanes: lanes_per_panel.min(lanes - i), ..range };
        // SAFETY: the caller guarantees the panel contract for panel s.
        unsafe { source.pack(kernels, panel, width, to.add(s * panel_stride)) }
    }
}
