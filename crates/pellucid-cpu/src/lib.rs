//! The CPU backend of Pellucid: every kernel family, with SIMD instructions and threads.
//!
//! * [`Cpu`] is the backend. [`CpuBuffer`] is its memory, from a caching allocator.
//! * Kernels select their instruction set at run time, and the caller sets the number of threads ([`with_threads`]).
//!   Neither choice changes a bit of any result, except that `bf16` convolutions (with AVX512-BF16 or AMX) and `bf16`
//!   matrix products (with AMX) may differ.
//! * The API is safe: no kernel accesses memory outside the buffers of its views.
//!
//! | module | contents |
//! | --- | --- |
//! | `backend` | [`Cpu`]: checks the views of a kernel and runs it |
//! | `sequence` | a plan prepared for repeated launches |
//! | `operand` | `Operand`: a view converted to an address, a layout and a dtype, with bounds checks |
//! | `dense` | `DenseArray`: an operand as a row-major array with a single dtype |
//! | `factor_groups` | `GroupMatrices`: matrices converted to the pairs of `bf16` or quads of `i8` that products read |
//! | `family` | the trait `CpuFamily`, the interface of a kernel family |
//! | `families` | the kernel families that do not run programs, such as `MatMul`, `Conv` and `Sort` |
//! | `program` | the kernel families that run programs: `Map`, `Reduce` and `Row`; also `Copy` |
//! | `strided` | index spaces of strided operands: axes, access patterns, traversal |
//! | `element` | element types and their compute types |
//! | `forwarding` | a backend that forwards all kernels to [`Cpu`], for tests of this crate and of `pellucid-tensor` |
//! | `testing` | arrays in every kind of layout, for tests |

#[macro_use]
mod element;

mod backend;
mod dense;
mod factor_groups;
mod families;
mod family;
#[cfg(test)]
mod forwarding;
mod operand;
mod program;
mod sequence;
mod strided;
#[cfg(test)]
mod testing;

pub use backend::Cpu;
pub use pellucid_runtime::CpuBuffer;
pub use pellucid_runtime::threads::with_threads;
