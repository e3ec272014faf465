//! The eigendecomposition A = V·diag(w)·Vᵀ of a symmetric matrix.

use crate::Matrix;
use crate::svd::scale_to_one;
use faer::Par;
use faer::diag::DiagMut;
use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::evd::{ComputeEigenvectors, self_adjoint_evd, self_adjoint_evd_scratch};

/// Returns the eigenvalues of a symmetric matrix, ascending, and the matrix of eigenvectors as columns.
///
/// Only the lower triangle is read. Without `vectors` the second matrix has no columns. If the iteration does not
/// converge, all results are NaN.
pub fn eigh(a: &Matrix, vectors: bool) -> (Vec<f64>, Matrix) {
    let n = a.rows();
    let (mut w, mut v) = (vec![f64::NAN; n], Matrix::full(n, if vectors { n } else { 0 }, f64::NAN));
    if n == 0 || !a.is_finite_below() {
        return (w, v);
    }
    let lower = Matrix::from_fn(n, n, |i, j| if i >= j { a[(i, j)] } else { 0.0 });
    let scale = scale_to_one(&lower);
    let scaled = lower.map(|x| x * scale);
    let compute = if vectors { ComputeEigenvectors::Yes } else { ComputeEigenvectors::No };
    let mut memory = MemBuffer::new(self_adjoint_evd_scratch::<f64>(n, compute, Par::Seq, Default::default()));
    let stack = MemStack::new(&mut memory);
    let values = DiagMut::from_slice_mut(&mut w);
    let basis = vectors.then(|| v.view_mut());
    if self_adjoint_evd(scaled.view(), values, basis, Par::Seq, stack, Default::default()).is_err() {
        w.fill(f64::NAN);
        v.fill(f64::NAN);
    }
    w.iter_mut().for_each(|w| *w /= scale);
    (w, v)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{close, numbers, product, transpose};

    fn check(a: &Matrix) {
        let n = a.rows();
        let lower = Matrix::from_fn(n, n, |i, j| if i < j { f64::NAN } else { a[(i, j)] });
        let (w, v) = eigh(&lower, true);
        assert!(w.is_sorted());
        let identity = Matrix::from_fn(n, n, |i, j| f64::from(u8::from(i == j)));
        close(&product(&transpose(&v), &v), &identity, 1e-13);
        let vw = Matrix::from_fn(n, n, |i, j| v[(i, j)] * w[j]);
        close(&product(&vw, &transpose(&v)), a, 1e-13);
        let size = w.iter().fold(0.0, |m: f64, w| m.max(w.abs()));
        assert!(eigh(&lower, false).0.iter().zip(&w).all(|(a, b)| (a - b).abs() <= 1e-13 * size));
    }

    #[test]
    fn the_vectors_are_orthonormal_and_the_product_is_a() {
        for n in [0, 1, 2, 5, 17, 150] {
            let x = numbers(n, n, 9);
            check(&x.zip(&transpose(&x), |a, b| a + b));
        }
        check(&Matrix::full(4, 4, 0.0));
        check(&Matrix::full(4, 4, 1e200));
    }

    #[test]
    fn nan_propagates_to_all_results() {
        let (w, v) = eigh(&Matrix::full(2, 2, f64::NAN), true);
        assert!(w.iter().chain(v.data()).all(|x| x.is_nan()));
    }
}
