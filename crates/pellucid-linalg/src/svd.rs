//! The singular value decomposition A = U·diag(S)·Vᵀ.

use crate::bidiagonal::bidiagonalize;
use crate::matrix::Matrix;
use crate::qr::{qr, reflections};
use crate::rotations::RotatedVectors;
use crate::scalar::{largest, plane_rotation, scale_to_one};
use crate::{MatrixElement, NotConverged};
use pellucid_gemm::{MatMut, MatRef};
use std::cmp::Ordering;

/// The maximum number of QR sweeps per singular value.
const MAX_SWEEPS: usize = 60;

/// The matrices U and Vᵀ that a decomposition writes.
///
/// U is `[m, k]` or `[m, m]`, and Vᵀ `[k, n]` or `[n, n]`, k = min(m, n).
pub struct SingularBases<'a, T> {
    /// Left singular vectors as columns.
    pub u: MatMut<'a, T>,
    /// Right singular vectors as rows.
    pub vt: MatMut<'a, T>,
}

/// Writes the singular values of a matrix, in descending order, and its singular vectors if `vectors` is not `None`.
///
/// If an element is NaN or infinite, all results are NaN.
///
/// The matrix is reduced to bidiagonal form by reflections. For a tall matrix, the factor R of its QR factorization is
/// reduced instead (Chan 1982). The implicit QR algorithm then computes all singular values of the bidiagonal matrix
/// with high relative accuracy (Demmel & Kahan 1990).
///
/// # Errors
/// [`NotConverged`] after 60·k sweeps, k = min(m, n); all results are NaN. A typical matrix needs fewer than 3·k
/// sweeps.
///
/// # Panics
/// Panics unless `values` has min(m, n) elements, and `vectors`, if any, has one of the shapes of [`SingularBases`].
pub fn svd<T: MatrixElement>(
    a: MatRef<'_, T>,
    values: &mut [T],
    vectors: Option<SingularBases<'_, T>>,
) -> Result<(), NotConverged> {
    if a.rows() < a.columns() {
        let transposed = vectors.map(|v| SingularBases { u: v.vt.transpose(), vt: v.u.transpose() });
        return svd(a.transpose(), values, transposed);
    }
    assert_eq!(values.len(), a.columns(), "`values` must have one element for each of the min(m, n) singular values");
    let mut vectors = vectors.map(|v| [v.u, v.vt.transpose()]);
    // The results stay NaN for a matrix that is not finite, or whose iteration does not converge.
    values.fill(T::NAN);
    vectors.iter_mut().flatten().for_each(|matrix| matrix.fill(T::NAN));
    if a.is_finite() { decompose(a, values, vectors) } else { Ok(()) }
}

/// Writes the singular values of a matrix with m ≥ n and, if `vectors` is not `None`, the matrices U and V.
fn decompose<T: MatrixElement>(
    a: MatRef<'_, T>,
    values: &mut [T],
    vectors: Option<[MatMut<'_, T>; 2]>,
) -> Result<(), NotConverged> {
    let (m, n) = (a.rows(), a.columns());
    let mut scale = T::one();
    let tall = (m * 5 > n * 8).then(|| {
        let (mut packed, mut taus) = (Matrix::copy_of(a), vec![T::zero(); n]);
        // Without this scale, an element of R might overflow although most singular values are finite.
        scale = scale_to_one(largest(packed.data()));
        packed.update(|x| x * scale);
        qr(packed.view_mut(), &mut taus);
        (
            Matrix::from_fn(n, n, |i, j| if i <= j { packed.row(i)[j] } else { T::zero() }),
            reflections(packed.view(), taus),
        )
    });
    let mut form = bidiagonalize(tall.as_ref().map_or(a, |(r, _)| r.view()));
    let height = if tall.is_some() { n } else { m };
    let bases = vectors.as_ref().map(|[u, _]| {
        let columns = if tall.is_some() { n } else { u.columns() };
        (form.left.basis(columns), form.right.basis(n))
    });
    let mut left = RotatedVectors::new(bases.as_ref().map(|(u, _)| u), n);
    let mut right = RotatedVectors::new(bases.as_ref().map(|(_, v)| v), n);
    let (d, e) = (&mut form.diagonal[..], &mut form.off_diagonal[..]);
    BidiagonalQr { d: &mut *d, e, left: &mut left, right: &mut right }.diagonalize(MAX_SWEEPS * n)?;
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| d[j].abs().partial_cmp(&d[i].abs()).unwrap_or(Ordering::Equal));
    order.iter().zip(values).for_each(|(&k, value)| *value = d[k].abs() / form.scale / scale);
    let (Some([mut u, mut v]), Some((basis, _))) = (vectors, bases) else { return Ok(()) };
    // The columns of U after the singular vectors complete the basis.
    for i in 0..m {
        for j in n..u.columns() {
            let beyond = |i: usize, j: usize| if i == j { T::one() } else { T::zero() };
            u.set(i, j, if i < height && tall.is_none() { basis.row(i)[j] } else { beyond(i, j) });
        }
    }
    u.as_mut().block(height..m, 0..n).fill(T::zero());
    let left_order: Vec<(usize, T)> = order.iter().map(|&k| (k, T::one())).collect();
    let right_order: Vec<(usize, T)> = order.iter().map(|&k| (k, T::one().copysign(d[k]))).collect();
    left.store(&left_order, u.as_mut().block(0..height, 0..n));
    right.store(&right_order, v.as_mut().block(0..n, 0..n));
    if let Some((_, q)) = tall {
        q.apply(u);
    }
    Ok(())
}

