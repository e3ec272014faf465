//! The GPU backend of Pellucid over `wgpu`: compute shaders for Vulkan, Metal and
//! Direct3D 12.
//!
//! Most users need the crate `pellucid`. [`WgpuDriver`] opens devices; [`Wgpu`] runs kernels. The kernels are in the
//! crate `pellucid-gpu`; this crate implements its trait [`ComputeApi`](pellucid_gpu::ComputeApi).
//!
//! | module | contents |
//! | --- | --- |
//! | `driver` | [`WgpuDriver`]: adapters and the devices on them |
//! | `device` | `GraphicsDevice`: a device of the graphics API with its queue, limits and errors |
//! | `compiler` | compiled shaders and the layouts of their bind groups |
//! | `submission` | bind groups and command buffers: recorded dispatches, and plans prepared for repeated launches |
//! | `timestamps` | the device time of a piece of work |
//! | `api` | [`WgpuApi`]: the implementation of `ComputeApi` |
#![forbid(unsafe_code)]

mod api;
mod compiler;
mod device;
mod driver;
mod submission;
mod timestamps;

pub use api::WgpuApi;
pub use driver::{Wgpu, WgpuDriver};
