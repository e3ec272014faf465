//! The Cholesky factorization A = L·Lᵀ.

use crate::Matrix;
use faer::Par;
use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor::{LltError, cholesky_in_place, cholesky_in_place_scratch};

/// Replaces a symmetric matrix by L with A = L·Lᵀ and returns 0. Only the lower triangle is read.
///
/// If A is not positive definite, L is NaN, and the result is the order of the first leading minor that is not
/// positive.
pub fn cholesky(a: &mut Matrix) -> usize {
    let n = a.rows();
    if !a.is_finite_below() {
        a.fill(f64::NAN);
        return 0;
    }
    let mut memory = MemBuffer::new(cholesky_in_place_scratch::<f64>(n, Par::Seq, Default::default()));
    let stack = MemStack::new(&mut memory);
    match cholesky_in_place(a.view_mut(), Default::default(), Par::Seq, stack, Default::default()) {
        Err(LltError::NonPositivePivot { index }) => {
            a.fill(f64::NAN);
            index + 1
        }
        Ok(_) => {
            (1..n).for_each(|j| a.column_mut(j)[..j].fill(0.0));
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{close, numbers, product, transpose};

    #[test]
    fn l_times_its_transpose_is_a_and_the_upper_triangle_is_not_read() {
        for n in [0, 1, 2, 5, 17, 100] {
            let x = numbers(n, n, 1);
            let a = product(&x, &transpose(&x))
                .zip(&Matrix::from_fn(n, n, |i, j| f64::from(u8::from(i == j))), |a, i| a + i);
            let mut l = Matrix::from_fn(n, n, |i, j| if i < j { f64::NAN } else { a[(i, j)] });
            assert_eq!(cholesky(&mut l), 0);
            assert!((0..n).all(|i| (i + 1..n).all(|j| l[(i, j)] == 0.0)));
            close(&product(&l, &transpose(&l)), &a, 1e-13);
        }
    }

    #[test]
    fn the_first_bad_minor_is_returned() {
        for (diagonal, minor) in
            [([1.0, -1.0, 1.0], 2), ([0.0, 1.0, 1.0], 1), ([1.0, 1.0, 0.0], 3), ([1.0, f64::NAN, -1.0], 0)]
        {
            let mut a = Matrix::from_fn(3, 3, |i, j| if i == j { diagonal[i] } else { 0.0 });
            assert_eq!(cholesky(&mut a), minor);
            assert!(a.data().iter().all(|x| x.is_nan()));
        }
    }
}
