//! The comparison of the results of a GPU with those of the CPU.

use pellucid_tensor::{DType, Tensor};

/// Asserts that a GPU has computed the results of the CPU: integers exactly, floats within 1e-5 of the largest element
/// of a tensor, or of 1 if that is larger.
#[track_caller]
pub(crate) fn assert_near(found: &[Tensor], expected: &[Tensor], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (k, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!((found.shape(), found.dtype()), (expected.shape(), expected.dtype()), "{what}: tensor {k}");
        let [a, b] = [found, expected].map(|t| t.to_dtype(DType::F64).to_vec::<f64>());
        let largest = b.iter().fold(1.0f64, |m, v| m.max(v.abs()));
        let tolerance = if found.dtype().is_float() { 1e-5 * largest } else { 0.0 };
        let is_near = |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance;
        assert!(a.iter().zip(&b).all(is_near), "{what}: tensor {k} is {found:?}, expected {expected:?}");
    }
}