/// The diagonalization of an upper bidiagonal matrix.
struct BidiagonalQr<'a, T> {
    /// The diagonal.
    d: &'a mut [T],
    /// The elements above the diagonal.
    e: &'a mut [T],
    left: &'a mut RotatedVectors<T>,
    right: &'a mut RotatedVectors<T>,
}

/// The diagonal block that a sweep processes, and the direction of the sweep: downwards, or upwards from the last row.
#[derive(Clone, Copy)]
struct Sweep {
    low: usize,
    high: usize,
    is_upward: bool,
}

impl Sweep {
    /// Returns the index of the k-th element of the diagonal in the direction of the sweep.
    #[inline(always)]
    fn d(self, k: usize) -> usize {
        if self.is_upward { self.high - k } else { self.low + k }
    }

    /// Returns the index of the element above the diagonal between the k-th and the next element of the diagonal.
    #[inline(always)]
    fn e(self, k: usize) -> usize {
        if self.is_upward { self.high - 1 - k } else { self.low + k }
    }
}

impl<T: MatrixElement> BidiagonalQr<'_, T> {
    /// Sweeps over the last block that has more than one row and no negligible element above the diagonal, until no
    /// such block is left. Performs at most `sweeps` sweeps.
    fn diagonalize(mut self, mut sweeps: usize) -> Result<(), NotConverged> {
        let n = self.d.len();
        let half_epsilon = T::EPSILON.to_f64() * 0.5;
        // The tolerance is ε^(−1/8) rounding units, limited to 10 to 100, as in LAPACK. It is computed by
        // square roots, because they are bit-identical on all processors.
        let units = (1.0 / half_epsilon.sqrt().sqrt().sqrt()).clamp(10.0, 100.0);
        let tolerance = T::from_f64(units * half_epsilon);
        // Elements below this bound, which LAPACK uses too, are negligible relative to a largest element of about 1.
        let threshold = T::MIN_POSITIVE * T::from_f64((n * n * 6) as f64);
        let (mut high, mut last) = (n.max(1) - 1, None);
        while high > 0 {
            let low = self.split(high, threshold);
            if low == high {
                high -= 1;
                continue;
            }
            // The first sweep over a block starts at the end with the larger diagonal element. Later sweeps over it
            // keep the direction.
            let is_upward = match last {
                Some(Sweep { low: l, high: h, is_upward }) if low >= l && high <= h => is_upward,
                _ => self.d[low].abs() < self.d[high].abs(),
            };
            let sweep = Sweep { low, high, is_upward };
            last = Some(sweep);
            let Some(least) = self.least_bound(sweep, tolerance) else { continue };
            sweeps = sweeps.checked_sub(1).ok_or(NotConverged)?;
            let shift = self.shift(sweep, tolerance, least);
            if shift == T::zero() { self.sweep_without_shift(sweep) } else { self.sweep_with_shift(sweep, shift) }
        }
        Ok(())
    }

    /// Sets negligible elements to zero, and returns the first row of the block that ends at row `high`.
    fn split(&mut self, high: usize, threshold: T) -> usize {
        for k in (0..high).rev() {
            if self.d[k + 1].abs() <= threshold {
                self.d[k + 1] = T::zero();
            }
            if self.e[k].abs() <= threshold {
                self.e[k] = T::zero();
                return k + 1;
            }
        }
        if self.d[0].abs() <= threshold {
            self.d[0] = T::zero();
        }
        0
    }

    /// Returns a lower bound for the smallest singular value of a block (Demmel & Kahan 1990, section 2), or `None` if
    /// an element above the diagonal was negligible relative to such a bound and has been set to zero.
    fn least_bound(&mut self, sweep: Sweep, tolerance: T) -> Option<T> {
        let last = sweep.high - sweep.low;
        if self.e[sweep.e(last - 1)].abs() <= tolerance * self.d[sweep.d(last)].abs() {
            self.e[sweep.e(last - 1)] = T::zero();
            return None;
        }
        let mut bound = self.d[sweep.d(0)].abs();
        let mut least = bound;
        for k in 0..last {
            let off_diagonal = self.e[sweep.e(k)].abs();
            if off_diagonal <= tolerance * bound {
                self.e[sweep.e(k)] = T::zero();
                return None;
            }
            bound = self.d[sweep.d(k + 1)].abs() * (bound / (bound + off_diagonal));
            least = if bound < least { bound } else { least };
        }
        Some(least)
    }

    /// Returns the smaller singular value of the last 2×2 block as the shift, or zero if a shift would change small
    /// singular values by more than the tolerance.
    fn shift(&self, sweep: Sweep, tolerance: T, least: T) -> T {
        let last = sweep.high - sweep.low;
        let (d, e) = (largest(&self.d[sweep.low..=sweep.high]), largest(&self.e[sweep.low..sweep.high]));
        let most = if e > d { e } else { d };
        let (hundredth, half_epsilon) = (tolerance * T::from_f64(0.01), T::EPSILON * T::from_f64(0.5));
        let limit = if hundredth > half_epsilon { hundredth } else { half_epsilon };
        if T::from_f64(self.d.len() as f64) * tolerance * (least / most) <= limit {
            return T::zero();
        }
        let shift = least_of_2x2(self.d[sweep.d(last - 1)], self.e[sweep.e(last - 1)], self.d[sweep.d(last)]);
        let first = self.d[sweep.d(0)].abs();
        if first > T::zero() && (shift / first) * (shift / first) < half_epsilon { T::zero() } else { shift }
    }

    /// Rotates the vectors of the k-th and the next element of the diagonal: the columns of B by (c, s) = `right`, and
    /// its rows by `left`. In an upward sweep, rows and columns are exchanged.
    #[inline(always)]
    fn rotate(&mut self, sweep: Sweep, k: usize, right: (T, T), left: (T, T)) {
        if sweep.is_upward {
            self.left.rotate(sweep.e(k), right.0, -right.1);
            self.right.rotate(sweep.e(k), left.0, -left.1);
        } else {
            self.right.rotate(sweep.e(k), right.0, right.1);
            self.left.rotate(sweep.e(k), left.0, left.1);
        }
    }

    /// Performs an implicit QR sweep (Golub & Kahan 1965).
    fn sweep_with_shift(&mut self, sweep: Sweep, shift: T) {
        let last = sweep.high - sweep.low;
        let first = self.d[sweep.d(0)];
        let mut x = (first.abs() - shift) * (T::one().copysign(first) + shift / first);
        let mut y = self.e[sweep.e(0)];
        for k in 0..last {
            let (at, next, off) = (sweep.d(k), sweep.d(k + 1), sweep.e(k));
            let (c, s, r) = plane_rotation(x, y);
            if k > 0 {
                self.e[sweep.e(k - 1)] = r;
            }
            let right = (c, s);
            x = c * self.d[at] + s * self.e[off];
            self.e[off] = c * self.e[off] - s * self.d[at];
            y = s * self.d[next];
            self.d[next] = c * self.d[next];
            let (c, s, r) = plane_rotation(x, y);
            self.d[at] = r;
            x = c * self.e[off] + s * self.d[next];
            self.d[next] = c * self.d[next] - s * self.e[off];
            if k + 1 < last {
                let off = sweep.e(k + 1);
                y = s * self.e[off];
                self.e[off] = c * self.e[off];
            }
            self.rotate(sweep, k, right, (c, s));
        }
        self.e[sweep.e(last - 1)] = x;
    }

    /// Performs a QR sweep without shift, which changes every singular value only by a few rounding units (Demmel &
    /// Kahan 1990, section 3).
    fn sweep_without_shift(&mut self, sweep: Sweep) {
        let last = sweep.high - sweep.low;
        let (mut c, mut left) = (T::one(), (T::one(), T::zero()));
        for k in 0..last {
            let (right_c, right_s, r) = plane_rotation(self.d[sweep.d(k)] * c, self.e[sweep.e(k)]);
            if k > 0 {
                self.e[sweep.e(k - 1)] = left.1 * r;
            }
            let (left_c, left_s, d) = plane_rotation(left.0 * r, self.d[sweep.d(k + 1)] * right_s);
            self.d[sweep.d(k)] = d;
            (c, left) = (right_c, (left_c, left_s));
            self.rotate(sweep, k, (right_c, right_s), left);
        }
        let rest = self.d[sweep.d(last)] * c;
        self.d[sweep.d(last)] = rest * left.0;
        self.e[sweep.e(last - 1)] = rest * left.1;
    }
}

