//! The matrices of batched operands.

use crate::operand::Operand;
use pellucid_gemm::{MatMut, MatRef};
use pellucid_ir::{DType, Layout};
use pellucid_linalg::{GROUP, MatrixElement};
use pellucid_runtime::list::List;
use pellucid_runtime::threads::SharedPtr;
use std::ops::Range;

/// The matrices, vectors or scalars of a batched operand.
pub(super) struct MatrixBatch<'a> {
    first: SharedPtr<u8>,
    layout: &'a Layout,
    pub(super) dtype: DType,
    /// The lengths of the batch axes.
    batch: &'a [usize],
}

impl<'a> MatrixBatch<'a> {
    pub(super) fn new(operand: &Operand<'a>, batch: &'a [usize]) -> MatrixBatch<'a> {
        MatrixBatch { first: operand.first(), layout: operand.layout, dtype: operand.dtype, batch }
    }

    /// Returns the number of elements of one matrix.
    pub(super) fn elements(&self) -> usize {
        self.layout.shape()[self.batch.len().min(self.layout.shape().rank())..].iter().product()
    }

    /// Returns matrix `b` of the batch, counted in row-major order of the batch axes.
    pub(super) fn matrix(&self, b: usize) -> BatchMatrix {
        let (shape, strides) = (self.layout.shape(), self.layout.strides());
        let axis = |k: usize| {
            let axis = self.batch.len() + k;
            if axis < shape.rank() { (shape[axis], strides[axis]) } else { (1, 1) }
        };
        let first = self.matrix_start(b);
        BatchMatrix { first, dtype: self.dtype, shape: [axis(0).0, axis(1).0], strides: [axis(0).1, axis(1).1] }
    }

    /// Returns a range of matrices of the batch.
    pub(super) fn matrices(&self, range: Range<usize>) -> List<BatchMatrix, GROUP> {
        let first = self.matrix(range.start);
        range.map(|b| BatchMatrix { first: self.matrix_start(b), ..first }).collect()
    }

    /// Returns the address of the first element of matrix `b`.
    fn matrix_start(&self, b: usize) -> *mut u8 {
        let strides = self.layout.strides();
        let (mut offset, mut remaining) = (0, b);
        for axis in (1..self.batch.len()).rev() {
            offset += (remaining % self.batch[axis]) as isize * strides[axis];
            remaining /= self.batch[axis];
        }
        if !self.batch.is_empty() {
            offset += remaining as isize * strides[0];
        }
        self.first.offset(offset * self.dtype.size() as isize)
    }
}

/// One matrix of an operand. A vector is a matrix with one column, and a scalar a matrix with one element.
pub(super) struct BatchMatrix {
    first: *mut u8,
    dtype: DType,
    pub(super) shape: [usize; 2],
    pub(super) strides: [isize; 2],
}

impl BatchMatrix {
    /// Returns a view of an input.
    pub(super) fn view<T: MatrixElement>(&self) -> MatRef<'_, T> {
        debug_assert_eq!(self.dtype.size(), size_of::<T>(), "the view must have the dtype of the operand");
        // SAFETY: *Bounds*: all elements of the operand are in its buffer, as type `T` (its dtype). *Aliasing*: outputs
        // overlap no input, because a factorization reads its inputs in any order (`ReadOrder::Anywhere`).
        unsafe { MatRef::from_raw(self.first.cast(), self.shape.into(), self.strides.into()) }
    }

    /// Returns a view of an output. Only one such view of a matrix is in use at a time.
    pub(super) fn view_mut<T: MatrixElement>(&self) -> MatMut<'_, T> {
        debug_assert_eq!(self.dtype.size(), size_of::<T>(), "the view must have the dtype of the operand");
        // SAFETY: *Bounds*: all elements of the operand are in its buffer, as type `T` (its dtype). *Aliasing*: outputs
        // are not broadcast and do not overlap each other, only the thread of this matrix accesses it, and
        // `factor_matrix` and `factor_group` drop each view of a matrix before they create the next.
        unsafe { MatMut::from_raw(self.first.cast(), self.shape.into(), self.strides.into()) }
    }

    /// Returns the address of element i of a vector.
    fn element<T>(&self, i: usize) -> *mut T {
        self.first.cast::<T>().wrapping_offset(i as isize * self.strides[0])
    }

    /// Returns the elements of an input that is a vector of `i32`.
    pub(super) fn integers(&self) -> impl Iterator<Item = i64> + '_ {
        assert_eq!(self.dtype, DType::I32, "pivots must be i32");
        // SAFETY: all elements of the operand are in its buffer, as `i32`. No code writes them, because outputs overlap
        // no input (`ReadOrder::Anywhere`).
        (0..self.shape[0]).map(|i| i64::from(unsafe { *self.element::<i32>(i) }))
    }

    /// Writes the elements of an output that is a vector or a scalar of integers.
    pub(super) fn store_integers(&self, values: impl IntoIterator<Item = i64>) {
        for (i, value) in values.into_iter().enumerate().take(self.shape[0]) {
            // SAFETY: i is within the shape, and all elements of the operand are in its buffer, as its dtype. Only the
            // thread of this matrix accesses it.
            unsafe {
                match self.dtype {
                    DType::I32 => *self.element::<i32>(i) = value as i32,
                    DType::I64 => *self.element::<i64>(i) = value,
                    other => unreachable!("the check must reject the dtype {other}"),
                }
            }
        }
    }
}

/// Returns the position, counted from 1, of the first zero on the diagonal, or 0 if there is none.
pub(super) fn first_zero<T: MatrixElement>(a: MatRef<'_, T>) -> i64 {
    (0..a.rows().min(a.columns())).find(|&i| a.at(i, i) == T::zero()).map_or(0, |i| i as i64 + 1)
}

/// Returns the pivots of an LU factorization, counted from 0.
pub(super) fn row_pivots(pivots: &BatchMatrix) -> List<usize, GROUP> {
    pivots.integers().map(|pivot| pivot as usize - 1).collect()
}
