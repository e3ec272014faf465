//! [`Gpu`]: a device with its memory, its compiled kernels and its recorded dispatches.
//!
//! Dispatches are [recorded](crate::recorded) and submitted together. Every transfer and every wait submits the
//! recorded dispatches first, so all work runs in the order of the calls.

use crate::allocator::BufferAllocator;
use crate::api::ComputeApi;
use crate::cache::GenerationalCache;
use crate::description::{DescriptionCache, KernelDescription};
use crate::dispatch_list::DispatchList;
use crate::operand::DeviceOperands;
use crate::recorded::RecordedDispatches;
use crate::shader::{KernelFeatures, KernelSource, Language, MAX_ITERATIONS};
use crate::status::CheckedOperations;
use pellucid_ir::{Result, lock};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// The maximum number of compiled kernels in a generation of the cache.
const CACHED_KERNELS: usize = 1024;

/// The limits of a device for the kernels that it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DispatchLimits {
    /// The number of buffers that a dispatch can bind in addition to its parameters and the status buffer.
    pub(crate) bindings: usize,
    /// The number of iterations that the loops of an invocation can have together.
    pub(crate) iterations: usize,
}

/// A device and the state of its kernels.
pub(crate) struct Gpu<A: ComputeApi> {
    pub(crate) api: A,
    /// The properties of the device on which the text of kernels depends.
    pub(crate) features: OnceLock<KernelFeatures>,
    /// Whether the device terminates long loops early.
    pub(crate) ends_long_loops: OnceLock<bool>,
    pub(crate) allocator: Mutex<BufferAllocator<A::Memory>>,
    /// The compiled kernels by their text.
    kernels: Mutex<GenerationalCache<String, Arc<A::Kernel>>>,
    pub(crate) descriptions: Mutex<DescriptionCache<A>>,
    /// The dispatches of the next submission.
    pub(crate) recorded: Mutex<RecordedDispatches<A>>,
    /// The operations that have checks of indices.
    pub(crate) operations: CheckedOperations,
}

impl<A: ComputeApi> Gpu<A> {
    /// Creates the state of a device.
    pub(crate) fn new(api: A) -> Gpu<A> {
        Gpu {
            features: OnceLock::new(),
            ends_long_loops: OnceLock::new(),
            allocator: Mutex::new(BufferAllocator::new(api.limits().buffer_bytes)),
            kernels: Mutex::new(GenerationalCache::new(CACHED_KERNELS)),
            descriptions: Mutex::new(DescriptionCache::new()),
            recorded: Mutex::new(RecordedDispatches::new()),
            operations: CheckedOperations::default(),
            api,
        }
    }

    /// Returns the properties of the device on which the text of kernels depends. Before the probe has found them, none
    /// of the properties is set.
    pub(crate) fn features(&self) -> KernelFeatures {
        self.features.get().copied().unwrap_or_default()
    }

    /// Returns the limits of the device for the kernels that it runs.
    pub(crate) fn dispatch_limits(&self) -> DispatchLimits {
        let ends_long_loops = self.ends_long_loops.get() == Some(&true);
        DispatchLimits {
            bindings: self.api.limits().bindings,
            iterations: if ends_long_loops { MAX_ITERATIONS } else { usize::MAX },
        }
    }

    /// Compiles the dispatches of a kernel with these operands.
    ///
    /// # Errors
    /// Returns an error if a text does not compile, or if a dispatch exceeds a limit of the device.
    pub(crate) fn compile(
        &self,
        list: DispatchList<'_>,
        operands: &DeviceOperands<'_>,
    ) -> Result<KernelDescription<A>> {
        let compile = |op, source: &KernelSource<'_>| self.compile_kernel(op, source);
        list.compile(self.api.limits(), operands, compile, |op, problem| self.api.library_product(op, problem))
    }

    /// Returns the compiled form of a kernel. Compiled kernels are cached by their text.
    fn compile_kernel(&self, op: &'static str, source: &KernelSource<'_>) -> Result<Arc<A::Kernel>> {
        let text = A::Language::text(source);
        if let Some(cached) = lock(&self.kernels).get(&text) {
            return Ok(cached.clone());
        }
        let compiled = Arc::new(self.api.compile(op, &text, source)?);
        lock(&self.kernels).insert(text, compiled.clone());
        Ok(compiled)
    }

    /// Returns the unused memory to the device. Recorded dispatches hold freed buffers, and the device frees a buffer
    /// after the last dispatch that uses it, so this submits all dispatches and waits for them.
    pub(crate) fn free_unused_memory(&self) -> Result<()> {
        lock(&self.allocator).trim();
        self.wait()?;
        self.api.release_unused_memory()
    }

    /// Tells a device that checks accesses that later dispatches may use the first `bytes` bytes of a buffer, or with 0
    /// that the buffer returns to the cache of freed buffers.
    pub(crate) fn mark_memory(&self, memory: &A::Memory, bytes: usize) {
        if self.api.checks_memory_use() {
            lock(&self.recorded).mark_memory(&self.api, memory, bytes);
        }
    }

    /// Submits all recorded dispatches, without waiting for them.
    pub(crate) fn flush(&self) -> Result<()> {
        lock(&self.recorded).submit(&self.api)
    }

    /// Writes bytes, a multiple of 4, at `offset` of a buffer, after all recorded dispatches.
    pub(crate) fn write(&self, to: &A::Memory, offset: usize, bytes: &[u8]) -> Result<()> {
        self.flush()?;
        self.api.write(to, offset, bytes)
    }

    /// Reads the bytes in `range` of a buffer after all recorded dispatches. The bounds of the range must be multiples
    /// of 4. Waits for the result and passes it to `receive`.
    pub(crate) fn read(&self, from: &A::Memory, range: Range<usize>, receive: impl FnOnce(&[u8])) -> Result<()> {
        self.flush()?;
        self.api.read(from, range, receive)
    }

    /// Submits the recorded dispatches and waits until all work is done.
    pub(crate) fn wait(&self) -> Result<()> {
        self.flush()?;
        self.api.wait()
    }

    /// Runs `work` and returns the time of the device from the end of all earlier work to the end of the work that
    /// `work` submits. Returns `None` if the device cannot measure time.
    ///
    /// # Errors
    /// The error of `work`, or of the device.
    pub(crate) fn device_time(&self, work: impl FnOnce() -> Result<()>) -> Result<Option<Duration>> {
        self.flush()?;
        let timer = self.api.start_timer()?;
        work()?;
        self.flush()?;
        timer.map(|timer| self.api.stop_timer(timer)).transpose()
    }
}
