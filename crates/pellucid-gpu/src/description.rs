//! The dispatches of a kernel: described once, bound to buffers for every run.
//!
//! A description depends on the kernel, on the layouts and dtypes of its operands, and on the operands that share a
//! buffer. It contains neither buffers nor the values of run-time parameters. Descriptions are cached, so a repeated
//! kernel generates no shader source.

use crate::api::ComputeApi;
use crate::cache::GenerationalCache;
use crate::operand::{DeviceArray, DeviceOperands};
use crate::shader::{BufferRef, Parameters};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{DType, Error, Layout, Result, Scalar};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The maximum number of descriptions in a generation of the cache.
const CACHED_DESCRIPTIONS: usize = 1024;

/// One dispatch of a kernel.
pub(crate) struct DispatchDescription<A: ComputeApi> {
    pub(crate) kernel: Arc<A::Kernel>,
    pub(crate) parameters: Parameters,
    /// The buffers of the kernel's bindings.
    pub(crate) buffers: Vec<BufferRef>,
    /// The numbers of workgroups along the first and the second axis.
    pub(crate) groups: [u32; 2],
}

/// The dispatches of a kernel in order.
pub(crate) struct KernelDescription<A: ComputeApi> {
    pub(crate) dispatches: Vec<DispatchDescription<A>>,
    /// The number of bytes that a run adds to [`GpuCounters::bytes`](crate::counters::GpuCounters::bytes).
    pub(crate) bytes: usize,
    /// The sizes of the scratch buffers in bytes.
    pub(crate) scratch: Vec<usize>,
    /// The number of checks that may set the status word.
    pub(crate) checks: u32,
}

/// Returns run-time parameter `index` of a kernel, or 0 if the kernel has no such parameter.
pub(crate) fn kernel_scalar(kernel: &Kernel, index: usize) -> Scalar {
    let [first, second] = kernel.params();
    first.get(index).or_else(|| second.get(index - first.len())).copied().unwrap_or_default()
}

/// Returns an error if a kernel has fewer run-time parameters than its programs read.
pub(crate) fn check_scalars<A: ComputeApi>(kernel: &Kernel, description: &KernelDescription<A>) -> Result<()> {
    let required = description.dispatches.iter().map(|d| d.parameters.required_scalars()).max().unwrap_or(0);
    let passed: usize = kernel.params().iter().map(|list| list.len()).sum();
    if required <= passed {
        return Ok(());
    }
    let reason = format!("the programs of the kernel read {required} run-time parameters, but the kernel has {passed}");
    Err(Error::invalid(kernel.name(), reason))
}

/// A described kernel with the operands for which it was described.
struct CachedDescription<A: ComputeApi> {
    kernel: Kernel,
    inputs: usize,
    operands: Vec<(BufferRef, Layout, DType)>,
    description: Arc<KernelDescription<A>>,
}

impl<A: ComputeApi> CachedDescription<A> {
    fn matches(&self, kernel: &Kernel, operands: &DeviceOperands<'_>) -> bool {
        let is_equal = |((buffer, layout, dtype), array): (&(BufferRef, Layout, DType), &DeviceArray<'_>)| {
            *buffer == array.buffer && *dtype == array.dtype && layout == array.layout
        };
        self.inputs == operands.inputs.len()
            && self.operands.len() == operands.inputs.len() + operands.outputs.len()
            && self.operands.iter().zip(operands.all()).all(is_equal)
            && self.kernel.structure_eq(kernel)
    }
}

/// The descriptions of the most recently run kernels, by the digest of kernel and operands.
pub(crate) struct DescriptionCache<A: ComputeApi>(GenerationalCache<u64, CachedDescription<A>>);

/// Returns the digest of a kernel and its operands.
pub(crate) fn description_digest(kernel: &Kernel, operands: &DeviceOperands<'_>) -> u64 {
    let mut state = DefaultHasher::new();
    kernel.hash_structure(&mut state);
    operands.inputs.len().hash(&mut state);
    for array in operands.all() {
        (array.buffer, array.layout, array.dtype).hash(&mut state);
    }
    state.finish()
}

impl<A: ComputeApi> DescriptionCache<A> {
    /// Creates an empty cache.
    pub(crate) fn new() -> DescriptionCache<A> {
        DescriptionCache(GenerationalCache::new(CACHED_DESCRIPTIONS))
    }

    /// Returns the description of a kernel, if it is cached.
    pub(crate) fn get(
        &mut self,
        digest: u64,
        kernel: &Kernel,
        operands: &DeviceOperands<'_>,
    ) -> Option<Arc<KernelDescription<A>>> {
        let entry = self.0.get(&digest).filter(|entry| entry.matches(kernel, operands))?;
        Some(entry.description.clone())
    }

    /// Adds a description. It replaces an entry with the same digest.
    pub(crate) fn insert(
        &mut self,
        digest: u64,
        kernel: &Kernel,
        operands: &DeviceOperands<'_>,
        description: Arc<KernelDescription<A>>,
    ) {
        let arrays = operands.all().map(|array| (array.buffer, array.layout.clone(), array.dtype)).collect();
        let (kernel, inputs) = (kernel.clone(), operands.inputs.len());
        self.0.insert(digest, CachedDescription { kernel, inputs, operands: arrays, description });
    }
}
