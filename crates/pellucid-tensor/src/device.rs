//! `Device`: a handle of the hardware that stores arrays and runs kernels.

use pellucid_ir::backend::{Backend, MemoryStats};
use pellucid_ir::{Error, Result};
use std::fmt;

/// A device that stores arrays and runs kernels. The handle is cheap to copy; equal handles denote the same device.
///
/// The only device is the [CPU](Device::cpu): no build has a GPU backend.
#[derive(Clone, Copy)]
pub struct Device {
    /// A reference to a reference, because every array holds its device, and a reference to `dyn Backend` has twice the
    /// size of a thin reference.
    backend: &'static &'static dyn Backend,
}

static CPU: &dyn Backend = &pellucid_cpu::Cpu;

impl Device {
    /// Returns the CPU, which every build supports.
    #[inline]
    pub fn cpu() -> Device {
        Device { backend: &CPU }
    }

    /// Returns the first GPU. No build has a GPU backend.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`], always.
    pub fn gpu() -> Result<Device> {
        Err(Error::DeviceUnavailable { device: "gpu".into(), reason: "this build has no GPU backend".into() })
    }

    /// Returns the fastest device, which is the CPU. The first call in a process reports the missing GPU on standard
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

    /// Waits until all submitted kernels have run. On the CPU they have run already.
    pub fn synchronize(&self) -> Result<()> {
        self.backend.synchronize()
    }

    /// Returns the bytes that tensors use on the device, and the bytes that the allocator keeps for reuse.
    pub fn memory_stats(&self) -> MemoryStats {
        self.backend.memory_stats()
    }

    /// Limits the bytes that tensors may use. An operation that exceeds the limit fails with [`Error::OutOfMemory`].
    /// `usize::MAX` removes the limit.
    pub fn set_memory_cap(&self, bytes: usize) {
        self.backend.set_memory_cap(bytes);
    }

    /// Returns the memory that the allocator keeps for reuse to the system.
    pub fn trim(&self) {
        self.backend.trim();
    }

    #[inline]
    pub(crate) fn backend(&self) -> &'static dyn Backend {
        *self.backend
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
