//! An operand whose panels are packed once, for many products.

use super::block::depth_blocks;
use super::element::Element;
use super::level::{Kernels, Level};
use super::pack::{Source, Strided};
use crate::buffer::CpuBuffer;
use crate::threads::Ptr;
use pellucid_ir::Result;

/// B[k × n] in panels as wide as the register tile, each with its whole depth.
pub(crate) struct Packed<T> {
    panels: Ptr<T>,
    depth: usize,
    width: usize,
    _room: CpuBuffer,
}

impl<T: Element> Packed<T> {
    /// Packs a matrix of so many lanes (n) and so much depth (k).
    ///
    /// # Safety
    ///
    /// The matrix has so many; the machine has the instruction set.
    pub(crate) unsafe fn new(level: Level, from: Strided<T>, (lanes, depth): (usize, usize)) -> Result<Packed<T>> {
        let kernels = T::kernels(level);
        let width = kernels.width();
        let bytes = lanes.next_multiple_of(width).saturating_mul(depth).saturating_mul(size_of::<T>());
        let room = CpuBuffer::scratch(bytes)?;
        let packed = Packed { panels: Ptr(room.ensure()?.as_ptr().cast()), depth, width, _room: room };
        for first in (0..lanes).step_by(width) {
            for block in depth_blocks(depth) {
                let to = packed.at(first, block.start);
                // SAFETY: the caller's; there is room for whole panels.
                unsafe { from.pack(kernels, first, width.min(lanes - first), block.start, block.len(), width, to) }
            }
        }
        Ok(packed)
    }

    /// The panel of lane `first`, from a step of the depth on.
    fn at(&self, first: usize, start: usize) -> *mut T {
        self.panels.at((first / self.width * self.depth * self.width + start * self.width) as isize)
    }
}

// SAFETY: `pack` writes every lane of every step.
unsafe impl<T: Element> Source<T> for Packed<T> {
    fn panel(&self, first: usize, start: usize, width: usize) -> Option<*const T> {
        (width == self.width && first.is_multiple_of(width)).then(|| self.at(first, start).cast_const())
    }

    #[allow(private_interfaces)]
    unsafe fn pack(
        &self,
        _: &Kernels<T>,
        first: usize,
        lanes: usize,
        start: usize,
        depth: usize,
        width: usize,
        to: *mut T,
    ) {
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
