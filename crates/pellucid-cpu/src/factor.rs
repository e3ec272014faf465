//! Factorisations: every matrix of a batch is copied out in `f64`, worked on by one thread in `pellucid-linalg`, and
//! its factors are copied back. Threads share out the batch.

#[cfg(feature = "linalg")]
mod batch;

#[cfg(feature = "linalg")]
pub(crate) use batch::factor;

/// Without the feature `linalg` there is nothing to run.
#[cfg(not(feature = "linalg"))]
pub(crate) fn factor(
    kernel: &pellucid_ir::kernel::Factor,
    _: &[crate::operand::Operand<'_>],
    _: &[crate::operand::Operand<'_>],
) -> pellucid_ir::Result<()> {
    Err(pellucid_ir::Error::MissingFeature { op: kernel.name(), feature: "linalg" })
}

#[cfg(all(test, not(feature = "linalg")))]
mod tests {
    use crate::testing::{Array, Lie, run};
    use pellucid_ir::Error;
    use pellucid_ir::kernel::{Factor, Kernel};

    #[test]
    fn the_missing_feature_is_named() {
        let a = Array::of([1, 1], Lie::Plain, &[1.0f64]);
        let refused = run(Kernel::Factor(Factor::Exp), &[&a], &[&a]);
        assert_eq!(refused, Err(Error::MissingFeature { op: "matrix_exp", feature: "linalg" }));
    }
}
