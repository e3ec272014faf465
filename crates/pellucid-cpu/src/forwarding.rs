//! A backend for tests that forwards all kernels to [`Cpu`].

#![allow(unreachable_pub, reason = "the tests of `pellucid-tensor` compile this file too")]

use super::Cpu;
use pellucid_ir::Result;
use pellucid_ir::backend::{
    Backend, CheckedKernel, CheckedPlan, CompiledPlan, MemoryStats, OperandMeta, Readable, Storage, Support, Writable,
};
use pellucid_ir::kernel::Kernel;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A backend whose kernels run on the CPU. Dense maps use the default methods of [`Backend`].
#[derive(Default)]
pub struct ForwardingCpu {
    pub name: String,
    pub is_deferred: bool,
    /// Whether the backend reports all kernels as unsupported, so that the engine runs them on a fallback.
    pub lacks_kernels: bool,
    /// The number of bytes that were copied from or to the host.
    pub copied: AtomicU64,
}

impl Backend for ForwardingCpu {
    fn name(&self) -> &str {
        &self.name
    }
    fn is_deferred(&self) -> bool {
        self.is_deferred
    }
    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("copied bytes", self.copied.load(Ordering::Relaxed))]
    }
    fn support(&self, _: &Kernel, _: &[OperandMeta<'_>], _: &[OperandMeta<'_>]) -> Support {
        if self.lacks_kernels { Support::Fallback } else { Support::Native }
    }
    fn storage(&self, bytes: usize) -> Result<Arc<Storage>> {
        Cpu.storage(bytes)
    }
    fn run_checked(&self, launch: CheckedKernel<'_>) -> Result<()> {
        Cpu.run_checked(launch)
    }
    fn upload_borrowed(&self, bytes: &[u8], to: Writable<'_>, offset: usize) -> Result<()> {
        self.copied.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Cpu.upload_borrowed(bytes, to, offset)
    }
    fn download_borrowed(&self, from: Readable<'_>, offset: usize, into: &mut [u8]) -> Result<()> {
        self.copied.fetch_add(into.len() as u64, Ordering::Relaxed);
        Cpu.download_borrowed(from, offset, into)
    }
    fn synchronize(&self) -> Result<()> {
        Cpu.synchronize()
    }
    fn prepare_checked(&self, plan: CheckedPlan<'_>) -> Result<Option<Box<dyn CompiledPlan>>> {
        Cpu.prepare_checked(plan)
    }
    fn memory_stats(&self) -> MemoryStats {
        Cpu.memory_stats()
    }
    fn set_memory_cap(&self, bytes: usize) {
        Cpu.set_memory_cap(bytes);
    }

    fn check_memory(&self, bytes: usize) -> Result<()> {
        Cpu.check_memory(bytes)
    }
    fn trim(&self) {
        Cpu.trim();
    }
}
