//! The eigendecomposition A = V·diag(w)·Vᵀ of a symmetric matrix.

use crate::Scalar;
use crate::cholesky::{is_finite_below, zero_above};
use crate::matrix::Matrix;
use crate::reflectors::{Reflections, reflector};
use crate::rotations::RotatedVectors;
use crate::scalar::{dot, largest, plane_rotation, scale_to_one, sum_lanes};
use pellucid_gemm::{MatMut, MatRef, TILE};
use pellucid_simd::{AutoVectorized, run_vectorized};

/// The largest number of QR sweeps, for each row.
const MAX_SWEEPS: usize = 30;

/// Writes the eigenvalues of a symmetric matrix, ascending, and the eigenvectors as columns of `vectors`, if any.
///
/// Only the lower triangle is read. If an element of it is NaN or infinite, or if the iteration does not converge, all
/// results are NaN.
///
/// The matrix is reduced to tridiagonal form by reflections, and diagonalized by the implicit QR algorithm (Golub &
/// Van Loan, Matrix Computations, 8.3).
///
/// # Panics
/// Panics unless `values` has n elements and `vectors` n rows and columns.
pub fn eigh<T: Scalar>(a: MatRef<'_, T>, values: &mut [T], mut vectors: Option<MatMut<'_, T>>) {
    let n = a.rows();
    assert_eq!(values.len(), n, "an n × n matrix has n eigenvalues");
    let has_vectors = vectors.is_some();
    let result = if is_finite_below(a) { decompose(a, values, has_vectors) } else { None };
    let Some(basis) = result else {
        values.fill(T::NAN);
        return vectors.iter_mut().for_each(|v| v.fill(T::NAN));
    };
    let mut order: Vec<(usize, T)> = (0..n).map(|k| (k, T::one())).collect();
    order.sort_by(|a, b| values[a.0].partial_cmp(&values[b.0]).unwrap_or(std::cmp::Ordering::Equal));
    let sorted: Vec<T> = order.iter().map(|&(k, _)| values[k]).collect();
    values.copy_from_slice(&sorted);
    if let Some(vectors) = vectors {
        basis.store(&order, vectors);
    }
}

/// Writes the eigenvalues, and returns the eigenvectors, or `None` if the iteration does not converge.
fn decompose<T: Scalar>(a: MatRef<'_, T>, values: &mut [T], has_vectors: bool) -> Option<RotatedVectors<T>> {
    let n = a.rows();
    // The rows are padded with zeros to complete vectors.
    let mut work = Matrix::zeros(n, n.next_multiple_of(TILE));
    let mut square = work.view_mut().block(0..n, 0..n);
    square.copy_from(a);
    zero_above(&mut square);
    // The largest element is scaled to [1, 2), so that no square overflows or underflows; a power of two is exact.
    let scale = scale_to_one(largest(work.data()));
    work.update(|x| x * scale);
    let mut off_diagonal = vec![T::zero(); n];
    let mut reflections =
        Reflections { vectors: Matrix::zeros(n.max(1) - 1, n), taus: vec![T::zero(); n.max(1) - 1], offset: 1 };
    run_vectorized(Tridiagonalize { work, diagonal: values, off_diagonal: &mut off_diagonal, to: &mut reflections });
    let basis = has_vectors.then(|| reflections.basis(n));
    let mut vectors = RotatedVectors::new(basis.as_ref(), n);
    diagonalize(values, &mut off_diagonal, &mut vectors)?;
    values.iter_mut().for_each(|w| *w = *w / scale);
    Some(vectors)
}

/// The reduction of a symmetric matrix to tridiagonal form by reflections.
struct Tridiagonalize<'a, T> {
    /// The lower triangle, in rows that are padded with zeros to a multiple of 16 elements.
    work: Matrix<T>,
    diagonal: &'a mut [T],
    /// Receives the elements below the diagonal. The last element is not used.
    off_diagonal: &'a mut [T],
    to: &'a mut Reflections<T>,
}

impl<T: Scalar> AutoVectorized for Tridiagonalize<'_, T> {
    type Output = ();

    /// Step k maps column k to a multiple of a unit vector by the reflection I − τ·u·uᵀ, which changes the remaining
    /// matrix to A − u·wᵀ − w·uᵀ. The next step computes this update together with its own product of A and a vector,
    /// so that it reads and writes the matrix once.
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
                let row = &mut work.row_mut(i)[start..];
                let factors = [u[i], w[i], next_u[i]];
                let sum = update_row(row, i - start, factors, [&u[start..], &w[start..], &next_u[start..]], &mut product[start..]);
                product[i] = product[i] + sum;
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

