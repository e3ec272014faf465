//! [`WgpuApi`]: the calls of `wgpu`.

use crate::compiler::{CompiledShader, ShaderCompiler};
use crate::device::GraphicsDevice;
use crate::submission::{ParameterBindGroups, PreparedDispatches, submit_batch};
use crate::timestamps::Timestamps;
use pellucid_gpu::{
    AtomicCounters, ComputeApi, DeviceFailure, DeviceLimits, DispatchBatch, KernelSource, NO_FAILURE, OptionalFeatures,
    PARAMETER_BYTES, PlannedDispatches, STATUS_WORDS, SubmissionFailure, Wgsl, status_words,
};
use pellucid_ir::Result;
use std::ops::Range;
use std::time::Duration;

/// The size of the status buffer in bytes.
const STATUS_BYTES: usize = 4 * STATUS_WORDS;

/// A device of `wgpu`.
pub struct WgpuApi {
    graphics: GraphicsDevice,
    compiler: ShaderCompiler,
    /// The status buffer, and the buffer to which it is copied for the host.
    status: wgpu::Buffer,
    status_copy: wgpu::Buffer,
    /// The parameters of a batch of dispatches, and their bind groups.
    parameters: wgpu::Buffer,
    headers: ParameterBindGroups,
}

impl WgpuApi {
    /// Opens a device on `adapter`.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`](pellucid_ir::Error::DeviceUnavailable) if the adapter cannot create a device.
    pub(crate) fn open(adapter: &wgpu::Adapter, name: String) -> Result<WgpuApi> {
        use wgpu::BufferUsages as Usage;
        let graphics = GraphicsDevice::open(adapter, name)?;
        let compiler = ShaderCompiler::new(&graphics.device);
        let (to_host, from_host) = (Usage::MAP_READ | Usage::COPY_DST, Usage::STORAGE | Usage::COPY_DST);
        let status = graphics.create_buffer("status", STATUS_BYTES, from_host | Usage::COPY_SRC);
        let status_copy = graphics.create_buffer("status copy", STATUS_BYTES, to_host);
        // The window of `PARAMETER_BYTES` bytes that a dispatch binds must be within the buffer.
        let parameters = graphics.create_buffer("parameters", 2 * PARAMETER_BYTES, from_host);
        let headers = ParameterBindGroups::new(&graphics, &compiler, (&parameters, PARAMETER_BYTES), &status);
        let api = WgpuApi { graphics, compiler, status, status_copy, parameters, headers };
        api.write_status();
        Ok(api)
    }

    /// Resets the status before the next submission. The graphics API reports errors to the error scopes of the caller.
    fn write_status(&self) {
        self.graphics.queue.write_buffer(&self.status, 0, &NO_FAILURE.map(u32::to_ne_bytes).concat());
    }

    /// Adds a copy of the status to a command buffer.
    fn copy_status(&self, encoder: &mut wgpu::CommandEncoder) {
        encoder.copy_buffer_to_buffer(&self.status, 0, &self.status_copy, 0, STATUS_BYTES as u64);
    }
}

impl ComputeApi for WgpuApi {
    type Language = Wgsl;
    type Memory = wgpu::Buffer;
    type Kernel = CompiledShader;
    type Prepared = PreparedDispatches;
    type Submission = wgpu::SubmissionIndex;
    type Timer = Timestamps;

    fn adapter(&self) -> &str {
        &self.graphics.adapter.name
    }

    fn is_software(&self) -> bool {
        self.graphics.adapter.device_type == wgpu::DeviceType::Cpu
    }

    fn limits(&self) -> DeviceLimits {
        self.graphics.limits
    }

    fn optional_features(&self) -> OptionalFeatures {
        let features = self.graphics.device.features();
        OptionalFeatures {
            subgroups: features.contains(wgpu::Features::SUBGROUP),
            f16: features.contains(wgpu::Features::SHADER_F16),
            matrix_units: false,
            library_products: false,
            large_shared_memory: false,
        }
    }

    fn failure(&self) -> &DeviceFailure {
        &self.graphics.failure
    }

    fn counters(&self) -> &AtomicCounters {
        &self.graphics.counters
    }

    fn allocate(&self, bytes: usize) -> Result<wgpu::Buffer> {
        use wgpu::BufferUsages as Usage;
        let usage = Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST;
        self.graphics.scoped("allocate", || self.graphics.create_buffer("memory", bytes, usage))
    }

    fn write(&self, to: &wgpu::Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
        self.graphics.scoped("upload", || self.graphics.queue.write_buffer(to, offset as u64, bytes))
    }

    fn read(&self, from: &wgpu::Buffer, range: Range<usize>, receive: impl FnOnce(&[u8])) -> Result<()> {
        let (staging, copied) = self.graphics.scoped("download", || {
            let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
            let staging = self.graphics.create_buffer("staging", range.len(), usage);
            let mut encoder = self.graphics.device.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(from, range.start as u64, &staging, 0, range.len() as u64);
            let copied = self.graphics.queue.submit([encoder.finish()]);
            (staging, copied)
        })?;
        self.graphics.read_staging(&staging, copied, receive)
    }

    fn wait(&self) -> Result<()> {
        self.graphics.wait(wgpu::PollType::wait_indefinitely())
    }

