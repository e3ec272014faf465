//! Factorization of every matrix of a batch.

mod groups;
mod matrices;

use crate::operand::Operand;
use matrices::{BatchMatrix, MatrixBatch, first_zero, row_pivots};
use pellucid_gemm::{MatMut, MatRef};
use pellucid_ir::kernel::{Factorization, SvdVectors};
use pellucid_ir::{DType, Error, Result};
use pellucid_linalg::{GROUP, MatrixElement, NotConverged, Pivot, SingularBases, TriangleKind};
use pellucid_runtime::list::List;
use pellucid_runtime::scratch;
use pellucid_runtime::threads::parallel_ranges;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The minimum number of arithmetic operations per task.
const GRAIN: usize = 1 << 18;

/// The minimum number of matrices that are factored together. Fewer matrices are factored faster one by one.
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
    // A batch of empty matrices or pivots may be long, so it is not traversed.
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

/// Returns an error if the memory for one factorization (a few copies of the operands, and vectors of length `side`)
/// cannot be allocated. Small matrices are not checked.
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

/// Returns an error if a pivot is not in 1..=rows. Pivots are counted from 1.
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
        Factorization::LeastSquares => {
            let (a, b, bound) = (x[0].view(), x[1].view(), x[2].view::<T>().at(0, 0));
            let solve = |s: &mut [T]| pellucid_linalg::least_squares(a, b, bound, y[0].view_mut(), s);
            y[2].store_integers([with_vector(&y[1], solve)? as i64]);
        }
        Factorization::Exp => with_copy(&x[0], &y[0], pellucid_linalg::exp::<T>),
    }
    Ok(())
}

/// Copies an input to an output, and calls `f` with the output as a matrix with contiguous rows. An output without
/// contiguous rows is computed in scratch memory.
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

/// Calls `f` with a slice of zeros, and copies the slice to `y`, which is a vector.
fn with_vector<T: MatrixElement, R>(y: &BatchMatrix, f: impl FnOnce(&mut [T]) -> R) -> R {
    scratch::with_filled(y.shape[0], T::zero(), |elements| {
        let result = f(elements);
        y.view_mut().copy_from(MatRef::from_slice(elements, y.shape[0], 1));
        result
    })
}

#[cfg(test)]
mod tests;
