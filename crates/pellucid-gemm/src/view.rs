//! Views of matrices, and products of them in safe code: [`MatRef`] and [`MatMut`].
//!
//! Blocked algorithms split a matrix into blocks, read and write the rows and tiles of a block, and multiply blocks.

use super::{Gemm, GemmOperands, Threads, gemm};
use pellucid_runtime::scratch;
use pellucid_simd::Float;
use std::marker::PhantomData;
use std::ops::Range;

/// The side of a [`Tile`].
pub const TILE: usize = 16;

/// A small square matrix, stored by rows, for use as a local variable.
pub type Tile<T> = [[T; TILE]; TILE];

/// Rows, columns and strides of a view. Element (i, j) is `i·strides.0 + j·strides.1` elements after element (0, 0).
#[derive(Clone, Copy, Debug)]
struct Extent {
    rows: usize,
    columns: usize,
    strides: (isize, isize),
}

impl Extent {
    /// Returns the extent of a matrix whose rows a slice contains in order.
    ///
    /// # Panics
    /// Panics unless the slice has `rows · columns` elements.
    fn of_slice<T>(elements: &[T], rows: usize, columns: usize) -> Extent {
        let is_full = rows.checked_mul(columns) == Some(elements.len());
        assert!(is_full, "the slice must have {rows} · {columns} elements, not {}", elements.len());
        Extent { rows, columns, strides: (columns as isize, 1) }
    }

    /// Returns the offset of an element.
    #[inline(always)]
    fn offset(&self, i: usize, j: usize) -> isize {
        i as isize * self.strides.0 + j as isize * self.strides.1
    }

    /// Returns the offset of an element.
    ///
    /// # Panics
    /// Panics if the element is outside the matrix.
    #[inline(always)]
    fn checked_offset(&self, i: usize, j: usize) -> isize {
        assert!(
            i < self.rows && j < self.columns,
            "element ({i}, {j}) is outside a {} × {} matrix",
            self.rows,
            self.columns
        );
        self.offset(i, j)
    }

    /// Returns the offset of row i, whose elements must be adjacent.
    #[inline(always)]
    fn row_offset(&self, i: usize) -> isize {
        assert!(i < self.rows && self.has_adjacent_columns(), "row {i} of {self:?} must exist and be contiguous");
        self.offset(i, 0)
    }

    #[inline(always)]
    fn has_adjacent_columns(&self) -> bool {
        self.strides.1 == 1 || self.columns <= 1
    }

    /// Returns the offset and the extent of a block.
    #[inline]
    fn block(&self, rows: &Range<usize>, columns: &Range<usize>) -> (isize, Extent) {
        let fits = |range: &Range<usize>, len: usize| range.start <= range.end && range.end <= len;
        assert!(
            fits(rows, self.rows) && fits(columns, self.columns),
            "block {rows:?} × {columns:?} is outside {self:?}"
        );
        let extent = Extent { rows: rows.len(), columns: columns.len(), strides: self.strides };
        // The start of an empty block may be outside the memory.
        let is_empty = rows.is_empty() || columns.is_empty();
        (if is_empty { 0 } else { self.offset(rows.start, columns.start) }, extent)
    }

    #[inline(always)]
    fn transpose(&self) -> Extent {
        Extent { rows: self.columns, columns: self.rows, strides: (self.strides.1, self.strides.0) }
    }
}

/// A shared view of a matrix.
#[derive(Clone, Copy, Debug)]
pub struct MatRef<'a, T> {
    first: *const T,
    extent: Extent,
    memory: PhantomData<&'a [T]>,
}

/// A unique view of a matrix.
#[derive(Debug)]
pub struct MatMut<'a, T> {
    first: *mut T,
    extent: Extent,
    memory: PhantomData<&'a mut [T]>,
}

