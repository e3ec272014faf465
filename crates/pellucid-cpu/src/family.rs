//! The interface of a kernel family.

use crate::operand::Operand;
use pellucid_ir::Result;

/// A kernel family on the CPU.
pub(crate) trait CpuFamily {
    /// Runs the kernel on operands that its rule, [`Family::check`](pellucid_ir::kernel::Family::check), accepts.
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()>;
}
