//! The matrices of the heads of an operand.

use pellucid_gemm::Strided;
use pellucid_runtime::threads::SharedPtr;

/// The matrices of an operand, indexed by sequence and head. Strides are in elements and may be negative.
#[derive(Clone, Copy)]
pub(super) struct MatrixStack<T> {
    /// The first element.
    pub(super) data: SharedPtr<T>,
    /// The stride from one sequence to the next.
    pub(super) sequence: isize,
    /// The stride from one head to the next.
    pub(super) head: isize,
    /// The stride from one row to the next.
    pub(super) row: isize,
    /// The stride from one column to the next.
    pub(super) column: isize,
}

/// The matrix of one sequence and head.
#[derive(Clone, Copy)]
pub(super) struct HeadMatrix<T> {
    data: SharedPtr<T>,
    /// The stride from one row to the next.
    pub(super) row: isize,
    /// The stride from one column to the next.
    pub(super) column: isize,
}

impl<T> MatrixStack<T> {
    /// Returns the matrix of a sequence and a head.
    pub(super) fn matrix(&self, sequence: usize, head: usize) -> HeadMatrix<T> {
        let data = SharedPtr(self.data.offset(sequence as isize * self.sequence + head as isize * self.head));
        HeadMatrix { data, row: self.row, column: self.column }
    }
}

impl<T> HeadMatrix<T> {
    /// Returns the address of an element.
    pub(super) fn element_ptr(&self, row: usize, column: usize) -> *mut T {
        self.data.offset(row as isize * self.row + column as isize * self.column)
    }

    /// Returns the rows starting at `first` as an operand of a product, in which they are the rows of A or the columns
    /// of B.
    pub(super) fn row_lanes(&self, first: usize) -> Strided<T> {
        Strided { data: self.element_ptr(first, 0).cast_const(), lane: self.row, depth: self.column }
    }

    /// Returns the rows starting at `first` as an operand of a product, in which the columns of this matrix are the
    /// rows of A or the columns of B.
    pub(super) fn column_lanes(&self, first: usize) -> Strided<T> {
        Strided { data: self.element_ptr(first, 0).cast_const(), lane: self.column, depth: self.row }
    }
}
