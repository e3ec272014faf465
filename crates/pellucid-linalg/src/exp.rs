//! The matrix exponential.

use crate::matrix::Matrix;
use crate::{MatrixElement, TriangleKind, lu, row_order, solve_triangular};
use pellucid_gemm::{MatMut, MatRef};

/// A diagonal Padé approximant of eˣ: the coefficients of its numerator, and the largest 1-norm for which its backward
/// error is below the rounding unit of the dtype (Higham 2005, tables 2.3 and 10.2 of Functions of Matrices, 2008).
struct Pade {
    max_norm: f64,
    coefficients: &'static [f64],
}

/// The approximants of degree 3, 5, 7, 9 and 13 for `f64`.
const DOUBLE: [Pade; 5] = [
    Pade { max_norm: 1.495585217958292e-2, coefficients: &DEGREE_3 },
    Pade { max_norm: 2.53939833006323e-1, coefficients: &DEGREE_5 },
    Pade { max_norm: 9.504178996162932e-1, coefficients: &DEGREE_7 },
    Pade { max_norm: 2.097847961257068, coefficients: &DEGREE_9 },
    Pade { max_norm: 5.371920351148152, coefficients: &DEGREE_13 },
];

/// The approximants of degree 3, 5 and 7 for `f32`.
const SINGLE: [Pade; 3] = [
    Pade { max_norm: 4.258730016922831e-1, coefficients: &DEGREE_3 },
    Pade { max_norm: 1.880152677804762, coefficients: &DEGREE_5 },
    Pade { max_norm: 3.92572478313866, coefficients: &DEGREE_7 },
];

const DEGREE_3: [f64; 4] = [120.0, 60.0, 12.0, 1.0];
const DEGREE_5: [f64; 6] = [30240.0, 15120.0, 3360.0, 420.0, 30.0, 1.0];
const DEGREE_7: [f64; 8] = [17297280.0, 8648640.0, 1995840.0, 277200.0, 25200.0, 1512.0, 56.0, 1.0];
const DEGREE_9: [f64; 10] =
    [17643225600.0, 8821612800.0, 2075673600.0, 302702400.0, 30270240.0, 2162160.0, 110880.0, 3960.0, 90.0, 1.0];
