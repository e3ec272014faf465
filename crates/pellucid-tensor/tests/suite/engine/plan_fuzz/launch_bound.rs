//! A device that runs the kernels of the CPU, defers them, and therefore fuses by the rules of launch-bound plans.

use pellucid_cpu::Cpu;
use pellucid_ir::backend::{Backend, CompiledPlan, DeviceKind, Driver, MemoryStats, Storage, View};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::plan::Plan;
use pellucid_tensor::{Device, Result};
use std::sync::{Arc, Once};

/// Returns the device.
pub fn launch_bound() -> Device {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| Device::register(LaunchBoundDriver).expect("the name of the driver must be new"));
    "launch_bound:0".parse().expect("a registered device must be found")
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
        Ok(Box::new(LaunchBoundCpu { name: format!("launch_bound:{index}") }))
    }
}

struct LaunchBoundCpu {
    name: String,
}

impl Backend for LaunchBoundCpu {
    fn name(&self) -> &str {
        &self.name
    }
    fn is_deferred(&self) -> bool {
        true
    }
    fn storage(&self, bytes: usize) -> Result<Arc<Storage>> {
        Cpu.storage(bytes)
    }
    fn run(&self, kernel: &Kernel, inputs: &[View<'_>], outputs: &[View<'_>]) -> Result<()> {
        Cpu.run(kernel, inputs, outputs)
    }
    fn upload(&self, bytes: &[u8], to: &Storage) -> Result<()> {
        Cpu.upload(bytes, to)
    }
    fn download(&self, from: &Storage, offset: usize, into: &mut [u8]) -> Result<()> {
        Cpu.download(from, offset, into)
    }
    fn synchronize(&self) -> Result<()> {
        Cpu.synchronize()
    }
    fn prepare(&self, plan: &Plan) -> Result<Option<Box<dyn CompiledPlan>>> {
        Cpu.prepare(plan)
    }
    fn memory_stats(&self) -> MemoryStats {
        Cpu.memory_stats()
    }
    fn set_memory_cap(&self, bytes: usize) {
        Cpu.set_memory_cap(bytes);
    }
    fn trim(&self) {
        Cpu.trim();
    }
}
