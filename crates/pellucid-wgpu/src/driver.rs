//! [`WgpuDriver`]: finds the adapters of this machine and opens devices on them.

use crate::backend::Wgpu;
use crate::device::{Gpu, block_on};
use pellucid_ir::backend::{Backend, DeviceKind, Driver};
use pellucid_ir::{Error, Result};
use std::sync::OnceLock;

/// The driver of all Vulkan adapters. Its devices are named `wgpu:0`, `wgpu:1`, ...
///
/// Hardware adapters come before software adapters. If a machine has fewer adapters than an index requires, several
/// devices share an adapter; each has its own memory and queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct WgpuDriver;

/// Returns the adapters that can run compute shaders, hardware first. The list is made once.
fn adapters() -> &'static [wgpu::Adapter] {
    static ADAPTERS: OnceLock<Vec<wgpu::Adapter>> = OnceLock::new();
    ADAPTERS.get_or_init(|| {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::VULKAN;
        let instance = wgpu::Instance::new(descriptor);
        let mut adapters = block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
        adapters.sort_by_key(|adapter| match adapter.get_info().device_type {
            wgpu::DeviceType::DiscreteGpu => 0,
            wgpu::DeviceType::IntegratedGpu => 1,
            wgpu::DeviceType::VirtualGpu => 2,
            wgpu::DeviceType::Other => 3,
            wgpu::DeviceType::Cpu => 4,
        });
        adapters
    })
}

impl Driver for WgpuDriver {
    fn name(&self) -> &'static str {
        "wgpu"
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Gpu
    }

    /// Returns whether the machine has an adapter. It creates an instance of the graphics API, but no device.
    fn is_available(&self) -> bool {
        !adapters().is_empty()
    }

    fn open(&self, index: usize) -> Result<Box<dyn Backend>> {
        Ok(Box::new(self.open_device(index)?))
    }
}

impl WgpuDriver {
    /// Opens the device with this index.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if there is no adapter or the adapter refuses a device.
    pub fn open_device(&self, index: usize) -> Result<Wgpu> {
        let adapters = adapters();
        let name = format!("wgpu:{index}");
        if adapters.is_empty() {
            let reason = "no Vulkan adapter was found; install a graphics driver, or mesa-vulkan-drivers for the \
                          software adapter";
            return Err(Error::DeviceUnavailable { device: name, reason: reason.into() });
        }
        Ok(Wgpu::new(Gpu::open(&adapters[index % adapters.len()], name)?))
    }
}
