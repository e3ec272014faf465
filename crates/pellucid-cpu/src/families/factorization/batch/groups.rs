//! Factorization of groups of small matrices, one in each lane of the vectors.

use super::matrices::{BatchMatrix, MatrixBatch, first_zero, row_pivots};
use pellucid_gemm::{MatMut, MatRef};
use pellucid_ir::kernel::Factorization;
use pellucid_linalg::{GROUP, MatrixElement, TriangleKind, fits_group};
use pellucid_runtime::list::List;
use std::ops::Range;

/// Returns true if the matrices of the inputs are small, and the factorization is implemented for groups.
pub(super) fn has_groups(kernel: Factorization, x: &[MatrixBatch<'_>]) -> bool {
    let exists = matches!(
        kernel,
        Factorization::Cholesky
            | Factorization::Lu
            | Factorization::LuSolve { .. }
            | Factorization::Cofactors
            | Factorization::TriangularSolve { .. }
    );
    exists && x.iter().map(|operand| operand.matrix(0).shape).all(|[rows, columns]| fits_group(rows, columns))
}

/// Computes the outputs `y` for a range of at most 16 matrices of the batch, for which [`has_groups`] is true.
pub(super) fn factor_group<T: MatrixElement>(
    kernel: Factorization,
    x: &[MatrixBatch<'_>],
    y: &[MatrixBatch<'_>],
    range: Range<usize>,
) {
    let matrices = |operand: &MatrixBatch<'_>| operand.matrices(range.clone());
    let x: List<_, 3> = x.iter().map(matrices).collect();
    let y: List<_, 3> = y.iter().map(matrices).collect();
    let views = |k: usize| -> List<MatRef<'_, T>, GROUP> { x[k].iter().map(BatchMatrix::view).collect() };
    let has_pivots = matches!(kernel, Factorization::LuSolve { .. } | Factorization::Cofactors);
    let rows: List<_, GROUP> = x.get(1).filter(|_| has_pivots).into_iter().flatten().map(row_pivots).collect();
    let pivots: List<&[usize], GROUP> = rows.iter().map(|rows| &rows[..]).collect();
    let mut to: List<MatMut<'_, T>, GROUP> = y[0].iter().map(BatchMatrix::view_mut).collect();
    match kernel {
        Factorization::Cholesky => {
            let minors = pellucid_linalg::cholesky_group(&views(0), &mut to);
            y[1].iter().zip(minors).for_each(|(to, minor)| to.store_integers([minor as i64]));
        }
        Factorization::Lu => {
            let mut pivots = Vec::new();
            pellucid_linalg::lu_group(&views(0), &mut to, &mut pivots);
            for (lane, a) in to.iter().enumerate() {
                y[1][lane].store_integers(pivots.iter().map(|rows| rows[lane] as i64 + 1));
                y[2][lane].store_integers([first_zero(a.as_ref())]);
            }
        }
        Factorization::LuSolve { transposed } => {
            pellucid_linalg::solve_lu_group(&views(0), &pivots, &views(2), &mut to, transposed);
        }
        Factorization::Cofactors => {
            pellucid_linalg::cofactors_group(&views(0), &pivots, &mut to);
        }
        Factorization::TriangularSolve { upper, unit } => {
            let kind = TriangleKind { is_upper: upper, has_unit_diagonal: unit };
            pellucid_linalg::solve_triangular_group(&views(0), &views(1), &mut to, kind);
        }
        _ => unreachable!("`has_groups` must be false"),
    }
}
