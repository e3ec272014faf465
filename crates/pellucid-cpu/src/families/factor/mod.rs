//! Factorisations: every matrix of a batch is copied out in `f64`, worked on by one thread in `pellucid-linalg`, and
//! its factors are copied back. Threads share out the batch.

#[cfg(feature = "linalg")]
mod batch;

use crate::family::CpuFamily;
use crate::operand::Operand;
use pellucid_ir::Result;
use pellucid_ir::kernel::Factor;

#[cfg(feature = "linalg")]
impl CpuFamily for Factor {
    fn check(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        batch::check_factors(self, &inputs[..self.inputs()], outputs)
    }

    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        batch::factor(self, &inputs[..self.inputs()], outputs)
    }
}

/// Without the feature `linalg`, all factorisations are refused.
#[cfg(not(feature = "linalg"))]
impl CpuFamily for Factor {
    fn check(&self, _: &[Operand<'_>], _: &[Operand<'_>]) -> Result<()> {
        Err(pellucid_ir::Error::MissingFeature { op: self.name(), feature: "linalg" })
    }

    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        self.check(inputs, outputs)
    }
}

#[cfg(all(test, not(feature = "linalg")))]
mod tests {
    use crate::testing::{Array, TestLayout, run};
    use pellucid_ir::Error;
    use pellucid_ir::kernel::{Factor, Kernel};

    #[test]
    fn the_missing_feature_is_named() {
        let a = Array::of([1, 1], TestLayout::Plain, &[1.0f64]);
        let refused = run(Kernel::Factor(Factor::Exp), &[&a], &[&a]);
        assert_eq!(refused, Err(Error::MissingFeature { op: "matrix_exp", feature: "linalg" }));
    }
}
