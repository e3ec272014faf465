//! Determinants.

use super::{not_square, positive, positive_of, regular, regular_of, row, singular, zeros};
use crate::table::algebra::{Mat, identity, numbers, solve_with_determinant};
use crate::table::nd::Nd;
use crate::table::row::{Row, Rule, one, real};
use pellucid_tensor::{GradCheckOptions, Result, Tensor, gradcheck, gradgradcheck, ops};

/// Checks the gradients of det at a matrix, up to third order.
fn det_gradients(x: Tensor) -> Result<bool> {
    let x = x.requires_grad_(true);
    let f = |x: &[Tensor]| one(ops::det(&x[0]));
    gradcheck(f, &[&x], GradCheckOptions::default())?;
    gradgradcheck(f, &[&x], GradCheckOptions::default())?;
    Ok(true)
}

pub(super) fn rows() -> Vec<Row> {
    let det = |x: &Mat| solve_with_determinant(x, &identity(x.len())).1;
    let of = move |x: &[Nd]| numbers(&x[0], |a| det(&regular_of(a)));
    let number = |name| row(name).scale(64.0);
    vec![
        number("det")
            .case("one", [real([3, 3])], |x| ops::det(&regular(&x[0])?), of)
            .case("a batch", [real([2, 1, 2, 2])], |x| ops::det(&regular(&x[0])?), of)
            .floats_only()
            .case("an empty batch", [real([0, 2, 2])], |x| ops::det(&x[0]), |x| x[0].reshape(&[0]))
            .floats_only()
            .check("an empty matrix must have determinant 1", || {
                Ok(ops::det(&zeros(&[2, 0, 0]))?.to_vec::<f64>() == [1.0, 1.0])
            })
            .check("gradients at rank 1", || {
                let x = Tensor::from([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [-1.0, -2.0, -3.0]]);
                Ok(ops::det(&x)?.item::<f64>() == 0.0 && det_gradients(x)?)
            })
            .check("gradients at rank 2", || {
                let x = Tensor::from([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [5.0, 7.0, 9.0]]);
                Ok(ops::det(&x)?.item::<f64>().abs() < 1e-14 && det_gradients(x)?)
            })
            .check("gradients at a nilpotent matrix of rank 2, whose pivots are all zero", || {
                det_gradients(Tensor::from([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]))
            })
            .check("gradients at the zero matrix", || det_gradients(zeros(&[2, 2, 2])))
            .check("a large matrix without full rank", || {
                let x = ops::sin(&ops::square(&ops::reshape(&Tensor::arange(1.0, 101.0, 1.0), [10, 10])?)?)?;
                det_gradients(ops::concatenate(
                    &[&ops::narrow(&x, 0, 0, 9)?, &ops::sum(&ops::narrow(&x, 0, 0, 2)?, ops::over(0).keepdims())?],
                    0,
                )?)
            })
            .check("a matrix that is not square must be an error", || not_square(ops::det)),
        number("slogdet")
            .rules([Rule::Precise, Rule::Precise])
            .outputs(
                "one",
                [real([3, 3])],
                |x| ops::slogdet(&regular(&x[0])?).map(|(sign, log)| vec![sign, log]),
                move |x| vec![of(x).map(f64::signum), of(x).map(|d| d.abs().ln())],
            )
            .outputs(
                "negative ones",
                [real([2, 3, 3])],
                |x| ops::slogdet(&ops::neg(&regular(&x[0])?)?).map(|(sign, log)| vec![sign, log]),
                move |x| vec![of(x).map(|d| -d.signum()), of(x).map(|d| d.abs().ln())],
            )
            .floats_only()
            .check("a singular matrix", || {
                let (sign, log) = ops::slogdet(&singular())?;
                Ok(sign.to_vec::<f64>() == [1.0, 0.0] && log.to_vec::<f64>()[1] == f64::NEG_INFINITY)
            })
            .check("an empty input", || {
                let (sign, log) = ops::slogdet(&zeros(&[0, 0]))?;
                Ok((sign.item::<f64>(), log.item::<f64>()) == (1.0, 0.0))
            }),
        number("logdet")
            .case(
                "one",
                [real([3, 3])],
                |x| ops::logdet(&positive(&x[0])?),
                move |x| numbers(&x[0], |a| det(&positive_of(a)).ln()),
            )
            .check("a negative determinant must give NaN, and zero must give −∞", || {
                let x = Tensor::from([[[1.0, 0.0], [0.0, -1.0]], [[1.0, 2.0], [2.0, 4.0]]]);
                let y = ops::logdet(&x)?.to_vec::<f64>();
                Ok(y[0].is_nan() && y[1] == f64::NEG_INFINITY)
            }),
    ]
}
