//! Running reductions along an axis.

use crate::table::nd::Nd;
use crate::table::row::{Gradient::Third, Row, Rule, real};
use ops::Axes;
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

/// Applies `f` to each prefix of a row.
fn running(f: impl Fn(&[f64]) -> f64) -> impl Fn(&[f64]) -> Vec<f64> {
    move |x| (1..=x.len()).map(|n| f(&x[..n])).collect()
}

fn log_sum_exp(x: &[f64]) -> f64 {
    let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if most.is_infinite() { most } else { most + x.iter().map(|v| (v - most).exp()).sum::<f64>().ln() }
}

/// Returns the position of the last maximum.
fn last_largest(x: &[f64]) -> usize {
    (0..x.len()).fold(0, |best, i| if x[best].is_nan() && !x[i].is_nan() || x[i] < x[best] { best } else { i })
}

/// Returns a row of one output, over every kind of axis.
fn row(name: &'static str, call: fn(&Tensor, Axes) -> Result<Tensor>, value: fn(&[f64]) -> f64) -> Row {
    let along = move |axis: usize| move |x: &[Nd]| x[0].rows(&[axis], running(value));
    Row::new(name)
        .rule(Rule::Counts)
        .ulps(32.0)
        .scale(4.0)
        .gradient(Third)
        .case("the last axis", [real([2, 4])], move |x| call(&x[0], (-1).into()), along(1))
        .case("the first axis", [real([4, 2])], move |x| call(&x[0], 0.into()), along(0))
        .floats_only()
        .case("the middle axis", [real([2, 3, 2])], move |x| call(&x[0], 1.into()), along(1))
        .floats_only()
        .case(
            "all as one",
            [real([2, 3])],
            move |x| call(&x[0], (..).into()),
            move |x| x[0].reshape(&[6]).rows(&[0], running(value)),
        )
        .floats_only()
        .case("nothing", [real([0, 3])], move |x| call(&x[0], 0.into()), along(0))
        .floats_only()
        .check("a 0-d tensor must be an error, since it has no axis", move || {
            Ok(call(&Tensor::from(1.0), 0.into()).is_err())
        })
        .check("keepdims must be an error", move || {
            let x = Tensor::zeros([2, 3], DType::F32);
            Ok(matches!(call(&x, ops::over(1).keepdims()), Err(Error::InvalidArgument { .. })))
        })
        .check("several axes must be an error", move || {
            let x = Tensor::zeros([2, 3], DType::F32);
            Ok(matches!(call(&x, [0, 1].into()), Err(Error::InvalidArgument { .. })))
        })
}

fn extreme(name: &'static str, call: fn(&Tensor, Axes) -> Result<(Tensor, Tensor)>, sign: f64) -> Row {
    let pair = move |x: &[Tensor], axis: Axes| call(&x[0], axis).map(|(values, positions)| vec![values, positions]);
    let place = move |x: &[f64]| last_largest(&x.iter().map(|v| sign * v).collect::<Vec<_>>());
    let both = move |x: &Nd, axis: usize| {
        vec![x.rows(&[axis], running(|x| x[place(x)])), x.rows(&[axis], running(|x| place(x) as f64))]
    };
    Row::new(name)
        .rules([Rule::Any, Rule::Always(DType::I64)])
        .outputs("the last axis", [real([2, 4])], move |x| pair(x, (-1).into()), move |x| both(&x[0], 1))
        .outputs("the first axis", [real([4, 2])], move |x| pair(x, 0.into()), move |x| both(&x[0], 0))
        .floats_only()
        .outputs("all as one", [real([2, 3])], move |x| pair(x, (..).into()), move |x| both(&x[0].reshape(&[6]), 0))
        .floats_only()
        .outputs("nothing", [real([0, 2])], move |x| pair(x, 0.into()), move |x| both(&x[0], 0))
        .floats_only()
        .ordinary()
        .check("NaN must propagate from its position, and the last of equal elements must count", move || {
            let (values, positions) = call(&Tensor::from([1.0, 1.0, f64::NAN, 3.0]), 0.into())?;
            let nan = values.to_vec::<f64>()[2..].iter().all(|v| v.is_nan());
            Ok(nan && positions.to_vec::<i64>()[1] == 1)
        })
        .check("a 0-d tensor must be an error, since it has no axis", move || {
            Ok(call(&Tensor::from(1.0), 0.into()).is_err())
        })
}

