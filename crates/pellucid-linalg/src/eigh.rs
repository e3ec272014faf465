//! The eigendecomposition A = V·diag(w)·Vᵀ of a symmetric matrix.

use crate::cholesky::is_finite_below;
use crate::matrix::Matrix;
use crate::reflectors::{HouseholderReflections, reflector};
use crate::rotations::RotatedVectors;
use crate::scalar::{dot, largest, plane_rotation, scale_to_one, update_row};
use crate::{MatrixElement, NotConverged};
use pellucid_gemm::{MatMut, MatRef, TILE};
use pellucid_simd::{AutoVectorized, run_vectorized};
use std::cmp::Ordering;

/// The maximum number of QR sweeps per row.
const MAX_SWEEPS: usize = 30;

/// Writes the eigenvalues of a symmetric matrix, in ascending order, and the eigenvectors as columns of `vectors` if it
/// is not `None`.
///
/// Only the lower triangle is read. If one of its elements is NaN or infinite, all results are NaN.
///
/// The matrix is reduced to tridiagonal form by reflections, and diagonalized by the implicit QR algorithm (Golub &
/// Van Loan, Matrix Computations, 8.3).
///
/// # Errors
/// [`NotConverged`] after 30·n sweeps; all results are NaN. A typical matrix needs fewer than 2·n sweeps.
///
/// # Panics
/// Panics unless `values` has n elements, and `vectors`, if any, has n rows and columns.
pub fn eigh<T: MatrixElement>(
    a: MatRef<'_, T>,
    values: &mut [T],
    mut vectors: Option<MatMut<'_, T>>,
) -> Result<(), NotConverged> {
    let n = a.rows();
    assert_eq!(values.len(), n, "`values` must have one element for each of the {n} eigenvalues");
    // The results stay NaN for a matrix that is not finite, or whose iteration does not converge.
    values.fill(T::NAN);
    vectors.iter_mut().for_each(|v| v.fill(T::NAN));
    if !is_finite_below(a) {
        return Ok(());
    }
    // The rows are padded with zeros to a multiple of the vector length.
    let mut work = Matrix::zeros(n, n.next_multiple_of(TILE));
    for i in 0..n {
        (0..=i).for_each(|j| work.row_mut(i)[j] = a.at(i, j));
        (i + 1..n).for_each(|j| work.row_mut(i)[j] = a.at(j, i));
    }
    // The largest element is scaled to [1, 2), so that its square neither overflows nor underflows. Scaling by a power
    // of two is exact, unless an element underflows.
    let scale = scale_to_one(largest(work.data()));
    work.update(|x| x * scale);
    let (mut diagonal, mut off_diagonal) = (vec![T::zero(); n], vec![T::zero(); n]);
    let count = n.max(1) - 1;
    let mut reflections =
        HouseholderReflections { vectors: Matrix::zeros(count, n), taus: vec![T::zero(); count], offset: 1 };
    let (d, e) = (&mut diagonal[..], &mut off_diagonal[..]);
    run_vectorized(Tridiagonalize { work, diagonal: &mut *d, off_diagonal: &mut *e, to: &mut reflections });
    let basis = vectors.is_some().then(|| reflections.basis(n));
    let mut rotated = RotatedVectors::new(basis.as_ref(), n);
    diagonalize(d, e, &mut rotated, MAX_SWEEPS * n)?;
    let mut order: Vec<(usize, T)> = (0..n).map(|k| (k, T::one())).collect();
    order.sort_by(|a, b| d[a.0].partial_cmp(&d[b.0]).unwrap_or(Ordering::Equal));
    order.iter().zip(values).for_each(|(&(k, _), value)| *value = d[k] / scale);
    if let Some(vectors) = vectors {
        rotated.store(&order, vectors);
    }
    Ok(())
}

/// The reduction of a symmetric matrix to tridiagonal form by reflections.
struct Tridiagonalize<'a, T> {
    /// The matrix, whose rows are padded with zeros to a multiple of 16 elements.
    work: Matrix<T>,
    diagonal: &'a mut [T],
    /// Receives the elements below the diagonal. The last element is not used.
    off_diagonal: &'a mut [T],
    to: &'a mut HouseholderReflections<T>,
}

