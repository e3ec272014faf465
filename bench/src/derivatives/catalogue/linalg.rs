//! Factorizations of small, well-conditioned matrices.

use super::{CatalogueOperation, Domain, OperationFamily, fit};
use Domain::{Any, Unit};
use pellucid::ops::{Cutoff, MatrixNorm, QrMode};
use pellucid::{Result, Tensor, ops};

/// Returns a diagonally dominant square matrix.
fn square(x: &Tensor, n: usize) -> Result<Tensor> {
    let diagonal: Vec<f64> = (0..n).map(|k| 2.6 + 0.9 * k as f64).collect();
    let small = ops::mul(&ops::tanh(&fit(x, &[n, n])?)?, 0.8)?;
    ops::add(&small, &ops::diag(&Tensor::new(diagonal, [n]), 0)?)
}

/// Returns a symmetric positive definite matrix.
fn definite(x: &Tensor, n: usize) -> Result<Tensor> {
    let a = square(x, n)?;
    ops::matmul(&a, &ops::t(&a)?)
}

/// Returns a symmetric matrix with distinct eigenvalues.
fn symmetric(x: &Tensor, n: usize) -> Result<Tensor> {
    let a = square(x, n)?;
    ops::mul(&ops::add(&a, &ops::t(&a)?)?, 0.5)
}

/// Returns a matrix `[3, 2]` of full rank with distinct singular values.
fn tall(x: &Tensor) -> Result<Tensor> {
    let small = ops::mul(&ops::tanh(&fit(x, &[3, 2])?)?, 0.5)?;
    ops::add(&small, Tensor::from([[2.0f64, 0.0], [0.0, 3.5], [0.3, -0.2]]))
}

fn factorisations() -> Vec<CatalogueOperation> {
    entries! { Linalg;
        "inv" [Any] (x, _) => ops::inv(&square(&x[0], 2)?);
        "inv of 3 by 3" [Any] (x, _) => ops::inv(&square(&x[0], 3)?);
        "inv_ex" [Any] (x, _) => Ok(ops::inv_ex(&square(&x[0], 2)?)?.0);
        "det" [Any] (x, _) => ops::det(&square(&x[0], 2)?);
        "det of a singular matrix" [Unit] (x, _) => {
            let x = fit(&x[0], &[2])?;
            ops::det(&ops::outer(&x, &x)?)
        };
        "slogdet" [Any] (x, _) => Ok(ops::slogdet(&square(&x[0], 2)?)?.1);
        "logdet" [Any] (x, _) => ops::logdet(&square(&x[0], 2)?);
        "cholesky" [Any] (x, random) => ops::cholesky(&definite(&x[0], 2)?, random.coin());
        "cholesky_ex" [Any] (x, random) => Ok(ops::cholesky_ex(&definite(&x[0], 2)?, random.coin())?.0);
        "cholesky_solve" [Any, Any] (x, _) => {
            let l = ops::cholesky(&definite(&x[0], 2)?, false)?;
            ops::cholesky_solve(&fit(&x[1], &[2, 1])?, &l, false)
        };
        "cholesky_inverse" [Any] (x, _) => ops::cholesky_inverse(&ops::cholesky(&definite(&x[0], 2)?, false)?, false);
        "eigh" [Any] (x, _) => {
            // The result does not depend on the signs of the eigenvectors.
            let (values, vectors) = ops::eigh(&symmetric(&x[0], 2)?, false)?;
            ops::matmul(&ops::mul(&vectors, &ops::sin(&values)?)?, &ops::t(&vectors)?)
        };
        "eigvalsh" [Any] (x, _) => ops::eigvalsh(&symmetric(&x[0], 2)?, false);
        "matrix_sqrth" [Any] (x, _) => ops::matrix_sqrth(&definite(&x[0], 2)?);
        "svd" [Any] (x, _) => {
            let (u, s, vt) = ops::svd(&tall(&x[0])?, false)?;
            ops::matmul(&ops::mul(&u, &ops::sin(&s)?)?, &vt)
        };
        "svdvals" [Any] (x, _) => ops::svdvals(&tall(&x[0])?);
        "polar" [Any] (x, _) => {
            let (u, p) = ops::polar(&tall(&x[0])?)?;
            ops::matmul(&u, &ops::mul(&p, &p)?)
        };
        "qr" [Any] (x, _) => {
            let (q, r) = ops::qr(&tall(&x[0])?, QrMode::Reduced)?;
            ops::matmul(&q, &ops::mul(&r, &r)?)
        };
        "householder_product" [Unit, Unit] (x, _) => {
            ops::householder_product(&fit(&x[0], &[3, 2])?, &ops::add(&fit(&x[1], &[2])?, 1.2)?)
        };
        "ormqr" [Unit, Unit, Any] (x, random) => {
            let tau = ops::add(&fit(&x[1], &[2])?, 1.2)?;
            ops::ormqr(&fit(&x[0], &[3, 2])?, &tau, &fit(&x[2], &[3, 1])?, true, random.coin())
        };
        "geqrf" [Any] (x, _) => Ok(ops::geqrf(&tall(&x[0])?)?.0);
        "lu" [Any] (x, _) => {
            let (_, l, u) = ops::lu(&square(&x[0], 2)?)?;
            ops::matmul(&ops::mul(&l, &l)?, &u)
        };
        "lu_factor" [Any] (x, _) => Ok(ops::lu_factor(&square(&x[0], 2)?)?.0);
        "lu_unpack" [Any] (x, _) => {
            let (packed, pivots, _) = ops::lu_factor_ex(&square(&x[0], 2)?)?;
            let (_, l, u) = ops::lu_unpack(&packed, &pivots)?;
            ops::matmul(&u, &l)
        };
        "ldl_factor" [Any] (x, _) => Ok(ops::ldl_factor(&symmetric(&x[0], 2)?)?.0);
        "pinv" [Any] (x, _) => ops::pinv(&tall(&x[0])?, &Cutoff::default());
        "matrix_exp" [Unit] (x, _) => ops::matrix_exp(&fit(&x[0], &[2, 2])?);
        "matrix_norm fro" [Any] (x, _) => ops::matrix_norm(&tall(&x[0])?, MatrixNorm::Frobenius, [0, 1], false);
        "matrix_norm nuc" [Any] (x, _) => ops::matrix_norm(&tall(&x[0])?, MatrixNorm::Nuclear, [0, 1], false);
        "matrix_norm 2" [Any] (x, _) => ops::matrix_norm(&tall(&x[0])?, 2, [0, 1], false);
        "cond" [Any] (x, _) => ops::cond(&square(&x[0], 2)?, 2);
        "matrix_power -2" [Any] (x, _) => ops::matrix_power(&square(&x[0], 2)?, -2);
    }
}