pub(super) fn rows() -> Vec<Row> {
    let difference = |x: &Nd, axis: usize| {
        let len = x.shape[axis] - 1;
        let (low, high) = (x.narrow(axis, 0, len), x.narrow(axis, 1, len));
        crate::table::nd::zip(&[high, low], |v| v[0] - v[1])
    };
    let long = |row: Row, call: fn(&Tensor) -> Result<Tensor>, value: fn(&[f64]) -> f64| {
        row.case("long", [real([1500])], move |x| call(&x[0]), move |x| x[0].rows(&[0], running(value))).long()
    };
    let sum: fn(&[f64]) -> f64 = |x| x.iter().sum();
    let product: fn(&[f64]) -> f64 = |x| x.iter().product();
    vec![
        long(row("cumsum", ops::cumsum, sum), |x| ops::cumsum(x, 0), sum).any_zero(),
        row("cumprod", ops::cumprod, product)
            .case(
                "zeros",
                [real([2, 5])],
                |x| ops::cumprod(&ops::where_(&[true, false, true, false, true].into(), &x[0], 0)?, 1),
                |x| {
                    let zeroed = Nd::from_fn(&[2, 5], |ix| if ix[1] % 2 == 1 { 0.0 } else { x[0].at(ix) });
                    zeroed.rows(&[1], running(|x| x.iter().product()))
                },
            )
            .floats_only()
            .any_zero()
            .check("the gradient at zeros must be the product of the other factors", || {
                let x = Tensor::from([2.0, 0.0, 3.0, 0.0]).requires_grad_(true);
                ops::sum(&ops::cumprod(&x, 0)?, ..)?.backward();
                Ok(x.grad().expect("the tensor must have a gradient").to_vec::<f64>() == [1.0, 8.0, 0.0, 0.0])
            }),
        long(
            row("logcumsumexp", ops::logcumsumexp, log_sum_exp).rule(Rule::FloatsOnly).ordinary(),
            |x| ops::logcumsumexp(x, 0),
            log_sum_exp,
        )
        .check("intermediate powers must not overflow", || {
            Ok(ops::logcumsumexp(&Tensor::from([1e4, -1e4, f64::NEG_INFINITY]), 0)?.to_vec::<f64>() == [1e4; 3])
        }),
        extreme("cummax", ops::cummax, 1.0),
        extreme("cummin", ops::cummin, -1.0),
        Row::new("diff")
            .case("once", [real([2, 4])], |x| ops::diff(&x[0], 1, -1), move |x| difference(&x[0], 1))
            .floats_only()
            .case("twice", [real([4, 2])], |x| ops::diff(&x[0], 2, 0), move |x| difference(&difference(&x[0], 0), 0))
            .floats_only()
            .case("never", [real([3])], |x| ops::diff(&x[0], 0, 0), |x| x[0].clone())
            .floats_only()
            .case("more often than there are", [real([2])], |x| ops::diff(&x[0], 3, 0), |_| Nd::from_fn(&[0], |_| 0.0))
            .floats_only()
            .scale(4.0)
            .check("booleans must give true where neighbours differ", || {
                Ok(ops::diff(&[true, true, false].into(), 1, 0)?.to_vec::<bool>() == [false, true])
            })
            .check("an invalid axis must be an error", || Ok(ops::diff(&Tensor::from([1.0]), 1, 1).is_err())),
    ]
}
