//! The kernel families on the CPU.
//!
//! Each family implements [`CpuFamily`]. The families that run programs are in [`crate::program`]; each other family is
//! a module here.

pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod factor;
pub(crate) mod index;
pub(crate) mod matmul;
pub(crate) mod max_pool;
pub(crate) mod random;
pub(crate) mod recurrent;
pub(crate) mod scan;
pub(crate) mod sort;

use crate::family::CpuFamily;
use crate::operand::Operand;
use crate::program::CopyFamily;
use pellucid_ir::Result;
use pellucid_ir::kernel::Kernel;

/// Evaluates an expression with the given name bound to the family of a kernel.
macro_rules! with_family {
    ($kernel:expr, $family:ident => $e:expr) => {
        match $kernel {
            Kernel::Map($family) => $e,
            Kernel::Reduce($family) => $e,
            Kernel::Row($family) => $e,
            Kernel::Scan($family) => $e,
            Kernel::MatMul($family) => $e,
            Kernel::Conv($family) => $e,
            Kernel::Pool($family) => $e,
            Kernel::Gather($family) => $e,
            Kernel::Scatter($family) => $e,
            Kernel::Sort($family) => $e,
            Kernel::Factor($family) => $e,
            Kernel::Recurrent($family) => $e,
            Kernel::Attention($family) => $e,
            Kernel::Random($family) => $e,
            Kernel::Copy => {
                let $family = &CopyFamily;
                $e
            }
        }
    };
}

/// Checks the operands of a kernel by [`CpuFamily::check`] of its family.
pub(crate) fn check_kernel(kernel: &Kernel, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    with_family!(kernel, family => family.check(inputs, outputs))
}

/// Runs a kernel by [`CpuFamily::run`] of its family.
pub(crate) fn run_kernel(kernel: &Kernel, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
    with_family!(kernel, family => family.run(inputs, outputs))
}
