//! [`GpuBuffer`]: the memory of one storage on a device.

use crate::api::ComputeApi;
use crate::gpu::Gpu;
use pellucid_ir::backend::{Buffer, Writable};
use pellucid_ir::{Error, Result, lock};
use std::sync::{Arc, Mutex};

/// The size in bytes of a word, the unit of copies of the API.
pub(crate) const WORD: usize = 4;

/// Memory of a device that is allocated when it is first written, and freed when the buffer is dropped or discarded.
pub(crate) struct GpuBuffer<A: ComputeApi> {
    gpu: Arc<Gpu<A>>,
    bytes: usize,
    memory: Mutex<Option<DeviceMemory<A>>>,
}

/// A buffer of the API and its size class.
pub(crate) struct DeviceMemory<A: ComputeApi> {
    gpu: Arc<Gpu<A>>,
    class: usize,
    buffer: A::Memory,
}

impl<A: ComputeApi> DeviceMemory<A> {
    /// Allocates at least `bytes` bytes. If the device has no memory left, frees the unused memory of the device and
    /// allocates again.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the size exceeds the device's limit for one buffer or its free memory, or if the
    /// bytes in use would exceed the cap.
    pub(crate) fn allocate(gpu: &Arc<Gpu<A>>, bytes: usize) -> Result<DeviceMemory<A>> {
        let (class, cached) = lock(&gpu.allocator).reserve(bytes)?;
        let in_use = |buffer| {
            // Kernels read and write full words.
            gpu.mark_memory(&buffer, bytes.max(1).next_multiple_of(WORD));
            DeviceMemory { gpu: gpu.clone(), class, buffer }
        };
        if let Some(buffer) = cached {
            return Ok(in_use(buffer));
        }
        let created = retry_with_free_memory(|| gpu.api.allocate(class), || gpu.free_unused_memory());
        lock(&gpu.allocator).finish_creation(class, created.is_ok());
        match created {
            Ok(buffer) => Ok(in_use(buffer)),
            Err(Error::OutOfMemory { .. }) => Err(lock(&gpu.allocator).exhausted(bytes)),
            Err(other) => Err(other),
        }
    }

    /// Returns the buffer of the API.
    pub(crate) fn raw(&self) -> &A::Memory {
        &self.buffer
    }
}

/// Returns the result of `allocate`. If memory is exhausted, calls `free` and then `allocate` once more.
fn retry_with_free_memory<T>(allocate: impl Fn() -> Result<T>, free: impl FnOnce() -> Result<()>) -> Result<T> {
    match allocate() {
        Err(Error::OutOfMemory { .. }) => free().and_then(|()| allocate()),
        other => other,
    }
}

impl<A: ComputeApi> Drop for DeviceMemory<A> {
    fn drop(&mut self) {
        self.gpu.mark_memory(&self.buffer, 0);
        lock(&self.gpu.allocator).put(self.class, self.buffer.clone());
    }
}

impl<A: ComputeApi> GpuBuffer<A> {
    /// Creates a buffer of `bytes` bytes. Its first write allocates the memory.
    pub(crate) fn new(gpu: Arc<Gpu<A>>, bytes: usize) -> GpuBuffer<A> {
        GpuBuffer { gpu, bytes, memory: Mutex::default() }
    }

    /// Returns true if the buffer belongs to `gpu`.
    pub(crate) fn is_on(&self, gpu: &Arc<Gpu<A>>) -> bool {
        Arc::ptr_eq(&self.gpu, gpu)
    }

    /// Returns the memory, or `None` if it has not been allocated.
    pub(crate) fn memory(&self) -> Option<A::Memory> {
        lock(&self.memory).as_ref().map(|memory| memory.raw().clone())
    }

    /// Returns the memory, which is allocated if necessary.
    ///
    /// # Errors
    /// See [`DeviceMemory::allocate`].
    pub(crate) fn ensure(&self) -> Result<A::Memory> {
        let mut memory = lock(&self.memory);
        if let Some(memory) = &*memory {
            return Ok(memory.raw().clone());
        }
        let allocated = memory.insert(DeviceMemory::allocate(&self.gpu, self.bytes)?);
        Ok(allocated.raw().clone())
    }

    /// Frees the memory.
    fn free(&self) {
        let memory = lock(&self.memory).take();
        drop(memory);
    }
}

/// Buffers without memory, which a kernel is about to write.
pub(crate) struct UnwrittenBuffers<'a, A: ComputeApi>(Vec<&'a GpuBuffer<A>>);

impl<'a, A: ComputeApi> UnwrittenBuffers<'a, A> {
    /// Selects the buffers that have no memory.
    pub(crate) fn new(buffers: impl IntoIterator<Item = &'a GpuBuffer<A>>) -> UnwrittenBuffers<'a, A> {
        UnwrittenBuffers(buffers.into_iter().filter(|buffer| !buffer.is_allocated()).collect())
    }

    /// Frees the memory that the buffers have received since, because the kernel failed: a buffer with memory counts as
    /// written.
    pub(crate) fn discard(self) {
        self.0.into_iter().for_each(GpuBuffer::free);
    }
}

impl<A: ComputeApi> Buffer for GpuBuffer<A> {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn is_allocated(&self) -> bool {
        lock(&self.memory).is_some()
    }

    fn discard(&self, _: Writable<'_>) {
        self.free();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Returns the numbers of calls to `allocate` and `free` if the first `failures` allocations fail, and whether the
    /// last one succeeds.
    fn calls(error: &Error, failures: usize) -> (usize, usize, bool) {
        let (attempts, frees) = (Cell::new(0), Cell::new(0));
        let count = |calls: &Cell<usize>| calls.replace(calls.get() + 1);
        let allocate = || if count(&attempts) < failures { Err(error.clone()) } else { Ok(()) };
        let result = retry_with_free_memory(allocate, || {
            count(&frees);
            Ok(())
        });
        (attempts.get(), frees.get(), result.is_ok())
    }

    #[test]
    fn an_exhausted_device_is_tried_once_more_after_unused_memory_is_freed() {
        let exhausted = Error::out_of_memory(8);
        assert_eq!(calls(&exhausted, 0), (1, 0, true));
        assert_eq!(calls(&exhausted, 1), (2, 1, true));
        assert_eq!(calls(&exhausted, 2), (2, 1, false));
        assert_eq!(calls(&Error::invalid("allocate", "the device rejected a command"), 1), (1, 0, false));
    }
}
