//! [`Matrix`], the column-major matrix of all functions of this crate.

use faer::{MatMut, MatRef};
use std::ops::{Index, IndexMut};

/// A contiguous column-major matrix of `f64`.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    data: Vec<f64>,
}

impl Matrix {
    /// Creates the matrix whose element (i, j) is `f(i, j)`.
    pub fn from_fn(rows: usize, columns: usize, mut f: impl FnMut(usize, usize) -> f64) -> Matrix {
        let data = (0..columns).flat_map(|j| (0..rows).map(move |i| (i, j))).map(|(i, j)| f(i, j)).collect();
        Matrix { rows, columns, data }
    }

    /// Creates a matrix whose elements are all `value`.
    pub fn full(rows: usize, columns: usize, value: f64) -> Matrix {
        Matrix { rows, columns, data: vec![value; rows * columns] }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the elements in column-major order.
    pub fn data(&self) -> &[f64] {
        &self.data
    }

    /// Returns column j.
    pub fn column(&self, j: usize) -> &[f64] {
        &self.data[j * self.rows..][..self.rows]
    }

    /// Returns mutable slices of columns i and j, where i < j.
    pub(crate) fn columns_mut(&mut self, i: usize, j: usize) -> (&mut [f64], &mut [f64]) {
        let (before, rest) = self.data.split_at_mut(j * self.rows);
        (&mut before[i * self.rows..][..self.rows], &mut rest[..self.rows])
    }

    /// Returns a mutable slice of column j.
    pub(crate) fn column_mut(&mut self, j: usize) -> &mut [f64] {
        &mut self.data[j * self.rows..][..self.rows]
    }

    /// Swaps rows i and j.
    pub(crate) fn swap_rows(&mut self, i: usize, j: usize) {
        for column in self.data.chunks_exact_mut(self.rows.max(1)) {
            column.swap(i, j);
        }
    }

    /// Returns true if all elements are finite.
    pub(crate) fn is_finite(&self) -> bool {
        self.data.iter().all(|x| x.is_finite())
    }

    /// Returns true if all elements on and below the diagonal are finite.
    pub(crate) fn is_finite_below(&self) -> bool {
        (0..self.columns).all(|j| self.column(j)[j.min(self.rows)..].iter().all(|x| x.is_finite()))
    }

    /// Sets all elements to `value`.
    pub(crate) fn fill(&mut self, value: f64) {
        self.data.fill(value);
    }

    /// Returns the matrix whose elements are f(x) for the elements x of this matrix.
    pub(crate) fn map(&self, f: impl Fn(f64) -> f64) -> Matrix {
        Matrix { data: self.data.iter().map(|&x| f(x)).collect(), ..*self }
    }

    /// Returns the matrix whose elements are f(x, y) for the elements x of this matrix and y of `other`.
    pub(crate) fn zip(&self, other: &Matrix, f: impl Fn(f64, f64) -> f64) -> Matrix {
        Matrix { data: self.data.iter().zip(&other.data).map(|(&x, &y)| f(x, y)).collect(), ..*self }
    }

    /// Returns a view for `faer`.
    pub(crate) fn view(&self) -> MatRef<'_, f64> {
        MatRef::from_column_major_slice(&self.data, self.rows, self.columns)
    }

    /// Returns a mutable view for `faer`.
    pub(crate) fn view_mut(&mut self) -> MatMut<'_, f64> {
        MatMut::from_column_major_slice_mut(&mut self.data, self.rows, self.columns)
    }
}

impl Index<(usize, usize)> for Matrix {
    type Output = f64;

    fn index(&self, (i, j): (usize, usize)) -> &f64 {
        &self.column(j)[i]
    }
}

impl IndexMut<(usize, usize)> for Matrix {
    fn index_mut(&mut self, (i, j): (usize, usize)) -> &mut f64 {
        &mut self.column_mut(j)[i]
    }
}
