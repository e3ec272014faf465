//! Helpers of the tests: naive products and reproducible matrices.

use crate::MatrixElement;
use crate::matrix::Matrix;

/// Matrix sizes around the sizes of tiles and blocks.
pub(crate) const SIZES: [usize; 17] = [0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300];

/// Calls a generic function for `f32` and `f64`.
macro_rules! for_both_dtypes {
    ($function:ident) => {
        $function::<f32>();
        $function::<f64>();
    };
}
pub(crate) use for_both_dtypes;

/// Returns a reproducible matrix of values between −1 and 1.
pub(crate) fn numbers<T: MatrixElement>(rows: usize, columns: usize, seed: u64) -> Matrix<T> {
    let mut state = seed;
    Matrix::from_fn(rows, columns, |_, _| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        T::from_f64((state >> 11) as f64 / (1u64 << 52) as f64 - 1.0)
    })
}

/// Returns scale factors with which the squares of elements overflow or underflow.
pub(crate) fn extreme_scales<T: MatrixElement>() -> [T; 2] {
    [T::one() / T::MIN_POSITIVE / T::from_f64(64.0), T::MIN_POSITIVE / T::EPSILON]
}

/// Returns tall matrices whose largest singular value is just below the largest number.
pub(crate) fn largest_tall<T: MatrixElement>() -> [Matrix<T>; 3] {
    let unit = T::one() / T::MIN_POSITIVE;
    let part = |x: f64| T::from_f64(x) * unit;
    let mut random = numbers::<T>(40, 20, 5);
    random.update(|x| x * part(0.5));
    [Matrix::from_fn(4, 2, |i, _| part([2.35, 1.18, 0.0, 0.0][i])), Matrix::from_fn(100, 1, |_, _| part(0.35)), random]
}

/// Returns A·B, by the definition, with sums in `f64`.
pub(crate) fn product<T: MatrixElement>(a: &Matrix<T>, b: &Matrix<T>) -> Matrix<T> {
    assert_eq!(a.columns(), b.rows());
    let columns: Vec<Vec<f64>> =
        (0..b.columns()).map(|j| (0..b.rows()).map(|k| b.row(k)[j].to_f64()).collect()).collect();
    Matrix::from_fn(a.rows(), b.columns(), |i, j| {
        T::from_f64(a.row(i).iter().zip(&columns[j]).map(|(a, b)| a.to_f64() * b).sum())
    })
}

/// Returns Aᵀ.
pub(crate) fn transpose<T: MatrixElement>(a: &Matrix<T>) -> Matrix<T> {
    Matrix::copy_of(a.view().transpose())
}

/// Asserts that the elements of two matrices differ by at most `factor`·ε·n times the largest element, where n is the
/// larger side.
#[track_caller]
pub(crate) fn close<T: MatrixElement>(got: &Matrix<T>, expected: &Matrix<T>, factor: f64) {
    assert_eq!((got.rows(), got.columns()), (expected.rows(), expected.columns()));
    let size = expected.data().iter().fold(0.0, |m: f64, x| m.max(x.to_f64().abs()));
    let n = got.rows().max(got.columns()).max(4) as f64;
    let slack = factor * T::EPSILON.to_f64() * n * size;
    for (i, (x, y)) in got.data().iter().zip(expected.data()).enumerate() {
        let error = (x.to_f64() - y.to_f64()).abs();
        let (row, column) = (i / got.columns(), i % got.columns());
        assert!(error <= slack, "n = {n}: element ({row}, {column}) is {x:?} instead of {y:?}: {error:e} > {slack:e}");
    }
}
