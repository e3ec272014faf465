//! The factorization P·A·Pᵀ = L·D·Lᵀ of symmetric indefinite matrices, and the solution of linear systems with it.

use crate::Matrix;

/// A pivot: the exchanged row and column, and the size of the block of D.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pivot {
    /// A 1×1 block at row k. The value is the row, at least k, with which row k was exchanged.
    One(usize),
    /// A row of a 2×2 block. The value is the row with which the second row of this block was exchanged.
    Two(usize),
}

/// Replaces a symmetric matrix by L and D. Returns the pivots, and the 1-based position of the first zero block of D,
/// or 0.
///
/// Only the lower triangle is read; the upper one is set to zero. L is stored below the blocks of D; its diagonal
/// blocks are identities. The pivoting is the partial pivoting of Bunch and Kaufman (1977), as in LAPACK's `sytf2`.
pub fn ldl(a: &mut Matrix) -> (Vec<Pivot>, usize) {
    let n = a.rows();
    if !a.is_finite_below() {
        a.fill(f64::NAN);
        return ((0..n).map(Pivot::One).collect(), 0);
    }
    let (mut pivots, mut first_zero, mut k) = (Vec::with_capacity(n), 0, 0);
    while k < n {
        let pivot = choose_pivot(a, k);
        let (pivot_row, last) = match pivot {
            Some(Pivot::Two(pivot_row)) => (pivot_row, k + 1),
            Some(Pivot::One(pivot_row)) => (pivot_row, k),
            None => (k, k),
        };
        swap_symmetric(a, k, last, pivot_row);
        match pivot {
            None if first_zero == 0 => first_zero = k + 1,
            None => {}
            Some(Pivot::One(_)) => eliminate_one(a, k),
            Some(Pivot::Two(_)) => eliminate_two(a, k),
        }
        pivots.extend(std::iter::repeat_n(pivot.unwrap_or(Pivot::One(k)), last + 1 - k));
        k = last + 1;
    }
    (0..n).for_each(|j| a.column_mut(j)[..j].fill(0.0));
    (pivots, first_zero)
}

/// Returns the candidate with the larger value. A candidate is an index and the value of the element there.
fn larger_candidate(best: (usize, f64), (i, x): (usize, f64)) -> (usize, f64) {
    if x > best.1 { (i, x) } else { best }
}

/// Chooses the pivot that eliminates column k; `None` if the column is zero.
fn choose_pivot(a: &Matrix, k: usize) -> Option<Pivot> {
    let n = a.rows();
    // This threshold minimizes the bound on element growth: the bound is equal for one 2×2 pivot and two 1×1 pivots.
    let alpha = (1.0 + 17f64.sqrt()) / 8.0;
    let diagonal = a[(k, k)].abs();
    let (row, column_max) = (k + 1..n).map(|i| (i, a[(i, k)].abs())).fold((k, 0.0), larger_candidate);
    if diagonal.max(column_max) == 0.0 {
        return None;
    }
    if diagonal >= alpha * column_max {
        return Some(Pivot::One(k));
    }
    let row_max =
        (k..row).map(|j| a[(row, j)].abs()).chain((row + 1..n).map(|i| a[(i, row)].abs())).fold(0.0, f64::max);
    Some(match () {
        () if diagonal >= alpha * column_max * (column_max / row_max) => Pivot::One(k),
        () if a[(row, row)].abs() >= alpha * row_max => Pivot::One(row),
        () => Pivot::Two(row),
    })
}

/// Exchanges rows and columns `row` and `pivot_row` of the submatrix from column k.
fn swap_symmetric(a: &mut Matrix, k: usize, row: usize, pivot_row: usize) {
    if row == pivot_row {
        return;
    }
    let n = a.rows();
    let mut swap = |x: (usize, usize), y: (usize, usize)| (a[x], a[y]) = (a[y], a[x]);
    swap((row, row), (pivot_row, pivot_row));
    (row + 1..pivot_row).for_each(|j| swap((j, row), (pivot_row, j)));
    (pivot_row + 1..n).for_each(|i| swap((i, row), (i, pivot_row)));
    if row > k {
        swap((row, k), (pivot_row, k));
    }
}

/// Eliminates column k with a 1×1 pivot.
fn eliminate_one(a: &mut Matrix, k: usize) {
    let n = a.rows();
    let inverse_pivot = a[(k, k)].recip();
    for j in k + 1..n {
        let factor = inverse_pivot * a[(j, k)];
        (j..n).for_each(|i| a[(i, j)] -= a[(i, k)] * factor);
    }
    (k + 1..n).for_each(|i| a[(i, k)] *= inverse_pivot);
}

