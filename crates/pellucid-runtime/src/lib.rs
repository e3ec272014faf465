//! The memory allocator and the thread pool of the CPU backend of Pellucid. This crate contains no kernels.
//!
//! Most users need the crate `pellucid`.
//!
//! | module | contents |
//! | --- | --- |
//! | [`allocator`] | the caching allocator, with size classes and thread caches |
//! | [`buffer`] | [`CpuBuffer`], the memory of a tensor |
//! | `guard` | guard bytes around blocks in debug builds, and exact blocks for sanitizers |
//! | [`scratch`] | the scratch stack of each thread, which is reused between kernels |
//! | [`workspace`] | memory for kernels, of a size that depends on the operands |
//! | [`list`] | [`List`](list::List), a short list without system allocations |
//! | [`threads`] | the thread pool, and parallel loops |
//! | [`testing`] | tools for tests of kernels |

pub mod allocator;
pub mod buffer;
mod guard;
pub mod list;
pub mod scratch;
pub mod testing;
pub mod threads;
pub mod workspace;

pub use buffer::CpuBuffer;
