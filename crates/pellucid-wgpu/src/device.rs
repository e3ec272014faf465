//! [`Gpu`]: one device with its queue, its memory, its shaders and its errors.
//!
//! Dispatches are [recorded](crate::record) and submitted together. Every transfer and every wait submits the recorded
//! dispatches first, so all work runs in the order of the calls.

use crate::compile::{CompiledShader, HeaderGroups, ShaderCompiler};
use crate::counters::AtomicCounters;
use crate::description::DescriptionCache;
use crate::pool::BufferPool;
use crate::shader::iterations::MAX_ITERATIONS;
use crate::shader::{ShaderBuilder, ShaderFeatures};
use crate::status::{CheckedOperations, NO_FAILURE, STATUS_BYTES, STATUS_WORDS};
use crate::submission::Recorded;
use pellucid_ir::backend::MemoryStats;
use pellucid_ir::{Error, Result, lock};
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};

/// The largest size in bytes of the parameters of a dispatch, and of all parameters that are submitted together.
pub(crate) const PARAMETER_BYTES: usize = 256 << 10;

/// The feature that timestamps need.
pub(crate) const TIMESTAMPS: wgpu::Features = wgpu::Features::TIMESTAMP_QUERY;

/// The features with which a device is opened if the adapter has them.
const OPTIONAL_FEATURES: wgpu::Features = TIMESTAMPS.union(wgpu::Features::SUBGROUP).union(wgpu::Features::SHADER_F16);

/// A device of the graphics API and the state of its kernels.
pub(crate) struct Gpu {
    name: String,
    adapter: wgpu::AdapterInfo,
    device: wgpu::Device,
    queue: wgpu::Queue,
    limits: wgpu::Limits,
    /// The properties of the adapter that change the text of shaders.
    pub(crate) features: OnceLock<ShaderFeatures>,
    /// Whether the adapter ends long loops.
    pub(crate) ends_long_loops: OnceLock<bool>,
    pool: Mutex<BufferPool>,
    compiler: Mutex<ShaderCompiler>,
    pub(crate) descriptions: Mutex<DescriptionCache>,
    pub(crate) recorded: Mutex<Recorded>,
    /// The [status buffer](crate::status).
    status: wgpu::Buffer,
    operations: Mutex<CheckedOperations>,
    counters: AtomicCounters,
    /// The first error that no error scope caught, for example the loss of the device.
    failure: Arc<Mutex<Option<String>>>,
}

/// Runs a future of the graphics API to its end. On native backends it is ready at the first poll.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

/// Creates a buffer and counts it. The graphics API reports errors to the error scopes of the caller.
fn create_buffer(
    device: &wgpu::Device,
    counters: &AtomicCounters,
    label: &'static str,
    bytes: usize,
    usage: wgpu::BufferUsages,
) -> wgpu::Buffer {
    counters.buffers.add(1);
    let (label, size) = (Some(label), bytes as u64);
    device.create_buffer(&wgpu::BufferDescriptor { label, size, usage, mapped_at_creation: false })
}

