//! Linear least squares: X with the smallest ‖A·X − B‖, and among these X the one with the smallest ‖X‖.

use crate::matrix::Matrix;
use crate::qr::{HEADROOM, factor, factor_columns};
use crate::svd::{SingularBases, svd};
use crate::triangular::{TriangleKind, solve_triangular};
use crate::{MatrixElement, NotConverged};
use pellucid_gemm::{MatMut, MatRef, TILE};

/// The minimum number of rows that are factored together with the triangular factor of the rows before them. The
/// columns of a narrow matrix and the vectors of their reflections then fit the second-level cache.
const MIN_BLOCK_ROWS: usize = 2048;

/// Writes X for A `[m, n]` and B `[m, k]`, and the singular values of A in descending order. Returns the rank of A: the
/// number of singular values above `rcond` times the largest. The others count as zero.
///
/// A matrix with at least as many rows as columns is factored as A = Q·R, and the reflections are applied to B (Golub
/// 1965). Blocks of rows are factored one after the other, each together with the triangular factor of the rows before
/// it, so that a tall matrix is read once. If R has full rank, X solves R·X = QᵀB; otherwise, and for matrices with
/// fewer rows than columns, X is computed from the singular vectors.
///
/// If an element of A is NaN or infinite, X and the singular values are NaN, and the rank is 0. If an element of B is,
/// its column of X is NaN.
///
/// # Errors
/// [`NotConverged`] if the iteration of [`svd`] does not converge; X is NaN.
///
/// # Panics
/// Panics unless A and B have m rows, X is `[n, k]`, and `values` has min(m, n) elements.
pub fn least_squares<T: MatrixElement>(
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    rcond: T,
    mut x: MatMut<'_, T>,
    values: &mut [T],
) -> Result<usize, NotConverged> {
    let (m, n, k) = (a.rows(), a.columns(), b.columns());
    assert_eq!((b.rows(), x.rows(), x.columns()), (m, n, k), "B must have {m} rows, and X must be {n} × {k}");
    assert_eq!(values.len(), m.min(n), "`values` must have one element for each of the min(m, n) singular values");
    if !with_long_rows(a).is_finite() {
        values.fill(T::NAN);
        x.fill(T::NAN);
        return Ok(0);
    }
    if with_long_rows(b).is_finite() {
        return solve(a, b, rcond, x, values);
    }
    let columns: Vec<bool> = (0..k).map(|j| b.transpose().block(j..j + 1, 0..m).is_finite()).collect();
    let finite = Matrix::from_fn(m, k, |i, j| if columns[j] { b.at(i, j) } else { T::zero() });
    let rank = solve(a, finite.view(), rcond, x.as_mut(), values)?;
    for j in (0..k).filter(|&j| !columns[j]) {
        x.as_mut().block(0..n, j..j + 1).fill(T::NAN);
    }
    Ok(rank)
}

