//! [`Gpu`]: one device with its queue, its recorded dispatches, its pipelines and its errors.
//!
//! Dispatches are recorded and submitted together. Every transfer and every wait submits the recorded dispatches first,
//! so all work runs in the order of the calls.

use crate::pool::BufferPool;
use crate::shader::{BindingUse, ShaderBuilder};
use pellucid_ir::backend::MemoryStats;
use pellucid_ir::{Error, Result};
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

/// The number of dispatches that are submitted together.
const MAX_RECORDED: usize = 64;

/// The size of the buffer of the parameters of recorded dispatches, in bytes.
const PARAMETER_BYTES: usize = 256 << 10;

/// A device of the graphics API and the state of its kernels.
pub(crate) struct Gpu {
    name: String,
    device: wgpu::Device,
    queue: wgpu::Queue,
    limits: wgpu::Limits,
    /// Whether `fma` of the adapter rounds once.
    fused: OnceLock<bool>,
    pool: Mutex<BufferPool>,
    pipelines: Mutex<HashMap<String, Arc<CompiledShader>>>,
    recorded: Mutex<Recorded>,
    /// The first error that no error scope caught, for example the loss of the device.
    failure: Arc<Mutex<Option<String>>>,
}

/// Dispatches that have not been submitted yet.
struct Recorded {
    parameters: wgpu::Buffer,
    bytes: Vec<u8>,
    dispatches: Vec<Dispatch>,
}

/// A pipeline and the layout of its bindings.
struct CompiledShader {
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
}

struct Dispatch {
    shader: Arc<CompiledShader>,
    bind_group: wgpu::BindGroup,
    groups: [u32; 2],
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
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
        let parameters = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("parameters"),
            size: PARAMETER_BYTES as u64,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let gpu = Arc::new(Gpu {
            name: name.clone(),
            device,
            queue,
            // Sizes are multiples of four words, which shaders read at once.
            pool: Mutex::new(BufferPool::new(usize::try_from(largest).unwrap_or(usize::MAX) & !15)),
            limits,
            fused: OnceLock::new(),
            pipelines: Mutex::default(),
            recorded: Mutex::new(Recorded { parameters, bytes: Vec::new(), dispatches: Vec::new() }),
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

    /// Returns the number of buffers that a dispatch can bind besides its parameters.
    pub(crate) fn max_bindings(&self) -> usize {
        self.limits.max_storage_buffers_per_shader_stage.saturating_sub(1) as usize
    }

    /// Returns the error of a failed device, if it failed.
    fn check_failure(&self) -> Result<()> {
        match &*lock(&self.failure) {
            None => Ok(()),
            Some(reason) => Err(Error::DeviceUnavailable { device: self.name.clone(), reason: reason.clone() }),
        }
    }

    /// Runs `action` and returns the errors that the graphics API reports for it.
    fn scoped<T>(&self, op: &'static str, action: impl FnOnce() -> T) -> Result<T> {
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
    fn compile(&self, op: &'static str, shader: ShaderBuilder) -> Result<Arc<CompiledShader>> {
        let uses: Vec<BindingUse> = [BindingUse::Read].into_iter().chain(shader.binding_uses()).collect();
        let text = shader.finish(self.has_fused_multiply_add());
        if let Some(known) = lock(&self.pipelines).get(&text) {
            return Ok(known.clone());
        }
        let entry = |(binding, usage): (usize, &BindingUse)| wgpu::BindGroupLayoutEntry {
            binding: binding as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only: usage.is_read_only() },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let entries: Vec<wgpu::BindGroupLayoutEntry> = uses.iter().enumerate().map(entry).collect();
        let compiled = self.scoped(op, || {
            let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
                label: Some(op),
                source: wgpu::ShaderSource::Wgsl(text.as_str().into()),
            });
            let layout = self
                .device
                .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(op), entries: &entries });
            let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: Some(op),
                bind_group_layouts: &[Some(&layout)],
                immediate_size: 0,
            });
            let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(op),
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some("main"),
                compilation_options: Default::default(),
                cache: None,
            });
            CompiledShader { pipeline, layout }
        })?;
        let compiled = Arc::new(compiled);
        lock(&self.pipelines).insert(text, compiled.clone());
        Ok(compiled)
    }

    /// Records one dispatch of `groups` workgroups. The words 0 and 1 of the parameters are the number of work items and
    /// 0; the buffers are those of the shader's bindings.
    ///
    /// # Errors
    /// If the shader does not compile, or the dispatch exceeds a limit of the adapter.
    pub(crate) fn dispatch(
        &self,
        op: &'static str,
        shader: ShaderBuilder,
        parameters: &[u32],
        buffers: &[&wgpu::Buffer],
        groups: usize,
    ) -> Result<()> {
        let axis = self.limits.max_compute_workgroups_per_dimension as usize;
        let [x, y] = [groups.min(axis), groups.div_ceil(axis)];
        let bytes = parameters.len() * 4;
        if y > axis || bytes > PARAMETER_BYTES {
            let reason =
                format!("{groups} workgroups with {bytes} bytes of parameters exceed the limits of the adapter");
            return Err(Error::invalid(op, reason));
        }
        let shader = self.compile(op, shader)?;
        let mut recorded = lock(&self.recorded);
        let alignment = self.limits.min_storage_buffer_offset_alignment.max(4) as usize;
        let mut offset = recorded.bytes.len().next_multiple_of(alignment);
        if recorded.dispatches.len() >= MAX_RECORDED || offset + bytes > PARAMETER_BYTES {
            self.submit(&mut recorded)?;
            offset = 0;
        }
        recorded.bytes.resize(offset, 0);
        recorded.bytes.extend(parameters.iter().flat_map(|word| word.to_ne_bytes()));
        let binding = |buffer, offset: usize, bytes: usize| {
            wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer,
                offset: offset as u64,
                size: std::num::NonZeroU64::new(bytes as u64),
            })
        };
        let mut entries =
            vec![wgpu::BindGroupEntry { binding: 0, resource: binding(&recorded.parameters, offset, bytes) }];
        for (k, buffer) in buffers.iter().enumerate() {
            entries.push(wgpu::BindGroupEntry { binding: k as u32 + 1, resource: buffer.as_entire_binding() });
        }
        let bind_group = self.scoped(op, || {
            self.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(op),
                layout: &shader.layout,
                entries: &entries,
            })
        })?;
        recorded.dispatches.push(Dispatch { shader, bind_group, groups: [x as u32, y as u32] });
        Ok(())
    }

    /// Submits the recorded dispatches, without waiting for them.
    pub(crate) fn flush(&self) -> Result<()> {
        self.submit(&mut lock(&self.recorded))
    }

    fn submit(&self, recorded: &mut Recorded) -> Result<()> {
        if recorded.dispatches.is_empty() {
            return self.check_failure();
        }
        let dispatches = std::mem::take(&mut recorded.dispatches);
        let bytes = std::mem::take(&mut recorded.bytes);
        self.scoped("submit", || {
            self.queue.write_buffer(&recorded.parameters, 0, &bytes);
            let mut encoder = self.device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            for dispatch in &dispatches {
                pass.set_pipeline(&dispatch.shader.pipeline);
                pass.set_bind_group(0, &dispatch.bind_group, &[]);
                pass.dispatch_workgroups(dispatch.groups[0], dispatch.groups[1], 1);
            }
            drop(pass);
            self.queue.submit([encoder.finish()]);
        })
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
        let (class, buffer) = self.allocate(cases.len() * 4)?;
        self.dispatch("probe", shader, &parameters, &[&buffer], 1)?;
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
