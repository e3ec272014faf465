//! Cholesky and LU factors.

use super::{
    names_the_second, not_square, positive, positive_of, promotes, regular, regular_of, row, second_is_nan, singular,
    square, triangle, zeros,
};
use crate::table::algebra::{Mat, each, identity, inverse, mat, solve_with_determinant, times, transposed};
use crate::table::nd::Nd;
use crate::table::row::{Row, Rule, argument_rejected, one, real, shape_rejected};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

/// Returns the lower Cholesky factor, computed column by column.
fn cholesky_of(a: &Mat) -> Mat {
    let n = a.len();
    let mut l = mat(n, n, |_, _| 0.0);
    for j in 0..n {
        let rest = |l: &Mat, i: usize| a[i][j] - (0..j).map(|k| l[i][k] * l[j][k]).sum::<f64>();
        l[j][j] = rest(&l, j).sqrt();
        (j + 1..n).for_each(|i| l[i][j] = rest(&l, i) / l[j][j]);
    }
    l
}

/// Returns L below the diagonal and U, for matrices whose rows need no exchange.
fn lu_of(a: &Mat) -> Mat {
    let (m, n) = (a.len(), a[0].len());
    let mut a = a.clone();
    for k in 0..m.min(n) {
        for i in k + 1..m {
            a[i][k] /= a[k][k];
            (k + 1..n).for_each(|j| a[i][j] -= a[i][k] * a[k][j]);
        }
    }
    a
}

pub(super) fn cholesky_rows() -> Vec<Row> {
    let indefinite = || Tensor::from([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, -1.0]]]);
    vec![
        square("cholesky", |x| ops::cholesky(&positive(x)?, false), |x| cholesky_of(&positive_of(x)))
            .case(
                "upper",
                [real([2, 2])],
                |x| ops::cholesky(&positive(&x[0])?, true),
                |x| each(x, |a| transposed(&cholesky_of(&positive_of(&a[0])))),
            )
            .floats_only()
            .check("a matrix that is not positive definite must be an error", move || {
                names_the_second(ops::cholesky(&indefinite(), false))
            })
            .check("the result must be the same in deferred execution", move || {
                second_is_nan(|| ops::cholesky(&indefinite(), false))
            })
            .check("NaN in the input must not be an error", || {
                Ok(ops::cholesky(&Tensor::full([2, 2], f64::NAN, DType::F64), false)?
                    .to_vec::<f64>()
                    .iter()
                    .all(|x| x.is_nan()))
            })
            .check("a matrix that is not square must be an error", || not_square(|x| ops::cholesky(x, false))),
        row("cholesky_ex")
            .rules([Rule::Precise, Rule::OfPrecise(DType::I32)])
            .outputs(
                "good ones",
                [real([2, 2])],
                |x| ops::cholesky_ex(&positive(&x[0])?, false).map(|(l, info)| vec![l, info]),
                |x| vec![each(x, |a| cholesky_of(&positive_of(&a[0]))), Nd::scalar(0.0)],
            )
            .check("info must be the order of the minor that is not positive", move || {
                Ok(ops::cholesky_ex(&indefinite(), true)?.1.to_vec::<i32>() == [0, 2])
            }),
        square(
            "cholesky_inverse",
            |x| ops::cholesky_inverse(&regular(x)?, false),
            |x| {
                let l = triangle(&regular_of(x), false, false);
                inverse(&times(&l, &transposed(&l)))
            },
        )
        .case(
            "upper",
            [real([2, 2])],
            |x| ops::cholesky_inverse(&regular(&x[0])?, true),
            |x| {
                each(x, |a| {
                    let u = triangle(&regular_of(&a[0]), true, false);
                    inverse(&times(&transposed(&u), &u))
                })
            },
        )
        .floats_only()
        .check("a negative power of a singular matrix must be an error", || {
            let l = Tensor::from([[[1.0, 2.0], [0.0, 1.0]], [[1.0, 2.0], [0.0, 0.0]]]);
            names_the_second(ops::cholesky_inverse(&l, true))
        }),
        row("cholesky_solve")
            .case(
                "lower",
                [real([3, 2]), real([3, 3])],
                |x| ops::cholesky_solve(&x[0], &regular(&x[1])?, false),
                |x| {
                    each(&[x[1].clone(), x[0].clone()], |a| {
                        let l = triangle(&regular_of(&a[0]), false, false);
                        solve_with_determinant(&times(&l, &transposed(&l)), &a[1]).0
                    })
                },
            )
            .floats_only()
            .check("dtypes must be promoted, and half precision must be an error", || {
                promotes(Tensor::from([[1i64, 0], [0, 1]]), Tensor::from([[1i64], [0]]), |a, b| {
                    ops::cholesky_solve(b, a, false)
                })
            })
            .case(
                "upper",
                [real([2, 2, 1]), real([2, 2, 2])],
                |x| ops::cholesky_solve(&x[0], &regular(&x[1])?, true),
                |x| {
                    each(&[x[1].clone(), x[0].clone()], |a| {
                        let u = triangle(&regular_of(&a[0]), true, false);
                        solve_with_determinant(&times(&transposed(&u), &u), &a[1]).0
                    })
                },
            )
            .floats_only()
            .check("unequal row counts must be an error", || {
                shape_rejected(ops::cholesky_solve(&zeros(&[2, 1]), &zeros(&[3, 3]), false))
            }),
    ]
}