/// Returns the smaller singular value of [f, g; 0, h], as LAPACK's `las2` does.
fn least_of_2x2<T: MatrixElement>(f: T, g: T, h: T) -> T {
    let (f, g, h) = (f.abs(), g.abs(), h.abs());
    let (small, large) = if f < h { (f, h) } else { (h, f) };
    if small == T::zero() {
        return T::zero();
    }
    let (ratio, gap) = (T::one() + small / large, (large - small) / large);
    if g < large {
        let square = (g / large) * (g / large);
        let c = T::from_f64(2.0) / ((ratio * ratio + square).sqrt() + (gap * gap + square).sqrt());
        return small * c;
    }
    let quotient = large / g;
    let (a, b) = (ratio * quotient, gap * quotient);
    let c = T::one() / ((T::one() + a * a).sqrt() + (T::one() + b * b).sqrt());
    let least = (small * c) * quotient;
    least + least
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SIZES, close, extreme_scales, for_both_dtypes, largest_tall, numbers, product, transpose};

    /// Returns U, S and Vᵀ, with complete bases if `is_full`.
    fn factors<T: MatrixElement>(a: &Matrix<T>, is_full: bool) -> (Matrix<T>, Vec<T>, Matrix<T>) {
        let (m, n) = (a.rows(), a.columns());
        let k = m.min(n);
        let (p, q) = if is_full { (m, n) } else { (k, k) };
        let (mut u, mut s, mut vt) = (Matrix::zeros(m, p), vec![T::zero(); k], Matrix::zeros(q, n));
        svd(a.view(), &mut s, Some(SingularBases { u: u.view_mut(), vt: vt.view_mut() })).unwrap();
        (u, s, vt)
    }

    /// Checks that U and V are orthonormal, and U·diag(S)·Vᵀ = A, in units of `factor`·ε·n.
    fn check_factors<T: MatrixElement>(a: &Matrix<T>, factor: f64) {
        let (m, n) = (a.rows(), a.columns());
        let k = m.min(n);
        for is_full in [false, true] {
            let (u, s, vt) = factors(a, is_full);
            assert!(s.is_sorted_by(|a, b| a >= b) && s.iter().all(|&s| s >= T::zero()), "{s:?}");
            for q in [u.clone(), transpose(&vt)] {
                close(&product(&transpose(&q), &q), &Matrix::identity(q.columns(), q.columns()), factor);
            }
            let us = Matrix::from_fn(m, k, |i, j| u.row(i)[j] * s[j]);
            let first = Matrix::copy_of(vt.view().block(0..k, 0..n));
            close(&product(&us, &first), a, factor * (n as f64).sqrt().max(1.0));
            let mut alone = vec![T::zero(); k];
            svd(a.view(), &mut alone, None).unwrap();
            assert!(alone == s, "the singular values must be the same without vectors");
        }
    }

    fn check<T: MatrixElement>() {
        for n in SIZES {
            check_factors(&numbers::<T>(n, n, 7), 4.0);
        }
        for n in [1, 3, 17, 40] {
            check_factors(&Matrix::<T>::zeros(n, n), 4.0);
            check_factors(&product(&numbers::<T>(n, 2, 3), &numbers(2, n, 4)), 4.0);
            check_factors(&Matrix::<T>::identity(n, n), 4.0);
            // A bidiagonal matrix with zeros on the diagonal.
            let bidiagonal = |i: usize, j: usize| match j.wrapping_sub(i) {
                0 if i % 3 != 1 => T::one(),
                1 => T::one(),
                _ => T::zero(),
            };
            check_factors(&Matrix::from_fn(n, n, bidiagonal), 4.0);
            for size in extreme_scales() {
                let mut a = numbers::<T>(n, n, 8);
                a.update(|x| x * size);
                check_factors(&a, 4.0);
            }
        }
        for a in largest_tall::<T>() {
            check_factors(&a, 4.0);
        }
        for (m, n) in [(0, 3), (3, 0), (1, 4), (3, 7), (7, 3), (150, 140), (90, 20), (20, 90), (33, 32)] {
            check_factors(&numbers::<T>(m, n, 7), 4.0);
        }
    }

    #[test]
    fn the_factors_are_orthonormal_and_their_product_is_a() {
        for_both_dtypes!(check);
    }

    /// Checks matrices of low rank, whose small singular values are rounding errors of similar sizes. The block of
    /// these values converges only with a shift.
    fn check_low_rank<T: MatrixElement>() {
        for seed in 0..40 {
            for rank in 1..4 {
                check_factors(&product(&numbers::<T>(24, rank, seed), &numbers(rank, 19, seed + 100)), 4.0);
            }
        }
    }

    #[test]
    fn matrices_of_low_rank_converge() {
        for_both_dtypes!(check_low_rank);
    }

    /// Checks the relative accuracy of all singular values of bidiagonal matrices that are graded in either direction.
    fn check_graded<T: MatrixElement>() {
        let n = 12;
        for is_reversed in [false, true] {
            let grade = |i: usize| 10f64.powi(-2 * if is_reversed { (n - 1 - i) as i32 } else { i as i32 });
            let a = Matrix::from_fn(n, n, |i, j| match j.wrapping_sub(i) {
                0 => T::from_f64(grade(i)),
                1 => T::from_f64(0.5 * grade(i)),
                _ => T::zero(),
            });
            let mut values = vec![T::zero(); n];
            svd(a.view(), &mut values, None).unwrap();
            // The product of the singular values is |det A|, the product of the diagonal.
            let logarithm: f64 = values.iter().map(|s| s.to_f64().ln()).sum();
            let expected: f64 = (0..n).map(|i| a.row(i)[i].to_f64().ln()).sum();
            assert!((logarithm - expected).abs() <= 100.0 * T::EPSILON.to_f64(), "{logarithm} instead of {expected}");
        }
    }

    #[test]
    fn small_singular_values_of_graded_bidiagonal_matrices_are_accurate() {
        for_both_dtypes!(check_graded);
    }

    #[test]
    fn only_the_singular_values_that_overflow_are_infinite() {
        let mut values = [0.0; 2];
        svd(Matrix::from_fn(100, 2, |_, _| f32::MAX).view(), &mut values, None).unwrap();
        assert!(values[0] == f32::INFINITY && values[1].is_finite(), "{values:?}");
    }

    #[test]
    fn the_number_of_sweeps_is_limited() {
        let diagonalize_within = |sweeps| {
            let (mut d, mut e) = ([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 0.0]);
            let (mut left, mut right) = (RotatedVectors::new(None, 4), RotatedVectors::new(None, 4));
            BidiagonalQr { d: &mut d, e: &mut e, left: &mut left, right: &mut right }.diagonalize(sweeps)
        };
        assert_eq!(diagonalize_within(2), Err(NotConverged));
        assert_eq!(diagonalize_within(16), Ok(()));
    }

    #[test]
    fn nan_propagates_to_all_results() {
        let (u, s, vt) = factors(&Matrix::from_fn(2, 3, |_, _| f64::INFINITY), false);
        assert!(u.data().iter().chain(&s).chain(vt.data()).all(|x| x.is_nan()));
    }
}
