//! The solution of A·X = B for triangular A.

use crate::MatrixElement;
use crate::group::{GROUP, MatrixGroup};
use pellucid_gemm::{MatMut, MatRef, TILE, Tile};
use pellucid_simd::{AutoVectorized, run_vectorized};

/// The elements of a triangular matrix that are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TriangleKind {
    /// The matrix is upper triangular.
    pub is_upper: bool,
    /// The elements of the diagonal are assumed to be 1, and are not read.
    pub has_unit_diagonal: bool,
}

/// Replaces B by X with A·X = B.
///
/// The opposite triangle of A is not read. If a diagonal element that is read is zero, all elements of X are NaN.
pub fn solve_triangular<T: MatrixElement>(a: MatRef<'_, T>, mut b: MatMut<'_, T>, kind: TriangleKind) {
    let TriangleKind { is_upper, has_unit_diagonal } = kind;
    if !has_unit_diagonal && has_zero_on_diagonal(a) {
        return b.fill(T::NAN);
    }
    // In reverse order of rows and columns, an upper triangular matrix is lower triangular.
    if is_upper {
        solve_lower(a.reverse(), b.reverse_rows(), has_unit_diagonal);
    } else {
        solve_lower(a, b, has_unit_diagonal);
    }
}

/// Returns true if a diagonal element is zero.
pub(crate) fn has_zero_on_diagonal<T: MatrixElement>(a: MatRef<'_, T>) -> bool {
    (0..a.rows()).any(|i| a.at(i, i) == T::zero())
}

/// Solves the systems of a group as [`solve_triangular`] does. All matrices have at most 16 rows and columns.
pub fn solve_triangular_group<T: MatrixElement>(
    a: &[MatRef<'_, T>],
    b: &[MatRef<'_, T>],
    to: &mut [MatMut<'_, T>],
    kind: TriangleKind,
) {
    let is_nan = |lane: usize| !kind.has_unit_diagonal && has_zero_on_diagonal(a[lane]);
    MatrixGroup::with_copies(a, |triangles| {
        MatrixGroup::<T, GROUP>::with_copies(b, |mut b| {
            run_vectorized(GroupSolve { a: &triangles, b: &mut b, kind, is_transposed: false });
            b.store(to, is_nan);
        });
    });
}

/// Replaces B by X with A·X = B for lower triangular A, whose diagonal has no zeros.
///
/// The two halves of the rows are solved recursively. In between, a matrix product subtracts the contribution of the
/// first half from the second.
pub(crate) fn solve_lower<T: MatrixElement>(a: MatRef<'_, T>, b: MatMut<'_, T>, has_unit_diagonal: bool) {
    let n = a.rows();
    if n <= TILE {
        return run_vectorized(TileSolve { a: a.tile(0, 0), n, b, has_unit_diagonal });
    }
    let half = (n / 2).next_multiple_of(TILE);
    let (mut first, mut second) = b.split_rows(half);
    solve_lower(a.block(0..half, 0..half), first.as_mut(), has_unit_diagonal);
    second.subtract_product(a.block(half..n, 0..half), first.as_ref());
    solve_lower(a.block(half..n, half..n), second, has_unit_diagonal);
}

/// The triangular solve with the leading n × n block of a tile, n ≤ 16. 16 columns of B are solved at a time.
struct TileSolve<'a, T> {
    a: Tile<T>,
    n: usize,
    b: MatMut<'a, T>,
    has_unit_diagonal: bool,
}

impl<T: MatrixElement> AutoVectorized for TileSolve<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        for column in (0..self.b.columns()).step_by(TILE) {
            let mut x = self.b.as_ref().tile(0, column);
            for i in 0..self.n {
                let mut sum = x[i];
                for j in 0..i {
                    let by = self.a[i][j];
                    for lane in 0..TILE {
                        sum[lane] = sum[lane] - by * x[j][lane];
                    }
                }
                if !self.has_unit_diagonal {
                    sum = sum.map(|x| x / self.a[i][i]);
                }
                x[i] = sum;
            }
            self.b.set_tile(0, column, &x);
        }
    }
}

