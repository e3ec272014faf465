//! [`Matrix`], an owned row-major matrix for intermediate results.

use crate::MatrixElement;
use pellucid_gemm::{MatMut, MatRef};

/// A matrix in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Matrix<T> {
    rows: usize,
    columns: usize,
    data: Vec<T>,
}

impl<T: MatrixElement> Matrix<T> {
    /// Creates the matrix whose element (i, j) is `f(i, j)`.
    pub(crate) fn from_fn(rows: usize, columns: usize, mut f: impl FnMut(usize, usize) -> T) -> Matrix<T> {
        let data = (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))).map(|(i, j)| f(i, j)).collect();
        Matrix { rows, columns, data }
    }

    /// Creates a matrix of zeros.
    pub(crate) fn zeros(rows: usize, columns: usize) -> Matrix<T> {
        Matrix { rows, columns, data: vec![T::zero(); rows * columns] }
    }

    /// Creates a matrix with ones on the diagonal.
    pub(crate) fn identity(rows: usize, columns: usize) -> Matrix<T> {
        let mut matrix = Matrix::zeros(rows, columns);
        (0..rows.min(columns)).for_each(|i| matrix.data[i * columns + i] = T::one());
        matrix
    }

    /// Creates a copy of a matrix.
    pub(crate) fn copy_of(from: MatRef<'_, T>) -> Matrix<T> {
        let mut matrix = Matrix::zeros(from.rows(), from.columns());
        matrix.view_mut().copy_from(from);
        matrix
    }

    /// Returns A·B.
    pub(crate) fn product(a: &Matrix<T>, b: &Matrix<T>) -> Matrix<T> {
        let mut matrix = Matrix::zeros(a.rows, b.columns);
        matrix.view_mut().assign_product(a.view(), b.view());
        matrix
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the elements in row-major order.
    pub(crate) fn data(&self) -> &[T] {
        &self.data
    }

    /// Returns row i.
    #[inline(always)]
    pub(crate) fn row(&self, i: usize) -> &[T] {
        &self.data[i * self.columns..][..self.columns]
    }

    /// Returns row i.
    #[inline(always)]
    pub(crate) fn row_mut(&mut self, i: usize) -> &mut [T] {
        &mut self.data[i * self.columns..][..self.columns]
    }

    /// Replaces every element x by f(x).
    pub(crate) fn update(&mut self, f: impl Fn(T) -> T) {
        self.data.iter_mut().for_each(|x| *x = f(*x));
    }

    /// Adds `by` times a matrix of equal shape.
    pub(crate) fn add_scaled(&mut self, other: &Matrix<T>, by: T) {
        self.data.iter_mut().zip(&other.data).for_each(|(x, &y)| *x = *x + by * y);
    }

    /// Returns a view.
    pub(crate) fn view(&self) -> MatRef<'_, T> {
        MatRef::from_slice(&self.data, self.rows, self.columns)
    }

    /// Returns a unique view.
    pub(crate) fn view_mut(&mut self) -> MatMut<'_, T> {
        MatMut::from_slice(&mut self.data, self.rows, self.columns)
    }
}
