//! [`Gpu`]: one device with its queue, its memory, its shaders and its errors.
//!
//! Dispatches are [recorded](crate::record) and submitted together. Every transfer and every wait submits the recorded
//! dispatches first, so all work runs in the order of the calls.

use crate::compile::{CompiledShader, ShaderCompiler};
use crate::describe::{BufferRef, DescriptionCache, DispatchList, KernelDescription};
use crate::families;
use crate::operand::DeviceOperands;
use crate::pool::BufferPool;
use crate::record::Recorded;
use crate::shader::{BindingUse, ShaderBuilder};
use crate::status::{CheckedOperations, NO_FAILURE, STATUS_BYTES};
use pellucid_ir::backend::MemoryStats;
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Error, Result};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

/// The largest size of the parameters of a dispatch, and of those that are submitted together, in bytes.
pub(crate) const PARAMETER_BYTES: usize = 256 << 10;

/// A device of the graphics API and the state of its kernels.
pub(crate) struct Gpu {
    name: String,
    device: wgpu::Device,
    queue: wgpu::Queue,
    limits: wgpu::Limits,
    /// Whether `fma` of the adapter rounds once.
    fused: OnceLock<bool>,
    pool: Mutex<BufferPool>,
    compiler: Mutex<ShaderCompiler>,
    descriptions: Mutex<DescriptionCache>,
    pub(crate) recorded: Mutex<Recorded>,
    /// The [status buffer](crate::status).
    status: wgpu::Buffer,
    operations: Mutex<CheckedOperations>,
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

/// Locks a mutex. The data of this module is valid after every statement, so a panic of another thread does no harm.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpu {
    /// Opens a device on `adapter`.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if the adapter refuses a device or cannot run a test shader.
    pub(crate) fn open(adapter: &wgpu::Adapter, name: String) -> Result<Arc<Gpu>> {
        let unavailable = |reason: String| Error::DeviceUnavailable { device: name.clone(), reason };
        let descriptor = wgpu::DeviceDescriptor { required_limits: adapter.limits(), ..Default::default() };
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
        let create_buffer = |label, bytes: usize, usage| {
            let usage = usage | wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
            let size = bytes as u64;
            device.create_buffer(&wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false })
        };
        let status = create_buffer("status", STATUS_BYTES, wgpu::BufferUsages::COPY_SRC);
        queue.write_buffer(&status, 0, &NO_FAILURE.map(u32::to_ne_bytes).concat());
        let parameters = create_buffer("parameters", 2 * PARAMETER_BYTES, wgpu::BufferUsages::empty());
        let compiler = ShaderCompiler::new(&device);
        let headers = compiler.header_groups(&device, &parameters, &status);
        let gpu = Arc::new(Gpu {
            name: name.clone(),
            device,
            queue,
            // Sizes are multiples of a word.
            pool: Mutex::new(BufferPool::new(usize::try_from(largest).unwrap_or(usize::MAX) & !3)),
            limits,
            fused: OnceLock::new(),
            compiler: Mutex::new(compiler),
            descriptions: Mutex::new(DescriptionCache::new()),
            recorded: Mutex::new(Recorded::new(parameters, headers)),
            status,
            operations: Mutex::default(),
            failure,
        });
        let fused = gpu.probe_fused_multiply_add().map_err(|error| unavailable(error.to_string()))?;
        gpu.fused.get_or_init(|| fused);
        Ok(gpu)
    }

    /// Returns the name of the device: `wgpu:0`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether `fma` of the adapter rounds once.
    pub(crate) fn has_fused_multiply_add(&self) -> bool {
        self.fused.get().is_some_and(|&fused| fused)
    }

    /// Returns the device of the graphics API.
    pub(crate) fn device(&self) -> &wgpu::Device {
        &self.device
    }

    /// Returns the queue.
    pub(crate) fn queue(&self) -> &wgpu::Queue {
        &self.queue
    }

    /// Returns the number of buffers that a dispatch can bind besides its parameters and the status buffer.
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
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: class as u64,
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
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
    pub(crate) fn compile(&self, op: &'static str, shader: ShaderBuilder) -> Result<Arc<CompiledShader>> {
        let (uses, is_check) = (shader.binding_uses(), shader.is_check);
        let text = shader.finish(self.has_fused_multiply_add());
        let header = {
            let mut compiler = lock(&self.compiler);
            if let Some(known) = compiler.get(&text) {
                return Ok(known);
            }
            compiler.header_layout(is_check)
        };
        let compiled = self.scoped(op, || CompiledShader::new(&self.device, op, &text, &uses, (&header, is_check)))?;
        let compiled = Arc::new(compiled);
        lock(&self.compiler).insert(text, compiled.clone());
        Ok(compiled)
    }

    /// Returns the dispatches of a kernel. Descriptions are cached.
    ///
    /// # Errors
    /// If the backend has no shaders for the kernel, or the operands do not fit.
    pub(crate) fn describe(&self, kernel: &Kernel, operands: &DeviceOperands<'_>) -> Result<Arc<KernelDescription>> {
        let digest = DescriptionCache::digest(kernel, operands);
        if let Some(known) = lock(&self.descriptions).get(digest, kernel, operands) {
            return Ok(known);
        }
        let description = Arc::new(families::describe_kernel(self, kernel, operands)?);
        lock(&self.descriptions).insert(digest, kernel, operands, description.clone());
        Ok(description)
    }

    /// Submits the recorded dispatches, waits for them, and returns the error of the first check that failed, if one
    /// failed. The status is then reset.
    pub(crate) fn check_status(&self) -> Result<()> {
        let mut status = NO_FAILURE;
        self.read(&self.status, 0, STATUS_BYTES, |bytes| {
            for (word, bytes) in status.iter_mut().zip(bytes.chunks_exact(4)) {
                *word = bytes.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
            }
        })?;
        let Some(error) = lock(&self.operations).error(&status) else { return Ok(()) };
        self.write(&self.status, 0, &NO_FAILURE.map(u32::to_ne_bytes).concat())?;
        Err(error)
    }

    /// Writes bytes, a multiple of 4, at the start of a buffer, after all recorded dispatches.
    pub(crate) fn write(&self, to: &wgpu::Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
        self.flush()?;
        self.scoped("upload", || self.queue.write_buffer(to, offset as u64, bytes))
    }

    /// Reads `bytes` bytes of a buffer from `offset`, both multiples of 4, after all recorded dispatches. Waits for the
    /// result and passes it to `receive`.
    pub(crate) fn read(
        &self,
        from: &wgpu::Buffer,
        offset: usize,
        bytes: usize,
        receive: impl FnOnce(&[u8]),
    ) -> Result<()> {
        self.flush()?;
        let staging = self.scoped("download", || {
            let staging = self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("staging"),
                size: bytes as u64,
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            });
            let mut encoder = self.device.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(from, offset as u64, &staging, 0, bytes as u64);
            self.queue.submit([encoder.finish()]);
            staging.map_async(wgpu::MapMode::Read, .., |_| {});
            staging
        })?;
        self.wait()?;
        let failed = |reason: String| Error::DeviceUnavailable { device: self.name.clone(), reason };
        let view = staging.get_mapped_range(..).map_err(|error| failed(error.to_string()))?;
        receive(&view);
        Ok(())
    }

    /// Submits the recorded dispatches and waits until all work is done.
    pub(crate) fn wait(&self) -> Result<()> {
        self.flush()?;
        let polled = self.device.poll(wgpu::PollType::wait_indefinitely());
        polled.map_err(|error| Error::DeviceUnavailable { device: self.name.clone(), reason: error.to_string() })?;
        self.check_failure()
    }

    /// Returns whether `fma` of the adapter rounds once, which a small shader shows.
    fn probe_fused_multiply_add(self: &Arc<Gpu>) -> Result<bool> {
        let cases = [(4097, 4097, -8193), (8191, 8193, -67_108_863), (12_345_677, 7_654_321, 1), (3, 5, -15)]
            .map(|(a, b, c)| [a as f32 / 4096.0, b as f32 / 4096.0, c as f32 / 4096.0]);
        let mut shader = ShaderBuilder::default();
        let output = shader.binding(BindingUse::Write);
        shader.line("if (thread >= params[0]) { return; }");
        let value = |k: usize| format!("bitcast<f32>(params[3u * thread + {}u])", k + 2);
        shader.line(format!("let y = fma({}, {}, {});", value(0), value(1), value(2)));
        let store = shader.store_word(output, "thread", "bitcast<u32>(y)");
        shader.line(store);
        let mut parameters = vec![cases.len() as u32, 0];
        parameters.extend(cases.iter().flatten().map(|x| x.to_bits()));
        let mut list = DispatchList::new(self);
        list.dispatch("probe", shader, parameters, &[BufferRef::Operand(0)], 1)?;
        let (class, buffer) = self.allocate(cases.len() * 4)?;
        self.record(&Kernel::Copy, &list.finish(), &[&buffer])?;
        let mut fused = true;
        self.read(&buffer, 0, cases.len() * 4, |bytes| {
            for (word, [a, b, c]) in bytes.chunks_exact(4).zip(cases) {
                let expected = a.mul_add(b, c).to_ne_bytes();
                fused &= word == expected;
            }
        })?;
        self.free(class, buffer);
        Ok(fused)
    }
}
