//! The interface of a kernel family.

use crate::operand::Operand;
use pellucid_ir::Result;

/// A kernel family on the CPU.
///
/// The caller passes at least as many inputs and outputs as [`FamilyInfo`](pellucid_ir::kernel::FamilyInfo) states.
pub(crate) trait CpuFamily {
    /// Returns an error unless the operands have the shapes, dtypes and layouts that [`run`](CpuFamily::run) requires.
    ///
    /// The addresses of the operands are not used and may be null.
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()>;

    /// Runs the kernel on operands that [`check`](CpuFamily::check) accepts.
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()>;
}
