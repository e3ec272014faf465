//! The CUDA backend of Pellucid.
//!
//! The libraries of CUDA are loaded at run time: the driver (`libcuda`), NVRTC (`libnvrtc`), which compiles kernels,
//! and cuBLASLt (`libcublasLt`), if it exists, for large matrix products. A program that is built with this crate
//! runs on machines without them.
//!
//! Most users need the crate `pellucid`. [`CudaDriver`] opens devices; [`Cuda`] runs kernels. The kernels, and
//! everything about a device except the calls of CUDA, are in the crate `pellucid-gpu`.
//!
//! | module | contents |
//! | --- | --- |
//! | `driver` | [`CudaDriver`]: the devices of this machine |
//! | `api` | [`CudaApi`]: the calls of CUDA for `pellucid-gpu` |
//! | `context` | `Context`: a device with its context, its streams and its errors |
//! | `memory` | [`CudaMemory`]: device memory; pinned host memory |
//! | `language` | [`CudaCpp`]: kernels in CUDA C++ |
//! | `compiler` | [`CudaKernel`]: compiled kernels, and the folder that keeps them |
//! | `launch` | [`CudaWork`]: a kernel or a product; arguments of kernels |
//! | `graph` | [`PreparedGraph`]: the dispatches of a plan as one CUDA graph |
//! | `product` | [`LtProduct`]: matrix products of cuBLASLt |
//! | `status` | `StatusMemory`: the status of a device, and its copy for the host |
//! | `event` | [`Event`]: a point in the work of a stream |
//! | `upload` | `Uploads`: copies from the host to the device, which overlap with launches |
//!
//! Tests run without a GPU on a test device that provides the same libraries; `docs/cuda.md` describes it.

mod api;
mod compiler;
mod context;
mod driver;
mod event;
mod graph;
mod language;
mod launch;
mod memory;
mod product;
mod status;
mod upload;

pub use api::CudaApi;
pub use compiler::CudaKernel;
pub use driver::{Cuda, CudaDriver};
pub use event::Event;
pub use graph::PreparedGraph;
pub use language::CudaCpp;
pub use launch::CudaWork;
pub use memory::CudaMemory;
pub use product::LtProduct;

/// Returns true if the driver and NVRTC can be loaded.
///
/// The call initializes no device: it returns true on a machine with the libraries but without a GPU. `cudarc` panics
/// at the first use of a missing library, so a backend calls this function before all others.
pub fn is_available() -> bool {
    // SAFETY: loading a library runs its initialisation code, which must be sound. NVIDIA's libraries
    // and the test device have these names; as for every shared library, the system's search path selects the files.
    unsafe { cudarc::driver::sys::is_culib_present() && cudarc::nvrtc::sys::is_culib_present() }
}
