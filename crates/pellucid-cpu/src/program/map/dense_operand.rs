//! The operands of dense maps.

/// The address of a dense operand.
#[derive(Clone, Copy)]
pub(crate) struct DensePtr {
    /// The address of the first element.
    pub(crate) at: *mut u8,
    /// The operand is one value that is broadcast to all elements.
    pub(crate) once: bool,
}

// SAFETY: the fields are plain data, and reading them is no access to the memory. Code that writes through `at` is
// unsafe and rules out data races itself.
unsafe impl Sync for DensePtr {}

impl DensePtr {
    /// Returns an operand of full size.
    #[inline]
    pub(crate) fn full(at: *mut u8) -> DensePtr {
        DensePtr { at, once: false }
    }
}
