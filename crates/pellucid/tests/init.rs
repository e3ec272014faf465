//! Orthogonal initialization, which requires the feature `linalg`.
#![cfg(feature = "linalg")]

use pellucid::nn::init;
use pellucid::prelude::*;

/// Returns the largest difference between a·aᵀ and scale²·I.
fn off(a: &Tensor, scale: f64) -> f64 {
    let n = a.shape()[0];
    let difference = (a.matmul(&a.t()) - Tensor::eye(n, a.dtype()) * (scale * scale)).abs();
    difference.max(..).item()
}

#[test]
fn rows_or_columns_are_orthogonal_and_of_equal_norm() {
    let _random = pellucid::Generator::new(0).scope();
    manual_seed(1);
    init::in_dtype(DType::F64, || {
        assert!(off(&init::orthogonal([6, 6], 1.0), 1.0) < 1e-14);
        assert!(off(&init::orthogonal([4, 7], 0.5), 0.5) < 1e-14);
        assert!(off(&init::orthogonal([7, 4], 2.0).t(), 2.0) < 1e-14);
        let taps = init::orthogonal([5, 2, 3, 3], 1.0);
        assert!(off(&taps.flatten(1, -1), 1.0) < 1e-14);
    });
    assert!(off(&init::orthogonal([6, 6], 1.0), 1.0) < 1e-6);
    let weight = Linear::new(6, 6).weight;
    init::orthogonal_(&weight, 1.0);
    assert!(off(&weight, 1.0) < 1e-6);
}

/// Orthogonal matrices are uniformly distributed: the trace has mean 0 and variance 1 (Diaconis & Shahshahani 1994),
/// and half of the determinants are −1.
#[test]
fn orthogonal_matrices_are_uniformly_distributed() {
    let _random = pellucid::Generator::new(0).scope();
    manual_seed(2);
    let drawn: Vec<(f64, f64)> = (0..2000)
        .map(|_| {
            let q = init::orthogonal([3, 3], 1.0);
            (q.trace().item(), q.det().item())
        })
        .collect();
    let n = drawn.len() as f64;
    let mean = drawn.iter().map(|d| d.0).sum::<f64>() / n;
    let square = drawn.iter().map(|d| d.0 * d.0).sum::<f64>() / n;
    let positive = drawn.iter().filter(|d| d.1 > 0.0).count() as f64 / n;
    assert!(mean.abs() < 5.0 / n.sqrt(), "the mean of the traces is {mean}, expected about 0");
    assert!((square - 1.0).abs() < 10.0 / n.sqrt(), "the mean square of the traces is {square}, expected about 1");
    assert!(
        (positive - 0.5).abs() < 2.5 / n.sqrt(),
        "the fraction of positive determinants is {positive}, expected about 0.5"
    );
}
