//! Operands whose panels are packed once and used by many products.

use super::block_sizes::depth_blocks;
use super::kernels::Kernels;
use super::source::{PackSource, PanelRange, check_panel};
use super::strided::Strided;
use pellucid_ir::Result;
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::Element;
use pellucid_simd::Isa;
use std::ops::{Deref, Range};

/// A view of the packed panels of B[k × n] in the caller's memory.
///
/// Each panel is as wide as the register tile and holds all k indices.
#[derive(Clone, Copy)]
pub struct PackedPanels<T> {
    start: SharedPtr<T>,
    depth: usize,
    width: usize,
}

impl<T: Element> PackedPanels<T> {
    /// Returns the number of elements in the panels of a `lanes` × `depth` (n × k) matrix.
    pub fn packed_len(isa: Isa, (lanes, depth): (usize, usize)) -> usize {
        PackedPanels::len(Kernels::<T>::for_isa(isa), (lanes, depth))
    }

    /// Packs a `lanes` × `depth` (n × k) matrix into `memory`.
    ///
    /// # Safety
    ///
    /// - *Range*: `from` is valid for reads of `lanes × depth` elements, and no thread writes them during the call.
    /// - *Memory*: `memory` is aligned, and valid for reads and writes of [`packed_len`](Self::packed_len) elements,
    ///   which do not overlap the matrix. It stays valid, and no other code writes it, while the panels are used.
    /// - *Isa*: the processor has the instruction set.
    pub unsafe fn pack(
        isa: Isa,
        from: Strided<T>,
        (lanes, depth): (usize, usize),
        memory: SharedPtr<T>,
    ) -> PackedPanels<T> {
        // SAFETY: the caller guarantees *Range*, *Memory* and *Isa*, and `packed_len` is `len`. *Panel* holds for lane
        // 0, and *Lanes* because these are all lanes.
        unsafe { PackedPanels::pack_range(Kernels::<T>::for_isa(isa), from, 0..lanes, depth, memory) }
    }

    /// Returns the number of elements in the panels of a `lanes` × `depth` (n × k) matrix.
    pub(crate) fn len(kernels: &Kernels<T>, (lanes, depth): (usize, usize)) -> usize {
        lanes.next_multiple_of(kernels.width()).saturating_mul(depth)
    }

    /// Packs a range of lanes of a matrix with `depth` k indices into `memory`.
    ///
    /// # Safety
    ///
    /// - *Range*, *Memory* and *Isa* of [`pack`](Self::pack) hold for these lanes. The memory has [`len`](Self::len)
    ///   elements for the number of lanes.
    /// - *Panel*: the first lane is a multiple of the width of a panel.
    /// - *Lanes*: no other lanes of the panels are used.
    pub(crate) unsafe fn pack_range(
        kernels: &Kernels<T>,
        from: Strided<T>,
        lanes: Range<usize>,
        depth: usize,
        memory: SharedPtr<T>,
    ) -> PackedPanels<T> {
        let width = kernels.width();
        debug_assert!(memory.get().is_aligned(), "the memory of the panels is not aligned: {:?}", memory.get());
        debug_assert!(lanes.start.is_multiple_of(width), "lane {} is not the first of a panel", lanes.start);
        let start = SharedPtr(memory.get().wrapping_sub(lanes.start * depth));
        let panels = PackedPanels { start, depth, width };
        for first in lanes.clone().step_by(width) {
            for block in depth_blocks::<T>(depth) {
                let to = panels.panel_ptr(first, block.start);
                let range = PanelRange::new(first..lanes.end.min(first + width), block);
                // SAFETY: the panel contract. *Range* and *Isa* are clauses of this function. *Width* holds because the
                // width is two vectors. *Target* follows from *Memory*, because `len` counts full panels.
                unsafe { from.pack(kernels, range, width, to) }
            }
        }
        panels
    }