/// Returns the matrix or its transpose, whichever has longer rows. Loops over long rows are faster.
fn with_long_rows<T: MatrixElement>(x: MatRef<'_, T>) -> MatRef<'_, T> {
    if x.rows() > x.columns() { x.transpose() } else { x }
}

/// Solves a problem with finite matrices, as [`least_squares`] does.
fn solve<T: MatrixElement>(
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    rcond: T,
    mut x: MatMut<'_, T>,
    values: &mut [T],
) -> Result<usize, NotConverged> {
    if values.is_empty() {
        x.fill(T::zero());
        return Ok(0);
    }
    if a.rows() < a.columns() {
        return solve_by_singular_vectors(a, b, rcond, x, values);
    }
    let scales = [a, b].map(|matrix| {
        let bound = T::one() / T::MIN_POSITIVE / T::from_f64(HEADROOM);
        let is_in_range = with_long_rows(matrix).all(|x| x.abs() <= bound);
        if is_in_range { T::one() } else { T::one() / T::from_f64(HEADROOM) }
    });
    let [r, right] = if a.columns() + b.columns() <= TILE { reduce_narrow(a, b, scales) } else { reduce(a, b, scales) };
    let rank = solve_by_factor(&r, &right, rcond, x.as_mut(), values)?;
    if scales != [T::one(); 2] {
        values.iter_mut().for_each(|value| *value = *value / scales[0]);
        x.update(|x| x * scales[0] / scales[1]);
    }
    Ok(rank)
}

/// Returns the triangular factor R of A = Q·R, and the first rows of QᵀB, for A and B that are multiplied by `scales`.
/// A has at least as many rows as columns.
fn reduce<T: MatrixElement>(a: MatRef<'_, T>, b: MatRef<'_, T>, scales: [T; 2]) -> [Matrix<T>; 2] {
    let (m, n, k) = (a.rows(), a.columns(), b.columns());
    let rows = m.min(n + MIN_BLOCK_ROWS.max(8 * n));
    let mut stacked = Matrix::zeros(rows, n + k);
    let mut taus = vec![T::zero(); n];
    let (mut start, mut top) = (0, 0);
    while start < m {
        let count = (m - start).min(rows - top);
        for (columns, matrix, scale) in [(0..n, a, scales[0]), (n..n + k, b, scales[1])] {
            let mut to = stacked.view_mut().block(top..top + count, columns.clone());
            to.copy_from(matrix.block(start..start + count, 0..columns.len()));
            if scale != T::one() {
                to.update(|x| x * scale);
            }
        }
        factor(stacked.view_mut().block(0..top + count, 0..n + k), &mut taus);
        // Below the diagonal are the vectors of the reflections.
        (1..n).for_each(|i| stacked.row_mut(i)[..i].fill(T::zero()));
        (start, top) = (start + count, n);
    }
    let part = |columns: std::ops::Range<usize>| Matrix::copy_of(stacked.view().block(0..n, columns));
    [part(0..n), part(n..n + k)]
}

/// Returns the result of [`reduce`] for matrices that have at most 16 columns together. They are factored column by
/// column.
fn reduce_narrow<T: MatrixElement>(a: MatRef<'_, T>, b: MatRef<'_, T>, scales: [T; 2]) -> [Matrix<T>; 2] {
    let (m, n, k) = (a.rows(), a.columns(), b.columns());
    let rows = m.min(n + MIN_BLOCK_ROWS);
    let height = rows.next_multiple_of(TILE);
    let mut columns = vec![T::zero(); (n + k) * height];
    let (mut vectors, mut taus) = (vec![T::zero(); n * height], vec![T::zero(); n]);
    let (mut start, mut top) = (0, 0);
    while start < m {
        let count = (m - start).min(rows - top);
        for (j, column) in columns.chunks_exact_mut(height).enumerate() {
            let (matrix, j_in, scale) = if j < n { (a, j, scales[0]) } else { (b, j - n, scales[1]) };
            // Below the diagonal are the elements that the reflections have replaced.
            column[(j + 1).min(top)..].fill(T::zero());
            let from = matrix.transpose().block(j_in..j_in + 1, start..start + count);
            from.for_row(0, |i, x| column[top + i] = x * scale);
        }
        factor_columns(top + count, &mut columns, &mut vectors, &mut taus);
        (start, top) = (start + count, n);
    }
    let element = |i: usize, j: usize| if i <= j { columns[j * height + i] } else { T::zero() };
    [Matrix::from_fn(n, n, element), Matrix::from_fn(n, k, |i, j| element(i, n + j))]
}

/// Solves the problem with the triangular factor R instead of A.
fn solve_by_factor<T: MatrixElement>(
    r: &Matrix<T>,
    right: &Matrix<T>,
    rcond: T,
    mut x: MatMut<'_, T>,
    values: &mut [T],
) -> Result<usize, NotConverged> {
    let converged = svd(r.view(), values, None);
    if converged.is_err() {
        x.fill(T::NAN);
        return Err(NotConverged);
    }
    let rank = rank(values, rcond);
    if rank < values.len() {
        return solve_by_singular_vectors(r.view(), right.view(), rcond, x, values);
    }
    let mut solution = right.clone();
    solve_triangular(r.view(), solution.view_mut(), TriangleKind { is_upper: true, has_unit_diagonal: false });
    x.copy_from(solution.view());
    Ok(rank)
}

/// Returns the number of singular values above `rcond` times the largest, which is the first.
fn rank<T: MatrixElement>(values: &[T], rcond: T) -> usize {
    let Some(&largest) = values.first() else { return 0 };
    values.iter().filter(|&&value| value > rcond * largest).count()
}

/// Solves the problem by X = V·S⁺·UᵀB.
fn solve_by_singular_vectors<T: MatrixElement>(
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    rcond: T,
    mut x: MatMut<'_, T>,
    values: &mut [T],
) -> Result<usize, NotConverged> {
    let (m, n, k) = (a.rows(), a.columns(), values.len());
    let (mut u, mut vt) = (Matrix::zeros(m, k), Matrix::zeros(k, n));
    let converged = svd(a, values, Some(SingularBases { u: u.view_mut(), vt: vt.view_mut() }));
    if converged.is_err() {
        x.fill(T::NAN);
        return Err(NotConverged);
    }
    let rank = rank(values, rcond);
    let mut inner = Matrix::zeros(k, b.columns());
    inner.view_mut().assign_product(u.view().transpose(), b);
    for (i, &value) in values.iter().enumerate() {
        let row = inner.row_mut(i).iter_mut();
        if i < rank { row.for_each(|x| *x = *x / value) } else { row.for_each(|x| *x = T::zero()) }
    }
    x.assign_product(vt.view().transpose(), inner.view());
    Ok(rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{close, extreme_scales, for_both_dtypes, numbers, product, transpose};

    /// Solves a problem and returns X, the singular values and the rank.
    fn solution<T: MatrixElement>(a: &Matrix<T>, b: &Matrix<T>, rcond: f64) -> (Matrix<T>, Vec<T>, usize) {
        let mut x = Matrix::zeros(a.columns(), b.columns());
        let mut values = vec![T::zero(); a.rows().min(a.columns())];
        let rank = least_squares(a.view(), b.view(), T::from_f64(rcond), x.view_mut(), &mut values).unwrap();
        (x, values, rank)
    }

    /// Checks that X solves the normal equations AᵀA·X = AᵀB, and compares the singular values with those of `svd`.
    fn check_problem<T: MatrixElement>(a: &Matrix<T>, b: &Matrix<T>, full_rank: usize) {
        let (x, values, rank) = solution(a, b, 1e-5);
        assert_eq!(rank, full_rank, "{} × {}", a.rows(), a.columns());
        let at = transpose(a);
        close(&product(&at, &product(a, &x)), &product(&at, b), 32.0);
        let mut expected = values.clone();
        svd(a.view(), &mut expected, None).unwrap();
        let as_matrix = |values: &[T]| Matrix::from_fn(values.len(), 1, |i, _| values[i]);
        close(&as_matrix(&values), &as_matrix(&expected), 8.0);
    }

    fn check<T: MatrixElement>() {
        let shapes = [(1, 1), (5, 5), (7, 3), (40, 12), (33, 17), (60, 40), (2047, 3), (2050, 3), (2051, 3), (9000, 4)];
        for (m, n) in shapes {
            for k in [1, 2, 5, 20] {
                check_problem(&numbers::<T>(m, n, 5), &numbers(m, k, 6), n);
            }
        }
        for (m, n) in [(3, 7), (1, 40), (12, 40)] {
            check_problem(&numbers::<T>(m, n, 5), &numbers(m, 2, 6), m);
        }
        // The block of a wider matrix has eight times as many rows as columns.
        check_problem(&numbers::<T>(5000, 20, 5), &numbers(5000, 3, 6), 20);
    }

    #[test]
    fn the_residual_is_orthogonal_to_the_columns() {
        for_both_dtypes!(check);
    }

    fn check_rank<T: MatrixElement>() {
        for (m, n) in [(4, 4), (30, 6), (5000, 5), (60, 40), (4, 9)] {
            let a = product(&numbers::<T>(m, 2, 3), &numbers(2, n, 4));
            let b = numbers(m, 2, 7);
            check_problem(&a, &b, 2);
            // The shortest solution is a combination of the rows of A: X = Aᵀ·(A·Aᵀ)⁺·B.
            let (x, _, _) = solution(&a, &b, 1e-5);
            let (combination, _, _) = solution(&transpose(&a), &x, 1e-5);
            close(&product(&transpose(&a), &combination), &x, 64.0);
        }
        for (m, n) in [(0, 3), (3, 0), (0, 0)] {
            let (x, _, rank) = solution(&Matrix::<T>::zeros(m, n), &numbers(m, 2, 1), 1e-5);
            assert!(rank == 0 && x.data().iter().all(|&x| x == T::zero()));
        }
        let (x, values, rank) = solution(&Matrix::<T>::zeros(5, 3), &numbers(5, 2, 1), 1e-5);
        assert!(rank == 0 && x.data().iter().chain(&values).all(|&x| x == T::zero()));
    }

    #[test]
    fn the_solution_of_deficient_matrices_is_the_shortest() {
        for_both_dtypes!(check_rank);
    }

    fn check_extremes<T: MatrixElement>() {
        let (a, b) = (numbers::<T>(30, 3, 5), numbers::<T>(30, 2, 6));
        let (expected, ..) = solution(&a, &b, 1e-5);
        for size in extreme_scales::<T>() {
            let scaled = |x: &Matrix<T>| Matrix::from_fn(x.rows(), x.columns(), |i, j| x.row(i)[j] * size);
            close(&solution(&scaled(&a), &scaled(&b), 1e-5).0, &expected, 8.0);
        }
        let largest = T::one() / T::MIN_POSITIVE;
        let (x, values, rank) =
            solution(&Matrix::from_fn(9, 1, |_, _| largest), &Matrix::from_fn(9, 1, |_, _| largest), 0.0);
        assert!((x.row(0)[0].to_f64() - 1.0).abs() < 1e-5 && rank == 1 && values[0] >= largest);
    }

    #[test]
    fn intermediate_results_do_not_overflow_or_underflow() {
        for_both_dtypes!(check_extremes);
    }

    #[test]
    fn nan_and_infinity_reach_their_results_only() {
        let a = numbers::<f64>(20, 3, 5);
        let mut b = numbers::<f64>(20, 3, 6);
        let (expected, values, _) = solution(&a, &b, 1e-9);
        b.row_mut(7)[1] = f64::INFINITY;
        let (x, same, rank) = solution(&a, &b, 1e-9);
        assert!((0..3).all(|i| x.row(i)[1].is_nan()) && rank == 3 && same == values);
        assert!((0..3).all(|i| x.row(i)[0] == expected.row(i)[0] && x.row(i)[2] == expected.row(i)[2]));
        let mut a = a;
        a.row_mut(19)[2] = f64::NAN;
        let (x, values, rank) = solution(&a, &b, 1e-9);
        assert!(rank == 0 && x.data().iter().chain(&values).all(|x| x.is_nan()));
    }
}
