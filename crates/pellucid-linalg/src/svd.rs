//! The singular value decomposition A = U·diag(S)·Vᵀ.

use crate::Matrix;
use faer::Par;
use faer::diag::DiagMut;
use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::svd::{ComputeSvdVectors, svd as decompose, svd_scratch};

/// The singular vectors to compute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Basis {
    /// No singular vectors: U and V have no columns.
    Without,
    /// One singular vector for each singular value.
    Thin,
    /// Singular vectors that form complete orthonormal bases.
    Full,
}

/// A singular value decomposition: U, S (descending) and V (not transposed).
#[derive(Clone, Debug, PartialEq)]
pub struct Svd {
    /// Left singular vectors as columns.
    pub u: Matrix,
    /// Singular values.
    pub s: Vec<f64>,
    /// Right singular vectors as columns.
    pub v: Matrix,
}

/// Computes the singular value decomposition. If the iteration does not converge, all results are NaN.
pub fn svd(a: &Matrix, basis: Basis) -> Svd {
    let (m, n) = (a.rows(), a.columns());
    let k = m.min(n);
    let (p, q, vectors) = match basis {
        Basis::Without => (0, 0, ComputeSvdVectors::No),
        Basis::Thin => (k, k, ComputeSvdVectors::Thin),
        Basis::Full => (m, n, ComputeSvdVectors::Full),
    };
    let all = |value| Svd { u: Matrix::full(m, p, value), s: vec![value; k], v: Matrix::full(n, q, value) };
    if !a.is_finite() {
        return all(f64::NAN);
    }
    // faer does not write all elements of complete bases, so they are initialized with zeros.
    let mut svd = all(0.0);
    // The largest element is scaled to [1, 2), so that no square overflows or underflows; a power of two is exact.
    let scale = scale_to_one(a);
    let scaled = a.map(|x| x * scale);
    let mut memory = MemBuffer::new(svd_scratch::<f64>(m, n, vectors, vectors, Par::Seq, Default::default()));
    let stack = MemStack::new(&mut memory);
    let values = DiagMut::from_slice_mut(&mut svd.s);
    let with_vectors = basis != Basis::Without;
    let (u, v) = (with_vectors.then(|| svd.u.view_mut()), with_vectors.then(|| svd.v.view_mut()));
    if decompose(scaled.view(), values, u, v, Par::Seq, stack, Default::default()).is_err() {
        return all(f64::NAN);
    }
    svd.s.iter_mut().for_each(|s| *s /= scale);
    svd
}

/// Returns the power of two that scales the largest element of a matrix to [1, 2).
pub(crate) fn scale_to_one(a: &Matrix) -> f64 {
    let largest = a.data().iter().fold(0.0, |m: f64, x| m.max(x.abs()));
    if largest == 0.0 { 1.0 } else { 2f64.powi(-(largest.log2().floor() as i32).clamp(-1000, 1000)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{close, numbers, product, transpose};

    fn check(a: &Matrix, tolerance: f64) {
        let (m, n) = (a.rows(), a.columns());
        let k = m.min(n);
        for basis in [Basis::Thin, Basis::Full] {
            let Svd { u, s, v } = svd(a, basis);
            assert!(s.is_sorted_by(|a, b| a >= b) && s.iter().all(|&s| s >= 0.0));
            for q in [&u, &v] {
                let identity = Matrix::from_fn(q.columns(), q.columns(), |i, j| f64::from(u8::from(i == j)));
                close(&product(&transpose(q), q), &identity, tolerance);
            }
            let us = Matrix::from_fn(m, k, |i, j| u[(i, j)] * s[j]);
            let vt = Matrix::from_fn(k, n, |i, j| v[(j, i)]);
            close(&product(&us, &vt), a, tolerance);
            let alone = svd(a, Basis::Without).s;
            assert!(alone.iter().zip(&s).all(|(a, b)| (a - b).abs() <= tolerance * s[0]));
        }
    }

    #[test]
    fn the_factors_are_orthonormal_and_their_product_is_a() {
        for (m, n) in [(0, 0), (0, 3), (3, 0), (1, 1), (1, 4), (5, 5), (3, 7), (7, 3), (40, 40), (150, 140), (90, 20)] {
            check(&numbers(m, n, 7), 1e-13);
        }
        check(&Matrix::full(3, 4, 0.0), 1e-13);
        check(&product(&numbers(6, 2, 3), &numbers(2, 5, 4)), 1e-13);
        check(&numbers(4, 4, 8).map(|x| x * 1e-300), 1e-13);
        check(&numbers(4, 4, 8).map(|x| x * 1e300), 1e-13);
    }

    #[test]
    fn nan_propagates_to_all_results() {
        let Svd { u, s, v } = svd(&Matrix::full(2, 3, f64::INFINITY), Basis::Thin);
        assert!(u.data().iter().chain(&s).chain(v.data()).all(|x| x.is_nan()));
    }
}
