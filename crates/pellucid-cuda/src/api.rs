//! [`CudaApi`]: the calls of CUDA.

use crate::compiler::CudaKernel;
use crate::context::Context;
use crate::event::Event;
use crate::graph::{PreparedGraph, reason_without_graphs};
use crate::language::CudaCpp;
use crate::launch::{CudaWork, KernelArguments, ParameterMemory, launch};
use crate::memory::CudaMemory;
use crate::product::{LtLibrary, LtProduct};
use crate::status::StatusMemory;
use crate::upload::Uploads;
use cudarc::driver::sys;
use pellucid_gpu::{
    AtomicCounters, ComputeApi, DeviceFailure, DeviceLimits, DispatchBatch, KernelSource, LibraryProduct, MemoryMark,
    NO_FAILURE, OptionalFeatures, PARAMETER_BYTES, PlannedDispatches, RecordedDispatch, STATUS_WORDS,
    SubmissionFailure,
};
use pellucid_ir::{Error, Result, lock};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// The maximum number of workgroups along the second axis of a grid.
const MAX_GROUPS: usize = 65_535;

/// The maximum number of buffers of a kernel.
const MAX_BINDINGS: usize = 64;

/// The environment variable that turns off graphs if it is 0.
const GRAPHS_VARIABLE: &str = "PELLUCID_CUDA_GRAPHS";

/// A device of CUDA.
pub struct CudaApi {
    context: Arc<Context>,
    status: Arc<StatusMemory>,
    /// The parameters of a batch of dispatches, for kernels that do not receive them by value.
    parameters: CudaMemory,
    uploads: Mutex<Uploads>,
    /// The library of products, once it is used; `None` inside if it refuses to work on this device.
    library: Mutex<Option<Option<Arc<LtLibrary>>>>,
    /// Whether plans run as graphs, once it is known.
    has_graphs: OnceLock<bool>,
    /// The message for the user.
    notice: Mutex<Option<String>>,
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
        let (uploads, library, notice) = (Mutex::new(Uploads::new(&context)), Mutex::default(), Mutex::default());
        let (status, has_graphs) = (Arc::new(status), OnceLock::new());
        let api = CudaApi { context, status, parameters, uploads, library, has_graphs, notice };
        api.reset_status()?;
        Ok(api)
    }

    /// Returns true if the device runs plans as graphs. The first call finds out, and keeps the reason if it does not.
    fn has_graphs(&self) -> Result<bool> {
        if let Some(&has_graphs) = self.has_graphs.get() {
            return Ok(has_graphs);
        }
        let missing = match std::env::var_os(GRAPHS_VARIABLE).is_some_and(|value| value == "0") {
            true => Some(format!("{GRAPHS_VARIABLE} is 0")),
            false => reason_without_graphs(&self.context)?,
        };
        let has_graphs = *self.has_graphs.get_or_init(|| missing.is_none());
        if let Some(reason) = missing {
            self.state_missing_graphs(&reason);
        }
        Ok(has_graphs)
    }

    /// Tells the user why captured steps run without graphs.
    fn state_missing_graphs(&self, reason: &str) {
        let device = self.context.failure.device();
        let notice = format!("{device} launches the kernels of captured steps one by one, without graphs: {reason}");
        *lock(&self.notice) = Some(notice);
    }

    /// Returns the library of products, or `None` if it refuses to work on this device, which the user learns once.
    ///
    /// # Errors
    /// The errors of the device.
    fn products(&self) -> Result<Option<Arc<LtLibrary>>> {
        let mut library = lock(&self.library);
        if let Some(library) = &*library {
            return Ok(library.clone());
        }
        let created = match LtLibrary::new(&self.context) {
            Ok(created) => Some(Arc::new(created)),
            Err(Error::InvalidArgument { reason, .. }) => {
                let device = self.context.failure.device();
                *lock(&self.notice) =
                    Some(format!("{device} multiplies large matrices with its own kernels: {reason}"));
                None
            }
            Err(failed) => return Err(failed),
        };
        Ok(library.insert(created).clone())
    }

    /// Launches a dispatch of a batch.
    fn submit_dispatch(
        &self,
        batch: &DispatchBatch<'_, CudaWork, CudaMemory>,
        dispatch: &RecordedDispatch<CudaWork>,
    ) -> Result<()> {
        let (context, parameters) = (&self.context, batch.parameters);
        let parameters = ParameterMemory { bytes: parameters, address: self.parameters.address() };
        let mut buffers = batch.memory[dispatch.memory.clone()].iter().map(CudaMemory::address);
        let kernel = match &*dispatch.kernel {
            CudaWork::Kernel(kernel) => kernel,
            CudaWork::Product(product) => {
                let memory = [(); 4].map(|()| buffers.next().unwrap_or_default());
                // SAFETY: *Context*: it is current. *Memory*: these are the buffers of the product, and memory is freed
                // in the order of the stream.
                return unsafe { product.enqueue(memory, context.stream()) };
            }
        };
        let status = self.status.memory.address();
        let arguments = KernelArguments::new(kernel, parameters, dispatch.offset, status, buffers);
        // SAFETY: *Context*: it is current. *Arguments*: they were created for this kernel, and memory is freed in the
        // order of the stream.
        context.submit("submit", || unsafe { launch(kernel, &arguments, dispatch.groups, context.stream()) })
    }
}