impl<T: MatrixElement> AutoVectorized for Tridiagonalize<'_, T> {
    type Output = ();

    /// Reduces the matrix. Step k maps column k to a multiple of a unit vector by the reflection I − τ·u·uᵀ, which
    /// changes the remaining matrix to A − u·wᵀ − w·uᵀ. The next step applies this update and computes its own product
    /// of A and u in one pass over the matrix.
    #[inline(always)]
    fn run(self) {
        let Tridiagonalize { mut work, diagonal, off_diagonal, to } = self;
        let (n, width) = (work.rows(), work.columns());
        let zeros = vec![T::zero(); width];
        let (mut u, mut w) = (zeros.clone(), zeros.clone());
        let (mut next_u, mut product) = (zeros.clone(), zeros);
        for k in 0..n {
            next_u.fill(T::zero());
            (k..n).for_each(|i| next_u[i] = work.row(i)[k] - u[i] * w[k] - w[i] * u[k]);
            diagonal[k] = next_u[k];
            if k + 1 == n {
                break;
            }
            next_u[k] = T::zero();
            let tau = reflector(&mut next_u[k + 1..n]);
            off_diagonal[k] = next_u[k + 1];
            next_u[k + 1] = T::one();
            to.taus[k] = tau;
            to.vectors.row_mut(k).copy_from_slice(&next_u[..n]);
            let start = (k + 1) / TILE * TILE;
            product.fill(T::zero());
            for i in k + 1..n {
                let factors = [u[i], w[i], next_u[i]];
                update_row(&mut work.row_mut(i)[start..], factors, [&w[start..], &u[start..]], &mut product[start..]);
            }
            // A·u becomes w = τ·A·u − ½·τ²·(uᵀ·A·u)·u.
            product[..=k].fill(T::zero());
            let half = T::from_f64(0.5) * tau * tau * dot(&product, &next_u);
            (k + 1..n).for_each(|i| product[i] = tau * product[i] - half * next_u[i]);
            std::mem::swap(&mut u, &mut next_u);
            std::mem::swap(&mut w, &mut product);
        }
    }
}

