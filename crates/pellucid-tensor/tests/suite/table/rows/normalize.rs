//! Softmax and the normalisations.

use crate::table::nd::{Nd, zip};
use crate::table::row::{Gradient::Third, Row, Rule, real};
use pellucid_tensor::{DType, Tensor, ops};

pub(super) fn rows() -> Vec<Row> {
    vec![softmax(), log_softmax(), layer_norm(), rms_norm()]
}

/// The largest element; NaN if there is one.
fn largest(x: &[f64]) -> f64 {
    x.iter().fold(f64::NEG_INFINITY, |m, &v| if v.is_nan() || m.is_nan() { f64::NAN } else { m.max(v) })
}

fn softmax_of(x: &[f64]) -> Vec<f64> {
    let e: Vec<f64> = x.iter().map(|v| (v - largest(x)).exp()).collect();
    e.iter().map(|v| v / e.iter().sum::<f64>()).collect()
}

fn log_softmax_of(x: &[f64]) -> Vec<f64> {
    let m = largest(x);
    let sum: f64 = x.iter().map(|v| (v - m).exp()).sum();
    x.iter().map(|v| v - m - sum.ln()).collect()
}

/// A row of a normalising function over several choices of axes.
fn over_axes(
    name: &'static str,
    call: fn(&Tensor, ops::Axes) -> pellucid_tensor::Result<Tensor>,
    row_of: fn(&[f64]) -> Vec<f64>,
) -> Row {
    Row::new(name)
        .case("the last axis", [real([2, 3])], move |x| call(&x[0], (-1).into()), move |x| x[0].rows(&[1], row_of))
        .case("the first axis", [real([3, 2])], move |x| call(&x[0], 0.into()), move |x| x[0].rows(&[0], row_of))
        .floats_only()
        .case("the middle axis", [real([2, 3, 2])], move |x| call(&x[0], 1.into()), move |x| x[0].rows(&[1], row_of))
        .floats_only()
        .case("two axes", [real([2, 2, 2])], move |x| call(&x[0], [0, 2].into()), move |x| x[0].rows(&[0, 2], row_of))
        .floats_only()
        .case("all axes", [real([2, 3])], move |x| call(&x[0], (..).into()), move |x| x[0].rows(&[0, 1], row_of))
        .floats_only()
        .case("a number", [real([])], move |x| call(&x[0], (..).into()), move |x| x[0].rows(&[], row_of))
        .floats_only()
        .case("long", [real([2, 1500])], move |x| call(&x[0], (-1).into()), move |x| x[0].rows(&[1], row_of))
        .long()
        .case("no row", [real([0, 3])], move |x| call(&x[0], (-1).into()), move |x| x[0].rows(&[1], row_of))
        .floats_only()
        .case("empty rows", [real([2, 0])], move |x| call(&x[0], (-1).into()), move |x| x[0].rows(&[1], row_of))
        .floats_only()
        .gradient(Third)
        .ulps(16.0)
}

fn softmax() -> Row {
    over_axes("softmax", ops::softmax, softmax_of)
        .rule(Rule::Floats)
        .also("large numbers", || {
            Ok(ops::softmax(&Tensor::from([1e4f32, 1e4, -1e4]), 0)?.to_vec::<f32>() == [0.5, 0.5, 0.0])
        })
        .also("a masked place", || {
            Ok(ops::softmax(&Tensor::from([0.0, f64::NEG_INFINITY, 0.0]), 0)?.to_vec::<f64>() == [0.5, 0.0, 0.5])
        })
}

fn log_softmax() -> Row {
    over_axes("log_softmax", ops::log_softmax, log_softmax_of).rule(Rule::Floats).scale(2.0).also(
        "large numbers",
        || Ok(ops::log_softmax(&Tensor::from([1e4f32, -1e4]), 0)?.to_vec::<f32>() == [0.0, -2e4]),
    )
}

const EPS: f64 = 0.01;

/// The mean of f over the last `count` axes, stretched back.
fn mean_of(x: &Nd, count: usize, f: impl Fn(f64) -> f64) -> Nd {
    let axes: Vec<usize> = (x.shape.len() - count..x.shape.len()).collect();
    x.fold(&axes, |row| row.iter().map(|&v| f(v)).sum::<f64>() / row.len() as f64).broadcast(&x.shape)
}