/// The solution of A·X = B or, if `is_transposed`, Aᵀ·X = B, for the matrices of a group. `kind` describes the matrix
/// on the left-hand side: A or Aᵀ.
pub(crate) struct GroupSolve<'a, 'b, T, const W: usize> {
    pub(crate) a: &'a MatrixGroup<'a, T, W>,
    pub(crate) b: &'a mut MatrixGroup<'b, T, W>,
    pub(crate) kind: TriangleKind,
    pub(crate) is_transposed: bool,
}

impl<T: MatrixElement, const W: usize> AutoVectorized for GroupSolve<'_, '_, T, W> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let GroupSolve { a, b, kind, is_transposed } = self;
        let (n, columns) = (a.rows, b.columns);
        let at = |i: usize, j: usize| if is_transposed { a.elements[j * n + i] } else { a.elements[i * n + j] };
        // An upper triangle is solved from the last row.
        let row = |i: usize| if kind.is_upper { n - 1 - i } else { i };
        for i in 0..n {
            for j in 0..i {
                let by = at(row(i), row(j));
                for column in 0..columns {
                    let x = b.elements[row(j) * columns + column];
                    let sum = &mut b.elements[row(i) * columns + column];
                    for lane in 0..W {
                        sum[lane] = sum[lane] - by[lane] * x[lane];
                    }
                }
            }
            if !kind.has_unit_diagonal {
                let diagonal = at(row(i), row(i));
                for column in 0..columns {
                    let sum = &mut b.elements[row(i) * columns + column];
                    for lane in 0..W {
                        sum[lane] = sum[lane] / diagonal[lane];
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Matrix;
    use crate::testing::{SIZES, close, for_both_dtypes, numbers, product};

    fn check<T: MatrixElement>() {
        for n in SIZES {
            for (is_upper, has_unit_diagonal) in [(false, false), (false, true), (true, false), (true, true)] {
                let elements = numbers::<T>(n, n, 10);
                let a = Matrix::from_fn(n, n, |i, j| match i.cmp(&j) {
                    std::cmp::Ordering::Equal if has_unit_diagonal => T::one(),
                    std::cmp::Ordering::Equal => T::from_f64(3.0) + elements.row(i)[i],
                    side if (side == std::cmp::Ordering::Less) == is_upper => {
                        elements.row(i)[j] / T::from_f64(n as f64)
                    }
                    _ => T::zero(),
                });
                let stored = Matrix::from_fn(n, n, |i, j| {
                    let is_other_triangle = (i < j) != is_upper && i != j;
                    if is_other_triangle || (has_unit_diagonal && i == j) { T::NAN } else { a.row(i)[j] }
                });
                for columns in [0, 1, 5, 33] {
                    let b = numbers::<T>(n, columns, 11);
                    let mut x = b.clone();
                    let kind = TriangleKind { is_upper, has_unit_diagonal };
                    solve_triangular(stored.view(), x.view_mut(), kind);
                    close(&product(&a, &x), &b, 4.0);
                    let mut transposed = Matrix::copy_of(b.view().transpose());
                    solve_triangular(stored.view(), transposed.view_mut().transpose(), kind);
                    assert_eq!(Matrix::copy_of(transposed.view().transpose()), x, "the layout must not change bits");
                }
            }
        }
    }

    #[test]
    fn a_times_x_is_b_and_the_other_triangle_is_not_read() {
        for_both_dtypes!(check);
    }

    #[test]
    fn a_singular_system_gives_nan() {
        let a = Matrix::from_fn(2, 2, |i, j| [[1.0, 0.0], [1.0, 0.0]][i][j]);
        let mut x = Matrix::from_fn(2, 3, |_, _| 1.0f64);
        solve_triangular(a.view(), x.view_mut(), TriangleKind { is_upper: false, has_unit_diagonal: false });
        assert!(x.data().iter().all(|x| x.is_nan()));
    }
}
