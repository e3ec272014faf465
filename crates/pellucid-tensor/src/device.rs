//! Devices: where arrays live and kernels run.

use pellucid_ir::backend::{Backend, MemoryStats};
use pellucid_ir::{Error, Result};
use std::fmt;

/// A device that stores arrays and runs kernels. A cheap handle; equal handles mean the same device.
///
/// There is one today, the [CPU](Device::cpu): no build has a GPU backend.
#[derive(Clone, Copy)]
pub struct Device {
    /// Twice a reference: every array holds its device, and this one is thin.
    backend: &'static &'static dyn Backend,
}

static CPU: &dyn Backend = &pellucid_cpu::Cpu;

impl Device {
    /// Returns the CPU with its memory, which every build has.
    #[inline]
    pub fn cpu() -> Device {
        Device { backend: &CPU }
    }

    /// Returns the first GPU. There is none today: no build has a GPU backend.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`], always.
    pub fn gpu() -> Result<Device> {
        Err(Error::DeviceUnavailable { device: "gpu".into(), reason: "this build has no GPU backend".into() })
    }

    /// Returns the fastest device: today the CPU, since there is no other. The first call in a process says so on standard
    /// error.
    pub fn best() -> Device {
        static WARNED: std::sync::Once = std::sync::Once::new();
        Device::gpu().unwrap_or_else(|why| {
            WARNED.call_once(|| eprintln!("pellucid: {why}; using the cpu"));
            Device::cpu()
        })
    }

    /// Returns the device's name: `cpu`.
    pub fn name(&self) -> &str {
        self.backend.name()
    }

    /// Waits until everything submitted so far is done; nothing to wait for on the CPU.
    pub fn synchronize(&self) -> Result<()> {
        self.backend.synchronize()
    }

    /// Bytes that tensors hold on the device, and that are kept for reuse.
    pub fn memory_stats(&self) -> MemoryStats {
        self.backend.memory_stats()
    }

    /// Limits the bytes that tensors may hold; beyond it operations fail with
    /// [`Error::OutOfMemory`]. `usize::MAX` lifts the limit.
    pub fn set_memory_cap(&self, bytes: usize) {
        self.backend.set_memory_cap(bytes);
    }

    /// Returns memory that is kept for reuse to the system.
    pub fn trim(&self) {
        self.backend.trim();
    }

    #[inline]
    pub(crate) fn backend(&self) -> &'static dyn Backend {
        *self.backend
    }

    /// The one device of several arrays.
    pub(crate) fn common(op: &'static str, devices: impl IntoIterator<Item = Device> + Clone) -> Result<Device> {
        let mut all = devices.clone().into_iter();
        let Some(first) = all.next() else { return Ok(Device::cpu()) };
        if all.all(|d| d == first) {
            return Ok(first);
        }
        let names = devices.into_iter().map(|d| d.name().to_string()).collect();
        Err(Error::DeviceMismatch { op, devices: names })
    }
}

impl PartialEq for Device {
    #[inline]
    fn eq(&self, other: &Device) -> bool {
        std::ptr::eq(self.backend, other.backend)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