/// Eliminates columns k and k + 1 with a 2×2 pivot.
fn eliminate_two(a: &mut Matrix, k: usize) {
    let n = a.rows();
    // The 2×2 pivot is divided by its off-diagonal element, so that its determinant does not overflow.
    let off_diagonal = a[(k + 1, k)];
    let (second, first) = (a[(k + 1, k + 1)] / off_diagonal, a[(k, k)] / off_diagonal);
    let scale = (second * first - 1.0).recip() / off_diagonal;
    for j in k + 2..n {
        let u = scale * (second * a[(j, k)] - a[(j, k + 1)]);
        let v = scale * (first * a[(j, k + 1)] - a[(j, k)]);
        (j..n).for_each(|i| a[(i, j)] -= a[(i, k)] * u + a[(i, k + 1)] * v);
        (a[(j, k)], a[(j, k + 1)]) = (u, v);
    }
}

/// Replaces B by X with A·X = B, from the factors and pivots of [`ldl`].
///
/// If D has a zero block, X contains infinities or NaN.
pub fn solve_ldl(a: &Matrix, pivots: &[Pivot], b: &mut Matrix) {
    let n = a.rows();
    let mut k = 0;
    while k < n {
        match pivots[k] {
            Pivot::One(pivot_row) => {
                b.swap_rows(k, pivot_row);
                for c in 0..b.columns() {
                    let x = b.column_mut(c);
                    let head = x[k];
                    (k + 1..n).for_each(|i| x[i] -= a[(i, k)] * head);
                    x[k] = head / a[(k, k)];
                }
                k += 1;
            }
            Pivot::Two(pivot_row) => {
                b.swap_rows(k + 1, pivot_row);
                let off_diagonal = a[(k + 1, k)];
                let (first, second) = (a[(k, k)] / off_diagonal, a[(k + 1, k + 1)] / off_diagonal);
                let determinant = first * second - 1.0;
                for c in 0..b.columns() {
                    let x = b.column_mut(c);
                    let (u, v) = (x[k], x[k + 1]);
                    (k + 2..n).for_each(|i| x[i] -= a[(i, k)] * u + a[(i, k + 1)] * v);
                    let (u, v) = (u / off_diagonal, v / off_diagonal);
                    x[k] = (second * u - v) / determinant;
                    x[k + 1] = (first * v - u) / determinant;
                }
                k += 2;
            }
        }
    }
    while k > 0 {
        let (size, pivot_row) = match pivots[k - 1] {
            Pivot::One(pivot_row) => (1, pivot_row),
            Pivot::Two(pivot_row) => (2, pivot_row),
        };
        for c in 0..b.columns() {
            let x = b.column_mut(c);
            for j in k - size..k {
                x[j] -= (k..n).map(|i| a[(i, j)] * x[i]).sum::<f64>();
            }
        }
        b.swap_rows(k - 1, pivot_row);
        k -= size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{close, numbers, product, transpose};

    fn symmetric(n: usize, seed: u64) -> Matrix {
        let half = numbers(n, n, seed);
        half.zip(&transpose(&half), |a, b| a + b)
    }

    #[test]
    fn a_times_x_is_b_and_the_upper_triangle_is_not_read() {
        for (n, k) in [(0, 2), (1, 1), (2, 2), (3, 1), (7, 3), (40, 5)] {
            for seed in 0..5 {
                // A zero diagonal needs 2×2 blocks.
                let full = symmetric(n, seed);
                let a = Matrix::from_fn(n, n, |i, j| if i == j && seed % 2 == 1 && n > 1 { 0.0 } else { full[(i, j)] });
                let b = numbers(n, k, 20);
                let (mut packed, mut x) =
                    (Matrix::from_fn(n, n, |i, j| if i < j { f64::NAN } else { a[(i, j)] }), b.clone());
                let (pivots, first_zero) = ldl(&mut packed);
                assert_eq!(first_zero, 0);
                assert!(seed % 2 == 0 || n < 2 || matches!(pivots[0], Pivot::Two(_)));
                solve_ldl(&packed, &pivots, &mut x);
                close(&product(&a, &x), &b, 1e-11);
            }
        }
    }

    #[test]
    fn pivots_equal_those_of_lapack() {
        let mut a = Matrix::from_fn(3, 3, |i, j| [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [4.0, 2.0, 3.0]][i][j]);
        let (pivots, _) = ldl(&mut a);
        assert_eq!(pivots, [Pivot::One(2), Pivot::One(1), Pivot::One(2)]);
        assert_eq!(a.column(0), [3.0, 2.0 / 3.0, 4.0 / 3.0]);
    }

    #[test]
    fn a_zero_matrix_is_reported_without_division() {
        let mut a = Matrix::from_fn(3, 3, |i, j| if (i, j) == (0, 0) { 2.0 } else { 0.0 });
        let (pivots, first_zero) = ldl(&mut a);
        assert_eq!((first_zero, pivots), (2, vec![Pivot::One(0), Pivot::One(1), Pivot::One(2)]));
        assert!(a.is_finite());
    }

    #[test]
    fn nan_propagates_to_all_results() {
        let mut a = Matrix::from_fn(2, 2, |i, j| if (i, j) == (1, 0) { f64::NAN } else { 1.0 });
        ldl(&mut a);
        assert!(a.data().iter().all(|x| x.is_nan()));
    }
}
