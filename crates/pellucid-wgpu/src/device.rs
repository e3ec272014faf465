//! [`GraphicsDevice`]: a device of the graphics API with its queue, its limits and its errors.

use pellucid_gpu::{AtomicCounters, DeviceFailure, DeviceLimits};
use pellucid_ir::{Error, Result};
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The feature that timestamps need.
pub(crate) const TIMESTAMPS: wgpu::Features = wgpu::Features::TIMESTAMP_QUERY;

/// The features with which a device is opened if the adapter has them.
const OPTIONAL_FEATURES: wgpu::Features = TIMESTAMPS.union(wgpu::Features::SUBGROUP).union(wgpu::Features::SHADER_F16);

/// A device of the graphics API.
pub(crate) struct GraphicsDevice {
    /// The description of the adapter.
    pub(crate) adapter: wgpu::AdapterInfo,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) limits: DeviceLimits,
    pub(crate) counters: AtomicCounters,
    /// The name of the device, `wgpu:0`, and its failure: an error that no error scope caught, such as the loss of the
    /// device, or a failed submission of recorded dispatches.
    pub(crate) failure: Arc<DeviceFailure>,
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

/// Returns the limits for kernels.
fn device_limits(limits: &wgpu::Limits) -> DeviceLimits {
    // The words of a buffer have indices of 32 bits. Shaders read four words together.
    let bytes = [limits.max_buffer_size, limits.max_storage_buffer_binding_size, 4 * u64::from(u32::MAX)];
    DeviceLimits {
        bindings: limits.max_storage_buffers_per_shader_stage.saturating_sub(2) as usize,
        groups: limits.max_compute_workgroups_per_dimension as usize,
        buffer_bytes: usize::try_from(bytes.into_iter().min().unwrap_or(0)).unwrap_or(usize::MAX) & !15,
        parameter_alignment: limits.min_storage_buffer_offset_alignment.max(4) as usize,
    }
}

impl GraphicsDevice {
    /// Opens a device on `adapter`.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if the adapter cannot create a device.
    pub(crate) fn open(adapter: &wgpu::Adapter, name: String) -> Result<GraphicsDevice> {
        let (required_features, required_limits) = (adapter.features() & OPTIONAL_FEATURES, adapter.limits());
        let descriptor = wgpu::DeviceDescriptor { required_features, required_limits, ..Default::default() };
        let failure = Arc::new(DeviceFailure::new(name));
        let opened = block_on(adapter.request_device(&descriptor));
        let (device, queue) = opened.map_err(|error| failure.unavailable(error))?;
        let uncaught = failure.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            uncaught.fail(error.to_string());
        }));
        let lost = failure.clone();
        device.set_device_lost_callback(move |reason, message| {
            // A device is destroyed when its last handle is dropped, which is no failure.
            if reason != wgpu::DeviceLostReason::Destroyed {
                lost.fail(format!("the device was lost: {message}"));
            }
        });
        let (adapter, limits) = (adapter.get_info(), device_limits(&device.limits()));
        Ok(GraphicsDevice { adapter, device, queue, limits, counters: AtomicCounters::default(), failure })
    }

    /// Creates a buffer and counts it. The graphics API reports errors to the error scopes of the caller.
    pub(crate) fn create_buffer(&self, label: &'static str, bytes: usize, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        self.counters.buffers.add(1);
        let (label, size) = (Some(label), bytes as u64);
        self.device.create_buffer(&wgpu::BufferDescriptor { label, size, usage, mapped_at_creation: false })
    }

    /// Runs `action`, and returns its result or the error that the graphics API reports for it.
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
            None => self.failure.check().map(|()| result),
            Some(wgpu::Error::OutOfMemory { .. }) => Err(Error::out_of_memory(0)),
            Some(error) => {
                let device = self.failure.device();
                Err(Error::invalid(op, format!("the device {device} rejected a command: {error}")))
            }
        }
    }

    /// Waits for a submission that writes a staging buffer, and passes the contents to `receive`.
    pub(crate) fn read_staging<T>(
        &self,
        staging: &wgpu::Buffer,
        written: wgpu::SubmissionIndex,
        receive: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        staging.map_async(wgpu::MapMode::Read, .., |_| {});
        self.wait(wgpu::PollType::Wait { submission_index: Some(written), timeout: None })?;
        let received = receive(&staging.get_mapped_range(..).map_err(|error| self.failure.unavailable(error))?);
        staging.unmap();
        Ok(received)
    }

    /// Waits for submitted work.
    pub(crate) fn wait(&self, work: wgpu::PollType) -> Result<()> {
        self.device.poll(work).map_err(|error| self.failure.unavailable(error))?;
        self.failure.check()
    }
}
