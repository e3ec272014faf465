//! Device memory: buffers in size classes, with a bounded cache of freed buffers.

use pellucid_ir::backend::MemoryStats;
use pellucid_ir::{Error, Result};
use std::collections::BTreeMap;

/// The smallest buffer, in bytes.
const MIN_BYTES: usize = 256;

/// The largest total size of cached buffers, in bytes.
const MAX_CACHED: usize = 256 << 20;

/// The freed buffers and the memory statistics of a device. `M` is a buffer.
#[derive(Debug)]
pub(crate) struct BufferAllocator<M> {
    /// The cached buffers by their size class.
    free: BTreeMap<usize, Vec<M>>,
    stats: MemoryStats,
    /// The bytes of the buffers that are being created.
    reserved: usize,
    /// The limit of the bytes in use.
    cap: usize,
    /// The largest buffer that a kernel can bind, in bytes.
    largest: usize,
}

/// Returns the size class of `bytes`: a multiple of 256. Classes above 1 KiB have at most three significant bits, so
/// that at most a fifth of the buffer is unused. Returns `None` on overflow.
pub(crate) fn size_class(bytes: usize) -> Option<usize> {
    let bytes = bytes.max(MIN_BYTES);
    let step = (bytes.checked_next_power_of_two()? / 8).max(MIN_BYTES);
    bytes.checked_next_multiple_of(step)
}

impl<M> BufferAllocator<M> {
    /// Creates an allocator of buffers of at most `largest` bytes.
    pub(crate) fn new(largest: usize) -> BufferAllocator<M> {
        BufferAllocator { free: BTreeMap::new(), stats: MemoryStats::default(), reserved: 0, cap: usize::MAX, largest }
    }

    /// Reserves `bytes` bytes. Returns the size class, and a cached buffer of this class. If the buffer is `None`, the
    /// caller must create one and then call [`finish_creation`](BufferAllocator::finish_creation).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the size exceeds the device's limit for one buffer, or the bytes in use would exceed
    /// the cap.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(usize, Option<M>)> {
        let in_use = self.stats.in_use + self.reserved;
        let out_of_memory = |cap| Error::OutOfMemory { op: "", shape: None, requested: bytes, in_use, cap };
        // A class above the limit is reduced to the limit.
        let class = size_class(bytes).map(|class| if bytes <= self.largest { class.min(self.largest) } else { class });
        let class = class.filter(|&class| class <= self.largest).ok_or_else(|| out_of_memory(self.largest))?;
        if in_use.saturating_add(class) > self.cap {
            return Err(out_of_memory(self.cap));
        }
        let cached = self.free.get_mut(&class).and_then(Vec::pop);
        if cached.is_some() {
            self.stats.cached -= class;
            self.count_allocation(class);
        } else {
            self.reserved += class;
        }
        Ok((class, cached))
    }

    /// Ends a reservation for which [`reserve`](BufferAllocator::reserve) returned no buffer. `is_created` is true if
    /// the caller has created the buffer.
    pub(crate) fn finish_creation(&mut self, class: usize, is_created: bool) {
        self.reserved -= class;
        if is_created {
            self.stats.system_allocations += 1;
            self.count_allocation(class);
        }
    }

    /// Returns the error of a request for which the device has no memory left.
    pub(crate) fn exhausted(&self, requested: usize) -> Error {
        let in_use = self.stats.in_use + self.reserved;
        Error::OutOfMemory { op: "", shape: None, requested, in_use, cap: self.cap }
    }

    fn count_allocation(&mut self, class: usize) {
        let stats = &mut self.stats;
        stats.in_use += class;
        stats.peak = stats.peak.max(stats.in_use);
        stats.allocations += 1;
    }

    /// Caches a buffer, or drops it if the cache is full.
    pub(crate) fn put(&mut self, class: usize, buffer: M) {
        self.stats.in_use -= class;
        if self.stats.cached + class <= MAX_CACHED {
            self.stats.cached += class;
            self.free.entry(class).or_default().push(buffer);
        }
    }

    /// Drops all cached buffers.
    pub(crate) fn trim(&mut self) {
        self.free.clear();
        self.stats.cached = 0;
    }

    /// Limits the bytes in use.
    pub(crate) fn set_cap(&mut self, bytes: usize) {
        self.cap = bytes;
    }

    /// Returns the memory statistics.
    pub(crate) fn stats(&self) -> MemoryStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_hold_their_bytes_and_are_monotonic() {
        let mut last = 0;
        for bytes in (0..5000).chain([1 << 20, (1 << 20) + 1, 3 << 20, 1 << 40]) {
            let class = size_class(bytes).unwrap();
            assert!(class >= bytes && class.is_multiple_of(256) && class >= last, "{bytes}: {class}");
            assert!(bytes <= 1024 || class - bytes <= class / 5, "{bytes}: {class}");
            last = class;
        }
        assert_eq!(size_class(usize::MAX), None);
    }

    #[test]
    fn sizes_beyond_the_limits_are_typed_errors() {
        let mut allocator = BufferAllocator::<()>::new(1000);
        assert_eq!(allocator.reserve(900).unwrap().0, 1000);
        assert!(matches!(allocator.reserve(1001), Err(Error::OutOfMemory { requested: 1001, cap: 1000, .. })));
        assert!(matches!(allocator.reserve(usize::MAX), Err(Error::OutOfMemory { .. })));
        allocator.set_cap(1200);
        assert!(matches!(allocator.reserve(256), Err(Error::OutOfMemory { in_use: 1000, cap: 1200, .. })));
        assert!(matches!(allocator.exhausted(8), Error::OutOfMemory { requested: 8, in_use: 1000, cap: 1200, .. }));
        allocator.finish_creation(1000, false);
        assert_eq!(allocator.stats(), MemoryStats::default(), "a buffer that was not created must not be counted");
        allocator.reserve(256).unwrap();
        allocator.finish_creation(256, true);
        let MemoryStats { in_use, peak, allocations, system_allocations, .. } = allocator.stats();
        assert_eq!((in_use, peak, allocations, system_allocations), (256, 256, 1, 1));
    }
}
