//! Operands, and how panels of them are packed.
//!
//! The micro-kernel reads panels: `lanes` rows of A, or columns of B, over one block of the
//! depth. OwnedPanels, a panel is contiguous in the order the kernel reads it,
//! `panel[p·width + i] = operand[first + i, start + p]`, zero for lanes past the last.

use super::kernels::Kernels;
use pellucid_simd::Element;
use pellucid_simd::vector::{Vector, prefetch_run};
use std::ops::Range;

/// A matrix seen as lanes × depth: A[m × k] has its rows as lanes, B[k × n] its columns.
///
/// What a product multiplies is anything that can write such panels: a strided matrix, the
/// windows of a convolution, a half-precision matrix that widens on the way, packed weights.
///
/// # Safety
///
/// `pack` must initialise the whole panel, and `strided` must describe valid memory.
pub unsafe trait Source<T>: Sync {
    /// The operand in place, if it lies in memory as a strided matrix: kernels then read it
    /// without packing where that is faster.
    fn strided(&self) -> Option<Strided<T>> {
        None
    }

    /// The panel of `width` lanes from `first` on, from depth `start` on, if it lies packed already.
    fn panel(&self, _first: usize, _start: usize, _width: usize) -> Option<*const T> {
        None
    }

    /// Writes lanes `first..first + lanes` over depths `start..start + depth` to
    /// `to[p·width + i]`, with zeros in lanes `lanes..width`.
    ///
    /// # Safety
    ///
    /// The *panel contract*: the ranges are within the operand; `lanes ≤ width`; `width` is a multiple of the lanes of a
    /// vector, because whole vectors are stored; `to` is valid for writing `depth · width` elements, which do not overlap
    /// the operand; the machine has the instruction set of `kernels`.
    #[allow(private_interfaces)]
    #[allow(clippy::too_many_arguments, reason = "two ranges, a width and a place")]
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

    /// Whether the depth of a lane lies in runs, so that lanes are better packed as rows.
    fn in_rows(&self) -> bool {
        false
    }

    /// Writes the same elements to `to[i·step + p]`: only for an operand that says [`in_rows`](Self::in_rows).
    ///
    /// # Safety
    ///
    /// The ranges are within the operand; `depth ≤ step`; `to` is valid for writing `lanes · step` elements, which do not
    /// overlap the operand; the machine has the instruction set of `kernels`.
    #[allow(private_interfaces)]
    #[allow(clippy::too_many_arguments, reason = "two ranges, a step and a place")]
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
        unreachable!("the operand is not packed in rows")
    }
}

/// A strided matrix as lanes × depth; strides in elements, of any sign.
#[derive(Clone, Copy, Debug)]
pub struct Strided<T> {
    /// Element (0, 0).
    pub data: *const T,
    /// From one lane to the next.
    pub lane: isize,
    /// From one step of the depth to the next.
    pub depth: isize,
}

// SAFETY: a `Strided` only reads, and whoever makes one vouches that the memory stays unchanged
// for as long as the product runs.
unsafe impl<T: Sync> Sync for Strided<T> {}

impl<T> Strided<T> {
    /// The address of an element.
    #[inline(always)]
    pub(crate) fn at(&self, lane: usize, depth: usize) -> *const T {
        self.data.wrapping_offset(lane as isize * self.lane + depth as isize * self.depth)
    }
}

// SAFETY: `pack` writes every lane of every depth step.
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
        let from = Strided { data: self.at(first, start), ..*self };
        let panel = Panel { from, lanes, each: width, depth, width, to, step: 0 };
        // SAFETY: the panel contract covers one panel of `width` lanes, in whole vectors; `copy` gets contiguous lanes and
        // `turn` a contiguous depth.
        unsafe {
            match self {
                Self { lane: 1, .. } => (kernels.copy)(&panel),
                Self { depth: 1, .. } => (kernels.transpose)(&panel),
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
        debug_assert!(depth <= step && self.depth == 1, "{depth} steps in rows of {step}, {self:?}");
        for i in 0..lanes {
            // SAFETY: each row has room for the depth.
            unsafe { to.add(i * step).copy_from_nonoverlapping(self.at(first + i, start), depth) }
        }
    }
}

