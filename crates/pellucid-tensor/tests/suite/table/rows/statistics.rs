//! Covariances, mean and variance pairs, and integrals of samples.

use crate::table::nd::Nd;
use crate::table::row::{Row, Rule, axis_rejected, real, shape_rejected};
use ops::{CovOptions, Spacing, over};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

const FREQUENCIES: [i64; 4] = [1, 3, 2, 1];
const WEIGHTS: [f64; 4] = [0.5, 1.0, 0.25, 2.0];

/// Computes the covariance by its definition, for weights w of the observations and n degrees of freedom.
fn covariance(x: &Nd, w: &[f64], n: f64) -> Nd {
    let (variables, count) = (x.shape[0], x.shape[1]);
    let total: f64 = w.iter().sum();
    let mean = |i: usize| (0..count).map(|k| w[k] * x.at(&[i, k])).sum::<f64>() / total;
    Nd::from_fn(&[variables, variables], |ix| {
        let term = |k: usize| w[k] * (x.at(&[ix[0], k]) - mean(ix[0])) * (x.at(&[ix[1], k]) - mean(ix[1]));
        (0..count).map(term).sum::<f64>() / n
    })
}

fn moments(x: &[f64], ddof: f64) -> (f64, f64) {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    (x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (x.len() as f64 - ddof), mean)
}

fn area(y: &[f64], x: impl Fn(usize) -> f64) -> f64 {
    (1..y.len()).map(|i| 0.5 * (x(i) - x(i - 1)) * (y[i] + y[i - 1])).sum()
}

