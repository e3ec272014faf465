//! The LU factorization P·A = L·U with partial pivoting.

use crate::MatrixElement;
use crate::panel::with_columns;
use crate::triangular::solve_lower;
use pellucid_gemm::{MatMut, TILE};
use pellucid_simd::{AutoVectorized, run_vectorized};

/// Replaces a matrix by L (below the diagonal; its diagonal is 1) and U, and writes the pivots: row i was exchanged
/// with row pivotᵢ ≥ i, in order.
///
/// A column without a nonzero pivot is skipped, as in LAPACK: U then has a zero on its diagonal. If an element is NaN
/// or infinite, all elements become NaN, and the pivots describe the identity: pivotᵢ = i.
///
/// The columns are halved recursively (Toledo 1997) down to panels of 16 columns.
pub fn lu<T: MatrixElement>(mut a: MatMut<'_, T>, pivots: &mut Vec<usize>) {
    pivots.clear();
    if a.as_ref().is_finite() {
        return factor(a, pivots);
    }
    a.fill(T::NAN);
    pivots.extend(0..a.rows().min(a.columns()));
}

/// Factors a block and appends its pivots, which count from the first row of the block.
fn factor<T: MatrixElement>(a: MatMut<'_, T>, pivots: &mut Vec<usize>) {
    let (n, k) = (a.columns(), a.rows().min(a.columns()));
    if k == 0 {
        return;
    }
    if n <= TILE {
        return factor_panel(a, pivots);
    }
    let split = if k <= TILE { k } else { (k / 2).next_multiple_of(TILE) };
    let first = pivots.len();
    let (mut left, mut right) = a.split_columns(split);
    factor(left.as_mut(), pivots);
    pivots[first..].iter().enumerate().for_each(|(i, &pivot)| right.swap_rows(i, pivot));
    let ((l1, mut l2), (mut u, mut rest)) = (left.split_rows(split), right.split_rows(split));
    solve_lower(l1.as_ref(), u.as_mut(), true);
    rest.subtract_product(l2.as_ref(), u.as_ref());
    let second = pivots.len();
    factor(rest, pivots);
    for (i, pivot) in pivots[second..].iter_mut().enumerate() {
        l2.swap_rows(i, *pivot);
        *pivot += split;
    }
}

/// Factors at most 16 columns.
fn factor_panel<T: MatrixElement>(mut a: MatMut<'_, T>, pivots: &mut Vec<usize>) {
    let (m, n) = (a.rows(), a.columns());
    let found = with_columns(&mut a, 1, |columns, multipliers| {
        run_vectorized(PanelLu { m, n, height: multipliers.len(), columns, multipliers })
    });
    pivots.extend_from_slice(&found[..m.min(n)]);
}

/// The LU factorization of n ≤ 16 columns of m elements, which are padded with zeros to `height`, a multiple of 16.
struct PanelLu<'a, T> {
    m: usize,
    n: usize,
    height: usize,
    columns: &'a mut [T],
    /// Scratch for one column.
    multipliers: &'a mut [T],
}

impl<T: MatrixElement> AutoVectorized for PanelLu<'_, T> {
    type Output = [usize; TILE];

    #[inline(always)]
    fn run(self) -> [usize; TILE] {
        let PanelLu { m, n, height, columns, multipliers } = self;
        let mut pivots = [0; TILE];
        for k in 0..m.min(n) {
            let pivot = largest_position(&columns[k * height..][..height], k, m);
            pivots[k] = pivot;
            if pivot != k {
                (0..n).for_each(|j| columns.swap(j * height + k, j * height + pivot));
            }
            let (done, rest) = columns.split_at_mut((k + 1) * height);
            let column = &mut done[k * height..];
            let diagonal = column[k];
            if diagonal == T::zero() {
                continue;
            }
            // The multipliers of the rows up to k are zero, so that the loops below run over complete vectors.
            for (i, (x, multiplier)) in column.iter_mut().zip(multipliers.iter_mut()).enumerate() {
                let quotient = *x / diagonal;
                *multiplier = if i > k { quotient } else { T::zero() };
                *x = if i > k { quotient } else { *x };
            }
            for column in rest.chunks_exact_mut(height) {
                let by = column[k];
                let (column, _) = column.as_chunks_mut::<TILE>();
                for (x, multiplier) in column.iter_mut().zip(multipliers.as_chunks::<TILE>().0) {
                    for lane in 0..TILE {
                        x[lane] = x[lane] - by * multiplier[lane];
                    }
                }
            }
        }
        pivots
    }
}

/// Returns the first position, from k < 16 to m − 1, of the element with the largest magnitude; k if no element is a
/// number, after an overflow. The elements from m are zero.
#[inline(always)]
fn largest_position<T: MatrixElement>(column: &[T], k: usize, m: usize) -> usize {
    let mut most = [T::zero(); TILE];
    for (chunk, x) in column.as_chunks::<TILE>().0.iter().enumerate() {
        for lane in 0..TILE {
            let size = if chunk > 0 || lane >= k { x[lane].abs() } else { T::zero() };
            most[lane] = if size > most[lane] { size } else { most[lane] };
        }
    }
    let most = most.into_iter().fold(T::zero(), |a, b| if b > a { b } else { a });
    (k..m).find(|&i| column[i].abs() == most).unwrap_or(k)
}

