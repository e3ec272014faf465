//! Householder reflections I − τ·v·vᵀ, and the application of blocks of them by matrix products.

use crate::MatrixElement;
use crate::matrix::Matrix;
use crate::scalar::{dot, largest};
use pellucid_gemm::{MatMut, MatRef, TILE, Tile};
use pellucid_runtime::scratch;

/// Computes the reflection that maps x to (β, 0, ..). Overwrites x with β and the elements of v after the first,
/// which is 1, and returns τ.
///
/// The sign of β is opposite to the sign of the first element. If all other elements are zero, x is unchanged and τ is
/// 0.
#[inline(always)]
pub(crate) fn reflector<T: MatrixElement>(x: &mut [T]) -> T {
    let square = dot(x, x);
    let least = T::MIN_POSITIVE / (T::EPSILON * T::EPSILON);
    if square > least && square.is_finite() {
        return reflector_of_norm(x, square.sqrt());
    }
    // The elements are scaled, so that the squares neither overflow nor lose digits to underflow.
    let size = largest(x);
    if size == T::zero() {
        return T::zero();
    }
    x.iter_mut().for_each(|x| *x = *x / size);
    let tau = reflector_of_norm(x, dot(x, x).sqrt());
    x[0] = x[0] * size;
    tau
}

/// Computes the reflection of a vector with the given norm.
#[inline(always)]
fn reflector_of_norm<T: MatrixElement>(x: &mut [T], norm: T) -> T {
    let Some((head, tail)) = x.split_first_mut() else { return T::zero() };
    if tail.iter().all(|&x| x == T::zero()) {
        return T::zero();
    }
    let beta = -norm.copysign(*head);
    let (tau, divisor) = ((beta - *head) / beta, *head - beta);
    tail.iter_mut().for_each(|x| *x = *x / divisor);
    *head = beta;
    tau
}

/// The product of at most 16 reflections: I − V·T·Vᵀ with upper triangular T (Schreiber & Van Loan 1989).
pub(crate) struct BlockReflector<'a, T> {
    /// The vectors v as rows.
    vectors: MatRef<'a, T>,
    t: Tile<T>,
}

impl<'a, T: MatrixElement> BlockReflector<'a, T> {
    pub(crate) fn new(vectors: MatRef<'a, T>, taus: &[T]) -> BlockReflector<'a, T> {
        let count = taus.len();
        let mut products = [T::zero(); TILE * TILE];
        let products = &mut products[..count * count];
        MatMut::from_slice(products, count, count).assign_product(vectors, vectors.transpose());
        let mut t = [[T::zero(); TILE]; TILE];
        for j in 0..count {
            t[j][j] = taus[j];
            for i in 0..j {
                let sum = (i..j).fold(T::zero(), |sum, k| sum + t[i][k] * products[k * count + j]);
                t[i][j] = -taus[j] * sum;
            }
        }
        BlockReflector { vectors, t }
    }

    /// Replaces C by Q·C, or by Qᵀ·C if `is_transposed`.
    pub(crate) fn apply(&self, mut c: MatMut<'_, T>, is_transposed: bool) {
        let (count, n) = (self.vectors.rows(), c.columns());
        let mut t = [T::zero(); TILE * TILE];
        for (k, element) in t[..count * count].iter_mut().enumerate() {
            let (i, j) = (k / count, k % count);
            *element = if is_transposed { self.t[j][i] } else { self.t[i][j] };
        }
        scratch::with_filled(2 * count * n, T::zero(), |buffer| {
            let (first, second) = buffer.split_at_mut(count * n);
            let mut inner = MatMut::from_slice(first, count, n);
            inner.assign_product(self.vectors, c.as_ref());
            let mut outer = MatMut::from_slice(second, count, n);
            outer.assign_product(MatRef::from_slice(&t[..count * count], count, count), inner.as_ref());
            c.subtract_product(self.vectors.transpose(), outer.as_ref());
        });
    }
}

/// The reflections of a factorization. Element `offset + k` of vector k is 1, and all elements before it are zero.
pub(crate) struct HouseholderReflections<T> {
    /// The vectors v as rows.
    pub(crate) vectors: Matrix<T>,
    pub(crate) taus: Vec<T>,
    pub(crate) offset: usize,
}

impl<T: MatrixElement> HouseholderReflections<T> {
    /// Replaces C by Q·C, where Q is the product of all reflections.
    pub(crate) fn apply(&self, mut c: MatMut<'_, T>) {
        self.apply_blocks(&mut c, |_| 0);
    }

    /// Returns the first `columns` columns of the product of all reflections.
    pub(crate) fn basis(&self, columns: usize) -> Matrix<T> {
        let mut basis = Matrix::identity(self.vectors.columns(), columns);
        // Before a block is applied, the columns whose index is less than the first row of the block equal those of the
        // identity matrix. The block does not change them.
        self.apply_blocks(&mut basis.view_mut(), |first| first.min(columns));
        basis
    }

    /// Applies blocks of reflections from the last to the first, each to the columns from `first_column(row)`, where
    /// `row` is the first row that the block changes.
    fn apply_blocks(&self, c: &mut MatMut<'_, T>, first_column: impl Fn(usize) -> usize) {
        let (m, n) = (self.vectors.columns(), c.columns());
        for start in (0..self.taus.len()).step_by(TILE).rev() {
            let end = self.taus.len().min(start + TILE);
            let row = start + self.offset;
            let block = BlockReflector::new(self.vectors.view().block(start..end, row..m), &self.taus[start..end]);
            block.apply(c.as_mut().block(row..m, first_column(row)..n), false);
        }
    }
}
