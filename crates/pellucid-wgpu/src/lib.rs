//! The GPU backend of Pellucid over `wgpu`: compute shaders for Vulkan, Metal and
//! Direct3D 12.
//!
//! Most users need the crate `pellucid`. [`WgpuDriver`] opens devices; [`Wgpu`] runs kernels.
//!
//! | module | contents |
//! | --- | --- |
//! | `driver` | [`WgpuDriver`]: adapters and the devices on them |
//! | `device` | `Gpu`: one device with its queue, memory, shaders and errors |
//! | `description` | the dispatches of a kernel, described once for all runs; the cache of descriptions |
//! | `dispatch_list` | the dispatches of a kernel while its family describes it |
//! | `compile` | compiled shaders and the layouts of their bindings |
//! | `prepared` | plans prepared for repeated launches |
//! | `profile` | the time of the device for some work |
//! | `record`, `submission` | recorded dispatches, which are submitted together |
//! | `status`, `checks` | the status word, which a failed check of indices sets, and its evaluation |
//! | `pool` | device memory: size classes, a bounded cache, the memory cap |
//! | `buffer` | `WgpuBuffer`: the memory of one storage, allocated when it is first written |
//! | `transfer` | copies between host and device; waits |
//! | `operand` | checks of operands; the buffers that a dispatch binds |
//! | `bound` | the memory of operands |
//! | `probe` | properties of an adapter that only a shader can detect |
//! | `shader` | generation of WGSL: the function library, translated scalar functions, programs, packed elements |
//! | `families` | one file for each kernel family: shape to parameters, shader, dispatch |
//! | `cache` | a map of bounded size |
//! | `counters` | [`WgpuCounters`]: counts of the work that a device did |
//! | `backend` | [`Wgpu`], the backend |
#![forbid(unsafe_code)]

mod backend;
mod bound;
mod buffer;
mod cache;
mod checks;
mod compile;
mod counters;
mod description;
mod device;
mod dispatch_list;
mod driver;
mod families;
mod operand;
mod pool;
mod prepared;
mod probe;
mod profile;
mod record;
mod shader;
mod status;
mod submission;
mod transfer;

pub use backend::Wgpu;
pub use counters::WgpuCounters;
pub use driver::WgpuDriver;
