//! Matrix factorizations by `pellucid-linalg`. They are computed in the dtype of the output and, if the rows of the
//! output are contiguous, directly in its memory. The batch is divided among the threads. The products within the
//! factorization of a single matrix use all threads.

#[cfg(feature = "linalg")]
mod batch;

use crate::family::CpuFamily;
use crate::operand::Operand;
use pellucid_ir::Result;
use pellucid_ir::kernel::Factorization;

#[cfg(feature = "linalg")]
impl CpuFamily for Factorization {
    fn run(&self, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<()> {
        batch::factor_batch(self, &inputs[..self.inputs()], outputs)
    }
}

/// Without the feature `linalg`, every factorization fails.
#[cfg(not(feature = "linalg"))]
impl CpuFamily for Factorization {
    fn run(&self, _: &[Operand<'_>], _: &[Operand<'_>]) -> Result<()> {
        Err(pellucid_ir::Error::MissingFeature { op: self.name(), feature: "linalg" })
    }
}

#[cfg(all(test, not(feature = "linalg")))]
mod tests {
    use crate::testing::{TestArray, TestLayout, run_kernel};
    use pellucid_ir::Error;
    use pellucid_ir::kernel::{Factorization, Kernel};

    #[test]
    fn the_error_names_the_missing_feature() {
        let [a, y] = [(); 2].map(|()| TestArray::of([1, 1], TestLayout::Plain, &[1.0f64]));
        let result = run_kernel(Kernel::Factorization(Factorization::Exp), &[&a], &[&y]);
        assert_eq!(result, Err(Error::MissingFeature { op: "matrix_exp", feature: "linalg" }));
    }
}
