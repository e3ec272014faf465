//! Helpers of the tests: naive products and reproducible matrices.

use crate::Matrix;

/// Returns a reproducible matrix of values between −1 and 1.
pub(crate) fn numbers(rows: usize, columns: usize, seed: u64) -> Matrix {
    let mut state = seed;
    Matrix::from_fn(rows, columns, |_, _| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    })
}

/// Returns A·B, by the definition.
pub(crate) fn product(a: &Matrix, b: &Matrix) -> Matrix {
    assert_eq!(a.columns(), b.rows());
    Matrix::from_fn(a.rows(), b.columns(), |i, j| (0..a.columns()).map(|k| a[(i, k)] * b[(k, j)]).sum())
}

/// Returns Aᵀ.
pub(crate) fn transpose(a: &Matrix) -> Matrix {
    Matrix::from_fn(a.columns(), a.rows(), |i, j| a[(j, i)])
}

/// Asserts that two matrices agree, relative to the size of the larger one.
#[track_caller]
pub(crate) fn close(got: &Matrix, expected: &Matrix, tolerance: f64) {
    assert_eq!((got.rows(), got.columns()), (expected.rows(), expected.columns()));
    let size = expected.data().iter().fold(f64::MIN_POSITIVE, |m: f64, x| m.max(x.abs()));
    let slack = tolerance * (1 + got.rows().max(got.columns())) as f64;
    let mismatch = got
        .data()
        .iter()
        .zip(expected.data())
        .find(|(a, b)| (*a - *b).abs().partial_cmp(&(slack * size)) != Some(std::cmp::Ordering::Less));
    assert!(
        mismatch.is_none(),
        "the matrices differ, first in the elements (got, expected) {mismatch:?}; got {got:?}, expected {expected:?}"
    );
}