impl<'a, T: Float> MatRef<'a, T> {
    /// Returns a view of the rows that a slice contains in order.
    ///
    /// # Panics
    /// Panics unless the slice has `rows · columns` elements.
    pub fn from_slice(elements: &'a [T], rows: usize, columns: usize) -> MatRef<'a, T> {
        let extent = Extent::of_slice(elements, rows, columns);
        MatRef { first: elements.as_ptr(), extent, memory: PhantomData }
    }

    /// Returns a view of strided memory. `first` is element (0, 0), and the strides are (row, column), in elements.
    ///
    /// # Safety
    /// - *Bounds*: every element is valid for reads, and `first` is aligned and not null.
    /// - *Aliasing*: no element is written while the view is in use.
    pub unsafe fn from_raw(first: *const T, (rows, columns): (usize, usize), strides: (isize, isize)) -> Self {
        MatRef { first, extent: Extent { rows, columns, strides }, memory: PhantomData }
    }

    /// Returns the number of rows.
    #[inline(always)]
    pub fn rows(self) -> usize {
        self.extent.rows
    }

    /// Returns the number of columns.
    #[inline(always)]
    pub fn columns(self) -> usize {
        self.extent.columns
    }

    /// Returns element (i, j).
    #[inline(always)]
    pub fn at(self, i: usize, j: usize) -> T {
        // SAFETY: the offset is inside the matrix, whose elements are valid for reads by the invariant of the view.
        unsafe { *self.first.wrapping_offset(self.extent.checked_offset(i, j)) }
    }

    /// Returns row i, whose elements must be adjacent.
    #[inline(always)]
    pub fn row(self, i: usize) -> &'a [T] {
        let start = self.first.wrapping_offset(self.extent.row_offset(i));
        match self.columns() {
            0 => &[],
            // SAFETY: the elements of the row are adjacent and valid for reads during `'a`, in which no code writes
            // them, by the invariant of the view.
            columns => unsafe { std::slice::from_raw_parts(start, columns) },
        }
    }

    /// Calls `f(j, x)` for every element x of row i, in column j.
    #[inline(always)]
    pub fn for_row(self, i: usize, mut f: impl FnMut(usize, T)) {
        match self.extent.has_adjacent_columns() {
            true => self.row(i).iter().enumerate().for_each(|(j, &x)| f(j, x)),
            false => (0..self.columns()).for_each(|j| f(j, self.at(i, j))),
        }
    }

    /// Returns the block of these rows and columns.
    #[inline]
    pub fn block(self, rows: Range<usize>, columns: Range<usize>) -> MatRef<'a, T> {
        let (offset, extent) = self.extent.block(&rows, &columns);
        MatRef { first: self.first.wrapping_offset(offset), extent, ..self }
    }

    /// Returns the transposed matrix.
    #[inline(always)]
    pub fn transpose(self) -> MatRef<'a, T> {
        MatRef { extent: self.extent.transpose(), ..self }
    }

    /// Returns the matrix with rows and columns in reverse order. An upper triangle becomes a lower one.
    pub fn reverse(self) -> MatRef<'a, T> {
        if self.rows() == 0 || self.columns() == 0 {
            return self;
        }
        let first = self.first.wrapping_offset(self.extent.offset(self.rows() - 1, self.columns() - 1));
        let strides = (-self.extent.strides.0, -self.extent.strides.1);
        MatRef { first, extent: Extent { strides, ..self.extent }, ..self }
    }

    /// Returns the tile whose first element is (i, j). Elements outside the matrix are 0.
    #[inline(always)]
    pub fn tile(self, i: usize, j: usize) -> Tile<T> {
        let mut tile = [[T::from_f64(0.0); TILE]; TILE];
        let (rows, columns) = (TILE.min(self.rows() - i), TILE.min(self.columns() - j));
        if self.extent.has_adjacent_columns() {
            for r in 0..rows {
                tile[r][..columns].copy_from_slice(&self.row(i + r)[j..j + columns]);
            }
        } else {
            for c in 0..columns {
                for r in 0..rows {
                    tile[r][c] = self.at(i + r, j + c);
                }
            }
        }
        tile
    }

    /// Returns true if all elements are finite.
    pub fn is_finite(self) -> bool {
        self.all(T::is_finite)
    }

    /// Returns true if the condition holds for all elements.
    pub fn all(self, condition: impl Fn(T) -> bool) -> bool {
        (0..self.rows()).all(|i| match self.extent.has_adjacent_columns() {
            // The loop has no early exit, so that the compiler vectorizes it.
            true => self.row(i).iter().fold(true, |all, &x| all & condition(x)),
            false => (0..self.columns()).all(|j| condition(self.at(i, j))),
        })
    }
}

