//! The operands of dense maps.

/// The address of a dense operand.
#[derive(Clone, Copy)]
pub(crate) struct DensePtr {
    /// The address of the first element.
    pub(crate) address: *mut u8,
    /// Whether the operand is one value that is broadcast to all elements.
    pub(crate) once: bool,
}

// SAFETY: the fields are an address and a flag, and reading them does not access the memory at the address. Code that
// accesses this memory is unsafe, and its own contract excludes data races.
unsafe impl Sync for DensePtr {}

impl DensePtr {
    /// Returns an operand of full size.
    #[inline]
    pub(crate) fn full(address: *mut u8) -> DensePtr {
        DensePtr { address, once: false }
    }
}