    /// Returns the panels without the first `start` k indices.
    pub fn skip(self, start: usize) -> PackedPanels<T> {
        debug_assert!(start <= self.depth, "cannot skip {start} of {} k indices", self.depth);
        PackedPanels { start: SharedPtr(self.start.offset((start * self.width) as isize)), ..self }
    }

    /// Returns the address of the panel that contains lane `first`, at k index `start`.
    fn panel_ptr(&self, first: usize, start: usize) -> *mut T {
        self.start.offset((first / self.width * self.depth * self.width + start * self.width) as isize)
    }
}

/// Packed panels that own their memory.
pub struct OwnedPanels<T> {
    panels: PackedPanels<T>,
    _memory: CpuBuffer,
}

impl<T: Element> OwnedPanels<T> {
    /// Packs a matrix of `size` = (lanes, depth) = (n, k) into new memory.
    ///
    /// # Errors
    ///
    /// Returns an error if the memory cannot be allocated.
    ///
    /// # Safety
    ///
    /// - *Range*: `from` is valid for reads of `lanes × depth` elements, and no thread writes them during the call.
    /// - *Isa*: the processor has the instruction set.
    pub unsafe fn new(isa: Isa, from: Strided<T>, size: (usize, usize)) -> Result<OwnedPanels<T>> {
        let memory = CpuBuffer::scratch(PackedPanels::<T>::packed_len(isa, size).saturating_mul(size_of::<T>()))?;
        let start = SharedPtr(memory.ensure()?.as_ptr().cast());
        // SAFETY: *Range* and *Isa* are clauses of this function. *Memory* holds because the buffer has `packed_len`
        // elements and lives as long as the panels, which own it.
        Ok(OwnedPanels { panels: unsafe { PackedPanels::pack(isa, from, size, start) }, _memory: memory })
    }
}

impl<T> Deref for OwnedPanels<T> {
    type Target = PackedPanels<T>;

    fn deref(&self) -> &PackedPanels<T> {
        &self.panels
    }
}

// SAFETY: `pack` writes every lane for every k index. `pack_rows` writes every k index of every lane. `panel` returns
// panels that `PackedPanels::pack` has initialized, and its *Memory* clause keeps them valid.
unsafe impl<T: Element> PackSource<T> for PackedPanels<T> {
    fn panel(&self, first: usize, start: usize, width: usize) -> Option<*const T> {
        (width == self.width && first.is_multiple_of(width)).then(|| self.panel_ptr(first, start).cast_const())
    }

    #[allow(private_interfaces)]
    unsafe fn pack(&self, kernels: &Kernels<T>, range: PanelRange, width: usize, to: *mut T) {
        let PanelRange { first, lanes, start, depth } = range;
        check_panel(kernels, lanes, width);
        debug_assert!(
            start + depth <= self.depth,
            "k indices {start}..{} exceed the depth {}",
            start + depth,
            self.depth
        );
        for p in 0..depth {
            for i in 0..width {
                let lane = (first + i) % self.width;
                // SAFETY: `i < lanes` and `p < depth` are within the operand (*Range* of the panel contract), so the
                // element is in a panel. The write is within *Target*.
                unsafe {
                    *to.add(p * width + i) = match i < lanes {
                        true => *self.panel_ptr(first + i, start + p).add(lane),
                        false => T::ZERO,
                    };
                }
            }
        }
    }

    #[allow(private_interfaces)]
    unsafe fn pack_rows(&self, _: &Kernels<T>, range: PanelRange, step: usize, to: *mut T) {
        let PanelRange { first, lanes, start, depth } = range;
        debug_assert!(depth <= step, "rows of {depth} elements exceed their stride {step}");
        for (i, p) in (0..lanes).flat_map(|i| (0..depth).map(move |p| (i, p))) {
            // SAFETY: the element is within the operand (*Range* of the row contract), so it is in a panel. The write
            // is within *Target*, because `p < step` (*Stride*).
            unsafe { *to.add(i * step + p) = *self.panel_ptr(first + i, start + p).add((first + i) % self.width) }
        }
    }
}
