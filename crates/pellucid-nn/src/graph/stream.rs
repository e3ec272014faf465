//! Streams on which steps are launched, and a timer for them.

use pellucid_tensor::{Device, Result};
use std::time::Instant;

/// A device's ordered queue of work: launches run in order. On the CPU, a launch has finished when it returns.
#[derive(Clone, Debug)]
pub struct Stream {
    device: Device,
    eager: bool,
}

impl Stream {
    /// Creates a stream of a device.
    pub fn new(device: Device) -> Stream {
        Stream { device, eager: false }
    }

    /// Creates a stream on which steps run eagerly, operation by operation, as on a device without capture. Results are
    /// the same, and a debugger can step through the operations.
    pub fn eager(device: Device) -> Stream {
        Stream { device, eager: true }
    }

    /// Returns the device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Whether this stream was created by [`eager`](Stream::eager).
    pub fn is_eager(&self) -> bool {
        self.eager
    }

    /// Waits until all launched work has finished.
    ///
    /// # Errors
    /// The error of work that failed.
    pub fn synchronize(&self) -> Result<()> {
        self.device.synchronize()
    }
}

impl Default for Stream {
    /// Returns a stream of the CPU.
    fn default() -> Stream {
        Stream::new(Device::cpu())
    }
}

/// A timer for the work on a stream.
///
/// ```
/// use pellucid_nn::graph::{Stream, Timer};
/// let stream = Stream::default();
/// let timer = Timer::start(&stream)?;
/// let first = timer.ms()?;
/// assert!(0.0 <= first && first <= timer.ms()?);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct Timer {
    stream: Stream,
    start: Instant,
}

impl Timer {
    /// Waits for all launched work, then starts the timer.
    ///
    /// # Errors
    /// Those of [`Stream::synchronize`].
    pub fn start(stream: &Stream) -> Result<Timer> {
        stream.synchronize()?;
        Ok(Timer { stream: stream.clone(), start: Instant::now() })
    }

    /// Waits for all launched work and returns the milliseconds since the start.
    ///
    /// # Errors
    /// Those of [`Stream::synchronize`].
    pub fn ms(&self) -> Result<f64> {
        self.stream.synchronize()?;
        Ok(self.start.elapsed().as_secs_f64() * 1e3)
    }
}
