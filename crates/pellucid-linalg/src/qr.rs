//! The QR factorization A = Q·R by Householder reflections.

use crate::MatrixElement;
use crate::matrix::Matrix;
use crate::panel::with_columns;
use crate::reflectors::{BlockReflector, HouseholderReflections, reflector};
use crate::scalar::{dot, subtract_scaled};
use pellucid_gemm::{MatMut, MatRef, TILE};
use pellucid_simd::{AutoVectorized, run_vectorized};

/// The power of two by which a matrix is divided if its largest element exceeds about the largest number divided by
/// this power. Intermediate products may exceed the elements of R by a factor of about 64·√m.
pub(crate) const HEADROOM: f64 = (1u64 << 32) as f64;

/// Replaces a matrix by R (on and above the diagonal) and the vectors vᵢ below it, and writes the factors τ: Q is the
/// product of all I − τᵢ·vᵢ·vᵢᵀ, where element i of vᵢ is 1 and the elements above it are 0.
///
/// The signs follow LAPACK: Rᵢᵢ has the opposite sign of the element that it replaces, unless all elements below are
/// zero (then τ = 0). Panels of 16 columns are factored one after the other. Matrix products apply the reflections of a
/// panel to the columns after it.
///
/// # Panics
/// Panics unless `taus` has min(m, n) elements.
pub fn qr<T: MatrixElement>(mut a: MatMut<'_, T>, taus: &mut [T]) {
    let (m, n) = (a.rows(), a.columns());
    assert_eq!(taus.len(), m.min(n), "`taus` must have one element for each of the min({m}, {n}) reflections");
    let headroom = T::from_f64(HEADROOM);
    if a.as_ref().all(|x| x.abs() <= T::one() / T::MIN_POSITIVE / headroom) {
        return factor(a, taus);
    }
    if !a.as_ref().is_finite() {
        a.fill(T::NAN);
        return taus.fill(T::NAN);
    }
    a.update(|x| x / headroom);
    factor(a.as_mut(), taus);
    (0..m).for_each(|i| (i..n).for_each(|j| a.set(i, j, a.at(i, j) * headroom)));
}

/// Factors the first columns of a finite matrix whose products do not overflow, one for each element of `taus`, and
/// applies Qᵀ to the others.
pub(crate) fn factor<T: MatrixElement>(mut a: MatMut<'_, T>, taus: &mut [T]) {
    let (m, n) = (a.rows(), a.columns());
    for (block, taus) in taus.chunks_mut(TILE).enumerate() {
        let start = block * TILE;
        let (panel, rest) = a.as_mut().block(start..m, start..n).split_columns(taus.len());
        factor_panel(panel, rest, taus);
    }
}

/// Factors at most 16 columns, and applies Qᵀ to `rest`.
fn factor_panel<T: MatrixElement>(mut panel: MatMut<'_, T>, rest: MatMut<'_, T>, taus: &mut [T]) {
    let (m, count) = (panel.rows(), taus.len());
    with_columns(&mut panel, count, |columns, vectors| {
        let height = vectors.len() / count;
        factor_columns(m, columns, vectors, taus);
        if rest.columns() > 0 {
            let vectors = MatRef::from_slice(vectors, count, height).block(0..count, 0..m);
            BlockReflector::new(vectors, taus).apply(rest, true);
        }
    });
}

/// Factors the first of at most 16 columns, one for each element of `taus`, and applies Qᵀ to the others. The columns
/// have m elements and are padded with zeros, and `vectors`, of which each has their padded length, is initially zero.
pub(crate) fn factor_columns<T: MatrixElement>(m: usize, columns: &mut [T], vectors: &mut [T], taus: &mut [T]) {
    let height = vectors.len() / taus.len();
    run_vectorized(PanelQr { m, height, columns, vectors, taus });
}

/// The QR factorization of the first of at most 16 columns of m elements, which are padded with zeros to `height`.
struct PanelQr<'a, T> {
    m: usize,
    height: usize,
    columns: &'a mut [T],
    /// Receives the complete vectors v of the reflections, including their zeros and the first element 1.
    vectors: &'a mut [T],
    taus: &'a mut [T],
}

impl<T: MatrixElement> AutoVectorized for PanelQr<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let PanelQr { m, height, columns, vectors, taus } = self;
        for (k, (tau, v)) in taus.iter_mut().zip(vectors.chunks_exact_mut(height)).enumerate() {
            let (done, rest) = columns.split_at_mut((k + 1) * height);
            let column = &mut done[k * height..];
            *tau = reflector(&mut column[k..m]);
            v[k] = T::one();
            v[k + 1..].copy_from_slice(&column[k + 1..]);
            for column in rest.chunks_exact_mut(height) {
                let by = *tau * dot(v, column);
                subtract_scaled(column, by, v);
            }
        }
    }
}

/// Returns the reflections from the result of [`qr`].
pub(crate) fn reflections<T: MatrixElement>(packed: MatRef<'_, T>, taus: Vec<T>) -> HouseholderReflections<T> {
    let vectors = Matrix::from_fn(taus.len(), packed.rows(), |k, i| match i.cmp(&k) {
        std::cmp::Ordering::Less => T::zero(),
        std::cmp::Ordering::Equal => T::one(),
        std::cmp::Ordering::Greater => packed.at(i, k),
    });
    HouseholderReflections { vectors, taus, offset: 0 }
}

