//! A backend for tests that forwards all kernels to [`Cpu`].

#![allow(unreachable_pub, reason = "the tests of `pellucid-tensor` compile this file too")]

use super::Cpu;
use pellucid_ir::Result;
use pellucid_ir::backend::{Backend, CheckedKernel, CheckedPlan, CompiledPlan, MemoryStats, Storage};
use std::sync::Arc;

/// A backend whose kernels run on the CPU. Dense maps use the default methods of [`Backend`].
pub struct ForwardingCpu {
    pub name: String,
    pub is_deferred: bool,
}

impl Backend for ForwardingCpu {
    fn name(&self) -> &str {
        &self.name
    }
    fn is_deferred(&self) -> bool {
        self.is_deferred
    }
    fn storage(&self, bytes: usize) -> Result<Arc<Storage>> {
        Cpu.storage(bytes)
    }
    fn run_checked(&self, launch: CheckedKernel<'_>) -> Result<()> {
        Cpu.run_checked(launch)
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