impl<'a, T: Float> MatMut<'a, T> {
    /// Returns a view of the rows that a slice contains in order.
    ///
    /// # Panics
    /// Panics unless the slice has `rows · columns` elements.
    pub fn from_slice(elements: &'a mut [T], rows: usize, columns: usize) -> MatMut<'a, T> {
        let extent = Extent::of_slice(elements, rows, columns);
        MatMut { first: elements.as_mut_ptr(), extent, memory: PhantomData }
    }

    /// Returns a view of strided memory. `first` is element (0, 0), and the strides are (row, column), in elements.
    ///
    /// # Safety
    /// - *Bounds*: every element is valid for reads and writes, and `first` is aligned and not null.
    /// - *Aliasing*: the elements are distinct, and no other code accesses them while the view is in use.
    pub unsafe fn from_raw(first: *mut T, (rows, columns): (usize, usize), strides: (isize, isize)) -> Self {
        MatMut { first, extent: Extent { rows, columns, strides }, memory: PhantomData }
    }

    /// Returns the number of rows.
    #[inline(always)]
    pub fn rows(&self) -> usize {
        self.extent.rows
    }

    /// Returns the number of columns.
    #[inline(always)]
    pub fn columns(&self) -> usize {
        self.extent.columns
    }

    /// Returns a shared view.
    #[inline(always)]
    pub fn as_ref(&self) -> MatRef<'_, T> {
        MatRef { first: self.first, extent: self.extent, memory: PhantomData }
    }

