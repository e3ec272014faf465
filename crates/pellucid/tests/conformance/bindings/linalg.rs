//! Linear algebra.

use super::Binder;
use crate::call::{Call, KEY};
use pellucid::ops::{Cutoff, MatrixNorm, QrMode, over};
use pellucid::{DType, Error, Result, Tensor, ops};

pub(super) fn bind(table: &mut Binder) {
    let upper = |c: &Call, at| c.flag(at, "upper");
    for name in ["cholesky", "linalg.cholesky"] {
        table.one(name, move |c| ops::cholesky(c.x()?, upper(c, 1)));
    }
    table.two("linalg.cholesky_ex", move |c| ops::cholesky_ex(c.x()?, upper(c, 1)));
    table.one("cholesky_inverse", move |c| ops::cholesky_inverse(c.x()?, upper(c, 1)));
    table.one("cholesky_solve", move |c| ops::cholesky_solve(c.x()?, c.tensor(1, "input2")?, upper(c, 2)));

    for name in ["linalg.det", "linalg.det.singular"] {
        table.unary(name, ops::det);
    }
    table.two("linalg.slogdet", |c| ops::slogdet(c.x()?));
    table.unary("logdet", ops::logdet);
    table.unary("matrix_exp", ops::matrix_exp);

    table.two("linalg.eigh", |c| ops::eigh(c.x()?, is_upper(c)));
    table.one("linalg.eigvalsh", |c| ops::eigvalsh(c.x()?, is_upper(c)));
    table.unary("linalg.matrix_sqrth", ops::matrix_sqrth);

    table.unary("linalg.inv", ops::inv);
    table.two("linalg.inv_ex", |c| ops::inv_ex(c.x()?));
    table.one("linalg.solve", |c| ops::solve(c.x()?, c.y()?, left(c)));
    table.two("linalg.solve_ex", |c| ops::solve_ex(c.x()?, c.y()?, left(c)));
    table.one("linalg.solve_triangular", |c| {
        ops::solve_triangular(c.x()?, c.y()?, c.flag(KEY, "upper"), left(c), c.flag(KEY, "unitriangular"))
    });
    table.many("triangular_solve", |c| {
        let (a, upper) = (c.tensor(1, "A")?, c.get(2, "upper").is_none() || c.flag(2, "upper"));
        let read = if c.flag(3, "transpose") { ops::transpose(a, -2, -1)? } else { a.clone() };
        let x =
            ops::solve_triangular(&read, c.x()?, upper != c.flag(3, "transpose"), true, c.flag(4, "unitriangular"))?;
        Ok(vec![x, a.clone()])
    });
    table.one("linalg.tensorinv", |c| ops::tensorinv(c.x()?, c.int(1, "ind").unwrap_or(2) as usize));
    table.one("linalg.tensorsolve", |c| ops::tensorsolve(c.x()?, c.y()?, &c.ints(2, "dims").unwrap_or_default()));

    table.many("linalg.lstsq", least_squares);
    table.many("linalg.lstsq.grad_oriented", |c| Ok(least_squares(c)?.into_iter().take(2).collect()));

    table.many("linalg.lu", |c| ops::lu(c.x()?).map(|(p, l, u)| vec![p, l, u]));
    table.two("linalg.lu_factor", |c| ops::lu_factor_ex(c.x()?).map(|(packed, pivots, _)| (packed, pivots)));
    for name in ["lu", "linalg.lu_factor_ex"] {
        table.many(name, move |c| {
            let (packed, pivots, info) = ops::lu_factor_ex(c.x()?)?;
            let short = name == "lu" && !c.flag(2, "get_infos");
            Ok(if short { vec![packed, pivots] } else { vec![packed, pivots, info] })
        });
    }
    table.one("lu_solve", |c| ops::lu_solve(c.tensor(1, "LU_data")?, c.tensor(2, "LU_pivots")?, c.x()?, true, false));
    table.one("linalg.lu_solve", |c| {
        ops::lu_solve(c.x()?, c.tensor(1, "pivots")?, c.tensor(2, "B")?, left(c), c.flag(KEY, "adjoint"))
    });
    table.many("lu_unpack", |c| {
        let (p, l, u) = ops::lu_unpack(c.x()?, c.tensor(1, "LU_pivots")?)?;
        let wanted = |at, name| c.get(at, name).is_none() || c.flag(at, name);
        let kept = |wanted: bool, x: Tensor| if wanted { Ok(x) } else { ops::zeros([0], x.dtype()) };
        let data = wanted(2, "unpack_data");
        Ok(vec![kept(wanted(3, "unpack_pivots"), p)?, kept(data, l)?, kept(data, u)?])
    });

    table.two("linalg.ldl_factor", |c| ops::ldl_factor(c.x()?));
    table.many("linalg.ldl_factor_ex", |c| {
        ops::ldl_factor_ex(c.x()?).map(|(packed, pivots, info)| vec![packed, pivots, info])
    });
    table.one("linalg.ldl_solve", |c| ops::ldl_solve(c.x()?, c.tensor(1, "pivots")?, c.tensor(2, "B")?));

    for name in ["linalg.matrix_rank", "linalg.matrix_rank.hermitian"] {
        table.one(name, |c| ops::matrix_rank(c.x()?, &cutoff(c)?));
    }
    for name in ["linalg.pinv", "linalg.pinv.hermitian"] {
        table.one(name, |c| ops::pinv(c.x()?, &cutoff(c)?));
    }
    table.one("linalg.pinv.singular", |c| {
        ops::pinv(&ops::matmul(c.x()?, &ops::transpose(c.y()?, -2, -1)?)?, &Cutoff::default())
    });
    table.one("pinverse", |c| ops::pinv(c.x()?, &Cutoff::relative(c.float(1, "rcond").unwrap_or(1e-15))));

    table.two("linalg.qr", |c| {
        let mode = match c.text(1, "mode") {
            Some("complete") => QrMode::Complete,
            Some("r") => QrMode::R,
            _ => QrMode::Reduced,
        };
        ops::qr(c.x()?, mode)
    });
    table.two("qr", |c| {
        let some = c.get(1, "some").is_none() || c.flag(1, "some");
        ops::qr(c.x()?, if some { QrMode::Reduced } else { QrMode::Complete })
    });
    table.two("geqrf", |c| ops::geqrf(c.x()?));
    table.one("linalg.householder_product", |c| ops::householder_product(c.x()?, c.tensor(1, "tau")?));
    table.one("ormqr", |c| {
        let left = c.get(3, "left").is_none() || c.flag(3, "left");
        ops::ormqr(c.x()?, c.tensor(1, "tau")?, c.tensor(2, "other")?, left, c.flag(4, "transpose"))
    });

    table.many("linalg.svd", |c| {
        let full = c.get(1, "full_matrices").is_none() || c.flag(1, "full_matrices");
        ops::svd(c.x()?, full).map(|(u, s, vt)| vec![u, s, vt])
    });
    table.many("svd", |c| {
        let some = c.get(1, "some").is_none() || c.flag(1, "some");
        let (u, s, vt) = ops::svd(c.x()?, !some)?;
        Ok(vec![u, s, ops::transpose(&vt, -2, -1)?])
    });
    table.unary("linalg.svdvals", ops::svdvals);
    table.two("linalg.polar", |c| ops::polar(c.x()?));

    table.one("linalg.cond", |c| ops::cond(c.x()?, matrix_order(c, 1, "p").unwrap_or(Ok(2.into()))?));
    for name in ["linalg.norm", "linalg.norm.subgradients_at_zero"] {
        table.one(name, norm);
    }
    table.one("linalg.matrix_norm", |c| {
        let axes = c.ints(2, "dim").unwrap_or(vec![-2, -1]);
        matrix_norm(c, axes, c.flag(3, "keepdim"))
    });
    table.one("linalg.vector_norm", |c| vector_norm(c, c.ints(2, "dim")));
    table.one("norm.nuc", |c| {
        let axes = pair(c.ints(2, "dim").unwrap_or(vec![0, 1]))?;
        ops::matrix_norm(c.x()?, MatrixNorm::Nuclear, axes, c.flag(3, "keepdim"))
    });
    table.one("norm", |c| ops::norm(c.x()?, c.float(1, "p").unwrap_or(2.0), c.reduced(2, "dim")));

    table.one("linalg.matrix_power", |c| ops::matrix_power(c.x()?, c.int(1, "n").unwrap_or(0)));
    table.one("linalg.multi_dot", |c| ops::multi_dot(&c.tensors(0)?));
    table.one("linalg.vander", |c| {
        ops::vander(&super::shape::at_least(c.x()?, 1)?, c.int(KEY, "N").map(|n| n as usize))
    });
    table.one("linalg.vecdot", |c| ops::vecdot(c.x()?, c.y()?, c.int(2, "dim").unwrap_or(-1)));
    table.one("linalg.cross", |c| {
        // Pellucid also broadcasts over missing axes.
        if c.x()?.rank() != c.y()?.rank() {
            return Err(Error::shapes(
                "cross",
                [c.x()?.shape(), c.y()?.shape()],
                "both operands must have the same rank",
            ));
        }
        ops::cross(c.x()?, c.y()?, c.int(2, "dim").unwrap_or(-1))
    });
    table.binary("outer", ops::outer);
}