const DEGREE_13: [f64; 14] = [
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

/// Replaces A by its exponential Σ Aᵏ/k!, computed as a Padé approximant for A/2ˢ that is squared s times (Higham
/// 2005). If an element is NaN or infinite, all elements become NaN.
pub fn exp<T: MatrixElement>(mut a: MatMut<'_, T>) {
    let n = a.rows();
    if !a.as_ref().is_finite() {
        return a.fill(T::NAN);
    }
    let norm = one_norm(a.as_ref());
    let approximants: &[Pade] = if T::EPSILON.to_f64() > 1e-10 { &SINGLE } else { &DOUBLE };
    let last = &approximants[approximants.len() - 1];
    let approximant = approximants.iter().find(|pade| norm <= pade.max_norm).unwrap_or(last);
    // If the norm overflows, A is scaled by 2⁻¹⁰²³, the smallest power of two whose inverse is finite.
    let squarings = (0..1023).find(|&s| norm * 2f64.powi(-s) <= last.max_norm).unwrap_or(1023);
    let mut scaled = Matrix::copy_of(a.as_ref());
    let scale = T::from_f64(2f64.powi(-squarings));
    scaled.update(|x| x * scale);
    let mut x = pade(&scaled, approximant.coefficients);
    let mut square = Matrix::zeros(n, n);
    for _ in 0..squarings {
        square.view_mut().assign_product(x.view(), x.view());
        std::mem::swap(&mut x, &mut square);
    }
    a.copy_from(x.view());
}

/// Returns the 1-norm: the largest sum of the magnitudes in a column.
fn one_norm<T: MatrixElement>(a: MatRef<'_, T>) -> f64 {
    let mut sums = vec![0.0; a.columns()];
    for i in 0..a.rows() {
        sums.iter_mut().enumerate().for_each(|(j, sum)| *sum += a.at(i, j).to_f64().abs());
    }
    sums.into_iter().fold(0.0, f64::max)
}

/// Returns the approximant (V − U)⁻¹·(V + U), where U is the odd and V the even part of the numerator.
fn pade<T: MatrixElement>(a: &Matrix<T>, coefficients: &[f64]) -> Matrix<T> {
    let n = a.rows();
    let degree = coefficients.len() - 1;
    // The powers A², A⁴, .. of both parts. Degree 13 computes the higher powers as A⁶ times a sum of A², A⁴ and A⁶.
    let mut powers = vec![Matrix::product(a, a)];
    while powers.len() < if degree == 13 { 3 } else { degree / 2 } {
        let next = Matrix::product(&powers[powers.len() - 1], &powers[0]);
        powers.push(next);
    }
    let sum = |first: usize, with_identity: bool| {
        let mut sum = Matrix::identity(n, n);
        let constant = if with_identity { coefficients[first] } else { 0.0 };
        sum.update(|x| x * T::from_f64(constant));
        let first = if with_identity { first + 2 } else { first };
        for (power, &c) in powers.iter().zip(coefficients[first..].iter().step_by(2)) {
            sum.add_scaled(power, T::from_f64(c));
        }
        sum
    };
    let part = |parity: usize| {
        let mut part = sum(parity, true);
        if degree == 13 {
            part.add_scaled(&Matrix::product(&powers[2], &sum(8 + parity, false)), T::one());
        }
        part
    };
    let (u, v) = (Matrix::product(a, &part(1)), part(0));
    let (mut left, mut right) = (v.clone(), v);
    left.add_scaled(&u, -T::one());
    right.add_scaled(&u, T::one());
    let mut pivots = Vec::new();
    lu(left.view_mut(), &mut pivots);
    let order = row_order(pivots, n);
    let mut x = Matrix::zeros(n, n);
    (0..n).for_each(|i| x.row_mut(i).copy_from_slice(right.row(order[i])));
    let kind = |is_upper| TriangleKind { is_upper, has_unit_diagonal: !is_upper };
    solve_triangular(left.view(), x.view_mut(), kind(false));
    solve_triangular(left.view(), x.view_mut(), kind(true));
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{close, for_both_dtypes, numbers};

    /// Returns the exponential of A, computed in `f64`: the Taylor series Σ (A/2¹⁰)ᵏ/k!, squared ten times.
    fn series<T: MatrixElement>(a: &Matrix<T>) -> Matrix<T> {
        let n = a.rows();
        let small = Matrix::from_fn(n, n, |i, j| a.row(i)[j].to_f64() / 1024.0);
        let mut term = Matrix::identity(n, n);
        let mut sum = term.clone();
        for k in 1..20 {
            term = crate::testing::product(&term, &small);
            term.update(|x| x / f64::from(k));
            sum.add_scaled(&term, 1.0);
        }
        let squared = (0..10).fold(sum, |x, _| crate::testing::product(&x, &x));
        Matrix::from_fn(n, n, |i, j| T::from_f64(squared.row(i)[j]))
    }

    fn check<T: MatrixElement>() {
        // The scale factors exercise the approximants of all degrees.
        for (n, size) in
            [(0, 1.0), (1, 1.0), (4, 1e-3), (4, 0.05), (4, 0.2), (4, 0.5), (4, 1.0), (4, 5.0), (10, 3.0), (40, 0.5)]
        {
            let mut a = numbers::<T>(n, n, 12);
            a.update(|x| x * T::from_f64(size));
            let mut x = a.clone();
            exp(x.view_mut());
            // The reference has an error of about 2¹⁰ rounding units of `f64`.
            let reference = 1024.0 * f64::EPSILON / T::EPSILON.to_f64();
            close(&x, &series(&a), 16.0 + reference);
        }
    }

    #[test]
    fn exp_equals_the_series() {
        for_both_dtypes!(check);
    }

    #[test]
    fn exp_of_a_nilpotent_matrix_is_a_polynomial() {
        let mut a = Matrix::from_fn(3, 3, |i, j| if j == i + 1 { 1e3 } else { 0.0 });
        exp(a.view_mut());
        let expected = [[1.0, 1e3, 5e5], [0.0, 1.0, 1e3], [0.0, 0.0, 1.0]];
        close(&a, &Matrix::from_fn(3, 3, |i, j| expected[i][j]), 16.0);
    }

    #[test]
    fn a_norm_that_overflows_needs_finitely_many_squares() {
        // The column sums are infinite, and the exponential is I + A.
        let a = Matrix::from_fn(6, 6, |i, j| if i < 3 && j >= 3 { 1e308 } else { 0.0 });
        let mut x = a.clone();
        exp(x.view_mut());
        let mut expected = Matrix::identity(6, 6);
        expected.add_scaled(&a, 1.0);
        close(&x, &expected, 16.0);
    }

    #[test]
    fn nan_propagates_to_all_results() {
        let mut a = Matrix::from_fn(2, 2, |i, _| if i == 0 { f32::NAN } else { 0.0 });
        exp(a.view_mut());
        assert!(a.data().iter().all(|x| x.is_nan()));
    }
}
