//! The Cholesky factorization A = L·Lᵀ.

use crate::MatrixElement;
use crate::group::{GROUP, MatrixGroup};
use crate::triangular::solve_lower;
use pellucid_gemm::{MatMut, MatRef, TILE, Tile};
use pellucid_simd::{AutoVectorized, run_vectorized};

/// The largest side of a diagonal block that is updated by one matrix product, although this also computes the upper
/// triangle.
const FULL_UPDATE: usize = 64;

/// Replaces a symmetric matrix by L with A = L·Lᵀ and returns 0. Only the lower triangle is read; the elements above
/// the diagonal are set to 0.
///
/// If A is not positive definite, all elements become NaN, and the result is the order of the first leading minor that
/// is not positive. If an element that is read is NaN or infinite, all elements become NaN, and the result is 0.
pub fn cholesky<T: MatrixElement>(mut a: MatMut<'_, T>) -> usize {
    if !is_finite_below(a.as_ref()) {
        a.fill(T::NAN);
        return 0;
    }
    let minor = factor(a.as_mut());
    if minor > 0 {
        a.fill(T::NAN);
    } else {
        zero_above(&mut a);
    }
    minor
}

/// Factors the matrices of a group, which have at most 16 rows, as [`cholesky`] does. Element `lane` of the result
/// belongs to matrix `lane`.
pub fn cholesky_group<T: MatrixElement>(a: &[MatRef<'_, T>], to: &mut [MatMut<'_, T>]) -> [usize; GROUP] {
    MatrixGroup::with_copies(a, |mut group| {
        let [check, minors] = run_vectorized(GroupCholesky { group: &mut group });
        let is_finite = |lane: usize| check[lane] == T::zero();
        group.store(to, |lane| !is_finite(lane) || minors[lane] > T::zero());
        std::array::from_fn(|lane| if is_finite(lane) { minors[lane].to_f64() as usize } else { 0 })
    })
}

/// Returns true if all elements on and below the diagonal are finite.
pub(crate) fn is_finite_below<T: MatrixElement>(a: MatRef<'_, T>) -> bool {
    (0..a.rows()).all(|i| a.block(i..i + 1, 0..i + 1).is_finite())
}

/// Sets the elements above the diagonal to zero.
pub(crate) fn zero_above<T: MatrixElement>(a: &mut MatMut<'_, T>) {
    let n = a.columns();
    (0..a.rows()).for_each(|i| a.as_mut().block(i..i + 1, i + 1..n).fill(T::zero()));
}

/// Replaces the lower triangle by L and returns 0, or returns the order of the first leading minor that is not
/// positive. Overwrites some of the elements above the diagonal.
fn factor<T: MatrixElement>(mut a: MatMut<'_, T>) -> usize {
    let n = a.rows();
    if n <= TILE {
        let mut tile = a.as_ref().tile(0, 0);
        let minor = run_vectorized(TileCholesky { tile: &mut tile, n });
        a.set_tile(0, 0, &tile);
        return minor;
    }
    let half = (n / 2).next_multiple_of(TILE);
    let (top, bottom) = a.split_rows(half);
    let ((mut l1, _), (mut l2, mut rest)) = (top.split_columns(half), bottom.split_columns(half));
    let minor = factor(l1.as_mut());
    if minor > 0 {
        return minor;
    }
    // L₂·L₁ᵀ = A₂ is solved in the form L₁·L₂ᵀ = A₂ᵀ.
    solve_lower(l1.as_ref(), l2.as_mut().transpose(), false);
    subtract_square(rest.as_mut(), l2.as_ref());
    match factor(rest) {
        0 => 0,
        minor => half + minor,
    }
}

/// Subtracts A·Aᵀ from the lower triangle of C. Overwrites some of the elements above the diagonal.
fn subtract_square<T: MatrixElement>(mut c: MatMut<'_, T>, a: MatRef<'_, T>) {
    let n = c.rows();
    if n <= FULL_UPDATE {
        return c.subtract_product(a, a.transpose());
    }
    let half = (n / 2).next_multiple_of(TILE);
    let (top, bottom) = c.split_rows(half);
    let ((first, _), (mut left, last)) = (top.split_columns(half), bottom.split_columns(half));
    let (above, below) = (a.block(0..half, 0..a.columns()), a.block(half..n, 0..a.columns()));
    subtract_square(first, above);
    left.subtract_product(below, above.transpose());
    subtract_square(last, below);
}

/// The factorization of the first n ≤ 16 rows and columns of a tile.
struct TileCholesky<'a, T> {
    tile: &'a mut Tile<T>,
    n: usize,
}

