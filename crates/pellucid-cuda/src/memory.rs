//! [`CudaMemory`]: device memory and pinned host memory.

use crate::context::Context;
use cudarc::driver::sys;
use pellucid_ir::{Error, Result};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Arc;

/// A buffer in device memory. It is freed after the last clone has been dropped, in the order of the stream.
#[derive(Clone)]
pub struct CudaMemory(Arc<Allocation>);

struct Allocation {
    context: Arc<Context>,
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl CudaMemory {
    /// Allocates a buffer of `bytes` bytes for work of the stream of launches. Its contents are undefined.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device has no memory left.
    pub(crate) fn allocate(context: &Arc<Context>, bytes: usize) -> Result<CudaMemory> {
        CudaMemory::allocate_in(context, context.stream(), bytes)
    }

    /// Allocates a buffer of `bytes` bytes in the order of a stream of the context. Work of other streams that uses it
    /// must wait for this point, and the stream of launches must wait for all work that uses it before it is freed.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device has no memory left.
    pub(crate) fn allocate_in(context: &Arc<Context>, stream: sys::CUstream, bytes: usize) -> Result<CudaMemory> {
        context.enter()?;
        let mut address = 0;
        // SAFETY: the pointer to the result is valid for a write, and the stream belongs to the current context.
        let result = unsafe { sys::cuMemAllocAsync(&raw mut address, bytes.max(1), stream) };
        context.check("allocate", result).map_err(|error| match error {
            Error::OutOfMemory { .. } => Error::out_of_memory(bytes),
            other => other,
        })?;
        context.counters.buffers.add(1);
        Ok(CudaMemory(Arc::new(Allocation { context: context.clone(), address, bytes })))
    }

    /// Returns the address on the device.
    pub(crate) fn address(&self) -> sys::CUdeviceptr {
        self.0.address
    }

    /// Returns the address of a range of the buffer.
    ///
    /// # Panics
    /// If the range exceeds the buffer.
    pub(crate) fn address_of(&self, range: Range<usize>) -> sys::CUdeviceptr {
        assert!(range.start <= range.end && range.end <= self.0.bytes, "{range:?} exceeds {} bytes", self.0.bytes);
        self.0.address + range.start as u64
    }
}

impl PartialEq for CudaMemory {
    fn eq(&self, other: &CudaMemory) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: the memory was allocated in this context and is freed once. The stream frees it after all
            // work that was submitted before, and only that work uses it.
            let _ = unsafe { sys::cuMemFreeAsync(self.address, self.context.stream()) };
        }
    }
}

/// Pinned host memory, which the device reads and writes without a copy by the processor.
pub(crate) struct PinnedMemory {
    context: Arc<Context>,
    start: *mut c_void,
}

// SAFETY: the memory is owned. The methods that access it state when no work of the device may use it.
unsafe impl Send for PinnedMemory {}

impl PinnedMemory {
    /// Allocates `bytes` bytes. Their contents are undefined.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the host has no memory for it.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<PinnedMemory> {
        context.enter()?;
        let mut start: *mut c_void = null_mut();
        // SAFETY: the pointer to the result is valid for a write.
        let result = unsafe { sys::cuMemHostAlloc(&raw mut start, bytes, 0) };
        context.check("allocate", result)?;
        Ok(PinnedMemory { context: context.clone(), start })
    }

    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> *mut c_void {
        self.start
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // An error of a stream is no reason to keep the memory.
            let _ = self.context.wait_for_all_streams();
            // SAFETY: the memory was allocated by `cuMemHostAlloc` and is freed once. No work uses it any more.
            let _ = unsafe { sys::cuMemFreeHost(self.start) };
        }
    }
}

/// Words in pinned memory, which the device writes.
pub(crate) struct PinnedWords<const N: usize>(PinnedMemory);

// SAFETY: several threads may share a reference, because reads and writes of the words are volatile, and every value of
// a word is valid.
unsafe impl<const N: usize> Sync for PinnedWords<N> {}

impl<const N: usize> PinnedWords<N> {
    /// Allocates the words, which are 0.
    pub(crate) fn new(context: &Arc<Context>) -> Result<PinnedWords<N>> {
        let words = PinnedWords(PinnedMemory::new(context, 4 * N)?);
        // SAFETY: the allocation has N words, and nothing else uses it yet.
        unsafe { words.first().write_bytes(0, N) };
        Ok(words)
    }

    /// Returns the address for copies by the device.
    pub(crate) fn address(&self) -> *mut c_void {
        self.0.address()
    }

    fn first(&self) -> *mut u32 {
        self.0.address().cast()
    }

    /// Sets word `k`. No copy to the words may be running.
    pub(crate) fn write(&self, k: usize, value: u32) {
        assert!(k < N, "the memory has {N} words");
        // SAFETY: the allocation has N words. The write is volatile and before the next copy, which is submitted later.
        unsafe { self.first().add(k).write_volatile(value) }
    }

    /// Returns the words. While a copy to them is running, every word has its old or its new value.
    pub(crate) fn read(&self) -> [u32; N] {
        // SAFETY: the allocation has N words, and every value of a word is valid. The read is volatile, because the
        // device writes the words.
        std::array::from_fn(|k| unsafe { self.first().add(k).read_volatile() })
    }
}