impl ComputeApi for CudaApi {
    type Language = CudaCpp;
    type Memory = CudaMemory;
    type Kernel = CudaWork;
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
        OptionalFeatures {
            subgroups: true,
            f16: false,
            matrix_units: self.context.architecture >= 80,
            library_products: LtLibrary::is_present(),
            // Every device has 48 KiB without further settings.
            large_shared_memory: true,
        }
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

    fn compile(&self, op: &'static str, text: &str, source: &KernelSource<'_>) -> Result<CudaWork> {
        Ok(CudaWork::Kernel(CudaKernel::new(&self.context, op, text, source)?))
    }

    fn library_product(&self, op: &'static str, problem: &LibraryProduct) -> Result<Option<(CudaWork, usize)>> {
        let Some(library) = self.products()? else { return Ok(None) };
        let product = LtProduct::new(&library, op, problem)?;
        // A buffer has at least 16 bytes.
        Ok(product.map(|product| {
            let workspace = product.workspace_bytes().max(16);
            (CudaWork::Product(product), workspace)
        }))
    }

    fn submit(
        &self,
        batch: DispatchBatch<'_, CudaWork, CudaMemory>,
        copies_status: bool,
    ) -> Result<(), SubmissionFailure> {
        let context = &self.context;
        context.enter()?;
        context.counters.submissions.add(1);
        // If memory is exhausted, the other dispatches can be submitted later.
        let failed = |count, error| match error {
            exhausted @ Error::OutOfMemory { .. } => {
                SubmissionFailure { submitted: Some(count as u32), error: exhausted }
            }
            error => error.into(),
        };
        if batch.dispatches.iter().any(|dispatch| !dispatch.kernel.passes_values()) {
            self.write(&self.parameters, 0, batch.parameters).map_err(|error| failed(0, error))?;
        }
        let mut marks = batch.marks.iter().peekable();
        for (k, dispatch) in batch.dispatches.iter().enumerate() {
            while let Some(mark) = marks.next_if(|mark| mark.before <= k) {
                self.mark_memory(mark)?;
            }
            self.submit_dispatch(&batch, dispatch).map_err(|error| failed(k, error))?;
            context.counters.dispatches.add(1);
        }
        marks.try_for_each(|mark| self.mark_memory(mark))?;
        if copies_status {
            self.status.submit_copy()?;
        }
        Ok(())
    }

    fn take_notice(&self) -> Option<String> {
        lock(&self.notice).take()
    }

    fn prepare(&self, plan: PlannedDispatches<CudaWork, CudaMemory>) -> Result<PreparedGraph> {
        let prepared =
            PreparedGraph::new(&self.context, &self.status, plan, |memory, bytes| self.write(memory, 0, bytes))?;
        Ok(if self.has_graphs()? { prepared } else { prepared.without_graph() })
    }

    fn launch(&self, prepared: &mut PreparedGraph, slots: &[Option<CudaMemory>]) -> Result<Option<()>> {
        self.context.failure.check()?;
        if let Some(refusal) = prepared.launch(slots)? {
            self.state_missing_graphs(&refusal.to_string());
        }
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
