//! The cofactor matrix from an LU factorization.

use crate::group::{GROUP, MatrixGroup};
use crate::lu::restore_rows;
use crate::triangular::{GroupSolve, solve_triangular};
use crate::{MatrixElement, TriangleKind};
use pellucid_gemm::{MatMut, MatRef, TILE};
use pellucid_runtime::scratch;
use pellucid_simd::{AutoVectorized, run_vectorized};

/// The kind of the triangular matrix Lᵀ.
const TRANSPOSED_L: TriangleKind = TriangleKind { is_upper: true, has_unit_diagonal: true };

/// Writes the cofactor matrix C of a square matrix A, which is the derivative of det A with respect to A, from the
/// result of [`lu`](crate::lu()).
///
/// C = det(P)·Pᵀ·L⁻ᵀ·adj(U)ᵀ. The adjugate of U is computed without division, so C is accurate for singular matrices
/// too (Stewart 1998). If an element of U is NaN or infinite, C is NaN.
pub fn cofactors<T: MatrixElement>(packed: MatRef<'_, T>, pivots: &[usize], mut to: MatMut<'_, T>) {
    let n = packed.rows();
    if !(0..n).all(|i| packed.block(i..i + 1, i..n).is_finite()) {
        return to.fill(T::NAN);
    }
    adjugate(packed.transpose(), sign(pivots), to.as_mut());
    solve_triangular(packed.transpose(), to.as_mut(), TRANSPOSED_L);
    restore_rows(pivots, to);
}

/// Writes the cofactor matrices of a group as [`cofactors`] does. The matrices have at most 16 rows.
pub fn cofactors_group<T: MatrixElement>(packed: &[MatRef<'_, T>], pivots: &[&[usize]], to: &mut [MatMut<'_, T>]) {
    let mut signs = [T::one(); GROUP];
    signs.iter_mut().zip(pivots).for_each(|(to, pivots)| *to = sign(pivots));
    with_adjugates(packed, signs, |packed, mut adjugates| {
        let check = packed.zero_if_finite(|i, j| i <= j);
        let work = GroupSolve { a: &packed, b: &mut adjugates, kind: TRANSPOSED_L, is_transposed: true };
        run_vectorized(work);
        adjugates.store(to, |lane| check[lane].is_nan());
    });
    to.iter_mut().zip(pivots).for_each(|(to, pivots)| restore_rows(pivots, to.as_mut()));
}

/// Returns det P: −1 for an odd number of row exchanges, otherwise 1.
fn sign<T: MatrixElement>(pivots: &[usize]) -> T {
    let exchanges = pivots.iter().enumerate().filter(|&(i, &pivot)| i != pivot).count();
    if exchanges % 2 == 1 { -T::one() } else { T::one() }
}

/// Writes adj(M)·`scale` for lower triangular M, and returns det(M)·`scale`. Elements above the diagonal are not read.
///
/// For the blocks [M₁, 0; B, M₂], the adjugate is [det(M₂)·adj(M₁), 0; −adj(M₂)·B·adj(M₁), det(M₁)·adj(M₂)].
fn adjugate<T: MatrixElement>(m: MatRef<'_, T>, scale: T, mut to: MatMut<'_, T>) -> T {
    let n = m.rows();
    if n <= TILE {
        // The group has one matrix, Mᵀ.
        return with_adjugates(&[m.transpose()], [scale], |packed, adjugates| {
            adjugates.store(&mut [to.as_mut()], |_| false);
            (0..n).fold(scale, |det, i| det * packed.elements[i * n + i][0])
        });
    }
    let half = (n / 2).next_multiple_of(TILE);
    let (top, bottom) = to.split_rows(half);
    let ((mut first, mut above), (mut below, mut second)) = (top.split_columns(half), bottom.split_columns(half));
    let first_det = adjugate(m.block(0..half, 0..half), scale, first.as_mut());
    let second_det = adjugate(m.block(half..n, half..n), T::one(), second.as_mut());
    above.fill(T::zero());
    below.fill(T::zero());
    scratch::with_filled((n - half) * half, T::zero(), |elements| {
        let mut product = MatMut::from_slice(elements, n - half, half);
        product.assign_product(m.block(half..n, 0..half), first.as_ref());
        below.subtract_product(second.as_ref(), product.as_ref());
    });
    first.update(|x| x * second_det);
    second.update(|x| x * first_det);
    first_det * second_det
}

/// Calls `f` with copies of the matrices `packed`, and the transposed adjugates of their upper triangles, multiplied by
/// `scales`.
fn with_adjugates<T: MatrixElement, R, const W: usize>(
    packed: &[MatRef<'_, T>],
    scales: [T; W],
    f: impl FnOnce(MatrixGroup<'_, T, W>, MatrixGroup<'_, T, W>) -> R,
) -> R {
    MatrixGroup::with_copies(packed, |packed| {
        let n = packed.rows;
        MatrixGroup::with_zeros(n, n, |adjugates| {
            run_vectorized(GroupAdjugate { n, upper: packed.elements, to: &mut *adjugates.elements, scales });
            f(packed, adjugates)
        })
    })
}

/// The computation of the transposed adjugates of upper triangles of n rows, multiplied by `scales`.
///
/// The adjugate of the leading (k + 1) × (k + 1) block is computed from the adjugate of the leading k × k block.
struct GroupAdjugate<'a, T, const W: usize> {
    n: usize,
    upper: &'a [[T; W]],
    /// Receives the adjugates. All elements are initially zero.
    to: &'a mut [[T; W]],
    scales: [T; W],
}

