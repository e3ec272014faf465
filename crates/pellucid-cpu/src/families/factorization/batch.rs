//! Factorization of every matrix of a batch.

mod groups;

use crate::operand::Operand;
use pellucid_gemm::{MatMut, MatRef};
use pellucid_ir::kernel::{Factorization, SvdVectors};
use pellucid_ir::{DType, Error, Layout, Result};
use pellucid_linalg::{GROUP, MatrixElement, NotConverged, Pivot, SingularBases, TriangleKind};
use pellucid_runtime::list::List;
use pellucid_runtime::scratch;
use pellucid_runtime::threads::{SharedPtr, parallel_ranges};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The minimum number of arithmetic operations per task.
const GRAIN: usize = 1 << 18;

/// The minimum number of matrices that are factored together. Fewer single matrices take less time than a group.
const MIN_GROUP: usize = 6;

/// Factors every matrix of the inputs `x` into the outputs `y`.
///
/// # Errors
/// Returns an error if a pivot is out of range, if there is not enough memory for the intermediate results, or if an
/// iteration does not converge.
pub(super) fn factor_batch<'a>(kernel: &Factorization, x: &[Operand<'a>], y: &[Operand<'a>]) -> Result<()> {
    // The number of axes of one matrix, or of one list of pivots.
    let inner_rank = if matches!(kernel, Factorization::RowOrder { .. }) { 1 } else { 2 };
    let shape = x[0].shape();
    let (batch, last) = shape.split_at(shape.rank() - inner_rank);
    let count: usize = batch.iter().product();
    let batches = |operands: &[Operand<'a>]| operands.iter().map(|o| MatrixBatch::new(o, batch)).collect::<Vec<_>>();
    // A batch of matrices or pivots without elements may be long.
    let is_empty = |operand: &Operand<'_>| operand.shape().contains(&0);
    let outputs_are_empty = y.iter().all(is_empty);
    let pivots = if inner_rank == 1 { x.first() } else { x.get(1) };
    let checked = if pivots.is_some_and(is_empty) { 0 } else { count };
    let (x, y) = (batches(x), batches(y));
    if let Factorization::RowOrder { op, rows } = *kernel {
        (0..checked).try_for_each(|b| check_pivots(op, &x[0].matrix(b), rows))?;
    }
    if matches!(kernel, Factorization::LuSolve { .. } | Factorization::Cofactors) {
        (0..checked).try_for_each(|b| check_pivots(kernel.name(), &x[1].matrix(b), last[0]))?;
    }
    if *kernel == Factorization::LdlSolve {
        (0..checked).try_for_each(|b| decode_ldl_pivots(kernel.name(), &x[1].matrix(b)).map(|_| ()))?;
    }
    if outputs_are_empty {
        return Ok(());
    }
    let side = last.iter().copied().max().unwrap_or(0);
    let dtype = x[0].dtype;
    check_memory(x.iter().chain(&y).map(MatrixBatch::elements), side, dtype.size())?;
    let work = last.iter().product::<usize>().saturating_mul(side).max(1);
    // The first matrix whose iteration does not converge.
    let failed = AtomicUsize::new(usize::MAX);
    let factor = |b: usize| {
        let matrices = |operands: &[MatrixBatch<'_>]| -> List<BatchMatrix, 3> {
            operands.iter().map(|operand| operand.matrix(b)).collect()
        };
        let result = match dtype {
            DType::F64 => factor_matrix::<f64>(*kernel, &matrices(&x), &matrices(&y)),
            _ => factor_matrix::<f32>(*kernel, &matrices(&x), &matrices(&y)),
        };
        if result == Err(NotConverged) {
            failed.fetch_min(b, Ordering::Relaxed);
        }
    };
    let has_groups = groups::has_groups(*kernel, &x);
    parallel_ranges(count, GRAIN / work, |range| {
        for first in range.clone().step_by(GROUP) {
            let part = first..range.end.min(first + GROUP);
            match dtype {
                _ if !has_groups || part.len() < MIN_GROUP => part.for_each(&factor),
                DType::F64 => groups::factor_group::<f64>(*kernel, &x, &y, part),
                _ => groups::factor_group::<f32>(*kernel, &x, &y, part),
            }
        }
    });
    match failed.into_inner() {
        usize::MAX => Ok(()),
        batch => Err(Error::NotConverged { op: kernel.name(), batch }),
    }
}

/// Returns an error if the memory for one factorization cannot be allocated: a few copies of the operands and vectors
/// of length `side`. Small matrices are not checked.
///
/// `elements` are the numbers of elements of one matrix of every operand, and `size` is the size of an element.
fn check_memory(elements: impl Iterator<Item = usize>, side: usize, size: usize) -> Result<()> {
    const COPIES: usize = 6;
    const SMALL: usize = 1 << 20;
    let count = elements.fold(side, usize::saturating_add);
    let bytes = count.saturating_mul(COPIES * size);
    match bytes <= SMALL || Vec::<u8>::new().try_reserve_exact(bytes).is_ok() {
        true => Ok(()),
        false => Err(Error::out_of_memory(bytes)),
    }
}

/// Returns an error if a pivot, counted from 1, exceeds the number of rows.
fn check_pivots(op: &'static str, pivots: &BatchMatrix, rows: usize) -> Result<()> {
    match pivots.integers().find(|p| !(1..=rows as i64).contains(p)) {
        Some(pivot) => Err(Error::invalid(op, format!("pivots must be row numbers from 1 to {rows}, got {pivot}"))),
        None => Ok(()),
    }
}

/// Decodes pivots in the format of LAPACK's `sytrf`: counted from 1, and negative and repeated for a 2×2 block.
///
/// # Errors
/// Returns an error if a pivot is out of range, or if a negative pivot is not repeated.
fn decode_ldl_pivots(op: &'static str, encoded: &BatchMatrix) -> Result<Vec<Pivot>> {
    let encoded: Vec<i64> = encoded.integers().collect();
    let n = encoded.len();
    let mut pivots = Vec::with_capacity(n);
    while let Some(&pivot) = encoded.get(pivots.len()) {
        let (k, row) = (pivots.len(), pivot.unsigned_abs() as usize);
        let pair = pivot < 0 && encoded.get(k + 1) == Some(&pivot);
        if row == 0 || row > n || (pivot < 0 && !pair) {
            let reason =
                format!("pivots must be row numbers from 1 to {n}, negated and repeated for a 2×2 block, got {pivot}");
            return Err(Error::invalid(op, reason));
        }
        match pair {
            true => pivots.extend([Pivot::Two(row - 1); 2]),
            false => pivots.push(Pivot::One(row - 1)),
        }
    }
    Ok(pivots)
}

/// Computes the outputs `y` of one factorization from the inputs `x`. `T` is the dtype of the matrices.
fn factor_matrix<T: MatrixElement>(
    kernel: Factorization,
    x: &[BatchMatrix],
    y: &[BatchMatrix],
) -> std::result::Result<(), NotConverged> {
    match kernel {
        Factorization::Cholesky => {
            let minor = with_copy(&x[0], &y[0], pellucid_linalg::cholesky::<T>);
            y[1].store_integers([minor as i64]);
        }
        Factorization::Lu => {
            let mut pivots = Vec::new();
            let zero = with_copy(&x[0], &y[0], |mut a: MatMut<'_, T>| {
                pellucid_linalg::lu(a.as_mut(), &mut pivots);
                first_zero(a.as_ref())
            });
            y[1].store_integers(pivots.into_iter().map(|p| p as i64 + 1));
            y[2].store_integers([zero]);
        }
        Factorization::LuSolve { transposed } => {
            let pivots = row_pivots(&x[1]);
            with_copy(&x[2], &y[0], |b: MatMut<'_, T>| pellucid_linalg::solve_lu(x[0].view(), &pivots, b, transposed));
        }
        Factorization::Cofactors => {
            pellucid_linalg::cofactors(x[0].view::<T>(), &row_pivots(&x[1]), y[0].view_mut());
        }
        Factorization::RowOrder { rows, .. } => {
            let order = pellucid_linalg::row_order(x[0].integers().map(|p| p as usize - 1), rows);
            y[0].store_integers(order.into_iter().map(|row| row as i64));
        }
        Factorization::Ldl => {
            let (pivots, zero) = with_copy(&x[0], &y[0], pellucid_linalg::ldl::<T>);
            y[1].store_integers(pivots.into_iter().map(|pivot| match pivot {
                Pivot::One(row) => row as i64 + 1,
                Pivot::Two(row) => -(row as i64 + 1),
            }));
            y[2].store_integers([zero as i64]);
        }
        Factorization::LdlSolve => {
            let pivots = decode_ldl_pivots(kernel.name(), &x[1]).expect("the pivots must be valid after the check");
            with_copy(&x[2], &y[0], |b: MatMut<'_, T>| pellucid_linalg::solve_ldl(x[0].view(), &pivots, b));
        }
        Factorization::Qr => {
            with_vector(&y[1], |taus| with_copy(&x[0], &y[0], |a: MatMut<'_, T>| pellucid_linalg::qr(a, taus)))
        }
        Factorization::HouseholderBasis { .. } => {
            let taus = x[1].view::<T>();
            let taus: List<T, GROUP> = (0..taus.rows()).map(|i| taus.at(i, 0)).collect();
            pellucid_linalg::householder_basis(x[0].view(), &taus, y[0].view_mut());
        }
        Factorization::Svd(SvdVectors::Without) => {
            return with_vector(&y[0], |s: &mut [T]| pellucid_linalg::svd(x[0].view(), s, None));
        }
        Factorization::Svd(_) => {
            let vectors = SingularBases { u: y[0].view_mut(), vt: y[2].view_mut() };
            return with_vector(&y[1], |s: &mut [T]| pellucid_linalg::svd(x[0].view(), s, Some(vectors)));
        }
        Factorization::Eigh { vectors } => {
            let v = vectors.then(|| y[1].view_mut());
            return with_vector(&y[0], |w: &mut [T]| pellucid_linalg::eigh(x[0].view(), w, v));
        }
        Factorization::TriangularSolve { upper, unit } => {
            let kind = TriangleKind { is_upper: upper, has_unit_diagonal: unit };
            with_copy(&x[1], &y[0], |b: MatMut<'_, T>| pellucid_linalg::solve_triangular(x[0].view(), b, kind));
        }
        Factorization::Exp => with_copy(&x[0], &y[0], pellucid_linalg::exp::<T>),
    }
    Ok(())
}

/// Returns the position, counted from 1, of the first zero on the diagonal, or 0.
fn first_zero<T: MatrixElement>(a: MatRef<'_, T>) -> i64 {
    (0..a.rows().min(a.columns())).find(|&i| a.at(i, i) == T::zero()).map_or(0, |i| i as i64 + 1)
}

/// Returns the pivots of an LU factorization, counted from 0.
fn row_pivots(pivots: &BatchMatrix) -> List<usize, GROUP> {
    pivots.integers().map(|pivot| pivot as usize - 1).collect()
}

/// Copies an input to an output, and calls `f` with a view of the output whose rows are contiguous.
fn with_copy<T: MatrixElement, R>(x: &BatchMatrix, y: &BatchMatrix, f: impl FnOnce(MatMut<'_, T>) -> R) -> R {
    let [rows, columns] = y.shape;
    if y.strides[1] == 1 {
        y.view_mut::<T>().copy_from(x.view());
        return f(y.view_mut());
    }
    scratch::with_filled(rows * columns, T::zero(), |elements| {
        MatMut::from_slice(elements, rows, columns).copy_from(x.view());
        let result = f(MatMut::from_slice(elements, rows, columns));
        y.view_mut().copy_from(MatRef::from_slice(elements, rows, columns));
        result
    })
}

/// Calls `f` with a slice of zeros, and copies it to an output that is a vector.
fn with_vector<T: MatrixElement, R>(y: &BatchMatrix, f: impl FnOnce(&mut [T]) -> R) -> R {
    scratch::with_filled(y.shape[0], T::zero(), |elements| {
        let result = f(elements);
        y.view_mut().copy_from(MatRef::from_slice(elements, y.shape[0], 1));
        result
    })
}

/// The matrices, vectors or scalars of a batched operand.
struct MatrixBatch<'a> {
    first: SharedPtr<u8>,
    layout: &'a Layout,
    dtype: DType,
    /// The lengths of the batch axes.
    batch: &'a [usize],
}

impl<'a> MatrixBatch<'a> {
    fn new(operand: &Operand<'a>, batch: &'a [usize]) -> MatrixBatch<'a> {
        MatrixBatch { first: operand.first(), layout: operand.layout, dtype: operand.dtype, batch }
    }

    /// Returns the number of elements of one matrix.
    fn elements(&self) -> usize {
        self.layout.shape()[self.batch.len().min(self.layout.shape().rank())..].iter().product()
    }

    /// Returns matrix `b` of the batch, counted in row-major order of the batch axes.
    fn matrix(&self, b: usize) -> BatchMatrix {
        let (shape, strides) = (self.layout.shape(), self.layout.strides());
        let axis = |k: usize| {
            let axis = self.batch.len() + k;
            if axis < shape.rank() { (shape[axis], strides[axis]) } else { (1, 1) }
        };
        let first = self.matrix_start(b);
        BatchMatrix { first, dtype: self.dtype, shape: [axis(0).0, axis(1).0], strides: [axis(0).1, axis(1).1] }
    }

    /// Returns a range of matrices of the batch.
    fn matrices(&self, range: Range<usize>) -> List<BatchMatrix, GROUP> {
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
struct BatchMatrix {
    first: *mut u8,
    dtype: DType,
    shape: [usize; 2],
    strides: [isize; 2],
}

impl BatchMatrix {
    /// Returns a view of an input.
    fn view<T: MatrixElement>(&self) -> MatRef<'_, T> {
        debug_assert_eq!(self.dtype.size(), size_of::<T>(), "the view must have the dtype of the operand");
        // SAFETY: *Bounds*: all elements of the operand are in its buffer, as type `T` (its dtype). *Aliasing*: outputs
        // overlap no input, because a factorization reads its inputs in any order (`ReadOrder::Anywhere`).
        unsafe { MatRef::from_raw(self.first.cast(), self.shape.into(), self.strides.into()) }
    }

    /// Returns a view of an output. Only one such view of a matrix is in use at a time.
    fn view_mut<T: MatrixElement>(&self) -> MatMut<'_, T> {
        debug_assert_eq!(self.dtype.size(), size_of::<T>(), "the view must have the dtype of the operand");
        // SAFETY: *Bounds*: all elements of the operand are in its buffer, as type `T` (its dtype). *Aliasing*: outputs
        // are not broadcast and do not overlap each other, only the thread of this matrix accesses it, and
        // `factor_matrix` creates a view after it has dropped the previous one.
        unsafe { MatMut::from_raw(self.first.cast(), self.shape.into(), self.strides.into()) }
    }

    /// Returns the address of element i of a vector.
    fn element<T>(&self, i: usize) -> *mut T {
        self.first.cast::<T>().wrapping_offset(i as isize * self.strides[0])
    }

    /// Returns the elements of an input that is a vector of `i32`.
    fn integers(&self) -> impl Iterator<Item = i64> + '_ {
        assert_eq!(self.dtype, DType::I32, "pivots must be i32");
        // SAFETY: all elements of the operand are in its buffer, as `i32`. No code writes them, because outputs overlap
        // no input (`ReadOrder::Anywhere`).
        (0..self.shape[0]).map(|i| i64::from(unsafe { *self.element::<i32>(i) }))
    }

    /// Writes the elements of an output that is a vector or a scalar of integers.
    fn store_integers(&self, values: impl IntoIterator<Item = i64>) {
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

#[cfg(test)]
mod tests;
