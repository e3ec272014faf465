//! The kernel families on the CPU.
//!
//! Each family implements [`CpuFamily`]. The families that run programs are in [`crate::program`]; each other family is
//! a module here.

pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod factorization;
pub(crate) mod index;
pub(crate) mod matmul;
pub(crate) mod max_pool;
pub(crate) mod random;
pub(crate) mod recurrent;
pub(crate) mod scan;
pub(crate) mod search;
pub(crate) mod sort;
pub(crate) mod sparse;

pub(crate) use matmul::{WeightOfProduct, run_matmul};

use crate::family::CpuFamily;
use crate::operand::Operand;
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Result, with_family};

/// Runs a kernel by [`CpuFamily::run`] of its family.
pub(crate) fn run_kernel(kernel: &Kernel, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    with_family!(kernel, family => family.run(inputs, outputs))
}
