//! Factorization of every matrix of a batch.

use crate::operand::Operand;
use pellucid_ir::kernel::{Factorization, SvdVectors};
use pellucid_ir::{DType, Error, Layout, Result};
use pellucid_linalg::{Basis, Matrix, Pivot, TriangleKind};
use pellucid_runtime::threads::{SharedPtr, parallel_ranges};

/// The minimum number of arithmetic operations per task.
const GRAIN: usize = 1 << 18;

/// Factors every matrix of the inputs `x` into the outputs `y`.
///
/// # Errors
/// Returns an error if a pivot is out of range, or if there is not enough memory for the copies in `f64`.
pub(super) fn factor_batch<'a>(kernel: &Factorization, x: &[Operand<'a>], y: &[Operand<'a>]) -> Result<()> {
    // The number of axes of one matrix, or of one list of pivots.
    let inner_rank = if matches!(kernel, Factorization::RowOrder { .. }) { 1 } else { 2 };
    let shape = x[0].shape();
    let (batch, last) = shape.split_at(shape.rank() - inner_rank);
    let count: usize = batch.iter().product();
    let batches = |operands: &[Operand<'a>]| operands.iter().map(|o| MatrixBatch::new(o, batch)).collect::<Vec<_>>();
    let (x, y) = (batches(x), batches(y));
    if let Factorization::RowOrder { op, rows } = *kernel {
        let pivots = (0..count).flat_map(|b| x[0].matrix(b).load().data().to_vec());
        check_pivots(op, pivots, rows)?;
    }
    if *kernel == Factorization::LdlSolve {
        (0..count).try_for_each(|b| decode_ldl_pivots(kernel.name(), x[1].matrix(b).load().data()).map(|_| ()))?;
    }
    let side = last.iter().copied().max().unwrap_or(0);
    check_memory(x.iter().chain(&y).map(MatrixBatch::elements), side)?;
    let work = last.iter().product::<usize>().saturating_mul(side).max(1);
    parallel_ranges(count, GRAIN / work, |range| {
        for b in range {
            let factors = factor_matrix(*kernel, x.iter().map(|operand| operand.matrix(b).load()).collect());
            y.iter().zip(&factors).for_each(|(operand, factor)| operand.matrix(b).store(factor));
        }
    });
    Ok(())
}

/// Returns an error if the memory for one factorization cannot be allocated: copies of the operands in `f64` and a few
/// vectors of length `side`. Small matrices are not checked.
///
/// `elements` are the numbers of elements of one matrix of every operand.
fn check_memory(elements: impl Iterator<Item = usize>, side: usize) -> Result<()> {
    const COPIES: usize = 3;
    const SMALL: usize = 1 << 20;
    let count = elements.fold(side, usize::saturating_add);
    let bytes = count.saturating_mul(COPIES * size_of::<f64>());
    match bytes <= SMALL || Vec::<u8>::new().try_reserve_exact(bytes).is_ok() {
        true => Ok(()),
        false => Err(Error::out_of_memory(bytes)),
    }
}

/// Returns an error if a pivot, counted from 1, exceeds the number of rows.
fn check_pivots(op: &'static str, pivots: impl Iterator<Item = f64>, rows: usize) -> Result<()> {
    match pivots.map(|p| p as i64).find(|p| !(1..=rows as i64).contains(p)) {
        Some(pivot) => Err(Error::invalid(op, format!("pivots must be row numbers from 1 to {rows}, got {pivot}"))),
        None => Ok(()),
    }
}

/// Decodes pivots in the format of LAPACK's `sytrf`: counted from 1, and negative and repeated for a 2×2 block.
///
/// # Errors
/// Returns an error if a pivot is out of range, or if a negative pivot is not repeated.
fn decode_ldl_pivots(op: &'static str, encoded: &[f64]) -> Result<Vec<Pivot>> {
    let n = encoded.len();
    let mut pivots = Vec::with_capacity(n);
    while let Some(&pivot) = encoded.get(pivots.len()) {
        let (k, row) = (pivots.len(), pivot.abs() as usize);
        let pair = pivot < 0.0 && encoded.get(k + 1) == Some(&pivot);
        if row == 0 || row > n || (pivot < 0.0 && !pair) {
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

/// Factors one matrix and returns the outputs. Scalars and vectors are returned as matrices with one column.
fn factor_matrix(kernel: Factorization, mut inputs: Vec<Matrix>) -> Vec<Matrix> {
    let mut a = inputs.swap_remove(0);
    let column = |values: &[f64]| Matrix::from_fn(values.len(), 1, |i, _| values[i]);
    let scalar = |value: usize| column(&[value as f64]);
    match kernel {
        Factorization::Cholesky => {
            let minor = pellucid_linalg::cholesky(&mut a);
            vec![a, scalar(minor)]
        }
        Factorization::Lu => {
            let pivots = pellucid_linalg::lu(&mut a);
            let zero = (0..pivots.len()).find(|&i| a[(i, i)] == 0.0).map_or(0, |i| i + 1);
            let pivots: Vec<f64> = pivots.into_iter().map(|p| (p + 1) as f64).collect();
            vec![a, column(&pivots), scalar(zero)]
        }
        Factorization::RowOrder { rows, .. } => {
            let order = pellucid_linalg::row_order(a.data().iter().map(|&p| p as usize - 1), rows);
            vec![Matrix::from_fn(rows, 1, |i, _| order[i] as f64)]
        }
        Factorization::Ldl => {
            let (pivots, zero) = pellucid_linalg::ldl(&mut a);
            let encode = |pivot: &Pivot| match *pivot {
                Pivot::One(row) => (row + 1) as f64,
                Pivot::Two(row) => -((row + 1) as f64),
            };
            vec![a, column(&pivots.iter().map(encode).collect::<Vec<_>>()), scalar(zero)]
        }
        Factorization::LdlSolve => {
            // `swap_remove` has moved B to the position of A.
            let [ref mut x, ref pivots] = inputs[..] else { unreachable!("the kernel must have three inputs") };
            let pivots =
                decode_ldl_pivots(kernel.name(), pivots.data()).expect("the pivots must be valid after the check");
            pellucid_linalg::solve_ldl(&a, &pivots, x);
            vec![inputs.swap_remove(0)]
        }
        Factorization::Qr => {
            let factors = pellucid_linalg::qr(&mut a);
            vec![a, column(&factors)]
        }
        Factorization::Svd(vectors) => {
            let basis = match vectors {
                SvdVectors::Without => Basis::Without,
                SvdVectors::Thin => Basis::Thin,
                SvdVectors::Full => Basis::Full,
            };
            let pellucid_linalg::Svd { u, s, v } = pellucid_linalg::svd(&a, basis);
            let s = column(&s);
            match vectors {
                SvdVectors::Without => vec![s],
                _ => vec![u, s, Matrix::from_fn(v.columns(), v.rows(), |i, j| v[(j, i)])],
            }
        }
        Factorization::Eigh { vectors } => {
            let (w, v) = pellucid_linalg::eigh(&a, vectors);
            if vectors { vec![column(&w), v] } else { vec![column(&w)] }
        }
        Factorization::TriangularSolve { upper, unit } => {
            let mut x = inputs.remove(0);
            pellucid_linalg::solve_triangular(&a, &mut x, TriangleKind { is_upper: upper, has_unit_diagonal: unit });
            vec![x]
        }
        Factorization::Exp => vec![pellucid_linalg::exp(&a)],
    }
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
        let (mut offset, mut remaining) = (0, b);
        for (axis, len) in self.batch.iter().enumerate().rev() {
            offset += (remaining % len) as isize * strides[axis];
            remaining /= len;
        }
        let axis = |k: usize| {
            let axis = self.batch.len() + k;
            if axis < shape.rank() { (shape[axis], strides[axis]) } else { (1, 0) }
        };
        let first = self.first.offset(offset * self.dtype.size() as isize);
        BatchMatrix { first, dtype: self.dtype, shape: [axis(0).0, axis(1).0], strides: [axis(0).1, axis(1).1] }
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
    /// Returns the address of element (i, j).
    fn element<T>(&self, i: usize, j: usize) -> *mut T {
        let position = i as isize * self.strides[0] + j as isize * self.strides[1];
        self.first.cast::<T>().wrapping_offset(position)
    }

    /// Copies the matrix to `f64`.
    fn load(&self) -> Matrix {
        fn load_as<T: Copy>(matrix: &BatchMatrix, wide: impl Fn(T) -> f64) -> Matrix {
            let [rows, columns] = matrix.shape;
            // SAFETY: (i, j) is within the shape, and all elements of the operand are in its buffer, as type `T` (its
            // dtype). No other thread writes them: outputs overlap an input only with equal address and layout, and the
            // outputs of matrix b are written by this thread, after the matrix has been loaded.
            Matrix::from_fn(rows, columns, |i, j| wide(unsafe { *matrix.element::<T>(i, j) }))
        }
        match self.dtype {
            DType::F32 => load_as(self, |x: f32| f64::from(x)),
            DType::F64 => load_as(self, |x: f64| x),
            DType::I32 => load_as(self, |x: i32| f64::from(x)),
            other => unreachable!("the check must reject the dtype {other}"),
        }
    }

    /// Converts a matrix from `f64` and copies it to the operand.
    fn store(&self, values: &Matrix) {
        fn store_as<T>(matrix: &BatchMatrix, values: &Matrix, narrow: impl Fn(f64) -> T) {
            let [rows, columns] = matrix.shape;
            for i in 0..rows {
                for j in 0..columns {
                    // SAFETY: (i, j) is within the shape, and all elements of the operand are in its buffer, as type
                    // `T` (its dtype). No other matrix of the batch contains this element, because outputs are not
                    // broadcast.
                    unsafe { *matrix.element::<T>(i, j) = narrow(values[(i, j)]) };
                }
            }
        }
        match self.dtype {
            DType::F32 => store_as(self, values, |x| x as f32),
            DType::F64 => store_as(self, values, |x| x),
            DType::I32 => store_as(self, values, |x| x as i32),
            DType::I64 => store_as(self, values, |x| x as i64),
            other => unreachable!("the check must reject the dtype {other}"),
        }
    }
}

#[cfg(test)]
mod tests;
