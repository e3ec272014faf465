//! The factorization P·A·Pᵀ = L·D·Lᵀ of symmetric indefinite matrices, and the solution of linear systems with it.

use crate::MatrixElement;
use crate::cholesky::{is_finite_below, zero_above};
use crate::scalar::{scale_to_one, subtract_scaled};
use pellucid_gemm::{MatMut, MatRef};
use pellucid_runtime::scratch;
use pellucid_simd::{AutoVectorized, run_vectorized};

/// A pivot: the index of the exchanged row and column, and the size of the block of D.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pivot {
    /// A 1×1 block at row k. The value is the row with which row k was exchanged, at least k.
    One(usize),
    /// A 2×2 block; both of its rows have this entry. The value is the row with which the second row of the block was
    /// exchanged.
    Two(usize),
}

/// Replaces a symmetric matrix by L and D. Returns the pivots, and the 1-based position of the first zero block of D,
/// or 0.
///
/// Only the lower triangle is read. The elements above the diagonal are set to zero. L is stored below the blocks of D;
/// the diagonal blocks of L are identities. If an element that is read is NaN or infinite, all elements become NaN. The
/// pivoting is the partial pivoting of Bunch and Kaufman (1977), as in LAPACK's `sytf2`.
pub fn ldl<T: MatrixElement>(mut a: MatMut<'_, T>) -> (Vec<Pivot>, usize) {
    let n = a.rows();
    if !is_finite_below(a.as_ref()) {
        a.fill(T::NAN);
        return ((0..n).map(Pivot::One).collect(), 0);
    }
    let (mut pivots, mut first_zero, mut k) = (Vec::with_capacity(n), 0, 0);
    while k < n {
        let pivot = choose_pivot(a.as_ref(), k);
        let (pivot_row, last) = match pivot {
            Some(Pivot::Two(pivot_row)) => (pivot_row, k + 1),
            Some(Pivot::One(pivot_row)) => (pivot_row, k),
            None => (k, k),
        };
        swap_symmetric(&mut a, k, last, pivot_row);
        match pivot {
            None if first_zero == 0 => first_zero = k + 1,
            None => {}
            Some(Pivot::One(_)) => run_vectorized(EliminateOne { a: a.as_mut(), k }),
            Some(Pivot::Two(_)) => run_vectorized(EliminateTwo { a: a.as_mut(), k }),
        }
        pivots.extend(std::iter::repeat_n(pivot.unwrap_or(Pivot::One(k)), last + 1 - k));
        k = last + 1;
    }
    zero_above(&mut a);
    (pivots, first_zero)
}

/// Returns the candidate with the larger value. A candidate is the index and the magnitude of an element.
fn larger_candidate<T: MatrixElement>(best: (usize, T), (i, x): (usize, T)) -> (usize, T) {
    if x > best.1 { (i, x) } else { best }
}

/// Chooses the pivot that eliminates column k. Returns `None` if the column is zero.
fn choose_pivot<T: MatrixElement>(a: MatRef<'_, T>, k: usize) -> Option<Pivot> {
    let n = a.rows();
    // This threshold minimizes the bound on element growth: the bound is equal for one 2×2 pivot and two 1×1 pivots.
    let alpha = T::from_f64((1.0 + 17f64.sqrt()) / 8.0);
    let diagonal = a.at(k, k).abs();
    let (row, column_max) = (k + 1..n).map(|i| (i, a.at(i, k).abs())).fold((k, T::zero()), larger_candidate);
    if diagonal == T::zero() && column_max == T::zero() {
        return None;
    }
    // After an overflow, the diagonal element may be NaN.
    if diagonal >= alpha * column_max || diagonal.is_nan() {
        return Some(Pivot::One(k));
    }
    let beside = (k..row).map(|j| (j, a.at(row, j).abs())).chain((row + 1..n).map(|i| (i, a.at(i, row).abs())));
    let (_, row_max) = beside.fold((k, T::zero()), larger_candidate);
    Some(match () {
        // The bound may underflow to zero.
        () if diagonal > T::zero() && diagonal >= alpha * column_max * (column_max / row_max) => Pivot::One(k),
        () if a.at(row, row).abs() >= alpha * row_max => Pivot::One(row),
        () => Pivot::Two(row),
    })
}