/// Checks the part of the panel contract of [`Source::pack`] that can be checked.
#[inline(always)]
pub(crate) fn check_panel<T>(kernels: &Kernels<T>, lanes: usize, width: usize) {
    debug_assert!(
        lanes <= width && width.is_multiple_of(kernels.lanes),
        "a panel of {lanes} lanes has a width of {width}: whole vectors of {} are stored",
        kernels.lanes
    );
}

/// Packs neighbouring panels of `each` lanes: panel s, as [`Source::pack`] does, to `to + s·step`.
///
/// # Safety
///
/// The panel contract of [`Source::pack`] holds for every panel, and panels do not overlap: `step ≥ depth · width` if there
/// are several.
#[allow(clippy::too_many_arguments, reason = "two ranges, their parts, and places")]
pub(crate) unsafe fn pack_panels<T: Element>(
    source: &dyn Source<T>,
    kernels: &Kernels<T>,
    lanes: Range<usize>,
    each: usize,
    depth: Range<usize>,
    width: usize,
    to: *mut T,
    step: usize,
) {
    check_panel(kernels, each.min(lanes.len()), width);
    debug_assert!(each > 0 && (lanes.len() <= each || step >= depth.len() * width), "panels overlap");
    if let Some(from @ Strided { lane: 1, .. }) = source.strided()
        && depth.len() >= DEEP
    {
        let from = Strided { data: from.at(lanes.start, depth.start), ..from };
        let panels = Panel { from, lanes: lanes.len(), each, depth: depth.len(), width, to, step };
        // SAFETY: the panel contract holds for every panel, and lanes are contiguous.
        return unsafe { (kernels.copy)(&panels) };
    }
    for (s, first) in lanes.clone().step_by(each).enumerate() {
        let lanes = each.min(lanes.end - first);
        // SAFETY: the panel contract holds for every panel.
        unsafe { source.pack(kernels, first, lanes, depth.start, depth.len(), width, to.add(s * step)) }
    }
}

/// PackedPanels to pack from a strided matrix: `lanes × depth`, into rows of `width`. One panel, filled up to `each` lanes, or,
/// where lanes are contiguous, several of `each` lanes, `step` apart.
pub(crate) struct Panel<T> {
    from: Strided<T>,
    lanes: usize,
    each: usize,
    depth: usize,
    width: usize,
    to: *mut T,
    step: usize,
}

/// Depths at which panels are packed together: less is in the cache soon enough.
const DEEP: usize = 128;

/// Steps of the depth that are copied together: of rows a power of two apart more would evict one another.
const TOGETHER: usize = 8;

impl<T: Element> Panel<T> {
    /// A matrix whose depth is contiguous, to be transposed: `to[p·row + i] = from[i, p]`, with zeros in lanes
    /// `lanes..filled` of each row.
    pub(crate) fn to_transpose(
        from: Strided<T>,
        (lanes, filled): (usize, usize),
        depth: usize,
        to: *mut T,
        row: usize,
    ) -> Panel<T> {
        Panel { from, lanes, each: filled, depth, width: row, to, step: 0 }
    }