/// Subtracts uᵢ·w + wᵢ·u from the elements up to the diagonal of row i of the lower triangle, adds the elements below
/// the diagonal times xᵢ to `product`, and returns the product of the row and x. The factors are uᵢ, wᵢ and xᵢ.
#[inline(always)]
fn update_row<T: Scalar>(
    row: &mut [T],
    diagonal: usize,
    [ui, wi, xi]: [T; 3],
    [u, w, x]: [&[T]; 3],
    product: &mut [T],
) -> T {
    let mut sums = [T::zero(); TILE];
    let (row, product) = (row.as_chunks_mut::<TILE>().0, product.as_chunks_mut::<TILE>().0);
    let [u, w, x] = [u, w, x].map(|vector| vector.as_chunks::<TILE>().0);
    let last = diagonal / TILE;
    for chunk in 0..last {
        for lane in 0..TILE {
            let element = row[chunk][lane] - (ui * w[chunk][lane] + wi * u[chunk][lane]);
            row[chunk][lane] = element;
            sums[lane] = sums[lane] + element * x[chunk][lane];
            product[chunk][lane] = product[chunk][lane] + element * xi;
        }
    }
    // Elements above the diagonal stay zero. The diagonal element is added once.
    for lane in 0..TILE {
        let at = last * TILE + lane;
        let element = row[last][lane] - (ui * w[last][lane] + wi * u[last][lane]);
        let element = if at <= diagonal { element } else { T::zero() };
        row[last][lane] = element;
        sums[lane] = sums[lane] + element * x[last][lane];
        let below = if at < diagonal { element } else { T::zero() };
        product[last][lane] = product[last][lane] + below * xi;
    }
    sum_lanes(sums)
}

/// Diagonalizes a symmetric tridiagonal matrix by QR sweeps with Wilkinson's shift, and rotates the vectors. Returns
/// `None` if the sweeps do not converge.
fn diagonalize<T: Scalar>(d: &mut [T], e: &mut [T], vectors: &mut RotatedVectors<T>) -> Option<()> {
    let half_epsilon = T::EPSILON * T::from_f64(0.5);
    let mut sweeps = MAX_SWEEPS * d.len();
    let mut high = d.len().max(1) - 1;
    while high > 0 {
        let is_small = |k: usize, e: &[T], d: &[T]| {
            e[k].abs() <= half_epsilon * (d[k].abs() + d[k + 1].abs()) + T::MIN_POSITIVE
        };
        if is_small(high - 1, e, d) {
            e[high - 1] = T::zero();
            high -= 1;
            continue;
        }
        let low = (0..high - 1).rev().find(|&k| is_small(k, e, d)).map_or(0, |k| k + 1);
        sweeps = sweeps.checked_sub(1)?;
        // The eigenvalue of the last 2×2 block that is closer to its last element.
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
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SIZES, close, for_both_dtypes, numbers, product, transpose};

    /// Checks VᵀV = I and V·diag(w)·Vᵀ = A, in units of `factor`·ε·n.
    fn check_factors<T: Scalar>(a: &Matrix<T>, factor: f64) {
        let n = a.rows();
        let lower = Matrix::from_fn(n, n, |i, j| if i < j { T::NAN } else { a.row(i)[j] });
        let (mut w, mut v) = (vec![T::zero(); n], Matrix::zeros(n, n));
        eigh(lower.view(), &mut w, Some(v.view_mut()));
        assert!(w.is_sorted());
        close(&product(&transpose(&v), &v), &Matrix::identity(n, n), factor);
        let vw = Matrix::from_fn(n, n, |i, j| v.row(i)[j] * w[j]);
        close(&product(&vw, &transpose(&v)), a, factor * (n as f64).sqrt().max(1.0));
        let mut alone = vec![T::zero(); n];
        eigh(lower.view(), &mut alone, None);
        assert!(alone == w, "the eigenvalues must not depend on the vectors");
    }

    fn check<T: Scalar>() {
        for n in SIZES {
            let x = numbers::<T>(n, n, 9);
            let a = Matrix::from_fn(n, n, |i, j| x.row(i)[j] + x.row(j)[i]);
            check_factors(&a, 4.0);
            let number = |x: usize| T::from_f64(x as f64);
            // Multiple eigenvalues, a diagonal matrix, and rank 1.
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

    #[test]
    fn nan_propagates_to_all_results() {
        let a = Matrix::from_fn(2, 2, |_, _| f64::NAN);
        let (mut w, mut v) = ([0.0; 2], Matrix::zeros(2, 2));
        eigh(a.view(), &mut w, Some(v.view_mut()));
        assert!(w.iter().chain(v.data()).all(|x| x.is_nan()));
    }
}