/// Exchanges rows and columns `row` and `pivot_row` of the submatrix from column k.
fn swap_symmetric<T: MatrixElement>(a: &mut MatMut<'_, T>, k: usize, row: usize, pivot_row: usize) {
    if row == pivot_row {
        return;
    }
    let n = a.rows();
    let mut swap = |x: (usize, usize), y: (usize, usize)| {
        let (at_x, at_y) = (a.at(x.0, x.1), a.at(y.0, y.1));
        a.set(x.0, x.1, at_y);
        a.set(y.0, y.1, at_x);
    };
    swap((row, row), (pivot_row, pivot_row));
    (row + 1..pivot_row).for_each(|j| swap((j, row), (pivot_row, j)));
    (pivot_row + 1..n).for_each(|i| swap((i, row), (i, pivot_row)));
    if row > k {
        swap((row, k), (pivot_row, k));
    }
}

/// Eliminates column k with a 1×1 pivot.
struct EliminateOne<'a, T> {
    a: MatMut<'a, T>,
    k: usize,
}

impl<T: MatrixElement> AutoVectorized for EliminateOne<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let EliminateOne { mut a, k } = self;
        let (n, pivot) = (a.rows(), a.at(k, k));
        scratch::with_filled(n, T::zero(), |factors| {
            for i in k + 1..n {
                factors[i] = a.at(i, k) / pivot;
                let by = a.at(i, k);
                subtract_scaled(&mut a.row_mut(i)[k + 1..=i], by, &factors[k + 1..=i]);
                a.set(i, k, factors[i]);
            }
        });
    }
}

/// Eliminates columns k and k + 1 with a 2×2 pivot.
struct EliminateTwo<'a, T> {
    a: MatMut<'a, T>,
    k: usize,
}

impl<T: MatrixElement> AutoVectorized for EliminateTwo<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let EliminateTwo { mut a, k } = self;
        let n = a.rows();
        // The 2×2 pivot is divided by its off-diagonal element, so that its determinant does not overflow.
        let off_diagonal = a.at(k + 1, k);
        let (pivot_1, pivot_2) = (a.at(k, k) / off_diagonal, a.at(k + 1, k + 1) / off_diagonal);
        // The inverse of a tiny element would overflow. Therefore the element and columns k and k + 1 are scaled by a
        // power of two.
        let unit = scale_to_one(off_diagonal.abs());
        let scale = T::one() / (pivot_1 * pivot_2 - T::one()) / (unit * off_diagonal);
        scratch::with_filled(2 * n, T::zero(), |factors| {
            let (u, v) = factors.split_at_mut(n);
            for i in k + 2..n {
                let (first, second) = (a.at(i, k), a.at(i, k + 1));
                u[i] = scale * (pivot_2 * (unit * first) - unit * second);
                v[i] = scale * (pivot_1 * (unit * second) - unit * first);
                let (x, u, v) = (&mut a.row_mut(i)[k + 2..=i], &u[k + 2..=i], &v[k + 2..=i]);
                x.iter_mut().zip(u.iter().zip(v)).for_each(|(x, (&u, &v))| *x = *x - (first * u + second * v));
                a.set(i, k, u[u.len() - 1]);
                a.set(i, k + 1, v[v.len() - 1]);
            }
        });
    }
}

