//! The LU factorization P·A = L·U with partial pivoting, and the solution of linear systems with it.

use crate::group::{GROUP, MatrixGroup, fits_group};
use crate::panel::with_columns;
use crate::triangular::{GroupSolve, has_zero_on_diagonal, solve_lower, solve_triangular};
use crate::{MatrixElement, TriangleKind};
use pellucid_gemm::{MatMut, MatRef, TILE};
use pellucid_simd::{AutoVectorized, run_vectorized};

/// Replaces a matrix by U, on and above the diagonal, and by L, whose diagonal is 1, below it. Writes the pivots: row i
/// was exchanged with row pivotᵢ ≥ i, in ascending order of i.
///
/// A column without a nonzero pivot is skipped, as in LAPACK: U then has a zero on its diagonal. If an element is NaN
/// or infinite, all elements become NaN, and the pivots describe the identity: pivotᵢ = i.
///
/// The columns are halved recursively (Toledo 1997) down to panels of 16 columns. A matrix with at most 16 rows and
/// columns is a group of one matrix.
pub fn lu<T: MatrixElement>(mut a: MatMut<'_, T>, pivots: &mut Vec<usize>) {
    pivots.clear();
    if fits_group(a.rows(), a.columns()) {
        return MatrixGroup::with_zeros(a.rows(), a.columns(), |mut group| {
            group.load(&[a.as_ref()], |_, i| i);
            factor_group::<T, 1>(group, &mut [a], |[pivot]| pivots.push(pivot));
        });
    }
    if a.as_ref().is_finite() {
        return factor(a, pivots);
    }
    a.fill(T::NAN);
    pivots.extend(0..a.rows().min(a.columns()));
}

/// Factors a block and appends its pivots, which are relative to the first row of the block.
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
    /// The scratch memory for one column.
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
            // The multipliers of the rows up to k are zero, so that the loops below can process complete columns.
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

/// Returns the position of the first element with the largest magnitude, from position k < 16 to m − 1. Returns k if
/// all these elements are NaN after an overflow. The elements from position m on must be zero.
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

/// Factors the matrices of a group, which have at most 16 rows and columns, as [`lu`] does. Element `lane` of an array
/// of pivots belongs to matrix `lane`.
pub fn lu_group<T: MatrixElement>(a: &[MatRef<'_, T>], to: &mut [MatMut<'_, T>], pivots: &mut Vec<[usize; GROUP]>) {
    pivots.clear();
    MatrixGroup::with_copies(a, |group| factor_group(group, to, |pivot| pivots.push(pivot)));
}

