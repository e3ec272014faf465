//! Streams on which steps are launched, and a timer for them.

use pellucid_tensor::{Device, Error, Result};
use std::time::{Duration, Instant};

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

    /// Creates the stream of a step.
    pub(super) fn of_steps(device: Device, eager: bool) -> Stream {
        Stream { device, eager }
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

/// A timer for the work on a stream. It measures a closed interval, from [`start`](Timer::start) to
/// [`stop`](Timer::stop).
///
/// ```
/// use pellucid::nn::graph::mirror::Timer;
/// let mut timer = Timer::new(None);
/// timer.start()?;
/// // Launches on the stream are measured.
/// let milliseconds = timer.stop()?;
/// assert_eq!(timer.ms()?, milliseconds); // at any later time
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Debug)]
pub struct Timer {
    stream: Stream,
    /// The start of the interval, once [`start`](Timer::start) was called.
    start: Option<Instant>,
    /// The length of the interval, once it is closed.
    elapsed: Option<Duration>,
}

impl Timer {
    /// Creates a timer for a stream. `None` means the default stream of the CPU.
    pub fn new(stream: impl Into<Option<Stream>>) -> Timer {
        Timer { stream: stream.into().unwrap_or_default(), start: None, elapsed: None }
    }

    /// Waits for all launched work, then starts the interval. A second call starts a new interval.
    ///
    /// # Errors
    /// The errors of [`Stream::synchronize`].
    pub fn start(&mut self) -> Result<()> {
        self.stream.synchronize()?;
        (self.start, self.elapsed) = (Some(Instant::now()), None);
        Ok(())
    }

    /// Waits for all launched work, ends the interval and returns its length in milliseconds. A second call returns the
    /// same length.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`start`](Timer::start); the errors of [`Stream::synchronize`], after which
    /// the interval is still open.
    pub fn stop(&mut self) -> Result<f64> {
        let Some(start) = self.start else {
            return Err(Error::invalid("Timer", "the interval was not started; call start() before stop()"));
        };
        if self.elapsed.is_none() {
            self.stream.synchronize()?;
            self.elapsed = Some(start.elapsed());
        }
        self.ms()
    }

    /// Returns the length of the interval in milliseconds, without waiting.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`stop`](Timer::stop).
    pub fn ms(&self) -> Result<f64> {
        let open = || Error::invalid("Timer", "the interval is still open; call stop() at its end");
        Ok(self.elapsed.ok_or_else(open)?.as_secs_f64() * 1e3)
    }
}
