//! Strided matrices of lanes × depth.

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