    /// Packs lanes that are contiguous: rows are copied. Neighbouring panels share the cache lines and the pages of a row, so a
    /// few rows are dealt out to all panels at a time.
    ///
    /// # Safety
    ///
    /// The panel contract of [`Source::pack`] holds for every panel, that of [`Vector`] for the instruction set, and
    /// `from.lane` is 1.
    #[inline(always)]
    pub(crate) unsafe fn copy<V: Vector<Scalar = T>>(&self) {
        let &Self { from, lanes, each, depth, width, to, step } = self;
        debug_assert!(from.lane == 1 || lanes <= 1, "lanes are {} apart", from.lane);
        debug_assert!(each.min(lanes) <= width && width.is_multiple_of(V::LANES), "{lanes} lanes in a row of {width}");
        // Several panels can have as many lanes together as one row has elements.
        if lanes == width && lanes <= each && width == 2 * V::LANES {
            for p in 0..depth {
                let (from, to) = (from.at(0, p), to.wrapping_add(p * width));
                // SAFETY: a whole panel of two vectors.
                unsafe {
                    V::load(from).store(to);
                    V::load(from.add(V::LANES)).store(to.add(V::LANES));
                }
            }
            return;
        }
        for start in (0..depth).step_by(TOGETHER) {
            let rows = TOGETHER.min(depth - start);
            for p in start + 2 * TOGETHER..depth.min(start + 2 * TOGETHER + rows) {
                prefetch_run(from.at(0, p), lanes);
            }
            for (panel, first) in (0..lanes).step_by(each).enumerate() {
                let lanes = each.min(lanes - first);
                for i in (0..width).step_by(V::LANES) {
                    let (mut from, mut to) =
                        (from.at(first + i, start), to.wrapping_add(panel * step + start * width + i));
                    // SAFETY: loads stop at the panel's lanes, stores at `width`.
                    unsafe {
                        let mask = V::mask(lanes.saturating_sub(i).min(V::LANES));
                        for _ in 0..rows {
                            V::load_part(from, mask).store(to);
                            (from, to) = (from.wrapping_offset(self.from.depth), to.wrapping_add(width));
                        }
                    }
                }
            }
        }
    }

    /// Packs lanes whose depth is contiguous: square blocks are transposed in registers.
    ///
    /// # Safety
    ///
    /// As for [`Source::pack`], but that the width is any number that is not less than the lanes and those filled with
    /// zeros; that of [`Vector`] for the instruction set; and `from.depth` is 1.
    #[inline(always)]
    pub(crate) unsafe fn transpose<V: Vector<Scalar = T>>(&self) {
        let &Self { from, lanes, each, depth, width, to, .. } = self;
        debug_assert!(from.depth == 1 || depth <= 1, "steps of the depth are {} apart", from.depth);
        debug_assert!(depth <= 1 || lanes.max(each) <= width, "{lanes} lanes of {each} in a row of {width}");
        let (whole_lanes, whole_depth) = (lanes - lanes % V::SIDE, depth - depth % V::SIDE);
        // SAFETY: blocks lie in `whole_lanes × whole_depth`; `gather` does the rest.
        unsafe {
            for i in (0..whole_lanes).step_by(V::SIDE) {
                for p in (0..whole_depth).step_by(V::SIDE) {
                    V::transpose(from.at(i, p), from.lane, to.add(p * width + i), width);
                }
            }
            self.gather(whole_lanes, 0);
            Self { lanes: whole_lanes, ..*self }.gather_depth(whole_depth);
        }
    }

    /// Packs lanes from `first_lane` on, all depths from `start`, number by number, and the zeros.
    ///
    /// # Safety
    ///
    /// As for [`Source::pack`].
    unsafe fn gather(&self, first_lane: usize, start: usize) {
        for p in start..self.depth {
            for i in first_lane..self.each {
                // SAFETY: reads stop at `lanes`, writes at `each`.
                unsafe {
                    *self.to.add(p * self.width + i) = if i < self.lanes { *self.from.at(i, p) } else { T::ZERO };
                }
            }
        }
    }

    /// Packs the lanes that exist, depths from `start` on, without the zeros.
    ///
    /// # Safety
    ///
    /// As for [`Source::pack`].
    unsafe fn gather_depth(&self, start: usize) {
        for p in start..self.depth {
            for i in 0..self.lanes {
                // SAFETY: `i` and `p` lie in the panel.
                unsafe { *self.to.add(p * self.width + i) = *self.from.at(i, p) }
            }
        }
    }
}
