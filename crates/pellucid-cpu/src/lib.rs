//! The CPU backend of Pellucid: every kernel family, with SIMD instructions and threads.
//!
//! * [`Cpu`] is the backend. [`CpuBuffer`] is its memory, from a caching allocator.
//! * Kernels select their instruction set at run time, and the caller sets the number of threads ([`with_threads`]).
//!   Neither choice changes a bit of any result.
//! * The API is safe: no kernel accesses memory outside the buffers of its views.

#[macro_use]
mod simd;
#[macro_use]
mod number;

mod attention;
mod backend;
mod buffer;
mod check;
mod conv;
mod factor;
mod guard;
mod index;
mod list;
mod maps;
mod math;
#[allow(dead_code, unused_imports, unreachable_pub, reason = "an epilogue can be added to every product")]
mod matmul;
mod maxpool;
mod operand;
mod pool;
mod product;
mod random;
mod recurrent;
mod scan;
mod scratch;
mod sequence;
mod sort;
#[cfg(test)]
mod testing;
mod threads;
mod tile;
mod vector;
mod walk;

pub use backend::Cpu;
pub use buffer::CpuBuffer;
pub use threads::with_threads;
