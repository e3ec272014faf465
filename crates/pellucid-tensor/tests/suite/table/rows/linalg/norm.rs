//! Norms of matrices.

use super::{regular, regular_of, row, singular, zeros};
use crate::table::algebra::{Mat, inverse, numbers, singular_values, transposed};
use crate::table::row::{Row, argument_rejected, real};
use pellucid_tensor::ops::{self, MatrixNorm};
use pellucid_tensor::{Error, Tensor};

pub(super) fn rows() -> Vec<Row> {
    let sums = |a: &Mat| a.iter().map(|row| row.iter().map(|x| x.abs()).sum()).collect::<Vec<f64>>();
    let largest = |values: Vec<f64>| values.into_iter().fold(0.0, f64::max);
    let smallest = |values: Vec<f64>| values.into_iter().fold(f64::INFINITY, f64::min);
    let of = move |order: MatrixNorm, a: &Mat| match order {
        MatrixNorm::Frobenius => a.iter().flatten().map(|x| x * x).sum::<f64>().sqrt(),
        MatrixNorm::Nuclear => singular_values(a).iter().sum(),
        MatrixNorm::Order(1.0) => largest(sums(&transposed(a))),
        MatrixNorm::Order(-1.0) => smallest(sums(&transposed(a))),
        MatrixNorm::Order(2.0) => largest(singular_values(a)),
        MatrixNorm::Order(-2.0) => smallest(singular_values(a)),
        MatrixNorm::Order(p) if p > 0.0 => largest(sums(a)),
        MatrixNorm::Order(_) => smallest(sums(a)),
    };
    let orders = [1.0, -1.0, 2.0, -2.0, f64::INFINITY, f64::NEG_INFINITY].map(MatrixNorm::Order);
    let all = [MatrixNorm::Frobenius, MatrixNorm::Nuclear].into_iter().chain(orders);
    let norms = all.clone().fold(row("matrix_norm"), |row, order| {
        let row = row.case(
            format!("{order:?}"),
            [real([2, 3])],
            move |x| ops::matrix_norm(&x[0], order, [0, 1], false),
            move |x| numbers(&x[0], |a| of(order, a)),
        );
        if order == MatrixNorm::Frobenius { row } else { row.floats_only() }
    });
    let conditions = all.fold(row("cond"), |row, order| {
        let row = row.case(
            format!("{order:?}"),
            [real([2, 2, 2])],
            move |x| ops::cond(&regular(&x[0])?, order),
            move |x| numbers(&x[0], |a| of(order, &regular_of(a)) * of(order, &inverse(&regular_of(a)))),
        );
        if order == MatrixNorm::Frobenius { row } else { row.floats_only() }
    });
    vec![
        norms
            .case(
                "other axes, kept",
                [real([2, 2, 3])],
                |x| ops::matrix_norm(&x[0], MatrixNorm::Nuclear, [2, 0], true),
                |x| numbers(&x[0].permute(&[1, 2, 0]), |a| singular_values(a).iter().sum()).reshape(&[1, 2, 1]),
            )
            .floats_only()
            .check("an empty matrix", || {
                Ok(ops::matrix_norm(&zeros(&[0, 3]), MatrixNorm::Nuclear, [0, 1], false)?.item::<f64>() == 0.0)
            })
            .check("an unknown order must be an error", || {
                argument_rejected(ops::matrix_norm(&zeros(&[2, 2]), 3, [0, 1], false))
            })
            .check("a repeated axis must be an error", || {
                argument_rejected(ops::matrix_norm(&zeros(&[2, 2]), 2, [0, -2], false))
            }),
        conditions
            .check("a singular matrix", || {
                let infinite = |order: MatrixNorm| {
                    Ok::<_, Error>(ops::cond(&singular(), order)?.to_vec::<f64>()[1] == f64::INFINITY)
                };
                Ok(infinite(1.into())? && infinite(MatrixNorm::Frobenius)?)
            })
            .check("singular matrices, by singular values", || {
                let x = Tensor::from([[[0.0, 0.0], [0.0, 0.0]], [[2.0, 0.0], [0.0, 0.0]], [[f64::NAN; 2]; 2]]);
                let found = |order: f64| Ok::<_, Error>(ops::cond(&x, order)?.to_vec::<f64>());
                let [largest, smallest] = [found(2.0)?, found(-2.0)?];
                let is_right =
                    |found: Vec<f64>, singular: f64| found[..2] == [f64::INFINITY, singular] && found[2].is_nan();
                Ok(is_right(largest, f64::INFINITY) && is_right(smallest, 0.0))
            })
            .check("an empty matrix", || {
                let zero = |order: MatrixNorm| {
                    Ok::<_, Error>(ops::cond(&zeros(&[2, 0, 0]), order)?.to_vec::<f64>() == [0.0, 0.0])
                };
                Ok(zero(2.into())? && zero(MatrixNorm::Frobenius)?)
            })
            .check("any shape, by singular values", || {
                Ok(ops::cond(&Tensor::from([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), 2)?.item::<f64>() == 2.0)
            }),
    ]
}
