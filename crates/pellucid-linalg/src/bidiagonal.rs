//! The reduction of a matrix to bidiagonal form by reflections.

use crate::MatrixElement;
use crate::matrix::Matrix;
use crate::reflectors::{HouseholderReflections, reflector};
use crate::scalar::{dot, largest, scale_to_one, subtract_scaled, update_row};
use pellucid_gemm::{MatMut, MatRef, TILE};
use pellucid_simd::{AutoVectorized, run_vectorized};

/// The factorization `scale`·A = U·B·Vᵀ with upper bidiagonal B. A has at least as many rows as columns.
pub(crate) struct Bidiagonal<T> {
    pub(crate) scale: T,
    pub(crate) diagonal: Vec<T>,
    /// The elements above the diagonal, followed by a zero.
    pub(crate) off_diagonal: Vec<T>,
    /// The reflections whose product is U.
    pub(crate) left: HouseholderReflections<T>,
    /// The reflections whose product is V.
    pub(crate) right: HouseholderReflections<T>,
}

/// Multiplies a matrix by a power of two, and reduces it to bidiagonal form.
pub(crate) fn bidiagonalize<T: MatrixElement>(a: MatRef<'_, T>) -> Bidiagonal<T> {
    let (m, n) = (a.rows(), a.columns());
    // The rows are padded with zeros to a multiple of the vector length.
    let mut work = Matrix::zeros(m, n.next_multiple_of(TILE));
    work.view_mut().block(0..m, 0..n).copy_from(a);
    // The largest element is scaled to [1, 2), so that its square neither overflows nor underflows. Scaling by a power
    // of two is exact, unless an element underflows.
    let scale = scale_to_one(largest(work.data()));
    work.update(|x| x * scale);
    let reflections = |count: usize, len: usize, offset: usize| HouseholderReflections {
        vectors: Matrix::zeros(count, len),
        taus: vec![T::zero(); count],
        offset,
    };
    let mut to = Bidiagonal {
        scale,
        diagonal: vec![T::zero(); n],
        off_diagonal: vec![T::zero(); n],
        left: reflections(n, m, 0),
        right: reflections(n.max(1) - 1, n, 1),
    };
    run_vectorized(Bidiagonalize { work, n, to: &mut to });
    to
}

/// The reduction of a matrix whose rows are padded with zeros to a multiple of 16 elements.
struct Bidiagonalize<'a, T> {
    work: Matrix<T>,
    n: usize,
    to: &'a mut Bidiagonal<T>,
}

impl<T: MatrixElement> AutoVectorized for Bidiagonalize<'_, T> {
    type Output = ();

    /// Reduces the matrix. Step k eliminates column k below the diagonal by a reflection I − τ·u·uᵀ from the left, and
    /// then row k by a reflection I − τ·v·vᵀ from the right. This changes the remaining matrix to A − u·zᵀ − y·vᵀ. The
    /// next step applies this update and computes its own product uᵀ·A in one pass over the matrix.
    #[inline(always)]
    fn run(self) {
        let Bidiagonalize { mut work, n, to } = self;
        let (m, width) = (work.rows(), work.columns());
        let (mut u, mut y) = (vec![T::zero(); m], vec![T::zero(); m]);
        let (mut v, mut z) = (vec![T::zero(); width], vec![T::zero(); width]);
        let (mut next_u, mut next_z) = (u.clone(), z.clone());
        for k in 0..n {
            next_u[..k].fill(T::zero());
            (k..m).for_each(|i| next_u[i] = work.row(i)[k] - u[i] * z[k] - y[i] * v[k]);
            let tau = reflector(&mut next_u[k..]);
            to.diagonal[k] = next_u[k];
            next_u[k] = T::one();
            to.left.taus[k] = tau;
            to.left.vectors.row_mut(k).copy_from_slice(&next_u);
            if k + 1 == n {
                break;
            }
            let start = (k + 1) / TILE * TILE;
            next_z.fill(T::zero());
            for i in k..m {
                let vectors = [&z[start..], &v[start..]];
                update_row(&mut work.row_mut(i)[start..], [u[i], y[i], next_u[i]], vectors, &mut next_z[start..]);
            }
            next_z.iter_mut().for_each(|z| *z = tau * *z);
            // Row k of A − u·zᵀ. Its elements up to the diagonal are already final.
            v[start..].copy_from_slice(&work.row(k)[start..]);
            subtract_scaled(&mut v[start..], T::one(), &next_z[start..]);
            v[..=k].fill(T::zero());
            let tau = reflector(&mut v[k + 1..n]);
            to.off_diagonal[k] = v[k + 1];
            v[k + 1] = T::one();
            to.right.taus[k] = tau;
            to.right.vectors.row_mut(k).copy_from_slice(&v[..n]);
            let along = dot(&next_z[start..], &v[start..]);
            let rest = work.view().block(k + 1..m, start..width);
            let direction = MatRef::from_slice(&v[start..], width - start, 1);
            MatMut::from_slice(&mut y[k + 1..], m - k - 1, 1).assign_product(rest, direction);
            (k + 1..m).for_each(|i| y[i] = tau * (y[i] - next_u[i] * along));
            std::mem::swap(&mut u, &mut next_u);
            std::mem::swap(&mut z, &mut next_z);
        }
    }
}
