//! The GPU layer of Pellucid: kernels, and everything about a device except the calls of its compute API.
//!
//! Most users need the crate `pellucid`. A backend implements two traits: [`ComputeApi`], the calls of a graphics or
//! compute API, and [`Language`], which prints a kernel in the language of this API. [`GpuBackend`] is then a complete
//! [`Backend`](pellucid_ir::backend::Backend). `pellucid-wgpu` and `pellucid-cuda` are implementations.
//!
//! Kernels are written in WGSL, the kernel language of this crate, with a library of functions. [`Wgsl`] prints them
//! unchanged.
//!
//! | module | contents |
//! | --- | --- |
//! | `api` | [`ComputeApi`]: memory, compilation, dispatches, waits and timing of a device; lists of dispatches |
//! | `failure` | [`DeviceFailure`]: the first error after which a device cannot be used |
//! | `counters` | [`GpuCounters`]: counts of the work that a device did |
//! | `status` | the status word, which a failed check of indices sets |
//! | `shader` | generation of kernels: the function library, translated scalar functions, programs, packed elements |
//! | `operand` | operands without their memory: checks, the buffers that a dispatch binds |
//! | `cache` | a map of bounded size |
//! | `description` | the dispatches of a kernel, described once for all runs; the cache of descriptions |
//! | `dispatch_list` | the dispatches of a kernel while its family describes it |
//! | `allocator` | device memory: size classes, a bounded cache, the memory cap |
//! | `recorded` | recorded dispatches, which are submitted together, and the evaluation of the status by the host |
//! | `gpu` | `Gpu`: a device with its memory, compiled kernels and recorded dispatches |
//! | `families` | one module for each kernel family: shape to parameters, kernel text, dispatch |
//! | `buffer` | `GpuBuffer`: the memory of one storage, allocated when it is first written |
//! | `transfer` | copies of any size and offset between host and device |
//! | `operand_memory` | the operands of a kernel and their memory |
//! | `prepared` | plans prepared for repeated launches |
//! | `probe` | properties of a device that only a kernel can detect |
//! | `backend` | [`GpuBackend`], the backend |
#![forbid(unsafe_code)]

mod allocator;
mod api;
mod backend;
mod buffer;
mod cache;
mod counters;
mod description;
mod dispatch_list;
mod failure;
mod families;
mod gpu;
mod operand;
mod operand_memory;
mod prepared;
mod probe;
mod recorded;
mod shader;
mod status;
#[cfg(test)]
mod testing;
mod transfer;

pub use api::{
    ComputeApi, DeviceLimits, DispatchBatch, LibraryProduct, MemoryMark, OptionalFeatures, PARAMETER_BYTES, PlanBuffer,
    PlannedDispatch, PlannedDispatches, RecordedDispatch, SubmissionFailure,
};
pub use backend::GpuBackend;
pub use cache::GenerationalCache;
pub use counters::{AtomicCounters, Counter, GpuCounters};
pub use failure::DeviceFailure;
#[cfg(feature = "check-translations")]
pub use shader::languages::check_translations;
pub use shader::wgsl::Wgsl;
pub use shader::{BindingUse, KernelFeatures, KernelSource, Language, LibraryFunction, WORKGROUP, WorkgroupArray};
pub use status::{NO_FAILURE, OPERATION as STATUS_OPERATION, STATUS_WORDS, UNUSED_WORD, status_words};
