//! [`CudaApi`]: the calls of CUDA.

use crate::compiler::CudaKernel;
use crate::context::Context;
use crate::event::Event;
use crate::graph::PreparedGraph;
use crate::language::CudaCpp;
use crate::launch::{KernelArguments, ParameterMemory, launch};
use crate::memory::CudaMemory;
use crate::status::StatusMemory;
use crate::upload::Uploads;
use cudarc::driver::sys;
use pellucid_gpu::{
    AtomicCounters, ComputeApi, DeviceFailure, DeviceLimits, DispatchBatch, KernelSource, MemoryMark, NO_FAILURE,
    OptionalFeatures, PARAMETER_BYTES, PlannedDispatches, STATUS_WORDS,
};
use pellucid_ir::{Result, lock};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The maximum number of workgroups along the second axis of a grid.
const MAX_GROUPS: usize = 65_535;

/// The maximum number of buffers of a kernel.
const MAX_BINDINGS: usize = 64;

/// A device of CUDA.
pub struct CudaApi {
    context: Arc<Context>,
    status: Arc<StatusMemory>,
    /// The parameters of a batch of dispatches, for kernels that do not receive them by value.
    parameters: CudaMemory,
    uploads: Mutex<Uploads>,
}

impl CudaApi {
    /// Opens device `index`.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`](pellucid_ir::Error::DeviceUnavailable) if the driver cannot create a context.
    pub(crate) fn open(index: usize, name: String) -> Result<CudaApi> {
        let context = Arc::new(Context::open(index, name)?);
        let status = StatusMemory::new(&context)?;
        let parameters = CudaMemory::allocate(&context, PARAMETER_BYTES)?;
        let uploads = Mutex::new(Uploads::new(&context));
        let api = CudaApi { context, status: Arc::new(status), parameters, uploads };
        api.reset_status()?;
        Ok(api)
    }

    /// Copies the status to the host.
    fn copy_status(&self) -> Result<()> {
        let (context, status) = (&self.context, &self.status);
        status.expect_copy();
        let (to, from) = (status.copy.address(), status.memory.address());
        // SAFETY: both buffers have the size of the status, and live as long as the device, whose destruction waits for
        // the stream.
        let result = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, StatusMemory::BYTES, context.stream()) };
        context.check("status", result)
    }
}

impl ComputeApi for CudaApi {
    type Language = CudaCpp;
    type Memory = CudaMemory;
    type Kernel = CudaKernel;
    type Prepared = PreparedGraph;
    type Submission = ();
    type Timer = Event;

    fn adapter(&self) -> &str {
        &self.context.adapter
    }

    fn is_software(&self) -> bool {
        false
    }

    fn limits(&self) -> DeviceLimits {
        // Words have indices of 32 bits.
        let buffer_bytes = self.context.total_memory.min(4 * u32::MAX as usize) & !15;
        DeviceLimits { bindings: MAX_BINDINGS, groups: MAX_GROUPS, buffer_bytes, parameter_alignment: 16 }
    }

    fn optional_features(&self) -> OptionalFeatures {
        // The language has its own conversions of `f16`.
        OptionalFeatures { subgroups: true, f16: false }
    }

    fn failure(&self) -> &DeviceFailure {
        &self.context.failure
    }

    fn counters(&self) -> &AtomicCounters {
        &self.context.counters
    }

    fn allocate(&self, bytes: usize) -> Result<CudaMemory> {
        CudaMemory::allocate(&self.context, bytes)
    }

    fn release_unused_memory(&self) -> Result<()> {
        self.context.release_unused_memory()
    }

    fn checks_memory_use(&self) -> bool {
        self.context.mark.is_some()
    }

    fn mark_memory(&self, mark: &MemoryMark<CudaMemory>) -> Result<()> {
        self.context.mark_memory(mark.memory.address(), mark.bytes)
    }