/// Returns L and U in one matrix, for matrices whose rows need no exchange.
fn packed(x: &Tensor) -> Result<Tensor> {
    ops::lu_factor(&regular(x)?).map(|(packed, _)| packed)
}

pub(super) fn lu_rows() -> Vec<Row> {
    // Elements in −1..1 keep the diagonal of x + 4·I dominant, so no row is exchanged.
    let factors = |x: &[Nd]| each(x, |a| lu_of(&regular_of(&a[0])));
    let quiet = |row: Row| row.within(-1.0..=1.0);
    let unpacked = |x: &[Nd]| {
        vec![
            each(x, |a| identity(a[0].len())),
            each(x, |a| triangle(&lu_of(&regular_of(&a[0])), false, true)),
            each(x, |a| triangle(&lu_of(&regular_of(&a[0])), true, false)),
        ]
    };
    let straight = |shape: &[usize]| Nd::from_fn(shape, |ix| ix[ix.len() - 1] as f64 + 1.0);
    let product = |x: &[Tensor]| {
        let (p, l, u) = ops::lu(&x[0])?;
        one(ops::matmul(&ops::matmul(&p, &l)?, &u))
    };
    let thirds = [Rule::Precise, Rule::Precise, Rule::Precise];
    let counts = Rule::OfPrecise(DType::I32);
    let exchanged = || Tensor::from([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 8.0, 9.5]]);
    vec![
        quiet(row("lu"))
            .rules(thirds)
            .outputs("one", [real([3, 3])], |x| ops::lu(&regular(&x[0])?).map(|(p, l, u)| vec![p, l, u]), unpacked)
            .outputs("more rows", [real([4, 2])], product, |x| vec![x[0].clone()])
            .floats_only()
            .outputs("more columns", [real([2, 2, 3])], product, |x| vec![x[0].clone()])
            .floats_only()
            .outputs("nothing", [real([0, 3])], product, |x| vec![x[0].clone()])
            .floats_only()
            .check("singular matrices must have LU factors", || {
                let x = singular();
                let (p, l, u) = ops::lu(&x)?;
                Ok(ops::matmul(&ops::matmul(&p, &l)?, &u)?.to_vec::<f64>() == x.to_vec::<f64>())
            }),
        quiet(row("lu_factor"))
            .rules([Rule::Precise, counts])
            .outputs(
                "one",
                [real([3, 3])],
                |x| ops::lu_factor(&regular(&x[0])?).map(|(packed, pivots)| vec![packed, pivots]),
                move |x| vec![factors(x), straight(&[3])],
            )
            .check("exchanged rows", move || Ok(ops::lu_factor(&exchanged())?.1.to_vec::<i32>() == [3, 3, 3]))
            .check("a singular matrix must be an error that names the matrix", || {
                names_the_second(ops::lu_factor(&singular()))
            }),
        quiet(row("lu_factor_ex"))
            .rules([Rule::Precise, counts, counts])
            .outputs(
                "a batch",
                [real([2, 2, 2])],
                |x| ops::lu_factor_ex(&regular(&x[0])?).map(|(packed, pivots, info)| vec![packed, pivots, info]),
                move |x| vec![factors(x), straight(&[2, 2]), Nd::from_fn(&[2], |_| 0.0)],
            )
            .check("a singular matrix must be an error that names the matrix", || {
                Ok(ops::lu_factor_ex(&singular())?.2.to_vec::<i32>() == [0, 2])
            }),
        row("lu_solve")
            .case(
                "matrices",
                [real([3, 4])],
                |x| {
                    let (a, b) = (ops::narrow(&x[0], -1, 0, 3)?, ops::narrow(&x[0], -1, 3, 1)?);
                    let (packed, pivots) = ops::lu_factor(&regular(&a)?)?;
                    ops::lu_solve(&packed, &pivots, &b, true, false)
                },
                |x| {
                    each(&[x[0].narrow(1, 0, 3), x[0].narrow(1, 3, 1)], |a| {
                        solve_with_determinant(&regular_of(&a[0]), &a[1]).0
                    })
                },
            )
            .case(
                "transposed",
                [real([2, 2, 3])],
                |x| {
                    let (a, b) = (ops::narrow(&x[0], -1, 0, 2)?, ops::narrow(&x[0], -1, 2, 1)?);
                    let (packed, pivots) = ops::lu_factor(&regular(&a)?)?;
                    ops::lu_solve(&packed, &pivots, &b, true, true)
                },
                |x| {
                    let parts = [x[0].narrow(2, 0, 2), x[0].narrow(2, 2, 1)];
                    each(&parts, |a| solve_with_determinant(&transposed(&regular_of(&a[0])), &a[1]).0)
                },
            )
            .floats_only()
            .check("right side, with exchanged rows", move || {
                let (packed, pivots) = ops::lu_factor(&exchanged())?;
                let b = Tensor::from([[1.0, 2.0, 3.0]]);
                let x = ops::lu_solve(&packed, &pivots, &b, false, false)?;
                let back = ops::sub(&ops::matmul(&x, &exchanged())?, &b)?;
                Ok(back.to_vec::<f64>().iter().all(|e| e.abs() < 1e-12))
            })
            .check("pivots out of range must be an error", || {
                argument_rejected(ops::lu_solve(
                    &zeros(&[2, 2]),
                    &Tensor::from([1i32, 3]),
                    &zeros(&[2, 1]),
                    true,
                    false,
                ))
            })
            .check("pivots of another shape must be an error", || {
                shape_rejected(ops::lu_solve(&zeros(&[2, 2]), &Tensor::from([1i32]), &zeros(&[2, 1]), true, false))
            }),
        quiet(row("lu_unpack"))
            .rules(thirds)
            .outputs(
                "one",
                [real([3, 3])],
                |x| {
                    let pivots = Tensor::from([1i32, 2, 3]);
                    ops::lu_unpack(&packed(&x[0])?, &pivots).map(|(p, l, u)| vec![p, l, u])
                },
                unpacked,
            )
            .check("P must represent the row exchanges", || {
                let (p, _, _) = ops::lu_unpack(&zeros(&[3, 3]), &Tensor::from([2i64, 3, 3]))?;
                // Rows 1, 2, 0 of A are rows 0, 1, 2 of P·A.
                Ok(p.to_vec::<f64>() == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0])
            })
            .check("float pivots must be an error", || {
                let rejected = ops::lu_unpack(&zeros(&[2, 2]), &Tensor::from([1.0, 2.0]));
                Ok(matches!(rejected, Err(Error::DTypeMismatch { .. })))
            }),
    ]
}