impl<T: MatrixElement> AutoVectorized for TileCholesky<'_, T> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        let TileCholesky { tile, n } = self;
        // The rows of U = Lᵀ are contiguous.
        let mut u = [[T::zero(); TILE]; TILE];
        (0..n).for_each(|i| (i..n).for_each(|j| u[i][j] = tile[j][i]));
        for k in 0..n {
            if u[k][k] <= T::zero() || u[k][k].is_nan() {
                return k + 1;
            }
            let root = u[k][k].sqrt();
            let row = u[k].map(|x| x / root);
            u[k] = row;
            for j in k + 1..n {
                let by = row[j];
                for lane in 0..TILE {
                    u[j][lane] = u[j][lane] - by * row[lane];
                }
            }
        }
        (0..n).for_each(|i| (0..n).for_each(|j| tile[i][j] = if j <= i { u[j][i] } else { T::zero() }));
        0
    }
}

/// The factorization of a group. The output has two values per matrix: 0 if the matrix is finite, otherwise NaN, and
/// the order of the first leading minor that is not positive, or 0.
struct GroupCholesky<'a, 'b, T> {
    group: &'a mut MatrixGroup<'b, T, GROUP>,
}

impl<T: MatrixElement> AutoVectorized for GroupCholesky<'_, '_, T> {
    type Output = [[T; GROUP]; 2];

    #[inline(always)]
    fn run(self) -> [[T; GROUP]; 2] {
        let check = self.group.zero_if_finite(|i, j| j <= i);
        let (n, a) = (self.group.rows, &mut *self.group.elements);
        let mut minors = [T::zero(); GROUP];
        for k in 0..n {
            let diagonal = a[k * n + k];
            let (mut roots, order) = (diagonal, T::from_f64((k + 1) as f64));
            for lane in 0..GROUP {
                let is_bad = diagonal[lane] <= T::zero() || diagonal[lane].is_nan();
                let is_first = is_bad && minors[lane] == T::zero();
                minors[lane] = if is_first { order } else { minors[lane] };
                roots[lane] = diagonal[lane].sqrt();
            }
            for i in k..n {
                for lane in 0..GROUP {
                    a[i * n + k][lane] = a[i * n + k][lane] / roots[lane];
                }
            }
            for i in k + 1..n {
                let by = a[i * n + k];
                for j in k + 1..=i {
                    let (x, to) = (a[j * n + k], &mut a[i * n + j]);
                    for lane in 0..GROUP {
                        to[lane] = to[lane] - x[lane] * by[lane];
                    }
                }
            }
        }
        (0..n).for_each(|i| a[i * n + i + 1..(i + 1) * n].fill([T::zero(); GROUP]));
        [check, minors]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Matrix;
    use crate::testing::{SIZES, close, extreme_scales, for_both_dtypes, numbers, product};

    fn check<T: MatrixElement>() {
        for n in SIZES {
            let x = numbers::<T>(n, n, 1);
            let square = product(&x, &Matrix::copy_of(x.view().transpose()));
            let [large, small] = extreme_scales::<T>();
            // The second matrix is graded: its rows and columns are scaled by factors from 1 to 2e-7.
            for (base, size) in [(1.0, T::one()), (0.95f64, T::one()), (1.0, large), (1.0, small)] {
                let scale = |i: usize, j: usize| T::from_f64(base.powi((i + j) as i32)) * size;
                let a = Matrix::from_fn(n, n, |i, j| {
                    scale(i, j) * (square.row(i)[j] + if i == j { T::one() } else { T::zero() })
                });
                let mut l = Matrix::from_fn(n, n, |i, j| if i < j { T::NAN } else { a.row(i)[j] });
                assert_eq!(cholesky(l.view_mut()), 0);
                assert!((0..n).all(|i| (i + 1..n).all(|j| l.row(i)[j] == T::zero())));
                close(&product(&l, &Matrix::copy_of(l.view().transpose())), &a, 2.0);
            }
        }
    }

    #[test]
    fn l_times_its_transpose_is_a_and_the_upper_triangle_is_not_read() {
        for_both_dtypes!(check);
    }

    #[test]
    fn the_first_bad_minor_is_returned() {
        for (n, at) in [(3, 1), (3, 0), (3, 2), (40, 17), (100, 99)] {
            for value in [-1.0f32, 0.0] {
                let mut a = Matrix::from_fn(n, n, |i, j| match i == j {
                    true if i == at => value,
                    true => 1.0,
                    false => 0.0,
                });
                assert_eq!(cholesky(a.view_mut()), at + 1);
                assert!(a.data().iter().all(|x| x.is_nan()));
            }
        }
        let mut a = Matrix::from_fn(3, 3, |i, j| if i == j { [1.0, f64::NAN, -1.0][i] } else { 0.0 });
        assert_eq!(cholesky(a.view_mut()), 0);
        assert!(a.data().iter().all(|x| x.is_nan()));
    }
}