fn equations() -> Vec<CatalogueOperation> {
    entries! { Linalg;
        "solve" [Any, Any] (x, _) => ops::solve(&square(&x[0], 2)?, &fit(&x[1], &[2, 2])?, true);
        "solve from the right" [Any, Any] (x, _) => ops::solve(&square(&x[0], 2)?, &fit(&x[1], &[1, 2])?, false);
        "solve a vector" [Any, Any] (x, _) => ops::solve(&square(&x[0], 3)?, &fit(&x[1], &[3])?, true);
        "solve_ex" [Any, Any] (x, _) => Ok(ops::solve_ex(&square(&x[0], 2)?, &fit(&x[1], &[2, 2])?, true)?.0);
        "solve_triangular" [Any, Any] (x, random) => {
            let (upper, left, unit) = (random.coin(), random.coin(), random.coin());
            ops::solve_triangular(&square(&x[0], 2)?, &fit(&x[1], &[2, 2])?, upper, left, unit)
        };
        "lu_solve" [Any, Any] (x, random) => {
            let (packed, pivots) = ops::lu_factor(&square(&x[0], 2)?)?;
            ops::lu_solve(&packed, &pivots, &fit(&x[1], &[2, 2])?, random.coin(), random.coin())
        };
        "lstsq" [Any, Any] (x, _) => Ok(ops::lstsq(&tall(&x[0])?, &fit(&x[1], &[3, 1])?, None)?.solution);
        "tensorinv" [Any] (x, _) => ops::tensorinv(&ops::reshape(&square(&x[0], 2)?, [2, 1, 2])?, 1);
        "tensorsolve" [Any, Any] (x, _) => {
            ops::tensorsolve(&ops::reshape(&square(&x[0], 2)?, [2, 1, 2])?, &fit(&x[1], &[2])?, &[])
        };
        "ldl_solve" [Any] (x, _) => {
            let (packed, pivots) = ops::ldl_factor(&Tensor::from([[2.0f64, 0.5], [0.5, 3.0]]))?;
            ops::ldl_solve(&packed, &pivots, &fit(&x[0], &[2, 1])?)
        };
    }
}

pub(super) fn operations() -> Vec<CatalogueOperation> {
    let mut all = factorisations();
    all.extend(equations());
    all
}