impl Gpu {
    /// Opens a device on `adapter`.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if the adapter refuses a device or cannot run a test shader.
    pub(crate) fn open(adapter: &wgpu::Adapter, name: String) -> Result<Arc<Gpu>> {
        let unavailable = |reason: String| Error::DeviceUnavailable { device: name.clone(), reason };
        let (required_features, required_limits) = (adapter.features() & OPTIONAL_FEATURES, adapter.limits());
        let descriptor = wgpu::DeviceDescriptor { required_features, required_limits, ..Default::default() };
        let (device, queue) =
            block_on(adapter.request_device(&descriptor)).map_err(|error| unavailable(error.to_string()))?;
        let failure: Arc<Mutex<Option<String>>> = Arc::default();
        let uncaught = failure.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            lock(&uncaught).get_or_insert(error.to_string());
        }));
        let lost = failure.clone();
        device.set_device_lost_callback(move |reason, message| {
            // A destroyed device is dropped on purpose.
            if reason != wgpu::DeviceLostReason::Destroyed {
                lock(&lost).get_or_insert(format!("the device was lost: {message}"));
            }
        });
        let limits = device.limits();
        let largest = limits.max_buffer_size.min(limits.max_storage_buffer_binding_size);
        let counters = AtomicCounters::default();
        let storage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let status = create_buffer(&device, &counters, "status", STATUS_BYTES, storage | wgpu::BufferUsages::COPY_SRC);
        queue.write_buffer(&status, 0, &NO_FAILURE.map(u32::to_ne_bytes).concat());
        let parameters = create_buffer(&device, &counters, "parameters", 2 * PARAMETER_BYTES, storage);
        let mapped = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let status_copy = create_buffer(&device, &counters, "status copy", STATUS_BYTES, mapped);
        let compiler = ShaderCompiler::new(&device);
        counters.bind_groups.add(2);
        let headers = compiler.header_groups(&device, (&parameters, PARAMETER_BYTES), &status);
        Ok(Arc::new(Gpu {
            name: name.clone(),
            adapter: adapter.get_info(),
            device,
            queue,
            // Sizes are multiples of four words, which shaders read at once.
            pool: Mutex::new(BufferPool::new(usize::try_from(largest).unwrap_or(usize::MAX) & !15)),
            limits,
            features: OnceLock::new(),
            ends_long_loops: OnceLock::new(),
            compiler: Mutex::new(compiler),
            descriptions: Mutex::new(DescriptionCache::new()),
            recorded: Mutex::new(Recorded::new(parameters, headers, status_copy)),
            status,
            operations: Mutex::default(),
            counters,
            failure,
        }))
    }

    /// Returns the name of the device: `wgpu:0`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the description of the adapter.
    pub(crate) fn adapter(&self) -> &wgpu::AdapterInfo {
        &self.adapter
    }

    /// Returns the properties of the adapter that change the text of shaders: none before they are known.
    pub(crate) fn shader_features(&self) -> ShaderFeatures {
        self.features.get().copied().unwrap_or_default()
    }

    /// Returns the number of iterations that the loops of an invocation can have together.
    pub(crate) fn max_iterations(&self) -> usize {
        if self.ends_long_loops.get() == Some(&true) { MAX_ITERATIONS } else { usize::MAX }
    }

    /// Returns the device of the graphics API.
    pub(crate) fn device(&self) -> &wgpu::Device {
        &self.device
    }

    /// Returns the queue.
    pub(crate) fn queue(&self) -> &wgpu::Queue {
        &self.queue
    }

    /// Returns the number of buffers that a dispatch can bind in addition to its parameters and the status buffer.
    pub(crate) fn max_bindings(&self) -> usize {
        self.limits.max_storage_buffers_per_shader_stage.saturating_sub(2) as usize
    }

    /// Returns the largest number of workgroups along one axis.
    pub(crate) fn max_groups(&self) -> usize {
        self.limits.max_compute_workgroups_per_dimension as usize
    }

    /// Returns the alignment of the parameters of a dispatch in bytes.
    pub(crate) fn parameter_alignment(&self) -> usize {
        self.limits.min_storage_buffer_offset_alignment.max(4) as usize
    }

    /// Returns the status buffer.
    pub(crate) fn status(&self) -> &wgpu::Buffer {
        &self.status
    }

    /// Returns the counters.
    pub(crate) fn counters(&self) -> &AtomicCounters {
        &self.counters
    }

    /// Creates a buffer and counts it. The graphics API reports errors to the error scopes of the caller.
    pub(crate) fn create_buffer(&self, label: &'static str, bytes: usize, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        create_buffer(&self.device, &self.counters, label, bytes, usage)
    }

    /// Returns the error that the contents of the status buffer describe, if a check failed.
    pub(crate) fn check_error(&self, status: &[u32; STATUS_WORDS]) -> Option<Error> {
        lock(&self.operations).error(status)
    }

    /// Returns the number of an operation whose checks can fail.
    pub(crate) fn operation_number(&self, op: &'static str) -> u32 {
        lock(&self.operations).number(op)
    }

    /// Returns the error of a failed device, if it failed.
    pub(crate) fn check_failure(&self) -> Result<()> {
        match &*lock(&self.failure) {
            None => Ok(()),
            Some(reason) => Err(Error::DeviceUnavailable { device: self.name.clone(), reason: reason.clone() }),
        }
    }

    /// Runs `action` and returns the errors that the graphics API reports for it.
    pub(crate) fn scoped<T>(&self, op: &'static str, action: impl FnOnce() -> T) -> Result<T> {
        let scopes = [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Validation]
            .map(|filter| self.device.push_error_scope(filter));
        let result = action();
        let mut first = None;
        // Scopes are popped in the reverse order of their creation.
        for scope in scopes.into_iter().rev() {
            let error = block_on(scope.pop());
            first = first.or(error);
        }
        match first {
            None => self.check_failure().map(|()| result),
            Some(wgpu::Error::OutOfMemory { .. }) => Err(Error::out_of_memory(usize::MAX)),
            Some(error) => Err(Error::invalid(op, format!("the device {} refused a command: {error}", self.name))),
        }
    }

    /// Allocates a buffer of at least `bytes` bytes and returns its size class.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<(usize, wgpu::Buffer)> {
        let (class, cached) = lock(&self.pool).reserve(bytes)?;
        if let Some(buffer) = cached {
            return Ok((class, buffer));
        }
        let created = self.scoped("allocate", || {
            let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
            self.create_buffer("memory", class, usage)
        });
        match created {
            Ok(buffer) => Ok((class, buffer)),
            Err(error) => {
                lock(&self.pool).cancel(class);
                Err(match error {
                    Error::OutOfMemory { .. } => Error::out_of_memory(bytes),
                    other => other,
                })
            }
        }
    }

    /// Returns a buffer to the pool.
    pub(crate) fn free(&self, class: usize, buffer: wgpu::Buffer) {
        lock(&self.pool).put(class, buffer);
    }

    /// Returns the memory statistics.
    pub(crate) fn memory_stats(&self) -> MemoryStats {
        lock(&self.pool).stats()
    }

    /// Limits the bytes in use.
    pub(crate) fn set_memory_cap(&self, bytes: usize) {
        lock(&self.pool).set_cap(bytes);
    }

    /// Drops all cached buffers.
    pub(crate) fn trim(&self) {
        lock(&self.pool).trim();
    }

    /// Returns the compiled form of a shader. Compiled shaders are cached by their text.
    ///
    /// # Errors
    /// If the graphics API refuses the shader, or with the feature `check-translations` another graphics API would.
    pub(crate) fn compile(&self, op: &'static str, shader: ShaderBuilder) -> Result<Arc<CompiledShader>> {
        let (uses, is_check) = (shader.binding_uses(), shader.is_check);
        let text = shader.finish(self.shader_features());
        if let Some(known) = lock(&self.compiler).get(&text) {
            return Ok(known);
        }
        #[cfg(feature = "check-translations")]
        crate::shader::targets::check_translations(op, &text)?;
        let compiled = self.scoped(op, || {
            let layouts = lock(&self.compiler).layouts(&self.device, &uses, is_check);
            CompiledShader::new(&self.device, op, &text, layouts, is_check)
        })?;
        self.counters.pipelines.add(1);
        let compiled = Arc::new(compiled);
        lock(&self.compiler).insert(text, compiled.clone());
        Ok(compiled)
    }

    /// Creates a buffer of parameters, and group 0 with `window` bytes of it after every offset.
    pub(crate) fn create_headers(&self, parameters: &[u8], window: usize) -> Result<HeaderGroups> {
        self.scoped("prepare", || {
            let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
            let buffer = self.create_buffer("parameters", parameters.len(), usage);
            self.queue.write_buffer(&buffer, 0, parameters);
            self.counters.bind_groups.add(2);
            lock(&self.compiler).header_groups(&self.device, (&buffer, window), &self.status)
        })
    }
}
