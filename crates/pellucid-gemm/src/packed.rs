//! An operand whose panels are packed once, for many products.

use super::block::depth_blocks;
use super::kernels::Kernels;
use super::pack::{Source, Strided, check_panel};
use pellucid_ir::Result;
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::Element;
use pellucid_simd::Isa;
use std::ops::Deref;

/// B[k × n] in panels as wide as the register tile, each with its whole depth, in memory of somebody else.
#[derive(Clone, Copy)]
pub struct PackedPanels<T> {
    start: SharedPtr<T>,
    depth: usize,
    width: usize,
}

impl<T: Element> PackedPanels<T> {
    /// How many numbers a matrix of so many lanes (n) and so much depth (k) fills.
    pub fn room(isa: Isa, (lanes, depth): (usize, usize)) -> usize {
        lanes.next_multiple_of(Kernels::<T>::of(isa).width()).saturating_mul(depth)
    }

    /// Packs a matrix of so many lanes and so much depth.
    ///
    /// # Safety
    ///
    /// The matrix has so many; there is [`room`](Self::room) for them, while the panels are used; the machine has the
    /// instruction set.
    pub unsafe fn pack(
        isa: Isa,
        from: Strided<T>,
        (lanes, depth): (usize, usize),
        room: SharedPtr<T>,
    ) -> PackedPanels<T> {
        let kernels = Kernels::<T>::of(isa);
        let width = kernels.width();
        debug_assert!(room.get().is_aligned(), "{:?}", room.get());
        let panels = PackedPanels { start: room, depth, width };
        for first in (0..lanes).step_by(width) {
            for block in depth_blocks(depth) {
                let to = panels.at(first, block.start);
                // SAFETY: the caller's; there is room for whole panels.
                unsafe { from.pack(kernels, first, width.min(lanes - first), block.start, block.len(), width, to) }
            }
        }
        panels
    }

    /// The same without the first steps of the depth.
    pub fn after(self, start: usize) -> PackedPanels<T> {
        debug_assert!(start <= self.depth, "{start} of {} steps", self.depth);
        PackedPanels { start: SharedPtr(self.start.at((start * self.width) as isize)), ..self }
    }

    /// The panel of lane `first`, from a step of the depth on.
    fn at(&self, first: usize, start: usize) -> *mut T {
        self.start.at((first / self.width * self.depth * self.width + start * self.width) as isize)
    }
}

/// PackedPanels that own their memory.
pub struct OwnedPanels<T> {
    panels: PackedPanels<T>,
    _room: CpuBuffer,
}

impl<T: Element> OwnedPanels<T> {
    /// Packs a matrix of so many lanes (n) and so much depth (k).
    ///
    /// # Safety
    ///
    /// The matrix has so many; the machine has the instruction set.
    pub unsafe fn new(isa: Isa, from: Strided<T>, size: (usize, usize)) -> Result<OwnedPanels<T>> {
        let room = CpuBuffer::scratch(PackedPanels::<T>::room(isa, size).saturating_mul(size_of::<T>()))?;
        let start = SharedPtr(room.ensure()?.as_ptr().cast());
        // SAFETY: the caller's; the room is as large as it must be, and goes with the panels.
        Ok(OwnedPanels { panels: unsafe { PackedPanels::pack(isa, from, size, start) }, _room: room })
    }
}

impl<T> Deref for OwnedPanels<T> {
    type Target = PackedPanels<T>;

    fn deref(&self) -> &PackedPanels<T> {
        &self.panels
    }
}

// SAFETY: `pack` writes every lane of every step.
unsafe impl<T: Element> Source<T> for PackedPanels<T> {
    fn panel(&self, first: usize, start: usize, width: usize) -> Option<*const T> {
        (width == self.width && first.is_multiple_of(width)).then(|| self.at(first, start).cast_const())
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
        debug_assert!(start + depth <= self.depth, "steps {start} to {} of {}", start + depth, self.depth);
        for p in 0..depth {
            for i in 0..width {
                let lane = (first + i) % self.width;
                // SAFETY: the caller's; lanes that are there lie in a panel.
                unsafe {
                    *to.add(p * width + i) = match i < lanes {
                        true => *self.at(first + i, start + p).add(lane),
                        false => T::ZERO,
                    };
                }
            }
        }
    }
}