/// Converts pivots to the order of `rows` rows: row i of the result is row `order[i]` of the original.
pub fn row_order(pivots: impl IntoIterator<Item = usize>, rows: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows).collect();
    pivots.into_iter().enumerate().for_each(|(i, pivot)| order.swap(i, pivot));
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Matrix;
    use crate::testing::{SIZES, close, extreme_scales, for_both_dtypes, numbers, product};

    /// Checks P·A = L·U, relative to the largest element, in units of `factor`·ε·n.
    fn check_factors<T: MatrixElement>(a: &Matrix<T>, factor: f64) {
        let (m, n) = (a.rows(), a.columns());
        let k = m.min(n);
        let (mut packed, mut pivots) = (a.clone(), Vec::new());
        lu(packed.view_mut(), &mut pivots);
        assert_eq!(pivots.len(), k);
        assert!(pivots.iter().enumerate().all(|(i, &p)| (i..m).contains(&p)), "pivot i must be in i..{m}: {pivots:?}");
        let l = Matrix::from_fn(m, k, |i, j| match i.cmp(&j) {
            std::cmp::Ordering::Equal => T::one(),
            std::cmp::Ordering::Greater => packed.row(i)[j],
            std::cmp::Ordering::Less => T::zero(),
        });
        let u = Matrix::from_fn(k, n, |i, j| if i <= j { packed.row(i)[j] } else { T::zero() });
        assert!(l.data().iter().all(|x| x.abs() <= T::one()));
        let order = row_order(pivots, m);
        close(&product(&l, &u), &Matrix::from_fn(m, n, |i, j| a.row(order[i])[j]), factor);
    }

    fn check<T: MatrixElement>() {
        for n in SIZES {
            check_factors(&numbers::<T>(n, n, 2), 2.0);
            // Graded rows and columns.
            let graded = numbers::<T>(n, n, 3);
            let grade = |i: usize, j: usize| T::from_f64(0.9f64.powi((i + j) as i32 / 4));
            check_factors(&Matrix::from_fn(n, n, |i, j| graded.row(i)[j] * grade(i, j)), 2.0);
            let random = numbers::<T>(n, n, 4);
            let subnormal = T::MIN_POSITIVE * T::from_f64(0.01);
            check_factors(&Matrix::from_fn(n, n, |i, j| random.row(i)[j] * subnormal), 200.0);
            for size in extreme_scales() {
                check_factors(&Matrix::from_fn(n, n, |i, j| random.row(i)[j] * size), 2.0);
            }
        }
        for (m, n) in [(0, 3), (3, 0), (0, 40), (3, 7), (7, 3), (90, 33), (33, 90), (8, 100), (100, 8), (129, 31)] {
            check_factors(&numbers::<T>(m, n, 2), 2.0);
        }
        for n in [2, 5, 40, 65] {
            check_factors(&Matrix::<T>::zeros(n, n), 1.0);
            check_factors(&Matrix::from_fn(n, n, |i, _| T::from_f64(i as f64)), 1.0);
            check_factors(&Matrix::from_fn(n, n, |_, j| T::from_f64(f64::from(u8::from(j != 1)))), 1.0);
            check_factors(&product(&numbers::<T>(n, 1, 3), &numbers(1, n, 4)), 1.0);
        }
        // Wilkinson's matrix: the elements of U grow to 2ⁿ⁻¹, without rounding.
        check_factors(
            &Matrix::<T>::from_fn(23, 23, |i, j| {
                T::from_f64(if i == j || j == 22 {
                    1.0
                } else if i > j {
                    -1.0
                } else {
                    0.0
                })
            }),
            1.0,
        );
    }

    #[test]
    fn l_times_u_is_a_with_permuted_rows() {
        for_both_dtypes!(check);
    }

    #[test]
    fn the_first_of_equal_pivots_is_chosen() {
        let mut a = Matrix::from_fn(40, 2, |i, _| if i % 7 == 3 { -2.0f32 } else { 1.0 });
        let mut pivots = Vec::new();
        lu(a.view_mut(), &mut pivots);
        assert_eq!(pivots, [3, 1]);
    }

    #[test]
    fn pivots_are_rows_of_the_matrix_after_an_overflow() {
        let mut a = Matrix::from_fn(3, 3, |i, j| if i > 0 && j == 0 { -f32::MAX } else { f32::MAX });
        let mut pivots = Vec::new();
        lu(a.view_mut(), &mut pivots);
        assert!(a.row(2)[2].is_nan(), "the last pivot is not a number");
        assert_eq!(pivots, [0, 1, 2]);
    }

    #[test]
    fn nan_propagates_to_all_results() {
        let mut a = Matrix::from_fn(3, 3, |i, j| if (i, j) == (2, 0) { f64::INFINITY } else { 1.0 });
        let mut pivots = vec![7];
        lu(a.view_mut(), &mut pivots);
        assert_eq!(pivots, [0, 1, 2]);
        assert!(a.data().iter().all(|x| x.is_nan()));
    }
}