/// Diagonalizes a symmetric tridiagonal matrix by at most `sweeps` QR sweeps with Wilkinson's shift, and rotates the
/// vectors.
fn diagonalize<T: MatrixElement>(
    d: &mut [T],
    e: &mut [T],
    vectors: &mut RotatedVectors<T>,
    mut sweeps: usize,
) -> Result<(), NotConverged> {
    // The largest element of the matrix is about 1, so elements below the square root of the smallest normal number,
    // whose squares underflow, are negligible.
    let (half_epsilon, least) = (T::EPSILON * T::from_f64(0.5), T::MIN_POSITIVE.sqrt());
    let mut high = d.len().max(1) - 1;
    while high > 0 {
        let is_small = |k: usize, e: &[T], d: &[T]| e[k].abs() <= half_epsilon * (d[k].abs() + d[k + 1].abs()) + least;
        if is_small(high - 1, e, d) {
            e[high - 1] = T::zero();
            high -= 1;
            continue;
        }
        let low = (0..high - 1).rev().find(|&k| is_small(k, e, d)).map_or(0, |k| k + 1);
        sweeps = sweeps.checked_sub(1).ok_or(NotConverged)?;
        // Wilkinson's shift: the eigenvalue of the last 2×2 block that is closer to the last diagonal element.
        let half_gap = (d[high - 1] - d[high]) * T::from_f64(0.5);
        let (_, _, root) = plane_rotation(half_gap, e[high - 1]);
        let shift = d[high] - e[high - 1] * (e[high - 1] / (half_gap + root.abs().copysign(half_gap)));
        let (mut x, mut z) = (d[low] - shift, e[low]);
        for k in low..high {
            let (c, s, r) = plane_rotation(x, z);
            if k > low {
                e[k - 1] = r;
            }
            let (first, second, off) = (d[k], d[k + 1], e[k]);
            let (top, side) = (c * first + s * off, c * off + s * second);
            d[k] = c * top + s * side;
            e[k] = c * side - s * top;
            d[k + 1] = c * (c * second - s * off) - s * (c * off - s * first);
            if k + 1 < high {
                (x, z) = (e[k], s * e[k + 1]);
                e[k + 1] = c * e[k + 1];
            }
            vectors.rotate(k, c, s);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SIZES, close, for_both_dtypes, numbers, product, transpose};

    /// Checks VᵀV = I and V·diag(w)·Vᵀ = A, in units of `factor`·ε·n.
    fn check_factors<T: MatrixElement>(a: &Matrix<T>, factor: f64) {
        let n = a.rows();
        let lower = Matrix::from_fn(n, n, |i, j| if i < j { T::NAN } else { a.row(i)[j] });
        let (mut w, mut v) = (vec![T::zero(); n], Matrix::zeros(n, n));
        eigh(lower.view(), &mut w, Some(v.view_mut())).unwrap();
        assert!(w.is_sorted());
        close(&product(&transpose(&v), &v), &Matrix::identity(n, n), factor);
        let vw = Matrix::from_fn(n, n, |i, j| v.row(i)[j] * w[j]);
        close(&product(&vw, &transpose(&v)), a, factor * (n as f64).sqrt().max(1.0));
        let mut alone = vec![T::zero(); n];
        eigh(lower.view(), &mut alone, None).unwrap();
        assert!(alone == w, "the eigenvalues must be the same without vectors");
    }

    fn check<T: MatrixElement>() {
        for n in SIZES {
            let x = numbers::<T>(n, n, 9);
            let a = Matrix::from_fn(n, n, |i, j| x.row(i)[j] + x.row(j)[i]);
            check_factors(&a, 4.0);
            let number = |x: usize| T::from_f64(x as f64);
            // Multiple eigenvalues, a diagonal matrix, and a matrix of rank 1.
            check_factors(&Matrix::from_fn(n, n, |i, j| if i == j { number(2 + i / 9) } else { T::one() }), 4.0);
            check_factors(&Matrix::from_fn(n, n, |i, j| if i == j { number(i * 7 % 5) } else { T::zero() }), 4.0);
            check_factors(&Matrix::from_fn(n, n, |i, j| x.row(0)[i] * x.row(0)[j]), 4.0);
            check_factors(&Matrix::<T>::zeros(n, n), 4.0);
            // Wilkinson's matrix, which has pairs of close eigenvalues.
            let wilkinson = |i: usize, j: usize| match i.abs_diff(j) {
                0 => number(i.abs_diff(n / 2)),
                1 => T::one(),
                _ => T::zero(),
            };
            check_factors(&Matrix::from_fn(n, n, wilkinson), 4.0);
            // Graded in both directions.
            for reverse in [false, true] {
                let grade = |i: usize| {
                    let position = if reverse { n - 1 - i } else { i };
                    T::from_f64(10f64.powi(-(12 * position as i32) / n as i32))
                };
                check_factors(&Matrix::from_fn(n, n, |i, j| a.row(i)[j] * grade(i) * grade(j)), 4.0);
            }
        }
        let x = numbers::<T>(33, 33, 9);
        for size in [T::one() / T::MIN_POSITIVE / T::from_f64(16.0), T::MIN_POSITIVE / T::EPSILON] {
            check_factors(&Matrix::from_fn(33, 33, |i, j| (x.row(i)[j] + x.row(j)[i]) * size), 4.0);
        }
    }

    #[test]
    fn the_vectors_are_orthonormal_and_the_product_is_a() {
        for_both_dtypes!(check);
    }

    /// Checks tridiagonal matrices with random elements from 1 to 1e-36, whose squares underflow in `f32`.
    fn check_tiny_elements<T: MatrixElement>() {
        for seed in 0..200 {
            let exponents = numbers::<f64>(19, 2, seed);
            let a = Matrix::from_fn(19, 19, |i, j| match i.abs_diff(j) {
                distance @ (0 | 1) => T::from_f64(10f64.powf(18.0 * (exponents.row(i.min(j))[distance] - 1.0))),
                _ => T::zero(),
            });
            check_factors(&a, 4.0);
        }
    }

    #[test]
    fn matrices_with_tiny_elements_converge() {
        for_both_dtypes!(check_tiny_elements);
    }

    #[test]
    fn nan_propagates_to_all_results() {
        let a = Matrix::from_fn(2, 2, |_, _| f64::NAN);
        let (mut w, mut v) = ([0.0; 2], Matrix::zeros(2, 2));
        assert_eq!(eigh(a.view(), &mut w, Some(v.view_mut())), Ok(()));
        assert!(w.iter().chain(v.data()).all(|x| x.is_nan()));
    }

    #[test]
    fn the_number_of_sweeps_is_limited() {
        let diagonalize_within = |sweeps| {
            let (mut d, mut e) = ([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 0.0]);
            diagonalize(&mut d, &mut e, &mut RotatedVectors::new(None, 4), sweeps)
        };
        assert_eq!(diagonalize_within(2), Err(NotConverged));
        assert_eq!(diagonalize_within(12), Ok(()));
    }
}