    /// Returns a unique view with a shorter lifetime.
    #[inline(always)]
    pub fn as_mut(&mut self) -> MatMut<'_, T> {
        MatMut { memory: PhantomData, ..*self }
    }

    /// Returns element (i, j).
    #[inline(always)]
    pub fn at(&self, i: usize, j: usize) -> T {
        self.as_ref().at(i, j)
    }

    /// Sets element (i, j).
    #[inline(always)]
    pub fn set(&mut self, i: usize, j: usize, value: T) {
        // SAFETY: the offset is inside the matrix, whose elements are valid for writes by the invariant of the view.
        unsafe { *self.first.wrapping_offset(self.extent.checked_offset(i, j)) = value }
    }

    /// Returns row i, whose elements must be adjacent.
    #[inline(always)]
    pub fn row_mut(&mut self, i: usize) -> &mut [T] {
        let start = self.first.wrapping_offset(self.extent.row_offset(i));
        match self.columns() {
            0 => &mut [],
            // SAFETY: the elements of the row are adjacent and valid for reads and writes, and only this view accesses
            // them, by its invariant. It is borrowed as long as the slice.
            columns => unsafe { std::slice::from_raw_parts_mut(start, columns) },
        }
    }

    /// Returns the rows before row `at`, and the rows from row `at` on.
    #[inline]
    pub fn split_rows(self, at: usize) -> (MatMut<'a, T>, MatMut<'a, T>) {
        let part = |rows: Range<usize>| {
            let (offset, extent) = self.extent.block(&rows, &(0..self.extent.columns));
            MatMut { first: self.first.wrapping_offset(offset), extent, memory: PhantomData }
        };
        (part(0..at), part(at..self.extent.rows))
    }

    /// Returns the columns before column `at`, and the columns from column `at` on.
    #[inline]
    pub fn split_columns(self, at: usize) -> (MatMut<'a, T>, MatMut<'a, T>) {
        let (left, right) = self.transpose().split_rows(at);
        (left.transpose(), right.transpose())
    }

    /// Returns the block of these rows and columns.
    #[inline]
    pub fn block(self, rows: Range<usize>, columns: Range<usize>) -> MatMut<'a, T> {
        let (offset, extent) = self.extent.block(&rows, &columns);
        MatMut { first: self.first.wrapping_offset(offset), extent, ..self }
    }

    /// Returns the transposed matrix.
    #[inline(always)]
    pub fn transpose(self) -> MatMut<'a, T> {
        MatMut { extent: self.extent.transpose(), ..self }
    }

    /// Returns the matrix with its rows in reverse order.
    pub fn reverse_rows(self) -> MatMut<'a, T> {
        let last = self.extent.offset(self.rows().max(1) - 1, 0);
        let strides = (-self.extent.strides.0, self.extent.strides.1);
        MatMut { first: self.first.wrapping_offset(last), extent: Extent { strides, ..self.extent }, ..self }
    }

    /// Swaps two rows.
    pub fn swap_rows(&mut self, i: usize, j: usize) {
        if i == j {
            return;
        }
        let (low, high) = (i.min(j), i.max(j));
        let (mut above, mut below) = self.as_mut().split_rows(high);
        if above.extent.has_adjacent_columns() {
            return above.row_mut(low).swap_with_slice(below.row_mut(0));
        }
        for c in 0..above.columns() {
            let (x, y) = (above.at(low, c), below.at(0, c));
            above.set(low, c, y);
            below.set(0, c, x);
        }
    }

    /// Sets all elements to `value`.
    pub fn fill(&mut self, value: T) {
        self.fill_with(|_, _| value);
    }

    /// Sets every element (i, j) to `f(i, j)`.
    #[inline(always)]
    pub fn fill_with(&mut self, f: impl Fn(usize, usize) -> T) {
        for i in 0..self.rows() {
            match self.extent.has_adjacent_columns() {
                true => self.row_mut(i).iter_mut().enumerate().for_each(|(j, x)| *x = f(i, j)),
                false => (0..self.columns()).for_each(|j| self.set(i, j, f(i, j))),
            }
        }
    }

    /// Replaces every element x by f(x).
    #[inline(always)]
    pub fn update(&mut self, f: impl Fn(T) -> T) {
        for i in 0..self.rows() {
            match self.extent.has_adjacent_columns() {
                true => self.row_mut(i).iter_mut().for_each(|x| *x = f(*x)),
                false => (0..self.columns()).for_each(|j| self.set(i, j, f(self.at(i, j)))),
            }
        }
    }

    /// Sets the elements of the tile whose first element is (i, j), if they are inside the matrix.
    #[inline(always)]
    pub fn set_tile(&mut self, i: usize, j: usize, tile: &Tile<T>) {
        let (rows, columns) = (TILE.min(self.rows() - i), TILE.min(self.columns() - j));
        if self.extent.has_adjacent_columns() {
            for r in 0..rows {
                self.row_mut(i + r)[j..j + columns].copy_from_slice(&tile[r][..columns]);
            }
        } else {
            for c in 0..columns {
                for r in 0..rows {
                    self.set(i + r, j + c, tile[r][c]);
                }
            }
        }
    }

    /// Copies all elements of a matrix of equal shape.
    pub fn copy_from(&mut self, from: MatRef<'_, T>) {
        self.map_from(from, |x| x);
    }

    /// Sets every element to f(x) for the element x of a matrix of equal shape.
    fn map_from(&mut self, from: MatRef<'_, T>, f: impl Fn(T) -> T) {
        assert_eq!((self.rows(), self.columns()), (from.rows(), from.columns()), "the shapes must be equal");
        if self.extent.has_adjacent_columns() && from.extent.has_adjacent_columns() {
            for i in 0..from.rows() {
                self.row_mut(i).iter_mut().zip(from.row(i)).for_each(|(y, &x)| *y = f(x));
            }
            return;
        }
        for i in (0..from.rows()).step_by(TILE) {
            for j in (0..from.columns()).step_by(TILE) {
                let mut tile = from.tile(i, j);
                tile.iter_mut().flatten().for_each(|x| *x = f(*x));
                self.set_tile(i, j, &tile);
            }
        }
    }

    /// Replaces this matrix by A·B.
    pub fn assign_product(&mut self, a: MatRef<'_, T>, b: MatRef<'_, T>) {
        self.multiply_views(a, b, false);
    }

    /// Subtracts A·B from this matrix.
    pub fn subtract_product(&mut self, a: MatRef<'_, T>, b: MatRef<'_, T>) {
        // C − A·B = C + (−A)·B. The smaller operand is negated.
        let negated = if a.rows() <= b.columns() { a } else { b };
        let count = negated.rows() * negated.columns();
        scratch::with_filled(count, T::from_f64(0.0), |elements| {
            let mut copy = MatMut::from_slice(elements, negated.rows(), negated.columns());
            copy.map_from(negated, |x| -x);
            match a.rows() <= b.columns() {
                true => self.multiply_views(copy.as_ref(), b, true),
                false => self.multiply_views(a, copy.as_ref(), true),
            }
        });
    }

    /// Computes A·B, or adds it to this matrix.
    fn multiply_views(&mut self, a: MatRef<'_, T>, b: MatRef<'_, T>, accumulate: bool) {
        let (m, n, k) = (self.rows(), self.columns(), a.columns());
        assert!(
            a.rows() == m && b.columns() == n && b.rows() == k,
            "the shapes do not fit the product [{m} × {n}] = [{} × {k}]·[{} × {}]",
            a.rows(),
            b.rows(),
            b.columns()
        );
        if m == 0 || n == 0 || (k == 0 && accumulate) {
            return;
        }
        let (a_strides, b_strides, c_strides) = (a.extent.strides, b.extent.strides, self.extent.strides);
        let shape = Gemm { m, n, k, a_strides, b_strides, c_strides, accumulate };
        let operands = GemmOperands { a: a.first, b: b.first, packed_b: None, c: Some(self.first), epilogue: None };
        // SAFETY: the gemm contract. *Bounds* and *Aliasing*: the elements of the views are valid and those of C
        // distinct, by the invariants of the views; C is borrowed uniquely, so it overlaps neither A nor B. There is no
        // *Epilogue* and there are no *Panels*.
        unsafe { gemm(&shape, &operands, Threads::Pool) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(rows: usize, columns: usize) -> Vec<f32> {
        (0..rows * columns).map(|i| (i * 7 % 23) as f32 - 11.0).collect()
    }

    #[test]
    #[should_panic(expected = "the slice must have 9223372036854775808 · 2 elements, not 0")]
    #[cfg(target_pointer_width = "64")]
    fn a_slice_is_no_matrix_whose_size_overflows() {
        MatRef::<f32>::from_slice(&[], 1 << 63, 2);
    }

    #[test]
    #[should_panic(expected = "the slice must have 2 · 3 elements, not 5")]
    fn a_unique_view_has_all_elements_of_its_slice() {
        MatMut::from_slice(&mut [0.0f32; 5], 2, 3);
    }

    #[test]
    fn blocks_of_one_matrix_are_multiplied() {
        let mut elements = numbers(20, 30);
        let before = elements.clone();
        let old = |i: usize, j: usize| before[i * 30 + j];
        let matrix = MatMut::from_slice(&mut elements, 20, 30);
        let (top, bottom) = matrix.split_rows(3);
        let (left, mut c) = bottom.split_columns(5);
        c.subtract_product(left.as_ref().block(0..17, 2..5), top.as_ref().block(0..3, 5..30));
        let mut transposed = c.block(0..4, 0..6).transpose();
        transposed.assign_product(top.as_ref().block(0..2, 0..6).transpose(), top.as_ref().block(0..2, 6..10));
        for (i, j) in (0..20).flat_map(|i| (0..30).map(move |j| (i, j))) {
            let expected = match (i, j) {
                (3..7, 5..11) => (0..2).map(|k| old(k, j - 5) * old(k, i - 3 + 6)).sum(),
                (3.., 5..) => old(i, j) - (0..3).map(|k| old(i, 2 + k) * old(k, j)).sum::<f32>(),
                _ => old(i, j),
            };
            assert_eq!(elements[i * 30 + j], expected, "({i}, {j})");
        }
    }

    #[test]
    fn views_are_transposed_reversed_and_copied() {
        let elements = numbers(19, 21);
        let a = MatRef::from_slice(&elements, 19, 21);
        assert_eq!(a.transpose().at(20, 3), a.at(3, 20));
        assert_eq!(a.reverse().at(0, 1), a.at(18, 19));
        let mut copied = vec![0.0; 19 * 21];
        let mut copy = MatMut::from_slice(&mut copied, 21, 19);
        copy.copy_from(a.transpose());
        assert!((0..21).all(|i| (0..19).all(|j| copy.at(i, j) == a.at(j, i))));
        copy.swap_rows(2, 20);
        assert_eq!(
            copy.as_mut().reverse_rows().row_mut(0),
            &numbers(19, 21).into_iter().skip(2).step_by(21).collect::<Vec<_>>()
        );
        let mut columns = copy.transpose();
        columns.swap_rows(0, 1);
        assert_eq!((columns.at(0, 0), columns.at(1, 0)), (a.at(1, 0), a.at(0, 0)));
        let tile = a.tile(16, 16);
        assert_eq!((tile[2][4], tile[2][5], tile[3][0]), (a.at(18, 20), 0.0, 0.0));
    }

    #[test]
    fn elements_are_visited_and_replaced() {
        let elements = numbers(5, 3);
        let a = MatRef::from_slice(&elements, 5, 3);
        let row = |a: MatRef<'_, f32>, i: usize| {
            let mut row = Vec::new();
            a.for_row(i, |j, x| row.push((j, x)));
            row
        };
        assert_eq!(row(a, 1), [(0, a.at(1, 0)), (1, a.at(1, 1)), (2, a.at(1, 2))]);
        assert_eq!(row(a.transpose(), 2)[4], (4, a.at(4, 2)));
        let mut filled = vec![0.0; 15];
        let mut matrix = MatMut::from_slice(&mut filled, 5, 3);
        matrix.fill_with(|i, j| (10 * i + j) as f32);
        assert_eq!((matrix.at(4, 0), matrix.at(0, 2)), (40.0, 2.0));
        matrix.as_mut().transpose().fill_with(|i, j| (10 * i + j) as f32);
        assert_eq!((matrix.at(4, 0), matrix.at(0, 2)), (4.0, 20.0));
        matrix.as_mut().update(|x| -x);
        matrix.as_mut().transpose().block(0..1, 0..5).update(|x| x + 1.0);
        assert_eq!((matrix.at(4, 0), matrix.at(0, 2)), (-3.0, -20.0));
    }

    #[test]
    fn non_finite_elements_are_found() {
        let mut elements = numbers(3, 40);
        assert!(MatRef::from_slice(&elements, 3, 40).is_finite());
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            elements[79] = value;
            assert!(!MatRef::from_slice(&elements, 3, 40).is_finite());
            assert!(!MatRef::from_slice(&elements, 3, 40).transpose().is_finite());
        }
    }

    #[test]
    #[should_panic(expected = "block 0..3 × 1..5")]
    fn blocks_outside_the_matrix_are_rejected() {
        let elements = numbers(3, 4);
        MatRef::from_slice(&elements, 3, 4).block(0..3, 1..5);
    }
}
