//! The QR factorization A = Q·R by Householder reflections.

use crate::Matrix;

/// Replaces a matrix by R (on and above the diagonal) and the vectors vᵢ below it, and returns the factors τ: Q is
/// the product of all I − τᵢ·vᵢ·vᵢᵀ, where element i of vᵢ is 1 and the elements above it are 0.
///
/// The signs follow LAPACK: Rᵢᵢ has the opposite sign of the element that it replaces, unless all elements below are
/// zero (then τ = 0).
pub fn qr(a: &mut Matrix) -> Vec<f64> {
    let (m, n) = (a.rows(), a.columns());
    if !a.is_finite() {
        a.fill(f64::NAN);
        return vec![f64::NAN; m.min(n)];
    }
    (0..m.min(n))
        .map(|k| {
            let tau = reflector(&mut a.column_mut(k)[k..]);
            for j in k + 1..n {
                let (v, column) = a.columns_mut(k, j);
                let ([_, v @ ..], [head, tail @ ..]) = (&v[k..], &mut column[k..]) else { unreachable!("k < m") };
                let by = tau * (*head + tail.iter().zip(v).map(|(x, v)| x * v).sum::<f64>());
                *head -= by;
                tail.iter_mut().zip(v).for_each(|(x, v)| *x -= by * v);
            }
            tau
        })
        .collect()
}

/// Computes the reflection that maps x to (β, 0, ..). Overwrites x with β and the tail of v, and returns τ.
fn reflector(x: &mut [f64]) -> f64 {
    let [head, tail @ ..] = x else { return 0.0 };
    let largest = tail.iter().fold(head.abs(), |m, x| m.max(x.abs()));
    if tail.iter().all(|&x| x == 0.0) {
        return 0.0;
    }
    // The elements are scaled so that no square overflows or underflows.
    let norm = largest * tail.iter().chain([&*head]).map(|x| (x / largest) * (x / largest)).sum::<f64>().sqrt();
    let beta = -norm.copysign(*head);
    let tau = (beta - *head) / beta;
    tail.iter_mut().for_each(|x| *x /= *head - beta);
    *head = beta;
    tau
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{close, numbers, product, transpose};

    fn check(a: &Matrix) {
        let (m, n) = (a.rows(), a.columns());
        let mut packed = a.clone();
        let factors = qr(&mut packed);
        let identity = Matrix::from_fn(m, m, |i, j| f64::from(u8::from(i == j)));
        let q = factors.iter().enumerate().fold(identity.clone(), |q, (k, tau)| {
            let v = Matrix::from_fn(m, 1, |i, _| {
                if i == k {
                    1.0
                } else if i > k {
                    packed[(i, k)]
                } else {
                    0.0
                }
            });
            product(&q, &identity.zip(&product(&v, &transpose(&v)), |i, vv| i - tau * vv))
        });
        let r = Matrix::from_fn(m, n, |i, j| if i <= j { packed[(i, j)] } else { 0.0 });
        close(&product(&transpose(&q), &q), &identity, 1e-13);
        close(&product(&q, &r), a, 1e-13);
    }

    #[test]
    fn q_is_orthogonal_and_q_times_r_is_a() {
        for (m, n) in [(0, 0), (0, 3), (3, 0), (1, 1), (5, 5), (3, 7), (7, 3), (40, 40)] {
            check(&numbers(m, n, 5));
        }
        for n in [2, 5] {
            check(&Matrix::full(n, n, 0.0));
            check(&product(&numbers(n, 1, 3), &numbers(1, n, 4)));
            check(&numbers(n, n, 6).map(|x| x * 1e200));
        }
    }

    #[test]
    fn the_diagonal_of_r_has_the_signs_of_lapack() {
        let mut a = Matrix::from_fn(2, 2, |i, j| [[3.0, 1.0], [4.0, 2.0]][i][j]);
        qr(&mut a);
        assert_eq!(a[(0, 0)], -5.0);
    }
}
