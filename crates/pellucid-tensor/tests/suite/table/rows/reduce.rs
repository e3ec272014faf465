//! Reductions.

use crate::table::nd::keepdims;
use crate::table::row::{Gradient::Third, Row, Rule, real};
use ops::{Axes, over};
use pellucid_tensor::{DType, Error, GradOptions, Result, Tensor, grad, ops};

pub(super) fn rows() -> Vec<Row> {
    let mut rows = sums();
    rows.extend(extrema());
    rows.extend(boolean_reductions());
    rows.extend(norms());
    rows
}

/// Returns a row over every kind of axes; `empty` is true if the reduction of zero elements has a value.
fn reduction(
    name: &'static str,
    call: fn(&Tensor, Axes) -> Result<Tensor>,
    value: impl Fn(&[f64]) -> f64 + Copy + 'static,
    empty: bool,
) -> Row {
    let all = |shape: &[usize]| (0..shape.len()).collect::<Vec<_>>();
    let mut row = Row::new(name)
        .scale(2.0)
        .case("all axes", [real([2, 3])], move |x| call(&x[0], (..).into()), move |x| x[0].reduce(&[0, 1], value))
        .case("the last", [real([2, 5])], move |x| call(&x[0], (-1).into()), move |x| x[0].reduce(&[1], value))
        .floats_only()
        .case("the first", [real([3, 2])], move |x| call(&x[0], 0.into()), move |x| x[0].reduce(&[0], value))
        .floats_only()
        .case("the middle", [real([2, 3, 2])], move |x| call(&x[0], 1.into()), move |x| x[0].reduce(&[1], value))
        .floats_only()
        .case(
            "the outer ones",
            [real([2, 2, 3])],
            move |x| call(&x[0], [-1, 0].into()),
            move |x| x[0].reduce(&[0, 2], value),
        )
        .floats_only()
        .case("kept", [real([2, 3])], move |x| call(&x[0], over(1).keepdims()), move |x| x[0].fold(&[1], value))
        .floats_only()
        .case("a number", [real([])], move |x| call(&x[0], (..).into()), move |x| x[0].reduce(&[], value))
        .floats_only()
        .case("long", [real([3000])], move |x| call(&x[0], 0.into()), move |x| x[0].reduce(&[0], value))
        .long()
        .case_scale(100.0)
        .case("long columns", [real([70, 50])], move |x| call(&x[0], 0.into()), move |x| x[0].reduce(&[0], value))
        .long()
        .case("no row", [real([0, 3])], move |x| call(&x[0], 1.into()), move |x| x[0].reduce(&[1], value))
        .floats_only();
    if empty {
        for shape in [vec![0, 3], vec![2, 0], vec![0]] {
            let (axes, input) = (all(&shape), crate::table::row::Input { shape, ..real([]) });
            row = row
                .case(
                    format!("nothing, {:?}", input.shape),
                    [input],
                    move |x| call(&x[0], (..).into()),
                    move |x| x[0].reduce(&axes, value),
                )
                .floats_only();
        }
    }
    row
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

fn variance(x: &[f64], ddof: usize) -> f64 {
    let m = mean(x);
    x.iter().map(|v| (v - m) * (v - m)).sum::<f64>() / (x.len() as f64 - ddof as f64).max(0.0)
}

fn sums() -> Vec<Row> {
    let ddof = |name, call: fn(&Tensor, Axes) -> Result<Tensor>, root: bool| {
        let value = move |x: &[f64], ddof| if root { variance(x, ddof).sqrt() } else { variance(x, ddof) };
        reduction(name, call, move |x| value(x, 0), false)
            .case(
                "ddof 1",
                [real([2, 3])],
                move |x| call(&x[0], over(-1).ddof(1)),
                move |x| x[0].reduce(&[1], |r| value(r, 1)),
            )
            .floats_only()
            .rule(Rule::FloatsOnly)
            .ulps(32.0)
    };
    vec![
        reduction("sum", ops::sum, |x| x.iter().sum(), true).rule(Rule::Counts).ulps(32.0).check(
            "keepdims must keep the rank",
            || {
                let x = Tensor::zeros([2, 3, 4], DType::F32);
                Ok(ops::sum(&x, over([0, 2]).keepdims())?.shape()[..] == keepdims(&[2, 3, 4], &[0, 2])[..])
            },
        ),
        reduction("nansum", ops::nansum, |x| x.iter().filter(|v| !v.is_nan()).sum(), true)
            .rule(Rule::Counts)
            .ulps(32.0)
            .any_zero(),
        reduction("nanmean", ops::nanmean, |x| mean(&numbers(x)), true).rule(Rule::Floats).ulps(32.0),
        reduction("count_nonzero", ops::count_nonzero, |x| x.iter().filter(|&&v| v != 0.0).count() as f64, true)
            .rule(Rule::Always(DType::I64))
            .untracked(),
        reduction("mean", ops::mean, mean, true).rule(Rule::Floats).ulps(32.0),
        ddof("var", ops::var, false)
            .check("zero degrees of freedom must give NaN", || {
                Ok(ops::var(&Tensor::from([1.5]), over(0).ddof(1))?.item::<f64>().is_nan())
            })
            .check("fewer elements than ddof must give infinity, as in NumPy", || {
                Ok(ops::var(&Tensor::from([1.0, 2.0]), over(0).ddof(3))?.item::<f64>() == f64::INFINITY)
            }),
        // The deviation has a kink where it is 0.
        ddof("std", ops::std, true).without("a number").check("the gradient at equal elements must be 0", || {
            let x = Tensor::from([[1.5, 1.5, 1.5], [1.0, 2.0, 3.0]]).requires_grad_(true);
            let options = GradOptions { create_graph: true, ..Default::default() };
            let first = grad(&[&ops::std(&x, 1)?.sum(..)], &[&x], options)?.remove(0);
            let second = grad(&[&first.square().sum(..)], &[&x], GradOptions::default())?.remove(0);
            let is_finite = second.to_vec::<f64>().iter().all(|v| v.is_finite());
            Ok(first.to_vec::<f64>()[..3] == [0.0; 3] && first.to_vec::<f64>()[3] < 0.0 && is_finite)
        }),
        reduction("prod", ops::prod, |x| x.iter().product(), true)
            .rule(Rule::Counts)
            .within(-1.5..=1.5)
            // The result is exactly 0, and for infinite elements it depends on the order of the additions.
            .without("long")
            .gradient(Third)
            .ulps(64.0)
            .check("the gradient at zeros", || {
                let x = Tensor::from([2.0, 0.0, 3.0]).requires_grad_(true);
                ops::prod(&x, ..)?.backward();
                Ok(x.grad().expect("the tensor must have a gradient").to_vec::<f64>() == [0.0, 6.0, 0.0])
            }),
    ]
}

/// Returns the position of the first extremum, or of the first NaN.
fn position(x: &[f64], better: fn(f64, f64) -> bool) -> usize {
    let nan = x.iter().position(|v| v.is_nan());
    nan.unwrap_or_else(|| (1..x.len()).fold(0, |best, i| if better(x[i], x[best]) { i } else { best }))
}

fn extremum(x: &[f64], better: fn(f64, f64) -> bool) -> f64 {
    x[position(x, better)]
}

/// Returns the elements that are not NaN.
fn numbers(x: &[f64]) -> Vec<f64> {
    x.iter().copied().filter(|v| !v.is_nan()).collect()
}

fn extrema() -> Vec<Row> {
    fn rejected(result: Result<Tensor>) -> Result<bool> {
        Ok(matches!(result, Err(Error::InvalidArgument { .. })))
    }
    let positions = |row: Row| row.rule(Rule::Always(DType::I64)).untracked();
    vec![
        reduction("max", ops::max, |x| extremum(x, |a, b| a > b), false)
            .check("zero elements must be an error", || rejected(ops::max(&Tensor::zeros([0, 3], DType::F32), 0)))
            .check("ties must share the gradient evenly", || {
                let x = Tensor::from([3.0, 1.0, 3.0, 3.0]).requires_grad_(true);
                (ops::max(&x, ..)? * 6.0).backward();
                Ok(x.grad().expect("the tensor must have a gradient").to_vec::<f64>() == [2.0, 0.0, 2.0, 2.0])
            }),
        reduction("min", ops::min, |x| extremum(x, |a, b| a < b), false)
            .check("zero elements must be an error", || rejected(ops::min(&Tensor::zeros([0, 3], DType::F32), 0)))
            .check("ties must share the gradient evenly", || {
                let x = Tensor::from([[1.0, 1.0], [0.0, 5.0]]).requires_grad_(true);
                ops::min(&x, 1)?.backward();
                Ok(x.grad().expect("the tensor must have a gradient").to_vec::<f64>() == [0.5, 0.5, 1.0, 0.0])
            }),
        reduction("ptp", ops::ptp, |x| extremum(x, |a, b| a > b) - extremum(x, |a, b| a < b), false)
            .rule(Rule::Numbers)
            .check("zero elements must be an error", || rejected(ops::ptp(&Tensor::zeros([0, 3], DType::F32), 0))),
        Row::new("aminmax")
            .outputs(
                "an axis",
                [real([2, 3])],
                |x| ops::aminmax(&x[0], 1).map(|(a, b)| vec![a, b]),
                |x| {
                    vec![
                        x[0].reduce(&[1], |x| extremum(x, |a, b| a < b)),
                        x[0].reduce(&[1], |x| extremum(x, |a, b| a > b)),
                    ]
                },
            )
            .check("zero elements must be an error", || {
                Ok(matches!(ops::aminmax(&Tensor::zeros([0], DType::F32), ..), Err(Error::InvalidArgument { .. })))
            }),
        positions(reduction("argmax", ops::argmax, |x| position(x, |a, b| a > b) as f64, false))
            .check("zero elements must be an error", || rejected(ops::argmax(&Tensor::zeros([2, 0], DType::F32), 1))),
        positions(reduction("argmin", ops::argmin, |x| position(x, |a, b| a < b) as f64, false))
            .check("zero elements must be an error", || rejected(ops::argmin(&Tensor::zeros([0], DType::F32), ..))),
    ]
}

fn boolean_reductions() -> Vec<Row> {
    let truth = |row: Row| row.rule(Rule::Always(DType::Bool)).untracked();
    vec![
        truth(reduction("any", ops::any, |x| f64::from(x.iter().any(|&v| v != 0.0)), true)),
        truth(reduction("all", ops::all, |x| f64::from(x.iter().all(|&v| v != 0.0)), true)),
    ]
}

fn norms() -> Vec<Row> {
    fn largest(x: &[f64]) -> f64 {
        x.iter().fold(0.0, |m: f64, v| if v.is_nan() || m.is_nan() { f64::NAN } else { m.max(v.abs()) })
    }
    fn smallest(x: &[f64]) -> f64 {
        x.iter().fold(f64::INFINITY, |m: f64, v| if v.is_nan() || m.is_nan() { f64::NAN } else { m.min(v.abs()) })
    }
    fn power(x: &[f64], p: f64) -> f64 {
        x.iter().map(|v| v.abs().powf(p)).sum::<f64>().powf(1.0 / p)
    }
    let mut norm =
        reduction("norm", |x, a| ops::norm(x, 2.0, a), |x| x.iter().map(|v| v * v).sum::<f64>().sqrt(), true);
    type Order = (f64, fn(&[f64]) -> f64);
    let orders: [Order; 6] = [
        (1.0, |x| x.iter().map(|v| v.abs()).sum()),
        (3.0, |x| power(x, 3.0)),
        (0.5, |x| power(x, 0.5)),
        (0.0, |x| x.iter().filter(|&&v| v != 0.0).count() as f64),
        (f64::INFINITY, largest),
        (f64::NEG_INFINITY, smallest),
    ];
    for (p, value) in orders {
        norm = norm
            .case(
                format!("order {p}"),
                [real([2, 3])],
                move |x| ops::norm(&x[0], p, -1),
                move |x| x[0].reduce(&[1], value),
            )
            .floats_only();
    }
    let logsumexp = |x: &[f64]| {
        let m = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if m.is_infinite() && !x.iter().any(|v| v.is_nan()) {
            m
        } else {
            x.iter().map(|v| (v - m).exp()).sum::<f64>().ln() + m
        }
    };
    vec![
        norm.rule(Rule::FloatsOnly).ulps(32.0).away(&[0.0]).check(
            "the gradient of the 2-norm at zero must be 0",
            || {
                let x = Tensor::zeros([3], DType::F64).requires_grad_(true);
                ops::norm(&x, 2.0, ..)?.backward();
                Ok(x.grad().expect("the tensor must have a gradient").to_vec::<f64>() == [0.0; 3])
            },
        ),
        reduction("logsumexp", ops::logsumexp, logsumexp, false)
            .rule(Rule::FloatsOnly)
            .ulps(32.0)
            .gradient(Third)
            .check("large inputs", || {
                Ok(ops::logsumexp(&Tensor::from([1e4, 1e4]), ..)?.item::<f64>() == 1e4 + 2f64.ln())
            })
            .check("only −∞", || {
                Ok(ops::logsumexp(&Tensor::from([f64::NEG_INFINITY; 2]), ..)?.item::<f64>() == f64::NEG_INFINITY)
            }),
    ]
}
