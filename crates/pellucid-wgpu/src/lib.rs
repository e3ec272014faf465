//! The GPU backend of Pellucid over `wgpu`: compute shaders for Vulkan, Metal and
//! Direct3D 12.
//!
//! Most users need the crate `pellucid`. [`WgpuDriver`] opens devices; [`Wgpu`] runs kernels.
//!
//! | module | contents |
//! | --- | --- |
//! | `driver` | [`WgpuDriver`]: adapters and the devices on them |
//! | `device` | `GraphicsDevice`: a device of the graphics API with its queue, limits and errors |
//! | `gpu` | `Gpu`: a device with its memory, shaders and recorded dispatches |
//! | `description` | the dispatches of a kernel, described once for all runs; the cache of descriptions |
//! | `dispatch_list` | the dispatches of a kernel while its family describes it |
//! | `compiler` | compiled shaders by their text, and their bind groups |
//! | `submission` | recorded dispatches, which are submitted together |
//! | `prepared` | plans prepared for repeated launches |
//! | `profile` | the device time of a piece of work |
//! | `status` | the status word, which a failed check of indices sets, and its evaluation by the host |
//! | `allocator` | device memory: size classes, a bounded cache, the memory cap |
//! | `buffer` | `WgpuBuffer`: the memory of one storage, allocated when it is first written |
//! | `transfer` | copies between host and device; waits |
//! | `operand` | operands without their memory: checks, the buffers that a dispatch binds |
//! | `operand_memory` | the operands of a kernel and their memory |
//! | `probe` | properties of an adapter that only a shader can detect |
//! | `shader` | generation of WGSL: the function library, translated scalar functions, programs, packed elements |
//! | `families` | one module for each kernel family: shape to parameters, shader, dispatch |
//! | `cache` | a map of bounded size |
//! | `counters` | [`WgpuCounters`]: counts of the work that a device did |
//! | `backend` | [`Wgpu`], the backend |
#![forbid(unsafe_code)]

mod allocator;
mod backend;
mod buffer;
mod cache;
mod compiler;
mod counters;
mod description;
mod device;
mod dispatch_list;
mod driver;
mod families;
mod gpu;
mod operand;
mod operand_memory;
mod prepared;
mod probe;
mod profile;
mod shader;
mod status;
mod submission;
mod transfer;

pub use backend::Wgpu;
pub use counters::WgpuCounters;
pub use driver::WgpuDriver;
