//! Devices that run the kernels of the CPU. One defers them, and therefore fuses by the rules of launch-bound plans.
//! One has no kernels of its own.

#[path = "../../../../../pellucid-cpu/src/forwarding.rs"]
mod forwarding;

use forwarding::ForwardingCpu;
use pellucid_cpu::Cpu;
use pellucid_ir::backend::{Backend, DeviceKind, Driver};
use pellucid_tensor::{Device, Result};
use std::sync::Once;

/// Returns the device that defers kernels.
pub fn launch_bound() -> Device {
    device("launch_bound:1")
}

/// Returns the device that runs kernels immediately.
pub fn unfused() -> Device {
    device("launch_bound:0")
}

/// Returns the device whose kernels all run by a fallback.
pub fn without_kernels() -> Device {
    device("launch_bound:2")
}

fn device(name: &str) -> Device {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| Device::register(LaunchBoundDriver).expect("the name of the driver must be new"));
    name.parse().expect("a registered device must be found")
}

struct LaunchBoundDriver;

impl Driver for LaunchBoundDriver {
    fn name(&self) -> &'static str {
        "launch_bound"
    }
    fn kind(&self) -> DeviceKind {
        DeviceKind::Gpu
    }
    fn is_available(&self) -> bool {
        true
    }
    fn open(&self, index: usize) -> Result<Box<dyn Backend>> {
        let (name, is_deferred, lacks_kernels) = (format!("launch_bound:{index}"), index == 1, index == 2);
        Ok(Box::new(ForwardingCpu { name, is_deferred, lacks_kernels, ..ForwardingCpu::default() }))
    }
}