impl<T: MatrixElement, const W: usize> AutoVectorized for GroupAdjugate<'_, T, W> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let GroupAdjugate { n, upper, to, scales: mut det } = self;
        for k in 0..n {
            let diagonal = upper[k * n + k];
            for j in 0..k {
                let mut sum = [T::zero(); W];
                for i in j..k {
                    let (b, x) = (upper[i * n + k], &mut to[i * n + j]);
                    for lane in 0..W {
                        sum[lane] = sum[lane] - b[lane] * x[lane];
                        x[lane] = x[lane] * diagonal[lane];
                    }
                }
                to[k * n + j] = sum;
            }
            to[k * n + k] = det;
            for lane in 0..W {
                det[lane] = det[lane] * diagonal[lane];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lu;
    use crate::matrix::Matrix;
    use crate::testing::{close, for_both_dtypes, numbers, product, transpose};

    /// Returns the cofactor matrix of A, computed from its LU factors.
    fn cofactors_of<T: MatrixElement>(a: &Matrix<T>) -> Matrix<T> {
        let (mut packed, mut pivots) = (a.clone(), Vec::new());
        lu(packed.view_mut(), &mut pivots);
        let mut c = Matrix::zeros(a.rows(), a.rows());
        cofactors(packed.view(), &pivots, c.view_mut());
        c
    }

    /// Returns det A, computed from the LU factors of A.
    fn det<T: MatrixElement>(a: &Matrix<T>) -> T {
        let (mut packed, mut pivots) = (a.clone(), Vec::new());
        lu(packed.view_mut(), &mut pivots);
        (0..a.rows()).fold(sign(&pivots), |det, i| det * packed.row(i)[i])
    }

    /// Checks A·Cᵀ = det(A)·I.
    fn check<T: MatrixElement>() {
        for n in [1, 2, 3, 7, 8, 15, 16, 17, 33, 40, 65] {
            // The elements of the product have magnitudes of about 1.
            let random = numbers::<T>(n, n, 21);
            let a = Matrix::from_fn(n, n, |i, j| random.row(i)[j] * T::from_f64(1.7 / (n as f64).sqrt()));
            let c = cofactors_of(&a);
            let size = c.data().iter().fold(1.0, |most: f64, x| most.max(x.to_f64().abs()));
            let unit = T::from_f64(1.0 / size);
            let adjugate = Matrix::from_fn(n, n, |i, j| c.row(j)[i] * unit);
            let (mut got, det) = (product(&a, &adjugate), det(&a) * unit);
            let mut expected = Matrix::from_fn(n, n, |i, j| if i == j { det } else { T::zero() });
            // The largest element may be small. Adding 1 to both matrices makes the errors relative to about 1.
            [&mut got, &mut expected].into_iter().for_each(|matrix| matrix.update(|x| x + T::one()));
            close(&got, &expected, 8.0);
        }
    }

    #[test]
    fn a_times_its_adjugate_is_its_determinant() {
        for_both_dtypes!(check);
    }

    /// Checks matrices of rank n − 1 against the outer product of their null vectors, and matrices of lower rank.
    fn check_singular<T: MatrixElement>() {
        for n in [2, 3, 8, 16, 17, 40] {
            let one_if = |condition: bool| if condition { T::one() } else { T::zero() };
            // The diagonal of a nilpotent Jordan block is zero, and only one corner of its cofactor matrix is not.
            let jordan = Matrix::from_fn(n, n, |i, j| one_if(j == i + 1));
            let sign = if n % 2 == 0 { -T::one() } else { T::one() };
            let corner = Matrix::from_fn(n, n, |i, j| one_if((i, j) == (n - 1, 0)) * sign);
            assert_eq!(cofactors_of(&jordan), corner);
            assert_eq!(cofactors_of(&transpose(&jordan)), transpose(&corner));
            // The rows and the columns of I − 1·1ᵀ/n have sum 0; all cofactors are 1/n.
            let n_inverse = T::from_f64(1.0 / n as f64);
            let centering = Matrix::from_fn(n, n, |i, j| one_if(i == j) - n_inverse);
            close(&cofactors_of(&centering), &Matrix::from_fn(n, n, |_, _| n_inverse), 8.0);
            let rank_one = Matrix::from_fn(n, n, |i, j| T::from_f64([1.0, 2.0, 8.0][i % 3] * [1.0, -2.0][j % 2]));
            let expected = Matrix::from_fn(n, n, |i, j| match n {
                2 => rank_one.row(1 - i)[1 - j] * [T::one(), -T::one()][(i + j) % 2],
                _ => T::zero(),
            });
            assert_eq!(cofactors_of(&rank_one), expected);
        }
    }

    #[test]
    fn cofactors_of_singular_matrices_are_accurate() {
        for_both_dtypes!(check_singular);
    }

    #[test]
    fn nan_propagates_to_all_results() {
        let a = Matrix::from_fn(3, 3, |i, j| if (i, j) == (2, 1) { f32::NAN } else { 1.0 });
        assert!(cofactors_of(&a).data().iter().all(|x| x.is_nan()));
    }
}
