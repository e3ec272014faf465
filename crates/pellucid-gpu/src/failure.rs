//! [`DeviceFailure`]: the first error after which a device cannot be used.

use pellucid_ir::{Error, Result, lock};
use std::fmt::Display;
use std::sync::Mutex;

/// The name of a device, and the first error after which it cannot be used: an error that no call returned, such as the
/// loss of the device, or a failed submission of recorded dispatches.
#[derive(Debug)]
pub struct DeviceFailure {
    device: String,
    reason: Mutex<Option<String>>,
}

impl DeviceFailure {
    /// Creates the record of a device with this name that has not failed.
    pub fn new(device: String) -> DeviceFailure {
        DeviceFailure { device, reason: Mutex::default() }
    }

    /// Returns the name of the device: `wgpu:0`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Returns the error of a device that cannot be used.
    pub fn unavailable(&self, reason: impl Display) -> Error {
        Error::DeviceUnavailable { device: self.device.clone(), reason: reason.to_string() }
    }

    /// Marks the device as failed, so that every later use of it returns this error. An earlier failure has precedence.
    pub fn fail(&self, reason: String) -> Error {
        self.unavailable(lock(&self.reason).get_or_insert(reason))
    }

    /// Returns an error if the device has failed.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] with the first reason.
    pub fn check(&self) -> Result<()> {
        lock(&self.reason).as_ref().map_or(Ok(()), |reason| Err(self.unavailable(reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_the_error_of_all_later_calls() {
        let failure = DeviceFailure::new("wgpu:3".into());
        assert_eq!((failure.device(), failure.check()), ("wgpu:3", Ok(())));
        let first = failure.fail("lost".into());
        assert_eq!(first, Error::DeviceUnavailable { device: "wgpu:3".into(), reason: "lost".into() });
        assert_eq!((failure.fail("later".into()), failure.check()), (first.clone(), Err(first)));
    }
}
