//! The interface of a kernel family.

use crate::operand::Operand;
use pellucid_ir::Result;

/// A kernel family on the CPU.
///
/// There are at least as many operands as the family's arity.
pub(crate) trait CpuFamily {
    /// Returns an error unless the operands have the shapes, dtypes and layouts that [`run`](CpuFamily::run) requires.
    /// Addresses are not read.
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()>;

    /// Runs the kernel on operands that [`check`](CpuFamily::check) accepts.
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()>;
}
