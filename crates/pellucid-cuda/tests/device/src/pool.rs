//! The memory pool of the device, from which streams allocate.
//!
//! The pool keeps freed memory for later allocations. At every synchronisation it returns to the system what it
//! reserves beyond its release threshold. Only the sizes are modelled.

/// The sizes of the pool in bytes.
#[derive(Default)]
pub(crate) struct PoolState {
    /// The bytes that it may keep at a synchronisation.
    pub(crate) threshold: u64,
    /// The bytes of its allocations.
    pub(crate) used: u64,
    /// The bytes of freed memory that it keeps.
    pub(crate) kept: u64,
}

impl PoolState {
    /// Counts an allocation, which reuses memory that the pool keeps.
    pub(crate) fn allocate(&mut self, bytes: usize) {
        self.used += bytes as u64;
        self.kept = self.kept.saturating_sub(bytes as u64);
    }

    /// Counts freed memory, which the pool keeps.
    pub(crate) fn free(&mut self, bytes: usize) {
        self.used -= bytes as u64;
        self.kept += bytes as u64;
    }

    /// Returns memory to the system until the pool reserves at most `bytes` bytes or uses all that it reserves.
    pub(crate) fn trim(&mut self, bytes: u64) {
        self.kept = self.kept.min(bytes.saturating_sub(self.used));
    }

    /// Returns the memory beyond the threshold to the system.
    pub(crate) fn synchronize(&mut self) {
        self.trim(self.threshold);
    }
}