/// Factors a group, stores the factors in `to`, and calls `add_pivots` for every step with the pivots of all matrices.
fn factor_group<T: MatrixElement, const W: usize>(
    mut group: MatrixGroup<'_, T, W>,
    to: &mut [MatMut<'_, T>],
    mut add_pivots: impl FnMut([usize; W]),
) {
    let (check, rows) = run_vectorized(GroupLu { group: &mut group });
    let is_nan = |lane: usize| check[lane].is_nan();
    group.store(to, is_nan);
    for (k, rows) in rows[..group.rows.min(group.columns)].iter().enumerate() {
        add_pivots(std::array::from_fn(|lane| if is_nan(lane) { k } else { rows[lane].to_f64() as usize }));
    }
}

/// The LU factorization of a group. The output for each matrix is 0 if it is finite and NaN otherwise, and its pivots.
///
/// Row indices have the type of the elements, so that the results of comparisons select lanes of the same width.
struct GroupLu<'a, 'b, T, const W: usize> {
    group: &'a mut MatrixGroup<'b, T, W>,
}

impl<T: MatrixElement, const W: usize> AutoVectorized for GroupLu<'_, '_, T, W> {
    type Output = ([T; W], [[T; W]; TILE]);

    #[inline(always)]
    fn run(self) -> ([T; W], [[T; W]; TILE]) {
        let check = self.group.zero_if_finite(|_, _| true);
        let (m, n, a) = (self.group.rows, self.group.columns, &mut *self.group.elements);
        let mut pivots = [[T::zero(); W]; TILE];
        for k in 0..m.min(n) {
            pivots[k] = largest_rows(a, (m, n), k);
            exchange_rows(a, (m, n), k, &pivots[k]);
            let diagonal = a[k * n + k];
            for i in k + 1..m {
                let x = a[i * n + k];
                let (mut multiplier, mut quotient) = (x, x);
                for lane in 0..W {
                    multiplier[lane] = x[lane] / diagonal[lane];
                    quotient[lane] = if diagonal[lane] == T::zero() { x[lane] } else { multiplier[lane] };
                }
                a[i * n + k] = quotient;
                for j in k + 1..n {
                    let (by, x) = (a[k * n + j], a[i * n + j]);
                    let mut difference = x;
                    for lane in 0..W {
                        let updated = x[lane] - by[lane] * multiplier[lane];
                        difference[lane] = if diagonal[lane] == T::zero() { x[lane] } else { updated };
                    }
                    a[i * n + j] = difference;
                }
            }
        }
        (check, pivots)
    }
}

/// Returns for every m × n matrix the row of the first element with the largest magnitude in column k, from row k on.
/// Returns k if all these elements are NaN.
#[inline(always)]
fn largest_rows<T: MatrixElement, const W: usize>(a: &[[T; W]], (m, n): (usize, usize), k: usize) -> [T; W] {
    let (mut most, mut rows) = ([-T::one(); W], [T::from_f64(k as f64); W]);
    for i in k..m {
        let (x, i) = (a[i * n + k], T::from_f64(i as f64));
        for lane in 0..W {
            let is_larger = x[lane].abs() > most[lane];
            most[lane] = if is_larger { x[lane].abs() } else { most[lane] };
            rows[lane] = if is_larger { i } else { rows[lane] };
        }
    }
    rows
}

/// Exchanges row k of every m × n matrix with row `rows[lane]`, which is k or a later row. In a group of several
/// matrices, comparisons select the lanes that are exchanged.
#[inline(always)]
fn exchange_rows<T: MatrixElement, const W: usize>(a: &mut [[T; W]], (m, n): (usize, usize), k: usize, rows: &[T; W]) {
    if W == 1 {
        let pivot = rows[0].to_f64() as usize;
        return (0..n).for_each(|j| a.swap(k * n + j, pivot * n + j));
    }
    for j in 0..n {
        let old = a[k * n + j];
        let mut first = old;
        for i in k + 1..m {
            let (x, row) = (a[i * n + j], T::from_f64(i as f64));
            let mut exchanged = x;
            for lane in 0..W {
                let is_pivot = rows[lane] == row;
                first[lane] = if is_pivot { x[lane] } else { first[lane] };
                exchanged[lane] = if is_pivot { old[lane] } else { x[lane] };
            }
            a[i * n + j] = exchanged;
        }
        a[k * n + j] = first;
    }
}

/// Replaces B by X with A·X = B or, if `is_transposed`, Aᵀ·X = B, from the result of [`lu`] for a square matrix A.
///
/// If U has a zero on its diagonal, all elements of X are NaN.
pub fn solve_lu<T: MatrixElement>(packed: MatRef<'_, T>, pivots: &[usize], mut b: MatMut<'_, T>, is_transposed: bool) {
    if has_zero_on_diagonal(packed) {
        return b.fill(T::NAN);
    }
    let [first, second] = triangles(is_transposed);
    if is_transposed {
        solve_triangular(packed.transpose(), b.as_mut(), first);
        solve_triangular(packed.transpose(), b.as_mut(), second);
        return restore_rows(pivots, b);
    }
    pivots.iter().enumerate().for_each(|(i, &pivot)| b.swap_rows(i, pivot));
    solve_triangular(packed, b.as_mut(), first);
    solve_triangular(packed, b, second);
}

/// Solves the systems of a group as [`solve_lu`] does. All matrices have at most 16 rows and columns.
pub fn solve_lu_group<T: MatrixElement>(
    packed: &[MatRef<'_, T>],
    pivots: &[&[usize]],
    b: &[MatRef<'_, T>],
    to: &mut [MatMut<'_, T>],
    is_transposed: bool,
) {
    let mut orders: [[usize; TILE]; GROUP] = [std::array::from_fn(|i| i); GROUP];
    for (order, pivots) in orders.iter_mut().zip(pivots) {
        pivots.iter().enumerate().for_each(|(i, &pivot)| order.swap(i, pivot));
    }
    let source = |lane: usize, i: usize| if is_transposed { i } else { orders[lane][i] };
    let (kinds, columns) = (triangles(is_transposed), b.first().map_or(0, |b| b.columns()));
    MatrixGroup::with_copies(packed, |a| {
        MatrixGroup::<T, GROUP>::with_zeros(a.rows, columns, |mut x| {
            x.load(b, source);
            for kind in kinds {
                run_vectorized(GroupSolve { a: &a, b: &mut x, kind, is_transposed });
            }
            x.store(to, |lane| has_zero_on_diagonal(packed[lane]));
        });
    });
    if is_transposed {
        to.iter_mut().zip(pivots).for_each(|(to, pivots)| restore_rows(pivots, to.as_mut()));
    }
}

/// Returns the kinds of the triangular factors of A or, if `is_transposed`, of Aᵀ, in the order in which they are
/// solved.
fn triangles(is_transposed: bool) -> [TriangleKind; 2] {
    [false, true].map(|is_upper| TriangleKind { is_upper, has_unit_diagonal: is_upper == is_transposed })
}

/// Reverses the row exchanges of a factorization.
pub(crate) fn restore_rows<T: MatrixElement>(pivots: &[usize], mut a: MatMut<'_, T>) {
    pivots.iter().enumerate().rev().for_each(|(i, &pivot)| a.swap_rows(i, pivot));
}

/// Converts pivots to a permutation of `rows` rows: after all exchanges, row i is the original row `order[i]`.
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
        // Wilkinson's matrix: the elements of U grow to 2ⁿ⁻¹, without rounding errors.
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
        assert!(a.row(2)[2].is_nan(), "the last pivot must be NaN");
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