fn left(c: &Call) -> bool {
    c.get(KEY, "left").is_none() || c.flag(KEY, "left")
}

fn is_upper(c: &Call) -> bool {
    c.text(1, "UPLO").is_some_and(|triangle| triangle.eq_ignore_ascii_case("u"))
}

/// Solves a least-squares problem. In PyTorch, the driver determines which outputs are empty.
fn least_squares(c: &Call) -> Result<Vec<Tensor>> {
    let found = ops::lstsq(c.x()?, c.y()?, c.float(2, "rcond"))?;
    let driver = c.text(KEY, "driver").unwrap_or("gelsy");
    let residuals = if driver == "gelsy" { ops::zeros([0], c.x()?.dtype())? } else { found.residuals };
    let rank = if driver == "gels" { ops::zeros([0], DType::I64)? } else { found.rank };
    let values =
        if matches!(driver, "gelsd" | "gelss") { found.singular_values } else { ops::zeros([0], c.x()?.dtype())? };
    Ok(vec![found.solution, residuals, rank, values])
}

fn cutoff(c: &Call) -> Result<Cutoff> {
    let bound = |name| match c.optional(KEY, name) {
        Some(tensor) => Some(tensor.clone()),
        None => c.float(KEY, name).map(Tensor::from),
    };
    Ok(Cutoff { atol: bound("atol"), rtol: bound("rtol"), hermitian: c.flag(KEY, "hermitian") })
}

