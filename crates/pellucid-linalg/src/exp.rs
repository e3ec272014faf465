//! The matrix exponential.

use crate::{Matrix, TriangleKind, lu, row_order, solve_triangular};
use faer::linalg::matmul::matmul;
use faer::{Accum, Par};

/// The coefficients of the [13/13] Padé approximant of eˣ.
const PADE: [f64; 14] = [
    64764752532480000.0,
    32382376266240000.0,
    7771770303897600.0,
    1187353796428800.0,
    129060195264000.0,
    10559470521600.0,
    670442572800.0,
    33522128640.0,
    1323241920.0,
    40840800.0,
    960960.0,
    16380.0,
    182.0,
    1.0,
];

/// The largest 1-norm for which the approximant has full `f64` accuracy.
const MAX_NORM: f64 = 5.371920351148152;

/// Returns Σ Aᵏ/k!, by a Padé approximant of A/2ˢ that is squared s times (Higham 2005).
pub fn exp(a: &Matrix) -> Matrix {
    let n = a.rows();
    if !a.is_finite() {
        return Matrix::full(n, n, f64::NAN);
    }
    let norm = (0..n).map(|j| a.column(j).iter().map(|x| x.abs()).sum()).fold(0.0, f64::max);
    let squarings = if norm > MAX_NORM { (norm / MAX_NORM).log2().ceil() as i32 } else { 0 };
    let scaled = a.map(|x| x * 2f64.powi(-squarings));
    (0..squarings).fold(pade(&scaled), |x, _| product(&x, &x))
}

/// Returns the approximant (V − U)⁻¹·(V + U), where U is the odd and V the even part of the numerator.
fn pade(a: &Matrix) -> Matrix {
    let n = a.rows();
    let identity = Matrix::from_fn(n, n, |i, j| f64::from(u8::from(i == j)));
    let a2 = product(a, a);
    let a4 = product(&a2, &a2);
    let a6 = product(&a2, &a4);
    // Sums the powers 0, 2, 4, 6 with every second coefficient, starting at `first`.
    let lower_powers = |first: usize, count: usize| {
        let powers = [&identity, &a2, &a4, &a6].into_iter().zip(PADE.iter().skip(first).step_by(2)).take(count);
        powers.fold(Matrix::full(n, n, 0.0), |sum, (power, c)| sum.zip(power, |s, p| s + c * p))
    };
    // Higher powers are A⁶ times lower powers; the constant term of that factor is already in the lower sum.
    let higher_powers = |first: usize| {
        let powers = [&a2, &a4, &a6].into_iter().zip(PADE.iter().skip(first).step_by(2));
        product(&a6, &powers.fold(Matrix::full(n, n, 0.0), |sum, (power, c)| sum.zip(power, |s, p| s + c * p)))
    };
    let u = product(a, &higher_powers(9).zip(&lower_powers(1, 4), |h, l| h + l));
    let v = higher_powers(8).zip(&lower_powers(0, 4), |h, l| h + l);
    let (mut left, right) = (v.zip(&u, |v, u| v - u), v.zip(&u, |v, u| v + u));
    let order = row_order(lu(&mut left), n);
    let mut x = Matrix::from_fn(n, n, |i, j| right[(order[i], j)]);
    solve_triangular(&left, &mut x, TriangleKind { is_upper: false, has_unit_diagonal: true });
    solve_triangular(&left, &mut x, TriangleKind { is_upper: true, has_unit_diagonal: false });
    x
}

/// Returns A·B.
fn product(a: &Matrix, b: &Matrix) -> Matrix {
    let mut c = Matrix::full(a.rows(), b.columns(), 0.0);
    matmul(c.view_mut(), Accum::Replace, a.view(), b.view(), 1.0, Par::Seq);
    c
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{close, numbers};

    /// Returns the exponential of A by a Taylor series: sums Σ (A/2¹⁰)ᵏ/k! and squares the sum ten times.
    fn series(a: &Matrix) -> Matrix {
        let n = a.rows();
        let small = a.map(|x| x / 1024.0);
        let mut term = Matrix::from_fn(n, n, |i, j| f64::from(u8::from(i == j)));
        let mut sum = term.clone();
        for k in 1..20 {
            term = crate::testing::product(&term, &small).map(|x| x / k as f64);
            sum = sum.zip(&term, |a, b| a + b);
        }
        (0..10).fold(sum, |x, _| crate::testing::product(&x, &x))
    }

    #[test]
    fn exp_equals_the_series() {
        for (n, size) in [(0, 1.0), (1, 1.0), (4, 1e-3), (4, 1.0), (4, 5.0), (10, 3.0)] {
            let a = numbers(n, n, 12).map(|x| x * size);
            close(&exp(&a), &series(&a), 1e-11);
        }
    }

    #[test]
    fn exp_of_a_nilpotent_matrix_is_a_polynomial() {
        let a = Matrix::from_fn(3, 3, |i, j| if j == i + 1 { 1e3 } else { 0.0 });
        let expected = [[1.0, 1e3, 5e5], [0.0, 1.0, 1e3], [0.0, 0.0, 1.0]];
        close(&exp(&a), &Matrix::from_fn(3, 3, |i, j| expected[i][j]), 1e-13);
    }
}
