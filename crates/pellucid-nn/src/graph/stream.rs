//! The queue on which a step is launched, and how long it takes there.

use pellucid_tensor::{Device, Result};
use std::time::Instant;

/// A device's ordered queue of work: what is launched on it runs in order. On the CPU a launch has run when it returns.
#[derive(Clone, Debug)]
pub struct Stream {
    device: Device,
    eager: bool,
}

impl Stream {
    /// The queue of a device.
    pub fn new(device: Device) -> Stream {
        Stream { device, eager: false }
    }

    /// A queue on which steps run eagerly, operation by operation, as where a device cannot capture: they do the same, and
    /// can be stepped through.
    pub fn eager(device: Device) -> Stream {
        Stream { device, eager: true }
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Whether steps run eagerly here because that was asked for.
    pub fn is_eager(&self) -> bool {
        self.eager
    }

    /// Waits until everything that was launched is done.
    ///
    /// # Errors
    /// That of work that failed.
    pub fn synchronize(&self) -> Result<()> {
        self.device.synchronize()
    }
}

impl Default for Stream {
    /// The CPU's.
    fn default() -> Stream {
        Stream::new(Device::cpu())
    }
}

/// Measures what is launched on a stream.
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
    /// Starts when everything launched so far is done.
    ///
    /// # Errors
    /// Those of [`Stream::synchronize`].
    pub fn start(stream: &Stream) -> Result<Timer> {
        stream.synchronize()?;
        Ok(Timer { stream: stream.clone(), start: Instant::now() })
    }

    /// Milliseconds from the start until everything launched since is done.
    ///
    /// # Errors
    /// Those of [`Stream::synchronize`].
    pub fn ms(&self) -> Result<f64> {
        self.stream.synchronize()?;
        Ok(self.start.elapsed().as_secs_f64() * 1e3)
    }
}
