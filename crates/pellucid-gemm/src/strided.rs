//! Strided matrices as operands of a product.

/// A strided operand of a product. Strides are in elements and have any sign.
///
/// Index `lane` is a row of A[m × k] or a column of B[k × n]; index `depth` is the k index of A or B.
#[derive(Clone, Copy, Debug)]
pub struct Strided<T> {
    /// Element (0, 0).
    pub data: *const T,
    /// The stride between rows of A, or between columns of B.
    pub lane: isize,
    /// The stride along k: between columns of A, or between rows of B.
    pub depth: isize,
}

// SAFETY: a `Strided` has no safe method that reads memory. The unsafe functions that read through it require that no
// thread writes the memory during the call (*Range* of the panel contract, *Operands* of `multiply`).
unsafe impl<T: Sync> Sync for Strided<T> {}

impl<T> Strided<T> {
    /// Returns the address of the element with the indices `lane` (row of A or column of B) and `depth` (k index).
    #[inline(always)]
    pub(crate) fn element_ptr(&self, lane: usize, depth: usize) -> *const T {
        self.data.wrapping_offset(lane as isize * self.lane + depth as isize * self.depth)
    }
}
