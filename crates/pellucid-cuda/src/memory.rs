//! [`CudaMemory`]: device memory and pinned host memory.

use crate::context::Context;
use cudarc::driver::sys;
use pellucid_ir::{Error, Result};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

/// A buffer in device memory. It is freed after the last clone has been dropped, in the order of the stream.
#[derive(Clone)]
pub struct CudaMemory(Arc<Allocation>);

struct Allocation {
    context: Arc<Context>,
    address: sys::CUdeviceptr,
}

impl CudaMemory {
    /// Allocates a buffer of `bytes` bytes. Its contents are undefined.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device has no memory left.
    pub(crate) fn allocate(context: &Arc<Context>, bytes: usize) -> Result<CudaMemory> {
        context.enter()?;
        let mut address = 0;
        // SAFETY: the pointer to the result is valid for a write, and the stream belongs to the current context.
        let result = unsafe { sys::cuMemAllocAsync(&raw mut address, bytes.max(1), context.stream()) };
        context.check("allocate", result).map_err(|error| match error {
            Error::OutOfMemory { .. } => Error::out_of_memory(bytes),
            other => other,
        })?;
        context.counters.buffers.add(1);
        Ok(CudaMemory(Arc::new(Allocation { context: context.clone(), address })))
    }

    /// Returns the address on the device.
    pub(crate) fn address(&self) -> sys::CUdeviceptr {
        self.0.address
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

/// Host memory of words that the device writes without a copy by the processor.
pub(crate) struct PinnedWords<const N: usize> {
    context: Arc<Context>,
    words: *mut u32,
}

// SAFETY: the memory is owned, and the host reads it only through `read`, after the device has written it.
unsafe impl<const N: usize> Send for PinnedWords<N> {}
// SAFETY: several threads may share a reference, because reads do not change the memory.
unsafe impl<const N: usize> Sync for PinnedWords<N> {}

impl<const N: usize> PinnedWords<N> {
    /// Allocates the words, which are 0.
    pub(crate) fn new(context: &Arc<Context>) -> Result<PinnedWords<N>> {
        context.enter()?;
        let mut words: *mut c_void = null_mut();
        // SAFETY: the pointer to the result is valid for a write.
        let result = unsafe { sys::cuMemHostAlloc(&raw mut words, 4 * N, 0) };
        context.check("allocate", result)?;
        // SAFETY: the allocation has N words, and nothing else uses it yet.
        unsafe { words.cast::<u32>().write_bytes(0, N) };
        Ok(PinnedWords { context: context.clone(), words: words.cast() })
    }

    /// Returns the address for copies by the device.
    pub(crate) fn address(&self) -> *mut c_void {
        self.words.cast()
    }

    /// Sets word `k`. No copy to the words may be running.
    pub(crate) fn write(&self, k: usize, value: u32) {
        assert!(k < N, "the memory has {N} words");
        // SAFETY: the allocation has N words. The write is volatile and before the next copy, which is submitted later.
        unsafe { self.words.add(k).write_volatile(value) }
    }

    /// Returns the words. While a copy to them is running, every word has its old or its new value.
    pub(crate) fn read(&self) -> [u32; N] {
        // SAFETY: the allocation has N words, and every value of a word is valid. The read is volatile, because the
        // device writes the words.
        std::array::from_fn(|k| unsafe { self.words.add(k).read_volatile() })
    }
}

impl<const N: usize> Drop for PinnedWords<N> {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: the stream is valid as long as the context.
            let _ = unsafe { sys::cuStreamSynchronize(self.context.stream()) };
            // SAFETY: the memory was allocated by `cuMemHostAlloc` and is freed once. No work writes it any more.
            let _ = unsafe { sys::cuMemFreeHost(self.words.cast()) };
        }
    }
}
