//! [`StatusMemory`]: the status of a device, and its copy for the host.

use crate::context::Context;
use crate::memory::{CudaMemory, PinnedWords};
use cudarc::driver::sys::{self, CUresult};
use pellucid_gpu::{STATUS_OPERATION, STATUS_WORDS, UNUSED_WORD};
use pellucid_ir::Result;
use std::sync::Arc;

/// The status of a device.
pub(crate) struct StatusMemory {
    context: Arc<Context>,
    pub(crate) memory: CudaMemory,
    /// The copy of the status for the host.
    pub(crate) copy: PinnedWords<STATUS_WORDS>,
}

impl StatusMemory {
    /// The size of the status in bytes.
    pub(crate) const BYTES: usize = 4 * STATUS_WORDS;

    pub(crate) fn new(context: &Arc<Context>) -> Result<StatusMemory> {
        let memory = CudaMemory::allocate(context, StatusMemory::BYTES)?;
        Ok(StatusMemory { context: context.clone(), memory, copy: PinnedWords::new(context)? })
    }

    /// Marks the words on the host as old, before a copy of the status is submitted.
    pub(crate) fn expect_copy(&self) {
        [STATUS_OPERATION, UNUSED_WORD].into_iter().for_each(|word| self.copy.write(word, u32::MAX));
    }

    /// Submits a copy of the status to the host.
    pub(crate) fn submit_copy(&self) -> Result<()> {
        self.expect_copy();
        let (to, from) = (self.copy.address(), self.memory.address());
        // SAFETY: both buffers have the size of the status, and live as long as the device, whose destruction waits for
        // the stream.
        let result = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, StatusMemory::BYTES, self.context.stream()) };
        self.context.check("status", result)
    }

    /// Waits for the copy, and returns the status. Work after the copy may still be running.
    ///
    /// A graph cannot tell the host that one of its nodes is done, so the host reads the words until they change.
    pub(crate) fn wait(&self) -> Result<[u32; STATUS_WORDS]> {
        loop {
            let words = self.copy.read();
            if (words[STATUS_OPERATION], words[UNUSED_WORD]) == (0, 0) {
                return Ok(words);
            }
            self.context.enter()?;
            // SAFETY: the stream belongs to the current context.
            match unsafe { sys::cuStreamQuery(self.context.stream()) } {
                CUresult::CUDA_ERROR_NOT_READY => std::hint::spin_loop(),
                // A failed check has several words, which the copy may write one by one.
                result => return self.context.check("status", result).map(|()| self.copy.read()),
            }
        }
    }
}