/// Returns the kind of norm that an argument names, if any.
fn matrix_order(c: &Call, at: usize, name: &str) -> Option<Result<MatrixNorm>> {
    c.get(at, name)?;
    Some(match (c.text(at, name), c.float(at, name)) {
        (Some("fro"), _) => Ok(MatrixNorm::Frobenius),
        (Some("nuc"), _) => Ok(MatrixNorm::Nuclear),
        (None, Some(order)) => Ok(order.into()),
        _ => Err(Error::invalid("call", format!("{name} is not a matrix norm"))),
    })
}

fn pair(axes: Vec<isize>) -> Result<[isize; 2]> {
    axes.try_into().map_err(|_| Error::invalid("call", "a matrix norm must have two axes"))
}

fn matrix_norm(c: &Call, axes: Vec<isize>, keepdims: bool) -> Result<Tensor> {
    ops::matrix_norm(c.x()?, matrix_order(c, 1, "ord").unwrap_or(Ok(MatrixNorm::Frobenius))?, pair(axes)?, keepdims)
}

fn vector_norm(c: &Call, axes: Option<Vec<isize>>) -> Result<Tensor> {
    let axes = axes.filter(|axes| !axes.is_empty()).map_or(over(..), |axes| axes.into());
    let axes = if c.x()?.rank() == 0 { over(..) } else { axes };
    let axes = if c.flag(3, "keepdim") { axes.keepdims() } else { axes };
    ops::norm(c.x()?, c.float(1, "ord").unwrap_or(2.0), axes)
}

/// Computes the norm of a vector or a matrix. The number of axes (without axes, the rank) selects the kind of norm.
fn norm(c: &Call) -> Result<Tensor> {
    let axes = c.ints(2, "dim");
    let ordered = c.get(1, "ord").is_some();
    let named = c.text(1, "ord").is_some();
    match axes {
        None if !ordered => vector_norm(c, None),
        None if c.x()?.rank() == 2 => matrix_norm(c, vec![0, 1], c.flag(3, "keepdim")),
        Some(axes) if axes.len() == 2 && (ordered || named) => matrix_norm(c, axes, c.flag(3, "keepdim")),
        axes => vector_norm(c, axes),
    }
}
