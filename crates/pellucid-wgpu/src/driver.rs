//! [`WgpuDriver`]: finds the adapters of this machine and opens devices on them.

use crate::api::WgpuApi;
use crate::device::block_on;
use pellucid_gpu::GpuBackend;
use pellucid_ir::backend::{Backend, DeviceKind, Driver};
use pellucid_ir::{Error, Result};
use std::sync::OnceLock;

/// A device of [`WgpuDriver`].
pub type Wgpu = GpuBackend<WgpuApi>;

/// The driver of all adapters of the first available API among Vulkan, Metal and Direct3D 12. Its devices are named
/// `wgpu:0`, `wgpu:1`, ...
///
/// Hardware adapters come before software adapters. If a machine has fewer adapters than an index requires, several
/// devices share an adapter; each has its own memory and queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct WgpuDriver;

/// The graphics APIs in the order of preference. Only the APIs of the operating system are compiled.
const APIS: [wgpu::Backends; 3] = [wgpu::Backends::VULKAN, wgpu::Backends::METAL, wgpu::Backends::DX12];

/// Returns the adapters of the first graphics API that has any, hardware first. The list is built once.
fn adapters() -> &'static [wgpu::Adapter] {
    static ADAPTERS: OnceLock<Vec<wgpu::Adapter>> = OnceLock::new();
    ADAPTERS.get_or_init(|| {
        let api_adapters = |api| {
            let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
            descriptor.backends = api;
            block_on(wgpu::Instance::new(descriptor).enumerate_adapters(api))
        };
        let mut adapters = APIS.into_iter().map(api_adapters).find(|adapters| !adapters.is_empty()).unwrap_or_default();
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

    /// Returns true if the machine has an adapter. It creates an instance of the graphics API, but no device.
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
    /// [`Error::DeviceUnavailable`] if there is no adapter, or if the adapter cannot create a device or run a test
    /// shader.
    pub fn open_device(&self, index: usize) -> Result<Wgpu> {
        Wgpu::new(self.open_api(index)?)
    }

    /// Opens the device with this index, without the optional features of its adapter: fused multiply-adds, subgroups
    /// and conversions of half precision. All results are bit-identical to those with them. Tests use it to run the
    /// shaders of adapters without the features.
    ///
    /// # Errors
    /// The errors of [`open_device`](WgpuDriver::open_device).
    pub fn open_device_without_features(&self, index: usize) -> Result<Wgpu> {
        Wgpu::without_features(self.open_api(index)?)
    }

    /// Opens the device with this index, without its kernels.
    pub(crate) fn open_api(&self, index: usize) -> Result<WgpuApi> {
        let adapters = adapters();
        let name = format!("wgpu:{index}");
        if adapters.is_empty() {
            let reason = "no adapter of Vulkan, Metal or Direct3D 12 was found; install a graphics driver, or on Linux \
                          mesa-vulkan-drivers for the software adapter";
            return Err(Error::DeviceUnavailable { device: name, reason: reason.into() });
        }
        WgpuApi::open(&adapters[index % adapters.len()], name)
    }
}
