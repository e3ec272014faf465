//! Factorizations and solutions of linear systems: one matrix, and a batch of small matrices.

use crate::sweep::OperandValues::{Lower, Normal, Spd};
use crate::sweep::{OperandValues, SweepRow};
use pellucid::{Tensor, ops};

/// One matrix of 8, 64 or 256 rows.
fn one<const K: usize>(n: usize) -> Vec<Vec<usize>> {
    vec![vec![[8, 64, 256][n]; 2]; K]
}

/// Matrices of 8 rows.
fn small<const K: usize>(n: usize) -> Vec<Vec<usize>> {
    vec![vec![[1, 64, 1024][n], 8, 8]; K]
}

fn tall(n: usize) -> Vec<Vec<usize>> {
    let (rows, columns) = [(16, 4), (128, 32), (512, 128)][n];
    vec![vec![rows, columns], vec![rows, 4]]
}

/// Returns the rows of one matrix, and of a batch of small matrices.
fn both(row: impl Fn() -> SweepRow, values: OperandValues) -> [SweepRow; 2] {
    [row().of([values]).shapes(one::<1>), row().of([values]).shapes(small::<1>)]
}

pub(super) fn rows() -> Vec<SweepRow> {
    let mut rows: Vec<SweepRow> = [
        both(|| SweepRow::new("cholesky", "torch.linalg.cholesky(a)", |t, _| t[0].cholesky(false)), Spd),
        both(|| SweepRow::new("det", "torch.linalg.det(a)", |t, _| t[0].det()), Spd),
        both(|| SweepRow::new("slogdet", "torch.linalg.slogdet(a)[1]", |t, _| t[0].slogdet().1), Spd),
        both(|| SweepRow::new("logdet", "torch.logdet(a)", |t, _| t[0].logdet()), Spd),
        both(|| SweepRow::new("inv", "torch.linalg.inv(a)", |t, _| t[0].inv()), Spd),
        both(|| SweepRow::new("eigh", "torch.linalg.eigh(a)[0]", |t, _| t[0].eigh(false).0), Spd),
        both(|| SweepRow::new("eigvalsh", "torch.linalg.eigvalsh(a)", |t, _| t[0].eigvalsh(false)), Spd),
        both(|| SweepRow::new("svd", "torch.linalg.svd(a, full_matrices=False)[1]", |t, _| t[0].svd(false).1), Normal),
        both(|| SweepRow::new("svdvals", "torch.linalg.svdvals(a)", |t, _| t[0].svdvals()), Normal),
        both(|| SweepRow::new("qr", "torch.linalg.qr(a)[1]", |t, _| t[0].qr(ops::QrMode::Reduced).1), Normal),
        both(|| SweepRow::new("lu", "torch.linalg.lu(a)[2]", |t, _| t[0].lu().2), Spd),
        both(|| SweepRow::new("lu_factor", "torch.linalg.lu_factor(a)[0]", |t, _| t[0].lu_factor().0), Spd),
        both(|| SweepRow::new("matrix_exp", "torch.linalg.matrix_exp(a)", |t, _| t[0].matrix_exp()), Spd),
        both(|| SweepRow::new("matrix_power", "torch.linalg.matrix_power(a, 3)", |t, _| t[0].matrix_power(3)), Spd),
        both(|| SweepRow::new("matrix_sqrth", "", |t, _| t[0].matrix_sqrth()), Spd),
        both(|| SweepRow::new("pinv", "torch.linalg.pinv(a)", |t, _| t[0].pinv(&ops::Cutoff::default())), Spd),
    ]
    .into_iter()
    .flatten()
    .collect();
    rows.extend([
        SweepRow::new("solve", "torch.linalg.solve(a, b)", |t, _| t[0].solve(&t[1], true))
            .of([Spd, Normal])
            .shapes(one::<2>),
        SweepRow::new("solve", "torch.linalg.solve(a, b)", |t, _| t[0].solve(&t[1], true))
            .of([Spd, Normal])
            .shapes(small::<2>),
        SweepRow::new("solve_triangular", "torch.linalg.solve_triangular(a, b, upper=False)", |t, _| {
            t[0].solve_triangular(&t[1], false, true, false)
        })
        .of([Lower, Normal])
        .shapes(one::<2>),
        SweepRow::new("cholesky_solve", "torch.cholesky_solve(b, a)", |t, _| t[1].cholesky_solve(&t[0], false))
            .of([Lower, Normal])
            .shapes(one::<2>),
        SweepRow::new("cholesky_inverse", "torch.cholesky_inverse(a)", |t, _| t[0].cholesky_inverse(false))
            .of([Lower])
            .shapes(one::<1>),
        SweepRow::new("matrix_norm", "torch.linalg.matrix_norm(a)", |t, _| {
            t[0].matrix_norm(ops::MatrixNorm::Frobenius, [-2, -1], false)
        })
        .of([Normal])
        .shapes(one::<1>),
    ]);
    let without: Vec<SweepRow> = vec![
        SweepRow::new("cholesky_ex", "torch.linalg.cholesky_ex(a)[0]", |t, _| t[0].cholesky_ex(false).0)
            .of([Spd])
            .shapes(one::<1>),
        SweepRow::new("inv_ex", "torch.linalg.inv_ex(a)[0]", |t, _| t[0].inv_ex().0).of([Spd]).shapes(one::<1>),
        SweepRow::new("solve_ex", "torch.linalg.solve_ex(a, b)[0]", |t, _| t[0].solve_ex(&t[1], true).0)
            .of([Spd, Normal])
            .shapes(one::<2>),
        SweepRow::new("lu_factor_ex", "torch.linalg.lu_factor_ex(a)[0]", |t, _| t[0].lu_factor_ex().0)
            .of([Spd])
            .shapes(one::<1>),
        SweepRow::new(
            "lu_unpack",
            "torch.lu_unpack(a, torch.arange(1, a.shape[0] + 1, dtype=torch.int32))[2]",
            |t, _| t[0].lu_unpack(&Tensor::arange(1, t[0].shape()[0] as i32 + 1, 1)).2,
        )
        .of([Spd])
        .shapes(one::<1>),
        SweepRow::new("lu_solve", "torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b)", |t, _| {
            let (packed, pivots) = t[0].lu_factor();
            packed.lu_solve(&pivots, &t[1], true, false)
        })
        .of([Spd, Normal])
        .shapes(one::<2>),
        SweepRow::new("ldl_factor", "torch.linalg.ldl_factor(a)[0]", |t, _| t[0].ldl_factor().0)
            .of([Spd])
            .shapes(one::<1>),
        SweepRow::new("ldl_factor_ex", "torch.linalg.ldl_factor_ex(a)[0]", |t, _| t[0].ldl_factor_ex().0)
            .of([Spd])
            .shapes(one::<1>),
        SweepRow::new("ldl_solve", "torch.linalg.ldl_solve(*torch.linalg.ldl_factor(a), b)", |t, _| {
            let (packed, pivots) = t[0].ldl_factor();
            packed.ldl_solve(&pivots, &t[1])
        })
        .of([Spd, Normal])
        .shapes(one::<2>),
        SweepRow::new("geqrf", "torch.geqrf(a)[0]", |t, _| t[0].geqrf().0).of([Normal]).shapes(one::<1>),
        SweepRow::new("householder_product", "torch.linalg.householder_product(*torch.geqrf(a))", |t, _| {
            let (v, tau) = t[0].geqrf();
            v.householder_product(&tau)
        })
        .of([Normal])
        .shapes(one::<1>),
        SweepRow::new("ormqr", "torch.ormqr(*torch.geqrf(a), b)", |t, _| {
            let (v, tau) = t[0].geqrf();
            v.ormqr(&tau, &t[1], true, false)
        })
        .of([Normal; 2])
        .shapes(one::<2>),
        SweepRow::new("lstsq", "torch.linalg.lstsq(a, b).solution", |t, _| t[0].lstsq(&t[1], None).solution)
            .of([Normal; 2])
            .shapes(tall),
        SweepRow::new("matrix_rank", "torch.linalg.matrix_rank(a)", |t, _| t[0].matrix_rank(&ops::Cutoff::default()))
            .of([Normal])
            .shapes(one::<1>),
        SweepRow::new("cond", "torch.linalg.cond(a)", |t, _| t[0].cond(2.0)).of([Normal]).shapes(one::<1>),
        SweepRow::new("polar", "", |t, _| t[0].polar().0).of([Normal]).shapes(one::<1>),
        SweepRow::new("tensorinv", "torch.linalg.tensorinv(a.reshape(2, -1, a.shape[0]), 2)", |t, _| {
            let n = t[0].shape()[0];
            t[0].reshape([2, -1, n as isize]).tensorinv(2)
        })
        .of([Spd])
        .shapes(one::<1>),
        SweepRow::new("tensorsolve", "torch.linalg.tensorsolve(a, b[0])", |t, _| t[0].tensorsolve(&t[1].i(0), &[]))
            .of([Spd, Normal])
            .shapes(one::<2>),
    ];
    rows.extend(without.into_iter().map(SweepRow::forward_only));
    rows
}