/// Replaces B by X with A·X = B, from the factors and pivots of [`ldl`].
///
/// If D has a zero block, X contains infinities or NaN.
pub fn solve_ldl<T: MatrixElement>(a: MatRef<'_, T>, pivots: &[Pivot], mut b: MatMut<'_, T>) {
    let n = a.rows();
    let mut k = 0;
    while k < n {
        let (size, pivot_row) = match pivots[k] {
            Pivot::One(pivot_row) => (1, pivot_row),
            Pivot::Two(pivot_row) => (2, pivot_row),
        };
        b.swap_rows(k + size - 1, pivot_row);
        let (above, mut below) = b.as_mut().split_rows(k + size);
        let mut block = above.split_rows(k).1;
        below.subtract_product(a.block(k + size..n, k..k + size), block.as_ref());
        for c in 0..block.columns() {
            if size == 1 {
                block.set(0, c, block.at(0, c) / a.at(k, k));
                continue;
            }
            let off_diagonal = a.at(k + 1, k);
            let (first, second) = (a.at(k, k) / off_diagonal, a.at(k + 1, k + 1) / off_diagonal);
            let determinant = first * second - T::one();
            let (u, v) = (block.at(0, c) / off_diagonal, block.at(1, c) / off_diagonal);
            block.set(0, c, (second * u - v) / determinant);
            block.set(1, c, (first * v - u) / determinant);
        }
        k += size;
    }
    while k > 0 {
        let (size, pivot_row) = match pivots[k - 1] {
            Pivot::One(pivot_row) => (1, pivot_row),
            Pivot::Two(pivot_row) => (2, pivot_row),
        };
        let (above, below) = b.as_mut().split_rows(k);
        let mut block = above.split_rows(k - size).1;
        block.subtract_product(a.block(k..n, k - size..k).transpose(), below.as_ref());
        b.swap_rows(k - 1, pivot_row);
        k -= size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Matrix;
    use crate::testing::{SIZES, close, extreme_scales, for_both_dtypes, numbers, product};

    fn check<T: MatrixElement>() {
        for (n, k) in SIZES.into_iter().zip([2, 1, 2, 1].into_iter().cycle()) {
            for seed in 0..4 {
                // A zero diagonal needs 2×2 blocks.
                let half = numbers::<T>(n, n, seed);
                let a = Matrix::from_fn(n, n, |i, j| match i == j && seed % 2 == 1 && n > 1 {
                    true => T::zero(),
                    false => half.row(i)[j] + half.row(j)[i],
                });
                let exact = numbers::<T>(n, k, 20);
                let b = product(&a, &exact);
                let mut packed = Matrix::from_fn(n, n, |i, j| if i < j { T::NAN } else { a.row(i)[j] });
                let mut x = b.clone();
                let (pivots, first_zero) = ldl(packed.view_mut());
                assert_eq!(first_zero, 0);
                assert!(seed % 2 == 0 || n < 2 || matches!(pivots[0], Pivot::Two(_)));
                solve_ldl(packed.view(), &pivots, x.view_mut());
                // The residual is relative to |A|·|x|.
                let size = x.data().iter().fold(1.0, |m: f64, x| m.max(x.to_f64().abs()));
                close(&product(&a, &x), &b, 16.0 * size);
            }
        }
    }

    #[test]
    fn a_times_x_is_b_and_the_upper_triangle_is_not_read() {
        for_both_dtypes!(check);
    }

    /// Returns A from its factors and pivots.
    fn restored<T: MatrixElement>(packed: &Matrix<T>, pivots: &[Pivot]) -> Matrix<T> {
        let n = packed.rows();
        let mut a = Matrix::<f64>::zeros(n, n);
        let mut end = n;
        while end > 0 {
            let (size, pivot_row) = match pivots[end - 1] {
                Pivot::One(pivot_row) => (1, pivot_row),
                Pivot::Two(pivot_row) => (2, pivot_row),
            };
            let start = end - size;
            let d = |i: usize, j: usize| packed.row(i.max(j))[i.min(j)].to_f64();
            // Element (i, start + c) of L. In the rows of the pivot, L is the identity.
            let l = |i: usize, c: usize| if i >= end { d(i, start + c) } else { f64::from(u8::from(i == start + c)) };
            for (i, j) in (start..n).flat_map(|i| (start..n).map(move |j| (i, j))) {
                for (p, q) in (0..size).flat_map(|p| (0..size).map(move |q| (p, q))) {
                    a.row_mut(i)[j] += l(i, p) * d(start + p, start + q) * l(j, q);
                }
            }
            a.view_mut().swap_rows(end - 1, pivot_row);
            a.view_mut().transpose().swap_rows(end - 1, pivot_row);
            end = start;
        }
        Matrix::from_fn(n, n, |i, j| T::from_f64(a.row(i)[j]))
    }

    fn check_restored<T: MatrixElement>(a: &Matrix<T>) {
        let mut packed = a.clone();
        let (pivots, _) = ldl(packed.view_mut());
        close(&restored(&packed, &pivots), a, 16.0);
    }

    fn check_ranges<T: MatrixElement>() {
        for n in [1, 2, 3, 17, 40] {
            let (half, wide) = (numbers::<T>(n, n, 1), numbers::<T>(n, 2, 2));
            let random = Matrix::from_fn(n, n, |i, j| half.row(i)[j] + half.row(j)[i]);
            let indefinite = Matrix::from_fn(n, n, |i, j| if i == j { T::zero() } else { random.row(i)[j] });
            for a in [&random, &indefinite] {
                check_restored(a);
                for size in extreme_scales() {
                    check_restored(&Matrix::from_fn(n, n, |i, j| a.row(i)[j] * size));
                }
                // Graded in both directions, by factors from 1 to 1e-30.
                for is_reversed in [false, true] {
                    let grade = |i: usize| {
                        let position = if is_reversed { n - 1 - i } else { i } as i32;
                        T::from_f64(10f64.powi(-15 * position / n as i32))
                    };
                    check_restored(&Matrix::from_fn(n, n, |i, j| a.row(i)[j] * grade(i) * grade(j)));
                }
            }
            // Rank 0 and 2.
            check_restored(&Matrix::<T>::zeros(n, n));
            check_restored(&Matrix::from_fn(n, n, |i, j| {
                wide.row(i)[0] * wide.row(j)[1] + wide.row(i)[1] * wide.row(j)[0]
            }));
        }
    }

    #[test]
    fn factors_of_graded_singular_tiny_and_large_matrices_restore_a() {
        for_both_dtypes!(check_ranges);
    }

    fn check_tiny_pivots<T: MatrixElement>() {
        // The bound for a 1×1 pivot underflows.
        let tiny = T::MIN_POSITIVE.sqrt() * T::EPSILON;
        let a = Matrix::from_fn(3, 3, |i, j| match i + j {
            1 => tiny,
            3 => T::one(),
            _ => T::zero(),
        });
        check_restored(&a);
        // The inverse of a pivot overflows. The pivot is subnormal and has lost half of its digits.
        let subnormal = T::MIN_POSITIVE * T::EPSILON.sqrt();
        let mut packed = Matrix::from_fn(3, 3, |i, j| if i == j { T::zero() } else { subnormal });
        let mut x = Matrix::from_fn(3, 1, |_, _| subnormal + subnormal);
        let (pivots, first_zero) = ldl(packed.view_mut());
        solve_ldl(packed.view(), &pivots, x.view_mut());
        assert_eq!(first_zero, 0);
        assert!(x.data().iter().all(|&x| (x - T::one()).abs() <= T::EPSILON.sqrt() * T::from_f64(4.0)), "{x:?}");
    }

    #[test]
    fn tiny_pivots_neither_divide_by_zero_nor_overflow() {
        for_both_dtypes!(check_tiny_pivots);
    }

    #[test]
    fn pivots_equal_those_of_lapack() {
        let mut a = Matrix::from_fn(3, 3, |i, j| [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [4.0, 2.0, 3.0]][i][j]);
        let (pivots, _) = ldl(a.view_mut());
        assert_eq!(pivots, [Pivot::One(2), Pivot::One(1), Pivot::One(2)]);
        assert_eq!([a.row(0)[0], a.row(1)[0], a.row(2)[0]], [3.0, 2.0 / 3.0, 4.0 / 3.0]);
    }

    #[test]
    fn a_zero_matrix_is_reported_without_division() {
        let mut a = Matrix::from_fn(3, 3, |i, j| if (i, j) == (0, 0) { 2.0 } else { 0.0 });
        let (pivots, first_zero) = ldl(a.view_mut());
        assert_eq!((first_zero, pivots), (2, vec![Pivot::One(0), Pivot::One(1), Pivot::One(2)]));
        assert!(a.view().is_finite());
    }

    #[test]
    fn an_overflow_ends_with_pivots_inside_the_matrix() {
        for n in 2..9 {
            let mut a = Matrix::from_fn(n, n, |i, j| if (i + j) % 2 == 0 { f32::MAX } else { -f32::MAX });
            for k in 0..n {
                a.row_mut(k)[k] = f32::MAX * [0.9, -0.9, 0.1][k % 3];
            }
            let (pivots, _) = ldl(a.view_mut());
            assert_eq!(pivots.len(), n);
            assert!(pivots.iter().all(|&(Pivot::One(row) | Pivot::Two(row))| row < n), "{pivots:?}");
        }
        // The update of the last diagonal element is ∞ − ∞.
        let mut a = Matrix::from_fn(3, 3, |i, j| [[1.0, 0.0, 0.0], [-1.0, -1.0, 0.0], [1.0; 3]][i][j] * f32::MAX);
        let (pivots, _) = ldl(a.view_mut());
        assert!(pivots.len() == 3 && a.row(2)[2].is_nan(), "{pivots:?}, {a:?}");
    }

    #[test]
    fn nan_propagates_to_all_results() {
        let mut a = Matrix::from_fn(2, 2, |i, j| if (i, j) == (1, 0) { f64::NAN } else { 1.0 });
        ldl(a.view_mut());
        assert!(a.data().iter().all(|x| x.is_nan()));
    }
}