    /// Compiles a shader. With the feature `check-translations`, a shader that another graphics API would reject is an
    /// error.
    fn compile(&self, op: &'static str, text: &str, source: &KernelSource<'_>) -> Result<CompiledShader> {
        #[cfg(feature = "check-translations")]
        pellucid_gpu::check_translations(op, text)?;
        self.compiler.compile(&self.graphics, op, text, source)
    }

    fn submit(
        &self,
        batch: DispatchBatch<'_, CompiledShader, wgpu::Buffer>,
        copies_status: bool,
    ) -> Result<wgpu::SubmissionIndex, SubmissionFailure> {
        let submitted = self.graphics.scoped("submit", || {
            self.graphics.queue.write_buffer(&self.parameters, 0, batch.parameters);
            submit_batch(&self.graphics, &self.headers, &batch, |encoder| {
                if copies_status {
                    self.copy_status(encoder);
                }
            })
        });
        Ok(submitted?)
    }

    fn prepare(&self, plan: PlannedDispatches<CompiledShader, wgpu::Buffer>) -> Result<PreparedDispatches> {
        let graphics = &self.graphics;
        graphics.scoped("prepare", || PreparedDispatches::new(graphics, &self.compiler, &self.status, plan))
    }

    fn launch(
        &self,
        prepared: &mut PreparedDispatches,
        slots: &[Option<wgpu::Buffer>],
    ) -> Result<Option<wgpu::SubmissionIndex>> {
        self.graphics.scoped("launch", || prepared.submit(&self.graphics, slots, |encoder| self.copy_status(encoder)))
    }

    fn read_status(&self, copied: wgpu::SubmissionIndex) -> Result<[u32; STATUS_WORDS]> {
        self.graphics.read_staging(&self.status_copy, copied, status_words)
    }

    fn reset_status(&self) -> Result<()> {
        self.graphics.scoped("reset", || self.write_status())
    }

    fn start_timer(&self) -> Result<Option<Timestamps>> {
        Timestamps::start(&self.graphics)
    }

    fn stop_timer(&self, timer: Timestamps) -> Result<Duration> {
        let values = timer.stop(&self.graphics)?;
        let mut time = Duration::ZERO;
        self.read(&values, 0..Timestamps::BYTES, |bytes| time = self.graphics.elapsed(bytes))?;
        Ok(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::WgpuDriver;
    use pellucid_gpu::{BindingUse, KernelFeatures, Language, RecordedDispatch};
    use pellucid_ir::Error;
    use std::sync::Arc;

    /// Returns the source of a kernel that writes 7 to the first word of its buffer.
    fn seven() -> KernelSource<'static> {
        KernelSource {
            features: KernelFeatures::default(),
            bindings: vec![BindingUse::Write],
            parameter_words: 2,
            is_check: false,
            item: Some("thread"),
            has_subgroup_size: false,
            workgroup_arrays: &[],
            body: "    b1[0] = 7u;\n",
        }
    }

    #[test]
    fn a_rejected_submission_is_an_error() {
        let Ok(api) = WgpuDriver.open_api(0) else { return };
        let (source, memory) = (seven(), api.allocate(256).unwrap());
        let kernel = Arc::new(api.compile("seven", &Wgsl::text(&source), &source).unwrap());
        let submit = |buffer: &wgpu::Buffer| {
            let dispatches = [RecordedDispatch { kernel: kernel.clone(), offset: 0, memory: 0..1, groups: [1, 1] }];
            let (parameters, memory) = (&[1, 0, 0, 0, 0, 0, 0, 0], std::slice::from_ref(buffer));
            api.submit(DispatchBatch { parameters, memory, dispatches: &dispatches, marks: &[] }, false)
        };
        // The graphics API rejects a binding of a buffer that is not a storage buffer.
        let rejected = submit(&api.graphics.create_buffer("rejected", 256, wgpu::BufferUsages::COPY_DST));
        let rejected = rejected.map_err(|failure| failure.error);
        assert!(matches!(rejected, Err(Error::InvalidArgument { .. })), "{rejected:?}");
        submit(&memory).unwrap();
        let mut word = [0; 4];
        api.read(&memory, 0..4, |bytes| word.copy_from_slice(bytes)).unwrap();
        assert_eq!(u32::from_ne_bytes(word), 7, "a rejected submission must not prevent later ones");
    }

    #[test]
    fn a_failed_status_skips_kernels_until_it_is_reset() {
        let Ok(api) = WgpuDriver.open_api(0) else { return };
        let (source, memory) = (seven(), api.allocate(256).unwrap());
        let kernel = Arc::new(api.compile("seven", &Wgsl::text(&source), &source).unwrap());
        let dispatches = [RecordedDispatch { kernel, offset: 0, memory: 0..1, groups: [1, 1] }];
        let run = || {
            let (parameters, memory) = (&[1, 0, 0, 0, 0, 0, 0, 0], std::slice::from_ref(&memory));
            let copied =
                api.submit(DispatchBatch { parameters, memory, dispatches: &dispatches, marks: &[] }, true).unwrap();
            let mut word = [0; 4];
            let status = api.read_status(copied).unwrap();
            api.read(&memory[0], 0..4, |bytes| word.copy_from_slice(bytes)).unwrap();
            (u32::from_ne_bytes(word), status)
        };
        api.write(&memory, 0, &[0; 4]).unwrap();
        api.write(&api.status, 0, &[3, 0, 0, 0]).unwrap();
        let (word, status) = run();
        assert_eq!((word, status[0]), (0, 3));
        api.reset_status().unwrap();
        assert_eq!(run(), (7, NO_FAILURE));
    }
}