pub(super) fn rows() -> Vec<Row> {
    let both = |pair: Result<(Tensor, Tensor)>| pair.map(|(a, b)| vec![a, b]);
    let points = || Tensor::from([0.0, 1.0, 1.5, 4.0]);
    let at = |i: usize| [0.0, 1.0, 1.5, 4.0][i];
    let sums = |y: &[f64], x: fn(usize) -> f64| (2..=y.len()).map(|n| area(&y[..n], x)).collect::<Vec<f64>>();
    let rows = vec![
        Row::new("cov")
            .case(
                "three variables",
                [real([3, 4])],
                |x| ops::cov(&x[0], CovOptions::default()),
                |x| covariance(&x[0], &[1.0; 4], 3.0),
            )
            .floats_only()
            .case(
                "of one",
                [real([4])],
                |x| ops::cov(&x[0], CovOptions { correction: 0.0, ..Default::default() }),
                |x| covariance(&x[0].reshape(&[1, 4]), &[1.0; 4], 4.0).reshape(&[]),
            )
            .floats_only()
            .case(
                "with frequencies and weights",
                [real([2, 4])],
                |x| {
                    let (f, a) = (Tensor::from(FREQUENCIES), Tensor::from(WEIGHTS));
                    ops::cov(
                        &x[0],
                        CovOptions { correction: 1.0, frequencies: Some(&f), weights: Some(&a.to_dtype(x[0].dtype())) },
                    )
                },
                |x| {
                    let w: Vec<f64> = (0..4).map(|k| FREQUENCIES[k] as f64 * WEIGHTS[k]).collect();
                    let total: f64 = w.iter().sum();
                    let lost = (0..4).map(|k| w[k] * WEIGHTS[k]).sum::<f64>() / total;
                    covariance(&x[0], &w, total - lost)
                },
            )
            .floats_only()
            .check("three axes must be an error", || {
                shape_rejected(ops::cov(&Tensor::zeros([1, 1, 1], DType::F32), CovOptions::default()))
            })
            .check("a wrong number of weights must be an error", || {
                let (x, a) = (Tensor::zeros([2, 3], DType::F32), Tensor::zeros([2], DType::F32));
                shape_rejected(ops::cov(&x, CovOptions { weights: Some(&a), ..Default::default() }))
            })
            .check("float frequencies must be an error", || {
                let x = Tensor::zeros([3], DType::F32);
                let rejected = ops::cov(&x, CovOptions { frequencies: Some(&x), ..Default::default() });
                Ok(matches!(rejected, Err(Error::DTypeMismatch { .. })))
            }),
        Row::new("corrcoef")
            .case(
                "three variables",
                [real([3, 5])],
                |x| ops::corrcoef(&x[0]),
                |x| {
                    let c = covariance(&x[0], &[1.0; 5], 4.0);
                    Nd::from_fn(&[3, 3], |ix| c.at(ix) / (c.at(&[ix[0], ix[0]]) * c.at(&[ix[1], ix[1]])).sqrt())
                },
            )
            .floats_only()
            .check("one variable must give 1", || {
                Ok(ops::corrcoef(&Tensor::from([1.0, 4.0, 5.0]))?.item::<f64>() == 1.0)
            }),
        Row::new("var_mean")
            .outputs(
                "rows",
                [real([2, 4])],
                move |x| both(ops::var_mean(&x[0], over(1).ddof(1))),
                |x| vec![x[0].reduce(&[1], |x| moments(x, 1.0).0), x[0].reduce(&[1], |x| moments(x, 1.0).1)],
            )
            .floats_only()
            .check("an invalid axis must be an error", || axis_rejected(ops::var_mean(&Tensor::from([1.0]), 1))),
        Row::new("std_mean")
            .outputs(
                "all",
                [real([2, 4])],
                move |x| both(ops::std_mean(&x[0], over(..).keepdims())),
                |x| vec![x[0].fold(&[0, 1], |x| moments(x, 0.0).0.sqrt()), x[0].fold(&[0, 1], |x| moments(x, 0.0).1)],
            )
            .floats_only()
            .check("an invalid axis must be an error", || axis_rejected(ops::std_mean(&Tensor::from([1.0]), 1))),
        Row::new("trapezoid")
            .case(
                "of steps",
                [real([4, 2])],
                |x| ops::trapezoid(&x[0], Spacing::Step(0.5), 0),
                |x| x[0].reduce(&[0], |y| area(y, |i| 0.5 * i as f64)),
            )
            .floats_only()
            .case(
                "of points",
                [real([2, 4])],
                move |x| ops::trapezoid(&x[0], Spacing::Points(&points().to_dtype(x[0].dtype())), -1),
                move |x| x[0].reduce(&[1], |y| area(y, at)),
            )
            .floats_only()
            .case(
                "with a gradient to the points",
                [real([3]), real([3])],
                |x| ops::trapezoid(&x[0], Spacing::Points(&x[1]), 0),
                |x| Nd::scalar(area(&x[0].data, |i| x[1].data[i])),
            )
            .floats_only()
            .check("an empty input must give 0", || {
                Ok(ops::trapezoid(&Tensor::zeros([0], DType::F64), Spacing::Step(1.0), 0)?.item::<f64>() == 0.0)
            })
            .check("a wrong number of points must be an error", move || {
                shape_rejected(ops::trapezoid(&Tensor::zeros([3], DType::F64), Spacing::Points(&points()), 0))
            }),
        Row::new("cumulative_trapezoid")
            .case(
                "of points",
                [real([2, 4])],
                move |x| ops::cumulative_trapezoid(&x[0], Spacing::Points(&points().to_dtype(x[0].dtype())), 1),
                move |x| {
                    let rows: Vec<f64> =
                        (0..2).flat_map(|r| sums(&x[0].data[4 * r..4 * r + 4], |i| [0.0, 1.0, 1.5, 4.0][i])).collect();
                    Nd { shape: vec![2, 3], data: rows }
                },
            )
            .floats_only()
            .check("an invalid axis must be an error", || {
                axis_rejected(ops::cumulative_trapezoid(&Tensor::from([1.0]), Spacing::Step(1.0), 1))
            }),
    ];
    rows.into_iter().map(|row| row.rule(Rule::FloatsOnly).ordinary().ulps(64.0).scale(8.0)).collect()
}