/// Writes the first columns of Q from the result of [`qr`].
///
/// If Q has at most 16 columns and there are at most 16 reflections, they are applied one at a time; otherwise, matrix
/// products apply blocks of them.
pub fn householder_basis<T: MatrixElement>(packed: MatRef<'_, T>, taus: &[T], mut q: MatMut<'_, T>) {
    let (m, n) = (q.rows(), q.columns());
    if n > TILE || taus.len() > TILE {
        return q.copy_from(reflections(packed, taus.to_vec()).basis(n).view());
    }
    q.fill_with(|i, j| if i == j { T::one() } else { T::zero() });
    with_columns(&mut q, taus.len(), |columns, vectors| {
        let height = m.next_multiple_of(TILE);
        for (k, v) in vectors.chunks_exact_mut(height.max(1)).enumerate() {
            v[k] = T::one();
            (k + 1..m).for_each(|i| v[i] = packed.at(i, k));
        }
        run_vectorized(PanelBasis { height, vectors, taus, columns });
    });
}

/// The application of at most 16 reflections to columns that are padded with zeros to `height`.
struct PanelBasis<'a, T> {
    height: usize,
    vectors: &'a [T],
    taus: &'a [T],
    columns: &'a mut [T],
}

impl<T: MatrixElement> AutoVectorized for PanelBasis<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let PanelBasis { height, vectors, taus, columns } = self;
        for (k, &tau) in taus.iter().enumerate().rev() {
            let v = &vectors[k * height..][..height];
            // Before reflection k is applied, the columns before k equal those of the identity matrix, and the
            // reflection does not change them.
            for column in columns.chunks_exact_mut(height).skip(k) {
                let by = tau * dot(v, column);
                subtract_scaled(column, by, v);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SIZES, close, extreme_scales, for_both_dtypes, largest_tall, numbers, product, transpose};

    /// Checks QᵀQ = I and Q·R = A, in units of `factor`·ε·n.
    fn check_factors<T: MatrixElement>(a: &Matrix<T>, factor: f64) {
        let (m, n) = (a.rows(), a.columns());
        let (mut packed, mut taus) = (a.clone(), vec![T::zero(); m.min(n)]);
        qr(packed.view_mut(), &mut taus);
        let r = Matrix::from_fn(m, n, |i, j| if i <= j { packed.row(i)[j] } else { T::zero() });
        let reflections = reflections(packed.view(), taus.clone());
        let q = reflections.basis(m);
        close(&product(&transpose(&q), &q), &Matrix::identity(m, m), factor);
        close(&product(&q, &r), a, factor);
        let mut applied = r.clone();
        reflections.apply(applied.view_mut());
        close(&applied, a, factor);
        let thin = reflections.basis(m.min(n));
        close(&thin, &Matrix::copy_of(q.view().block(0..m, 0..m.min(n))), factor);
        let mut basis = Matrix::zeros(m, m.min(n));
        householder_basis(packed.view(), &taus, basis.view_mut());
        close(&basis, &thin, factor);
    }

    fn check<T: MatrixElement>() {
        for n in SIZES {
            check_factors(&numbers::<T>(n, n, 5), 2.0);
        }
        for (m, n) in [(0, 3), (3, 0), (3, 7), (7, 3), (90, 33), (33, 90), (200, 16), (16, 200)] {
            check_factors(&numbers::<T>(m, n, 5), 2.0);
        }
        for n in [2, 5, 40] {
            check_factors(&Matrix::<T>::zeros(n, n), 2.0);
            check_factors(&product(&numbers::<T>(n, 1, 3), &numbers(1, n, 4)), 2.0);
            for size in extreme_scales() {
                let mut a = numbers::<T>(n, n, 6);
                a.update(|x| x * size);
                check_factors(&a, 2.0);
            }
            // The columns are scaled by factors from 1 to 1e-30.
            let random = numbers::<T>(n, n, 7);
            let graded = |i: usize, j: usize| random.row(i)[j] * T::from_f64(10f64.powi(-30 * j as i32 / n as i32));
            check_factors(&Matrix::from_fn(n, n, graded), 2.0);
        }
    }

    #[test]
    fn q_is_orthogonal_and_q_times_r_is_a() {
        for_both_dtypes!(check);
    }

    /// Checks R for matrices with columns whose norms are just below the largest number.
    fn check_largest<T: MatrixElement>() {
        for a in largest_tall::<T>() {
            let (mut packed, mut taus) = (a.clone(), vec![T::zero(); a.columns()]);
            qr(packed.view_mut(), &mut taus);
            let r = Matrix::from_fn(a.rows(), a.columns(), |i, j| if i <= j { packed.row(i)[j] } else { T::zero() });
            close(&product(&reflections(packed.view(), taus).basis(a.rows()), &r), &a, 2.0);
        }
    }

    #[test]
    fn intermediate_results_of_large_matrices_do_not_overflow() {
        for_both_dtypes!(check_largest);
    }

    #[test]
    fn the_diagonal_of_r_has_the_signs_of_lapack() {
        let mut a = Matrix::from_fn(2, 2, |i, j| [[3.0, 1.0], [4.0, 2.0]][i][j]);
        qr(a.view_mut(), &mut [0.0; 2]);
        assert_eq!(a.row(0)[0], -5.0);
    }

    #[test]
    fn nan_propagates_to_all_results() {
        let mut a = Matrix::from_fn(3, 2, |i, j| if (i, j) == (2, 1) { f32::NAN } else { 1.0 });
        let mut taus = [0.0; 2];
        qr(a.view_mut(), &mut taus);
        assert!(a.data().iter().chain(&taus).all(|x| x.is_nan()));
    }
}