/// (x − mean) / √(var + eps) over the last `count` axes, times a weight, plus a bias.
fn layer_norm_of(x: &[Nd], count: usize) -> Nd {
    let centred = zip(&[x[0].clone(), mean_of(&x[0], count, |v| v)], |v| v[0] - v[1]);
    affine(&centred, &mean_of(&centred, count, |v| v * v), &x[1..])
}

fn rms_norm_of(x: &[Nd], count: usize) -> Nd {
    affine(&x[0], &mean_of(&x[0], count, |v| v * v), &x[1..])
}

fn affine(x: &Nd, square: &Nd, rest: &[Nd]) -> Nd {
    let mut all = vec![x.clone(), square.clone()];
    all.extend_from_slice(rest);
    zip(&all, |v| v[0] / (v[1] + EPS).sqrt() * v.get(2).unwrap_or(&1.0) + v.get(3).unwrap_or(&0.0))
}

fn layer_norm() -> Row {
    Row::new("layer_norm")
        .rule(Rule::FloatsOnly)
        .ulps(64.0)
        .scale(1.0)
        .case("plain", [real([2, 3])], |x| ops::layer_norm(&x[0], 3, None, None, EPS), |x| layer_norm_of(x, 1))
        .case(
            "weight",
            [real([2, 3]), real([3])],
            |x| ops::layer_norm(&x[0], 3, Some(&x[1]), None, EPS),
            |x| layer_norm_of(x, 1),
        )
        .floats_only()
        .case(
            "weight and bias",
            [real([2, 3]), real([3]), real([3])],
            |x| ops::layer_norm(&x[0], 3, Some(&x[1]), Some(&x[2]), EPS),
            |x| layer_norm_of(x, 1),
        )
        .floats_only()
        .case(
            "bias",
            [real([2, 3]), real([3])],
            |x| ops::layer_norm(&x[0], 3, None, Some(&x[1]), EPS),
            |x| layer_norm_of(&[x[0].clone(), Nd::from_fn(&[3], |_| 1.0), x[1].clone()], 1),
        )
        .floats_only()
        .case(
            "two axes",
            [real([2, 2, 2]), real([2, 2]), real([2, 2])],
            |x| ops::layer_norm(&x[0], [2, 2], Some(&x[1]), Some(&x[2]), EPS),
            |x| layer_norm_of(x, 2),
        )
        .floats_only()
        .case(
            "no row",
            [real([0, 3]), real([3]), real([3])],
            |x| ops::layer_norm(&x[0], 3, Some(&x[1]), Some(&x[2]), EPS),
            |x| layer_norm_of(x, 1),
        )
        .floats_only()
        .also("the shape must be the last axes", || {
            Ok(ops::layer_norm(&Tensor::zeros([2, 3], DType::F32), 2, None, None, EPS).is_err())
        })
        .also("the weight has the shape", || {
            let x = Tensor::zeros([2, 3], DType::F32);
            Ok(ops::layer_norm(&x, 3, Some(&x), None, EPS).is_err())
        })
}

fn rms_norm() -> Row {
    Row::new("rms_norm")
        .rule(Rule::FloatsOnly)
        .ulps(64.0)
        .scale(1.0)
        .case("plain", [real([2, 3])], |x| ops::rms_norm(&x[0], 3, None, EPS), |x| rms_norm_of(x, 1))
        .case("weight", [real([2, 3]), real([3])], |x| ops::rms_norm(&x[0], 3, Some(&x[1]), EPS), |x| rms_norm_of(x, 1))
        .floats_only()
        .case(
            "two axes",
            [real([2, 2, 2]), real([2, 2])],
            |x| ops::rms_norm(&x[0], [2, 2], Some(&x[1]), EPS),
            |x| rms_norm_of(x, 2),
        )
        .floats_only()
        .case("no row", [real([0, 3]), real([3])], |x| ops::rms_norm(&x[0], 3, Some(&x[1]), EPS), |x| rms_norm_of(x, 1))
        .floats_only()
}
