//! Groups of small matrices that are factored together, one in each lane of the vectors.

use crate::MatrixElement;
use pellucid_gemm::{MatMut, MatRef, TILE};
use pellucid_runtime::scratch;

/// The maximum number of matrices in a group.
pub const GROUP: usize = TILE;

/// Returns true if matrices of this shape are small enough for a group: they have at most 16 rows and columns.
pub fn fits_group(rows: usize, columns: usize) -> bool {
    rows <= TILE && columns <= TILE
}

/// At most `W` matrices of equal shape in interleaved order: for each (i, j), the elements (i, j) of all matrices are
/// adjacent.
///
/// A loop over adjacent elements performs one operation of an algorithm for all matrices. The operations on a matrix
/// and their order are the same as for a single matrix, so its bits do not depend on the group.
///
/// All outer loops access the elements by index. Without the bounds checks of these accesses, LLVM would vectorize an
/// outer loop by gathers, instead of the inner loop over adjacent elements.
pub(crate) struct MatrixGroup<'a, T, const W: usize> {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// The elements in row-major order.
    pub(crate) elements: &'a mut [[T; W]],
}

impl<T: MatrixElement, const W: usize> MatrixGroup<'_, T, W> {
    /// Calls `f` with zeros in scratch memory.
    pub(crate) fn with_zeros<R>(rows: usize, columns: usize, f: impl FnOnce(MatrixGroup<'_, T, W>) -> R) -> R {
        scratch::with_filled(rows * columns, [T::zero(); W], |elements| f(MatrixGroup { rows, columns, elements }))
    }

    /// Calls `f` with copies of matrices in scratch memory.
    pub(crate) fn with_copies<R>(from: &[MatRef<'_, T>], f: impl FnOnce(MatrixGroup<'_, T, W>) -> R) -> R {
        let (rows, columns) = from.first().map_or((0, 0), |a| (a.rows(), a.columns()));
        MatrixGroup::with_zeros(rows, columns, |mut group| {
            group.load(from, |_, i| i);
            f(group)
        })
    }

    /// Copies matrices to this group, whose elements must be zero. Row i of copy `lane` is row `source(lane, i)` of the
    /// original. The unused lanes receive identity matrices.
    pub(crate) fn load(&mut self, from: &[MatRef<'_, T>], source: impl Fn(usize, usize) -> usize) {
        for (i, row) in self.elements.chunks_exact_mut(self.columns.max(1)).enumerate() {
            for (lane, a) in from.iter().enumerate() {
                a.for_row(source(lane, i), |j, x| row[j][lane] = x);
            }
            if i < self.columns {
                row[i][from.len()..].fill(T::one());
            }
        }
    }

    /// Copies the matrices to `to`. If `is_nan(lane)`, the target of matrix `lane` is filled with NaN instead.
    pub(crate) fn store(&self, to: &mut [MatMut<'_, T>], is_nan: impl Fn(usize) -> bool) {
        for (lane, to) in to.iter_mut().enumerate() {
            match is_nan(lane) {
                true => to.fill(T::NAN),
                false => to.fill_with(|i, j| self.elements[i * self.columns + j][lane]),
            }
        }
    }

    /// Returns for every matrix 0 if all its elements (i, j) with `is_read(i, j)` are finite, and NaN otherwise.
    #[inline(always)]
    pub(crate) fn zero_if_finite(&self, is_read: impl Fn(usize, usize) -> bool) -> [T; W] {
        let mut sums = [T::zero(); W];
        for i in 0..self.rows {
            for j in (0..self.columns).filter(|&j| is_read(i, j)) {
                let x = self.elements[i * self.columns + j];
                for lane in 0..W {
                    sums[lane] = sums[lane] + x[lane] * T::zero();
                }
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Matrix;
    use crate::testing::{for_both_dtypes, numbers, product, transpose};
    use crate::*;

    /// Returns matrix `lane` of a group: a random matrix, or a matrix that is a special case for the algorithms.
    fn matrix<T: MatrixElement>(rows: usize, columns: usize, lane: usize) -> Matrix<T> {
        let random = numbers::<T>(rows, columns, 31 + lane as u64);
        let signs = |i: usize, j: usize| [1.0, -1.0, 0.0, -0.0][(7 * i + 5 * j + lane) % 4];
        Matrix::from_fn(rows, columns, |i, j| match lane {
            1 => T::zero(),
            // Equal magnitudes, and zeros of both signs.
            2 | 3 => T::from_f64(signs(i, j)),
            // A column of zeros (4), and a matrix of rank 1 (5).
            4 if j == columns / 2 => T::zero(),
            5 => random.row(i)[0] * random.row(0)[j],
            6 if (i, j) == (rows - 1, columns / 3) => T::NAN,
            7 if (i, j) == (rows / 2, 0) => T::one() / T::zero(),
            // The elimination overflows (8) or underflows (9).
            8 => random.row(i)[j] / T::MIN_POSITIVE,
            9 => random.row(i)[j] * T::MIN_POSITIVE,
            _ => random.row(i)[j],
        })
    }

    /// Matrices. Those with an odd index are stored in column-major order.
    struct Stored<T>(Vec<Matrix<T>>);

    impl<T: MatrixElement> Stored<T> {
        fn new(count: usize, matrix: impl Fn(usize) -> Matrix<T>) -> Stored<T> {
            Stored((0..count).map(|lane| if lane % 2 == 1 { transpose(&matrix(lane)) } else { matrix(lane) }).collect())
        }

        fn zeros(count: usize, rows: usize, columns: usize) -> Stored<T> {
            Stored::new(count, |_| Matrix::zeros(rows, columns))
        }

        fn views(&self) -> Vec<MatRef<'_, T>> {
            let views = self.0.iter().map(Matrix::view).enumerate();
            views.map(|(lane, view)| if lane % 2 == 1 { view.transpose() } else { view }).collect()
        }

        fn views_mut(&mut self) -> Vec<MatMut<'_, T>> {
            let views = self.0.iter_mut().map(Matrix::view_mut).enumerate();
            views.map(|(lane, view)| if lane % 2 == 1 { view.transpose() } else { view }).collect()
        }

        /// Asserts that the matrices have the same bits as the results of `f`, which replaces one matrix.
        #[track_caller]
        fn check_each(&self, from: &Stored<T>, what: &str, mut f: impl FnMut(usize, MatMut<'_, T>)) {
            let bits = |a: &Matrix<T>| -> Vec<u64> { a.data().iter().map(|x| x.to_f64().to_bits()).collect() };
            for (lane, (got, from)) in self.views().into_iter().zip(from.views()).enumerate() {
                let mut alone = Matrix::copy_of(from);
                f(lane, alone.view_mut());
                let (shape, count) = ((got.rows(), got.columns()), self.0.len());
                assert_eq!(bits(&Matrix::copy_of(got)), bits(&alone), "{what} of {shape:?}, matrix {lane} of {count}");
            }
        }
    }

    /// Returns a factorization of a group, and checks it.
    fn check_lu<T: MatrixElement>(count: usize, (m, n): (usize, usize)) -> (Stored<T>, Vec<Vec<usize>>) {
        let a = Stored::new(count, |lane| matrix::<T>(m, n, lane));
        let (mut packed, mut pivots) = (Stored::zeros(count, m, n), vec![[77; GROUP]]);
        lu_group(&a.views(), &mut packed.views_mut(), &mut pivots);
        let pivots: Vec<Vec<usize>> = (0..count).map(|lane| pivots.iter().map(|rows| rows[lane]).collect()).collect();
        packed.check_each(&a, "lu", |lane, a| {
            let mut alone = Vec::new();
            lu(a, &mut alone);
            assert_eq!(pivots[lane], alone);
        });
        (packed, pivots)
    }

    fn check<T: MatrixElement>() {
        let counts = [1, 2, 7, 15, 16];
        for (count, shape) in
            counts.into_iter().flat_map(|count| [(3, 5), (5, 3), (16, 1), (1, 16)].map(|s| (count, s)))
        {
            check_lu::<T>(count, shape);
        }
        for (count, n) in counts.into_iter().flat_map(|count| [1, 2, 3, 8, 9, 15, 16].map(|n| (count, n))) {
            let (packed, pivots) = check_lu::<T>(count, (n, n));
            let pivots: Vec<&[usize]> = pivots.iter().map(|rows| &rows[..]).collect();
            let mut result = Stored::zeros(count, n, n);
            cofactors_group(&packed.views(), &pivots, &mut result.views_mut());
            result.check_each(&packed, "cofactors", |lane, to| cofactors(packed.views()[lane], pivots[lane], to));
            let positive = Stored::new(count, |lane| {
                let (half, shift) = (matrix::<T>(n, n, lane), if lane % 5 == 4 { T::zero() } else { T::one() });
                let square = product(&half, &transpose(&half));
                Matrix::from_fn(n, n, |i, j| square.row(i)[j] + if i == j { shift } else { T::zero() })
            });
            for a in [&positive, &Stored::new(count, |lane| matrix::<T>(n, n, lane))] {
                let minors = cholesky_group(&a.views(), &mut result.views_mut());
                result.check_each(a, "cholesky", |lane, a| assert_eq!(minors[lane], cholesky(a)));
            }
            for columns in [1, 3, 16] {
                let b = Stored::new(count, |lane| numbers::<T>(n, columns, 90 + lane as u64));
                let mut x = Stored::zeros(count, n, columns);
                for (first, second) in [(false, false), (false, true), (true, false), (true, true)] {
                    let kind = TriangleKind { is_upper: first, has_unit_diagonal: second };
                    solve_triangular_group(&packed.views(), &b.views(), &mut x.views_mut(), kind);
                    x.check_each(&b, "solve_triangular", |lane, b| solve_triangular(packed.views()[lane], b, kind));
                }
                for is_transposed in [false, true] {
                    solve_lu_group(&packed.views(), &pivots, &b.views(), &mut x.views_mut(), is_transposed);
                    x.check_each(&b, "solve_lu", |lane, b| {
                        solve_lu(packed.views()[lane], pivots[lane], b, is_transposed);
                    });
                }
            }
        }
    }

    #[test]
    fn a_group_has_the_bits_of_its_matrices_alone() {
        for_both_dtypes!(check);
    }
}
