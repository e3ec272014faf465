//! The solution of A·X = B for triangular A.

use crate::Matrix;
use faer::Par;
use faer::linalg::triangular_solve as solve;

/// The part of a triangular matrix that is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TriangleKind {
    /// The matrix is upper triangular.
    pub is_upper: bool,
    /// The diagonal is assumed to be 1 and not read.
    pub has_unit_diagonal: bool,
}

/// Replaces B by X with A·X = B.
///
/// The opposite triangle of A is not read. If a diagonal element that is read is zero, all elements of X are NaN.
pub fn solve_triangular(a: &Matrix, b: &mut Matrix, TriangleKind { is_upper, has_unit_diagonal }: TriangleKind) {
    let (n, view) = (a.rows(), a.view());
    if !has_unit_diagonal && (0..n).any(|i| a[(i, i)] == 0.0) {
        return b.fill(f64::NAN);
    }
    let x = b.view_mut();
    match (is_upper, has_unit_diagonal) {
        (false, false) => solve::solve_lower_triangular_in_place(view, x, Par::Seq),
        (false, true) => solve::solve_unit_lower_triangular_in_place(view, x, Par::Seq),
        (true, false) => solve::solve_upper_triangular_in_place(view, x, Par::Seq),
        (true, true) => solve::solve_unit_upper_triangular_in_place(view, x, Par::Seq),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{close, numbers, product};

    #[test]
    fn a_times_x_is_b_and_the_other_triangle_is_not_read() {
        for (n, k) in [(0, 0), (0, 2), (3, 0), (1, 1), (5, 3), (40, 1), (33, 40)] {
            for (is_upper, has_unit_diagonal) in [(false, false), (false, true), (true, false), (true, true)] {
                let elements = numbers(n, n, 10);
                let a = Matrix::from_fn(n, n, |i, j| match i.cmp(&j) {
                    std::cmp::Ordering::Equal if has_unit_diagonal => 1.0,
                    std::cmp::Ordering::Equal => 3.0 + elements[(i, i)],
                    side if (side == std::cmp::Ordering::Less) == is_upper => elements[(i, j)] / n as f64,
                    _ => 0.0,
                });
                let stored = Matrix::from_fn(n, n, |i, j| {
                    let other = (i < j) != is_upper && i != j;
                    if other || (has_unit_diagonal && i == j) { f64::NAN } else { a[(i, j)] }
                });
                let b = numbers(n, k, 11);
                let mut x = b.clone();
                solve_triangular(&stored, &mut x, TriangleKind { is_upper, has_unit_diagonal });
                close(&product(&a, &x), &b, 1e-13);
            }
        }
    }

    #[test]
    fn a_singular_system_gives_nan() {
        let a = Matrix::from_fn(2, 2, |i, j| [[1.0, 0.0], [1.0, 0.0]][i][j]);
        let mut x = Matrix::full(2, 3, 1.0);
        solve_triangular(&a, &mut x, TriangleKind { is_upper: false, has_unit_diagonal: false });
        assert!(x.data().iter().all(|x| x.is_nan()));
    }
}
