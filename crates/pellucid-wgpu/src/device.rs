//! [`GraphicsDevice`]: a device of the graphics API with its queue, its limits and its errors.

use crate::counters::AtomicCounters;
use pellucid_ir::{Error, Result, lock};
use std::fmt::Display;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// The feature that timestamps need.
pub(crate) const TIMESTAMPS: wgpu::Features = wgpu::Features::TIMESTAMP_QUERY;

/// The features with which a device is opened if the adapter has them.
const OPTIONAL_FEATURES: wgpu::Features = TIMESTAMPS.union(wgpu::Features::SUBGROUP).union(wgpu::Features::SHADER_F16);

/// A device of the graphics API.
pub(crate) struct GraphicsDevice {
    /// The name of the device: `wgpu:0`.
    pub(crate) name: String,
    /// The description of the adapter.
    pub(crate) adapter: wgpu::AdapterInfo,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    limits: wgpu::Limits,
    pub(crate) counters: AtomicCounters,
    /// The first error after which the device cannot be used: an error that no error scope caught, such as the loss of
    /// the device, or a failed submission of recorded dispatches.
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

impl GraphicsDevice {
    /// Opens a device on `adapter`.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if the adapter cannot create a device.
    pub(crate) fn open(adapter: &wgpu::Adapter, name: String) -> Result<GraphicsDevice> {
        let (required_features, required_limits) = (adapter.features() & OPTIONAL_FEATURES, adapter.limits());
        let descriptor = wgpu::DeviceDescriptor { required_features, required_limits, ..Default::default() };
        let (device, queue) = block_on(adapter.request_device(&descriptor))
            .map_err(|error| Error::DeviceUnavailable { device: name.clone(), reason: error.to_string() })?;
        let failure: Arc<Mutex<Option<String>>> = Arc::default();
        let uncaught = failure.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            lock(&uncaught).get_or_insert(error.to_string());
        }));
        let lost = failure.clone();
        device.set_device_lost_callback(move |reason, message| {
            // A device is destroyed when its last handle is dropped, which is no failure.
            if reason != wgpu::DeviceLostReason::Destroyed {
                lock(&lost).get_or_insert(format!("the device was lost: {message}"));
            }
        });
        let (adapter, limits, counters) = (adapter.get_info(), device.limits(), AtomicCounters::default());
        Ok(GraphicsDevice { name, adapter, device, queue, limits, counters, failure })
    }

    /// Returns the number of buffers that a dispatch can bind in addition to its parameters and the status buffer.
    pub(crate) fn max_bindings(&self) -> usize {
        self.limits.max_storage_buffers_per_shader_stage.saturating_sub(2) as usize
    }

    /// Returns the maximum number of workgroups along one axis.
    pub(crate) fn max_groups(&self) -> usize {
        self.limits.max_compute_workgroups_per_dimension as usize
    }

    /// Returns the size in bytes of the largest buffer that a shader can bind and whose words have indices of 32 bits:
    /// a multiple of four words, which shaders read together.
    pub(crate) fn max_buffer_bytes(&self) -> usize {
        let limits =
            [self.limits.max_buffer_size, self.limits.max_storage_buffer_binding_size, 4 * u64::from(u32::MAX)];
        usize::try_from(limits.into_iter().min().unwrap_or(0)).unwrap_or(usize::MAX) & !15
    }

    /// Returns the alignment of the parameters of a dispatch in bytes.
    pub(crate) fn parameter_alignment(&self) -> usize {
        self.limits.min_storage_buffer_offset_alignment.max(4) as usize
    }

    /// Creates a buffer and counts it. The graphics API reports errors to the error scopes of the caller.
    pub(crate) fn create_buffer(&self, label: &'static str, bytes: usize, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        self.counters.buffers.add(1);
        let (label, size) = (Some(label), bytes as u64);
        self.device.create_buffer(&wgpu::BufferDescriptor { label, size, usage, mapped_at_creation: false })
    }

    /// Returns the error of a device that cannot be used.
    pub(crate) fn unavailable(&self, reason: impl Display) -> Error {
        Error::DeviceUnavailable { device: self.name.clone(), reason: reason.to_string() }
    }

    /// Marks the device as failed, so that every later use of it returns this error. An earlier failure has precedence.
    pub(crate) fn fail(&self, reason: String) -> Error {
        self.unavailable(lock(&self.failure).get_or_insert(reason))
    }

    /// Returns an error if the device has failed.
    pub(crate) fn check_failure(&self) -> Result<()> {
        lock(&self.failure).as_ref().map_or(Ok(()), |reason| Err(self.unavailable(reason)))
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
            None => self.check_failure().map(|()| result),
            Some(wgpu::Error::OutOfMemory { .. }) => Err(Error::out_of_memory(usize::MAX)),
            Some(error) => Err(Error::invalid(op, format!("the device {} rejected a command: {error}", self.name))),
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
        let received = receive(&staging.get_mapped_range(..).map_err(|error| self.unavailable(error))?);
        staging.unmap();
        Ok(received)
    }

    /// Waits for submitted work.
    pub(crate) fn wait(&self, work: wgpu::PollType) -> Result<()> {
        self.device.poll(work).map_err(|error| self.unavailable(error))?;
        self.check_failure()
    }
}