    fn write(&self, to: &CudaMemory, offset: usize, bytes: &[u8]) -> Result<()> {
        let to = to.address_of(offset..offset + bytes.len());
        // SAFETY: *Range*: `address_of` has checked the range.
        unsafe { lock(&self.uploads).upload(to, bytes) }
    }

    fn read(&self, from: &CudaMemory, range: Range<usize>, receive: impl FnOnce(&[u8])) -> Result<()> {
        let context = &self.context;
        context.enter()?;
        let mut bytes = vec![0u8; range.len()];
        let from = from.address_of(range);
        // SAFETY: `address_of` has checked the range, which has the size of `bytes`, and `bytes` is not read before the
        // stream is done.
        let result =
            unsafe { sys::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from, bytes.len(), context.stream()) };
        // The copy must not run when `bytes` is freed, even after a failure of the device.
        let done = context.wait();
        context.check("download", result).and(done)?;
        receive(&bytes);
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        self.context.enter()?;
        self.context.wait()
    }

    fn compile(&self, op: &'static str, text: &str, source: &KernelSource<'_>) -> Result<CudaKernel> {
        CudaKernel::new(&self.context, op, text, source)
    }

    fn submit(&self, batch: DispatchBatch<'_, CudaKernel, CudaMemory>, copies_status: bool) -> Result<()> {
        let context = &self.context;
        context.enter()?;
        context.counters.submissions.add(1);
        context.counters.dispatches.add(batch.dispatches.len());
        if batch.dispatches.iter().any(|dispatch| !dispatch.kernel.passes_values) {
            self.write(&self.parameters, 0, batch.parameters)?;
        }
        let parameters = ParameterMemory { bytes: batch.parameters, address: self.parameters.address() };
        let mut marks = batch.marks.iter().peekable();
        for (k, dispatch) in batch.dispatches.iter().enumerate() {
            while let Some(mark) = marks.next_if(|mark| mark.before <= k) {
                self.mark_memory(mark)?;
            }
            let buffers = batch.memory[dispatch.memory.clone()].iter().map(CudaMemory::address);
            let (kernel, status) = (&*dispatch.kernel, self.status.memory.address());
            let arguments = KernelArguments::new(kernel, parameters, dispatch.offset, status, buffers);
            // SAFETY: *Context*: it is current. *Arguments*: they were created for this kernel, and memory is freed in
            // the order of the stream.
            let result = unsafe { launch(kernel, &arguments, dispatch.groups, context.stream()) };
            context.check("submit", result)?;
        }
        marks.try_for_each(|mark| self.mark_memory(mark))?;
        if copies_status { self.copy_status() } else { Ok(()) }
    }

    fn prepare(&self, plan: PlannedDispatches<CudaKernel, CudaMemory>) -> Result<PreparedGraph> {
        PreparedGraph::new(&self.context, &self.status, plan, |memory, bytes| self.write(memory, 0, bytes))
    }

    fn launch(&self, prepared: &mut PreparedGraph, slots: &[Option<CudaMemory>]) -> Result<Option<()>> {
        self.context.failure.check()?;
        prepared.launch(slots)?;
        self.context.counters.submissions.add(1);
        self.context.counters.dispatches.add(prepared.len());
        Ok(prepared.has_checks().then_some(()))
    }

    fn read_status(&self, (): ()) -> Result<[u32; STATUS_WORDS]> {
        self.status.wait()
    }

    fn reset_status(&self) -> Result<()> {
        self.write(&self.status.memory, 0, &NO_FAILURE.map(u32::to_ne_bytes).concat())
    }

    fn start_timer(&self) -> Result<Option<Event>> {
        let start = Event::timed(&self.context)?;
        start.record(self.context.stream())?;
        Ok(Some(start))
    }

    fn stop_timer(&self, start: Event) -> Result<Duration> {
        let end = Event::timed(&self.context)?;
        end.record(self.context.stream())?;
        end.synchronize()?;
        start.elapsed_until(&end)
    }
}
