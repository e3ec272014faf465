//! The CPU backend of Pellucid: every kernel family, with SIMD instructions and threads.
//!
//! * [`Cpu`] is the backend. [`CpuBuffer`] is its memory, from a caching allocator.
//! * Kernels select their instruction set at run time, and the caller sets the number of threads ([`with_threads`]).
//!   Neither choice changes a bit of any result.
//! * The API is safe: no kernel accesses memory outside the buffers of its views.

#[macro_use]
mod number;

mod backend;
mod families;
mod family;
mod operand;
mod program;
mod sequence;
mod strided;
#[cfg(test)]
mod testing;

pub use backend::Cpu;
pub use pellucid_runtime::CpuBuffer;
pub use pellucid_runtime::threads::with_threads;
